"""A bulk erasure that is killed at any request goes on, and whatever a running store does beside it gets in no way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.pipeline.removal_jobs import erasure_of, note, unseen
from tests.support.stores.removal_world import Killed, RemovalWorld, WatchedStore, kill_at
from tierlog.pipeline.removal.erasure import ErasureRequest
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, TopicHeldError

REQUEST = ErasureRequest("t", ("k1", "k2"))


def small() -> RemovalWorld:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 40, ("t",))
    engine.archive(everything=True)
    world.append(engine, 6, ("t",))
    engine.close()
    return world


def run_job(world: RemovalWorld, objects: object, *, seed: int = 1000) -> str:
    """The erasure from beginning to end; its id."""
    job = erasure_of(world, objects, seed=seed, most=1)
    stone = job.begin(REQUEST)
    if not world.erased:
        note(world, REQUEST, stone.end)
    job.carry_out(stone, REQUEST, unseen)
    return stone.tombstone_id


def requests_of_a_job() -> int:
    world = small()
    watched = WatchedStore(world.objects)
    run_job(world, watched)
    return watched.requests


def check_all(world: RemovalWorld, engine: Store, when: str) -> None:
    """The erasure is carried out, nothing else is lost, and receipts say exactly what was replaced."""
    world.finish(engine)
    world.verify(engine)
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)
    assert engine.check(deep=True) == [], when
    for at, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(at), f"{when}: message {at}"
    assert engine._manifest is not None
    head, reader = engine._manifest.refresh(), engine._manifest.reader()
    named = {entry.key for entry in engine._manifest.log_entries(reader, head)}
    gone = {name for name, _ in engine._manifest.removed_names(reader, head) if "/log/" in name}
    told = set[str]()
    for receipt in engine.removal.receipts():
        rows = receipt["segments_rewritten"]
        replaced = {row["replaced_object"] for row in rows}
        assert len(replaced) == len(rows), f"{when}: an object is said to be replaced twice"
        assert not replaced & named, when
        assert {row["object"] for row in rows} <= named | gone, when
        assert all(row["replaced_ms"] is not None for row in rows), when
        assert receipt["state"] in ("rewritten", "complete"), when
        told |= replaced
    assert gone <= told, f"{when}: an object was replaced that no receipt tells of"


@pytest.mark.slow
@pytest.mark.parametrize("after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
def test_killed_at_every_request_and_run_again(after: bool) -> None:
    total = requests_of_a_job()
    assert total > 25
    gone_on_with = 0
    for number in range(1, total + 1):
        world = small()
        watched = WatchedStore(world.objects)
        kill_at(watched, number, after=after)
        with contextlib.suppress(Killed):
            run_job(world, watched)
        assert erasure_of(world).plan(REQUEST)["below_offset"] > 0, "looking gets in nobody's way"
        begun = [stone.tombstone_id for stone in erasure_of(world)._manifest.refresh().tombstones]
        again = run_job(world, world.objects, seed=5000 + number)
        assert begun in ([], [again]), f"request {number}: the same request goes on with what it began"
        gone_on_with += begun == [again]
        receipt = erasure_of(world).receipt(again)
        assert receipt["matched"]["cold"] in (26, 26 - sum(row["records"] for row in receipt["segments_rewritten"]))
        check_all(world, world.open(), f"request {number}")
    assert total // 2 < gone_on_with < total


def test_killed_at_every_request_and_carried_out_by_the_store() -> None:
    for number in range(5, requests_of_a_job() + 1, 3):
        world = small()
        watched = WatchedStore(world.objects)
        kill_at(watched, number, after=False)
        with contextlib.suppress(Killed):
            run_job(world, watched)
        engine = world.open()
        if not engine.removal.receipts() and not engine._manifest.refresh().tombstones:  # type: ignore[union-attr]
            world.erased.clear()
        check_all(world, engine, f"request {number}")


def archive_and_erase(world: RemovalWorld, engine: Store) -> None:
    """One of all the things that a running store does by itself."""
    world.append(engine, 3, ("t",))
    engine.archive(everything=True)
    engine.removal.run_once()


def carry_out(world: RemovalWorld, engine: Store) -> None:
    """The store carries out what it sees at its look at the head."""
    assert engine._manifest is not None
    engine._manifest.refresh()
    while engine.removal.run_once():
        pass


def expire(world: RemovalWorld, engine: Store) -> None:
    """Half of every segment expires and is overwritten."""
    engine.removal.configure("u", cold_retention_ms=1)
    world.clock.advance(60_000)
    assert engine._manifest is not None
    engine._manifest.refresh()
    for _ in range(20):
        with contextlib.suppress(ConflictError):
            if not engine.removal.run_once():
                return


@pytest.mark.slow
@pytest.mark.parametrize("beside", [carry_out, archive_and_erase, expire])
def test_a_running_store_beside_it_at_any_request(beside: Callable[[RemovalWorld, Store], None]) -> None:
    topics = ("t", "u", "u") if beside is expire else ("t",)
    total = requests_of_a_job()
    for number in range(1, total + 1):
        world = RemovalWorld()
        engine = world.open()
        world.append(engine, 40, topics)
        engine.archive(everything=True)
        watched = WatchedStore(world.objects)
        watched.before = partial(_at, watched, number, partial(beside, world, engine))
        run_job(world, watched)
        watched.before = lambda *_: None
        assert engine._manifest is not None
        engine._manifest.refresh()
        world.verify(engine)
        world.finish(engine)
        world.verify(engine)
        assert engine.check(deep=True) == [], f"request {number}"
        for at, one in enumerate(world.sent):
            if world.is_erased(at):
                assert not world.bucket_holds(one.message.body), f"request {number}: message {at}"
        (receipt,) = engine.removal.receipts()
        assert receipt["state"] == "rewritten", f"request {number}"
        assert all(row["replaced_ms"] is not None for row in receipt["segments_rewritten"]), f"request {number}"


def _at(watched: WatchedStore, wanted: int, action: Callable[[], None], request: int, *_: object) -> None:
    if request == wanted:
        watched.before = lambda *_: None
        action()


@pytest.mark.slow
def test_a_hold_that_begins_at_any_request_keeps_everything_that_has_not_gone_by_then() -> None:
    total, refused = requests_of_a_job(), 0
    for number in range(1, total + 1):
        world = small()
        engine = world.open()
        kept: list[bytes] = []
        watched = WatchedStore(world.objects)
        watched.before = partial(_at, watched, number, partial(_hold, kept, world, engine))
        try:
            run_job(world, watched)
        except TopicHeldError:
            refused += 1
        assert all(map(world.bucket_holds, kept)), f"request {number}"
        engine._manifest.refresh()  # type: ignore[union-attr]
        if world.erased:
            assert engine.removal.receipts()[0]["state"] == "held"
            engine.removal.configure("t", hold=False)
            check_all(world, engine, f"request {number}")
    assert refused > total // 2


def _hold(kept: list[bytes], world: RemovalWorld, engine: Store) -> None:
    """Put the topic on hold, and take note of what the archive holds of it once that is acknowledged."""
    engine.removal.configure("t", hold=True)
    kept += [one.message.body for one in world.sent if world.bucket_holds(one.message.body)]
