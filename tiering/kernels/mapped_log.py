"""Records at physical offsets of a mapped log: checked, asked for a key, and gathered into columns.

``tiering.format.record.decode_record`` and ``tiering.format.properties.indexed_keys`` are the oracle: what they would
refuse is refused here. An offset may come from an index, so it may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_V1, MAGIC_V2
from tierlog.tiering.kernels.checksum import CRC_TABLES, crc32, record_differs
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    int64,
    kernel,
    load_be16,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    same_bytes,
    store_i32,
    store_i64,
)

#: A log as kernels take it: int64 each. ``segments`` is the address of (address, bytes) pairs, the first of them
#: that of the segment of number ``first``, counted in ``segment_bytes`` from offset 0; an address of 0 is a hole.
LOG = np.dtype([(name, "<i8") for name in ("segments", "count", "first", "segment_bytes", "crc_tables")])
_SEGMENTS, _COUNT, _FIRST, _SEGMENT_BYTES, _CRC_TABLES = (8 * place for place in range(5))
_UNIQ_KEY, _KEYS = 0x59454B5F51494E55, 0x5359454B
"""``UNIQ_KEY`` and ``KEYS`` read little-endian."""


@called
def record_place(log, physical_offset):
    """Address of a physical offset and bytes from there to its segment's end: (0, 0) where no record can begin."""
    segment_bytes = load_i64(log + _SEGMENT_BYTES)
    number = physical_offset // segment_bytes - load_i64(log + _FIRST)
    if physical_offset < 0 or number < 0 or number >= load_i64(log + _COUNT):
        return int64(0), int64(0)
    row = load_i64(log + _SEGMENTS) + 16 * number
    position = physical_offset % segment_bytes
    room = load_i64(row + 8) - position
    if load_i64(row) == 0 or room < FIXED_BYTES_V1:
        return int64(0), int64(0)
    return load_i64(row) + position, room


