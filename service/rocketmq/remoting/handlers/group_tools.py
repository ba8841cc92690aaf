"""What tools ask about groups of consumers, and groups whose offsets they set.

A group is known by what it has committed, by its members, and by the topic of its messages to deliver again; it has no
settings of its own. Of a group, a caller sees what concerns topics that it may read, and a group that concerns only
others not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import RETRY_PREFIX, is_group_topic
from tierlog.service.rocketmq.remoting import java_json
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.clients import Member, Subscription
from tierlog.service.rocketmq.remoting.handlers.topic_tools import data_version, queues_of, stored_ms
from tierlog.service.rocketmq.remoting.java_json import MessageQueue
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: The timestamp that stands for the end of a queue.
_LATEST = -1
_CPP = "CPP"


# Settings of groups.


@handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, lane=CallLane.APPEND)
def update_group(call: RemotingCall) -> RemotingAnswer:
    """Makes the topic of a group's messages to deliver again, by which tools find the group.

    A group has no settings, so those that are wanted must be the ones that every group has.
    """
    document, broker = call.document(), call.broker
    if not isinstance(document, dict) or not isinstance(document.get("groupName"), str):
        raise InvalidRequestError("no settings of a group")
    group = validate_group(document["groupName"])
    call.caller.check(Scope.ADMIN, RETRY_PREFIX + group)
    own = group_config(broker, group)
    for name, only in (("consumeEnable", True), ("retryMaxTimes", own["retryMaxTimes"])):
        wanted = document.get(name, only)
        if wanted != only and (name, wanted) != ("retryMaxTimes", _JAVA_RETRIES):
            raise InvalidRequestError(
                f"{name} = {str(wanted)[:100]}",
                hint="groups have no settings of their own: rocketmq.max_attempts is the one for all of them",
            )
    with call.recorded(group=group):
        broker.store.make_topic(RETRY_PREFIX + group, 1, may_make=True)
    return RemotingAnswer()


#: The default of Java's settings of a group, which tools send unless told otherwise.
_JAVA_RETRIES = 16


@handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lane=CallLane.READ)
def group_configs(call: RemotingCall) -> RemotingAnswer:
    """Answers with the settings of the groups that the caller may know of, or with a page of them."""
    names = [name for name in known_groups(call.broker) if may_know(call, name)]
    first, most = call.number("groupSeq", 0), call.number("maxGroupNum", len(names))
    page = names[max(0, first) :][: max(1, most)]
    document = {
        "dataVersion": data_version(),
        "forbiddenTable": {},
        "subscriptionGroupTable": {name: group_config(call.broker, name) for name in page},
    }
    return RemotingAnswer({"totalGroupNum": str(len(names))}, java_json.encode(document))


@handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, lane=CallLane.READ)
def one_group_config(call: RemotingCall) -> RemotingAnswer:
    """Answers with the settings of a group."""
    group = call.text("group")
    if not _is_known(call, group):
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {group[:300]!r}")
    return RemotingAnswer.of_json(group_config(call.broker, group))


@handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, lane=CallLane.APPEND)
def delete_group(call: RemotingCall) -> RemotingAnswer:
    """Forgets a group's offsets, if that is asked for; without that, there is nothing to forget."""
    group, broker = validate_group(call.text("groupName")), call.broker
    for topic in _topics_of(broker, group):
        call.caller.check(Scope.READ if is_group_topic(topic) else Scope.ADMIN, topic)
    call.caller.check(Scope.ADMIN)
    if broker.clients.consumers(group):
        raise ConflictError(f"group {group[:300]!r} has live members", hint="stop its consumers first")
    if call.is_true("cleanOffset") and group in broker.store.groups.all_committed():
        with call.recorded(group=group):
            broker.store.groups.remove(group)
    return RemotingAnswer()


