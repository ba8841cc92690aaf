"""What tools ask about topics, and topics that they make, change and delete.

A topic of RocketMQ has settings that one of tierlog has not. What cannot be had is refused rather than forgotten: a
topic that is only read or only written, and attributes other than ``message.type``, which says what clients mean to
send; every topic takes messages of all types.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.remoting import java_json
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.routes import readable_topics
from tierlog.service.rocketmq.remoting.java_json import MessageQueue
from tierlog.service.rocketmq.topics import is_system_topic
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: A topic that is read and written.
READ_WRITE = 6
_TYPE_ATTRIBUTE = "message.type"
_TYPES = frozenset(("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"))


@handles(RequestCode.UPDATE_AND_CREATE_TOPIC, lane=CallLane.APPEND)
def update_topic(call: RemotingCall) -> RemotingAnswer:
    """Makes a topic, or gives one more queues."""
    topic, store = call.text("topic"), call.broker.store
    call.caller.check(Scope.ADMIN, topic)
    if is_system_topic(topic):
        raise ForbiddenError(f"topic {topic[:300]!r} is a system topic")
    queues, read_queues = call.number("writeQueueNums"), call.number("readQueueNums")
    if queues != read_queues or call.number("perm", READ_WRITE) != READ_WRITE:
        raise InvalidRequestError(
            f"{read_queues} queues to read, {queues} to write, perm {call.number('perm', READ_WRITE)}",
            hint=f"a topic has as many queues to read as to write, and perm {READ_WRITE}",
        )
    _check_attributes(call.text("attributes", ""))
    with call.recorded(topic=topic, queues=queues):
        store.create_topic(topic, queues)
    return RemotingAnswer()


def _check_attributes(attributes: str) -> None:
    """``+name=value,-name``, as tools write changes."""
    for change in filter(None, attributes.split(",")):
        name, _, value = change.strip().lstrip("+-").partition("=")
        if name != _TYPE_ATTRIBUTE or (value and value.upper() not in _TYPES):
            raise InvalidRequestError(
                f"no attribute {change[:100]!r}", hint=f"{_TYPE_ATTRIBUTE} is the only one that a topic may have"
            )


@handles(RequestCode.DELETE_TOPIC_IN_BROKER, lane=CallLane.APPEND)
def delete_topic(call: RemotingCall) -> RemotingAnswer:
    """Deletes a topic with all its messages, for every reader at once."""
    topic = call.text("topic")
    call.caller.check(Scope.ADMIN, topic)
    if is_system_topic(topic):
        raise ForbiddenError(f"topic {topic[:300]!r} is a system topic")
    if call.broker.store.find_queues(topic) is None:
        return RemotingAnswer()  # as RocketMQ does, whose tools delete topics of a group that may not be there
    with call.recorded(topic=topic):
        call.broker.store.removal.delete_topic(topic)
    return RemotingAnswer()


@handles(RequestCode.DELETE_TOPIC_IN_NAMESRV, lane=CallLane.LOOP)
def forget_topic(call: RemotingCall) -> RemotingAnswer:
    """Says that a deleted topic has no route any more: there is one list of topics, the broker's."""
    topic = call.text("topic")
    call.caller.check(Scope.ADMIN, topic)
    if call.broker.store.find_queues(topic) is not None:
        return refusal(ResponseCode.SYSTEM_ERROR, f"topic {topic[:300]!r} is still there: delete it in the broker")
    return RemotingAnswer()


@handles(RequestCode.GET_ALL_TOPIC_CONFIG, lane=CallLane.LOOP)
def topic_configs(call: RemotingCall) -> RemotingAnswer:
    """Answers with the settings of the topics that the caller may read, or with a page of them."""
    counts = call.broker.store.queue_counts()
    names = readable_topics(call)
    first, most = call.number("topicSeq", 0), call.number("maxTopicNum", len(names))
    page = names[max(0, first) :][: max(1, most)]
    body = java_json.encode(
        {"dataVersion": data_version(), "topicConfigTable": {name: topic_config(name, counts[name]) for name in page}}
    )
    return RemotingAnswer({"totalTopicNum": str(len(names))}, body)


@handles(RequestCode.GET_TOPIC_CONFIG, lane=CallLane.LOOP)
def one_topic_config(call: RemotingCall) -> RemotingAnswer:
    """Answers with the settings of one topic."""
    topic = call.text("topic")
    call.caller.check(Scope.READ, topic)
    return RemotingAnswer.of_json(topic_config(topic, queues_of(call.broker, topic)))


@handles(RequestCode.GET_TOPIC_STATS_INFO, lane=CallLane.READ)
def topic_stats(call: RemotingCall) -> RemotingAnswer:
    """Answers with where each queue begins and ends, and when its last message was stored."""
    topic, broker = call.text("topic"), call.broker
    call.caller.check(Scope.READ, topic)
    found = []
    for queue_id in range(queues_of(broker, topic)):
        first, end = broker.store.offsets(topic, queue_id)
        stats = {
            "lastUpdateTimestamp": stored_ms(broker.store, topic, queue_id, end - 1) if end > first else 0,
            "maxOffset": end,
            "minOffset": first,
        }
        found.append((MessageQueue(broker.name, queue_id, topic), stats))
    return RemotingAnswer(body=java_json.encode({"offsetTable": java_json.table(found), "topicPutTps": 0.0}))


@handles(RequestCode.GET_TOPICS_BY_CLUSTER, lane=CallLane.LOOP)
def topics_of_cluster(call: RemotingCall) -> RemotingAnswer:
    """Answers with the topics of the cluster, if it is this one."""
    wanted, own = call.text("cluster"), call.broker.settings.rocketmq.cluster
    return RemotingAnswer.of_json({"brokerAddr": None, "topicList": readable_topics(call) if wanted == own else []})


@handles(
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, lane=CallLane.LOOP
)  # fmt: skip
def system_topics(call: RemotingCall) -> RemotingAnswer:
    """Answers with the system topics that are there, and what clients take for some: the broker and its cluster."""
    broker = call.broker
    found = [name for name in readable_topics(call) if is_system_topic(name)]
    names = [broker.settings.rocketmq.cluster, broker.name, *found]
    return RemotingAnswer.of_json({"brokerAddr": broker.address, "topicList": names})


def queues_of(broker: Broker, topic: str) -> int:
    """Returns how many queues a topic has; :class:`TopicNotFoundError` for one that is not there."""
    queues = broker.store.find_queues(topic)
    if queues is None:
        raise TopicNotFoundError(f"no topic {topic[:300]!r} in this broker")
    return queues


def topic_config(topic: str, queues: int) -> dict[str, Any]:
    """Returns the settings of a topic with so many queues."""
    return {
        "attributes": {},
        "order": False,
        "perm": READ_WRITE,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def data_version() -> dict[str, Any]:
    """Returns the version of a list that is always told whole."""
    return {"counter": 0, "stateVersion": 0, "timestamp": 0}


def stored_ms(store: Store, topic: str, queue_id: int, offset: int) -> int:
    """Returns when the message at an offset was stored; 0 where it is gone or nobody can tell."""
    with contextlib.suppress(StoreError):
        found = store.pull(topic, queue_id, offset, 1).messages
        if found and found[0].record.queue_offset == offset:
            return found[0].record.store_ms
    return 0
