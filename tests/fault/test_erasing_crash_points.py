"""An erasure that is killed at any request is either not begun or goes on: nothing comes back, nothing else is lost.

Likewise an erasure that is committed at any moment of an archiving or a rewriting that is under way.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.removal_world import Erased, Killed, RemovalWorld, WatchedStore, kill_at
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Order
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.lifecycle.tombstones import make_tombstone


def small() -> RemovalWorld:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 24, ("t",))
    engine.archive(everything=True)
    world.append(engine, 6, ("t",))
    engine.close()
    return world


def erase_and_carry_out(world: RemovalWorld, watched: WatchedStore, number: int = 0, *, after: bool = False) -> bool:
    """Whether the erasure was acknowledged before the process was killed, at the n-th request if one is given."""
    engine = world.open(objects=watched)
    if number:
        kill_at(watched, number, after=after)
    acknowledged = False
    try:
        engine.removal.erase(Query("t", "k1"))
        acknowledged = True
        engine.archive(everything=True)
        while engine.removal.run_once():
            pass
    except Killed:
        assert number
    return acknowledged


def requests_of_an_erasure() -> int:
    world = small()
    watched = WatchedStore(world.objects)
    engine = world.open(objects=watched)
    first = watched.requests
    engine.removal.erase(Query("t", "k1"))
    world.finish(engine)
    return watched.requests - first


@pytest.mark.slow
@pytest.mark.parametrize("after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
def test_killed_at_every_request(after: bool) -> None:
    total = requests_of_an_erasure()
    assert total > 40
    unacknowledged = 0
    for number in range(1, total + 1):
        world = small()
        acknowledged = erase_and_carry_out(world, WatchedStore(world.objects), number, after=after)
        engine = world.open()
        assert engine._manifest is not None
        head = engine._manifest.refresh()
        landed = bool(head.tombstones)
        if landed or acknowledged:
            world.erased.append(Erased("t", "k1", 0, END_OF_TIME_MS, len(world.sent)))
        else:
            unacknowledged += 1
        world.verify(engine)
        world.append(engine, 3, ("t",))
        if not world.erased:
            world.erase(engine, "t", "k1")
        world.finish(engine)
        world.verify(engine)
        engine.archive(everything=True, drop_hot=True)
        world.verify(engine)
        assert engine.check(deep=True) == [], f"request {number}"
        for at, one in enumerate(world.sent):
            assert world.bucket_holds(one.message.body) != world.is_erased(at), f"request {number}: message {at}"
        _check_receipts(world, f"request {number}")
    assert 0 < unacknowledged < total


def _check_receipts(world: RemovalWorld, when: str) -> None:
    """Every object that was replaced, and only those, is in a receipt, and its successor is named or replaced too."""
    engine = world.open()
    assert engine._manifest is not None
    head = engine._manifest.refresh()
    named = {entry.key for entry in engine._manifest.log_entries(engine._manifest.reader(), head)}
    for receipt in engine.removal.receipts():
        rows = receipt["segments_rewritten"]
        replaced = {row["replaced_object"] for row in rows}
        assert not replaced & named, when
        assert {row["object"] for row in rows} <= named | replaced, when
        assert all(row["replaced_ms"] is not None for row in rows), when
        assert receipt["state"] in ("rewritten", "complete"), when


@pytest.mark.parametrize("finished", [False, True], ids=["hidden", "rewritten"])
def test_an_acknowledged_erasure_survives_a_power_cut_with_a_dead_bucket(seed: int, finished: bool) -> None:
    world = small()
    engine = world.open()
    world.erase(engine, "t", "k1")
    engine.removal.configure("t", hold=not finished)
    if finished:
        world.finish(engine)
    world.fs = world.fs.crash(seed, lose_everything=True)
    dead = FaultyObjectStore(world.objects)
    dead.fail_before("*", times=None)
    engine = world.open(objects=dead)
    assert engine.topic("t").hold is not finished
    assert engine.query(Query("t", "k1")).messages == []
    visible = [one.message.body for one in world.visible() if one.offset >= engine._hot.border]
    assert visible
    found = engine.query(Query("t", limit=1000, order=Order.OLDEST)).messages
    assert [message.record.body for message in found] == visible


def requests_of(step: str) -> int:
    world = small()
    watched = WatchedStore(world.objects)
    engine = world.open(objects=watched)
    world.append(engine, 12, ("t",))
    if step == "rewriting":
        world.erase(engine, "t", "k2")
    first = watched.requests
    _take(world, engine, step)
    return watched.requests - first


def _take(world: RemovalWorld, engine: Store, step: str) -> None:
    if step == "archiving":
        engine.archive(everything=True)
    else:
        world.finish(engine)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["archiving", "rewriting"])
def test_an_erasure_begun_by_another_process_at_any_request_of_a_step(step: str) -> None:
    """What it hides is hidden when it was seen, and carried out, whatever the step had built by then."""
    total = requests_of(step)
    assert total > 10
    for number in range(1, total + 1):
        world = small()
        watched = WatchedStore(world.objects)
        engine = world.open(objects=watched)
        world.append(engine, 12, ("t",))
        if step == "rewriting":
            world.erase(engine, "t", "k2")
        first = watched.requests

        watched.before = partial(_erase_at, world, engine._hot.log.flushed, first + number)
        _take(world, engine, step)
        watched.before = lambda *_: None
        assert len(world.erased) == 1 + (step == "rewriting"), number
        assert engine._manifest is not None
        engine._manifest.refresh()
        world.verify(engine)
        world.finish(engine)
        world.verify(engine)
        assert engine.check(deep=True) == [], number
        for at, one in enumerate(world.sent):
            assert world.bucket_holds(one.message.body) != world.is_erased(at), f"request {number}: message {at}"


def _erase_at(world: RemovalWorld, end: int, wanted: int, request: int, *_: object) -> None:
    """Another process commits a tombstone while that request of the store is on its way."""
    if request != wanted:
        return
    randomness = SeededRandomness(4711)
    manifest = ManifestStore(world.objects, ColdKeys("store"), randomness=randomness, options=ColdOptions())
    stone = make_tombstone("t", "k1", from_ms=None, to_ms=None, end=end, randomness=randomness)
    manifest.commit_other(ManifestChange(add_tombstones=(stone,)))
    world.erased.append(Erased("t", "k1", 0, END_OF_TIME_MS, len(world.sent)))
