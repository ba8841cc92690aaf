"""Keys to look up, as one column of bytes that kernels read, and their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from index.kernels.points import LONGEST_PREFIX, WORK_BYTES, hash_keys_of_topic
from tiering.errors import InvalidRequestError

#: Keys as text, or as their UTF-8; an Arrow array costs least.
Keys: TypeAlias = Sequence[str] | Sequence[bytes] | pa.Array


class KeyColumn:
    """Some keys as Arrow has them; ``ends`` is the address of one int32 more than there are keys."""

    def __init__(self, keys: Keys) -> None:
        """Raises :class:`InvalidRequestError` for what is no text or has holes."""
        try:
            column = keys if isinstance(keys, pa.Array) else pa.array(keys)
            self._column = column if column.type == pa.binary() else column.cast(pa.binary())
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise InvalidRequestError(f"keys are text or bytes: {error}") from error
        if self._column.null_count:
            raise InvalidRequestError("a key is null")
        _, ends, data = self._column.buffers()
        self.ends: int = 0 if ends is None else ends.address + 4 * self._column.offset
        self.data: int = 0 if data is None else data.address
        self.data_bytes: int = 0 if data is None else data.size

    def __len__(self) -> int:
        return len(self._column)

    def of(self, numbers: NDArray[np.int64]) -> KeyColumn:
        """Some of them, in this order."""
        return KeyColumn(self._column.take(pa.array(numbers)))


def topic_prefix(topic: str) -> NDArray[np.uint8]:
    """What a key's hashes begin with."""
    prefix = np.frombuffer(f"{topic}#".encode(), np.uint8)
    if len(prefix) > LONGEST_PREFIX:
        raise InvalidRequestError(f"bad topic name {topic[:300]!r}")
    return prefix


def key_hashes(topic: str, keys: Keys) -> NDArray[np.int64]:
    """Both hashes of each key in a row, as :meth:`index.compacted_file.CompactedIndexFile.look_up_many` takes them."""
    column, prefix = KeyColumn(keys), topic_prefix(topic)
    hashes = np.empty((len(column), 2), np.int64)
    work = np.empty(WORK_BYTES, np.uint8)
    status = hash_keys_of_topic(
        prefix.ctypes.data, len(prefix), column.data, column.data_bytes, column.ends, len(column), work.ctypes.data,
        hashes.ctypes.data,
    )  # fmt: skip
    if status < 0:
        raise InvalidRequestError("a key is longer than any message's, or lies outside of its array")
    return hashes
