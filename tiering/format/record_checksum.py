"""Checksum of a whole record, as Apache RocketMQ (5.2 and later) writes it: a property that ends the record.

====== ==== ====== ============ =====================================================================
offset size type   field        meaning
====== ==== ====== ============ =====================================================================
0      8    bytes  name         ``__CRC32#``
8      1    byte   separator    0x01
9      10   bytes  digits       decimal CRC, **least significant digit first**, filled up with ``0``
19     1    byte   end          0x02
====== ==== ====== ============ =====================================================================

Total 20, the last bytes of the record and part of its property text. The CRC is CRC-32 & 0x7FFFFFFF over everything
before them, with queue offset, physical offset and store time in place. A property text that does not end in 0x02
gets one first. Absent in most records: the broker's setting ``enabledAppendPropCRC`` and ours ``hot.record_checksum``
are off unless switched on.
Torn write: the sum differs, and the record is invalid.
Written by: ``tiering.kernels.encode``. Read by: ``tiering.kernels.scan``, ``tiering.format.record``.
"""

from __future__ import annotations

import zlib

from tierlog.tiering.format.properties import RECORD_CHECKSUM

CHECKSUM_BYTES = 20
_START = RECORD_CHECKSUM.encode() + b"\x01"
_DIGITS = 10


def reserve_checksum(properties_text: bytes) -> bytes:
    """Property text with room for the checksum at its end."""
    closing = b"" if properties_text.endswith(b"\x02") or not properties_text else b"\x02"
    return properties_text + closing + _START + bytes(_DIGITS) + b"\x02"


def fill_checksum(record: bytes) -> bytes:
    """A record whose text has the room, with the checksum in it."""
    covered = record[:-CHECKSUM_BYTES]
    return covered + _START + _digits(covered) + b"\x02"


def has_checksum(record: bytes | memoryview, properties_length: int) -> bool:
    """Whether a record, given with the length of its property text, ends in a checksum."""
    tail = bytes(record[-CHECKSUM_BYTES:])
    return properties_length >= CHECKSUM_BYTES and tail.startswith(_START) and tail.endswith(b"\x02")


def is_intact(record: bytes | memoryview, properties_length: int) -> bool:
    """Whether a record's checksum fits, or there is none."""
    if not has_checksum(record, properties_length):
        return True
    return bytes(record[-_DIGITS - 1 : -1]) == _digits(record[:-CHECKSUM_BYTES])


def _digits(covered: bytes | memoryview) -> bytes:
    return str(zlib.crc32(covered) & 0x7FFFFFFF)[::-1].ljust(_DIGITS, "0").encode()
