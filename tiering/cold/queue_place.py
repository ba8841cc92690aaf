"""Where a queue offset lies in the archive: by bisection over the queue rows, since offsets rise with segments.

Reading a queue from its middle then costs a few requests however many segments are published.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from tiering.cold.archive_catalogue import ArchiveCatalogue
from tiering.cold.bill import BudgetSpentError
from tiering.cold.lost_parts import Lost, unless_lost
from tiering.cold.reading import ArchiveReader
from tiering.errors import StoreError
from tiering.format.manifest import Head, LogEntry, PageNode
from tiering.format.queue_rows import QueueRows


class _Parts:
    """The manifest's leaves and the entries inside the head, as one sequence that is read where it is looked at."""

    def __init__(self, catalogue: ArchiveCatalogue, reader: ArchiveReader, head: Head) -> None:
        self._catalogue, self._reader, self._head = catalogue, reader, head
        self._ends = list(accumulate(node.count for node in head.log_tree))
        self._leaves = self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self._leaves + len(self._head.log)

    def at(self, place: int, lost: Lost | None) -> LogEntry | PageNode | None:
        """The part at a place; None where the page that names it cannot be read."""
        if place >= self._leaves:
            return self._head.log[place - self._leaves]
        number = bisect_right(self._ends, place)
        node = self._head.log_tree[number]
        leaves = unless_lost(node, lost, partial(self._catalogue.leaves, self._reader, node))
        return None if leaves is None else leaves[place - self._ends[number]]


def queue_rows_from(
    catalogue: ArchiveCatalogue,
    reader: ArchiveReader,
    head: Head,
    topic_id: int,
    queue_id: int,
    offset: int,
    lost: Lost | None = None,
) -> Iterator[QueueRows]:
    """Rows of a queue, a piece of later segments after one of earlier ones, from the piece on that may hold ``offset``.

    No piece is empty. What cannot be read from there on is told to ``lost``.
    """
    parts = _Parts(catalogue, reader, head)

    def rows_at(place: int, lost: Lost | None) -> QueueRows | None:
        part = parts.at(place, lost)
        if part is None or part.rows is None:
            return None
        rows = unless_lost(part, lost, partial(catalogue.rows_of, reader, part.rows, topic_id, queue_id))
        return rows if rows is not None and len(rows) else None

    low, high = 0, len(parts)
    try:
        while high - low > 1:
            middle = probe = (low + high) // 2
            while probe < high and (rows := rows_at(probe, None)) is None:
                probe += 1
            if probe == high or rows is None or rows["first_queue_offset"][0] > offset:
                high = middle
            else:
                low = probe
    except BudgetSpentError:
        raise
    except StoreError:
        pass  # what cannot be read is met again on the way from here, if it matters
    for place in range(low, len(parts)):
        found = rows_at(place, lost)
        if found is not None:
            yield found
