"""Records sorted by queue by the kernel are those that a plain walk sorts; of units it says what the codec does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plain_start import WAYS, take
from tests.support.stores.hot_stores import array, record
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE, QueueUnit
from tierlog.tiering.format.record import SysFlag, encode_record
from tierlog.tiering.kernels import queue_units
from tierlog.tiering.kernels.queue_units import UnitComparison, sort_into_queues
from tierlog.tiering.kernels.scan import SCAN_ROW

_RECORD = st.tuples(
    st.integers(0, 2),  # topic number
    st.sampled_from([0, 1, 2, 1023, 65_599, -1]),  # queue id
    st.integers(0, 3),  # how far the queue offset jumps
    st.sampled_from([0, *(int(flag) for flag in SysFlag)]),
    st.integers(-(1 << 63), (1 << 63) - 1),  # tag code
)


@given(records=st.lists(_RECORD, min_size=1, max_size=60), begin=st.integers(0, 600))
def test_units_and_runs_are_those_of_a_plain_walk(records: list[tuple[int, int, int, int, int]], begin: int) -> None:
    rows = np.zeros(len(records), SCAN_ROW)
    offsets: dict[tuple[int, int], int] = {}
    expected: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, (topic, queue, jump, flags, tag) in enumerate(records):
        offset = offsets.get((topic, queue), 5) + max(jump - 1, 0)
        offsets[topic, queue] = offset + 1
        for name, value in {
            "physical_offset": number * 10, "size": 10, "topic_number": topic, "queue_id": queue,
            "queue_offset": offset, "sys_flag": flags, "tag_hash": tag,
        }.items():  # fmt: skip
            rows[number][name] = value
        if number * 10 >= begin and flags & 12 in (0, 8):
            expected.setdefault((topic, queue), []).append((number, offset))
    found = sort_into_queues(rows, begin)
    assert [(run.topic_number, run.queue_id) for run in found.runs] == list(expected)
    data = found.units.tobytes()
    for run, wanted in zip(found.runs, expected.values(), strict=True):
        end = run.start + run.records
        assert found.order[run.start : end].tolist() == [number for number, _ in wanted]
        assert [QueueUnit.decode(data, at * UNIT_BYTES) for at in range(run.start, end)] == [
            QueueUnit(number * 10, 10, records[number][4]) for number, _ in wanted
        ]
        numbers = [offset for _, offset in wanted]
        assert (run.first, run.next) == (numbers[0], numbers[-1] + 1)
        assert bool(run.is_consecutive) == (numbers == list(range(numbers[0], numbers[0] + len(numbers))))


_BASE = 4096
_TEXTS = (b"", b"TAGS\x01TagA\x02", b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01\xd0\x96\x02", b"n\x011")
_TAGS = ("", "TagA", "\u0416", "")


def _queue(places: list[tuple[int, SysFlag]], *, checksum: bool) -> tuple[bytes, list[QueueUnit]]:
    log, units = b"", []
    for number, (text, flag) in enumerate(places):
        data = encode_record(
            record(
                queue_id=3, queue_offset=7 + number, physical_offset=_BASE + len(log), sys_flag=int(flag),
                properties_text=_TEXTS[text], body=b"b" * number,
            ),
            checksum=checksum,
        )  # fmt: skip
        units.append(QueueUnit(_BASE + len(log), len(data), tag_hash(_TAGS[text])))
        log += data
    return log, units


_PLACES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([SysFlag(0), *SysFlag])), min_size=1, max_size=12
)  # fmt: skip
_COMPARED = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(places=_PLACES, compared=_COMPARED)
def test_units_of_their_records_are_so_by_the_kernel_and_by_the_codec(
    places: list[tuple[int, SysFlag]], compared: tuple[bool, bool, bool, bool]
) -> None:
    with_offsets, with_tags, with_sums, checksum = compared
    log, units = _queue(places, checksum=checksum)
    comparison = UnitComparison.of_queue("orders", 3, with_offsets=with_offsets, with_tags=with_tags)
    kept = [record_flag & 12 in (0, 8) for _, record_flag in places]
    rows = np.frombuffer(b"".join(unit.encode() for unit in units), UNIT_DTYPE)
    found = []
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            take(way, patch)
            found.append(comparison.of(rows, 7, array(log), _BASE, with_sums=with_sums).tolist())
    assert found == [kept, kept]
    by_codec = [comparison.is_of_record(unit, 7 + at, array(log), _BASE, with_sums) for at, unit in enumerate(units)]
    assert by_codec == kept


@given(places=_PLACES, compared=_COMPARED, damage=st.data())
def test_the_codec_believes_no_unit_or_record_that_the_kernel_does_not(
    places: list[tuple[int, SysFlag]], compared: tuple[bool, bool, bool, bool], damage: st.DataObject
) -> None:
    with_offsets, with_tags, with_sums, checksum = compared
    log, units = _queue(places, checksum=checksum)
    both = bytearray(log + b"".join(unit.encode() for unit in units))
    for _ in range(damage.draw(st.integers(1, 3))):
        at = damage.draw(st.integers(0, len(both) - 1))
        both[at] = damage.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, both[at] ^ 1]))
    data, rows = array(bytes(both[: len(log)])), np.frombuffer(bytes(both[len(log) :]), UNIT_DTYPE)
    comparison = UnitComparison.of_queue("orders", 3, with_offsets=with_offsets, with_tags=with_tags)
    with pytest.MonkeyPatch.context() as patch:
        take("kernels", patch)
        by_kernel = comparison.of(rows, 7, data, _BASE, with_sums=with_sums).tolist()
        patch.setattr(queue_units, "is_sooner_without", lambda plain_us: True)
        assert comparison.of(rows, 7, data, _BASE, with_sums=with_sums).tolist() == by_kernel
    by_codec = [
        comparison.is_of_record(QueueUnit(*unit), 7 + at, data, _BASE, with_sums)
        for at, unit in enumerate(rows.tolist())
    ]
    assert not any(codec and not kernel for codec, kernel in zip(by_codec, by_kernel, strict=True))
