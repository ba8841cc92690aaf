"""Finds which records of a queue lie where, so that they are handed on as they are: in the log, or in frames.

``tiering.format.record.decode_record`` is the oracle of what a record is, checksums and all, and
``tiering.format.filler.decode_filler`` of what is none. Whatever is odd is left to those: they say what it is. Records
that are neighbours make one slice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER, NO_QUEUE_UNIT
from tierlog.tiering.kernels.checksum import CRC_TABLES, crc32, record_differs
from tierlog.tiering.kernels.decode import is_filler
from tierlog.tiering.kernels.mapped_log import record_spans
from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
    int64,
    load_be32,
    load_be64,
    load_i64,
    prefetch,
    same_bytes,
    store_i64,
)
from tierlog.tiering.kernels.queue_units import record_tag_hash
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

_RUN_BYTES = 32
_UNITS_AHEAD = 4
_BYTES_AHEAD = 2048

#: What is counted for a whole answer, what one call tells, and what bounds the answer: int64 each, in this order.
#: Behind them lie ``hash_count`` hashes of tags, and then the slices of one call: begin and end of each.
_FIELDS = (
    "records", "bytes", "looked_at", "read_bytes", "is_full", "slices", "next_offset", "run", "position",
    "most_records", "most_bytes", "most_looked_at", "most_read_bytes", "hash_count",
)  # fmt: skip
_FIELD_BYTES = 112
assert len(_FIELDS) == _FIELD_BYTES // 8
_RECORDS, _BYTES, _LOOKED_AT, _READ, _IS_FULL, _SLICES, _NEXT, _RUN, _POSITION = range(0, 72, 8)
_MOST_RECORDS, _MOST_BYTES, _MOST_LOOKED_AT, _MOST_READ, _HASH_COUNT = range(72, _FIELD_BYTES, 8)
_EVERY_TAG = -1
_NOTHING = (0,) * 9


@called
def _add(answer, number, value):
    store_i64(answer + number, load_i64(answer + number) + value)


@called
def _is_over(answer):
    """Whether nothing more is to be looked at, and says so if it is."""
    if (
        load_i64(answer + _RECORDS) >= load_i64(answer + _MOST_RECORDS)
        or load_i64(answer + _LOOKED_AT) >= load_i64(answer + _MOST_LOOKED_AT)
        or load_i64(answer + _READ) > load_i64(answer + _MOST_READ)
    ):
        store_i64(answer + _IS_FULL, 1)
        return True
    return False


@called
def _is_wanted(answer, tag_hash):
    for number in range(load_i64(answer + _HASH_COUNT)):
        if load_i64(answer + _FIELD_BYTES + 8 * number) == tag_hash:
            break
    else:
        return False
    return True


@called
def _put(answer, start, size):
    """Adds the record at ``start`` to the slices; False if the answer has no room for it."""
    records = load_i64(answer + _RECORDS)
    if records > 0 and load_i64(answer + _BYTES) + size > load_i64(answer + _MOST_BYTES):
        store_i64(answer + _IS_FULL, 1)
        return False
    _add(answer, _RECORDS, 1)
    _add(answer, _BYTES, size)
    found = load_i64(answer + _SLICES)
    last = answer + _FIELD_BYTES + 8 * max(load_i64(answer + _HASH_COUNT), 0) + 16 * (found - 1)
    if found > 0 and load_i64(last + 8) == start:
        store_i64(last + 8, start + size)
    else:
        store_i64(last + 16, start)
        store_i64(last + 24, start + size)
        store_i64(answer + _SLICES, found + 1)
    return True


@called
def _differs(tables, at, spans):
    """Whether a checksum of a record differs, whose spans are those of :func:`record_spans`."""
    size, body, body_length, _topic, _topic_length, _properties, properties_length = spans
    if body_length > 0 and crc32(tables, body, body_length) & 0x7FFFFFFF != load_be32(at + 8):
        return True
    return record_differs(tables, at, size, properties_length)


@struct_kernel("tables units count log base limit begin topic topic_length queue_id first answer")
def _slice_units(job):
    """Goes through units of a queue, in one segment of the log, until one is odd; returns how many were passed."""
    (
        tables, units, count, log, base, limit, begin, topic, topic_length, queue_id, first, answer,
    ) = load_fields(job, 12)  # fmt: skip
    is_filtered = load_i64(answer + _HASH_COUNT) >= 0
    store_i64(answer + _SLICES, 0)
    for i in range(count):
        if _is_over(answer):
            return i
        # have a later record in the cache by then, or its beginning if it is large: the rest follows
        if i + _UNITS_AHEAD < count:
            unit = units + UNIT_BYTES * (i + _UNITS_AHEAD)
            ahead = log + load_be64(unit) - base
            for line in range(0, min(load_be32(unit + 8), _BYTES_AHEAD), 64):
                prefetch(ahead + line)
        # whether the unit leads to a record of this segment, and of the queue
        unit = units + UNIT_BYTES * i
        physical_offset = load_be64(unit)
        if physical_offset < begin or physical_offset - base > limit - FIXED_BYTES_V1:
            return i
        at = log + physical_offset - base
        spans = record_spans(at, limit - (physical_offset - base), physical_offset)
        size, _body, _body_length, name, name_length, properties, properties_length = spans
        if size == 0 or size != load_be32(unit + 8):
            return i
        if load_be32(at + 12) != queue_id or (first >= 0 and load_be64(at + 20) != first + i):
            return i
        if name_length != topic_length or not same_bytes(name, topic, topic_length):
            return i
        if load_be32(at + 36) & NO_QUEUE_UNIT:
            return i
        # whether it is wanted
        if is_filtered:
            tag_hash = load_be64(unit + 12)
            if record_tag_hash(properties, properties_length) != tag_hash:
                return i
            if not _is_wanted(answer, tag_hash):
                _add(answer, _LOOKED_AT, 1)
                continue
        if _differs(tables, at, spans):
            return i
        if not _put(answer, physical_offset - base, size):
            return i
        _add(answer, _LOOKED_AT, 1)
        _add(answer, _READ, size)
    return count


@struct_kernel("tables data length runs count run position topic topic_length first from_ms answer")
def _slice_runs(job):
    """Goes through runs of frames, from a position in one of them on, until something is odd.

    A run is (begin, end, begin of its frame, end of its frame) in ``data``, and no record is followed outside of it.
    Records below the offset ``first`` do not count, and those stored before ``from_ms`` are as fillers are.
    """
    (
        tables, data, length, runs, count, run, position, topic, topic_length, first, from_ms, answer,
    ) = load_fields(job, 12)  # fmt: skip
    is_filtered = load_i64(answer + _HASH_COUNT) >= 0
    store_i64(answer + _SLICES, 0)
    store_i64(answer + _NEXT, first)
    is_odd = False
    while run < count and not is_odd:
        place = runs + _RUN_BYTES * run
        end = load_i64(place + 8)
        if not 0 <= load_i64(place + 16) <= position <= end <= load_i64(place + 24) <= length:
            break
        while position < end:
            if _is_over(answer) or end - position < FIXED_BYTES_V1:
                is_odd = True
                break
            at = data + position
            size = load_be32(at)
            if size < FIXED_BYTES_V1 or size > end - position:
                is_odd = True
                break
            queue_offset = load_be64(at + 20)
            is_shown = load_be32(at + 4) != MAGIC_FILLER
            is_found = is_shown
            if is_shown:
                spans = record_spans(at, size, load_be64(at + 28))
                _size, _body, _body_length, name, name_length, properties, properties_length = spans
                is_odd = (
                    spans[0] == 0
                    or name_length != topic_length
                    or not same_bytes(name, topic, topic_length)
                    or _differs(tables, at, spans)
                )
                if is_odd:
                    break
                born_host = 20 if load_be32(at + 36) & 0x10 else 8
                is_shown = load_be64(at + 48 + born_host) >= from_ms
                is_found = is_shown and (
                    not is_filtered or _is_wanted(answer, record_tag_hash(properties, properties_length))
                )
            elif not is_filler(at, size):
                is_odd = True
                break
            if queue_offset >= first:
                if is_found and not _put(answer, position, size):
                    is_odd = True
                    break
                _add(answer, _LOOKED_AT, 1)
                if is_shown:
                    _add(answer, _READ, size)
                store_i64(answer + _NEXT, queue_offset + 1)
            position += size
        if not is_odd:
            run += 1
            if run < count:
                position = load_i64(runs + _RUN_BYTES * run)
    store_i64(answer + _RUN, run)
    store_i64(answer + _POSITION, position)


@struct_kernel("tables data position end hashes hash_count out")
def _tagged(job):
    """Notes where items begin whose tag has one of these hashes, and every filler, until one is odd; counts them.

    Behind them it notes where it stopped.
    """
    tables, data, position, end, hashes, hash_count, out = load_fields(job, 7)
    found = int64(0)
    while end - position >= FIXED_BYTES_V1:
        at = data + position
        size = load_be32(at)
        if size < FIXED_BYTES_V1 or size > end - position:
            break
        is_found = load_be32(at + 4) == MAGIC_FILLER
        if not is_found:
            spans = record_spans(at, size, load_be64(at + 28))
            _size, _body, _body_length, _topic, _topic_length, properties, properties_length = spans
            if spans[0] == 0 or _differs(tables, at, spans):
                break
            tag_hash = record_tag_hash(properties, properties_length)
            for number in range(hash_count):
                if load_i64(hashes + 8 * number) == tag_hash:
                    is_found = True
                    break
        if is_found:
            store_i64(out + 8 * found, position)
            found += 1
        position += size
    store_i64(out + 8 * found, position)
    return found


def tagged_places(data: bytes, position: int, end: int, hashes: Collection[int]) -> tuple[list[int], int]:
    """Returns where records with a tag of these hashes begin in ``[position, end)``, and fillers, of whatever tag.

    And where it stopped: at ``end``, or at what is no sound record, which is for the decoder to say. Two tags may have
    one hash. Nothing is read outside ``data``.
    """
    if not 0 <= position <= end <= len(data):
        raise ValueError("the range is not in the data")
    wanted = np.fromiter(hashes, np.int64, len(hashes))
    out = np.empty((end - position) // FIXED_BYTES_V1 + 1, np.int64)
    found = _tagged(
        tables=CRC_TABLES, data=address_of(data), position=position, end=end, hashes=wanted.ctypes.data,
        hash_count=len(wanted), out=out.ctypes.data,
    )  # fmt: skip
    return out[:found].tolist(), int(out[found])


#: Where slices begin and end.
Spans = Iterator[tuple[int, int]]


class SliceBounds(NamedTuple):
    """What an answer holds at most: records, bytes unless it is one record alone; and what is looked at for it."""

    records: int
    bytes: int
    looked_at: int
    read_bytes: int


class RecordSlices:
    """Counts the records of one answer as they are found; for one thread."""

    def __init__(self, most: SliceBounds, tag_hashes: Collection[int] | None = None) -> None:
        """``tag_hashes``: a record whose tag has another is looked at, and not in the answer."""
        hashes = sorted(tag_hashes or ())
        self._first_slice = len(_FIELDS) + len(hashes)
        self._answer = np.empty(self._first_slice + 2 * min(most.records, most.looked_at), np.int64)
        hash_count = _EVERY_TAG if tag_hashes is None else len(hashes)
        self._answer[: self._first_slice] = (*_NOTHING, *most, hash_count, *hashes)
        self._at = address_of(self._answer)
        self._most = most

    @property
    def records(self) -> int:
        """Records so far."""
        return int(self._answer[0])

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return int(self._answer[1])

    @property
    def is_full(self) -> bool:
        """Whether the next record is not to be looked at."""
        records, _, looked_at, read_bytes, is_full = self._answer[:5].tolist()
        most = self._most
        return bool(is_full or records >= most.records or looked_at >= most.looked_at or read_bytes > most.read_bytes)

    def add_units(
        self, units: NDArray[np.void], log: ByteArray, base: int, *, begin: int, topic: ByteArray, queue_id: int,
        first: int,
    ) -> tuple[int, Spans]:  # fmt: skip
        """Goes through units of a queue, of which the first has the offset ``first``, -1 if that is not compared.

        Stops at a unit that does not lead to its record, or to a damaged one, or below the physical offset ``begin``,
        or out of ``log``, the segment at ``base``; and if the answer is full. Returns how many were passed, and where
        in the segment what is to be added begins and ends.
        """
        if units.dtype != UNIT_DTYPE or not units.flags.c_contiguous:
            raise ValueError("units are to lie one behind the other, with the bytes of their file")
        passed = _slice_units(
            units=address_of(units), count=len(units), log=address_of(log), base=base, limit=len(log),
            begin=max(begin, base), topic=address_of(topic), topic_length=len(topic), queue_id=queue_id, first=first,
            tables=CRC_TABLES, answer=self._at,
        )  # fmt: skip
        return int(passed), self._found()

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, *, topic: ByteArray, first: int,
        from_ms: int,
    ) -> tuple[tuple[int, int], int, Spans]:  # fmt: skip
        """Goes through ``runs`` of frames in ``data`` from ``position`` in the run of this number on.

        Stops at what is no record and no filler, at a damaged record, at a run that lies outside its frame, and if the
        answer is full. Records below the queue offset ``first`` are passed over; those stored before ``from_ms`` are as
        fillers are. Returns run and position where it stopped, the queue offset behind what was looked at, and where in
        ``data`` what is to be added begins and ends.
        """
        if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != 4 or not runs.flags.c_contiguous or run < 0:
            raise ValueError("a run is four numbers of 8 bytes")
        _slice_runs(
            data=address_of(data), length=len(data), runs=address_of(runs), count=len(runs), run=run,
            position=position, topic=address_of(topic), topic_length=len(topic), first=first, from_ms=from_ms,
            tables=CRC_TABLES, answer=self._at,
        )  # fmt: skip
        next_offset, run, position = self._answer[6:9].tolist()
        return (run, position), next_offset, self._found()

    def add_plain(self, size: int, *, is_wanted: bool, is_read: bool) -> bool:
        """Counts a record that was looked at without this; False if it is wanted and there is no room for it."""
        records, found_bytes, looked_at, read_bytes = self._answer[:4].tolist()
        if is_wanted and records and found_bytes + size > self._most.bytes:
            self._answer[4] = 1
            return False
        self._answer[:4] = (
            records + is_wanted, found_bytes + size * is_wanted, looked_at + 1, read_bytes + size * is_read,
        )  # fmt: skip
        return True

    def _found(self) -> Spans:
        end = self._first_slice + 2 * int(self._answer[5])
        found: list[int] = self._answer[self._first_slice : end].tolist()  # a list a slice would wake the collector
        return zip(found[::2], found[1::2], strict=True)
