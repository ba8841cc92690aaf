"""Sorts scanned records by queue, in the order of the log, makes their queue units, and compares units with records.

``tiering.format.queue_unit.QueueUnit`` is the oracle. Rows are those of :mod:`tiering.kernels.scan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import BadMagicError, TornRecordError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import TAGS
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE, QueueUnit
from tierlog.tiering.format.record import (
    FIXED_BYTES_V1,
    TRANSACTION_MASK,
    SysFlag,
    decode_record,
    is_intact,
)
from tierlog.tiering.kernels.checksum import CRC_TABLES, record_differs
from tierlog.tiering.kernels.mapped_log import record_spans
from tierlog.tiering.kernels.primitives import (
    called,
    find_byte,
    inlined,
    int64,
    is_sooner_without,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    same_bytes,
    store_be32,
    store_be64,
    store_i32,
    store_i64,
    store_u8,
    uint64,
)
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, row_offset
from tierlog.tiering.kernels.structs import load_fields, struct_kernel
from tierlog.tiering.kernels.text import java_hash, signed32


class QueueRun(NamedTuple):
    """The records of one queue in a range: units ``[start, start + records)``, their offsets from ``first`` on."""

    topic_number: int
    queue_id: int
    first: int
    next: int
    records: int
    #: Whether the offsets are ``first``, ``first + 1`` and so on.
    is_consecutive: int
    start: int


# literals, so that numba's cache, which looks at this file only, notices a change
_ROW_BYTES, _RUN_BYTES = 96, 56
assert (SCAN_ROW.itemsize, 8 * len(QueueRun._fields)) == (_ROW_BYTES, _RUN_BYTES)
_TOPIC, _QUEUE, _FIRST, _NEXT, _COUNT, _IS_CONSECUTIVE, _START = range(0, _RUN_BYTES, 8)
_PHYSICAL, _OFFSET, _SIZE = row_offset("physical_offset"), row_offset("queue_offset"), row_offset("size")
_TAG, _TOPIC_NUMBER, _QUEUE_ID = row_offset("tag_hash"), row_offset("topic_number"), row_offset("queue_id")
_SYS_FLAG = row_offset("sys_flag")
_COMMITTED = int(SysFlag.TRANSACTION_COMMIT)
_TAGS = 0x53474154
"""``TAGS`` read little-endian."""
_UNITS_AHEAD = 8
_CODEC_US, _COPIED_BYTES_US = 20, 2_000
"""For a unit and its record by the codec, without copying the body; bytes of it that are copied in a microsecond."""


@inlined
def _seat(seats, mask, runs, topic, queue):
    """Returns where the run of a queue has its number in the hash table, or would have it."""
    at = int64((uint64(topic * 65_599 + queue) * uint64(0x9E3779B97F4A7C15)) >> uint64(32)) & mask
    while True:
        number = load_i32(seats + 4 * at)
        if number < 0:
            return at
        run = runs + _RUN_BYTES * number
        if load_i64(run + _TOPIC) == topic and load_i64(run + _QUEUE) == queue:
            return at
        at = (at + 1) & mask


@struct_kernel("rows count begin seats mask runs run_of units order")
def _sort_into_queues(job):
    """Sorts rows at or above ``begin`` that are in a queue; ``seats`` are -1. Returns the number of runs."""
    rows, count, begin, seats, mask, runs, run_of, units, order = load_fields(job, 9)
    # count the rows of each queue, which makes a run
    found = int64(0)
    for i in range(count):
        row = rows + _ROW_BYTES * i
        transaction = load_i32(row + _SYS_FLAG) & TRANSACTION_MASK
        if load_i64(row + _PHYSICAL) < begin or (transaction != 0 and transaction != _COMMITTED):
            store_i32(run_of + 4 * i, -1)
            continue
        topic, queue = load_i32(row + _TOPIC_NUMBER), load_i32(row + _QUEUE_ID)
        offset = load_i64(row + _OFFSET)
        seat = seats + 4 * _seat(seats, mask, runs, topic, queue)
        number = load_i32(seat)
        if number < 0:
            number = found
            found += 1
            store_i32(seat, number)
            run = runs + _RUN_BYTES * number
            store_i64(run + _TOPIC, topic)
            store_i64(run + _QUEUE, queue)
            store_i64(run + _FIRST, offset)
            store_i64(run + _NEXT, offset)
            store_i64(run + _COUNT, 0)
            store_i64(run + _IS_CONSECUTIVE, 1)
        run = runs + _RUN_BYTES * number
        if offset != load_i64(run + _NEXT):
            store_i64(run + _IS_CONSECUTIVE, 0)
        store_i64(run + _NEXT, offset + 1)
        store_i64(run + _COUNT, load_i64(run + _COUNT) + 1)
        store_i32(run_of + 4 * i, number)
    # let the runs begin one behind the other
    start = int64(0)
    for number in range(found):
        run = runs + _RUN_BYTES * number
        store_i64(run + _START, start)
        start += load_i64(run + _COUNT)
    # put each unit to where its run goes on
    for i in range(count):
        number = load_i32(run_of + 4 * i)
        if number >= 0:
            row = rows + _ROW_BYTES * i
            start_at = runs + _RUN_BYTES * number + _START
            at = load_i64(start_at)
            store_i64(start_at, at + 1)
            unit = units + UNIT_BYTES * at
            store_be64(unit, load_i64(row + _PHYSICAL))
            store_be32(unit + 8, load_i32(row + _SIZE))
            store_be64(unit + 12, load_i64(row + _TAG))
            store_i32(order + 4 * at, i)
    # set the beginnings back, which have moved to the ends
    for number in range(found):
        run = runs + _RUN_BYTES * number
        store_i64(run + _START, load_i64(run + _START) - load_i64(run + _COUNT))
    return found


@dataclass(frozen=True, slots=True)
class SortedUnits:
    """Units by queue, and the row that each was made of."""

    units: NDArray[np.void]
    order: NDArray[np.int32]
    runs: list[QueueRun]


def sort_into_queues(rows: ScanRows, begin: int) -> SortedUnits:
    """The units of all records at or above ``begin`` that have one, the queues in the order of their first record."""
    count = len(rows)
    rows = np.ascontiguousarray(rows)
    size = 16
    while size < 2 * count:
        size *= 2
    seats = np.full(size, -1, np.int32)
    runs = np.empty((count, len(QueueRun._fields)), np.int64)
    run_of, order = np.empty(count, np.int32), np.empty(count, np.int32)
    units = np.empty(count, UNIT_DTYPE)
    found = _sort_into_queues(
        rows=rows.ctypes.data, count=count, begin=begin, seats=seats.ctypes.data, mask=size - 1, runs=runs.ctypes.data,
        run_of=run_of.ctypes.data, units=units.ctypes.data, order=order.ctypes.data,
    )  # fmt: skip
    return SortedUnits(units, order, [QueueRun(*run) for run in runs[:found].tolist()])


@called
def record_tag_hash(properties, length):
    """Returns the hash of a record's tag as its unit has it; of equal names the last one counts."""
    found = int64(0)
    end = properties + length
    start = properties
    while start < end:
        at = find_byte(start, end, 2)
        if at - start >= 6 and load_i32(start) == _TAGS and load_u8(start + 4) == 1:
            found = signed32(java_hash(0, start + 5, at - start - 5))
        start = at + 1
    return found


