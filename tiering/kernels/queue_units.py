"""Sorts scanned records by queue, in the order of the log, and makes their queue units.

``tiering.format.queue_unit.QueueUnit`` is the oracle. Rows are those of :mod:`tiering.kernels.scan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE
from tiering.format.record import TRANSACTION_MASK, SysFlag
from tiering.kernels.primitives import (
    inlined,
    kernel,
    load_i32,
    load_i64,
    store_be32,
    store_be64,
    store_i32,
    store_i64,
)
from tiering.kernels.scan import SCAN_ROW, ScanRows, row_offset


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


@inlined
def _seat(seats, mask, runs, topic, queue):
    """Where the run of a queue has its number in the hash table, or would have it."""
    at = int64((uint64(topic * 65_599 + queue) * uint64(0x9E3779B97F4A7C15)) >> uint64(32)) & mask
    while True:
        number = load_i32(seats + 4 * at)
        if number < 0:
            return at
        run = runs + _RUN_BYTES * number
        if load_i64(run + _TOPIC) == topic and load_i64(run + _QUEUE) == queue:
            return at
        at = (at + 1) & mask


@kernel
def _sort_into_queues(rows, count, begin, seats, mask, runs, run_of, units, order):
    """Sort rows at or above ``begin`` that are in a queue; ``seats`` are -1. Returns the number of runs."""
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
    start = int64(0)
    for number in range(found):
        run = runs + _RUN_BYTES * number
        store_i64(run + _START, start)
        start += load_i64(run + _COUNT)
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
        rows.ctypes.data, count, begin, seats.ctypes.data, size - 1, runs.ctypes.data, run_of.ctypes.data,
        units.ctypes.data, order.ctypes.data,
    )  # fmt: skip
    return SortedUnits(units, order, [QueueRun(*run) for run in runs[:found].tolist()])