@called
def record_spans(at, room, physical_offset):
    """Size, then address and length of body, topic and property text; size 0 if this is no record of this offset.

    ``room`` is at least ``FIXED_BYTES_V1``. Checksums are not compared.
    """
    none = int64(0)
    size = load_be32(at)
    magic = load_be32(at + 4)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < FIXED_BYTES_V1 or size > room:
        return none, none, none, none, none, none, none
    flags = load_be32(at + 36)
    fixed = 72 + (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
    topic_width = 2 if magic == MAGIC_V2 else 1
    left = size - fixed - topic_width - 2
    if left < 0 or load_be64(at + 28) != physical_offset:
        return none, none, none, none, none, none, none
    body = at + fixed
    body_length = load_be32(body - 4)
    if body_length < 0 or body_length > left:
        return none, none, none, none, none, none, none
    left -= body_length
    topic = body + body_length + topic_width
    topic_length = load_be16(topic - 2) if topic_width == 2 else load_u8(topic - 1)
    if topic_length > left:
        return none, none, none, none, none, none, none
    left -= topic_length
    properties = topic + topic_length + 2
    if load_be16(properties - 2) != left:
        return none, none, none, none, none, none, none
    return size, body, body_length, topic, topic_length, properties, left


@called
def is_damaged(log, at, spans):
    """Whether a checksum of a record differs, whose spans are those of :func:`record_spans`."""
    size, body, body_length, _topic, _topic_length, _properties, properties_length = spans
    tables = load_i64(log + _CRC_TABLES)
    if body_length > 0 and crc32(tables, body, body_length) & 0x7FFFFFFF != load_be32(at + 8):
        return True
    return record_differs(tables, at, size, properties_length)


@called
def has_key(properties, length, key, key_length):
    """Whether a property text makes its message be found by a key: its UNIQ_KEY, or one of its KEYS."""
    end = properties + length
    unique = keys = int64(0)
    unique_length = keys_length = int64(-1)
    start = properties
    while start < end:
        cut = end
        at = start
        while at < end:
            byte = load_u8(at)
            if byte <= 2:
                if byte == 2:
                    break
                if byte == 1 and cut == end:
                    cut = at
            at += 1
        if start < cut < at - 1:  # of equal names the last one counts
            if cut - start == 8 and load_i64(start) == _UNIQ_KEY:
                unique, unique_length = cut + 1, at - cut - 1
            elif cut - start == 4 and load_i32(start) == _KEYS:
                keys, keys_length = cut + 1, at - cut - 1
        start = at + 1
    if unique_length == key_length and same_bytes(unique, key, key_length):
        return True
    end = keys + keys_length
    while keys < end:
        at = keys
        while at < end and load_u8(at) != 32:
            at += 1
        if at - keys == key_length and same_bytes(keys, key, key_length):
            return True
        keys = at + 1
    return False


#: Columns that :func:`gather_records` fills, in the order of their addresses: a number a row, or ends (int64, one more
#: than rows, the first 0) followed by bytes.
GATHERED = ("queue_id", "queue_offset", "store_ms", "born_ms", "sys_flag", "body_ends", "text_ends", "body", "text")
_QUEUE_ID, _QUEUE_OFFSET, _STORE_MS, _BORN_MS, _SYS_FLAG, _BODY_ENDS, _TEXT_ENDS, _BODY, _TEXT = (
    8 * place for place in range(len(GATHERED))
)
#: Rows between asking for a record and copying it.
_AHEAD = 4


@kernel
def gather_records(log, *, offsets, count, out, body_bytes, text_bytes):
    """Fills the columns with the records at ``count`` physical offsets; the rows done.

    Fewer where no record is at an offset, or bodies or property texts together are longer than their columns. Checksums
    are not compared.
    """
    body_end = int64(0)
    text_end = int64(0)
    store_i64(load_i64(out + _BODY_ENDS), 0)
    store_i64(load_i64(out + _TEXT_ENDS), 0)
    for row in range(count):
        if row + _AHEAD < count:
            ahead, _room = record_place(log, load_i64(offsets + 8 * (row + _AHEAD)))
            for line in range(0, 448, 64):
                prefetch(ahead + line)
        offset = load_i64(offsets + 8 * row)
        at, room = record_place(log, offset)
        if room == 0:
            return row
        size, body, body_length, _topic, _topic_length, text, text_length = record_spans(at, room, offset)
        if size == 0 or body_end + body_length > body_bytes or text_end + text_length > text_bytes:
            return row
        born_host = 20 if load_be32(at + 36) & 0x10 else 8
        store_i32(load_i64(out + _QUEUE_ID) + 4 * row, load_be32(at + 12))
        store_i64(load_i64(out + _QUEUE_OFFSET) + 8 * row, load_be64(at + 20))
        store_i64(load_i64(out + _STORE_MS) + 8 * row, load_be64(at + 48 + born_host))
        store_i64(load_i64(out + _BORN_MS) + 8 * row, load_be64(at + 40))
        store_i32(load_i64(out + _SYS_FLAG) + 4 * row, load_be32(at + 36))
        copy(load_i64(out + _BODY) + body_end, body, body_length)
        copy(load_i64(out + _TEXT) + text_end, text, text_length)
        body_end += body_length
        text_end += text_length
        store_i64(load_i64(out + _BODY_ENDS) + 8 * (row + 1), body_end)
        store_i64(load_i64(out + _TEXT_ENDS) + 8 * (row + 1), text_end)
    return count


#: Stands for the time of a record that is damaged.
NO_TIME = -(1 << 63)


@kernel
def record_times(log, *, offsets, count, is_store, out):
    """Times of the records at ``count`` physical offsets, ``NO_TIME`` where none is or a checksum differs.

    ``is_store``: their store times, else their born times.
    """
    for row in range(count):
        if row + _AHEAD < count:
            ahead, _room = record_place(log, load_i64(offsets + 8 * (row + _AHEAD)))
            for line in range(0, 448, 64):
                prefetch(ahead + line)
        offset = load_i64(offsets + 8 * row)
        time_ms = int64(NO_TIME)
        at, room = record_place(log, offset)
        if room > 0:
            spans = record_spans(at, room, offset)
            if spans[0] > 0 and not is_damaged(log, at, spans):
                born_host = 20 if load_be32(at + 36) & 0x10 else 8
                time_ms = load_be64(at + 48 + born_host) if is_store else load_be64(at + 40)
        store_i64(out + 8 * row, time_ms)
    return count


class MappedLog:
    """Some segments as kernels see them; keeps their maps. Thread safe: nothing changes."""

    def __init__(self, segments: Mapping[int, ByteArray], segment_bytes: int) -> None:
        """``segments`` by base offset."""
        self._maps = list(segments.values())
        numbers = [base // segment_bytes for base in segments]
        first = min(numbers, default=0)
        self._rows = np.zeros((max(numbers, default=-1) + 1 - first, 2), np.int64)
        for number, data in zip(numbers, self._maps, strict=True):
            self._rows[number - first] = data.ctypes.data, len(data)
        self._log = np.array(
            [(self._rows.ctypes.data, len(self._rows), first, segment_bytes, CRC_TABLES)], LOG
        )  # fmt: skip
        #: For kernels.
        self.address = self._log.ctypes.data
