"""Transfers of whole objects: reads one in order, and stores one so that the server is known to hold it.

A stored object is checked before anything names it (I5 in docs/invariants.md).
"""

from __future__ import annotations

import zlib

from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError
from tierlog.tiering.objects.object_store import ObjectStore

_PIECE_BYTES = 8 << 20


class ObjectStream:
    """Reads an object in order, in large pieces however little is taken at a time.

    ``crc32`` is that of the bytes read so far: of all of them after :meth:`take_rest`.
    """

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
        """Returns the next bytes; raises :class:`CorruptionError` if the object ends before them."""
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
        """Returns the bytes from :attr:`position` up to ``end``."""
        return self.take(end - self.position)

    def take_rest(self) -> None:
        """Reads all that is left, for the CRC."""
        while self._read < self._size:
            self._kept.clear()
            self.take(min(_PIECE_BYTES, self._size - self._read))


def verify_object(objects: ObjectStore, key: str, size_bytes: int, crc32: int) -> None:
    """Checks size and CRC-32 of a stored object; reads it back where the server does not know the CRC.

    Raises :class:`ChecksumMismatchError`; the caller must not name the object then.
    """
    info = objects.head(key)
    if info.size_bytes != size_bytes:
        raise ChecksumMismatchError(f"stored object has {info.size_bytes} bytes, sent {size_bytes}", path=key)
    found = info.crc32
    if found is None:
        found = 0
        for start in range(0, size_bytes, _PIECE_BYTES):
            found = zlib.crc32(objects.get_range(key, start, min(start + _PIECE_BYTES, size_bytes)), found)
    if found != crc32:
        raise ChecksumMismatchError("stored object differs from what was sent", path=key)


def put_verified(objects: ObjectStore, key: str, data: bytes) -> int:
    """Stores a small object, checks it, and returns its CRC-32. Names are used once, so repeating is harmless."""
    objects.put(key, data)
    crc = zlib.crc32(data)
    verify_object(objects, key, len(data), crc)
    return crc
