"""Cuts the sorted records of a segment into frames, gathers them, and proves that what is stored is what was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER
from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
    copy,
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
from tierlog.tiering.kernels.record_sums import SUM_MASK, record_sum
from tierlog.tiering.kernels.sorting import RecordGroups, starts_of
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

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
#: ``records`` of the order from ``first`` on, the first of them in ``group``; ``cold`` is where they begin in the
#: decompressed object.
FRAME = np.dtype([(name, "<i8") for name in ("first", "records", "bytes", "group", "cold")])
_RUN_BYTES, _FRAME_BYTES = 80, 40  # literals, so that numba's cache, which looks at this file only, notices a change
assert (RUN.itemsize, FRAME.itemsize) == (_RUN_BYTES, _FRAME_BYTES)
_AHEAD = 12
_LINES_AHEAD = 7
"""Cache lines of a record that are asked for ahead."""


@called
def _size(positions, ordinal, total, length):
    """Returns the size of a record, -1 where what was kept of it cannot be."""
    if ordinal < 0 or ordinal >= total:
        return -1
    position = load_i32(positions + 4 * ordinal)
    size = load_i32(positions + 4 * ordinal + 4) - position
    return -1 if position < 0 or size < FIXED_BYTES_V1 or position + size > length else size


@struct_kernel("positions order total length spans count room frames capacity")
def _plan(job):
    """Cuts frames; their number, or -1. A frame ends before the record that would make it larger than ``room``."""
    positions, order, total, length, spans, count, room, frames, capacity = load_fields(job, 9)
    planned = 0
    cold = 0
    for number in range(count):
        group = load_i64(spans + 24 * number)
        i = load_i64(spans + 24 * number + 8)
        last = load_i64(spans + 24 * number + 16)
        if i < 0 or last > total:
            return -1
        while i < last:
            if planned == capacity:
                return -1
            first = i
            held = 0
            while i < last:
                size = _size(positions, load_i32(order + 4 * i), total, length)
                if size < 0:
                    return -1
                if held > 0 and held + size > room:
                    break
                held += size
                i += 1
            frame = frames + _FRAME_BYTES * planned
            store_i64(frame, first)
            store_i64(frame + 8, i - first)
            store_i64(frame + 16, held)
            store_i64(frame + 24, group)
            store_i64(frame + 32, cold)
            planned += 1
            cold += held
    return planned


@called
def _make_filler(record, size):
    """``tiering.format.filler.make_filler`` in place."""
    store_be32(record + 4, MAGIC_FILLER)
    store_i32(record + 8, 0)
    store_i32(record + 16, 0)
    for i in range(36, size):
        store_u8(record + i, 0)


@called
def _begin(run, place, size, store_ms, born_ms):
    """Begins a run; its place is frame, group, queue offset and position."""
    frame, group, queue_offset, position = place
    store_i64(run, frame)
    store_i64(run + 8, group)
    store_i64(run + 16, queue_offset)
    store_i64(run + 24, 1)
    store_i64(run + 32, position)
    store_i64(run + 40, size)
    store_i64(run + 48, store_ms)
    store_i64(run + 56, store_ms)
    store_i64(run + 64, born_ms)
    store_i64(run + 72, born_ms)


@called
def _go_on(run, size, store_ms, born_ms):
    """Adds a record to a run."""
    store_i64(run + 24, load_i64(run + 24) + 1)
    store_i64(run + 40, load_i64(run + 40) + size)
    store_i64(run + 48, min(load_i64(run + 48), store_ms))
    store_i64(run + 56, max(load_i64(run + 56), store_ms))
    store_i64(run + 64, min(load_i64(run + 64), born_ms))
    store_i64(run + 72, max(load_i64(run + 72), born_ms))


@struct_kernel(
    "log length positions order total frames count number out room starts groups keys left_out removed places runs "
    "most_runs info"
)
def _gather(job):
    """Copies the records of ``count`` frames, the first of which has this number, one frame behind the other.

    info: bytes, runs, change of the sum by fillers, sum of positions.
    """
    (
        log, length, positions, order, total, frames, count, number, out, room, starts, groups, keys, left_out, removed,
        places, runs, most_runs, info,
    ) = load_fields(job, 19)  # fmt: skip
    written = 0
    run = runs - _RUN_BYTES
    last_run = runs + most_runs * _RUN_BYTES
    change = 0
    mapped = 0
    for k in range(count):
        # the plan of this frame, which has to follow the one before
        frame = frames + _FRAME_BYTES * k
        first = load_i64(frame)
        last = first + load_i64(frame + 8)
        end = written + load_i64(frame + 16)
        group = load_i64(frame + 24)
        cold = load_i64(frame + 32) - written
        if first < 0 or last > total or first >= last or end > room or group < 0:
            return -1
        if k > 0 and load_i64(frame + 32) != load_i64(frame + 32 - _FRAME_BYTES) + load_i64(frame + 16 - _FRAME_BYTES):
            return -1
        begin = written
        open_group = -1
        previous = 0
        for i in range(first, last):
            # have a later record in the cache by then
            if i + _AHEAD < total:
                ahead = load_i32(order + 4 * (i + _AHEAD))
                if 0 <= ahead < total:
                    address = log + load_i32(positions + 4 * ahead)
                    for line in range(_LINES_AHEAD):
                        prefetch(address + 64 * line)
            # the record, its size and its group
            ordinal = load_i32(order + 4 * i)
            size = _size(positions, ordinal, total, length)
            if size < 0 or written + size > end:
                return -1
            while group < groups and load_i64(starts + 8 * (group + 1)) <= i:
                group += 1
            if group >= groups or load_i64(starts + 8 * group) > i:
                return -1
            # its copy, and where that lies
            position = load_i32(positions + 4 * ordinal)
            record = out + written  # all else is read of the copy, which is compared later
            copy(record, log + position, size)
            store_i32(places + 4 * ordinal, cold + written)
            mapped += position + cold + written
            # the run that it goes on with, or begins
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
                    _go_on(run, size, store_ms, born_ms)
                else:
                    open_group = group
                    run += _RUN_BYTES
                    if run == last_run:
                        return -1
                    _begin(run, (number + k, group, queue_offset, written - begin), size, store_ms, born_ms)
            # a filler in the place of what must not be stored
            if is_left_out or (removed != 0 and load_u8(removed + ordinal) != 0):
                change -= record_sum(record, size)
                _make_filler(record, size)
                change += record_sum(record, size)
            written += size
        if written != end:
            return -1
    store_i64(info, written)
    store_i64(info + 8, (run + _RUN_BYTES - runs) // _RUN_BYTES)
    store_i64(info + 16, change)
    store_i64(info + 24, mapped)
    return 0


@struct_kernel("held length base log_bytes positions order total frames count out")
def _inspect(job):
    held, length, base, log_bytes, positions, order, total, frames, count, out = load_fields(job, 10)
    at = 0
    found = 0
    for k in range(count):
        frame = frames + _FRAME_BYTES * k
        first = load_i64(frame)
        last = first + load_i64(frame + 8)
        end = at + load_i64(frame + 16)
        if first < 0 or last > total or first >= last or end > length:
            return -1
        for i in range(first, last):
            ordinal = load_i32(order + 4 * i)
            size = _size(positions, ordinal, total, log_bytes)
            if size < 0 or size > end - at or load_be32(held + at) != size:
                return -1
            if load_be64(held + at + 28) != base + load_i32(positions + 4 * ordinal):
                return -1
            found += record_sum(held + at, size)
            at += size
        if at != end:
            return -1
    store_i64(out, found)
    return 0 if at == length else -1


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Some frames, one behind the other in ``data``; ``number`` is the first one's, ``runs`` lie in them.

    ``change`` is what fillers made of the sum of records, ``mapped`` the sum of their positions in log and object.
    """

    number: int
    frames: NDArray[np.void]
    data: ByteArray
    runs: NDArray[np.void]
    change: int
    mapped: int

    def parts(self) -> list[ByteArray]:
        """Returns the bytes of each frame."""
        ends = np.cumsum(self.frames["bytes"]).tolist()
        return [self.data[end - size : end] for end, size in zip(ends, self.frames["bytes"].tolist(), strict=True)]


