"""Messages that are looked for, by key or by id, in both tiers; answered with the records' own bytes."""

from __future__ import annotations

from tierlog.index.search.query import Query
from tierlog.service.access.caller import Scope
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.pulling import MOST_BYTES, check_may_read
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: Clients of RocketMQ wait 6 to 15 s: what is found by then is answered.
_TIMEOUT_MS = 5_000
_MOST_MESSAGES, _DEFAULT_MESSAGES = 1_000, 32
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
#: The index of a look-up that means tags; others mean keys, which a client's own ids are too.
_TAG_INDEX = "T"


@handles(RequestCode.QUERY_MESSAGE, lane=CallLane.READ)
def messages_of_key(call: RemotingCall) -> RemotingAnswer:
    """Answers with the newest messages that have a key, in a range of store times that includes its ends."""
    topic, key = call.text("topic"), call.text("key")
    check_may_read(call, topic)
    limit = call.number("maxNum", _DEFAULT_MESSAGES)
    if call.is_true(_UNIQUE_KEY_QUERY):
        limit = _DEFAULT_MESSAGES
    begin_ms = max(0, call.number("beginTimestamp", 0))
    end_ms = min(call.number("endTimestamp", END_OF_TIME_MS) + 1, END_OF_TIME_MS)
    found = []
    if begin_ms < end_ms and call.broker.store.find_queues(topic) is not None:
        is_tag = call.text("indexType", "") == _TAG_INDEX
        query = Query(
            topic, key=None if is_tag else key, tag=key if is_tag else None, from_ms=begin_ms, to_ms=end_ms,
            limit=min(max(1, limit), _MOST_MESSAGES), timeout_ms=_TIMEOUT_MS,
        )  # fmt: skip
        found = call.broker.store.query(query, page_bytes=MOST_BYTES).messages
    if not found:
        answer = refusal(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        answer.fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        return answer
    newest = max(one.record.physical_offset for one in found)
    return RemotingAnswer(
        {"indexLastUpdateTimestamp": str(call.broker.clock.now_ms()), "indexLastUpdatePhyoffset": str(newest)},
        [encode_record(one.record) for one in found],
    )


@handles(RequestCode.VIEW_MESSAGE_BY_ID, lane=CallLane.READ)
def message_by_offset(call: RemotingCall) -> RemotingAnswer:
    """Answers with the message at a physical offset, which its id has; one that is not there is a system error to
    clients."""
    offset = call.number("offset")
    message = call.broker.store.message_at(offset)
    if message is None:
        return refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    call.caller.check(Scope.READ, message.record.topic)
    return RemotingAnswer(body=encode_record(message.record))
