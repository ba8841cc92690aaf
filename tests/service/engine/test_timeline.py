"""The store at a glance: every file is in a block, and however large the archive, a view is cheap and small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.service.page_world import END_MS, page_world
from tests.support.stores.big_archive import SEGMENT, BigArchive
from tierlog.service.engine.timeline import Block, TimelineView, cold_blocks
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.types import Tier, TimeAxis, TimeRange
from tierlog.tiering.message.batch import Message

_COUNT = 1_000


@pytest.fixture(scope="module")
def archive() -> BigArchive:
    return BigArchive(_COUNT)


def _row(blocks: list[Block], kind: str) -> list[Block]:
    return [block for block in blocks if block.kind == kind]


def _seamless(blocks: list[Block], first: int, end: int) -> bool:
    ends = [block.next_offset for block in blocks]
    return [block.first_offset for block in blocks] == [first, *ends[:-1]] and ends[-1] == end


def test_a_view_of_a_large_archive_has_as_many_blocks_as_asked_for_and_leaves_no_hole(archive: BigArchive) -> None:
    for most in (1, 7, 400):
        blocks = cold_blocks(archive.manifest, archive.head, TimelineView(blocks=most))
        for kind in ("segment", "index"):
            row = _row(blocks, kind)
            assert _seamless(row, 0, _COUNT * SEGMENT)
            assert len(row) <= 2 * most + 1
    assert all(block.tier is Tier.COLD for block in blocks)


def test_a_wide_view_reads_few_pages_and_a_narrow_one_shows_each_object(
    archive: BigArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.service.engine.timeline.MAX_PAGES", 2)
    fresh = archive.fresh()
    head = fresh.refresh()
    wide: list[Block] = []
    cost = archive.ask(lambda: wide.extend(cold_blocks(fresh, head, TimelineView())))
    assert cost.requests <= 2 * 2
    assert sum(block.count for block in _row(wide, "segment")) == _COUNT
    assert len(_row(wide, "segment")) < _COUNT / 2
    assert archive.ask(lambda: cold_blocks(fresh, head, TimelineView())).requests == 0
    fresh = archive.fresh()
    narrow = TimelineView(first_offset=700 * SEGMENT + 1, next_offset=750 * SEGMENT)
    found: list[Block] = []
    cost = archive.ask(lambda: found.extend(cold_blocks(fresh, head, narrow)))
    assert cost.requests <= 8
    segments = _row(found, "segment")
    assert [block.count for block in segments] == [1] * 50
    assert all(block.name and block.bytes and block.records for block in segments)
    times = TimeRange(segments[10].min_store_ms or 0, (segments[19].max_store_ms or 0) + 1)
    by_time = _row(cold_blocks(fresh, head, TimelineView(times=times)), "segment")
    assert by_time == segments[10:20]


def test_local_and_archived_files_are_told_with_their_states(tmp_path: Path) -> None:
    with page_world(tmp_path) as world:
        view = TimelineView()
        assert world.engine.timeline(view).from_ms is None
        world.load(1_200, 3_600_000)
        world.archive(drop_hot=True)
        world.load(900, 3_600_000)
        world.archive()
        world.load(600, 3_600_000)
        told = world.engine.timeline(view)
        assert told.cold is not None
        hot = _row(told.hot, "segment")
        assert _seamless(hot, told.log_begin, told.log_end)
        order = ["archived", "rolled", "active"]
        assert [block.state for block in hot] == sorted((block.state for block in hot), key=order.index)
        assert {block.state for block in hot} == set(order)
        assert _seamless(_row(told.cold, "segment"), 0, told.archived_to or 0)
        files = world.engine.files()
        assert len(told.hot) + len(told.cold) == len(files)
        assert (told.from_ms, told.to_ms) == (
            min(file.min_store_ms for file in files if file.min_store_ms is not None),
            max(file.max_store_ms for file in files if file.max_store_ms is not None),
        )
        again = world.engine.timeline(TimelineView(known_version=told.manifest_version))
        assert again.cold is None
        assert again.hot == told.hot


def test_an_archive_that_cannot_be_listed_is_said_and_what_is_hot_is_told(tmp_path: Path) -> None:
    with page_world(tmp_path, **{"cold.max_inline_entries": 2, "cold.page_entries": 2, "cold.cache_bytes": 0}) as world:
        world.load(2_000, 3_600_000)
        world.archive(everything=True)
        world.load(100, 60_000)
        world.objects.fail_before("get_range", times=None)
        told = world.engine.timeline(TimelineView())
        assert told.cold_error is not None
        assert told.hot
        world.objects.heal()
        world.objects.fail_before("get_range", times=None, error=CorruptionError("flipped"))
        assert world.engine.timeline(TimelineView()).cold_error == "flipped"


def test_by_born_time_what_is_archived_is_told_where_it_was_born_and_hot_segments_say_that_it_is_not_known(
    tmp_path: Path,
) -> None:
    with page_world(tmp_path) as world:
        view = TimelineView(axis=TimeAxis.BORN)
        assert (world.engine.timeline(view).from_ms, world.engine.timeline(view).to_ms) == (None, None)
        year_ms = 365 * 86_400_000
        born = range(END_MS - year_ms, END_MS - year_ms + 2_000 * 60_000, 60_000)
        for first in range(0, 2_000, 200):
            world.clock.advance(60_000)
            some = born[first : first + 200]
            world.engine.append([Message("old", b"x" * 300, [f"k{ms}"], born_ms=ms) for ms in some])
        world.settle()
        hot = _row(world.engine.timeline(view).hot, "segment")
        assert len(hot) > 2
        assert {(block.min_born_ms, block.max_born_ms) for block in hot} == {(None, None)}
        world.archive(everything=True, drop_hot=True)
        told = world.engine.timeline(view)
        assert (told.time, told.border_ms) == (TimeAxis.BORN, None)
        assert (told.from_ms, told.to_ms) == (born[0], born[-1])
        segments = _row(told.cold or [], "segment")
        bounds = [(block.min_born_ms, block.max_born_ms) for block in segments]
        assert bounds[0][0] == born[0]
        assert bounds[-1][1] == born[-1]
        assert bounds == sorted(bounds, key=str)
        one = bounds[1]
        assert one[0] is not None
        assert one[1] is not None
        narrow = TimelineView(TimeRange(one[0], one[1] + 1), axis=TimeAxis.BORN)
        assert _row(world.engine.timeline(narrow).cold or [], "segment") == [segments[1]]
        stored = TimelineView(TimeRange(one[0], one[1] + 1))
        assert _row(world.engine.timeline(stored).cold or [], "segment") == []
        joined = _row(world.engine.timeline(TimelineView(blocks=1, axis=TimeAxis.BORN)).cold or [], "segment")
        assert [(block.min_born_ms, block.max_born_ms) for block in joined] == [(born[0], born[-1])]
