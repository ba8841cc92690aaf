"""Reads a range of the commit log into rows, one a record, checking every length, checksum and offset on the way.

The row says where topic, keys, unique key and tags lie, so that consume queues, index, archive and queries all work
from one pass. ``tiering.format.record.decode_record`` is the oracle.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.generation import begin_of, is_numbered, record_topic
from tierlog.tiering.format.record import FIXED_BYTES_V1, TRANSACTION_MASK, SysFlag
from tierlog.tiering.kernels.checksum import CRC_TABLES, crc32, record_differs
from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
    inlined,
    int64,
    is_sooner_without,
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
    trailing_zeros,
    uint64,
)
from tierlog.tiering.kernels.record_sums import record_sum
from tierlog.tiering.kernels.structs import load_fields, struct_kernel
from tierlog.tiering.kernels.text import java_hash, signed32

#: One row a record. ``*_at`` are positions in the scanned array; a length of 0 means absent.
SCAN_ROW = np.dtype(
    [
        ("physical_offset", "<i8"),
        ("queue_offset", "<i8"),
        ("store_ms", "<i8"),
        ("born_ms", "<i8"),
        ("tag_hash", "<i8"),
        ("position", "<i4"),
        ("size", "<i4"),
        ("topic_number", "<i4"),
        ("queue_id", "<i4"),
        ("sys_flag", "<i4"),
        ("magic", "<i4"),
        ("topic_at", "<i4"),
        ("topic_length", "<i4"),
        ("keys_at", "<i4"),
        ("keys_length", "<i4"),
        ("unique_at", "<i4"),
        ("unique_length", "<i4"),
        ("tags_at", "<i4"),
        ("tags_length", "<i4"),
    ]
)
_ROW_BYTES = SCAN_ROW.itemsize


def row_offset(field: str) -> int:
    """Byte position of a field in a ``SCAN_ROW``, for kernels that read rows."""
    assert SCAN_ROW.fields is not None
    return int(SCAN_ROW.fields[field][1])


_PHYSICAL = row_offset("physical_offset")
_QUEUE_OFFSET = row_offset("queue_offset")
_STORE_MS = row_offset("store_ms")
_BORN_MS = row_offset("born_ms")
_TAG_HASH = row_offset("tag_hash")
_POSITION = row_offset("position")
_SIZE = row_offset("size")
_TOPIC_NUMBER = row_offset("topic_number")
_QUEUE_ID = row_offset("queue_id")
_SYS_FLAG = row_offset("sys_flag")
_MAGIC = row_offset("magic")
_TOPIC_AT = row_offset("topic_at")
_KEYS_AT = row_offset("keys_at")
_UNIQUE_AT = row_offset("unique_at")
_TAGS_AT = row_offset("tags_at")

ScanRows = NDArray[np.void]


class ScanStop(IntEnum):
    """The reason for which a scan ended."""

    ROWS_FULL = 0
    END = 1
    BLANK = 2
    INVALID = 3
    UNKNOWN_TOPIC = 4


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Rows of one scan; ``position`` is where it stopped in the array. ``record_sum``: 0 if it was not asked for."""

    rows: ScanRows
    position: int
    stop: ScanStop
    record_sum: int = 0


_SECTOR_BYTES = 512
_SIZE_BYTES = 4
"""Of the field that a record begins with; no record has the size 0."""
_ZEROS_US = 1
"""For looking whether it is there."""
_BLANK = -875286124
_V1 = -626843481
_V2 = -626843477
_FILLER = 0x544C4746


