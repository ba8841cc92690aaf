"""Finds which records of a queue lie where, so that they are handed on as they are: in the log, or in frames.

``tiering.format.record.decode_record`` is the oracle of what a record is, checksums and all, and
``tiering.format.filler.decode_filler`` of what is none. Whatever is odd is left to those: they say what it is. Records
that are neighbours make one slice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER, TRANSACTION_MASK, SysFlag
from tierlog.tiering.kernels.checksum import CRC_TABLES, crc32, record_differs
from tierlog.tiering.kernels.decode import is_filler
from tierlog.tiering.kernels.mapped_log import record_spans
from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
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
_UNITS_AHEAD = 8
_COMMITTED = int(SysFlag.TRANSACTION_COMMIT)

#: What is counted for a whole answer, then what one call tells: int64 each.
_PROGRESS = ("records", "bytes", "looked_at", "read_bytes", "is_full", "slices", "next_offset", "run", "position")
_RECORDS, _BYTES, _LOOKED_AT, _READ, _IS_FULL, _SLICES, _NEXT, _RUN, _POSITION = range(0, 8 * len(_PROGRESS), 8)
#: What bounds an answer: int64 each. ``hashes`` is an address, ``hash_count`` -1 where no tag rules anything out.
_BOUNDS = ("records", "bytes", "looked_at", "read_bytes", "hashes", "hash_count")
_HASHES, _HASH_COUNT = 32, 40


@called
def _add(progress, number, value):
    store_i64(progress + number, load_i64(progress + number) + value)


@called
def _is_over(bounds, progress):
    """Whether nothing more is to be looked at, and says so if it is."""
    if (
        load_i64(progress + _RECORDS) >= load_i64(bounds + _RECORDS)
        or load_i64(progress + _LOOKED_AT) >= load_i64(bounds + _LOOKED_AT)
        or load_i64(progress + _READ) > load_i64(bounds + _READ)
    ):
        store_i64(progress + _IS_FULL, 1)
        return True
    return False


@called
def _is_wanted(bounds, tag_hash):
    hashes = load_i64(bounds + _HASHES)
    for number in range(load_i64(bounds + _HASH_COUNT)):
        if load_i64(hashes + 8 * number) == tag_hash:
            break
    else:
        return False
    return True


@called
def _put(bounds, progress, slices, start, size):
    """Adds the record at ``start`` to the slices; False if the answer has no room for it."""
    records = load_i64(progress + _RECORDS)
    if records > 0 and load_i64(progress + _BYTES) + size > load_i64(bounds + _BYTES):
        store_i64(progress + _IS_FULL, 1)
        return False
    _add(progress, _RECORDS, 1)
    _add(progress, _BYTES, size)
    found = load_i64(progress + _SLICES)
    last = slices + 16 * (found - 1)
    if found > 0 and load_i64(last + 8) == start:
        store_i64(last + 8, start + size)
    else:
        store_i64(last + 16, start)
        store_i64(last + 24, start + size)
        store_i64(progress + _SLICES, found + 1)
    return True


@called
def _differs(tables, at, spans):
    """Whether a checksum of a record differs, whose spans are those of :func:`record_spans`."""
    size, body, body_length, _topic, _topic_length, _properties, properties_length = spans
    if body_length > 0 and crc32(tables, body, body_length) & 0x7FFFFFFF != load_be32(at + 8):
        return True
    return record_differs(tables, at, size, properties_length)


@struct_kernel("tables units count log base limit begin topic topic_length queue_id first bounds progress slices")
def _slice_units(job):
    """Goes through units of a queue, in one segment of the log, until one is odd; returns how many were passed."""
    (
        tables, units, count, log, base, limit, begin, topic, topic_length, queue_id, first, bounds, progress, slices,
    ) = load_fields(job, 14)  # fmt: skip
    is_filtered = load_i64(bounds + _HASH_COUNT) >= 0
    store_i64(progress + _SLICES, 0)
    for i in range(count):
        if _is_over(bounds, progress):
            return i
        # have a later record's ends in the cache by then
        if i + _UNITS_AHEAD < count:
            unit = units + UNIT_BYTES * (i + _UNITS_AHEAD)
            ahead = log + load_be64(unit) - base
            prefetch(ahead)
            prefetch(ahead + 64)
            prefetch(ahead + load_be32(unit + 8) - 64)
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
        transaction = load_be32(at + 36) & TRANSACTION_MASK
        if transaction != 0 and transaction != _COMMITTED:
            return i
        # whether it is wanted
        if is_filtered:
            tag_hash = load_be64(unit + 12)
            if record_tag_hash(properties, properties_length) != tag_hash:
                return i
            if not _is_wanted(bounds, tag_hash):
                _add(progress, _LOOKED_AT, 1)
                continue
        if _differs(tables, at, spans):
            return i
        if not _put(bounds, progress, slices, physical_offset - base, size):
            return i
        _add(progress, _LOOKED_AT, 1)
        _add(progress, _READ, size)
    return count


@struct_kernel("tables data length runs count run position topic topic_length first from_ms bounds progress slices")
def _slice_runs(job):
    """Goes through runs of frames, from a position in one of them on, until something is odd.

    A run is (begin, end, begin of its frame, end of its frame) in ``data``, and no record is followed outside of it.
    Records below the offset ``first`` do not count, and those stored before ``from_ms`` are as fillers are.
    """
    (
        tables, data, length, runs, count, run, position, topic, topic_length, first, from_ms, bounds, progress, slices,
    ) = load_fields(job, 14)  # fmt: skip
    is_filtered = load_i64(bounds + _HASH_COUNT) >= 0
    store_i64(progress + _SLICES, 0)
    store_i64(progress + _NEXT, first)
    is_odd = False
    while run < count and not is_odd:
        place = runs + _RUN_BYTES * run
        end = load_i64(place + 8)
        if not 0 <= load_i64(place + 16) <= position <= end <= load_i64(place + 24) <= length:
            break
        while position < end:
            if _is_over(bounds, progress) or end - position < FIXED_BYTES_V1:
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
                    not is_filtered or _is_wanted(bounds, record_tag_hash(properties, properties_length))
                )
            elif not is_filler(at, size):
                is_odd = True
                break
            if queue_offset >= first:
                if is_found and not _put(bounds, progress, slices, position, size):
                    is_odd = True
                    break
                _add(progress, _LOOKED_AT, 1)
                if is_shown:
                    _add(progress, _READ, size)
                store_i64(progress + _NEXT, queue_offset + 1)
            position += size
        if not is_odd:
            run += 1
            if run < count:
                position = load_i64(runs + _RUN_BYTES * run)
    store_i64(progress + _RUN, run)
    store_i64(progress + _POSITION, position)


class SliceBounds(NamedTuple):
    """What an answer holds at most: records, bytes unless it is one record alone; and what is looked at for it."""

    records: int
    bytes: int
    looked_at: int
    read_bytes: int


class RecordSlices:
    """Counts the records of one answer as they are found; for one thread."""

    def __init__(self, bounds: SliceBounds, tag_hashes: Collection[int] | None = None) -> None:
        """``tag_hashes``: a record whose tag has another is looked at, and not in the answer."""
        self._hashes = np.array(sorted(tag_hashes or ()), np.int64)
        self._progress = np.zeros(len(_PROGRESS), np.int64)
        hash_count = -1 if tag_hashes is None else len(self._hashes)
        self._bounds = np.array([*bounds, self._hashes.ctypes.data, hash_count], np.int64)
        self._most = bounds
        self._room = np.empty((min(bounds.records, bounds.looked_at), 2), np.int64)
        self._fixed = {
            "bounds": address_of(self._bounds), "progress": address_of(self._progress),
            "slices": self._room.ctypes.data, "tables": CRC_TABLES,
        }  # fmt: skip

    @property
    def records(self) -> int:
        """Records so far."""
        return int(self._progress[0])

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return int(self._progress[1])

    @property
    def is_full(self) -> bool:
        """Whether the next record is not to be looked at."""
        records, _, looked_at, read_bytes, is_full = self._progress[:5].tolist()
        most = self._most
        return bool(is_full or records >= most.records or looked_at >= most.looked_at or read_bytes > most.read_bytes)

    def add_units(
        self, units: NDArray[np.void], log: ByteArray, base: int, *, begin: int, topic: ByteArray, queue_id: int,
        first: int,
    ) -> tuple[int, list[list[int]]]:  # fmt: skip
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
            **self._fixed,
        )  # fmt: skip
        return int(passed), self._found()

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, *, topic: ByteArray, first: int,
        from_ms: int,
    ) -> tuple[tuple[int, int], int, list[list[int]]]:  # fmt: skip
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
            **self._fixed,
        )  # fmt: skip
        next_offset, run, position = self._progress[6:].tolist()
        return (run, position), next_offset, self._found()

    def add_plain(self, size: int, *, is_wanted: bool, is_read: bool) -> bool:
        """Counts a record that was looked at without this; False if it is wanted and there is no room for it."""
        records, found_bytes, looked_at, read_bytes = self._progress[:4].tolist()
        if is_wanted and records and found_bytes + size > self._most.bytes:
            self._progress[4] = 1
            return False
        self._progress[:4] = (
            records + is_wanted, found_bytes + size * is_wanted, looked_at + 1, read_bytes + size * is_read,
        )  # fmt: skip
        return True

    def _found(self) -> list[list[int]]:
        found: list[list[int]] = self._room[: int(self._progress[5])].tolist()
        return found
