"""Files of a log: commit-log segments and consume queues, RocketMQ's, ours and its tiered store's; tails and fences."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tierlog.service.dump.records import MAX_RECORD_BYTES, RECORD_COLUMNS, SHOWN, faults_of, filler_row, record_row
from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, cut, decoding, text_of, window
from tierlog.service.dump.source import MOST_BYTES, Source, read_head
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.format.queue_unit import LAST_EXTENSION, PREFILL_UNIT, UNIT_BYTES, UNIT_DTYPE
from tierlog.tiering.format.record import (
    BLANK,
    BLANK_BYTES,
    FIXED_BYTES_V1,
    MAGIC_BLANK,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    Record,
    decode_record,
)
from tierlog.tiering.format.tail import MAGIC, VERSION, TailHead, decode_tail

_MAGICS = [magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)]
#: Bytes up to the end of the physical offset.
_HEAD_BYTES = 36
#: Old brokers close a segment of the tiered store with a blank record of this length and the largest store time.
_CODA_BYTES = 16
_PIECE_BYTES = 1 << 20
_NAMED = re.compile(r"(?:[0-9a-f]{8})?(\d{20})")
_UNIT_COLUMNS = columns_of("queue_offset kind:text physical_offset size_bytes tag_hash")
_PIECE_UNITS = 4_096


def base_of(name: str) -> int | None:
    """Returns the offset that a segment's name states."""
    match = _NAMED.fullmatch(name)
    return int(match[1]) if match else None


def dump_log(source: Source, options: DumpOptions) -> Dump:
    """Dumps a segment of a broker's or of our log."""
    return _dump(source, options, "commit-log", is_moved=False)


def dump_tiered_log(source: Source, options: DumpOptions) -> Dump:
    """Dumps a segment of a queue's log in RocketMQ's tiered store: offsets count in that log; it may have codas."""
    return _dump(source, options, "tiered-log", is_moved=True)


def _dump(source: Source, options: DumpOptions, kind: str, *, is_moved: bool) -> Dump:
    base = base_of(source.parts[-1])
    if base is None:  # a copy under another name
        head = source.read(0, _HEAD_BYTES)
        base = int.from_bytes(head[28:], "big", signed=True) if head[4:8] in _MAGICS and len(head) == _HEAD_BYTES else 0
    dump = Dump(kind, {"base_offset": base, "bytes": source.size}, "records", RECORD_COLUMNS, SHOWN)
    dump.rows = _Walk(source, options, dump, base, is_moved).rows()
    return dump


