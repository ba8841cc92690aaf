"""Messages that are looked for, by key or by id, in both tiers; answered with the records' own bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tierlog.index.search.query import Query
from tierlog.service.access.caller import Scope
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.pulling import MOST_BYTES, check_may_read
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.stored_message import StoredMessage
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
    query, store, found = query_of(call), call.broker.store, []
    if query is not None and store.find_queues(query.topic) is not None:
        found = store.query(replace(query, timeout_ms=_TIMEOUT_MS), page_bytes=MOST_BYTES).messages
    return answer_of_found(call, found)


def query_of(call: AnyCall) -> Query | None:
    """Returns what is asked for, once the caller may read it; None for a range of times that is empty."""
    topic, key = call.text("topic"), call.text("key")
    check_may_read(call, topic)
    limit = call.number("maxNum", _DEFAULT_MESSAGES)
    if call.is_true(_UNIQUE_KEY_QUERY):
        limit = _DEFAULT_MESSAGES
    begin_ms = max(0, call.number("beginTimestamp", 0))
    end_ms = min(call.number("endTimestamp", END_OF_TIME_MS) + 1, END_OF_TIME_MS)
    if begin_ms >= end_ms:
        return None
    is_tag = call.text("indexType", "") == _TAG_INDEX
    return Query(
        topic, key=None if is_tag else key, tag=key if is_tag else None, from_ms=begin_ms, to_ms=end_ms,
        limit=min(max(1, limit), _MOST_MESSAGES),
    )  # fmt: skip


def answer_of_found(call: AnyCall, found: Sequence[StoredMessage]) -> RemotingAnswer:
    """Answers a look-up by key with what was found."""
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
