"""POP: messages given to a group one by one, acknowledged one by one, and given again when their time is over.

A client names a delivery by what it was told of it: ``extraInfo``, eight words with blanks between them, which it puts
together itself from the answer's fields and the message.

=== ================ ===================================================================================
    word             meaning here
=== ================ ===================================================================================
0   ck offset        the first offset of this queue in the answer
1   pop time         the end of the delivery less the next word
2   invisible time   ms for which the message was given
3   revive queue     0
4   retry            ``0``; ``1`` for a message of the group's topic of messages to deliver again
5   broker name
6   queue id
7   offset           of the message
=== ================ ===================================================================================

Words 1, 2, 4, 6 and 7 are enough: a message is given to one at a time, and when that ends tells two deliveries apart.
A message that is given again has its record's ``reconsume_times`` raised by how often it was given before.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from tierlog.service.delivery.deliveries import MAX_INVISIBLE_MS, Delivery
from tierlog.service.delivery.group_topics import RETRY_PREFIX, retry_topic
from tierlog.service.delivery.handles import HandleFields, handle_fields
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.pulling import MOST_WAIT_MS, check_may_read
from tierlog.tiering.base.errors import InFlightError, InvalidHandleError, InvalidRequestError, OverloadedError
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.batch import ANY_QUEUE
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

_NORMAL, _RETRY = "0", "1"
_TAG = "TAG"
#: Where a group without an offset begins.
_FROM_LATEST = 1
#: Messages of one answer.
_MOST_MESSAGES = 32
#: Acknowledgements in one request; of one queue, how far they may lie apart.
_MOST_ACKS, _MOST_SPAN = 1_024, 1 << 16


class _Place(NamedTuple):
    """What a client says of one delivery."""

    topic: str
    queue_id: int
    offset: int
    until_ms: int


@handles(RequestCode.POP_MESSAGE, lane=CallLane.READ)
def pop(call: RemotingCall) -> RemotingAnswer | None:
    """Gives messages; where there are none, when some come or the client has waited as long as it likes."""
    if call.connection.is_behind:
        call.again_when_caught_up()
        return None
    group, topic = call.text("consumerGroup"), call.text("topic")
    check_may_read(call, topic)
    kind, limit = call.text("expType", _TAG) or _TAG, call.number("maxMsgNums", _MOST_MESSAGES)
    if kind != _TAG:
        return refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"expressions of the type {kind[:100]} are not supported"
        )
    invisible_ms = min(call.number("invisibleTime"), MAX_INVISIBLE_MS)
    try:
        found = call.broker.deliveries.receive(
            group, topic, max(ANY_QUEUE, call.number("queueId", ANY_QUEUE)), limit=min(limit, _MOST_MESSAGES),
            invisible_ms=invisible_ms, tag=call.text("exp", "*"), fifo=call.is_true("order"),
            attempt_id=call.text("attemptId", "") or None, from_latest=call.number("initMode", 0) == _FROM_LATEST,
        )  # fmt: skip
        if found:
            return _popped(found, invisible_ms)
        if call.waits(_watch(call, group, topic), min(call.number("pollTime", 0), MOST_WAIT_MS)):
            return None
    except (InFlightError, OverloadedError) as error:
        return refusal(ResponseCode.POLLING_FULL, error.message)
    return refusal(ResponseCode.POLLING_TIMEOUT, "no message has come")


def _watch(call: RemotingCall, group: str, topic: str) -> Any:
    return partial(call.broker.deliveries.watch, group, topic)


def _popped(found: Sequence[Delivery], invisible_ms: int) -> RemotingAnswer:
    by_queue: dict[tuple[str, int], list[int]] = {}
    for one in found:
        record = one.message.record
        by_queue.setdefault((_retry_word(record.topic), record.queue_id), []).append(record.queue_offset)
    starts = (f"{word} {queue_id} {min(offsets)}" for (word, queue_id), offsets in by_queue.items())
    listed = (
        f"{word} {queue_id} {','.join(map(str, sorted(offsets)))}" for (word, queue_id), offsets in by_queue.items()
    )
    fields = {
        "popTime": str(found[0].invisible_until_ms - invisible_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": "0",
        "restNum": "0",
        "startOffsetInfo": ";".join(starts),
        "msgOffsetInfo": ";".join(listed),
        "orderCountInfo": "",
    }
    return RemotingAnswer(fields, b"".join(_record_of(one) for one in found))


def _record_of(one: Delivery) -> bytes:
    record = one.message.record
    if one.attempt - 1 > record.reconsume_times:
        record = replace(record, reconsume_times=one.attempt - 1)
    return encode_record(record)


def _retry_word(topic: str) -> str:
    return _RETRY if topic.startswith(RETRY_PREFIX) else _NORMAL


@handles(RequestCode.ACK_MESSAGE, lane=CallLane.READ)
def acknowledge(call: RemotingCall) -> RemotingAnswer:
    """Takes one message for done."""
    try:
        call.broker.deliveries.acknowledge(_handle(call, call.text("consumerGroup"), _told(call)))
    except InvalidHandleError as error:
        return refusal(ResponseCode.NO_MESSAGE, error.message)
    return RemotingAnswer()


@handles(RequestCode.BATCH_ACK_MESSAGE, lane=CallLane.READ)
def acknowledge_all(call: RemotingCall) -> RemotingAnswer:
    """Takes messages for done, as far as their deliveries last; the others are given again."""
    document = call.document()
    acks = document.get("acks") if isinstance(document, dict) else None
    if not isinstance(acks, list):
        raise InvalidRequestError("no acknowledgements in the body")
    for group, place in list(_acknowledged(acks)):
        try:
            call.broker.deliveries.acknowledge(_handle(call, group, place))
        except InvalidHandleError:
            continue  # it is over, and whoever has it now is asked
    return RemotingAnswer()


def _acknowledged(acks: Iterable[Any]) -> Iterable[tuple[str, _Place]]:
    """Reads the acknowledgements of a batch: for each queue a first offset, and bits of those after it."""
    count = 0
    for one in acks:
        try:
            group, topic, word = str(one["c"]), str(one["t"]), str(one["r"])
            start, queue_id, until_ms = int(one["so"]), int(one["q"]), int(one["pt"]) + int(one["it"])
            bits = int.from_bytes(base64.b64decode(one["b"], validate=True), "little")
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise InvalidRequestError(f"no acknowledgement: {error!r}") from error
        count += bits.bit_count()
        if bits.bit_length() > _MOST_SPAN or count > _MOST_ACKS:
            raise InvalidRequestError(f"more than {_MOST_ACKS} acknowledgements, or too far apart")
        while bits:
            step = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            yield group, _Place(_topic(topic, group, word), queue_id, start + step, until_ms)


@handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lane=CallLane.READ)
def change_invisible_time(call: RemotingCall) -> RemotingAnswer:
    """Has a delivery last for another time from now on; a message that was not done is given again after it."""
    invisible_ms = min(call.number("invisibleTime"), MAX_INVISIBLE_MS)
    try:
        handle = _handle(call, call.text("consumerGroup"), _told(call))
        until_ms = handle_fields(call.broker.deliveries.extend(handle, invisible_ms)).invisible_until_ms
    except InvalidHandleError as error:
        return refusal(ResponseCode.NO_MESSAGE, error.message)
    return RemotingAnswer(
        {"invisibleTime": str(invisible_ms), "popTime": str(until_ms - invisible_ms), "reviveQid": "0"}
    )


@handles(RequestCode.NOTIFICATION, lane=CallLane.READ)
def notification(call: RemotingCall) -> RemotingAnswer | None:
    """Says when there is something to pop, without giving it."""
    group, topic = call.text("consumerGroup"), call.text("topic")
    check_may_read(call, topic)
    has_waited, is_over = call.until_s is not None, call.until_s == 0
    try:
        if not has_waited:
            wait_ms = min(max(1, call.number("pollTime", 0)), MOST_WAIT_MS)
            call.waits(_watch(call, group, topic), wait_ms)
            return None
    except OverloadedError:
        return RemotingAnswer({"hasMsg": "false", "pollingFull": "true"})
    return RemotingAnswer({"hasMsg": "false" if is_over else "true", "pollingFull": "false"})


def _told(call: RemotingCall) -> _Place:
    """Reads the delivery that a request names."""
    words = call.text("extraInfo").split(" ")
    if len(words) < 7:
        raise InvalidRequestError("extraInfo is too short")
    try:
        until_ms, queue_id = int(words[1]) + int(words[2]), int(words[6])
    except ValueError as error:
        raise InvalidRequestError(f"extraInfo has a word that is no number: {error}") from error
    topic = _topic(call.text("topic"), call.text("consumerGroup"), words[4])
    return _Place(topic, queue_id, call.number("offset"), until_ms)


def _topic(topic: str, group: str, word: str) -> str:
    """Returns the topic that a message lies in; a client names one of its own making for what it was given again."""
    return topic if word == _NORMAL else retry_topic(group)


def _handle(call: RemotingCall, group: str, place: _Place) -> str:
    check_may_read(call, place.topic)
    fields = HandleFields(group, place.topic, place.queue_id, place.offset, 0, place.until_ms)
    return call.broker.deliveries.completed(fields).text
