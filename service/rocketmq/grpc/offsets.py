"""Reading by offset: a queue's messages from an offset on, and the offsets that groups keep.

RocketMQ's own proxy does not answer these calls, which is why scalers and tools that measure a lag cannot use it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall, group_name
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError
from tierlog.service.rocketmq.grpc.messages import milliseconds, shown_message
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.service.rocketmq.grpc.receives import polling_ms, tag_expression
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, TopicNotFoundError
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.read.pull_result import PullResult

MOST_MESSAGES = 1_000
_OFFSET_END = (1 << 63) - 1
_OUT_OF_RANGE = (PullStatus.OFFSET_TOO_SMALL, PullStatus.OFFSET_TOO_LARGE)


class Offsets:
    """The calls PullMessage, UpdateOffset, GetOffset and QueryOffset."""

    def __init__(self, parts: DoorParts, clients: GrpcClients) -> None:
        self._parts = parts
        self._clients = clients

    async def pull_message(self, request: Any, call: GrpcCall) -> None:
        """Writes a status, the messages, and the offset to go on at."""
        topic, queue_id = self._queue(request, call)
        group_name(request.group)
        if not 0 <= request.offset <= _OFFSET_END:
            raise RefusedError(Code.ILLEGAL_OFFSET, f"there is no offset {request.offset}")
        if request.batch_size < 1:
            raise RefusedError(Code.BAD_REQUEST, f"a batch of {request.batch_size} messages")
        limit, tag = min(request.batch_size, MOST_MESSAGES), tag_expression(request.filter_expression)
        deadline_s = self._parts.clock.monotonic_s() + polling_ms(request, call, self._parts.settings) / 1000
        offset, client = request.offset, self._clients.heard_of(call.client_id)
        while True:
            pull = partial(self._parts.store.pull, topic, queue_id, offset, limit, tag)
            found: PullResult = await self._parts.lanes.read.run(pull)
            wait_s = deadline_s - self._parts.clock.monotonic_s()
            if found.status is PullStatus.FOUND or found.status in _OUT_OF_RANGE:
                break
            if wait_s <= 0 or self._parts.waits.is_stopping or client.has_left:
                break
            offset = found.next_offset
            if found.status is PullStatus.NO_NEW_MESSAGE:
                watch = partial(self._parts.store.watch, topic, queue_id, offset)
                await self._parts.waits.arrival(watch, wait_s, client.waiting)
        await call.write(messages.PullMessageResponse(status=_status_of(found)))
        for one in found.messages:
            await call.write(messages.PullMessageResponse(message=shown_message(one, request.message_queue.topic)))
        await call.write(messages.PullMessageResponse(next_offset=found.next_offset))

    async def update_offset(self, request: Any, call: GrpcCall) -> Any:
        """Commits the next offset that a group reads, durably."""
        topic, queue_id = self._queue(request, call)
        group = group_name(request.group)
        commit = partial(
            self._parts.store.groups.commit,
            group,
            {(topic, self._parts.store.store_id, queue_id): request.offset},
            reset=True,
        )
        try:
            await self._parts.lanes.change.run(commit)
        except InvalidRequestError as error:
            raise RefusedError(Code.ILLEGAL_OFFSET, str(error)) from None
        return messages.UpdateOffsetResponse(status=OK)

    async def get_offset(self, request: Any, call: GrpcCall) -> Any:
        """Returns the next offset that a group reads."""
        topic, queue_id = self._queue(request, call)
        group = group_name(request.group)
        found = None
        with contextlib.suppress(NotFoundError):
            committed = self._parts.store.groups.committed(group).offsets
            found = committed.get((topic, self._parts.store.store_id, queue_id))
        if found is None:
            raise RefusedError(Code.OFFSET_NOT_FOUND, f"group {group!r} has no offset of this queue")
        return messages.GetOffsetResponse(status=OK, offset=found)

    async def query_offset(self, request: Any, call: GrpcCall) -> Any:
        """Returns the first or the next offset of a queue, or that of the first message stored since a time."""
        topic, queue_id = self._queue(request, call)
        if request.query_offset_policy == enums.QueryOffsetPolicy.TIMESTAMP:
            time_ms = milliseconds(request.timestamp)
            ask = partial(self._parts.store.offset_by_time, topic, queue_id, time_ms, Boundary.LOWER)
            return messages.QueryOffsetResponse(status=OK, offset=await self._parts.lanes.read.run(ask))
        first, end = await self._parts.lanes.read.run(partial(self._parts.store.offsets, topic, queue_id))
        is_end = request.query_offset_policy == enums.QueryOffsetPolicy.END
        return messages.QueryOffsetResponse(status=OK, offset=end if is_end else first)

    def _queue(self, request: Any, call: GrpcCall) -> tuple[str, int]:
        """Returns the topic and the queue that a call names; raises for one that there is not."""
        topic, queue_id = call.topic(request.message_queue.topic, Scope.READ), request.message_queue.id
        queues = self._parts.store.find_queues(topic)
        if queues is None or not 0 <= queue_id < queues:
            raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}")
        return topic, int(queue_id)


def _status_of(found: PullResult) -> Any:
    if found.status is PullStatus.FOUND:
        return OK
    if found.status in _OUT_OF_RANGE:
        words = f"the queue has offsets {found.min_offset} to {found.max_offset}"
        return messages.Status(code=Code.ILLEGAL_OFFSET, message=words)
    return messages.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
