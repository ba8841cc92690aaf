"""One slot range of a merge: where it is cut, what it holds in memory, and what it says of an input it cannot read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.index.index_merge import memory_assembly
from tests.support.index.merge_inputs import STEP, Inputs, Key
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.maintenance import merge_task
from tierlog.index.maintenance.merge_task import Merge, merge_range
from tierlog.index.objects.reader import Fetch, IndexObjectReader
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.manifest import IndexEntry

HOT: Key = (3, 4711)
PAGE_BYTES = 400
ITEMS_A_PAGE = (PAGE_BYTES - 16) // 32


def run(inputs: Inputs, **changes: object) -> tuple[IndexEntry, ...]:
    return merge_range(inputs.task(**changes), inputs.objects, SeededRandomness(1), memory_assembly()).entries


def hot_files(files: int, hot: int, others: int = 20) -> list[list[Key]]:
    """Files in each of which one key has many items."""
    return [[HOT] * hot + [(number % 10, file) for number in range(others)] for file in range(files)]


def test_a_slot_that_is_too_large_is_cut_by_time() -> None:
    inputs = Inputs(hot_files(6, 400), 10, page_bytes=PAGE_BYTES)
    whole = run(inputs)
    cut = run(inputs, max_part_bytes=whole[0].size_bytes // 3)
    ranges = sorted({(entry.first, entry.next) for entry in cut})
    assert len(ranges) > 1
    assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == STEP * len(inputs.rows)
    assert {entry.begin_ms for entry in cut if entry.first} <= {entry.begin_ms for entry in inputs.entries[1:]}
    assert sorted(inputs.found(cut), key=str) == sorted(inputs.rows, key=str)
    assert inputs.look_up(cut, HOT) == [row.cold for row in inputs.rows if row.place[1:] == HOT]


def test_parts_follow_each_other_and_say_their_slots_in_their_names() -> None:
    inputs = Inputs([[(low, file) for low in range(300)] for file in range(3)], 300, page_bytes=PAGE_BYTES)
    parts = run(inputs, max_part_bytes=6000)
    assert len(parts) > 3
    assert (parts[0].slot_from, parts[-1].slot_end) == (0, 300)
    assert all(left.slot_end == right.slot_from for left, right in pairwise(parts))
    assert all(f"-s{part.slot_from}.{part.slot_end}-" in part.key for part in parts)
    assert all(part.size_bytes <= 6000 for part in parts)
    assert "-s" not in run(inputs)[0].key


@pytest.mark.parametrize("hot", [1, 900], ids=["gathered", "a long run"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_merge_says_of_each_part_whether_times_of_a_key_fall_in_it(
    monkeypatch: pytest.MonkeyPatch, hot: int, is_cut: bool
) -> None:
    monkeypatch.setattr(merge_task, "LEAST_PAGES", 4)
    files = [[HOT] * hot + [(number % 10, file) for number in range(200)] for file in range(3)]
    cuts = {"slot_cuts": (2, 5)} if is_cut else {}
    for begin_ms, falls in ([0, 10_000, 20_000], False), ([10_000, 20_000, 0], True):
        inputs = Inputs(files, 10, page_bytes=PAGE_BYTES, begin_ms=begin_ms, seconds=(3,), **cuts)  # type: ignore[arg-type]
        assert not any(entry.times_fall for entry in inputs.entries)
        assert [run(inputs, slot_from=at, slot_end=at + 1)[0].times_fall for at in range(10)] == [
            falls and at == HOT[0] for at in range(10)
        ]
        (whole,) = run(inputs)
        assert whole.times_fall == falls
        assert sorted(inputs.found([whole]), key=str) == sorted(inputs.rows, key=str)


def test_a_slot_range_without_items_leaves_no_object() -> None:
    inputs = Inputs([[(1, 0)], [(2, 0)]], 10)
    assert run(inputs, slot_from=3, slot_end=10) == ()
    (part,) = run(inputs, slot_from=2, slot_end=10)
    assert (part.slot_from, part.slot_end, part.items) == (2, 10, 1)


def test_what_is_gathered_is_bounded_and_a_long_run_is_never_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_task, "LEAST_PAGES", 4)
    inputs = Inputs(hot_files(3, 900, 200), 10, page_bytes=PAGE_BYTES)
    reads: list[int] = []

    def fetch_of(entry: IndexEntry) -> Fetch:
        def fetch(start: int, end: int) -> bytes:
            reads.append(end - start)
            return inputs.objects.get_range(entry.key, start, end)

        return fetch

    sizes = [len(merged.items) for merged in Merge(inputs.entries, fetch_of, begin_ms=0, slot_from=0, slot_end=10)]
    assert sum(sizes) == len(inputs.rows)
    assert max(sizes) <= (4 + 3) * ITEMS_A_PAGE
    assert sum(reads) <= sum(entry.size_bytes for entry in inputs.entries)  # no page is read twice


def test_the_filter_is_made_anew_with_each_key_once() -> None:
    inputs = Inputs(hot_files(4, 30), 10)
    (entry,) = run(inputs)
    found = IndexObjectReader(
        lambda start, end: inputs.objects.get_range(entry.key, start, end), entry.sections
    ).key_filter()
    assert found is not None
    assert found.keys == len({row.place for row in inputs.rows})
    assert found.bits_per_key >= 24
    (without,) = run(inputs, filter_bits=0)
    assert without.sections["filter"].length == 0


@pytest.mark.parametrize("section", ["pages", "directory"])
def test_damage_has_the_name_of_the_object(section: str) -> None:
    inputs = Inputs(hot_files(3, 50), 10, page_bytes=PAGE_BYTES)
    victim = inputs.entries[1]
    at = victim.sections[section].position + 60
    data, _ = inputs.objects.get(victim.key)
    inputs.objects.put(victim.key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptionError) as raised:
        run(inputs)
    assert raised.value.path == victim.key


def test_an_object_that_is_gone_has_its_name() -> None:
    inputs = Inputs(hot_files(3, 5), 10)
    inputs.objects.delete(inputs.entries[2].key)
    with pytest.raises(ObjectNotFoundError) as raised:
        run(inputs)
    assert raised.value.path == inputs.entries[2].key


def test_begin_times_that_are_no_whole_seconds_apart_are_refused() -> None:
    inputs = Inputs([[(1, 0)], [(2, 0)]], 10, begin_ms=[0, 1500])
    with pytest.raises(CorruptIndexError, match="whole seconds"):
        run(inputs)


def test_nothing_half_made_stays_in_the_folder() -> None:
    inputs = Inputs(hot_files(3, 50), 10, page_bytes=PAGE_BYTES)
    assembly = memory_assembly()
    merge_range(inputs.task(max_part_bytes=3000), inputs.objects, SeededRandomness(1), assembly)
    inputs.objects.delete(inputs.entries[0].key)
    with pytest.raises(ObjectNotFoundError):
        merge_range(inputs.task(), inputs.objects, SeededRandomness(1), assembly)
    assert list(assembly.fs.list_dir(assembly.tmp_dir)) == []