def group_config(broker: Broker, group: str) -> dict[str, Any]:
    """Returns the settings of a group."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": broker.settings.rocketmq.max_attempts,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


# What groups have done.


@handles(RequestCode.GET_CONSUME_STATS, lane=CallLane.READ)
def consume_stats(call: RemotingCall) -> RemotingAnswer:
    """Answers with how far a group is in its topics, or in one of them."""
    group, topic, broker = call.text("consumerGroup"), call.text("topic", ""), call.broker
    topics = {topic} if topic else set(call.text("topicList", "").split(";")) - {""}
    topics = topics or _topics_of(broker, group)
    found = []
    for name in sorted(topics):
        queues = broker.store.find_queues(name)
        if queues is None or not _may_see(call, group, name):
            continue
        for queue_id in range(queues):
            _, end = broker.store.offsets(name, queue_id)
            offset = broker.offsets.find(group, name, queue_id) or 0
            stats = {
                "brokerOffset": end,
                "consumerOffset": offset,
                "lastTimestamp": stored_ms(broker.store, name, queue_id, offset - 1) if offset else 0,
                "pullOffset": offset,
            }
            found.append((MessageQueue(broker.name, queue_id, name), stats))
    return RemotingAnswer(body=java_json.encode({"consumeTps": 0.0, "offsetTable": java_json.table(found)}))


@handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lane=CallLane.READ)
def groups_of_topic(call: RemotingCall) -> RemotingAnswer:
    """Answers with the groups that have read a topic, or read it now."""
    topic = call.text("topic")
    call.caller.check(Scope.READ, topic)
    found = [name for name in known_groups(call.broker) if topic in _topics_of(call.broker, name)]
    return RemotingAnswer.of_json({"groupList": found})


@handles(RequestCode.QUERY_TOPICS_BY_CONSUMER, lane=CallLane.READ)
def topics_of_group(call: RemotingCall) -> RemotingAnswer:
    """Answers with the topics that a group has read, or reads now."""
    group = call.text("group")
    found = [name for name in sorted(_topics_of(call.broker, group)) if _may_see(call, group, name)]
    return RemotingAnswer.of_json({"brokerAddr": None, "topicList": found})


@handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, lane=CallLane.LOOP)
def subscription_of_group(call: AnyCall) -> RemotingAnswer:
    """Answers with what the members of a group read of a topic."""
    group, topic = call.text("group"), call.text("topic")
    call.caller.check(Scope.READ, topic)
    found = call.broker.clients.subscription(group, topic)
    document = {"group": group, "subscriptionData": found and subscription_json(found), "topic": topic}
    return RemotingAnswer.of_json(document)


@handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, lane=CallLane.APPEND)
def reset_offsets(call: RemotingCall) -> RemotingAnswer:
    """Sets a group to the messages stored since a time, or to an offset of one queue, and tells its members.

    The members go on from there some ten seconds later, and what they commit until then is overwritten by them: Java's
    own way. ``isForce`` false moves no queue forward.
    """
    group, topic, broker = validate_group(call.text("group")), call.text("topic"), call.broker
    call.caller.check(Scope.READ, topic)
    queues = queues_of(broker, topic)
    if not _is_known(call, group):
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {group[:300]!r}")
    time_ms, wanted, one = call.number("timestamp", _LATEST), call.number("offset", -1), call.number("queueId", -1)
    if one >= queues:
        raise InvalidRequestError(f"topic {topic[:300]!r} has no queue {one}")
    may_skip = call.text("isForce", "true").lower() == "true"
    found: dict[int, int] = {}
    for queue_id in range(queues) if one < 0 else [one]:
        if one >= 0 and wanted >= 0:
            found[queue_id] = wanted
        elif time_ms < 0:
            found[queue_id] = broker.store.offsets(topic, queue_id)[1]
        else:
            found[queue_id] = broker.store.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
        before = broker.offsets.find(group, topic, queue_id)
        if not may_skip and before is not None:
            found[queue_id] = min(before, found[queue_id])
    with call.recorded(group=group, topic=topic, time_ms=time_ms):
        places = {(topic, broker.name, queue_id): offset for queue_id, offset in found.items()}
        broker.offsets.forget(lambda place: place[:2] == (group, topic))
        broker.store.groups.commit(group, places, reset=True)
    tell_reset(call, broker.name, found)
    return RemotingAnswer(body=java_json.encode({"offsetTable": offset_table(broker.name, topic, found)}))


def offset_table(name: str, topic: str, offsets: Mapping[int, int]) -> orjson.Fragment:
    """Returns offsets of a topic's queues in a broker as tools and clients read them."""
    return java_json.table((MessageQueue(name, at, topic), offset) for at, offset in sorted(offsets.items()))


