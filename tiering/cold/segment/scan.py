"""Reads a rolled log segment with every checksum verified, and sorts its records without moving them.

Order: topic (unsigned UTF-8 bytes), queue id, records without a queue unit last, queue offset, physical offset.
Memory: twelve bytes a record, one more if some are to be removed, and a few MB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiering.errors import CorruptionError
from tiering.fs import ByteArray
from tiering.kernels.frames import walk
from tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan
from tiering.kernels.sorting import RecordGroups

_ROWS = 16_384
#: Which of some records, given as the rows of a scan in the order of the log, become fillers.
Removal = Callable[[ByteArray, ScanRows], NDArray[np.bool_]]


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
    data: ByteArray, base_offset: int, topics: TopicTable, removal: Removal | None = None
) -> ScannedSegment:
    """Read a rolled segment with every checksum verified; :class:`CorruptionError` where it is damaged.

    The sum of the records is taken before their checksums are verified, and compared after they were compressed: what
    was verified in between is what is stored.
    """
    count, end, record_sum = walk(data)
    groups = RecordGroups(count)
    removed = None if removal is None else np.zeros(count, np.bool_)
    taken = position = 0
    stop = ScanStop.ROWS_FULL
    while stop is ScanStop.ROWS_FULL:
        found = scan(data, position, len(data), base_offset, topics, check_crc=True, max_rows=_ROWS)
        stop = found.stop
        if stop not in (ScanStop.ROWS_FULL, ScanStop.BLANK):
            raise _damaged(stop.name.lower(), base_offset + found.position)
        if found.position > end:
            break
        groups.add(found.rows)
        if removal is not None and removed is not None:
            removed[taken : taken + len(found.rows)] = removal(data, found.rows)
        taken, position = taken + len(found.rows), found.position
    if (taken, position) != (count, end):
        raise _damaged("it changes while it is read", base_offset + position)
    groups.positions[count] = end
    names = [name.encode() for name in topics.names] or [b""]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    order, sorted_groups = groups.sort(data, rank)
    return ScannedSegment(data, base_offset, end, topics.names, groups, order, sorted_groups, removed, record_sum)


def _damaged(why: str, offset: int) -> CorruptionError:
    return CorruptionError(f"segment is damaged ({why})", path="commitlog", position=offset)
