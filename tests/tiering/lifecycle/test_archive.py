"""Archiving that is killed at any request goes on: each segment is published once and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.power_world import everything, tiny_settings
from tests.support.stores.removal_world import Killed, WatchedStore, kill_at
from tests.support.world import ROOT, World
from tierlog.tiering.base.errors import (
    ChecksumMismatchError,
    FencedError,
    ObjectStoreUnavailableError,
    ReadOnlyError,
    StoreError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore, Ownership
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.delivery_states import DeliveryStates
from tierlog.tiering.lifecycle.archiver import Archiver
from tierlog.tiering.lifecycle.state_writer import StateWriter
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore


class KillingStore(WatchedStore):
    """Ends the process before or after the n-th request of its archiving, and answers nobody from then on."""

    def __init__(self, inner: ObjectStore, number: int = 0, *, after: bool = False) -> None:
        super().__init__(inner)
        self.is_armed = False
        if number:
            kill_at(self, number, after=after)

    def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        return (
            super()._ask(name, *arguments, **named) if self.is_armed else getattr(self.inner, name)(*arguments, **named)
        )


def filled(count: int = 60) -> World:
    world = World(settings=tiny_settings(4096))
    engine = world.open()
    for number in range(count):
        engine.append([Message("orders" if number % 3 else "pays", b"%d" % number * 40, [f"k{number % 5}"])])
    engine.flush()
    return world


def requests_of_a_whole_archiving() -> int:
    world = filled()
    counting = KillingStore(world.objects)
    engine = world.open(objects=counting)
    counting.is_armed = True
    engine.archive(everything=True, drop_hot=True)
    assert len(world.entries()) == 3
    return counting.requests


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_killed_at_every_request(after: bool) -> None:
    total = requests_of_a_whole_archiving()
    assert total > 15
    for number in range(1, total + 1):
        world = filled()
        killing = KillingStore(world.objects, number, after=after)
        engine = world.open(objects=killing)
        killing.is_armed = True
        with pytest.raises(Killed):
            engine.archive(everything=True, drop_hot=True)
        engine = world.open()
        before = everything(engine)
        assert len(before) == 60
        engine.archive(everything=True, drop_hot=True)
        bases = [entry.base for entry in world.entries()]
        assert bases == [each * 4096 for each in range(len(bases))], f"request {number}"
        assert engine.check(deep=True) == [], f"request {number}"
        after_all = everything(engine)
        assert {place: each.record for place, each in after_all.items()} == {
            place: each.record for place, each in before.items()
        }
        named = Counter(entry.key for entry in world.entries())
        assert max(named.values()) == 1


def test_every_upload_has_a_name_of_its_own() -> None:
    world = filled()
    names: list[str] = []
    for _ in range(3):
        faulty = FaultyObjectStore(world.objects)
        engine = world.open(objects=faulty)
        faulty.fail_after("put", "*/head", times=None)
        faulty.fail_before("get_if_changed", times=None)
        with pytest.raises(StoreError):
            engine.archive(everything=True)
        names += [call.key for call in faulty.calls if call.operation == "upload"]
    assert len(names) == len(set(names))


class Liar(FaultyObjectStore):
    """Stores something else than it was given, under names that match."""

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        data = bytearray(b"".join(pieces))
        if "/log/" in key:
            data[len(data) // 2] ^= 1
        return super().upload(key, [bytes(data)])


def test_what_the_server_holds_is_compared_with_what_was_sent() -> None:
    world = filled()
    engine = world.open(objects=Liar(world.objects))
    with pytest.raises(ChecksumMismatchError):
        engine.archive(everything=True, drop_hot=True)
    assert world.entries() == []
    assert world.open().check() == []
    engine = world.open()
    engine.archive(everything=True, drop_hot=True)
    assert engine.check(deep=True) == []


def test_dead_bucket_then_alive() -> None:
    world = filled()
    faulty = FaultyObjectStore(world.objects)
    engine = world.open(objects=faulty)
    faulty.die()
    for _ in range(2):
        with pytest.raises(ObjectStoreUnavailableError):
            engine.archive(everything=True, drop_hot=True)
    assert len(everything(engine)) == 60
    engine.append([Message("orders", b"still taken")])
    faulty.revive()
    engine.archive(everything=True, drop_hot=True)
    assert engine.check(deep=True) == []
    assert len(everything(engine)) == 61


def test_flaky_bucket(seed: int) -> None:
    world, chance = filled(), random.Random(seed)
    faulty = FaultyObjectStore(world.objects)
    engine = world.open(objects=faulty)
    for _ in range(60):
        kind = chance.choice((faulty.fail_before, faulty.fail_after))
        kind(
            chance.choice(("put", "upload", "head", "get", "get_if_changed", "get_range")),
            times=chance.choice((1, 2, 7)),
        )
        try:
            engine.archive(everything=True, drop_hot=True)
            engine.append([Message("orders", b"more")])
        except UnavailableError:
            pass  # nothing else may come of it
    faulty.heal()
    engine.archive(everything=True, drop_hot=True)
    assert engine.check(deep=True) == []
    assert engine.read_only_reason is None
    bases = [entry.base for entry in world.entries()]
    assert bases == [number * 4096 for number in range(len(bases))]


def test_a_fenced_store_turns_read_only_and_loses_nothing() -> None:
    world = filled()
    engine = world.open()
    engine.archive()
    copy = World(settings=tiny_settings(4096), fs=world.fs.crash(1), objects=world.objects, seed=1)
    taken = copy.open()
    taken.archive(everything=True)
    with pytest.raises(FencedError):
        engine.archive(everything=True)
    with pytest.raises(ReadOnlyError):
        engine.append([Message("orders", b"x")])
    assert engine.read_only_reason is not None
    assert len(everything(engine)) == 60
    assert len(everything(taken)) == 60


def test_another_volume_is_refused_at_the_door() -> None:
    world = filled()
    world.open().archive()
    stranger = World(settings=tiny_settings(4096), objects=world.objects, seed=1)
    before = dict(stranger.fs._names)
    with pytest.raises(StoreMismatchError, match="belongs to volume"):
        stranger.open()
    assert {path for path in stranger.fs._names if path.name != "lock"} == set(before)


def test_archiver_goes_in_order_only() -> None:
    world = filled()
    engine = world.open()
    hot = engine._hot
    manifest = ManifestStore(world.objects, ColdKeys("store"), randomness=SeededRandomness(5), options=ColdOptions())
    owner = Ownership("v", "o", ("o",))
    head = manifest.claim(owner, log_begin=0, log_end=hot.log.end)
    groups = GroupOffsets(world.fs, StorePaths(ROOT), "s", lambda: None)
    deliveries = DeliveryStates(world.fs, StorePaths(ROOT), lambda: None)
    state = StateWriter(
        hot, groups, deliveries, volume_id="v", manifest=manifest, clock=world.clock, randomness=SeededRandomness(7)
    )
    archiver = Archiver(hot, manifest, SeededRandomness(6), state)
    waiting = archiver.waiting(head)
    assert [segment.base_offset for segment in waiting] == [0, 4096]
    with pytest.raises(StoreError, match="not the next"):
        archiver.archive(waiting[1], head)
    head = archiver.archive(waiting[0], head)
    assert archiver.waiting(head) == waiting[1:]
    with pytest.raises(StoreError, match="not the next"):
        archiver.archive(waiting[0], head)
    assert manifest.state(manifest.reader(), head).topics[0].name == "pays"
    known = head.state
    assert archiver.archive(waiting[1], head).state == known, "topics did not change"


def test_a_damaged_segment_is_not_archived() -> None:
    world = filled()
    engine = world.open()
    file = world.fs.open(Path(ROOT / "commitlog" / f"{0:020d}"))
    file.write_at(100, b"\xff\xff")
    file.close()
    with pytest.raises(StoreError):
        engine.archive(everything=True, drop_hot=True)
    assert world.entries() == []
    assert engine._hot.border == 0
