"""Reads a whole object in order, in large pieces whatever is taken of it."""

from __future__ import annotations

import zlib

from tiering.cold.object_store import ObjectStore
from tiering.errors import CorruptionError

_PIECE_BYTES = 8 << 20


class ObjectStream:
    """The object's bytes in order, with the CRC of those that were read: of all of them after :meth:`take_rest`."""

    def __init__(self, objects: ObjectStore, key: str, size_bytes: int) -> None:
        self.crc32 = 0
        #: Where the next bytes lie.
        self.position = 0
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._read = 0
        self._kept = bytearray()

    def take(self, length: int) -> bytes:
        """The next bytes; :class:`CorruptionError` if the object ends before them."""
        if length < 0:
            raise CorruptionError("parts of the object do not follow one another", path=self._key)
        while len(self._kept) < length:
            end = min(self._size, self._read + max(_PIECE_BYTES, length - len(self._kept)))
            if end == self._read:
                raise CorruptionError("ends early", path=self._key)
            piece = self._objects.get_range(self._key, self._read, end)
            self.crc32 = zlib.crc32(piece, self.crc32)
            self._kept += piece
            self._read = end
        data = bytes(self._kept[:length])
        del self._kept[:length]
        self.position += length
        return data

    def take_until(self, end: int) -> bytes:
        """The bytes from where it stands up to ``end``."""
        return self.take(end - self.position)

    def take_rest(self) -> None:
        """All that is left."""
        while self._read < self._size:
            self._kept.clear()
            self.take(min(_PIECE_BYTES, self._size - self._read))
