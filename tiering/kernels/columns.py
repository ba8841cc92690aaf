"""Takes records apart into columns: numbers, and texts as offsets and bytes, as Arrow lays them out.

``tiering.format.record.decode_record`` and ``tiering.format.properties`` are the oracle. Records that need more than
copying are left to them: a compressed body, text that is not UTF-8, the same property twice, very many keys or
properties, and whatever is damaged, of which the plain codec says what it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER, MAGIC_V1, MAGIC_V2
from tiering.fs import ByteArray
from tiering.kernels.checksum import CRC_TABLES, crc32, record_differs
from tiering.kernels.primitives import (
    called,
    copy,
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
    store_u8,
)
from tiering.kernels.text import is_utf8

_MOST_TEXTS = 64
"""Keys, or properties, of one record: each is compared with those before it."""
_KEYS, _TAGS, _CHECKSUM = 0x5359454B, 0x53474154, 0x2332334352435F5F  # "KEYS", "TAGS", "__CRC32#" read little-endian
_PRODUCER, _SEQUENCE = 0x544C5F504944, 0x544C5F534551  # "TL_PID", "TL_SEQ" read big-endian

#: Columns in the order of their addresses. ``*_ends`` has one entry more than there are texts and begins with 0.
_LAYOUT = (
    ("topic_number", np.int32),
    ("queue_id", np.int32),
    ("queue_offset", np.int64),
    ("physical_offset", np.int64),
    ("store_ms", np.int64),
    ("born_ms", np.int64),
    ("body_ends", np.int32),
    ("body", np.uint8),
    ("message_id_ends", np.int32),
    ("message_id", np.uint8),
    ("tag_ends", np.int32),
    ("tag", np.uint8),
    ("keys_ends", np.int32),
    ("key_ends", np.int32),
    ("key", np.uint8),
    ("properties_ends", np.int32),
    ("name_ends", np.int32),
    ("name", np.uint8),
    ("value_ends", np.int32),
    ("value", np.uint8),
)
_AT = {name: 8 * number for number, (name, _) in enumerate(_LAYOUT)}
_TOPIC_NUMBER, _QUEUE_ID, _QUEUE_OFFSET = _AT["topic_number"], _AT["queue_id"], _AT["queue_offset"]
_PHYSICAL, _STORE_MS, _BORN_MS = _AT["physical_offset"], _AT["store_ms"], _AT["born_ms"]
_BODY, _MESSAGE_ID, _TAG = _AT["body_ends"], _AT["message_id_ends"], _AT["tag_ends"]
_LIST, _KEY, _MAP, _NAME, _VALUE = (
    _AT[name] for name in ("keys_ends", "key_ends", "properties_ends", "name_ends", "value_ends")
)


@called
def _end(out, ends, number):
    """Where the texts of a column end before the one of this number."""
    return load_i32(load_i64(out + ends) + 4 * number)


@called
def _put(out, ends, number, address, length):
    """Append text ``number`` of the column whose ends are at ``ends`` and whose bytes follow."""
    end = _end(out, ends, number)
    copy(load_i64(out + ends + 8) + end, address, length)
    store_i32(load_i64(out + ends) + 4 * (number + 1), end + length)


@called
def _is_among(out, ends, first, last, address, length):
    """Whether one of the texts ``[first, last)`` of a column is this."""
    for number in range(first, last):
        start = _end(out, ends, number)
        if _end(out, ends, number + 1) - start == length and same_bytes(
            load_i64(out + ends + 8) + start, address, length
        ):
            return True
    return False


@called
def _put_keys(out, row, address, length):
    """The distinct keys of a KEYS property; False if there are too many."""
    first = _end(out, _LIST, row)
    keys = first
    end = address + length
    start = address
    while start < end:
        at = start
        while at < end and load_u8(at) != 32:
            at += 1
        if at > start and not _is_among(out, _KEY, first, keys, start, at - start):
            if keys - first == _MOST_TEXTS:
                return False
            _put(out, _KEY, keys, start, at - start)
            keys += 1
        start = at + 1
    store_i32(load_i64(out + _LIST) + 4 * (row + 1), keys)
    return True


@called
def _is_of_store(name, length):
    """Whether a property is the store's own and shown to nobody; KEYS and TAGS have columns."""
    if length == 6:
        text = load_be32(name) << 16 | load_be16(name + 4)
        return text in (_PRODUCER, _SEQUENCE)
    return length == 8 and load_i64(name) == _CHECKSUM


