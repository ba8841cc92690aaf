"""Keys to look up, as one column of bytes that kernels read, and their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from index.kernels.points import LONGEST_KEY, LONGEST_PREFIX, WORK_BYTES, hash_keys_of_topic
from tiering.errors import InvalidRequestError

_READ_AS_THEY_ARE = (pa.string(), pa.binary())
_TOO_LONG = "a key is longer than any message's, or lies outside of its array"
#: Keys as text, or as their UTF-8; an Arrow array costs least.
Keys: TypeAlias = Sequence[str] | Sequence[bytes] | pa.Array


class KeyColumn:
    """Some keys as Arrow has them; ``ends`` is the address of one int32 more than there are keys."""

    def __init__(self, keys: Keys) -> None:
        """Raises :class:`InvalidRequestError` for what is no text or has holes."""
        try:
            column = keys if isinstance(keys, pa.Array) else pa.array(keys)
            self._column = column if column.type in _READ_AS_THEY_ARE else column.cast(pa.binary())
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


def encoded_key(key: str) -> bytes:
    """A key's UTF-8; :class:`InvalidRequestError` for what is no text."""
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"keys are text: {error}") from error


class OneKey:
    """Room for the text of one key, as kernels read a column of it: :attr:`arguments` are bytes, their number, ends."""

    def __init__(self) -> None:
        text, ends = np.empty(LONGEST_KEY, np.uint8), np.zeros(2, np.int32)
        self._arrays, self._text, self._ends = (text, ends), text.data, ends.data
        self.arguments = (text.ctypes.data, len(text), ends.ctypes.data)

    def put(self, key: str) -> bool:
        """Write a key there; False if it is longer than any message's."""
        data = encoded_key(key)
        length = len(data)
        if length > LONGEST_KEY:
            return False
        self._text[:length] = data
        self._ends[1] = length
        return True


class KeyHasher:
    """Both hashes of keys of one topic, as compacted index files are asked with. For one thread at a time."""

    def __init__(self, topic: str) -> None:
        prefix, work, pair = topic_prefix(topic), np.empty(WORK_BYTES, np.uint8), np.empty(2, np.int64)
        self._arrays, self._pair, self._work = (prefix, work, pair), pair.data, work.ctypes.data
        self._prefix = (prefix.ctypes.data, len(prefix))
        self._key = OneKey()
        self._arguments = (*self._prefix, *self._key.arguments, 1, self._work, pair.ctypes.data)

    def one(self, key: str) -> tuple[int, int]:
        """Of one key."""
        if not self._key.put(key):
            raise InvalidRequestError(_TOO_LONG)
        hash_keys_of_topic(*self._arguments)
        return self._pair[0], self._pair[1]

    def many(self, keys: Keys) -> NDArray[np.int64]:
        """Of each key, a row."""
        column = KeyColumn(keys)
        hashes = np.empty((len(column), 2), np.int64)
        status = hash_keys_of_topic(
            *self._prefix, column.data, column.data_bytes, column.ends, len(column), self._work, hashes.ctypes.data
        )  # fmt: skip
        if status < 0:
            raise InvalidRequestError(_TOO_LONG)
        return hashes
