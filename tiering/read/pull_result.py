"""The answer of a pull: how much one looks at, and what it says where there is nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.cold.manifest.store import despite_deletion
from tierlog.tiering.message.stored_message import Messages, StoredMessage
from tierlog.tiering.message.tags import TagFilter, shows_tag

if TYPE_CHECKING:
    from tierlog.tiering.format.manifest import Head
    from tierlog.tiering.lifecycle.tombstones import Erasures
    from tierlog.tiering.read.cold_queue import ColdQueue
    from tierlog.tiering.read.hot_queue import HotQueue

T = TypeVar("T", covariant=True)

# What one pull looks at is bounded, so that a tag which nobody has does not read a whole queue.
MAX_MESSAGES = 10_000
_MAX_FOUND_BYTES = 4 << 20
MAX_READ_BYTES = 16 << 20


@dataclass(slots=True)
class PullResult:
    """Answer of a pull. ``min_offset`` counts both tiers; ``next_offset`` is where to go on, also backwards."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)


class PullExtent(NamedTuple):
    """The start of a pull, the queue's first offset and its end over both tiers, and the end of the tier it reads.

    Of a pull backwards, the tier ends where it begins.
    """

    offset: int
    first: int
    end: int
    tier_end: int


#: Status, next offset, first offset and end of a queue.
PullEdge = tuple[PullStatus, int, int, int]


def edge_of(offset: int, first: int, end: int, gap_end: int | None) -> PullEdge | None:
    """The answer for an offset that holds nothing, or None; ``gap_end`` is that of the declared gap it lies in."""
    if gap_end is not None:
        return PullStatus.NO_MATCHED_MESSAGE, gap_end, first, end
    if offset < first:
        return PullStatus.OFFSET_TOO_SMALL, first, first, end
    if offset > end:
        return PullStatus.OFFSET_TOO_LARGE, end, first, end
    if offset == end:
        return PullStatus.NO_NEW_MESSAGE, end, first, end
    return None


class Collector(Protocol[T]):
    """Makes the answer of a pull of what the tier has that it goes to."""

    def nothing(self, status: PullStatus, next_offset: int, min_offset: int, max_offset: int) -> T:
        """Returns the answer without messages."""
        ...

    def from_hot(self, queue: HotQueue, erased: Erasures, extent: PullExtent) -> T:
        """Returns what the log has from the extent's offset on."""
        ...

    def from_cold(self, queue: ColdQueue, head: Head, extent: PullExtent) -> T:
        """Returns what the archive has from the extent's offset on."""
        ...


class MessageCollector:
    """Up to ``limit`` messages, each an object."""

    def __init__(self, store_id: str, limit: int, wanted: TagFilter | None) -> None:
        self._store_id, self._limit, self._wanted = store_id, limit, wanted

    def nothing(self, status: PullStatus, next_offset: int, min_offset: int, max_offset: int) -> PullResult:
        return PullResult(status, next_offset, min_offset, max_offset)

    def from_hot(self, queue: HotQueue, erased: Erasures, extent: PullExtent) -> PullResult:
        """Returns what the log has; what a unit's tag hash rules out is not read."""
        messages = queue.messages(extent.offset, self._limit, self._wanted, erased, self._store_id)
        return collect(messages, self._limit, self._wanted, extent)

    def from_cold(self, queue: ColdQueue, head: Head, extent: PullExtent) -> PullResult:
        return collect(queue.messages(head, extent.offset), self._limit, self._wanted, extent)


class BackwardCollector(MessageCollector):
    """Up to ``limit`` messages below the extent's offset, the last first; for :meth:`Fetcher.pull` alone."""

    def __init__(self, store_id: str, limit: int, wanted: TagFilter | None, least: int) -> None:
        """Nothing of the queue is left below the offset ``least``."""
        super().__init__(store_id, limit, wanted)
        self._least = least

    def from_hot(self, queue: HotQueue, erased: Erasures, extent: PullExtent) -> PullResult:
        """Returns what the log has; what a unit's tag hash rules out is not read."""
        messages = queue.messages_below(extent.offset, self._limit, self._wanted, erased, self._store_id)
        return collect(messages, self._limit, self._wanted, extent, is_backward=True)

    def from_cold(self, queue: ColdQueue, head: Head, extent: PullExtent) -> PullResult:
        """Returns what the archive has."""
        expects = self._limit if self._wanted is None else 0

        def read(newest: Head) -> PullResult:
            messages = queue.messages_below(newest, extent.offset, self._least, expects)
            return collect(messages, self._limit, self._wanted, extent, is_backward=True)

        return despite_deletion(queue.manifest, head, read)


def _until_failure(messages: Messages) -> Messages:
    """The messages before a failure, if there are any: a pull that goes on behind them meets it again."""
    is_first = True
    try:
        for message in messages:
            yield message
            is_first = False
    except StoreError:
        if is_first:
            raise


def collect(
    messages: Messages, limit: int, wanted: TagFilter | None, extent: PullExtent, *, is_backward: bool = False
) -> PullResult:
    """Returns the answer of a pull from ``messages``, which are closed.

    A failure ends the answer before it; the one that meets it first raises it.
    """
    with contextlib.closing(messages):
        return _collect(messages, limit, wanted, extent, 0 if is_backward else 1)


def _collect(
    messages: Messages, limit: int, wanted: TagFilter | None, extent: PullExtent, behind: int
) -> PullResult:  # fmt: skip
    result = PullResult(PullStatus.NO_MATCHED_MESSAGE, extent.offset, extent.first, extent.end)
    found_bytes = read_bytes = 0
    for looked_at, (at, message) in enumerate(_until_failure(messages)):
        if len(result.messages) == limit or looked_at == MAX_MESSAGES:
            return result
        if found_bytes > _MAX_FOUND_BYTES or read_bytes > MAX_READ_BYTES:
            return result
        result.next_offset = at + behind
        if message is None:
            continue
        read_bytes += message.record.size
        if wanted is None or (message.tag in wanted.tags and shows_tag(message.record)):
            result.messages.append(message)
            result.status = PullStatus.FOUND
            found_bytes += message.shown_bytes
    if result.next_offset == extent.offset:
        # nothing lies between here and the next tier: a gap, whose end is where to go on
        result.next_offset = (max if behind else min)(extent.offset, extent.tier_end)
    return result
