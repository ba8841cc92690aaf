"""Pulls records as they lie in the log, for whoever hands them on without looking into them.

What an answer holds and leaves out, where it ends and what it raises is what a pull of messages would have given: every
record is compared with its queue's unit and with its checksums. A slice of the log is nobody's copy, so the snapshot
stays pinned for as long as the answer is used. What is archived is copied once, out of the memory that the next frames
are decompressed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.cold.segment.queue_frames import QueuePiece
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.properties import TAGS
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.kernels.record_slices import RecordSlices, SliceBounds
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.tags import shows_tag
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.read.cold_queue import ColdQueue
from tierlog.tiering.read.hot_queue import HotQueue
from tierlog.tiering.read.pull_result import MAX_MESSAGES, MAX_READ_BYTES, PullExtent

#: What an answer holds unless it is to hold more or less.
RECORD_BYTES = 4 << 20
#: Units that one call of the compiled loop goes through.
_STEP = 1024
#: Some records one behind the other.
Part = memoryview | bytes


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """Answer of a pull, with the records' own bytes. ``min_offset`` counts both tiers; go on at ``next_offset``.

    ``parts`` are ``count`` records in order, one behind the other, of ``bytes`` together. Neighbours in the log are one
    part.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    bytes: int = 0
    parts: Sequence[Part] = ()


class RecordCollector:
    """Up to ``limit`` records in ``max_bytes``, one at least, of those whose tag's hash is among some."""

    def __init__(self, limit: int, max_bytes: int, tag_hashes: frozenset[int] | None) -> None:
        self._hashes, self._limit = tag_hashes, limit
        bounds = SliceBounds(limit, min(max_bytes, MAX_READ_BYTES), MAX_MESSAGES, MAX_READ_BYTES)
        self._slices = RecordSlices(bounds, tag_hashes)
        self._parts: list[Part] = []
        #: Whether the answer is of use only while the snapshot is pinned that it was made in.
        self.is_pinned = False

    def nothing(self, status: PullStatus, next_offset: int, min_offset: int, max_offset: int) -> PulledRecords:
        return PulledRecords(status, next_offset, min_offset, max_offset)

    def from_hot(self, queue: HotQueue, erased: Erasures, extent: PullExtent) -> PulledRecords:
        """Returns slices of the log."""
        offset, topic = extent.offset, np.frombuffer(queue.topic.encode(), np.uint8)
        self.is_pinned = True
        try:
            while not self._slices.is_full and len(units := queue.raw_units(offset, offset + _STEP)):
                passed = self._add_units(queue, units, offset, topic, erased)
                if not passed and not self._slices.is_full:
                    passed = int(self._add_unit(queue, offset, erased))
                offset += passed
        except StoreError:
            if offset == extent.offset:
                raise
        return self._answer(offset, extent)

    def from_cold(self, queue: ColdQueue, head: Head, extent: PullExtent) -> PulledRecords:
        """Returns slices of decompressed frames."""
        offset, from_ms = extent.offset, queue.present_from_ms(head)
        with contextlib.closing(queue.pieces(head, offset)) as pieces:
            try:
                for piece in pieces:
                    try:
                        self._add_piece(queue, piece, extent.offset, from_ms)
                    finally:
                        offset = piece.next_offset
                    if self._slices.is_full:
                        break
            except StoreError:
                if offset == extent.offset:
                    raise
        return self._answer(offset, extent)

    # the log

    def _add_units(self, queue: HotQueue, units: UnitArray, offset: int, topic: ByteArray, erased: Erasures) -> int:
        """Adds what units lead to, up to a record that is to be looked at; returns how many were passed."""
        at = int(units["physical_offset"][0])
        segment = _segment_of(queue, at)
        # below this a record may be hidden
        begin = max(queue.snapshot.border, erased.end_of(queue.topic))
        if segment is None or at < begin or self._hides_tags(queue.topic):
            return 0
        queue.read_ahead(units[: self._limit])
        passed, spans = self._slices.add_units(
            units, segment.data, segment.base_offset,
            begin=begin, topic=topic, queue_id=queue.queue_id, first=queue.offset_in_log(offset),
        )  # fmt: skip
        view = segment.data.data.toreadonly()
        self._parts += [view[start:end] for start, end in spans]
        return passed

    def _add_unit(self, queue: HotQueue, offset: int, erased: Erasures) -> bool:
        """Looks at the record of one offset, which is decoded; False if it is wanted and there is no room for it."""
        record = queue.record(offset)
        is_wanted = not erased.hides(record) and self._is_wanted(record)
        if not self._slices.add_plain(record.size, is_wanted=is_wanted, is_read=is_wanted):
            return False
        if is_wanted:
            segment = _segment_of(queue, record.physical_offset)
            assert segment is not None  # it was just read
            start = record.physical_offset - segment.base_offset
            self._parts.append(segment.data.data.toreadonly()[start : start + record.size])
        return True

    # the archive

    def _add_piece(self, queue: ColdQueue, piece: QueuePiece, offset: int, from_ms: int) -> None:
        """Reads a piece on, to its end or until the answer is full."""
        is_open = not queue.erased.end_of(queue.topic) and not self._hides_tags(queue.topic)
        topic = np.frombuffer(queue.topic.encode(), np.uint8)
        while not piece.is_read and not self._slices.is_full:
            if is_open:
                before = piece.run, piece.position
                place, next_offset, spans = self._slices.add_runs(
                    piece.data, piece.runs, *before, topic=topic, first=offset, from_ms=from_ms
                )
                self._parts += [piece.data[start:end].tobytes() for start, end in spans]
                piece.go_to(*place)
                piece.next_offset = max(piece.next_offset, next_offset)
                if (piece.run, piece.position) != before or self._slices.is_full:
                    continue
            item, start = piece.item(), piece.position
            if item.queue_offset >= offset:
                message = queue.shown(item, from_ms)
                is_wanted = message is not None and self._is_wanted(message.record)
                if not self._slices.add_plain(item.size, is_wanted=is_wanted, is_read=message is not None):
                    return
                if is_wanted:
                    self._parts.append(piece.data[start : start + item.size].tobytes())
            piece.go_behind(item, offset)

    # both

    def _hides_tags(self, topic: str) -> bool:
        """Whether the hash of a record's tag does not tell which filter it passes."""
        return self._hashes is not None and topic == SCHEDULE_TOPIC

    def _is_wanted(self, record: Record) -> bool:
        if self._hashes is None:
            return True
        return tag_hash(record.properties.get(TAGS, "")) in self._hashes and shows_tag(record)

    def _answer(self, next_offset: int, extent: PullExtent) -> PulledRecords:
        if next_offset == extent.offset and not self._slices.is_full:
            next_offset = max(extent.offset, extent.tier_end)  # a gap, whose end is where to go on
        self.is_pinned = self.is_pinned and bool(self._parts)
        status = PullStatus.FOUND if self._parts else PullStatus.NO_MATCHED_MESSAGE
        return PulledRecords(
            status, next_offset, extent.first, extent.end, self._slices.records, self._slices.bytes, self._parts
        )


def _segment_of(queue: HotQueue, physical_offset: int) -> Segment | None:
    return queue.snapshot.segments.get(physical_offset - physical_offset % queue.snapshot.segment_bytes)
