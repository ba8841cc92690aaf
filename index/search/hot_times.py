"""Times of hot records, read off their heads without decoding the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tierlog.index.local.snapshot import Border
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import TimeAxis
from tierlog.tiering.format.record import SysFlag
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
#: Positions in a record (``tiering.format.record``); the store time stands behind a host of either length.
_FLAG_AT, _BORN_MS_AT, _STORE_MS_AT, _STORE_MS_AT_V6 = 36, 40, 56, 68
_HEAD_BYTES = _STORE_MS_AT_V6 + 8


class HotTimes:
    """The times of one snapshot's records."""

    def __init__(self, snapshot: HotSnapshot) -> None:
        self._snapshot = snapshot

    def rise_on(self, axis: TimeAxis) -> bool:
        """Whether the times of a queue's messages never step back."""
        return axis is TimeAxis.STORE and self._snapshot.times_rise

    def store_ms(self, queue: SnapshotQueue, offset: int) -> int:
        """Returns a message's store time; its checksums are compared."""
        units, failures = queue.checked(offset, offset + 1, with_sums=True)
        if failures:
            raise failures[offset]
        physical_offset = int(units["physical_offset"][0])
        segment = self._snapshot.segments[physical_offset - physical_offset % self._snapshot.segment_bytes]
        return _stored_ms(segment.data, physical_offset - segment.base_offset)

    def first_at(self, queue: SnapshotQueue, first: int, last: int, time_ms: int) -> int:
        """Returns the first queue offset in ``[first, last)`` stored at or after a time, where store times rise.

        It is guessed without comparing checksums, which cost most; then those of the place found and of the one before
        are compared, and if they do not bear it out, those of every record on the way.
        """
        guess = self._guess(queue, first, last, time_ms)
        is_late_enough = guess == last or self.store_ms(queue, guess) >= time_ms
        if is_late_enough and (guess == first or self.store_ms(queue, guess - 1) < time_ms):
            return guess
        while first < last:
            middle = (first + last) // 2
            if self.store_ms(queue, middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first

    def _guess(self, queue: SnapshotQueue, first: int, last: int, time_ms: int) -> int:
        """Returns what :meth:`first_at` does if no unit and no record on the way is damaged."""
        while first < last:
            middle = (first + last) // 2
            offset = int(queue.raw_units(middle, middle + 1)["physical_offset"][0])
            segment = self._snapshot.segments.get(offset - offset % self._snapshot.segment_bytes)
            if segment is None or _stored_ms(segment.data, offset - segment.base_offset) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first

    def firsts_at(self, queue: SnapshotQueue, times_ms: Sequence[int]) -> list[int]:
        """Returns :meth:`first_at` of the whole queue for each of ascending times, none of them looked for twice."""
        found = [queue.next] * len(times_ms)
        open_parts = [(0, len(times_ms), queue.first, queue.next)]
        while open_parts:
            low, high, first, last = open_parts.pop()
            if low == high:
                continue
            if first == last:
                found[low:high] = [first] * (high - low)
                continue
            middle = (low + high) // 2
            found[middle] = at = self.first_at(queue, first, last, times_ms[middle])
            open_parts += [(low, middle, first, at), (middle + 1, high, at, last)]
        return found

    def of(self, offsets: NDArray[np.int64], axis: TimeAxis) -> NDArray[np.int64]:
        """Returns times of the records at physical offsets."""
        if axis is TimeAxis.BORN:
            return self._numbers(offsets, np.full(len(offsets), _BORN_MS_AT), 8)
        is_wide = self._numbers(offsets, np.full(len(offsets), _FLAG_AT), 4) & int(SysFlag.BORN_HOST_V6) != 0
        return self._numbers(offsets, np.where(is_wide, _STORE_MS_AT_V6, _STORE_MS_AT), 8)

    def _numbers(self, offsets: NDArray[np.int64], places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Returns the number of ``size`` bytes at a place in each record."""
        found = np.zeros(len(offsets), np.int64)
        bases = offsets - offsets % self._snapshot.segment_bytes
        for base in np.unique(bases).tolist():
            mine = np.flatnonzero(bases == base)
            data = np.frombuffer(self._snapshot.segments[base].data, np.uint8)
            positions = (offsets[mine] - base + places[mine])[:, None] + np.arange(size)
            found[mine] = data[positions].view(f">i{size}")[:, 0]
        return found


class LogBorder(Border):
    """Where the records from an offset or a store time on begin, in the snapshot of a log whose store times rise."""

    def __init__(self, snapshot: HotSnapshot, offsets: tuple[int, int], time_ms: int) -> None:
        """No record below the first of ``offsets`` lies beyond, all from the second on do; between them time tells."""
        self._snapshot = snapshot
        self._least, self._enough = offsets
        self._time_ms = time_ms

    def is_reached(self, offset: int) -> bool:
        """Whether a record lies beyond the border, by what stands there."""
        if not self._least <= offset < self._enough:
            return offset >= self._enough
        segment = self._snapshot.segments.get(offset - offset % self._snapshot.segment_bytes)
        return segment is not None and _stored_ms(segment.data, offset - segment.base_offset) >= self._time_ms

    def lies_between(self, before: int | None, behind: int | None) -> bool:
        """Whether the one record lies before the border and the other beyond it, by records that are checked."""
        try:
            return not (before is not None and self._has_reached(before)) and (
                behind is None or self._has_reached(behind)
            )
        except CorruptionError:
            return False

    def _has_reached(self, offset: int) -> bool:
        if not self._least <= offset < self._enough:
            return offset >= self._enough
        return self._snapshot.guessed_record(offset).store_ms >= self._time_ms


def _stored_ms(data: ByteArray, position: int) -> int:
    """Returns the store time of the record at a position; anything where none is, and zeros behind the segment."""
    head = bytes(data[position : position + _HEAD_BYTES]).ljust(_HEAD_BYTES, b"\0")
    is_wide = _I32.unpack_from(head, _FLAG_AT)[0] & SysFlag.BORN_HOST_V6
    return int(_I64.unpack_from(head, _STORE_MS_AT_V6 if is_wide else _STORE_MS_AT)[0])
