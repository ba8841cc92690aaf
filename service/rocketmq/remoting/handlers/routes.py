"""Where topics are: what clients ask a nameserver."""

from __future__ import annotations

from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import QUEUES_OF_GROUP, RETRY_PREFIX, is_group_topic
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles
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
    """Answers with the one broker and the topic's queues.

    A group's topic of retries has a route before it is there, which it is from the group's first heartbeat on. A new
    group's client asks once before that heartbeat, and again half a minute later: it would get what failed only then.
    """
    topic, broker = call.text("topic"), call.broker
    # who may produce any topic may ask where one that is not there yet would be: sending it decides
    produced = None if topic == AUTO_CREATE_TOPIC else topic
    read = None if is_group_topic(topic) else produced
    if not (call.caller.may(Scope.READ, read) or call.caller.may(Scope.PRODUCE, produced)):
        raise ForbiddenError(f"{call.caller.name!r} has no right to topic {topic[:300]!r}")
    if topic == AUTO_CREATE_TOPIC and broker.settings.create_topics:
        return RemotingAnswer.of_json(route(broker, broker.settings.hot.default_queues, _INHERIT | _READ | _WRITE))
    queues = broker.store.find_queues(topic)
    if queues is None and topic.startswith(RETRY_PREFIX):
        validate_topic(topic)
        queues = QUEUES_OF_GROUP
    if queues is None:
        raise TopicNotFoundError(f"No topic route info in name server for the topic: {topic[:300]}")
    return RemotingAnswer.of_json(route(broker, queues, _READ | (_WRITE if may_write(topic) else 0)))


@handles(RequestCode.GET_BROKER_CLUSTER_INFO, lane=CallLane.LOOP)
def cluster_info(call: RemotingCall) -> RemotingAnswer:
    """Answers with the cluster of one broker."""
    broker = call.broker
    cluster = broker.settings.rocketmq.cluster
    document = {
        "brokerAddrTable": {broker.name: broker_data(broker)},
        "clusterAddrTable": {cluster: [broker.name]},
    }
    return RemotingAnswer.of_json(document)


@handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lane=CallLane.LOOP)
def topic_names(call: RemotingCall) -> RemotingAnswer:
    """Answers with the topics that the caller may read."""
    return RemotingAnswer.of_json({"brokerAddr": None, "topicList": readable_topics(call)})


def readable_topics(call: RemotingCall) -> list[str]:
    """Returns the names of the topics that the caller may read."""
    return [name for name in sorted(call.broker.store.queue_counts()) if call.caller.may(Scope.READ, name)]


def route(broker: Broker, queues: int, permission: int) -> dict[str, Any]:
    """Returns the route of a topic with so many queues."""
    queue_data = {
        "brokerName": broker.name,
        "perm": permission,
        "readQueueNums": queues,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }
    return {"brokerDatas": [broker_data(broker)], "filterServerTable": {}, "queueDatas": [queue_data]}


def broker_data(broker: Broker) -> dict[str, Any]:
    """Returns the addresses of the broker."""
    return {
        "brokerAddrs": {str(MASTER_ID): broker.address},
        "brokerName": broker.name,
        "cluster": broker.settings.rocketmq.cluster,
        "enableActingMaster": False,
    }
