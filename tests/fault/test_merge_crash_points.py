"""A merge job that is killed at any request, or meets expiry, erasure or another merge there, changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from tests.support.index.index_merge import in_process
from tests.support.stores.look_up_stores import DAY_MS, KEYS, LookUpStore, Sending, SharedBucket, Sizes
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


def aged(retention_ms: int = 0) -> tuple[SharedBucket, LookUpStore]:
    """Four days in two years, archived, with a day or more since."""
    shared = SharedBucket(Sizes(segment_bytes=8192, cold_retention_ms=retention_ms), ManualClock(BEGIN))
    (store,) = shared.stores
    for number in range(14):
        store.append(
            [Sending("Aa", (KEYS[(number + at) % len(KEYS)], "often"), skew_ms=500 * at, size=200) for at in range(5)]
        )
        shared.clock.advance(DAY_MS // 5)
    store.drop_hot()
    shared.clock.advance(DAY_MS)
    return shared, store


def job(shared: SharedBucket, store: LookUpStore, objects: ObjectStore | None = None, seed: int = 77) -> MergeJob:
    objects = objects or shared.objects
    randomness = SeededRandomness(seed)
    manifest = ManifestStore(
        objects,
        ColdKeys(store.store_id),
        randomness=randomness,
        options=shared.settings.cold_options(),
        clock=shared.clock,
    )
    return MergeJob(manifest, OPTIONS, in_process(objects, randomness), shared.clock)


def merged(shared: SharedBucket, store: LookUpStore) -> MergeReport:
    """Merge what is due to the end."""
    return job(shared, store, seed=78).run(list(Level))


def ask(shared: SharedBucket) -> None:
    """Both orders and axes, of a key with few messages, one with all, and one with none."""
    for key, order, axis in (
        ("often", Order.NEWEST, TimeAxis.STORE), ("often", Order.OLDEST, TimeAxis.BORN),
        ("Aa", Order.OLDEST, TimeAxis.STORE), ("absent", Order.NEWEST, TimeAxis.STORE),
    ):  # fmt: skip
        shared.ask(Query("Aa", key, limit=17, order=order, axis=axis))
        shared.ask(Query("Aa", key, BEGIN + DAY_MS // 3, BEGIN + 2 * DAY_MS, limit=50, order=order, axis=axis))


def is_merged(shared: SharedBucket, store: LookUpStore) -> None:
    """Nothing is due, answers are right, and every byte of the archive is."""
    assert job(shared, store).plan() == []
    manifest = store.manifest()
    levels = {entry.level for entry in manifest.all_index_entries(manifest.reader(), manifest.refresh())}
    assert max(levels) >= Level.DAY
    ask(shared)
    assert store.engine.check(deep=True) == []


def requests_of_merge() -> int:
    shared, store = aged()
    watched = WatchedStore(shared.objects)
    report = job(shared, store, cast(ObjectStore, watched)).run(list(Level))
    assert report.groups >= 4, report
    assert report.outputs > report.groups  # cut into parts
    is_merged(shared, store)
    return watched.requests


def test_answers_before_during_and_after_are_those_of_the_log() -> None:
    shared, store = aged()
    old = shared.cold_engine()
    page = old.query(Query("Aa", "often", limit=9))
    before = store.manifest().refresh().version
    ask(shared)
    watched = WatchedStore(shared.objects)
    watched.after = lambda number, name, key: ask(shared) if name == "put" and str(key).endswith("/head") else None
    report = job(shared, store, cast(ObjectStore, watched)).run(list(Level))
    assert store.manifest().refresh().version == before + report.groups
    is_merged(shared, store)
    pages = [page]  # whoever began before goes on behind it
    while pages[-1].next_cursor is not None:
        pages.append(old.query(Query("Aa", "often", limit=9, cursor=pages[-1].next_cursor)))
    offsets = [each.record.physical_offset for page in pages for each in page.messages]
    assert offsets == sorted((kept.offset for kept in store.sent), reverse=True)
    shared.sweep()
    is_merged(shared, store)
    manifest = store.manifest()
    names = {entry.key for entry in manifest.all_index_entries(manifest.reader(), manifest.refresh())}
    assert {info.key for info in shared.objects.list(f"{store.store_id}/index/")} == names


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
        shared, store = aged()
        watched = WatchedStore(shared.objects)
        kill_at(watched, number, after=after)
        with pytest.raises(Killed):
            job(shared, store, cast(ObjectStore, watched)).run(list(Level))
        shared.ask(Query("Aa", "often", limit=1000))
        assert merged(shared, store).failed == []
        if number % 3 == 0:
            shared.sweep()
        is_merged(shared, store)


def expire(shared: SharedBucket, store: LookUpStore) -> None:
    """The oldest segments go, and the index objects of the first day with them."""
    shared.clock.advance(2 * DAY_MS)
    store.round()
    store.rewrite()
    assert store.manifest().refresh().cold_min > 0


def erase(shared: SharedBucket, store: LookUpStore) -> None:
    store.erase(Query("Aa", "Aa"))
    store.rewrite()


def another_merge(shared: SharedBucket, store: LookUpStore) -> None:
    merged(shared, store)


def append(shared: SharedBucket, store: LookUpStore) -> None:
    store.append([Sending("Aa", ("often",))] * 9)
    store.drop_hot()


@pytest.mark.parametrize("beside", [expire, erase, another_merge, append])
@pytest.mark.parametrize("step", [27, pytest.param(4, marks=pytest.mark.slow)])
def test_what_is_done_beside_it_at_any_request(beside: Callable[[SharedBucket, LookUpStore], None], step: int) -> None:
    refused = 0
    for number in range(1, requests_of_merge() + 1, step):
        shared, store = aged(4 * DAY_MS if beside is expire else 0)
        watched = WatchedStore(shared.objects)

        def take(
            request: int, name: str, key: object, shared: SharedBucket = shared, store: LookUpStore = store,
            watched: WatchedStore = watched, number: int = number,
        ) -> None:  # fmt: skip
            if request == number:
                watched.before = lambda *_: None
                beside(shared, store)

        watched.before = take
        report = job(shared, store, cast(ObjectStore, watched)).run(list(Level))
        assert report.failed == []
        refused += len(report.refused)
        merged(shared, store)
        shared.sweep()
        is_merged(shared, store)
    assert refused > 0 or beside in (erase, append)


def test_a_part_that_took_too_long_is_named_by_nobody() -> None:
    shared, store = aged()
    watched = WatchedStore(shared.objects)
    watched.after = lambda number, name, key: shared.clock.advance(DAY_MS) if name == "upload" else None
    report = job(shared, store, cast(ObjectStore, watched)).run(list(Level))
    assert (report.groups, report.failed) == (0, [])
    assert report.refused
    ask(shared)
    shared.sweep()
    assert store.engine.check(deep=True) == []


def test_a_damaged_input_fails_its_group_and_no_other() -> None:
    shared, store = aged()
    due = job(shared, store).plan([Level.DAY])
    victim = due[1].inputs[0]
    data, _ = shared.objects.get(victim.key)
    shared.objects.put(victim.key, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    report = merged(shared, store)
    (failed,) = report.failed
    assert failed["object"] == victim.key
    assert failed["group"] == due[1].name
    assert report.groups >= len(due) - 1
    assert [group.name for group in job(shared, store).plan()] == [due[1].name]  # its month and year wait for it


def test_a_lost_input_fails_its_group_and_no_other() -> None:
    shared, store = aged()
    victim = job(shared, store).plan([Level.DAY])[0].inputs[1]
    shared.objects.delete(victim.key)
    report = merged(shared, store)
    assert [failed["object"] for failed in report.failed] == [victim.key]
    assert report.groups > 0


def test_repair_makes_a_lost_merged_object_again() -> None:
    shared, store = aged()
    merged(shared, store)
    manifest = store.manifest()
    entries = list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
    part = next(entry for entry in entries if (entry.slot_from, entry.slot_end) != (0, entry.slots))
    whole = next(entry for entry in entries if (entry.slot_from, entry.slot_end) == (0, entry.slots))
    for lost in (part, whole):
        shared.objects.delete(lost.key)
        assert store.engine.check(deep=True) != []
        report = store.engine.repair()
        assert (len(report.done), report.left) == (1, [])
        assert store.engine.check(deep=True) == []
        ask(shared)
    merged(shared, store)
    ask(shared)
    assert store.engine.check(deep=True) == []