class _Walk:
    def __init__(self, source: Source, options: DumpOptions, dump: Dump, base: int, is_moved: bool) -> None:
        self._source = source
        self._options = options
        self._dump = dump
        self._base = base
        self._is_moved = is_moved
        self._place = "ok"

    def rows(self) -> Iterator[Json]:
        """Yields record by record; past damage it goes on at the next record that says it stands where it stands."""
        size, limit = self._source.size, self._options.limit
        position: int | None = 0
        if self._options.start is not None:
            position = max(0, self._options.start - self._base)
            if position and isinstance(self._record(position), str):
                position = self._next_record(position)[0]
        shown = 0
        while position is not None and position < size:
            if shown == limit:
                self._dump.end["stopped_by_limit_at"] = self._base + position
                return
            row = self._row(position)
            if row is None:
                position = self._over_damage(position)
                continue
            yield row
            shown += 1
            if row["kind"] == "blank":
                self._after_blank(position, row["size_bytes"])
                return
            position += row["size_bytes"]
        if position is not None:
            self._dump.end.setdefault("log_end", self._base + size)

    def _row(self, position: int) -> Json | None:
        head = self._source.read(position, position + _HEAD_BYTES)
        if len(head) >= BLANK_BYTES:
            length, magic = BLANK.unpack_from(head)
            if magic == MAGIC_BLANK and length >= BLANK_BYTES:
                return self._blank(position, length)
            if magic == MAGIC_FILLER and len(head) == _HEAD_BYTES <= length <= self._source.size - position:
                return filler_row(position, head)
        found = self._record(position)
        if isinstance(found, str):
            return None
        row = record_row(position, *found, self._options, is_moved=self._is_moved)
        row["place"] = self._place
        for name in faults_of(row):
            self._dump.find(f"record at {self._base + position}: {name} is bad")
            self._dump.end.setdefault("log_end", self._base + position)
            self._dump.end.setdefault("after_log_end", "a record whose checksum is bad")
            self._place = "behind the log's end"
        return row

    def _blank(self, position: int, length: int) -> Json:
        offset = self._base + position
        row: Json = {"position": position, "physical_offset": offset, "size_bytes": length, "place": self._place}
        if self._is_moved and length == _CODA_BYTES:
            largest = self._source.read(position + BLANK_BYTES, position + _CODA_BYTES)
            return {**row, "kind": "coda", "store_ms": int.from_bytes(largest, "big", signed=True)}
        return {**row, "kind": "blank"}

    def _record(self, position: int) -> tuple[Record, bytes] | str:
        """Returns the whole record that stands here, checksums apart, and its bytes; or why there is none."""
        head = self._source.read(position, position + _HEAD_BYTES)
        if len(head) < _HEAD_BYTES or head[4:8] not in _MAGICS:
            return "no record"
        length = int.from_bytes(head[:4], "big", signed=True)
        if not FIXED_BYTES_V1 <= length <= min(self._source.size - position, MAX_RECORD_BYTES):
            return f"a record of {length} bytes does not fit"
        stored = int.from_bytes(head[28:], "big", signed=True)
        if stored != self._base + position:
            return f"a record that says it stands at {stored}"
        raw = self._source.read(position, position + length)
        try:
            return decode_record(raw, verify=False), raw
        except CorruptionError as error:
            return error.message

    def _over_damage(self, position: int) -> int | None:
        """Records what ends the log here; returns where records go on, None if they do not."""
        problem = self._record(position)
        following, nonzero = self._next_record(position)
        self._dump.end.setdefault("log_end", self._base + position)
        if not nonzero:
            self._dump.end.setdefault("after_log_end", f"{self._source.size - position} zero bytes")
            return None
        self._place = "behind the log's end"
        if following is None:
            rest = self._source.size - position
            self._dump.end.setdefault("after_log_end", f"{rest} bytes, {nonzero} of them not zero")
            self._dump.find(f"log ends at {self._base + position}: {problem}, and the {rest} bytes left are not zero")
            return None
        self._dump.end.setdefault("after_log_end", f"records again from {self._base + following}")
        self._dump.find(
            f"log ends at {self._base + position}: {problem}; records stand again from {self._base + following} on"
        )
        return following

    def _next_record(self, position: int) -> tuple[int | None, int]:
        """Finds the next record from ``position`` on; without one, how many bytes up to the end are not zero."""
        nonzero = 0
        for start in range(position, self._source.size, _PIECE_BYTES):
            # a magic may begin in this piece and end in the next
            piece = self._source.array(start, start + _PIECE_BYTES + 3)
            found = int(np.count_nonzero(piece[:_PIECE_BYTES]))
            nonzero += found
            if not found and not piece[_PIECE_BYTES:].any():
                continue
            for at in _places(piece.tobytes()):
                if start + at - 4 >= position and not isinstance(self._record(start + at - 4), str):
                    return start + at - 4, max(nonzero, 1)
        return None, nonzero

    def _after_blank(self, position: int, length: int) -> None:
        left = self._source.size - position
        if length != left:
            self._dump.find(f"blank record at {self._base + position} says {length} bytes are left, but {left} are")
        nonzero = sum(
            int(np.count_nonzero(self._source.array(start, start + _PIECE_BYTES)))
            for start in range(position + BLANK_BYTES, self._source.size, _PIECE_BYTES)
        )
        what = f", {nonzero} of them not zero" if nonzero else ", all zero"
        self._dump.end.setdefault("log_end", self._base + position)
        self._dump.end.setdefault("after_log_end", f"blank record, then {left - BLANK_BYTES} bytes{what}")


def _places(piece: bytes) -> Iterator[int]:
    """Yields where a record's magic stands, ascending."""
    for match in re.finditer(b"|".join(re.escape(magic) for magic in _MAGICS), piece):
        yield match.start()


