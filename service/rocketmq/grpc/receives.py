"""Receiving: messages are given for a time, acknowledged one by one, given back, or given up.

A call that finds nothing waits for something. One that was broken off gives back what it had found, unless it has an
``attempt_id``: then the client asks again with it, and gets the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Delivery
from tierlog.service.delivery.handles import handle_fields
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall, Watch, group_name, is_fifo
from tierlog.service.rocketmq.grpc.clients import Client, GrpcClients
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError, common_status, status_of
from tierlog.service.rocketmq.grpc.messages import milliseconds, set_milliseconds, shown_message
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.service.rocketmq.grpc.renewals import KEPT_MS, Renewals
from tierlog.tiering.base.errors import InvalidHandleError, InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.message.batch import ANY_QUEUE
from tierlog.tiering.message.tags import TagFilter

LEAST_INVISIBLE_MS = 10_000
MOST_INVISIBLE_MS = 12 * 3_600_000
MOST_MESSAGES = 1_024
MOST_ENTRIES = 1_024
#: What is left of a call's deadline for its answer.
_RESERVE_MS = 200
#: How often one looks for a topic that is not there yet, and for messages whose time is over.
_LOOK_S = 1.0
#: Least time between two looks of one call.
_PAUSE_S = 0.005


class Receives:
    """The calls ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

    def __init__(self, parts: DoorParts, clients: GrpcClients, renewals: Renewals) -> None:
        self._parts = parts
        self._deliveries = parts.deliveries
        self._clients = clients
        self._renewals = renewals

    async def receive_message(self, request: Any, call: GrpcCall) -> None:
        """Writes a status, the messages, and when they were delivered.

        Whichever queue is named, what the store has is given, wherever it lies, as with RocketMQ: simple consumers go
        through the queues in turn and would wait at one while others have messages.
        """
        topic = call.topic(request.message_queue.topic, Scope.READ)
        group = group_name(request.group)
        client = self._clients.heard_of(call.client_id)
        ask = partial(
            self._deliveries.receive,
            group,
            topic,
            ANY_QUEUE,
            limit=_checked_size(request.batch_size),
            invisible_ms=_invisible_ms(request),
            tag=tag_expression(request.filter_expression),
            fifo=is_fifo(self._parts.settings, group),
            attempt_id=request.attempt_id or None,
        )
        deadline_s = self._parts.clock.monotonic_s() + polling_ms(request, call, self._parts.settings) / 1000
        watch = partial(self._deliveries.watch, group, topic)
        found = await self._found(client, ask, watch, deadline_s, gives_back=not request.attempt_id)
        if not found:
            raise RefusedError(Code.MESSAGE_NOT_FOUND, "no new message")
        written = 0
        try:
            await call.write(messages.ReceiveMessageResponse(status=OK))
            for one in found:
                await call.write(messages.ReceiveMessageResponse(message=self._shown(one, request)))
                written += 1
                if request.auto_renew:
                    self._renewals.keep(call.client_id, one.handle, one.invisible_until_ms)
            last = messages.ReceiveMessageResponse()
            set_milliseconds(last.delivery_timestamp, self._parts.clock.now_ms())
            await call.write(last)
        except BaseException:  # also a cancellation: the client went away, and what it did not get is for others
            if not request.attempt_id:
                self._give_back(found[written:])
            raise

    def _shown(self, one: Delivery, request: Any) -> Any:
        shown = shown_message(one.message, request.message_queue.topic)
        of = shown.system_properties
        of.receipt_handle, of.delivery_attempt = one.handle, one.attempt
        set_milliseconds(of.invisible_duration, _invisible_ms(request))
        return shown

    async def _found(
        self, client: Client, ask: Callable[[], list[Delivery]], watch: Watch, deadline_s: float, *, gives_back: bool
    ) -> list[Delivery]:
        """Asks until there is something, until the deadline, until the client leaves, or until the door closes."""
        waits = self._parts.waits
        while not client.has_left:
            wait_s = deadline_s - self._parts.clock.monotonic_s()
            try:
                found = await self._asked(ask, gives_back=gives_back)
                if client.has_left:
                    self._give_back(found)
                    break
                if found or wait_s <= 0 or waits.is_stopping:
                    return found
                await waits.arrival(watch, min(wait_s, _LOOK_S), client.waiting)
            except TopicNotFoundError:
                if not self._parts.settings.create_topics:
                    raise
                if wait_s <= 0 or waits.is_stopping:
                    return []
                await waits.wait(asyncio.Event(), min(wait_s, _LOOK_S), client.waiting)
            await asyncio.sleep(_PAUSE_S)
        return []

    async def _asked(self, ask: Callable[[], list[Delivery]], *, gives_back: bool) -> list[Delivery]:
        task = asyncio.ensure_future(self._parts.lanes.deliver.run(ask))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._was_left, gives_back=gives_back))
            raise

    def _was_left(self, task: asyncio.Future[list[Delivery]], *, gives_back: bool) -> None:
        if not task.cancelled() and task.exception() is None and gives_back:
            self._give_back(task.result())

    def _give_back(self, found: list[Delivery]) -> None:
        """Has messages that nobody got delivered again, in the background."""

        def give_back() -> None:
            for one in found:
                with contextlib.suppress(StoreError):
                    self._deliveries.extend(one.handle, 0)

        if found:
            self._parts.waits.begin(self._parts.lanes.change.run(give_back))

    # what became of them

    async def ack_message(self, request: Any, call: GrpcCall) -> Any:
        """Acknowledges messages, each on its own; the answer of each says whether its handle was good."""
        call.topic(request.topic, Scope.READ)
        group = group_name(request.group)
        if not 1 <= len(request.entries) <= MOST_ENTRIES:
            raise RefusedError(Code.BAD_REQUEST, f"a call has 1 to {MOST_ENTRIES} entries")
        handles = [(entry, self._renewals.take(entry.receipt_handle)) for entry in request.entries]

        def acknowledge() -> list[Any]:
            return [self._status_of_change(group, handle, self._deliveries.acknowledge) for _, handle in handles]

        statuses = await self._parts.lanes.change.run(acknowledge)
        response = messages.AckMessageResponse(status=common_status(statuses))
        for (entry, _), status in zip(handles, statuses, strict=True):
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        return response

    def _status_of_change(self, group: str, handle: str, change: Callable[[str], object]) -> Any:
        try:
            _check_handle(group, handle)
            change(handle)
        except InvalidHandleError as error:
            return messages.Status(code=Code.INVALID_RECEIPT_HANDLE, message=str(error))
        except (RefusedError, StoreError) as error:
            return status_of(error)
        return OK

    async def change_invisible_duration(self, request: Any, call: GrpcCall) -> Any:
        """Sets anew how long a message stays away; the answer has the handle that is good from now on."""
        call.topic(request.topic, Scope.READ)
        group = group_name(request.group)
        wanted_ms = milliseconds(request.invisible_duration)
        if not 0 <= wanted_ms <= MOST_INVISIBLE_MS:
            raise RefusedError(Code.ILLEGAL_INVISIBLE_TIME, f"a message stays away for 0 to {MOST_INVISIBLE_MS} ms")
        handle = self._renewals.take(request.receipt_handle)

        def change() -> str:
            _check_handle(group, handle)
            return self._deliveries.extend(handle, wanted_ms)

        found = await self._changed(change)
        return messages.ChangeInvisibleDurationResponse(status=OK, receipt_handle=found)

    async def forward_message_to_dead_letter_queue(self, request: Any, call: GrpcCall) -> Any:
        """Gives a message up: it goes to the dead letters of the group."""
        call.topic(request.topic, Scope.READ)
        group = group_name(request.group)
        handle = self._renewals.take(request.receipt_handle)

        def forward() -> None:
            _check_handle(group, handle)
            self._deliveries.forward_to_dead_letters(handle)

        await self._changed(forward)
        return messages.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _changed(self, change: Callable[[], Any]) -> Any:
        try:
            return await self._parts.lanes.change.run(change)
        except InvalidHandleError as error:
            raise RefusedError(Code.INVALID_RECEIPT_HANDLE, str(error)) from None


