"""Stores an object under a name of its own and makes sure that the server holds what was sent (invariant I5)."""

from __future__ import annotations

import zlib

from tiering.cold.object_store import ObjectStore
from tiering.errors import ChecksumMismatchError

_READ_BACK_BYTES = 8 << 20


def verify_object(objects: ObjectStore, key: str, size_bytes: int, crc32: int) -> None:
    """Check size and CRC-32 of a stored object; read it back where the server does not know the CRC.

    Raises :class:`ChecksumMismatchError`; the caller must not name the object then.
    """
    info = objects.head(key)
    if info.size_bytes != size_bytes:
        raise ChecksumMismatchError(f"stored object has {info.size_bytes} bytes, sent {size_bytes}", path=key)
    found = info.crc32
    if found is None:
        found = 0
        for start in range(0, size_bytes, _READ_BACK_BYTES):
            found = zlib.crc32(objects.get_range(key, start, min(start + _READ_BACK_BYTES, size_bytes)), found)
    if found != crc32:
        raise ChecksumMismatchError("stored object differs from what was sent", path=key)


def put_verified(objects: ObjectStore, key: str, data: bytes) -> int:
    """Store a small object, check it, and return its CRC-32. Names are used once, so repeating is harmless."""
    objects.put(key, data)
    crc = zlib.crc32(data)
    verify_object(objects, key, len(data), crc)
    return crc
