"""Keys as the dispatcher hands them to an index: scanned rows of messages with one key each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows

TOPIC = b"orders-topic-00"
TOPIC_IDS = np.array([7], np.int32)
BEGIN_MS = 1_700_000_000_000
RECORD_BYTES = 436
_KEYS_PER_MS = 100
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True)
class ManyKeys:
    """Keys one after the other; key i is ``data[ends[i - 1] : ends[i]]``."""

    data: ByteArray
    ends: NDArray[np.int64]

    @classmethod
    def random(cls, count: int) -> ManyKeys:
        """16 hex digits each, the same for ever: their hashes spread over all slots."""
        drawn = np.random.default_rng(3).integers(0, 256, (count, 8), np.uint8)
        return cls(
            _DIGITS[np.stack([drawn >> 4, drawn & 15], axis=2).reshape(-1)],
            np.arange(1, count + 1, dtype=np.int64) * 16,
        )

    @classmethod
    def counted(cls, count: int) -> ManyKeys:
        """``key-0``, ``key-1`` and so on: the hashes of neighbours are neighbours, which flatters an index."""
        keys = [b"key-%d" % number for number in range(count)]
        return cls(np.frombuffer(b"".join(keys), np.uint8), np.cumsum([len(key) for key in keys]))

    def __len__(self) -> int:
        return len(self.ends)

    def first(self, count: int) -> list[bytes]:
        """Topic and key of each of the first ones, as other stores are told."""
        ends = self.ends[:count].tolist()
        data = self.data[: ends[-1]].tobytes()
        return [TOPIC + b"#" + data[low:high] for low, high in pairwise([0, *ends])]

    def batches(self, keys_each: int) -> Iterator[tuple[ByteArray, ScanRows]]:
        """Scanned bytes and their rows; each is made when it is asked for, as a scan leaves it in the caches."""
        for start in range(0, len(self), keys_each):
            end = min(start + keys_each, len(self))
            low = int(self.ends[start - 1]) if start else 0
            ends = self.ends[start:end] - low + len(TOPIC)
            numbers = np.arange(start, end, dtype=np.int64)
            rows = np.zeros(end - start, SCAN_ROW)
            rows["physical_offset"] = numbers * RECORD_BYTES
            rows["size"] = RECORD_BYTES
            rows["queue_id"] = numbers & 7
            rows["store_ms"] = rows["born_ms"] = BEGIN_MS + numbers // _KEYS_PER_MS
            rows["topic_length"] = len(TOPIC)
            rows["keys_at"] = np.concatenate(([len(TOPIC)], ends[:-1]))
            rows["keys_length"] = np.diff(ends, prepend=len(TOPIC))
            yield np.concatenate((np.frombuffer(TOPIC, np.uint8), self.data[low : int(self.ends[end - 1])])), rows