def _check_handle(group: str, handle: str) -> None:
    """Raises unless it is a delivery to the group: who may consume for one may not decide for another."""
    if handle_fields(handle).group != group:
        raise InvalidHandleError(f"this is a delivery to another group than {group!r}")


def _checked_size(batch_size: int) -> int:
    if batch_size < 1:
        raise RefusedError(Code.BAD_REQUEST, f"a batch of {batch_size} messages")
    return min(batch_size, MOST_MESSAGES)


def _invisible_ms(request: Any) -> int:
    if request.auto_renew:
        return KEPT_MS
    wanted_ms = milliseconds(request.invisible_duration)
    if not LEAST_INVISIBLE_MS <= wanted_ms <= MOST_INVISIBLE_MS:
        raise RefusedError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"a message stays away for {LEAST_INVISIBLE_MS} to {MOST_INVISIBLE_MS} ms, not {wanted_ms}",
        )
    return wanted_ms


def polling_ms(request: Any, call: GrpcCall, settings: Settings) -> int:
    """Returns how long a call may wait for messages: as it says, and not beyond its deadline."""
    asked_ms = most_ms = settings.rocketmq.long_poll_ms
    if request.HasField("long_polling_timeout"):
        asked_ms = milliseconds(request.long_polling_timeout)
    left_s = call.time_left()
    if left_s is not None:
        asked_ms = min(asked_ms, int(left_s * 1000) - _RESERVE_MS)
    return max(0, min(asked_ms, most_ms))


def tag_expression(expression: Any) -> str | None:
    """Returns the tags of a filter, None for everything; :class:`RefusedError` for what is not understood."""
    if expression.type == enums.FilterType.SQL:
        raise RefusedError(Code.ILLEGAL_FILTER_EXPRESSION, "messages are filtered by tag, not by SQL")
    try:
        return None if TagFilter.parse(expression.expression) is None else str(expression.expression)
    except InvalidRequestError as error:
        raise RefusedError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None
