"""Columns of records as the compiled loops fill them, with the room that those need.

``tiering.message_columns`` makes Arrow of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiering.format.queue_unit import UNIT_DTYPE
from tiering.format.record import FIXED_BYTES_V1
from tiering.fs import ByteArray
from tiering.kernels.addresses import address_of
from tiering.kernels.checksum import CRC_TABLES
from tiering.kernels.columns import LAYOUT, MOST_TEXTS, take_frame, take_runs, take_units

#: Least and greatest of what is wanted: queue offset, physical offset, store time, born time.
Bounds = NDArray[np.int64]
_ALWAYS = frozenset({"topic_number", "queue_id"})
_PARTS = {"key": "keys", "name": "properties", "value": "properties"}


class RecordColumns:
    """Columns of records, in the order in which they were added; for one thread."""

    def __init__(self, capacity_bytes: int, rows: int | None = None, names: Collection[str] | None = None) -> None:
        """``capacity_bytes``: of all records that will be added, ``rows`` of them at most; memory is taken as needed.

        Only the columns ``names`` are made, a text's with its ends; None for all of them.
        """
        most_rows = capacity_bytes // FIXED_BYTES_V1 + 1
        self.most_rows = most_rows if rows is None else min(rows, most_rows)
        most_texts = MOST_TEXTS * self.most_rows
        properties = min(most_texts, capacity_bytes // 3) + 2
        sizes = {
            "message_id": 56 * self.most_rows, "key_ends": min(most_texts, capacity_bytes // 2) + 2,
            "name_ends": properties, "value_ends": properties,
        }  # fmt: skip
        self._capacity = capacity_bytes
        self._columns: dict[str, NDArray[Any]] = {
            name: _room(sizes.get(name, capacity_bytes if kind is np.uint8 else self.most_rows + 1), np.dtype(kind))
            for name, kind in LAYOUT
            if _is_made(name, names)
        }
        for name, column in self._columns.items():
            if name.endswith("_ends"):
                column[0] = 0
        addresses = [address_of(self._columns[name]) if name in self._columns else 0 for name, _ in LAYOUT]
        self._addresses = np.array(addresses, np.int64)
        self._done = np.zeros(5, np.int64)
        self._out, self._done_at = address_of(self._addresses), address_of(self._done)
        self.rows = 0
        #: Behind the queue offset of the record or filler of a frame that was passed last.
        self.next_offset = 0
        self.added_bytes = 0

    def add(self, frame: ByteArray, position: int, end: int, topic: ByteArray, number: int, bounds: Bounds) -> int:
        """Add the records of ``frame[position:end]``, all of one ``topic``, which the rows call ``number``.

        Fillers and records outside the bounds are passed over. Returns ``end``, or where a record lies that the plain
        codec has to look at, or that has no room among ``most_rows``; the bytes behind that are not counted as added.
        """
        if not 0 <= position <= end <= len(frame):
            raise ValueError(f"records at {position}..{end} outside {len(frame)} bytes")
        if self.added_bytes + end - position > self._capacity:
            raise ValueError(f"{end - position} bytes of records, {self._capacity - self.added_bytes} left")
        take_frame(
            CRC_TABLES, address_of(frame), position, end, address_of(topic), len(topic), number, address_of(bounds),
            self._out, self.rows, self.most_rows, self._done_at,
        )  # fmt: skip
        self.rows, stopped, self.next_offset, *_ = self._done.tolist()
        self.added_bytes += stopped - position
        return int(stopped)

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, topic: ByteArray, number: int,
        bounds: Bounds,
    ) -> tuple[int, int]:  # fmt: skip
        """As :meth:`add`, of ``runs`` from ``position`` in the run of this number on; ``data`` is frames in a row.

        A run is begin, end, and begin and end of its frame in ``data``. Returns the run and the position where it
        stopped, which is also before a run that is larger than what is left of ``capacity_bytes``, or that lies outside
        its frame; with the last run taken, the run is ``len(runs)``.
        """
        if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != 4 or not runs.flags.c_contiguous or run < 0:
            raise ValueError("a run is four numbers of 8 bytes")
        take_runs(
            CRC_TABLES, address_of(data), len(data), address_of(runs), len(runs), run, position,
            self._capacity - self.added_bytes, address_of(topic), len(topic), number, address_of(bounds),
            self._out, self.rows, self.most_rows, self._done_at,
        )  # fmt: skip
        self.rows, position, self.next_offset, run, added = self._done.tolist()
        self.added_bytes += added
        return run, position

    def add_units(
        self,
        units: NDArray[np.void],
        log: ByteArray,
        base: int,
        topic: ByteArray,
        number: int,
        bounds: Bounds,
        place: tuple[int, int] | None = None,
    ) -> int:
        """Add the records that queue units lead to in the segment ``log``, which begins at the offset ``base``.

        ``place``, queue id and the first unit's offset in it, is compared with each record, and so is the unit's size;
        an offset of -1 is not.
        Returns how many units were taken: the record of the next one is to be looked at by the plain codec, or has no
        room here.
        """
        if units.dtype != UNIT_DTYPE or not units.flags.c_contiguous:
            raise ValueError("units are to lie one behind the other, with the bytes of their file")
        take_units(
            CRC_TABLES, address_of(units), min(len(units), self.most_rows - self.rows), address_of(log), base, len(log),
            self._capacity - self.added_bytes, address_of(topic), len(topic), number, address_of(bounds),
            *((-1, -1) if place is None else place), self._out, self.rows, self._done_at,
        )  # fmt: skip
        self.rows, taken, added, *_ = self._done.tolist()
        self.added_bytes += added
        return int(taken)

    def numbers(self, name: str) -> NDArray[np.signedinteger]:
        """A column of one number a row."""
        found: NDArray[np.signedinteger] = self._columns[name][: self.rows]
        return found

    def ends(self, name: str, count: int) -> NDArray[np.int32]:
        """Where ``count`` texts, or lists, of a column begin and end."""
        found: NDArray[np.int32] = self._columns[f"{name}_ends"][: count + 1]
        return found

    def text(self, name: str) -> ByteArray:
        """The bytes of a column's texts, with room behind them."""
        return self._columns[name]


def _room(count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """From Arrow's pool, which keeps memory for the next batch: libc gives megabytes back, to be faulted in anew."""
    return np.frombuffer(pa.allocate_buffer(count * kind.itemsize), kind)


def _is_made(name: str, wanted: Collection[str] | None) -> bool:
    """Whether one of the arrays is needed for the columns that are wanted."""
    column = name.removesuffix("_ends")
    return wanted is None or column in _ALWAYS or _PARTS.get(column, column) in wanted
