"""How far the border may rise, and how far it should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.stores.hot_stores import HotWorld, append, fill
from tierlog.tiering.base.options import RetentionOptions
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.archiver import due_border, safe_border
from tierlog.tiering.message.batch import Message

HEAD = Head("s", "v", "o", 1, 1, "c", ("c",), 0, 0, 0)
HOUR = 3_600_000


@pytest.fixture
def world() -> HotWorld:
    """Five segments, one an hour."""
    return HotWorld()


@pytest.fixture
def hot(world: HotWorld) -> HotStore:
    opened = world.open()
    for _ in range(4):
        fill(opened, "a", 3)
        opened.roll()
        world.clock.advance(HOUR)
    fill(opened, "a", 1)
    return opened


@pytest.mark.parametrize(
    ("archived_to", "indexed_to", "border"),
    [
        (0, 0, 0),
        (8192, 0, 0),
        (8192, 4095, 0),
        (8192, 4096, 4096),
        (8192, 8000, 4096),
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (1 << 40, 1 << 40, 16384),
    ],
)
def test_only_what_is_published_and_indexed_is_safe(
    hot: HotStore, archived_to: int, indexed_to: int, border: int
) -> None:
    assert safe_border(hot, replace(HEAD, archived_to=archived_to, indexed_to=indexed_to)) == border


def test_nothing_is_safe_before_the_archive_was_reached(hot: HotStore) -> None:
    assert safe_border(hot, None) == 0


@pytest.mark.parametrize(("hours", "border"), [(100, 0), (5, 0), (4, 0), (3, 4096), (2, 8192), (1, 12288), (0, 16384)])
def test_age_counts_from_the_newest_record(world: HotWorld, hot: HotStore, hours: int, border: int) -> None:
    """A segment's newest record is no newer than the first of the next one."""
    options = RetentionOptions(hot_retention_ms=hours * HOUR)
    assert due_border(hot, options, world.clock.now_ms()) == border


@pytest.mark.parametrize(("segments", "border"), [(9, 0), (5, 0), (4, 4096), (2, 12288), (1, 16384), (0.5, 16384)])
def test_size(world: HotWorld, hot: HotStore, segments: float, border: int) -> None:
    options = RetentionOptions(hot_retention_ms=1 << 50, hot_max_bytes=int(segments * 4096))
    assert due_border(hot, options, world.clock.now_ms()) == border


def test_the_active_segment_never_goes(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", b"x"))
    options = RetentionOptions(hot_retention_ms=0, hot_max_bytes=1)
    assert due_border(hot, options, world.clock.now_ms() + HOUR) == 0


def test_an_empty_active_segment(world: HotWorld, hot: HotStore) -> None:
    hot.roll()
    options = RetentionOptions(hot_retention_ms=0)
    assert due_border(hot, options, world.clock.now_ms()) == hot.log.last_base == 5 * 4096


def test_the_border_does_not_step_back(world: HotWorld, hot: HotStore) -> None:
    hot.dispatch()
    hot.remove_below(8192, forget=lambda _: None)
    assert due_border(hot, RetentionOptions(hot_retention_ms=1 << 50), world.clock.now_ms()) == 8192