@called
def _put_properties(out, row, address, length):
    """Keys, tag and the other properties of a property text; False if that needs more than copying."""
    if not is_utf8(address, length):
        return False
    store_i32(load_i64(out + _LIST) + 4 * (row + 1), _end(out, _LIST, row))
    store_i32(load_i64(out + _TAG) + 4 * (row + 1), _end(out, _TAG, row))
    first = _end(out, _MAP, row)
    properties = first
    has_keys = False
    has_tag = False
    end = address + length
    start = address
    while start < end:
        cut = end
        at = start
        while at < end:
            byte = load_u8(at)
            if byte == 2:
                break
            if byte == 1 and cut == end:
                cut = at
            at += 1
        if start < cut < at - 1:
            name_length = cut - start
            value_length = at - cut - 1
            if name_length == 4 and load_i32(start) == _KEYS:
                if has_keys or not _put_keys(out, row, cut + 1, value_length):
                    return False
                has_keys = True
            elif name_length == 4 and load_i32(start) == _TAGS:
                if has_tag:
                    return False
                has_tag = True
                _put(out, _TAG, row, cut + 1, value_length)
            elif not _is_of_store(start, name_length):
                if properties - first == _MOST_TEXTS or _is_among(out, _NAME, first, properties, start, name_length):
                    return False
                _put(out, _NAME, properties, start, name_length)
                _put(out, _VALUE, properties, cut + 1, value_length)
                properties += 1
        start = at + 1
    store_i32(load_i64(out + _MAP) + 4 * (row + 1), properties)
    return True


@called
def _put_hex(target, address, length):
    for i in range(length):
        byte = load_u8(address + i)
        high = byte >> 4
        low = byte & 15
        store_u8(target + 2 * i, high + (48 if high < 10 else 55))
        store_u8(target + 2 * i + 1, low + (48 if low < 10 else 55))


@called
def _put_message_id(out, row, store_host, host_length, physical_offset_at):
    end = _end(out, _MESSAGE_ID, row)
    target = load_i64(out + _MESSAGE_ID + 8) + end
    _put_hex(target, store_host, host_length)
    _put_hex(target + 2 * host_length, physical_offset_at, 8)
    store_i32(load_i64(out + _MESSAGE_ID) + 4 * (row + 1), end + 2 * host_length + 16)


@called
def _is_filler(at, size):
    rest = load_i32(at + 8) | load_i32(at + 16)
    for i in range(36, size):
        rest |= load_u8(at + i)
    return rest == 0


@kernel
def _take_apart(tables, frame, position, end, topic, topic_length, number, bounds, out, row, done):
    """Append what lies in ``frame[position:end]`` up to the first record that is not for this; done: row, position."""
    while end - position >= FIXED_BYTES_V1:
        at = frame + position
        size = load_be32(at)
        magic = load_be32(at + 4)
        if size < FIXED_BYTES_V1 or size > end - position:
            break
        prefetch(at + 2 * size)
        if magic == MAGIC_FILLER:
            if not _is_filler(at, size):
                break
            position += size
            continue
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        flags = load_be32(at + 36)
        born_host = 20 if flags & 0x10 else 8
        store_host = 20 if flags & 0x20 else 8
        fixed = 72 + born_host + store_host
        topic_width = 2 if magic == MAGIC_V2 else 1
        if size < fixed + topic_width + topic_length + 2:
            break
        body_length = load_be32(at + fixed - 4)
        if body_length < 0 or body_length > size - fixed - topic_width - topic_length - 2:
            break
        topic_at = at + fixed + body_length
        if (load_be16(topic_at) if topic_width == 2 else load_u8(topic_at)) != topic_length:
            break
        topic_at += topic_width
        properties_at = topic_at + topic_length + 2
        properties_length = load_be16(properties_at - 2)
        if properties_at + properties_length != at + size or not same_bytes(topic_at, topic, topic_length):
            break
        if body_length > 0 and flags & 1:
            break
        if body_length > 0 and crc32(tables, at + fixed, body_length) & 0x7FFFFFFF != load_be32(at + 8):
            break
        if record_differs(tables, at, size, properties_length):
            break
        queue_offset = load_be64(at + 20)
        physical_offset = load_be64(at + 28)
        born_ms = load_be64(at + 40)
        store_ms = load_be64(at + 48 + born_host)
        is_wanted = (
            load_i64(bounds) <= queue_offset <= load_i64(bounds + 8)
            and load_i64(bounds + 16) <= physical_offset <= load_i64(bounds + 24)
            and load_i64(bounds + 32) <= store_ms <= load_i64(bounds + 40)
            and load_i64(bounds + 48) <= born_ms <= load_i64(bounds + 56)
        )
        if is_wanted:
            if not _put_properties(out, row, properties_at, properties_length):
                break
            _put(out, _BODY, row, at + fixed, body_length)
            _put_message_id(out, row, at + 56 + born_host, store_host, at + 28)
            store_i32(load_i64(out + _TOPIC_NUMBER) + 4 * row, number)
            store_i32(load_i64(out + _QUEUE_ID) + 4 * row, load_be32(at + 12))
            store_i64(load_i64(out + _QUEUE_OFFSET) + 8 * row, queue_offset)
            store_i64(load_i64(out + _PHYSICAL) + 8 * row, physical_offset)
            store_i64(load_i64(out + _STORE_MS) + 8 * row, store_ms)
            store_i64(load_i64(out + _BORN_MS) + 8 * row, born_ms)
            row += 1
        position += size
    store_i64(done, row)
    store_i64(done + 8, position)


