"""A merge job that is killed at any request, or meets expiry, erasure or another merge there, changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from tests.support.index.index_merge import in_process
from tests.support.stores.look_up_world import DAY_MS, KEYS, LookUpStore, LookUpWorld, Sending, Sizes
from tests.support.stores.removal_world import Killed, WatchedStore, kill_at
from tierlog.index.maintenance.merge_job import MergeJob, MergeReport
from tierlog.index.maintenance.merge_plan import Level, MergeOptions
from tierlog.index.search.query import Query
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.objects.object_store import ObjectStore

#: 22:00, so that days, a month and a year change between the messages.
BEGIN = parse_time("2026-12-30T22:00:00")
OPTIONS = MergeOptions(max_part_bytes=2400, late_ms=0)


def aged(retention_ms: int = 0) -> tuple[LookUpWorld, LookUpStore]:
    """Four days in two years, archived, with a day or more since."""
    world = LookUpWorld(Sizes(segment_bytes=8192, cold_retention_ms=retention_ms), ManualClock(BEGIN))
    (store,) = world.stores
    for number in range(14):
        store.append(
            [Sending("Aa", (KEYS[(number + at) % len(KEYS)], "often"), skew_ms=500 * at, size=200) for at in range(5)]
        )
        world.clock.advance(DAY_MS // 5)
    store.drop_hot()
    world.clock.advance(DAY_MS)
    return world, store


def job(world: LookUpWorld, store: LookUpStore, objects: ObjectStore | None = None, seed: int = 77) -> MergeJob:
    objects = objects or world.objects
    randomness = SeededRandomness(seed)
    manifest = ManifestStore(
        objects,
        ColdKeys(store.store_id),
        randomness=randomness,
        options=world.settings().cold_options(),
        clock=world.clock,
    )
    return MergeJob(manifest, OPTIONS, in_process(objects, randomness), world.clock)


def merged(world: LookUpWorld, store: LookUpStore) -> MergeReport:
    """Merge what is due to the end."""
    return job(world, store, seed=78).run(list(Level))


def ask(world: LookUpWorld) -> None:
    """Both orders and axes, of a key with few messages, one with all, and one with none."""
    for key, order, axis in (
        ("often", Order.NEWEST, TimeAxis.STORE), ("often", Order.OLDEST, TimeAxis.BORN),
        ("Aa", Order.OLDEST, TimeAxis.STORE), ("absent", Order.NEWEST, TimeAxis.STORE),
    ):  # fmt: skip
        world.ask(Query("Aa", key, limit=17, order=order, axis=axis))
        world.ask(Query("Aa", key, BEGIN + DAY_MS // 3, BEGIN + 2 * DAY_MS, limit=50, order=order, axis=axis))


def is_merged(world: LookUpWorld, store: LookUpStore) -> None:
    """Nothing is due, answers are right, and every byte of the archive is."""
    assert job(world, store).plan() == []
    manifest = store.manifest()
    levels = {entry.level for entry in manifest.all_index_entries(manifest.reader(), manifest.refresh())}
    assert max(levels) >= Level.DAY
    ask(world)
    assert store.engine.check(deep=True) == []


def requests_of_merge() -> int:
    world, store = aged()
    watched = WatchedStore(world.objects)
    report = job(world, store, cast(ObjectStore, watched)).run(list(Level))
    assert report.groups >= 4, report
    assert report.outputs > report.groups  # cut into parts
    is_merged(world, store)
    return watched.requests


def test_answers_before_during_and_after_are_those_of_the_log() -> None:
    world, store = aged()
    old = world.cold_engine()
    page = old.query(Query("Aa", "often", limit=9))
    before = store.manifest().refresh().version
    ask(world)
    watched = WatchedStore(world.objects)
    watched.after = lambda number, name, key: ask(world) if name == "put" and str(key).endswith("/head") else None
    report = job(world, store, cast(ObjectStore, watched)).run(list(Level))
    assert store.manifest().refresh().version == before + report.groups
    is_merged(world, store)
    pages = [page]  # whoever began before goes on behind it
    while pages[-1].next_cursor is not None:
        pages.append(old.query(Query("Aa", "often", limit=9, cursor=pages[-1].next_cursor)))
    offsets = [each.record.physical_offset for page in pages for each in page.messages]
    assert offsets == sorted((kept.offset for kept in store.sent), reverse=True)
    world.sweep()
    is_merged(world, store)
    manifest = store.manifest()
    names = {entry.key for entry in manifest.all_index_entries(manifest.reader(), manifest.refresh())}
    assert {info.key for info in world.objects.list(f"{store.store_id}/index/")} == names


# killed after a request is much like killed before the next one
@pytest.mark.parametrize(
    ("after", "step"),
    [pytest.param(False, 14, id="some"), pytest.param(False, 1, id="before", marks=pytest.mark.slow),
     pytest.param(True, 1, id="after", marks=pytest.mark.slow)],
)  # fmt: skip
def test_killed_at_every_request(after: bool, step: int) -> None:
    total = requests_of_merge()
    assert total > 30
    for number in range(1, total + 1, step):
        world, store = aged()
        watched = WatchedStore(world.objects)
        kill_at(watched, number, after=after)
        with pytest.raises(Killed):
            job(world, store, cast(ObjectStore, watched)).run(list(Level))
        world.ask(Query("Aa", "often", limit=1000))
        assert merged(world, store).failed == []
        if number % 3 == 0:
            world.sweep()
        is_merged(world, store)


def expire(world: LookUpWorld, store: LookUpStore) -> None:
    """The oldest segments go, and the index objects of the first day with them."""
    world.clock.advance(2 * DAY_MS)
    store.round()
    store.rewrite()
    assert store.manifest().refresh().cold_min > 0


def erase(world: LookUpWorld, store: LookUpStore) -> None:
    store.erase(Query("Aa", "Aa"))
    store.rewrite()


def another_merge(world: LookUpWorld, store: LookUpStore) -> None:
    merged(world, store)


def append(world: LookUpWorld, store: LookUpStore) -> None:
    store.append([Sending("Aa", ("often",))] * 9)
    store.drop_hot()


@pytest.mark.parametrize("beside", [expire, erase, another_merge, append])
@pytest.mark.parametrize("step", [27, pytest.param(4, marks=pytest.mark.slow)])
def test_what_is_done_beside_it_at_any_request(beside: Callable[[LookUpWorld, LookUpStore], None], step: int) -> None:
    refused = 0
    for number in range(1, requests_of_merge() + 1, step):
        world, store = aged(4 * DAY_MS if beside is expire else 0)
        watched = WatchedStore(world.objects)

        def take(
            request: int, name: str, key: object, world: LookUpWorld = world, store: LookUpStore = store,
            watched: WatchedStore = watched, number: int = number,
        ) -> None:  # fmt: skip
            if request == number:
                watched.before = lambda *_: None
                beside(world, store)

        watched.before = take
        report = job(world, store, cast(ObjectStore, watched)).run(list(Level))
        assert report.failed == []
        refused += len(report.refused)
        merged(world, store)
        world.sweep()
        is_merged(world, store)
    assert refused > 0 or beside in (erase, append)


def test_a_part_that_took_too_long_is_named_by_nobody() -> None:
    world, store = aged()
    watched = WatchedStore(world.objects)
    watched.after = lambda number, name, key: world.clock.advance(DAY_MS) if name == "upload" else None
    report = job(world, store, cast(ObjectStore, watched)).run(list(Level))
    assert (report.groups, report.failed) == (0, [])
    assert report.refused
    ask(world)
    world.sweep()
    assert store.engine.check(deep=True) == []


def test_a_damaged_input_fails_its_group_and_no_other() -> None:
    world, store = aged()
    due = job(world, store).plan([Level.DAY])
    victim = due[1].inputs[0]
    data, _ = world.objects.get(victim.key)
    world.objects.put(victim.key, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    report = merged(world, store)
    (failed,) = report.failed
    assert failed["object"] == victim.key
    assert failed["group"] == due[1].name
    assert report.groups >= len(due) - 1
    assert [group.name for group in job(world, store).plan()] == [due[1].name]  # its month and year wait for it


def test_a_lost_input_fails_its_group_and_no_other() -> None:
    world, store = aged()
    victim = job(world, store).plan([Level.DAY])[0].inputs[1]
    world.objects.delete(victim.key)
    report = merged(world, store)
    assert [failed["object"] for failed in report.failed] == [victim.key]
    assert report.groups > 0


def test_repair_makes_a_lost_merged_object_again() -> None:
    world, store = aged()
    merged(world, store)
    manifest = store.manifest()
    entries = list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
    part = next(entry for entry in entries if (entry.slot_from, entry.slot_end) != (0, entry.slots))
    whole = next(entry for entry in entries if (entry.slot_from, entry.slot_end) == (0, entry.slots))
    for lost in (part, whole):
        world.objects.delete(lost.key)
        assert store.engine.check(deep=True) != []
        report = store.engine.repair()
        assert (len(report.done), report.left) == (1, [])
        assert store.engine.check(deep=True) == []
        ask(world)
    merged(world, store)
    ask(world)
    assert store.engine.check(deep=True) == []
