"""A restore is cut off at every call to the disk and to the bucket; run again, it ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tests.support.stores.power_world import CountedObjectStore
from tests.support.world import World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.lifecycle.takeover import QUEUE_STEP
from tierlog.tiering.objects.object_store import ObjectStore

COUNT = 40


def lost_volume() -> World:
    """A volume that archived all of its log, indexed part of it, and is not there any more."""
    world = World(settings=small_settings())
    world.objects = CountedObjectStore(world.clock)
    faulty = FaultyObjectStore(world.objects)
    engine = world.open("a", objects=faulty)
    for at in range(0, COUNT, 4):
        if at == COUNT // 2:
            engine.archive(everything=True)
        send(engine, "orders", at, at + 4, queue_id=0)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 7})
    faulty.fail_before("upload", "store/index/*", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        engine.archive(everything=True)
    with pytest.raises(ObjectStoreUnavailableError):
        engine.archive()
    world.clock.advance(60_000)
    assert 0 < world.head().indexed_to < world.head().archived_to
    return world


def run_again(world: World, fs: CrashFileSystem, objects: CountedObjectStore) -> Store:
    """What an operator does after the machine is back: the same command, or a plain start if it says so."""
    identity = StoreIdentity.read(fs, StorePaths(world.place("b")))
    is_done = identity is not None and identity.restoring_from is None
    return world.open("b", restore=not is_done, fs=fs, objects=objects)


def verify(engine: Store) -> int:
    """Everything is there, and the volume goes on where no other one ever was."""
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(COUNT))
    for number in range(0, COUNT, 3):
        answer = engine.query(Query("orders", f"key-{number}", 0, 1 << 60))
        assert (answer.coverage.complete, numbers_of(answer.messages)) == (True, [number])
    assert engine.groups.committed("billing").offsets == {("orders", engine.store_id, 0): 7}
    assert send(engine, "orders", COUNT, COUNT + 1, queue_id=0) == [COUNT + QUEUE_STEP]
    assert engine.check(deep=True) == []
    begin = engine.stats()["log_begin"]
    assert isinstance(begin, int)
    return begin


class BreakingStore(FaultyObjectStore):
    """Fails once, at its n-th call: with nothing done, or with the answer lost."""

    def __init__(self, inner: ObjectStore, number: int, *, after: bool) -> None:
        super().__init__(inner)
        self._number, self._after = number, after

    def _begin(self, operation: str, key: str) -> None:
        super()._begin(operation, key)
        if len(self.calls) == self._number and not self._after:
            raise ObjectStoreUnavailableError("scripted failure")

    def _end(self, operation: str, key: str) -> None:
        super()._end(operation, key)
        if len(self.calls) == self._number and self._after:
            raise ObjectStoreUnavailableError("scripted lost answer")


@pytest.mark.parametrize("after", [False, True])
def test_a_bucket_that_fails_at_any_call(after: bool) -> None:
    world = lost_volume()
    archive = world.objects
    assert isinstance(archive, CountedObjectStore)
    number, begins = 0, set()
    while True:
        number += 1
        fs, objects = CrashFileSystem(), archive.copy()
        breaking = BreakingStore(objects, number, after=after)
        with contextlib.suppress(ObjectStoreUnavailableError):
            world.open("b", restore=True, fs=fs, objects=breaking)
        if len(breaking.calls) < number:
            break
        fs.kill()
        begins.add(verify(run_again(world, fs, objects)))
    assert len(begins) == 1
    assert number > 20
    print(f"the bucket failed at each of {number - 1} calls, answer lost: {after}")


@pytest.mark.slow
def test_every_crash_point_of_a_restore(seed: int, record_property: Callable[[str, object], None]) -> None:
    world = lost_volume()
    archive = world.objects
    assert isinstance(archive, CountedObjectStore)
    old_volume = world.head().volume_id
    chance = random.Random(seed)
    begins, still_old, cut_at = set(), 0, 0
    while True:
        cut_at += 1
        fs = CrashFileSystem(seed=seed, cut_at=cut_at)
        objects = archive.copy(fs)
        try:
            world.open("b", restore=True, fs=fs, objects=objects)
        except PowerCut:
            pass
        else:
            break
        after = fs.crash(seed + cut_at, cut_at=chance.randrange(1, 200) if chance.getrandbits(1) else None)
        survived = objects.copy(after)
        if after.cut_at is not None:  # and again, while it goes on
            with contextlib.suppress(PowerCut):
                run_again(world, after, survived)
            after = after.crash(seed - cut_at)
            survived = survived.copy(after)
        world.objects = survived.copy()
        still_old += world.head().volume_id == old_volume
        begins.add(verify(run_again(world, after, survived.copy())))
    assert len(begins) == 1, "where the log goes on does not depend on when the restore was cut off"
    assert still_old
    record_property("crash_points", cut_at - 1)
    print(f"seed {seed}: cut off at each of {cut_at - 1} calls, {still_old} times before the takeover: the same end")
