"""The compiled loops find the slices that a plain walk with the codecs finds, and read nothing outside their data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.hot_stores import STORE_HOST_V6, array, record
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.cold.segment.reader import item_at
from tierlog.tiering.format.filler import make_filler
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import TAGS, encode_properties
from tierlog.tiering.format.queue_unit import UNIT, UNIT_DTYPE
from tierlog.tiering.format.record import Record, RecordVersion, SysFlag, decode_record, encode_record
from tierlog.tiering.kernels.record_slices import RecordSlices, SliceBounds

BASE, QUEUE, FIRST, FROM_MS = 4096, 3, 100, 1_700_000_000_000
TOPIC = array(b"orders")
NAMES = ("", "A", "B", "\u00e4")
MOST = SliceBounds(1000, 1 << 20, 1000, 1 << 20)
#: What a record is like: one of these, or as the others are.
KINDS: list[dict[str, object]] = [
    *({},) * 10, {"topic": "order5"}, {"queue_id": QUEUE + 1}, {"sys_flag": int(SysFlag.TRANSACTION_PREPARED)},
    {"sys_flag": int(SysFlag.TRANSACTION_COMMIT)}, {"version": RecordVersion.V2}, {"store_host": STORE_HOST_V6},
    {"body": b""}, {"body": b"b" * 500}, {"queue_offset": FIRST}, {"store_ms": FROM_MS - 1},
]  # fmt: skip

_RECORDS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.booleans(), st.integers(0, 1)), min_size=1, max_size=8
)
#: Of a record: a byte of its head, its body or its end, and the bits of it that are wrong.
_PLACE = st.one_of(st.integers(0, 90), st.just(90), st.integers(-60, -1))
_DAMAGE = st.lists(st.tuples(st.integers(0, 7), _PLACE, st.sampled_from([1, 2, 4, 0x80])), max_size=2)
_Damage = list[tuple[int, int, int]]
_BOUNDS = st.one_of(
    st.just(MOST),
    st.builds(SliceBounds, st.integers(0, 6), st.integers(0, 700), st.integers(1, 8), st.integers(0, 700)),
)
_HASHES = st.one_of(st.none(), st.frozensets(st.sampled_from([tag_hash(name) for name in NAMES] + [7]), max_size=3))
#: What a field of a unit is instead, and what is added to it.
_ODD = st.one_of(
    st.tuples(st.sampled_from([0, BASE, 1 << 40, -(1 << 63), (1 << 63) - 1]), st.just(0)),
    st.tuples(st.none(), st.sampled_from([1, -1, 100])),
)
_Drawn = list[tuple[dict[str, object], str, bool, int]]


@dataclass
class PlainSlices:
    """What :class:`RecordSlices` promises, with the codecs."""

    most: SliceBounds
    hashes: frozenset[int] | None
    found: list[Record] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    found_bytes: int = 0
    looked_at: int = 0
    read_bytes: int = 0
    is_stopped: bool = False

    @property
    def is_full(self) -> bool:
        most = self.most
        is_over = len(self.found) >= most.records or self.looked_at >= most.looked_at
        return self.is_stopped or is_over or self.read_bytes > most.read_bytes

    def add(self, position: int, found: Record) -> bool:
        if self.found and self.found_bytes + found.size > self.most.bytes:
            self.is_stopped = True
            return False
        self.found.append(found)
        self.found_bytes += found.size
        is_neighbour = bool(self.spans) and self.spans[-1][1] == position
        start = self.spans.pop()[0] if is_neighbour else position
        self.spans.append((start, position + found.size))
        return True

    def of_units(self, units: list[list[int]], log: bytes, begin: int) -> int:
        for number, (offset, size, code) in enumerate(units):
            if self.is_full or offset < max(begin, BASE):
                return number
            try:
                found = decode_record(log, offset - BASE, physical_offset=offset, verify=False)
            except StoreError:
                return number
            place = found.size, found.topic, found.queue_id, found.queue_offset
            if place != (size, "orders", QUEUE, FIRST + number) or not found.has_queue_unit:
                return number
            if self.hashes is not None:
                if tag_hash(found.properties.get(TAGS, "")) != code:
                    return number
                if code not in self.hashes:
                    self.looked_at += 1
                    continue
            try:
                decode_record(log, offset - BASE)
            except StoreError:
                return number
            if not self.add(offset - BASE, found):
                return number
            self.looked_at += 1
            self.read_bytes += size
        return len(units)

    def of_runs(self, data: bytes, runs: list[list[int]], first: int) -> tuple[int, int, int]:
        """Run, position and next offset."""
        next_offset = first
        for number, (position, end, frame_begin, frame_end) in enumerate(runs):
            if not frame_begin <= position <= end <= frame_end <= len(data):
                return number, position, next_offset
            while position < end:
                if self.is_full:
                    return number, position, next_offset
                try:
                    item = item_at(data[:end], position)
                except StoreError:
                    return number, position, next_offset
                is_shown = isinstance(item, Record) and item.store_ms >= FROM_MS
                if isinstance(item, Record) and item.topic != "orders":
                    return number, position, next_offset
                if item.queue_offset >= first:
                    if isinstance(item, Record) and is_shown and self._is_wanted(item) and not self.add(position, item):
                        return number, position, next_offset
                    self.looked_at += 1
                    self.read_bytes += item.size * is_shown
                    next_offset = item.queue_offset + 1
                position += item.size
        return len(runs), runs[-1][1], next_offset

    def _is_wanted(self, item: Record) -> bool:
        return self.hashes is None or tag_hash(item.properties.get(TAGS, "")) in self.hashes


def encoded(drawn: _Drawn) -> list[tuple[int, bytes, str]]:
    """Records with their positions in a log that begins at ``BASE``, others between them, and their tags."""
    found: list[tuple[int, bytes, str]] = []
    position = 0
    for number, (kind, tag, is_summed, gap) in enumerate(drawn):
        position += 200 * gap
        text = encode_properties({"KEYS": "a b", **({TAGS: tag} if tag else {}), "p": "v"})
        fields: dict[str, object] = {"queue_id": QUEUE, "queue_offset": FIRST + number, **kind}
        one = record(physical_offset=BASE + position, properties_text=text, **fields)
        found.append((position, encode_record(one, checksum=is_summed), tag))
        position += len(found[-1][1])
    return found


def damaged(data: bytes, begins: list[int], damage: _Damage) -> bytes:
    """The data with bits of records changed, which begin at some positions."""
    changed = bytearray(data)
    for number, place, bits in damage:
        begin, end = [*begins, len(data)][number % len(begins) :][:2]
        changed[begin + place if place >= 0 else end + place] ^= bits
    return bytes(changed)


@settings(max_examples=300)
@given(
    drawn=_RECORDS, damage=_DAMAGE, most=_BOUNDS, hashes=_HASHES, begin=st.sampled_from([0, BASE, 0, BASE + 300]),
    odd=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), _ODD), max_size=2), cut=st.integers(0, 120),
)  # fmt: skip
def test_units_lead_to_the_slices_of_a_plain_walk(
    drawn: _Drawn, damage: _Damage, most: SliceBounds, hashes: frozenset[int] | None, begin: int,
    odd: list[tuple[int, int, tuple[int | None, int]]], cut: int,
) -> None:  # fmt: skip
    log, units = b"", []
    for position, data, tag in encoded(drawn):
        log = log.ljust(position, b"\0") + data
        units.append([BASE + position, len(data), tag_hash(tag)])
    log = damaged(log, [unit[0] - BASE for unit in units], damage)[: max(len(log) - cut, 1)]
    for number, column, (instead, more) in odd:
        unit = units[number % len(units)]
        value = (unit[column] if instead is None else instead) + more
        most_value = 2**31 - 1 if column == 1 else 2**63 - 1  # of the field
        unit[column] = max(min(value, most_value), -most_value - 1)
    plain, slices = PlainSlices(most, hashes), RecordSlices(most, hashes)
    rows = np.frombuffer(b"".join(UNIT.pack(*unit) for unit in units), UNIT_DTYPE)
    expected = plain.of_units(units, log, begin)
    passed, spans = slices.add_units(rows, array(log), BASE, begin=begin, topic=TOPIC, queue_id=QUEUE, first=FIRST)
    assert (passed, list(spans)) == (expected, plain.spans)
    assert (slices.records, slices.bytes, slices.is_full) == (len(plain.found), plain.found_bytes, plain.is_full)


@settings(max_examples=300)
@given(
    drawn=_RECORDS, damage=_DAMAGE, most=_BOUNDS, hashes=_HASHES, first=st.sampled_from([0, FIRST + 2]),
    removed=st.frozensets(st.integers(0, 7), max_size=2), cuts=st.frozensets(st.integers(1, 7), max_size=2),
    shift=st.sampled_from([0, 0, 0, 1, -1, 1 << 40, -(1 << 40)]),
)  # fmt: skip
def test_frames_hold_the_slices_of_a_plain_walk(
    drawn: _Drawn, damage: _Damage, most: SliceBounds, hashes: frozenset[int] | None, first: int,
    removed: frozenset[int], cuts: frozenset[int], shift: int,
) -> None:  # fmt: skip
    """Runs of frames with another run's records between them."""
    data, runs, begins = b"", list[list[int]](), list[int]()
    for number, (_, found, _) in enumerate(encoded(drawn)):
        if not runs or number in cuts:
            data += b"others"
            runs.append([len(data), len(data), len(data), len(data)])
        begins.append(len(data))
        data += make_filler(found) if number in removed else found
        runs[-1][1] = runs[-1][3] = len(data)
    data = damaged(data, begins, damage)
    plain, slices = PlainSlices(most, hashes), RecordSlices(most, hashes)
    runs[-1][1] += shift  # the run ends outside of its frame, or before its last record does
    expected = plain.of_runs(data, runs, first)
    place, next_offset, spans = slices.add_runs(
        array(data), np.array(runs), 0, runs[0][0], topic=TOPIC, first=first, from_ms=FROM_MS
    )
    assert (*place, next_offset) == expected
    assert list(spans) == plain.spans
    assert (slices.records, slices.bytes, slices.is_full) == (len(plain.found), plain.found_bytes, plain.is_full)


