"""Where topics are: what clients ask a nameserver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import QUEUES_OF_GROUP, RETRY_PREFIX, is_group_topic
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import CallLane, OnLaneError, RemotingAnswer, RemotingCall, handles
from tierlog.service.rocketmq.topics import AUTO_CREATE_TOPIC, may_write
from tierlog.tiering.base.errors import ForbiddenError, TopicNotFoundError
from tierlog.tiering.message.batch import validate_topic
from tierlog.tiering.rocketmq.codes import RequestCode

#: Bits of a topic's permission: others inherit it, reading, writing.
_INHERIT, _READ, _WRITE = 1, 4, 2
#: The number of a master among the brokers of one name.
MASTER_ID = 0


@handles(RequestCode.GET_ROUTEINFO_BY_TOPIC, lane=CallLane.LOOP)
def route_of_topic(call: RemotingCall) -> RemotingAnswer:
    """Answers with the stores that have a topic, each a broker with its queues.

    A group's topic of retries has a route before it is there, which it is from the group's first heartbeat on. A new
    group's client asks once before that heartbeat, and again half a minute later: it would get what failed only then.
    """
    topic, broker = call.text("topic"), call.broker
    # who may produce any topic may ask where one that is not there yet would be: sending it decides
    produced = None if topic == AUTO_CREATE_TOPIC else topic
    read = None if is_group_topic(topic) else produced
    if not (call.caller.may(Scope.READ, read) or call.caller.may(Scope.PRODUCE, produced)):
        raise ForbiddenError(f"{call.caller.name!r} has no right to topic {topic[:300]!r}")
    _ask_others(call, topic)
    queues = queues_by_store(broker, topic)
    if not queues:
        raise TopicNotFoundError(f"No topic route info in name server for the topic: {topic[:300]}")
    return RemotingAnswer.of_json(_route(broker, topic, queues))


@handles(RequestCode.GET_BROKER_CLUSTER_INFO, lane=CallLane.LOOP)
def cluster_info(call: RemotingCall) -> RemotingAnswer:
    """Answers with the stores of the cluster that answer, each a broker."""
    broker = call.broker
    _ask_others(call, AUTO_CREATE_TOPIC)
    found = addresses(broker)
    document = {
        "brokerAddrTable": {name: broker_data(broker, name, address) for name, address in found.items()},
        "clusterAddrTable": {broker.settings.rocketmq.cluster: list(found)},
    }
    return RemotingAnswer.of_json(document)


@handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lane=CallLane.LOOP)
def topic_names(call: RemotingCall) -> RemotingAnswer:
    """Answers with the topics that the caller may read."""
    return RemotingAnswer.of_json({"brokerAddr": None, "topicList": readable_topics(call)})


def readable_topics(call: RemotingCall) -> list[str]:
    """Returns the names of the topics that the caller may read."""
    return [name for name in sorted(call.broker.store.queue_counts()) if call.caller.may(Scope.READ, name)]


def addresses(broker: Broker) -> dict[str, str]:
    """Returns the addresses of the stores that are there, by name; the own one too."""
    return dict(sorted({**broker.others.brokers("remoting"), broker.name: broker.address}.items()))


def queues_by_store(broker: Broker, topic: str) -> dict[str, int]:
    """Returns how many queues a topic has in each store that is there and has it, in the order of RocketMQ's clients.

    The topic that stands for those to be made, and topics of retries, are in each of them.
    """
    if topic == AUTO_CREATE_TOPIC and broker.settings.create_topics:
        return dict.fromkeys(addresses(broker), broker.settings.hot.default_queues)
    if topic.startswith(RETRY_PREFIX):
        validate_topic(topic)
        return dict.fromkeys(addresses(broker), QUEUES_OF_GROUP)
    found = {name: queues for name, (_, queues) in broker.others.with_topic(topic, "remoting").items()}
    own = broker.store.find_queues(topic)
    if own is not None:
        found[broker.name] = own
    return dict(sorted(found.items()))


def _ask_others(call: RemotingCall, topic: str) -> None:
    """Learns what the other stores have, on a thread, as it takes time."""
    if call.broker.others.are_known("remoting"):
        if call.lane is CallLane.LOOP:
            raise OnLaneError(CallLane.READ)
        call.broker.others.ask(topic)


def _route(broker: Broker, topic: str, queues: Mapping[str, int]) -> dict[str, Any]:
    known = addresses(broker)
    there = {name: count for name, count in queues.items() if name in known}  # it may go in between
    queue_datas = [
        {
            "brokerName": name, "perm": _permission(broker, topic, name), "readQueueNums": count, "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for name, count in there.items()
    ]  # fmt: skip
    broker_datas = [broker_data(broker, name, known[name]) for name in there]
    return {"brokerDatas": broker_datas, "filterServerTable": {}, "queueDatas": queue_datas}


def _permission(broker: Broker, topic: str, store_id: str) -> int:
    inherited = _INHERIT if topic == AUTO_CREATE_TOPIC else 0
    may = (topic == AUTO_CREATE_TOPIC or may_write(topic)) and broker.others.takes(topic, store_id)
    return inherited | _READ | (_WRITE if may else 0)


def broker_data(broker: Broker, name: str, address: str) -> dict[str, Any]:
    """Returns where a store's door is, as clients are told of a broker."""
    return {
        "brokerAddrs": {str(MASTER_ID): address},
        "brokerName": name,
        "cluster": broker.settings.rocketmq.cluster,
        "enableActingMaster": False,
    }
