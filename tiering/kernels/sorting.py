"""Sorts the records of a segment without moving them.

A record is known by its ordinal in the segment. Twelve bytes are kept of each: where it begins, its place in the
order, and four that number its queue until it is gathered and say where it lies in the archive object from then on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import TRANSACTION_MASK, SysFlag
from tierlog.tiering.kernels.primitives import kernel, load_be64, load_i32, load_i64, store_i32, store_i64
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, row_offset

#: Records of one queue of a segment; those that have no queue unit are a group of their own. ``key``: see _group.
GROUP = np.dtype(
    [
        ("key", "<i8"),
        ("records", "<i8"),
        ("bytes", "<i8"),
        ("last_queue_offset", "<i8"),
        ("is_mixed", "<i8"),  # queue offsets do not rise in the order of the log
    ]
)
_GROUP_BYTES = GROUP.itemsize
_ROW_BYTES = SCAN_ROW.itemsize
_POSITION = row_offset("position")
_SIZE = row_offset("size")
_TOPIC = row_offset("topic_number")
_QUEUE = row_offset("queue_id")
_QUEUE_OFFSET = row_offset("queue_offset")
_FLAGS = row_offset("sys_flag")
_LEAST = -(1 << 63)
_COMMIT = int(SysFlag.TRANSACTION_COMMIT)


@kernel
def _insert(slots, mask, groups, count):
    for number in range(count):
        slot = (load_i64(groups + number * _GROUP_BYTES) * -7046029254386353131 >> 33) & mask
        while load_i32(slots + 4 * slot) >= 0:
            slot = (slot + 1) & mask
        store_i32(slots + 4 * slot, number)


@kernel
def _group(*, rows, count, slots, mask, groups, known, positions, places):
    """Notes position and group of each row; a key is topic number << 33 | queue id << 1 | has no queue unit."""
    for i in range(count):
        row = rows + i * _ROW_BYTES
        transaction = load_i32(row + _FLAGS) & TRANSACTION_MASK
        key = load_i32(row + _TOPIC) << 33 | (load_i32(row + _QUEUE) & 0xFFFFFFFF) << 1
        if transaction != 0 and transaction != _COMMIT:
            key |= 1
        slot = (key * -7046029254386353131 >> 33) & mask
        while True:
            number = load_i32(slots + 4 * slot)
            if number < 0 or load_i64(groups + number * _GROUP_BYTES) == key:
                break
            slot = (slot + 1) & mask
        if number < 0:
            number = known
            known += 1
            store_i32(slots + 4 * slot, number)
            group = groups + number * _GROUP_BYTES
            store_i64(group, key)
            store_i64(group + 8, 0)
            store_i64(group + 16, 0)
            store_i64(group + 24, _LEAST)
            store_i64(group + 32, 0)
        group = groups + number * _GROUP_BYTES
        queue_offset = load_i64(row + _QUEUE_OFFSET)
        store_i64(group + 8, load_i64(group + 8) + 1)
        store_i64(group + 16, load_i64(group + 16) + load_i32(row + _SIZE))
        if queue_offset < load_i64(group + 24):
            store_i64(group + 32, 1)
        store_i64(group + 24, queue_offset)
        store_i32(positions + 4 * i, load_i32(row + _POSITION))
        store_i32(places + 4 * i, number)
    return known


@kernel
def _distribute(places, count, following, order):
    for ordinal in range(count):
        at = following + 8 * load_i32(places + 4 * ordinal)
        place = load_i64(at)
        store_i64(at, place + 1)
        store_i32(order + 4 * place, ordinal)


@kernel
def _queue_offsets(log, positions, ordinals, count, out):
    for i in range(count):
        store_i64(out + 8 * i, load_be64(log + load_i32(positions + 4 * load_i32(ordinals + 4 * i)) + 20))


class RecordGroups:
    """Takes the rows of a segment in the order of the log, and sorts its records."""

    def __init__(self) -> None:
        self.positions = np.empty(0, np.int32)
        """The position of each record and the end of the last one, once they were sorted."""
        self.places = np.empty(0, np.int32)
        self._taken: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._known = 0
        self._groups = np.empty(0, GROUP)
        self._slots = np.empty(0, np.int32)

    def add(self, rows: ScanRows) -> None:
        """The next rows."""
        self._make_room(self._known + len(rows))
        positions, places = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        self._known = int(
            _group(
                rows=rows.ctypes.data, count=len(rows), slots=self._slots.ctypes.data, mask=len(self._slots) - 1,
                groups=self._groups.ctypes.data, known=self._known, positions=positions.ctypes.data,
                places=places.ctypes.data,
            )
        )  # fmt: skip
        self._taken.append((positions, places))

    def _make_room(self, groups: int) -> None:
        if len(self._groups) >= groups:
            return
        size = 1 << (2 * groups - 1).bit_length()
        kept = self._groups[: self._known]
        self._groups = np.empty(size // 2, GROUP)
        self._groups[: self._known] = kept
        self._slots = np.full(size, -1, np.int32)
        _insert(self._slots.ctypes.data, size - 1, self._groups.ctypes.data, self._known)

    def sort(
        self, data: ByteArray, end: int, topic_rank: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.void]]:
        """Ordinals in the order of the archive, and the groups in theirs; ``topic_rank`` is indexed by topic number.

        ``end``: of the last record. No rows are added afterwards.
        """
        self.positions = np.concatenate([*(positions for positions, _ in self._taken), np.array([end], np.int32)])
        self.places = np.concatenate([np.empty(0, np.int32), *(places for _, places in self._taken)])
        self._taken.clear()
        groups = self._groups[: self._known]
        topics, queues, without_unit = parts_of(groups["key"])
        sequence = np.lexsort((without_unit, queues, topic_rank[topics]))
        groups = groups[sequence]
        starts = starts_of(groups)
        following = np.empty(len(groups), np.int64)
        following[sequence] = starts[:-1]
        order = np.empty(len(self.places), np.int32)
        _distribute(self.places.ctypes.data, len(self.places), following.ctypes.data, order.ctypes.data)
        for number in np.flatnonzero(groups["is_mixed"]).tolist():
            mine = order[starts[number] : starts[number + 1]]
            offsets = np.empty(len(mine), np.int64)
            _queue_offsets(
                data.ctypes.data, self.positions.ctypes.data, mine.ctypes.data, len(mine), offsets.ctypes.data
            )
            mine[:] = mine[np.argsort(offsets, kind="stable")]
        return order, groups


def parts_of(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
    """Topic numbers, queue ids and whether there are no queue units, of groups' keys."""
    return keys >> 33, (keys >> 1).astype(np.int32), (keys & 1).astype(bool)


def starts_of(groups: NDArray[np.void]) -> NDArray[np.int64]:
    """Place of the first record of each group in the order, and the number of records at the end."""
    starts = np.zeros(len(groups) + 1, np.int64)
    np.cumsum(groups["records"], out=starts[1:])
    return starts