def test_what_was_looked_at_plainly_counts_too() -> None:
    slices = RecordSlices(SliceBounds(3, 250, 10, 1000))
    assert slices.add_plain(300, is_wanted=True, is_read=True)  # one record is more than the answer may have
    assert not slices.add_plain(100, is_wanted=True, is_read=True)
    assert (slices.records, slices.bytes, slices.is_full) == (1, 300, True)
    slices = RecordSlices(SliceBounds(3, 250, 2, 1000))
    assert slices.add_plain(300, is_wanted=False, is_read=False)
    assert not slices.is_full
    assert slices.add_plain(300, is_wanted=False, is_read=True)
    assert (slices.records, slices.is_full) == (0, True)


def test_units_in_another_byte_order_and_runs_of_another_size_are_refused() -> None:
    slices, nothing = RecordSlices(MOST), np.zeros(91, np.uint8)
    with pytest.raises(ValueError, match="bytes of their file"):
        slices.add_units(
            np.zeros(1, UNIT_DTYPE.newbyteorder()), nothing, 0, begin=0, topic=TOPIC, queue_id=QUEUE, first=0
        )
    with pytest.raises(ValueError, match="four numbers"):
        slices.add_runs(nothing, np.zeros((1, 4), np.int32), 0, 0, topic=TOPIC, first=0, from_ms=0)
