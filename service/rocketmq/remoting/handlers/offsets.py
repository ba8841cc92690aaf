"""Offsets: where groups go on, where queues begin and end, and where they were at a time."""

from __future__ import annotations

from tierlog.service.rocketmq.remoting.calls import (
    CallLane,
    OnLaneError,
    ReadCall,
    RemotingAnswer,
    handles,
    refusal,
)
from tierlog.service.rocketmq.remoting.handlers.pulling import check_may_read
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode


@handles(RequestCode.QUERY_CONSUMER_OFFSET, lane=CallLane.READ)
def committed_offset(call: ReadCall) -> RemotingAnswer:
    """Answers with a group's offset in a queue, or that it has none.

    Of a queue that still has its first message a new group begins at 0, whatever its consumers would like: to begin at
    the end would skip what was sent while they came. A client may say that it would rather know that there is none.
    """
    group, topic, queue_id = call.text("consumerGroup"), call.text("topic"), call.number("queueId")
    check_may_read(call, topic)
    found = call.broker.offsets.find(group, topic, queue_id)
    if found is not None:
        return _offset(found)
    least, _ = call.broker.store.offsets(topic, queue_id)
    if least <= 0 and call.text("setZeroIfNotFound", "true").lower() != "false":
        return _offset(0)
    return refusal(ResponseCode.QUERY_NOT_FOUND, "the group has no offset in this queue yet")


@handles(RequestCode.UPDATE_CONSUMER_OFFSET, lane=CallLane.LOOP)
def commit_offset(call: ReadCall) -> RemotingAnswer:
    """Commits a group's offset in a queue, durably if the client waits for it."""
    group, topic, queue_id = call.text("consumerGroup"), call.text("topic"), call.number("queueId")
    offset = call.number("commitOffset")
    check_may_read(call, topic)
    if call.broker.store.find_queues(topic) is None:
        raise TopicNotFoundError(f"no such topic {topic[:300]!r}")
    if call.frame.is_oneway:
        call.broker.offsets.note(group, topic, queue_id, offset)
        return RemotingAnswer()
    if call.lane is CallLane.LOOP:
        raise OnLaneError(CallLane.APPEND)
    call.broker.offsets.commit(group, topic, queue_id, offset)
    return RemotingAnswer()


@handles(RequestCode.GET_MAX_OFFSET, lane=CallLane.READ)
def max_offset(call: ReadCall) -> RemotingAnswer:
    """Answers with the end of a queue."""
    return _offset(_range(call)[1])


@handles(RequestCode.GET_MIN_OFFSET, lane=CallLane.READ)
def min_offset(call: ReadCall) -> RemotingAnswer:
    """Answers with the first offset of a queue, in both tiers."""
    return _offset(_range(call)[0])


@handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lane=CallLane.READ)
def offset_by_time(call: ReadCall) -> RemotingAnswer:
    """Answers with the offset of a store time, the first or the last message with it."""
    topic, queue_id = call.text("topic"), call.number("queueId")
    check_may_read(call, topic)
    boundary = Boundary.UPPER if call.text("boundaryType", "").lower() == Boundary.UPPER else Boundary.LOWER
    return _offset(call.broker.store.offset_by_time(topic, queue_id, call.number("timestamp"), boundary))


@handles(RequestCode.GET_EARLIEST_MSG_STORETIME, lane=CallLane.READ)
def earliest_time(call: ReadCall) -> RemotingAnswer:
    """Answers with the store time of a queue's first message; -1 if it has none."""
    least, end = _range(call)
    if least >= end:
        return RemotingAnswer({"timestamp": "-1"})
    found = call.broker.store.pull(call.text("topic"), call.number("queueId"), least, 1).messages
    return RemotingAnswer({"timestamp": str(found[0].record.store_ms if found else -1)})


def _range(call: ReadCall) -> tuple[int, int]:
    topic = call.text("topic")
    check_may_read(call, topic)
    return call.broker.store.offsets(topic, call.number("queueId"))


def _offset(value: int) -> RemotingAnswer:
    return RemotingAnswer({"offset": str(value)})
