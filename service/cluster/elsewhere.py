"""What a consumer group has to know of queues that other stores hold; nothing at all where a store is alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tiering.errors import NotFoundError
from tiering.group_offsets import Queue


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """What a store told of one of its queues. ``gaps`` are ranges ``[first, next)`` that no message will ever have."""

    min_offset: int
    max_offset: int
    gaps: tuple[tuple[int, int], ...] = ()

    def lag(self, offset: int | None) -> int:
        """Messages still to consume from ``offset`` on; from the beginning for None."""
        start = max(self.min_offset, offset or 0)
        missing = sum(max(0, min(self.max_offset, end) - max(start, first)) for first, end in self.gaps)
        return max(0, self.max_offset - start - missing)


class QueuesElsewhere(Protocol):
    """Queues of other stores, as those told last. Thread safe. Only what says so waits for a network."""

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        """Ask every other store for its queues of these topics, where what is known is older than ``age_ms``.

        None: as old as the cluster's settings allow. Waits, for a bounded time, unless told otherwise; never raises.
        """
        ...

    def counts(self, topic: str) -> Mapping[str, int]:
        """How many queues each other store told of last; a store that is down still has those that it had."""
        ...

    def told(self, queue: Queue) -> QueueEnds:
        """What was told of a queue last.

        :class:`UnavailableError` while its store does not answer, :class:`TopicNotFoundError` if it has no such queue,
        :class:`NotFoundError` for a store that is not in the cluster.
        """
        ...

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """The end of each queue. Asks, once and for a bounded time, where an offset is beyond the end that is known.

        Raises as :meth:`told`, but a store that is down is none while what it told before suffices.
        """
        ...


class Alone:
    """No store but the own one."""

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        """Nobody has to be asked."""

    def counts(self, topic: str) -> Mapping[str, int]:
        """None elsewhere."""
        return {}

    def told(self, queue: Queue) -> QueueEnds:
        """Always :class:`NotFoundError`."""
        raise no_such_store(queue[1])

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """:class:`NotFoundError` for any queue."""
        return {queue: self.told(queue).max_offset for queue in offsets}


def no_such_store(store_id: str) -> NotFoundError:
    """For a store that is not in the cluster."""
    return NotFoundError(f"no such store {store_id[:100]!r}", hint="leave store_id out for the store that answers")
