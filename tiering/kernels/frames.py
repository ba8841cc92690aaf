"""Gathers sorted records into frames, and proves that what is stored is what was read.

Every record has a sum that any one flipped bit changes, because each of its steps is a bijection that takes eight
bytes in. The sums of records are added up, so that their order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiering.errors import ChecksumMismatchError
from tiering.format.record import FIXED_BYTES_V1, MAGIC_BLANK, MAGIC_FILLER
from tiering.fs import ByteArray
from tiering.kernels.primitives import (
    called,
    copy,
    kernel,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_be32,
    store_i32,
    store_i64,
    store_u8,
)
from tiering.kernels.sorting import RecordGroups, starts_of

#: Consecutive queue offsets of one group inside one frame; ``group`` counts in the sorted order.
RUN = np.dtype(
    [
        ("frame", "<i8"),
        ("group", "<i8"),
        ("first_queue_offset", "<i8"),
        ("records", "<i8"),
        ("position", "<i8"),
        ("bytes", "<i8"),
        ("min_store_ms", "<i8"),
        ("max_store_ms", "<i8"),
        ("min_born_ms", "<i8"),
        ("max_born_ms", "<i8"),
    ]
)
_RUN_BYTES = RUN.itemsize
_AHEAD = 12
_LINES_AHEAD = 7
"""Cache lines of a record that are asked for ahead."""
_SUM_MASK = (1 << 64) - 1


@called
def _record_sum(address, length):
    value = length
    end = address + length
    while address + 8 <= end:
        value = (value ^ load_i64(address)) * -7046029254386353131
        value ^= (value >> 32) & 0xFFFFFFFF
        address += 8
    if address < end:
        rest = 8 * (end - address)  # the last bytes alone; records are longer than eight
        value = (value ^ ((load_i64(end - 8) >> (64 - rest)) & ((1 << rest) - 1))) * -7046029254386353131
        value ^= (value >> 32) & 0xFFFFFFFF
    return value


@kernel
def _walk(log, limit, out):
    position = 0
    count = 0
    total = 0
    while limit - position >= 8:
        size = load_be32(log + position)
        if load_be32(log + position + 4) == MAGIC_BLANK or size < FIXED_BYTES_V1 or size > limit - position:
            break
        total += _record_sum(log + position, size)
        position += size
        count += 1
    store_i64(out, count)
    store_i64(out + 8, position)
    store_i64(out + 16, total)


def walk(data: ByteArray) -> tuple[int, int, int]:
    """(records, position after them, sum of them) by their sizes alone: nothing is checked."""
    out = np.empty(3, np.int64)
    _walk(data.ctypes.data, len(data), out.ctypes.data)
    return int(out[0]), int(out[1]), int(out[2])


@called
def _make_filler(record, size):
    """``tiering.format.filler.make_filler`` in place."""
    store_be32(record + 4, MAGIC_FILLER)
    store_i32(record + 8, 0)
    store_i32(record + 16, 0)
    for i in range(36, size):
        store_u8(record + i, 0)


@kernel
def _gather(
    log, length, positions, order, total, first, last, room, out, group, starts, keys, left_out, removed, places,
    cold_at, frame, runs, info,
):  # fmt: skip
    """Copy records until the next does not fit.

    info: records, bytes, runs, change of the sum by fillers, sum of positions.
    """
    written = 0
    count = 0
    run = runs - _RUN_BYTES
    open_group = -1
    previous = 0
    change = 0
    mapped = 0
    for i in range(first, last):
        if i + _AHEAD < last:
            ahead = load_i32(order + 4 * (i + _AHEAD))
            if 0 <= ahead < total:
                address = log + load_i32(positions + 4 * ahead)
                for line in range(_LINES_AHEAD):
                    prefetch(address + 64 * line)
        ordinal = load_i32(order + 4 * i)
        if ordinal < 0 or ordinal >= total:
            return -1
        position = load_i32(positions + 4 * ordinal)
        size = load_i32(positions + 4 * ordinal + 4) - position
        if position < 0 or size < FIXED_BYTES_V1 or position + size > length:
            return -1
        if written + size > room:
            break
        while load_i64(starts + 8 * (group + 1)) <= i:
            group += 1
        record = out + written
        copy(record, log + position, size)
        store_i32(places + 4 * ordinal, cold_at + written)
        mapped += position + cold_at + written
        is_left_out = load_u8(left_out + group) != 0
        if not is_left_out:
            queue_offset = load_be64(record + 20)
            if load_i64(keys + 8 * group) & 1:
                queue_offset = -1
            is_next = (queue_offset == previous + 1 and queue_offset > 0) or queue_offset == previous == -1
            previous = queue_offset
            born_ms = load_be64(record + 40)
            store_ms = load_be64(record + (68 if load_be32(record + 36) & 0x10 else 56))
            if open_group == group and is_next:
                store_i64(run + 24, load_i64(run + 24) + 1)
                store_i64(run + 40, load_i64(run + 40) + size)
                store_i64(run + 48, min(load_i64(run + 48), store_ms))
                store_i64(run + 56, max(load_i64(run + 56), store_ms))
                store_i64(run + 64, min(load_i64(run + 64), born_ms))
                store_i64(run + 72, max(load_i64(run + 72), born_ms))
            else:
                open_group = group
                run += _RUN_BYTES
                store_i64(run, frame)
                store_i64(run + 8, group)
                store_i64(run + 16, queue_offset)
                store_i64(run + 24, 1)
                store_i64(run + 32, written)
                store_i64(run + 40, size)
                store_i64(run + 48, store_ms)
                store_i64(run + 56, store_ms)
                store_i64(run + 64, born_ms)
                store_i64(run + 72, born_ms)
        if is_left_out or (removed != 0 and load_u8(removed + ordinal) != 0):
            change -= _record_sum(record, size)
            _make_filler(record, size)
            change += _record_sum(record, size)
        written += size
        count += 1
    store_i64(info, count)
    store_i64(info + 8, written)
    store_i64(info + 16, (run + _RUN_BYTES - runs) // _RUN_BYTES)
    store_i64(info + 24, change)
    store_i64(info + 32, mapped)
    return 0


@kernel
def _inspect(frame, length, base, positions, order, total, first, count, out):
    at = 0
    found = 0
    for i in range(first, first + count):
        ordinal = load_i32(order + 4 * i)
        if ordinal < 0 or ordinal >= total or length - at < FIXED_BYTES_V1:
            return -1
        position = load_i32(positions + 4 * ordinal)
        size = load_i32(positions + 4 * ordinal + 4) - position
        if size < FIXED_BYTES_V1 or size > length - at or load_be32(frame + at) != size:
            return -1
        if load_be64(frame + at + 28) != base + position:
            return -1
        found += _record_sum(frame + at, size)
        at += size
    store_i64(out, found)
    return 0 if at == length else -1


@dataclass(frozen=True, slots=True)
class Frame:
    """Records of one frame: ``data`` holds ``records`` from ``first`` in the order on; ``runs`` lie in it."""

    data: ByteArray
    first: int
    records: int
    runs: NDArray[np.void]


class FrameGatherer:
    """Gathers the sorted records of a segment into frames, and looks at them once more when they were compressed."""

    def __init__(
        self,
        data: ByteArray,
        base_offset: int,
        groups: RecordGroups,
        order: NDArray[np.int32],
        sorted_groups: NDArray[np.void],
        left_out: NDArray[np.bool_],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        """Records that ``removed`` marks, by ordinal, become fillers; so do groups that are ``left_out``, whose runs
        are not told of either.
        """
        self._data = data
        self._base = base_offset
        self._groups = groups
        self._order = order
        self._starts = starts_of(sorted_groups)
        if self._starts[-1] != len(order):
            raise ChecksumMismatchError("the groups of a segment's records were damaged in memory")
        self._keys = np.ascontiguousarray(sorted_groups["key"])
        self._left_out = left_out
        self._removed = removed
        self._cold_at = 0
        self._change = 0
        self._seen = 0
        self.mapped_sum = 0
        """Of the positions of all records gathered so far, in the log and in the object."""
        self._info = np.empty(5, np.int64)
        self._runs = np.empty(0, RUN)

    def gather(self, frame: int, group: int, first: int, last: int, room: int) -> Frame:
        """A frame of at most ``room`` bytes, but at least one record, of those in ``[first, last)`` of the order.

        ``group`` is that of the first. Raises :class:`ChecksumMismatchError` if what was kept of a record is wrong.
        """
        ordinal = int(self._order[first])
        if 0 <= ordinal < len(self._order):
            room = max(room, int(self._groups.positions[ordinal + 1]) - int(self._groups.positions[ordinal]))
        out = np.empty(min(room, len(self._data)), np.uint8)
        most_runs = min(last - first, len(out) // FIXED_BYTES_V1)
        if len(self._runs) < most_runs:
            self._runs = np.empty(most_runs, RUN)
        runs = self._runs
        failed = _gather(
            self._data.ctypes.data, len(self._data), self._groups.positions.ctypes.data, self._order.ctypes.data,
            len(self._order), first, last, len(out), out.ctypes.data, group, self._starts.ctypes.data,
            self._keys.ctypes.data, self._left_out.ctypes.data,
            0 if self._removed is None else self._removed.ctypes.data, self._groups.places.ctypes.data,
            self._cold_at, frame, runs.ctypes.data, self._info.ctypes.data,
        )  # fmt: skip
        records, length, count, change, mapped = self._info.tolist()
        if failed or not records:
            raise ChecksumMismatchError("the order of a segment's records was damaged in memory")
        self._cold_at += length
        self._change += change
        self.mapped_sum += mapped
        return Frame(out[:length], first, records, runs[:count].copy())

    def inspect(self, frame: Frame, data: bytes) -> int:
        """The sum of the records that a frame holds once it was compressed and decompressed again; any thread may ask.

        Raises :class:`ChecksumMismatchError` if its records are not where they should be.
        """
        held = np.frombuffer(data, np.uint8)
        out = np.empty(1, np.int64)
        failed = len(held) != len(frame.data) or _inspect(
            held.ctypes.data, len(held), self._base, self._groups.positions.ctypes.data, self._order.ctypes.data,
            len(self._order), frame.first, frame.records, out.ctypes.data,
        )  # fmt: skip
        if failed:
            raise ChecksumMismatchError("a frame does not hold the records that it should")
        return int(out[0])

    def seen(self, record_sum: int) -> None:
        """Take in the sum of a frame's records."""
        self._seen += record_sum

    def compare(self, record_sum: int) -> None:
        """Compare what all frames hold with the sum of the records as they were read.

        Raises :class:`ChecksumMismatchError`.
        """
        if (record_sum + self._change - self._seen) & _SUM_MASK:
            raise ChecksumMismatchError("the frames of a segment do not hold the records that were read")
