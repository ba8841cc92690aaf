"""Sending: messages that are in the air at once share an append, and so a flush (:class:`SharedSends`).

A call is answered when its messages are flushed. All of them are checked before the first is appended; each of them
then has its own status. Killed before the flush: nobody was told otherwise. After it, before the answer: the messages
are there, and a client that sends them again has them twice, as with RocketMQ.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from tierlog.service.access.caller import Scope
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.timers import RecallHandle, recall_handle, scheduled
from tierlog.service.delivery.transactions import half_message
from tierlog.service.engine.append_results import Appended
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError, common_status, status_of
from tierlog.service.rocketmq.grpc.messages import SentMessage, sent_message
from tierlog.service.rocketmq.grpc.passing import PassedCalls, is_passed_on
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.service.rocketmq.grpc.transactions import transaction_id
from tierlog.service.rocketmq.shared_sends import Sent, SharedSends
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError, OverloadedError, TopicNotFoundError
from tierlog.tiering.format.hashing import java_hash

_KINDS = frozenset(
    (
        enums.MessageType.MESSAGE_TYPE_UNSPECIFIED, enums.MessageType.NORMAL, enums.MessageType.FIFO,
        enums.MessageType.DELAY, enums.MessageType.TRANSACTION, enums.MessageType.PRIORITY,
    )
)  # fmt: skip
MOST_MESSAGES = 1_024
#: What became of one message.
_Outcome = Sequence[Appended] | BaseException


def checked_messages(request: Any, call: GrpcCall, settings: Settings, now_ms: int) -> tuple[str, list[SentMessage]]:
    """Returns topic and messages of a call that sends; raises what is wrong with the first that is wrong."""
    if not 1 <= len(request.messages) <= MOST_MESSAGES:
        raise RefusedError(Code.BAD_REQUEST, f"a call has 1 to {MOST_MESSAGES} messages")
    first = request.messages[0].topic
    if any(message.topic != first for message in request.messages):
        raise RefusedError(Code.BAD_REQUEST, "the messages of a call are of one topic")
    topic = call.topic(first, Scope.PRODUCE)
    found = []
    for message in request.messages:
        kind = message.system_properties.message_type
        if kind not in _KINDS:
            raise RefusedError(Code.NOT_IMPLEMENTED, f"messages of type {kind} are not taken")
        found.append(sent_message(message, topic, now_ms=now_ms, max_body_bytes=settings.hot.max_body_bytes))
    return topic, found


def queue_of_group(message_group: str, queues: int) -> int:
    """Returns the queue of a message group: that of REST's ``sharding_key``."""
    return abs(java_hash(message_group)) % queues


class _Placed(NamedTuple):
    """A message, and where it goes."""

    message_id: str
    sent: Sent
    recall_handle: str
    is_prepared: bool