#: Least and greatest of what is wanted: queue offset, physical offset, store time, born time.
Bounds = NDArray[np.int64]


class RecordColumns:
    """Columns of records, in the order in which they were added; for one thread."""

    def __init__(self, capacity_bytes: int) -> None:
        """``capacity_bytes``: of all records that will be added; memory is taken as it is needed."""
        rows = capacity_bytes // FIXED_BYTES_V1 + 1
        sizes = {
            "message_id": 56 * rows, "key_ends": capacity_bytes // 2 + 2, "name_ends": capacity_bytes // 3 + 2,
            "value_ends": capacity_bytes // 3 + 2,
        }  # fmt: skip
        self._capacity = capacity_bytes
        self._columns: dict[str, NDArray[Any]] = {
            name: np.empty(sizes.get(name, capacity_bytes if kind is np.uint8 else rows + 1), kind)
            for name, kind in _LAYOUT
        }
        for name, column in self._columns.items():
            if name.endswith("_ends"):
                column[0] = 0
        self._addresses = np.array([column.ctypes.data for column in self._columns.values()], np.int64)
        self._done = np.zeros(2, np.int64)
        self.rows = 0
        self.added_bytes = 0

    def add(self, frame: ByteArray, position: int, end: int, topic: ByteArray, number: int, bounds: Bounds) -> int:
        """Add the records of ``frame[position:end]``, all of one ``topic``, which the rows call ``number``.

        Fillers and records outside the bounds are passed over. Returns ``end``, or where a record lies that the plain
        codec has to look at; the bytes behind that are not counted as added.
        """
        if not 0 <= position <= end <= len(frame):
            raise ValueError(f"records at {position}..{end} outside {len(frame)} bytes")
        if self.added_bytes + end - position > self._capacity:
            raise ValueError(f"{end - position} bytes of records, {self._capacity - self.added_bytes} left")
        _take_apart(
            CRC_TABLES, frame.ctypes.data, position, end, topic.ctypes.data, len(topic), number, bounds.ctypes.data,
            self._addresses.ctypes.data, self.rows, self._done.ctypes.data,
        )  # fmt: skip
        self.rows, stopped = self._done.tolist()
        self.added_bytes += stopped - position
        return int(stopped)

    def numbers(self, name: str) -> NDArray[np.signedinteger]:
        """A column of one number a row."""
        found: NDArray[np.signedinteger] = self._columns[name][: self.rows]
        return found

    def ends(self, name: str, count: int) -> NDArray[np.int32]:
        """Where ``count`` texts, or lists, of a column begin and end."""
        found: NDArray[np.int32] = self._columns[f"{name}_ends"][: count + 1]
        return found

    def text(self, name: str) -> ByteArray:
        """The bytes of a column's texts, with room behind them."""
        return self._columns[name]
