"""Keys on their way into index files: hashed keys beside the scanned rows that they come from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.kernels.chains import batch_bounds
from tierlog.index.kernels.keys import KeyRows, hash_keys
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.kernels.scan import ScanRows


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """Keys of consecutive records; ``keys["row"]`` rises. Ranges over keys are half-open."""

    rows: ScanRows
    keys: KeyRows
    topic_ids: NDArray[np.int32]
    """Topic id by the topic number of a row."""

    @classmethod
    def of(cls, data: ByteArray, rows: ScanRows, topic_ids: NDArray[np.int32]) -> KeyBatch:
        """Hashes the keys of scanned rows."""
        rows = np.ascontiguousarray(rows)
        return cls(rows, hash_keys(data, rows), np.ascontiguousarray(topic_ids, np.int32))

    def __len__(self) -> int:
        return len(self.keys)

    def physical_offset(self, key: int) -> int:
        """Physical offset of the message of a key."""
        return int(self.rows["physical_offset"][self.keys["row"][key]])

    def store_ms(self, key: int) -> int:
        """Store time of the message of a key."""
        return int(self.rows["store_ms"][self.keys["row"][key]])

    def message_end(self, key: int) -> int:
        """Returns the first key of the next message."""
        rows = self.keys["row"]  # bisected: numpy's search in one field of an array copies the field
        return bisect_right(rows, rows[key], key)

    def first_key_from(self, physical_offset: int) -> int:
        """Returns the first key of a message at or above a physical offset; the number of keys if there is none."""
        return bisect_left(self.keys["row"], bisect_left(self.rows["physical_offset"], physical_offset))

    def fit(self, start: int, room: int) -> int:
        """Returns the greatest end of whole messages from ``start`` with at most ``room`` keys."""
        end = start + room
        if end >= len(self.keys):
            return len(self.keys)
        rows = self.keys["row"]
        return bisect_left(rows, rows[end], start, end)

    def bounds(self, start: int, end: int) -> TimeBounds:
        """Least and greatest times over the messages of the keys ``[start, end)``, of which there is one."""
        out = np.zeros(4, np.int64)
        status = batch_bounds(
            rows=self.rows.ctypes.data, row_count=len(self.rows), topic_count=len(self.topic_ids),
            keys=self.keys.ctypes.data, start=start, end=end, out=out.ctypes.data,
        )  # fmt: skip
        if status < 0:
            raise CorruptIndexError("a key names a row or topic that its batch lacks")
        return TimeBounds(*(int(value) for value in out))