class Sends:
    """The calls SendMessage and RecallMessage. Used on the loop."""

    def __init__(self, parts: DoorParts, passed: PassedCalls) -> None:
        """``passed`` reaches the doors of the cluster's other stores."""
        self._parts = parts
        self._passed = passed
        self._max_delay_ms = parts.settings.produce.max_delay_ms
        self._loop = asyncio.get_running_loop()
        self._shared = SharedSends(parts.store, self._loop.call_soon, self._on_loop)
        self._turn = count()
        self._bytes = 0

    def start(self) -> None:
        """Appends from now on."""
        self._shared.start()

    def stop(self, timeout_s: float) -> None:
        """Takes no more, and appends what is there as far as there is time."""
        self._shared.stop(timeout_s)

    async def send_message(self, request: Any, call: GrpcCall) -> Any:
        """Appends messages of one topic, and answers when they are durable."""
        now_ms = self._parts.clock.now_ms()
        topic, checked = checked_messages(request, call, self._parts.settings, now_ms)
        self._check_topic(topic)
        found = [self._placed(one, call.peer_host, now_ms) for one in checked]
        size = sum(len(one.sent.body) + len(one.sent.properties or b"") for one in found)
        store, most = self._parts.store, self._parts.settings.serve.body_memory_bytes
        if self._bytes + size > most:
            raise OverloadedError(
                f"{self._bytes} bytes of messages wait already",
                hint="try again in a moment; serve.body_memory_bytes is the limit",
            )
        self._bytes += size
        try:
            for waiting in {one.sent.topic for one in found} - {topic}:
                if store.find_queues(waiting) is None:
                    await self._parts.lanes.change.run(partial(store.make_topic, waiting, 1, may_make=True))
            outcomes = [await each for each in [self._appended(one.sent) for one in found]]
        finally:
            self._bytes -= size
        response = messages.SendMessageResponse()
        statuses = []
        for one, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                status = status_of(outcome)
                response.entries.add(status=status)
            else:
                status = OK
                response.entries.add(
                    status=OK,
                    message_id=one.message_id,
                    offset=outcome[0].queue_offset,
                    transaction_id=transaction_id(outcome[0]) if one.is_prepared else "",
                    recall_handle=one.recall_handle,
                )
            statuses.append(status)
        response.status.CopyFrom(common_status(statuses))
        return response

    async def recall_message(self, request: Any, call: GrpcCall) -> Any:
        """Takes a delayed message back before its time; it is never delivered then."""
        topic = call.topic(request.topic, Scope.PRODUCE)
        other = self._parts.others.brokers("grpc").get(RecallHandle.decode(request.recall_handle).broker)
        if other is not None and not is_passed_on(call):
            return await self._passed.ask(other, "RecallMessage", request, call, by_store=True)
        recall = partial(self._parts.timers.recall, topic, request.recall_handle)
        message_id = await self._parts.lanes.change.run(recall)
        return messages.RecallMessageResponse(status=OK, message_id=message_id)

    def _placed(self, one: SentMessage, born_host: bytes, now_ms: int) -> _Placed:
        """Finds the queue of a message, or has it wait in the topic of those that do."""
        topic, queue_id, properties, handle = one.topic, self._queue_of(one), one.properties, None
        try:
            if one.is_prepared:
                topic, queue_id, properties, _ = half_message(
                    topic, queue_id, properties, now_ms, max_delay_ms=self._max_delay_ms
                )
            elif one.has_delay:
                entry = scheduled(topic, queue_id, properties, now_ms, max_delay_ms=self._max_delay_ms)
                if entry is not None:
                    handle = recall_handle(self._parts.store.store_id, entry)
                    topic, queue_id, properties, _ = entry
        except MessageTooLargeError as error:
            raise RefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from None
        except InvalidRequestError as error:
            raise RefusedError(Code.ILLEGAL_DELIVERY_TIME, str(error)) from None
        sent = Sent(
            topic=topic, queue_id=queue_id, body=one.body, properties=properties, flag=0, sys_flag=0,
            born_ms=one.born_ms, born_host=born_host,
        )  # fmt: skip
        return _Placed(one.message_id, sent, handle or "", one.is_prepared)

    def _appended(self, sent: Sent) -> asyncio.Future[_Outcome]:
        """Has a message appended; the future never has an error, so that nobody has to look at it."""
        outcome: asyncio.Future[_Outcome] = self._loop.create_future()
        try:
            self._shared.add(sent, partial(_settle, outcome))
        except Exception as error:
            outcome.set_result(error)
        return outcome

    def _check_topic(self, topic: str) -> None:
        if not self._parts.settings.create_topics and self._parts.store.find_queues(topic) is None:
            raise TopicNotFoundError(f"there is no topic {topic!r}")

    def _queue_of(self, one: SentMessage) -> int:
        """Messages without a group take turns."""
        queues = self._parts.store.queues_of(one.topic)
        return queue_of_group(one.message_group, queues) if one.message_group else next(self._turn) % queues

    def _on_loop(self, tell: Callable[[], object]) -> None:
        """Tells all senders of one append in one turn, from the thread that appends."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(tell)


def _settle(outcome: asyncio.Future[_Outcome], found: _Outcome) -> None:
    if not outcome.done():
        outcome.set_result(found)
