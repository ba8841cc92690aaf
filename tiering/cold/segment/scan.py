"""Reads a rolled log segment with every checksum verified, and sorts its records without moving them.

Order: topic (unsigned UTF-8 bytes), queue id, records without a queue unit last, queue offset, physical offset.
Memory: twelve bytes a record, one more if some are to be removed, and a few MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.kernels.record_sums import RecordRange, stretches, sum_of
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan
from tierlog.tiering.kernels.sorting import RecordGroups

#: Threads that scan, or gather, compress and look again. Whoever takes what they made writes it meanwhile.
THREADS = 2
A = TypeVar("A")
B = TypeVar("B")
#: Summed and scanned at a time: the scan finds in the cache what was summed.
_STRETCH_BYTES = 1 << 19
#: Which of some records, given as the rows of a scan in the order of the log, become fillers.
Removal = Callable[[ByteArray, ScanRows], NDArray[np.bool_]]
#: Takes rows in the order of the log, and changes those whose queue offset came before to be in no queue.
Placing = Callable[[ScanRows], None]


@dataclass(slots=True)
class ScannedSegment:
    """A whole rolled segment, read and sorted; written once, as writing uses up what is kept of its records."""

    data: ByteArray
    base_offset: int
    blank_position: int
    topic_names: list[str]
    records: RecordGroups
    order: NDArray[np.int32]
    """Ordinals of the records in the log, as they follow each other in the archive object."""
    groups: NDArray[np.void]
    removed: NDArray[np.bool_] | None
    """By ordinal."""
    record_sum: int
    """Sum of all records as they were before the scan saw them."""


def scan_segment(
    data: ByteArray, base_offset: int, topics: TopicTable, removal: Removal | None = None, place: Placing | None = None
) -> ScannedSegment:
    """Reads a rolled segment with every checksum verified; :class:`CorruptionError` where it is damaged.

    The sum of the records is taken before their checksums are verified, and compared after they were compressed: what
    was verified in between is what is stored. ``place`` is given the rows of a log that a broker wrote.
    """
    groups = RecordGroups()
    removed: list[NDArray[np.bool_]] = []
    end = record_sum = 0
    work = partial(_scanned, data, base_offset, topics, removal)
    for part in in_order(work, stretches(data, _STRETCH_BYTES), "tierlog-scan"):
        if place is not None:
            place(part.rows)
        groups.add(part.rows)
        removed.append(part.removed)
        record_sum += part.record_sum
        end = part.end
    last = scan(data, end, len(data), base_offset, topics, check_crc=True, max_rows=1)
    if last.stop is not ScanStop.BLANK:
        raise _damaged(last.stop.name.lower(), base_offset + last.position)
    names = [name.encode() for name in topics.names] or [b""]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    order, sorted_groups = groups.sort(data, end, rank)
    all_removed = None if removal is None else np.concatenate([np.empty(0, np.bool_), *removed])
    return ScannedSegment(
        data=data, base_offset=base_offset, blank_position=end, topic_names=topics.names, records=groups, order=order,
        groups=sorted_groups, removed=all_removed, record_sum=record_sum,
    )  # fmt: skip


class _Part(NamedTuple):
    """A stretch of the segment, read."""

    rows: ScanRows
    end: int
    record_sum: int
    removed: NDArray[np.bool_]


def _scanned(
    data: ByteArray, base_offset: int, topics: TopicTable, removal: Removal | None, stretch: RecordRange
) -> _Part:
    record_sum = sum_of(data, stretch)
    found = scan(
        data, stretch.start, stretch.end, base_offset, topics, check_crc=True, max_rows=stretch.records + 1
    )  # fmt: skip
    if found.stop is not ScanStop.END or len(found.rows) != stretch.records:
        raise _damaged(found.stop.name.lower(), base_offset + found.position)
    removed = np.empty(0, np.bool_) if removal is None else removal(data, found.rows)
    return _Part(found.rows, found.position, record_sum, removed)


def in_order(work: Callable[[A], B], items: Iterable[A], name: str) -> Iterator[B]:
    """Yields what ``work`` makes of the items, in their order, each on one of :data:`THREADS` threads.

    One more result than there are threads may wait, so that none of them does while one is taken.
    """
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(THREADS, name) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for waiting in pending:
                waiting.cancel()


def _damaged(why: str, offset: int) -> CorruptionError:
    return CorruptionError(f"segment is damaged ({why})", path="commitlog", position=offset)
