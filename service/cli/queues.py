"""The queues of a topic read as one: in the order of the log, then, when followed, as messages come."""

from __future__ import annotations

import heapq
import queue as handover
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from service.wire import Json
from tiering.errors import InvalidRequestError, StoreError
from tiering.types import PullStatus

if TYPE_CHECKING:
    from service.cli.targets import Reader

_PAGE = 1_000
_LEAST_PAGE = 50
_WAIT_MS = 10_000
#: Each queue that is followed has a request of its own open.
MOST_FOLLOWED = 64


class Queues:
    """Reads some queues of a topic, each from an offset of its own. ``offsets`` is where each goes on."""

    def __init__(self, target: Reader, topic: str, offsets: Mapping[int, int], tag: str | None = None) -> None:
        self._target = target
        self._topic = topic
        self._tag = tag
        self.offsets = dict(offsets)

    def stored(self, limit: int | None, on_gap: Callable[[int, int], None] | None = None) -> Iterator[Json]:
        """What is there, by store time and place in the log; a queue's own order is kept whatever its times are.

        ``on_gap`` is told (offset asked for, least there is). Raises :class:`InvalidRequestError` for an offset beyond
        the end of a queue.
        """
        page = max(_LEAST_PAGE, _PAGE // len(self.offsets))
        if limit is not None:
            page = min(page, limit)
        streams = [self._stream(queue_id, page, on_gap) for queue_id in sorted(self.offsets)]
        for number, message in enumerate(heapq.merge(*streams, key=_place), 1):
            self.offsets[message["queue_id"]] = message["queue_offset"] + 1
            yield message
            if number == limit:
                return

    def followed(self) -> Iterator[list[Json]]:
        """Pages of what comes in after that, without end; raises the first error that a queue answers with."""
        came: handover.SimpleQueue[list[Json] | StoreError] = handover.SimpleQueue()
        for queue_id in self.offsets:
            threading.Thread(target=self._wait, args=(queue_id, came), daemon=True, name="tierlog-tail").start()
        while True:
            page = came.get()
            if isinstance(page, StoreError):
                raise page
            yield page

    def _stream(self, queue_id: int, page: int, on_gap: Callable[[int, int], None] | None) -> Iterator[Json]:
        offset, is_first = self.offsets[queue_id], True
        while True:
            found = self._target.pull(self._topic, queue_id, offset, page, tag=self._tag)
            status = PullStatus(found["status"])
            if status is PullStatus.OFFSET_TOO_LARGE:
                raise InvalidRequestError(
                    f"offset {offset} is beyond the end of the queue, {found['max_offset']}",
                    hint=f"the queue holds [{found['min_offset']}, {found['max_offset']})",
                )
            if status is PullStatus.OFFSET_TOO_SMALL and is_first and on_gap is not None:
                on_gap(offset, found["min_offset"])
            yield from found["messages"]
            has_moved, offset, is_first = found["next_offset"] != offset, found["next_offset"], False
            if status is PullStatus.NO_NEW_MESSAGE or not has_moved:
                self.offsets[queue_id] = offset
                return

    def _wait(self, queue_id: int, came: handover.SimpleQueue[list[Json] | StoreError]) -> None:
        try:
            while True:
                found = self._target.pull(
                    self._topic, queue_id, self.offsets[queue_id], _PAGE, wait_ms=_WAIT_MS, tag=self._tag
                )
                self.offsets[queue_id] = found["next_offset"]
                if found["messages"]:
                    came.put(found["messages"])
        except StoreError as error:
            came.put(error)


def _place(message: Json) -> tuple[int, int]:
    return message["store_ms"], message["physical_offset"]