def dump_queue(source: Source, options: DumpOptions) -> Dump:
    """Dumps a queue file of a broker or of ours."""
    return _dump_units(source, options, "consume-queue")


def dump_tiered_queue(source: Source, options: DumpOptions) -> Dump:
    """Dumps a queue file of RocketMQ's tiered store: offsets are those in the queue's own log."""
    return _dump_units(source, options, "tiered-queue")


def _dump_units(source: Source, options: DumpOptions, kind: str) -> Dump:
    base, odd = divmod(base_of(source.parts[-1]) or 0, UNIT_BYTES)
    units, rest = divmod(source.size, UNIT_BYTES)
    head: Json = {"topic": source.folder(2), "queue_id": source.folder(1)} if kind == "tiered-queue" else {}
    if kind == "consume-queue" and source.folder(2) == "consumequeue":
        head = {"topic": source.folder(1), "queue_id": source.folder()}
    dump = Dump(
        kind, {**head, "first_queue_offset": base, "units": units, "bytes": source.size}, "units", _UNIT_COLUMNS
    )
    if odd or rest:
        dump.find(f"a queue file begins and ends with a unit of {UNIT_BYTES} bytes; this one of {source.size} does not")
    dump.rows = _rows(source, options, dump, base, units)
    return dump


def _rows(source: Source, options: DumpOptions, dump: Dump, base: int, units: int) -> Iterator[Json]:
    start, stop = window(options, base, base + units)
    written = prefilled = bad = 0
    first_unwritten: int | None = None
    for first in range(start - base, stop - base, _PIECE_UNITS):
        end = min(first + _PIECE_UNITS, stop - base)
        piece = source.array(first * UNIT_BYTES, end * UNIT_BYTES).view(UNIT_DTYPE)
        if first_unwritten is not None and not np.any(piece.view(np.uint8)):
            continue
        for at, (offset, size, tag) in enumerate(piece.tolist(), base + first):
            if offset == size == tag == 0:
                first_unwritten = at if first_unwritten is None else first_unwritten
                continue
            if first_unwritten is not None:
                dump.find(f"units {first_unwritten} to {at - 1} were never written, but {at} was")
                first_unwritten = None
            kind = "unit"
            if (offset, size, tag) == (PREFILL_UNIT.physical_offset, PREFILL_UNIT.size, PREFILL_UNIT.tag_hash):
                kind, prefilled = "pre-fill", prefilled + 1
            elif offset < 0 or size <= 0:
                kind, bad = "bad", bad + 1
                dump.find(f"unit {at} has offset {offset} and size {size}")
            elif tag <= LAST_EXTENSION:
                kind = "unit, extended"
            written += kind.startswith("unit")
            yield {"queue_offset": at, "kind": kind, "physical_offset": offset, "size_bytes": size, "tag_hash": tag}
    dump.end.update(written=written, prefilled=prefilled, bad=bad)
    dump.end["never_written_from"] = first_unwritten


def dump_tail(source: Source, options: DumpOptions) -> Dump:
    """Dumps a tail, a piece of a log that was not archived yet, or a fence, with every checksum verified.

    There is a row for each topic that has a record in it.
    """
    dump = Dump("tail", {"bytes": source.size}, "topics", columns_of("topic:text queues"))
    with dump.surviving():
        head = read_head(source, 0, source.size, MAGIC, VERSION)
        with decoding():
            said = TailHead.of_table(head.table, path=source.name)
            dump.head.update(
                store_id=text_of(said.store_id), volume_id=text_of(said.volume_id), epoch=said.epoch,
                nonce=text_of(said.nonce), tail_kind=said.kind.value, first=said.first, end=said.end,
                segment_bytes=said.segment_bytes, raw_bytes=said.payload_bytes,
            )  # fmt: skip
            rows = [{"topic": text_of(name), "queues": int(queues)} for name, queues in said.topics.items()]
        dump.rows = cut(rows, options)
        if source.size > MOST_BYTES:
            raise CorruptionError(f"{source.size} bytes are more than such an object has")
        with decoding():
            decode_tail(source.read(0, source.size), path=source.name)
    return dump