@struct_kernel(
    "tables units count log base limit topic topic_length queue_id first with_offsets with_tags with_sums out"
)
def _compare(job):
    """Notes of each unit, a byte each, whether it leads to the record that belongs there."""
    (
        tables, units, count, log, base, limit, topic, topic_length, queue_id, first, with_offsets, with_tags,
        with_sums, out,
    ) = load_fields(job, 14)  # fmt: skip
    for i in range(count):
        if i + _UNITS_AHEAD < count:
            unit = units + UNIT_BYTES * (i + _UNITS_AHEAD)
            ahead = log + load_be64(unit) - base
            prefetch(ahead)
            prefetch(ahead + 64)
            prefetch(ahead + load_be32(unit + 8) - 64)
        unit = units + UNIT_BYTES * i
        store_u8(out + i, 0)
        physical_offset = load_be64(unit)
        if physical_offset < base or physical_offset - base > limit - FIXED_BYTES_V1:
            continue
        at = log + physical_offset - base
        size, _body, _body_length, name, name_length, properties, properties_length = record_spans(
            at, limit - (physical_offset - base), physical_offset
        )
        if size == 0 or size != load_be32(unit + 8):
            continue
        if load_be32(at + 12) != queue_id or (with_offsets and load_be64(at + 20) != first + i):
            continue
        if name_length != topic_length or not same_bytes(name, topic, topic_length):
            continue
        transaction = load_be32(at + 36) & TRANSACTION_MASK
        if transaction != 0 and transaction != _COMMITTED:
            continue
        if with_tags and record_tag_hash(properties, properties_length) != load_be64(unit + 12):
            continue
        if with_sums and record_differs(tables, at, size, properties_length):
            continue
        store_u8(out + i, 1)


