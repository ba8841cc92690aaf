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
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, find_record, scan
from tierlog.tiering.kernels.sorting import RecordGroups

#: Threads that scan, or gather, compress and look again. Whoever takes what they made writes it meanwhile.
THREADS = 2
A = TypeVar("A")
B = TypeVar("B")
#: Scanned at a time, if records are smaller.
_STRETCH_BYTES = 1 << 20
#: How far the begin of a record is looked for: behind the last lies nothing else, up to a gigabyte of it.
_MOST_RECORD_BYTES = 8 << 20
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

    The sum of each record is taken before its checksums are verified, and compared after it was compressed: what was
    verified in between is what is stored. ``place`` is given the rows of a log that a broker wrote.
    """
    groups = RecordGroups()
    removed: list[NDArray[np.bool_]] = []
    end = record_sum = 0
    for part in _parts(data, base_offset, partial(_scanned, data, base_offset, topics, removal)):
        if place is not None:
            place(part.rows)
        groups.add(part.rows)
        removed.append(part.removed)
        record_sum += part.record_sum
        end = part.end
    names = [name.encode() for name in topics.names] or [b""]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    order, sorted_groups = groups.sort(data, end, rank)
    all_removed = None if removal is None else np.concatenate([np.empty(0, np.bool_), *removed])
    return ScannedSegment(
        data=data, base_offset=base_offset, blank_position=end, topic_names=topics.names, records=groups, order=order,
        groups=sorted_groups, removed=all_removed, record_sum=record_sum,
    )  # fmt: skip


class _Stretch(NamedTuple):
    """What is scanned at a time, by its limits; with ``most_rows`` records at most."""

    start: int
    limit: int
    most_rows: int = 65_536


class _Part(NamedTuple):
    """What was read of a stretch: records up to ``end``."""

    stretch: _Stretch
    rows: ScanRows
    end: int
    stop: ScanStop
    record_sum: int
    removed: NDArray[np.bool_]


def _stretches(data: ByteArray, base_offset: int) -> Iterator[_Stretch]:
    """Yields stretches of a segment that seem to begin with a record; what is at its end is part of the last."""
    start = 0
    while (found := find_record(data, start + _STRETCH_BYTES, _MOST_RECORD_BYTES, base_offset)) is not None:
        yield _Stretch(start, found)
        start = found
    yield _Stretch(start, len(data))


def _parts(data: ByteArray, base_offset: int, read: Callable[[_Stretch], _Part]) -> Iterator[_Part]:
    """Yields all records of a segment in order; :class:`CorruptionError` if they do not end in its blank record.

    Stretches are read side by side. A record that reaches beyond its stretch had in it what looked like another, so
    that the next stretch is read anew from where it ends.
    """
    end = 0
    for part in in_order(read, _stretches(data, base_offset), "tierlog-scan"):
        limit = part.stretch.limit
        while end < limit:
            if part.stretch.start != end:
                part = read(_Stretch(end, limit))
            if part.end == end:
                part = read(_Stretch(end, len(data), 1))
            if part.stop is ScanStop.BLANK and part.end == end:
                return
            if part.end == end:
                raise _damaged(part.stop.name.lower(), base_offset + part.end)
            yield part
            end = part.end
    raise _damaged(ScanStop.END.name.lower(), base_offset + end)


def _scanned(
    data: ByteArray, base_offset: int, topics: TopicTable, removal: Removal | None, stretch: _Stretch
) -> _Part:
    found = scan(
        data, stretch.start, stretch.limit, base_offset, topics, check_crc=True, is_summed=True,
        max_rows=stretch.most_rows,
    )  # fmt: skip
    rows = found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows
    removed = np.empty(0, np.bool_) if removal is None else removal(data, rows)
    return _Part(stretch, rows, found.position, found.stop, found.record_sum, removed)


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