def tell_reset(call: AnyCall, name: str, offsets: Mapping[int, int]) -> None:
    """Tells the members of the group that a reset names where they are in the queues of its topic now."""
    for member in call.broker.clients.consumers(call.text("group")):
        call.broker.call_soon(partial(_tell_reset, member, call, name, offsets))


def _tell_reset(member: Member, call: AnyCall, name: str, offsets: Mapping[int, int]) -> None:
    """Tells a member its new offsets; that of C++ reads a list, all others a table."""
    topic = call.text("topic")
    entries: Any
    if member.connection.language == _CPP:
        entries = [
            {"brokerName": name, "offset": offset, "queueId": at, "topic": topic}
            for at, offset in sorted(offsets.items())
        ]
    else:
        entries = offset_table(name, topic, offsets)
    fields = {"group": call.text("group"), "isForce": "true", "timestamp": call.text("timestamp", "-1"), "topic": topic}
    member.connection.push(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, java_json.encode({"offsetTable": entries})
    )  # fmt: skip


# Which groups there are, and for whom.


def known_groups(broker: Broker) -> list[str]:
    """Returns the groups that have committed something, have members, or have a topic of messages to deliver again."""
    topics = (name for name in broker.store.queue_counts() if name.startswith(RETRY_PREFIX))
    named = {name.removeprefix(RETRY_PREFIX) for name in topics}
    return sorted(named | set(broker.store.groups.all_committed()) | set(broker.clients.consumer_groups()))


def may_know(call: RemotingCall, group: str) -> bool:
    """Whether a group concerns a topic that the caller may read, or none at all."""
    topics = [name for name in _topics_of(call.broker, group) if not is_group_topic(name)]
    may_read = partial(call.caller.may, Scope.READ)
    return any(map(may_read, topics)) if topics else may_read(RETRY_PREFIX + group)


def _is_known(call: RemotingCall, group: str) -> bool:
    return group in known_groups(call.broker) and may_know(call, group)


def _may_see(call: RemotingCall, group: str, topic: str) -> bool:
    """Whether the caller may read the topic; the group's own ones with any topic of the group."""
    return may_know(call, group) if is_group_topic(topic) else call.caller.may(Scope.READ, topic)


def _topics_of(broker: Broker, group: str) -> set[str]:
    """Returns the topics that a group has committed offsets of in this store, or that its members read."""
    read = {
        topic for one in broker.clients.consumers(group) if one.info is not None for topic in one.info.subscriptions
    }
    return read | {topic for topic, _ in _offsets(broker, group)}


def _offsets(broker: Broker, group: str) -> dict[tuple[str, int], int]:
    state = broker.store.groups.all_committed().get(group)
    offsets: Mapping[tuple[str, str, int], int] = {} if state is None else state.offsets
    return {(topic, at): offset for (topic, store, at), offset in offsets.items() if store == broker.name}


def subscription_json(one: Subscription) -> dict[str, Any]:
    """Returns a subscription as clients say it."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(one.tag_hashes),
        "expressionType": one.kind,
        "subString": one.expression,
        "subVersion": one.version,
        "tagsSet": list(one.tags),
        "topic": one.topic,
    }