def _codec_us(units: NDArray[np.void]) -> float:
    return _CODEC_US * len(units) + float(np.maximum(units["size"], 0).sum(dtype=np.int64)) / _COPIED_BYTES_US


class UnitComparison(NamedTuple):
    """A comparison of the units of one queue with the records that they lead to.

    Size, topic, queue and physical offset of the record always count. ``with_offsets``: the queue offset too;
    ``with_tags``: the tag's hash; ``with_sums``: the record's own checksum, if it has one.
    """

    topic: NDArray[np.uint8]
    queue_id: int
    with_offsets: bool
    with_tags: bool

    @classmethod
    def of_queue(
        cls, topic: str, queue_id: int, *, with_offsets: bool = True, with_tags: bool = False
    ) -> UnitComparison:  # fmt: skip
        """Returns a comparison for the units of one queue."""
        return cls(np.frombuffer(topic.encode(), np.uint8), queue_id, with_offsets, with_tags)

    def of(
        self, units: NDArray[np.void], first: int, log: ByteArray, base: int, *, with_sums: bool = False
    ) -> NDArray[np.bool_]:
        """Returns which units, of offsets from ``first`` on, lead to their records in the segment at ``base``.

        Nothing is read outside ``log``, whatever is in the units.
        """
        if units.dtype != UNIT_DTYPE or not units.flags.c_contiguous:
            raise ValueError("units are to lie one behind the other, with the bytes of their file")
        if is_sooner_without(_codec_us(units)) and all(
            self.is_of_record(QueueUnit(*unit), first + place, log, base, with_sums)
            for place, unit in enumerate(units.tolist())
        ):
            return np.ones(len(units), np.bool_)
        found = np.empty(len(units), np.bool_)
        _compare(
            tables=CRC_TABLES, units=units.ctypes.data, count=len(units), log=log.ctypes.data, base=base,
            limit=len(log), topic=self.topic.ctypes.data, topic_length=len(self.topic), queue_id=self.queue_id,
            first=first, with_offsets=int(self.with_offsets), with_tags=int(self.with_tags), with_sums=int(with_sums),
            out=found.ctypes.data,
        )  # fmt: skip
        return found

    def is_of_record(self, unit: QueueUnit, offset: int, log: ByteArray, base: int, with_sums: bool) -> bool:
        """Whether one unit leads to its record, as the codec sees it: the kernel's oracle.

        It may refuse what the kernel takes, a tag that is no UTF-8, and takes nothing that the kernel refuses.
        """
        position = unit.physical_offset - base
        if not 0 <= position < len(log):
            return False
        data = log.data
        try:
            record = decode_record(data, position, physical_offset=unit.physical_offset, verify=False)
        except (BadMagicError, TornRecordError):
            return False
        return (
            (record.size, record.queue_id, record.topic.encode()) == (unit.size, self.queue_id, self.topic.tobytes())
            and (not self.with_offsets or record.queue_offset == offset)
            and record.has_queue_unit
            and (not self.with_tags or tag_hash(record.properties.get(TAGS, "")) == unit.tag_hash)
            and (not with_sums or is_intact(data[position : position + record.size], len(record.properties_text)))
        )