class FrameRoom:
    """Memory for one batch after the other; for one thread."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)
        self._runs = np.empty(0, RUN)
        #: For the same bytes once they were decompressed again, and one more.
        self.held = np.empty(1, np.uint8)

    def of(self, size: int) -> tuple[ByteArray, NDArray[np.void]]:
        """Returns memory for so many bytes of records, and for their runs."""
        if len(self._data) < size:
            self._data = np.empty(size, np.uint8)
            self._runs = np.empty(size // FIXED_BYTES_V1 + 1, RUN)
            self.held = np.empty(size + 1, np.uint8)
        return self._data, self._runs


class FrameGatherer:
    """Gathers the sorted records of a segment into frames, and looks at them once more when they were compressed.

    Different threads may gather and inspect different frames.
    """

    def __init__(
        self,
        data: ByteArray,
        base_offset: int,
        *,
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
        self._change = 0
        self._seen = 0
        self._cold = 0
        self.mapped_sum = 0
        """Of the positions of all records that were taken in, in the log and in the object."""

    def plan(self, spans: NDArray[np.int64], room: int) -> NDArray[np.void]:
        """Frames of at most ``room`` bytes, or of one record.

        A span, whose records share no frame with others, is (group of the first, first, end) in the order.
        """
        spans = np.ascontiguousarray(spans, np.int64)
        capacity = min(2 * len(self._data) // room + len(spans), len(self._order))  # two of a span exceed ``room``
        frames = np.empty(capacity, FRAME)
        planned = _plan(
            positions=address_of(self._groups.positions), order=address_of(self._order), total=len(self._order),
            length=len(self._data), spans=address_of(spans), count=len(spans), room=room, frames=address_of(frames),
            capacity=capacity,
        )  # fmt: skip
        if planned < 0:
            raise _damaged()
        return frames[:planned].copy()

    def gather(self, frames: NDArray[np.void], number: int, room: FrameRoom) -> FrameBatch:
        """Some of the planned frames, the first of which has this number, in memory that the next batch takes over.

        Raises :class:`ChecksumMismatchError` if what was kept of a record is wrong.
        """
        data, runs = room.of(int(frames["bytes"].sum()))
        info = np.empty(4, np.int64)
        failed = _gather(
            log=address_of(self._data), length=len(self._data), positions=address_of(self._groups.positions),
            order=address_of(self._order), total=len(self._order), frames=address_of(frames), count=len(frames),
            number=number, out=address_of(data), room=len(data), starts=address_of(self._starts),
            groups=len(self._keys), keys=address_of(self._keys), left_out=address_of(self._left_out),
            removed=0 if self._removed is None else address_of(self._removed), places=address_of(self._groups.places),
            runs=address_of(runs), most_runs=len(runs), info=address_of(info),
        )  # fmt: skip
        if failed:
            raise _damaged()
        size, count, change, mapped = info.tolist()
        return FrameBatch(
            number=number, frames=frames, data=data[:size], runs=runs[:count].copy(), change=change, mapped=mapped
        )

    def inspect(self, frames: NDArray[np.void], held: ByteArray) -> int:
        """Returns the sum of the records that planned frames hold once they were compressed and decompressed again.

        Raises :class:`ChecksumMismatchError` if the records are not where they should be.
        """
        out = np.empty(1, np.int64)
        failed = _inspect(
            held=address_of(held), length=len(held), base=self._base, log_bytes=len(self._data),
            positions=address_of(self._groups.positions), order=address_of(self._order), total=len(self._order),
            frames=address_of(frames), count=len(frames), out=address_of(out),
        )  # fmt: skip
        if failed:
            raise ChecksumMismatchError("a frame does not hold the records that it should")
        return int(out[0])

    def take_in(self, batch: FrameBatch, record_sum: int) -> None:
        """Takes in a batch, in the order of the frames, with the sum of the records that it holds."""
        if batch.frames["cold"][0] != self._cold:
            raise _damaged()
        self._cold += len(batch.data)
        self._change += batch.change
        self._seen += record_sum
        self.mapped_sum += batch.mapped

    def compare(self, record_sum: int) -> None:
        """Compares what all frames hold with the sum of the records as they were read.

        Raises :class:`ChecksumMismatchError`.
        """
        if (record_sum + self._change - self._seen) & SUM_MASK:
            raise ChecksumMismatchError("the frames of a segment do not hold the records that were read")


def _damaged() -> ChecksumMismatchError:
    return ChecksumMismatchError("the order of a segment's records was damaged in memory")
