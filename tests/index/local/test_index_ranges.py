"""Which ranges of the log the files of an index cover: reopening, gaps, the watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.index.index_logs import Log, T, numbered
from tests.support.index.local_indexes import assert_all_found, derive_all, names, open_index, publish, states
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.paths import StorePaths


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


def test_writing_file_is_derived_again_after_a_stop(paths: StorePaths) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[10]))
    index.seal()
    index.on_records(log.range())
    again = open_index(paths)
    assert names(paths)["writing"] == []
    assert again.next_offset() == log.offsets[10]
    assert again.gaps(0, log.end) == []
    derive_all(again, log, log.end)
    assert_all_found(again, log)


@pytest.mark.parametrize("state", [IndexState.SEALED, IndexState.COMPACTED, IndexState.UPLOADED])
def test_reopening_keeps_every_complete_state(paths: StorePaths, state: IndexState) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    if state is not IndexState.SEALED:
        index.compact_sealed()
    if state is IndexState.UPLOADED:
        publish(index, index.pending()[0])
    again = open_index(paths)
    assert [entry.state for entry in again.files()] == [state]
    assert again.next_offset() == log.end == again.covered_to()
    assert_all_found(again, log)


@pytest.mark.parametrize("state", [IndexState.SEALED, IndexState.COMPACTED, IndexState.UPLOADED])
@pytest.mark.parametrize("damage", ["cut", "magic", "empty", "renamed"])
def test_damaged_file_is_dropped_and_its_range_derived_again(paths: StorePaths, state: IndexState, damage: str) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    if state is not IndexState.SEALED:
        index.compact_sealed()
    if state is IndexState.UPLOADED:
        for entry in index.pending():
            publish(index, entry)
    victim = index.files()[1].path
    raw = victim.read_bytes()
    if damage == "cut":
        victim.write_bytes(raw[:-1])
    elif damage == "magic":
        victim.write_bytes(raw[:-1] + b"?")
    elif damage == "empty":
        victim.write_bytes(b"")
    else:
        victim.rename(victim.with_name("1000"))
    again = open_index(paths)
    assert again.gaps(0, log.end) == [(log.offsets[10], log.offsets[20])]
    assert again.covered_to() == log.offsets[10]
    assert again.pending() == ([] if state is not IndexState.COMPACTED else again.files()[:1])
    derive_all(again, log, log.end)
    assert again.gaps(0, log.end) == []
    assert_all_found(again, log)
    assert len(again.files()) == 3


@pytest.mark.parametrize("complete", [True, False])
def test_latest_complete_state_of_one_begin_time_wins(paths: StorePaths, complete: bool) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    (entry,) = index.files()
    sealed = entry.path.read_bytes()
    index.compact_sealed()
    entry.path.write_bytes(sealed)
    if not complete:
        compacted = index.files()[0].path
        compacted.write_bytes(compacted.read_bytes()[:-5])
    again = open_index(paths)
    state = IndexState.COMPACTED if complete else IndexState.SEALED
    assert [entry.state for entry in again.files()] == [state]
    assert names(paths) == {s.value: [entry.name] if s is state else [] for s in IndexState}
    assert_all_found(again, log)


def test_files_above_the_recovered_end_are_discarded(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    again = open_index(paths)
    again.discard_above(log.offsets[15])
    assert again.next_offset() == log.offsets[10]
    assert len(names(paths)["sealed"]) == 1
    again.on_records(log.range())
    assert_all_found(again, log)


def test_no_file_straddles_the_watermark(paths: StorePaths) -> None:
    log = numbered(30)
    cut = log.offsets[13]
    index = open_index(paths, indexed_to=cut)
    index.on_records(log.range())
    index.seal()
    assert states(index) == [("sealed", 0, cut), ("sealed", cut, log.end)]
    index.compact_sealed()
    assert [entry.state.value for entry in index.files()] == ["uploaded", "compacted"]
    assert [entry.first for entry in index.pending()] == [cut]
    assert_all_found(index, log)


def test_gap_across_the_watermark_is_derived_as_two_files(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    cut = log.offsets[13]
    again = open_index(paths, indexed_to=cut)
    assert again.files() == []
    index = open_index(paths, indexed_to=cut)
    index.on_records(log.range())
    index.seal()
    index.files()[0].path.unlink()
    index.files()[1].path.write_bytes(b"")
    later = Log([("t", "late", T)], base=log.end)
    index.on_records(later.range())
    index.seal()
    again = open_index(paths, indexed_to=cut)
    assert again.gaps(0, log.end) == [(0, log.end)]
    derived = again.derive(0, log.end)
    derived.on_records(log.range())
    assert derived.done
    assert [(entry.first, entry.next) for entry in again.files()] == [
        (0, cut), (cut, log.end), (log.end, later.end),
    ]  # fmt: skip
    assert_all_found(again, log)


def test_watermark_that_rises_to_what_is_covered_loses_nothing(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[10]))
    index.seal()
    index.compact_sealed()
    reached = index.covered_to()
    index.on_records(log.range())
    index.set_indexed_to(reached)
    index.settle()
    assert [entry.state.value for entry in index.files()] == ["uploaded", "writing"]
    assert_all_found(index, log)


def test_watermark_inside_the_current_file_makes_a_gap(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range())
    index.set_indexed_to(log.offsets[10])
    assert index.files() == []
    assert index.gaps(0, log.end) == [(0, log.end)]
    derive_all(index, log, log.end)
    assert_all_found(index, log)
    assert states(index) == [("sealed", 0, log.offsets[10]), ("sealed", log.offsets[10], log.end)]


def test_range_without_items_is_covered_without_a_file(paths: StorePaths) -> None:
    log = Log([("t", "", T + i) for i in range(10)])
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[5]))
    index.on_records(log.range())
    assert index.covered_to() == 0
    assert not index.seal()
    assert index.covered_to() == log.end
    assert index.gaps(0, log.end) == []
    more = Log([("t", "a", T + 100)], base=log.end)
    index.on_records(more.range())
    index.seal()
    index.compact_sealed()
    assert [(entry.first, entry.next) for entry in index.pending()] == [(log.end, more.end)]
    paths.index_json.unlink()
    again = open_index(paths)
    assert again.gaps(0, more.end) == [(0, log.end)]
    derived = again.derive(0, log.end)
    derived.on_records(log.range())
    assert derived.done
    assert again.gaps(0, more.end) == []
    assert again.covered_to() == more.end


def test_end_above_the_last_record_is_seen(paths: StorePaths) -> None:
    log = numbered(3)
    index = open_index(paths)
    index.on_records(log.range(end=log.end + 500))
    assert index.next_offset() == log.end + 500
    index.seal()
    assert index.files()[0].next == log.end + 500


def test_watermark_never_passes_a_file_that_is_not_uploaded(paths: StorePaths) -> None:
    log = numbered(30)
    blank = Log([("t", "", T + 9_000)], base=log.end)
    index = open_index(paths)
    assert index.published_to() == 0
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    index.on_records(blank.range())
    index.seal()
    assert index.covered_to() == blank.end
    assert (index.pending(), index.published_to()) == ([], 0)
    index.compact_sealed()
    assert index.published_to() == 0
    ends = []
    for entry in index.pending():
        publish(index, entry)
        ends.append(index.published_to())
    assert ends == [log.offsets[10], log.offsets[20], blank.end]
    index.set_indexed_to(blank.end)
    more = Log([("t", "a", T)], base=blank.end)
    index.on_records(more.range())
    assert index.published_to() == blank.end
    assert len(index.files()) == 4


def test_watermark_stops_before_a_gap(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    index.compact_sealed()
    index.discard(index.files()[1])
    index.discard(index.files()[0])
    assert index.gaps(0, log.end) == [(0, log.offsets[20])]
    assert (index.pending(), index.published_to()) == ([], 0)
    derive_all(index, log, log.end)
    index.compact_sealed()
    assert len(index.pending()) == 2
    assert_all_found(index, log)


def test_range_that_skips_records_is_refused(paths: StorePaths) -> None:
    log = numbered(5)
    index = open_index(paths)
    with pytest.raises(InvalidRequestError):
        index.on_records(log.range(start=log.offsets[2]))


def test_only_gaps_are_derived(paths: StorePaths) -> None:
    log = numbered(5)
    index = open_index(paths)
    index.on_records(log.range())
    with pytest.raises(InvalidRequestError):
        index.derive(0, log.end)
