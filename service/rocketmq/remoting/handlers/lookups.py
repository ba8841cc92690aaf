"""Messages that are looked for, by key or by id, in both tiers; answered with the records' own bytes.

Tools since 5.4 ask for more by a ``lastKey``: a row that an answer had, as
``HOUR@TOPIC@INDEX@KEY@ID@OFFSET``, the hour's first millisecond, the message's id for clients, and its physical
offset. Answers list the newest first, so what comes behind a row is older than it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tierlog.index.search.query import Query, encode_cursor
from tierlog.service.access.caller import Scope
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.pulling import MOST_BYTES, check_may_read
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis
from tierlog.tiering.format.properties import UNIQ_KEY
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: Clients of RocketMQ wait 6 to 15 s: what is found by then is answered.
_TIMEOUT_MS = 5_000
_MOST_MESSAGES, _DEFAULT_MESSAGES = 1_000, 32
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
#: The index of a look-up that means tags; others mean keys, which a client's own ids are too.
_TAG_INDEX = "T"
_HOUR_MS = 3_600_000


@handles(RequestCode.QUERY_MESSAGE, lane=CallLane.READ)
def messages_of_key(call: RemotingCall) -> RemotingAnswer:
    """Answers with the newest messages that have a key, in a range of store times that includes its ends."""
    store, found = call.broker.store, []
    query = behind_last(call, query_of(call), [store])
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


class _LastRow(NamedTuple):
    """What a ``lastKey`` says."""

    hour_ms: int
    message_id: str
    offset: int

    @classmethod
    def of(cls, said: str, query: Query) -> _LastRow:
        """Takes it apart; :class:`InvalidRequestError` for one of another look-up, or for none at all."""
        try:
            hour, rest = said.split("@", 1)
            middle, message_id, offset = rest.rsplit("@", 2)
            row = cls(int(hour), message_id, int(offset))
        except ValueError as error:
            raise InvalidRequestError(f"bad lastKey {said[:300]!r}") from error
        key = query.tag if query.key is None else query.key
        if middle.split("@", 1)[0] != query.topic or not middle.endswith(f"@{key}"):
            raise InvalidRequestError(f"the lastKey is of another look-up: {said[:300]!r}")
        return row


def behind_last(call: AnyCall, query: Query | None, stores: Sequence[Store]) -> Query | None:
    """Returns what is asked for behind the row that the caller had last, if it says one; None if nothing can be there.

    A row that none of the stores has, be it erased or one of a broker that nobody follows, is known by its hour alone:
    then rows of that hour come again.
    """
    said = call.text("lastKey", "")
    if query is None or not said or call.is_true(_UNIQUE_KEY_QUERY):
        return query
    row = _LastRow.of(said, query)
    for store in stores:
        with contextlib.suppress(StoreError):  # whatever cannot be read is not known
            message = store.message_at(row.offset)
            if message is not None and message.record.topic == query.topic:
                ids = message.record.message_id, message.record.properties.get(UNIQ_KEY)
                if row.message_id in ids:
                    place = message.place(TimeAxis.STORE)
                    return replace(query, cursor=encode_cursor(place, TimeAxis.STORE, Order.NEWEST))
    to_ms = min(query.to_ms, row.hour_ms + _HOUR_MS)
    return replace(query, to_ms=to_ms) if query.from_ms < to_ms else None


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
