"""The archive of a broker whose clock stepped back: no look-up of a key misses what lies in later pages of its items.

The first pages of a key's items bound the times of the rest only where store times rise with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.index.index_edits import edit_head
from tests.support.index.index_merge import Shape, merge, mergeable
from tests.support.stores.archives import Named
from tests.support.stores.engines import small_settings
from tests.support.stores.followed import BrokerLog, FollowedWorld
from tests.support.stores.hot_stores import NOW_MS, record
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.tiering.base.types import Order
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.format.record import Record, encode_record

SEGMENT = 1 << 20
#: Records before the clock steps back, and after it: their items fill more than a page.
EACH = 3000
BACK_MS = 4_000_000
KEYS = b"KEYS\x01all\x02"


def log_of(back_ms: int) -> list[Record]:
    """One queue, two records a second; in the middle the clock steps back."""
    made, at = [], 0
    for number in range(2 * EACH):
        time_ms = NOW_MS + 500 * number - (back_ms if number >= EACH else 0)
        made.append(record(topic="a", queue_offset=number, physical_offset=at, store_ms=time_ms, properties_text=KEYS))
        at += len(encode_record(made[-1]))
    return made


def archived(records: list[Record], items: int) -> World:
    """The store that followed the log and was promoted, all of it archived; so many items an index object."""
    log = BrokerLog(b"".join(map(encode_record, records)), segment_bytes=SEGMENT)
    settings = small_settings(index__items=items + 1, index__slots=100, cold__frame_bytes=65_536)
    world = FollowedWorld(settings=settings, segment_bytes=SEGMENT).archived(log)
    head = world.head()
    assert head.archived_to == head.indexed_to == SEGMENT
    return world


def entries_of(world: World) -> list[IndexEntry]:
    manifest = world.manifest()
    return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))


def merge_all(world: World) -> list[IndexEntry]:
    manifest = world.manifest()
    (run,) = mergeable(manifest, manifest.refresh())
    return merge(manifest, run, world.randomness, Shape())


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return log_of(BACK_MS)


@pytest.fixture(scope="module", params=["one object", "objects", "merged"])
def world(request: pytest.FixtureRequest, records: list[Record]) -> World:
    """The clock steps back inside an object, between two, or between two that are merged."""
    made = archived(records, 2 * EACH if request.param == "one object" else EACH)
    assert len(entries_of(made)) == (1 if request.param == "one object" else 2)
    if request.param == "merged":
        assert not any(entry.times_fall for entry in entries_of(made))
        merge_all(made)
        assert len(entries_of(made)) == 1
    return made


def pages(archive: Archive, query: Query) -> Iterator[list[tuple[int, int]]]:
    """Every page, each from the cursor of the one before."""
    while True:
        answer = archive.query(query)
        assert answer.coverage.complete
        yield [(each.record.store_ms, each.record.physical_offset) for each in answer.messages]
        if answer.next_cursor is None:
            return
        query = replace(query, cursor=answer.next_cursor)


@pytest.mark.parametrize("order", Order)
def test_all_pages_of_a_key_are_those_of_the_log(world: World, records: list[Record], order: Order) -> None:
    wanted = sorted(((each.store_ms, each.physical_offset) for each in records), reverse=order is Order.NEWEST)
    archive = world.cold()
    assert next(pages(archive, Query("a", "all", limit=32, order=order))) == wanted[:32]
    found = [place for page in pages(archive, Query("a", "all", limit=700, order=order)) for place in page]
    archive.close()
    assert found == wanted


@pytest.mark.parametrize(("back_ms", "falls"), [(0, False), (900, False), (1100, True)])
def test_a_step_back_inside_a_second_is_none(back_ms: int, falls: bool) -> None:
    """Items know whole seconds, and what is said of the rest is as much wider."""
    records = log_of(back_ms)
    world = archived(records, 2 * EACH)
    (entry,) = entries_of(world)
    assert entry.times_fall == falls
    for order in Order:
        wanted = sorted(((each.store_ms, each.physical_offset) for each in records), reverse=order is Order.NEWEST)
        archive = world.cold()
        assert [place for page in pages(archive, Query("a", "all", limit=700, order=order)) for place in page] == wanted
        archive.close()


def test_an_entry_that_does_not_say_so_is_found_and_mended(records: list[Record]) -> None:
    world = archived(records, 2 * EACH)
    (entry,) = entries_of(world)
    edit_head(world, lambda head: replace(head, index=(replace(entry, times_fall=False),)))
    engine = world.open()
    assert any(entry.key in finding and "fall" in finding for finding in engine.check(deep=True))
    assert engine.repair().left == []
    engine.close()
    assert [mended.times_fall for mended in entries_of(world)] == [True]


def test_an_entry_made_again_from_its_object_says_so(records: list[Record]) -> None:
    world = archived(records, 700)
    entries = entries_of(world)
    assert [entry.times_fall for entry in entries].count(True) == 1
    for page in Named.of(world.manifest()).kinds["index page 0"]:
        world.objects.delete(page)
    engine = world.open()
    assert engine.repair().left == []
    engine.close()
    assert [replace(entry, added=0) for entry in entries_of(world)] == [replace(entry, added=0) for entry in entries]
