"""Expiry that is killed at any request goes on, and what happens beside it at any request gets in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.stores.removal_world import Killed, RemovalWorld, WatchedStore, kill_at
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError

RETENTION_MS = 60_000
#: Whoever reads shares a request under way with others who want the same, and would wait for itself.
_CHANGES = ("put", "upload", "head", "now_ms", "get_if_changed")


def aged() -> RemovalWorld:
    """Half of every segment but the last has expired, and the first one is wholly too old."""
    world = RemovalWorld(cold__retention_ms=3_600_000)
    engine = world.open()
    world.append(engine, 20, ("t", "t", "t", "u"))
    engine.archive(everything=True)
    world.clock.advance(3_600_000)
    world.append(engine, 26, ("t", "t", "t", "u"))
    engine.archive(everything=True, drop_hot=True)
    engine.removal.configure("t", cold_retention_ms=RETENTION_MS)
    engine.close()
    world.clock.advance(120_000)
    return world


def go_on(engine: Store) -> None:
    for _ in range(100):
        try:
            if not engine.removal.run_once():
                return
        except ConflictError:
            continue  # something came in between: the next turn plans again
    raise AssertionError("expiry does not end")


def requests_of_expiry() -> int:
    world = aged()
    watched = WatchedStore(world.objects)
    engine = world.open(objects=watched)
    first = watched.requests
    go_on(engine)
    total = watched.requests - first
    verify_expired(world, engine)
    return total


def verify_expired(world: RemovalWorld, engine: Store) -> None:
    """All that is due has happened."""
    world.verify(engine)
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert engine._manifest.head.cold_min > 0
    gone = [one for one in world.sent if world.has_expired(engine, one)]
    assert {one.message.topic for one in gone} == {"t", "u"}
    for one in gone:
        assert not world.bucket_holds(one.message.body)


# killed after a request is much like killed before the next one
@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_request(after: bool) -> None:
    total = requests_of_expiry()
    assert total > 15
    for number in range(1, total + 1):
        world = aged()
        watched = WatchedStore(world.objects)
        engine = world.open(objects=watched)
        kill_at(watched, number, after=after)
        with pytest.raises(Killed):
            go_on(engine)
        engine = world.open()
        world.verify(engine)
        go_on(engine)
        verify_expired(world, engine)
        assert engine.check(deep=True) == [], f"request {number}"


def begin_erasure(world: RemovalWorld, engine: Store) -> None:
    world.erase(engine, "u", "k1")


def append_and_archive(world: RemovalWorld, engine: Store) -> None:
    world.append(engine, 20)
    engine.archive(everything=True, drop_hot=True)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [begin_erasure, append_and_archive])
def test_what_is_done_beside_expiry_at_any_request(beside: Callable[[RemovalWorld, Store], None]) -> None:
    """By another thread of the same process, but for requests under the lock that erasing waits for."""
    total = requests_of_expiry()
    done = 0
    for number in range(1, total + 1):
        world = aged()
        watched = WatchedStore(world.objects)
        engine = world.open(objects=watched)
        taken = partial(_take_beside, world, engine, watched, watched.requests + number, beside)
        watched.before = taken
        go_on(engine)
        watched.before = lambda *_: None
        done += bool(world.erased) or len(world.sent) > 46
        go_on(engine)
        world.verify(engine)
        world.finish(engine)
        world.verify(engine)
        assert engine.check(deep=True) == [], f"request {number}"
        for at, one in enumerate(world.sent):
            if world.is_erased(at):
                assert not world.bucket_holds(one.message.body), f"request {number}"
    assert done > total // 3


def _take_beside(
    world: RemovalWorld,
    engine: Store,
    watched: WatchedStore,
    wanted: int,
    beside: Callable[[RemovalWorld, Store], None],
    request: int,
    operation: str,
    *_: object,
) -> None:
    if request < wanted or operation not in _CHANGES:
        return
    if engine.removal._holding.locked() or engine._manifest._lock.locked():  # type: ignore[union-attr]
        return
    watched.before = lambda *_: None
    beside(world, engine)


def test_a_hold_that_begins_at_any_request_keeps_everything_that_has_not_gone_by_then() -> None:
    total, held = requests_of_expiry(), 0
    for number in range(1, total + 1):
        world = aged()
        watched = WatchedStore(world.objects)
        engine = world.open(objects=watched)
        bodies: list[bytes] = []
        watched.before = partial(
            _take_beside, world, engine, watched, watched.requests + number, partial(_hold, bodies)
        )
        go_on(engine)
        watched.before = lambda *_: None
        go_on(engine)
        assert all(world.bucket_holds(body) for body in bodies), f"request {number}"
        world.verify(engine)
        if engine.topic("t").hold:
            held += 1
            with pytest.raises(ConflictError):
                engine.removal.erase(Query("t"))
    assert held > total // 3


def _hold(bodies: list[bytes], world: RemovalWorld, engine: Store) -> None:
    """Put the topic on hold, and take note of what the archive holds of it once that is acknowledged."""
    engine.removal.configure("t", hold=True)
    bodies += [
        one.message.body for one in world.sent if one.message.topic == "t" and world.bucket_holds(one.message.body)
    ]
