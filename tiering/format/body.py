"""Compressed bodies, as RocketMQ's clients write them: bit 0 of ``sys_flag``, and in bits 8 to 10 with what.

===== ====================================
bits  format
===== ====================================
0x000 zlib, of clients that name no format
0x100 LZ4 frame
0x200 zstd
0x300 zlib
===== ====================================

The broker stores such a body as it came; its CRC is over the stored bytes. What follows a whole zlib stream is ignored,
as Java's inflater does.
"""

from __future__ import annotations

import zlib

from tierlog.tiering.format.record import Record, SysFlag

#: A body that would become longer is not inflated.
MAX_INFLATED_BYTES = 64 << 20

_FORMAT_MASK = 0x700
_FORMATS = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}

_COMPRESSED = int(SysFlag.COMPRESSED)


def is_compressed(record: Record) -> bool:
    """Whether the body is not what the application sent."""
    return bool(record.sys_flag & _COMPRESSED) and len(record.body) > 0


def inflated_body(record: Record, limit: int = MAX_INFLATED_BYTES) -> bytes | None:
    """Returns the body of a compressed record as the application sent it.

    None if it is damaged, of an unknown format, or longer than ``limit``, beyond which no memory is taken.
    """
    name = _FORMATS.get(record.sys_flag & _FORMAT_MASK)
    if name is None:
        return None
    found = _zlib(record.body, limit) if name == "zlib" else _stream(record.body, name, limit)
    return None if found is None or len(found) > limit else found


def _zlib(body: bytes, limit: int) -> bytes | None:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, limit + 1)
    except zlib.error:
        return None
    return found if stream.eof else None


def _stream(body: bytes, name: str, limit: int) -> bytes | None:
    import pyarrow as pa  # most bodies need none of it

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
            found: bytes = stream.read(limit + 1)
    except (OSError, ValueError):
        return None
    return found
