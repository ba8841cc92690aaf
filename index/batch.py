"""Keys on their way into index files: hashed keys beside the scanned rows that they come from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.kernels.chains import batch_bounds
from index.kernels.keys import KeyRows, hash_keys
from tiering.fs import ByteArray
from tiering.kernels.scan import ScanRows
from tiering.types import TimeBounds


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """Keys of consecutive records; ``keys["row"]`` rises. Ranges over keys are half-open."""

    rows: ScanRows
    keys: KeyRows
    topic_ids: NDArray[np.int32]
    """Topic id by the topic number of a row."""
    _row_of: NDArray[np.int32] = field(init=False, repr=False)
    _physical: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # a search in a field of a record array copies all of it
        object.__setattr__(self, "_row_of", np.ascontiguousarray(self.keys["row"]))
        object.__setattr__(self, "_physical", np.ascontiguousarray(self.rows["physical_offset"]))

    @classmethod
    def of(cls, data: ByteArray, rows: ScanRows, topic_ids: NDArray[np.int32]) -> KeyBatch:
        """Hash the keys of scanned rows."""
        rows = np.ascontiguousarray(rows)
        return cls(rows, hash_keys(data, rows), np.ascontiguousarray(topic_ids, np.int32))

    def __len__(self) -> int:
        return len(self.keys)

    def physical_offset(self, key: int) -> int:
        """Physical offset of the message of a key."""
        return int(self._physical[self._row_of[key]])

    def store_ms(self, key: int) -> int:
        """Store time of the message of a key."""
        return int(self.rows["store_ms"][self._row_of[key]])

    def message_end(self, key: int) -> int:
        """The first key of the next message."""
        return int(np.searchsorted(self._row_of, self._row_of[key], "right"))

    def first_key_from(self, physical_offset: int) -> int:
        """The first key of a message at or above a physical offset; the number of keys if there is none."""
        return int(np.searchsorted(self._row_of, np.searchsorted(self._physical, physical_offset)))

    def fit(self, start: int, room: int) -> int:
        """The greatest end of whole messages from ``start`` with at most ``room`` keys."""
        end = start + room
        if end >= len(self.keys):
            return len(self.keys)
        return max(start, int(np.searchsorted(self._row_of, self._row_of[end], "left")))

    def bounds(self, start: int, end: int) -> TimeBounds:
        """Least and greatest times over the messages of the keys ``[start, end)``, of which there is one."""
        out = np.zeros(4, np.int64)
        status = batch_bounds(
            self.rows.ctypes.data, len(self.rows), len(self.topic_ids), self.keys.ctypes.data, start, end,
            out.ctypes.data,
        )  # fmt: skip
        if status < 0:
            raise CorruptIndexError("a key names a row or topic that its batch lacks")
        return TimeBounds(*(int(value) for value in out))