class TopicTable:
    """Names of topics' entries by which a scan numbers its records: the number is the position in ``names``.

    Of a topic that was made again there are several, each for the records from where it begins on
    (``tiering.format.generation``).
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        encoded = [record_topic(name).encode() for name in names]
        self._generations = _generations(names)
        self._data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
        self._starts = np.zeros(len(names) + 1, np.int32)
        np.cumsum([len(name) for name in encoded], out=self._starts[1:])
        size = 16
        while size < 2 * len(names):
            size *= 2
        self._mask = size - 1
        self._slots: NDArray[np.int64] | None = None
        self._filling = threading.Lock()

    def tell_generations(self, rows: ScanRows) -> None:
        """Numbers the records of topics that were made again by where they lie."""
        for first, begins, numbers in self._generations:
            mine = rows["topic_number"] == first
            if mine.any():
                at = np.searchsorted(begins, rows["physical_offset"][mine], side="right") - 1
                rows["topic_number"][mine] = numbers[np.maximum(at, 0)]

    def arguments(self) -> dict[str, int]:
        """Addresses for the kernel; valid while this object lives."""
        data, starts = self._data.ctypes.data, self._starts.ctypes.data
        with self._filling:  # by the first scan: most openings scan nothing
            if self._slots is None:
                slots = np.full(self._mask + 1, -1, np.int64)
                _fill_topics(slots.ctypes.data, self._mask, data, starts, len(self.names))
                self._slots = slots
        return {"slots": self._slots.ctypes.data, "mask": self._mask, "topics": data, "starts": starts}


def _generations(names: list[str]) -> list[tuple[int, NDArray[np.int64], NDArray[np.int32]]]:
    """Returns of each topic that was made again the number that the kernel finds, where entries begin, and theirs."""
    found = []
    for topic in sorted({record_topic(name) for name in names if is_numbered(name)}):
        numbers = [number for number, name in enumerate(names) if record_topic(name) == topic]
        first = numbers[0]
        numbers.sort(key=lambda number: begin_of(names[number]))
        begins = [begin_of(names[number]) for number in numbers]
        found.append((first, np.array(begins, np.int64), np.array(numbers, np.int32)))
    return found


@kernel
def _fill_topics(slots, mask, data, starts, count):
    for number in range(count):
        start = load_i32(starts + 4 * number)
        length = load_i32(starts + 4 * number + 4) - start
        slot = java_hash(0, data + start, length) & mask
        while load_i64(slots + 8 * slot) >= 0:
            slot = (slot + 1) & mask
        store_i64(slots + 8 * slot, number)


@inlined
def _topic_number(table, address, length):
    slots, mask, data, starts = table
    slot = java_hash(0, address, length) & mask
    while True:
        number = load_i64(slots + 8 * slot)
        if number < 0:
            return int64(-1)
        start = load_i32(starts + 4 * number)
        if load_i32(starts + 4 * number + 4) - start == length and same_bytes(data + start, address, length):
            return number
        slot = (slot + 1) & mask


@inlined
def _is_name(address, length, name):
    """Whether a property piece is the four-byte ``name`` (as loaded), 0x01 and a value."""
    return length >= 6 and load_i32(address) == name and load_u8(address + 4) == 1


@inlined
def _store_span(field, at, length):
    store_i32(field, at)
    store_i32(field + 4, length)


@inlined
def _next_end(at, end):
    """Returns where the next 0x02 is, ``end`` if there is none; eight bytes at a time."""
    while at + 8 <= end:
        eight = uint64(load_i64(at)) ^ uint64(0x0202020202020202)
        zeros = (eight - uint64(0x0101010101010101)) & ~eight & uint64(0x8080808080808080)
        if zeros:
            return at + (trailing_zeros(int64(zeros)) >> 3)
        at += 8
    while at < end and load_u8(at) != 2:
        at += 1
    return at


@called
def _find_properties(address, length, row, origin):
    """Notes where KEYS, TAGS and UNIQ_KEY values lie; the last of equal names wins, as in RocketMQ."""
    start = address
    end = address + length
    while start < end:
        at = _next_end(start, end)
        size = at - start
        if _is_name(start, size, 0x5359454B):  # "KEYS" read little-endian
            _store_span(row + _KEYS_AT, start + 5 - origin, size - 5)
        elif _is_name(start, size, 0x53474154):  # "TAGS"
            _store_span(row + _TAGS_AT, start + 5 - origin, size - 5)
        elif size >= 10 and load_i64(start) == 0x59454B5F51494E55 and load_u8(start + 8) == 1:  # "UNIQ_KEY"
            _store_span(row + _UNIQUE_AT, start + 9 - origin, size - 9)
        start = at + 1


@called
def _lost_sector(address, length, offset):
    """Whether a disk sector that begins inside a text is zero for as far as the text reaches."""
    at = (_SECTOR_BYTES - offset % _SECTOR_BYTES) % _SECTOR_BYTES
    while at < length:
        end = min(at + _SECTOR_BYTES, length)
        zeros = at
        while zeros < end and load_u8(address + zeros) == 0:
            zeros += 1
        if zeros == end:
            return True
        at += _SECTOR_BYTES
    return False


@called
def _is_unfinished(address, length, limit):
    """Whether a text ends in a zero byte and nothing follows: somebody is still writing the record."""
    end = address + length
    return length > 0 and load_u8(end - 1) == 0 and (end + 8 > limit or load_i64(end) == 0)


@struct_kernel(
    "tables log position limit base check_crc check_torn pass_fillers is_summed slots mask topics starts rows max_rows "
    "out"
)
def _scan(job):
    """Scans ``[position, limit)`` of the bytes at ``log``; out: rows, position, stop, sum of the records."""
    (
        tables, log, position, limit, base, check_crc, check_torn, pass_fillers, is_summed, slots, mask, topics, starts,
        rows, max_rows, out,
    ) = load_fields(job, 16)  # fmt: skip
    count = 0
    summed = int64(0)
    stop = 1
    while position < limit:
        if count == max_rows:
            stop = 0
            break
        stop = 3
        # a blank record ends the segment, fillers are passed
        left = limit - position
        if left < 8:
            break
        at = log + position
        size = load_be32(at)
        magic = load_be32(at + 4)
        if magic == _BLANK and size >= 8:
            stop = 2
            break
        if pass_fillers and magic == _FILLER and size >= 91 and size <= left and load_be64(at + 28) == base + position:
            position += size
            stop = 1
            continue
        if (magic != _V1 and magic != _V2) or size < 91 or size > left:
            break
        # the next records are wanted soon
        prefetch(at + 2 * size)
        prefetch(at + 3 * size - 64)  # where records of one size have their properties
        sum_of_it = record_sum(at, size) if is_summed else int64(0)  # before anything of it is verified
        # where the parts lie, and whether their lengths agree
        flags = load_be32(at + 36)
        born_host = 20 if flags & 0x10 else 8
        store_host = 20 if flags & 0x20 else 8
        fixed = 72 + born_host + store_host
        topic_width = 2 if magic == _V2 else 1
        if size < fixed + topic_width + 2 or load_be64(at + 28) != base + position:
            break
        body_length = load_be32(at + fixed - 4)
        if body_length < 0 or body_length > size - fixed - topic_width - 2:
            break
        topic_at = at + fixed + body_length
        topic_length = load_be16(topic_at) if topic_width == 2 else load_u8(topic_at)
        topic_at += topic_width
        if topic_at + topic_length + 2 > at + size:
            break
        properties_at = topic_at + topic_length + 2
        properties_length = load_be16(properties_at - 2)
        if properties_at + properties_length != at + size:
            break
        # checksums, and what a power cut leaves
        if check_crc and body_length > 0 and crc32(tables, at + fixed, body_length) & 0x7FFFFFFF != load_be32(at + 8):
            break
        if check_crc and record_differs(tables, at, size, properties_length):
            break
        if check_torn and _lost_sector(properties_at, properties_length, base + properties_at - log):
            break
        if check_torn and _is_unfinished(properties_at, properties_length, log + limit):
            break
        # the topic; an unknown one ends the scan with its place in the row
        number = _topic_number((slots, mask, topics, starts), topic_at, topic_length)
        row = rows + count * _ROW_BYTES
        _store_span(row + _TOPIC_AT, topic_at - log, topic_length)
        if number < 0:
            stop = 4
            break
        # the row
        store_i64(row + _PHYSICAL, base + position)
        store_i64(row + _QUEUE_OFFSET, load_be64(at + 20))
        store_i64(row + _STORE_MS, load_be64(at + 48 + born_host))
        store_i64(row + _BORN_MS, load_be64(at + 40))
        store_i32(row + _POSITION, position)
        store_i32(row + _SIZE, size)
        store_i32(row + _TOPIC_NUMBER, number)
        store_i32(row + _QUEUE_ID, load_be32(at + 12))
        store_i32(row + _SYS_FLAG, flags)
        store_i32(row + _MAGIC, magic)
        for span in (_KEYS_AT, _UNIQUE_AT, _TAGS_AT):
            _store_span(row + span, 0, 0)
        _find_properties(properties_at, properties_length, row, log)
        tags_length = load_i32(row + _TAGS_AT + 4)
        tags = int64(0)
        if tags_length > 0:
            tags = signed32(java_hash(0, log + load_i32(row + _TAGS_AT), tags_length))
        store_i64(row + _TAG_HASH, tags)
        summed += sum_of_it
        count += 1
        position += size
        stop = 1
    store_i64(out, count)
    store_i64(out + 8, position)
    store_i64(out + 16, stop)
    store_i64(out + 24, summed)


@kernel
def _find_record(log, position, limit, base):
    while position < limit:
        magic = load_be32(log + position + 4)
        if magic in (_V1, _V2) and load_be64(log + position + 28) == base + position:
            return position
        position += 1
    return -1


def find_record(data: ByteArray, position: int, most_bytes: int, base_offset: int) -> int | None:
    """Returns where a record seems to begin: the first of the next ``most_bytes`` places that says that it is its own.

    It may lie inside of a record, whose body may hold anything.
    """
    limit = min(position + most_bytes, len(data) - FIXED_BYTES_V1)
    found = int(_find_record(address_of(data), position, limit, base_offset))
    return None if found < 0 else found


def scan(
    data: ByteArray,
    position: int,
    limit: int,
    base_offset: int,
    topics: TopicTable,
    *,
    check_crc: bool,
    check_torn: bool = False,
    pass_fillers: bool = False,
    is_summed: bool = False,
    max_rows: int = 65_536,
) -> ScanResult:
    """Scans records of ``data[position:limit]``, whose first array byte has physical offset ``base_offset``.

    Stops before the first record that is not whole and valid, at a blank record, after ``max_rows``, or at a topic
    that ``topics`` lacks; :func:`topic_at_stop` then names it.

    No checksum covers property text. ``check_torn`` refuses a record of whose text a power cut has lost a sector:
    what was never written reads as zeros there, and :class:`~tiering.message.batch.MessageBatch` lets no such text in.
    Nor a last record whose text ends in a zero byte, as it does while the process that owns the log copies it there.

    A log holds no fillers; ``pass_fillers`` passes over those of a segment that was put together from the archive.

    ``is_summed`` has the sum of the records taken, of each before it is verified (:mod:`tiering.kernels.record_sums`).
    """
    if not 0 <= position <= limit <= len(data):
        raise ValueError(f"scan range {position}..{limit} outside {len(data)} bytes")
    if (
        position < limit
        and is_sooner_without(_ZEROS_US)
        and not data[position : min(position + _SIZE_BYTES, limit)].any()
    ):
        # where a log ends; the kernel says the same, and need not be loaded for it
        return ScanResult(np.empty(0, SCAN_ROW), position, ScanStop.INVALID)
    rows: ScanRows = np.empty(max(1, min(max_rows, (limit - position) // 91 + 1)), SCAN_ROW)
    out = np.empty(4, np.int64)
    _scan(
        tables=CRC_TABLES, log=data.ctypes.data, position=position, limit=limit, base=base_offset, check_crc=check_crc,
        check_torn=check_torn, pass_fillers=pass_fillers, is_summed=is_summed, **topics.arguments(),
        rows=rows.ctypes.data, max_rows=len(rows), out=out.ctypes.data,
    )  # fmt: skip
    count, end, stop, summed = out.tolist()
    topics.tell_generations(rows[:count])
    if stop == ScanStop.UNKNOWN_TOPIC:
        return ScanResult(rows[: count + 1], end, ScanStop.UNKNOWN_TOPIC)
    return ScanResult(rows[:count], end, ScanStop(stop), summed)


def scan_all(data: ByteArray, limit: int, base_offset: int, topics: TopicTable) -> ScanResult:
    """Scans ``data[:limit]`` from its start with every checksum; the rows of all of it, and where and why it ended."""
    pieces = [scan(data, 0, limit, base_offset, topics, check_crc=True)]
    while pieces[-1].stop is ScanStop.ROWS_FULL:
        pieces.append(scan(data, pieces[-1].position, limit, base_offset, topics, check_crc=True))
    return ScanResult(np.concatenate([piece.rows for piece in pieces]), pieces[-1].position, pieces[-1].stop)


def in_queues(rows: ScanRows) -> NDArray[np.bool_]:
    """Returns which rows have a queue unit.

    All but prepared and rolled-back transactions (``Record.has_queue_unit``).
    """
    transaction = rows["sys_flag"] & TRANSACTION_MASK
    found: NDArray[np.bool_] = (transaction == 0) | (transaction == SysFlag.TRANSACTION_COMMIT)
    return found


def topic_at_stop(data: ByteArray, result: ScanResult) -> str:
    """Returns the topic name at which a scan stopped with ``UNKNOWN_TOPIC`` (its last row holds nothing else)."""
    row = result.rows[-1]
    return bytes(data[row["topic_at"] : row["topic_at"] + row["topic_length"]]).decode("utf-8", "replace")
