"""Records sorted by queue by the kernel are those that a plain walk sorts, unit by unit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tiering.format.queue_unit import UNIT_BYTES, QueueUnit
from tierlog.tiering.format.record import SysFlag
from tierlog.tiering.kernels.queue_units import sort_into_queues
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
