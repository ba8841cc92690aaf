"""A store whose power goes at any moment keeps what it promised, nothing twice, and its parts agree.

One run of the workload gives the wrecks of many moments: the disk is copied, as a power cut would leave it, while the
run goes on. ``POWER_CUTS`` in the environment asks for more of them than the default.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.index.index_items import verify_items
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.power_world import (
    Notes,
    Place,
    PowerWorld,
    Wreck,
    everything,
    recover_twice,
    reopen,
    spread_calls,
    verify_engine,
)
from tests.support.world import ROOT
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.hot.identity import is_made
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage

pytestmark = pytest.mark.usefixtures("in_small_steps")
STEPS = 70
RUNS = 3
CUTS = int(os.environ.get("POWER_CUTS", "0")) or 150


@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
def test_power_cut_anywhere(seed: int, run: int) -> None:
    seed = seed * RUNS + run
    steps: dict[str, int] = {}
    first = PowerWorld(seed)
    wanted = spread_calls(first, lambda: steps.update(first.run(STEPS)), CUTS // RUNS)
    assert len(steps) >= 8, f"the workload is too short to mean anything: {steps}"
    tried: Counter[str] = Counter()

    def take(wreck: Wreck) -> None:
        def examine(engine: Store, fs: CrashFileSystem, again: bool) -> None:
            if again:
                verify_engine(engine, wreck.notes, queries=wreck.number % 2 == 1)
                return
            found = verify_engine(engine, wreck.notes, deep=wreck.number % 8 == 0, queries=wreck.number % 2 == 0)
            if wreck.number % 8 == 0:
                verify_items(engine, (message.record for message in found.values()), fs, StorePaths(ROOT).index)
            if wreck.number % 4 == 0:
                works_on(engine, wreck, found)
            if wreck.number % 4 == 1:
                opens_without_the_archive(wreck)

        recover_twice(wreck, examine)
        tried[wreck.call.partition(" /")[0]] += 1

    world = PowerWorld(seed)
    world.watch(lambda number, _: number in wanted, take)
    world.run(STEPS)
    assert sum(tried.values()) == len(wanted)


def works_on(engine: Store, wreck: Wreck, found: dict[Place, StoredMessage]) -> None:
    """New messages follow the old ones, and all of it can go to the archive."""
    fresh = [Message("orders", b"after the cut %d" % number, ["key-0"]) for number in range(5)]
    results = engine.append(fresh)
    notes = replace(
        wreck.notes,
        attempted=wreck.notes.attempted | {message.body: message for message in fresh},
        durable={message.record.body: place for place, message in found.items()}
        | {
            message.body: ("orders", result.queue_id, result.queue_offset)
            for message, result in zip(fresh, results, strict=True)
        },
    )
    for message in fresh:
        notes.attempted[message.body] = sent_as(message, engine, notes.durable[message.body])
    engine.archive(everything=True, drop_hot=True)
    verify_engine(engine, notes, queries=False)
    engine.close()


def opens_without_the_archive(wreck: Wreck) -> None:
    """A dead bucket keeps nobody from opening, writing, or reading what is hot; nothing is lost by it.

    A store that the cut left unmade is not made meanwhile: its archive has to say that it is not there.
    """
    fs, objects = wreck.fs.crash(0), FaultyObjectStore(wreck.objects.copy())
    objects.die()
    try:
        engine = reopen(wreck, fs, objects)
    except ObjectStoreUnavailableError:
        assert not is_made(fs, StorePaths(ROOT)), "a store that is made opens without its archive"
        assert not wreck.notes.durable
        return
    border = engine.stats()["log_begin"]
    assert check_store(engine._hot) == []
    message = Message("orders", b"without the archive", born_ms=1)
    (appended,) = engine.append([message])
    engine.close()
    engine = reopen(wreck, fs, objects.inner, 1)
    assert engine.stats()["log_begin"] == border
    place = ("orders", appended.queue_id, appended.queue_offset)
    notes = replace(
        wreck.notes,
        attempted=wreck.notes.attempted | {message.body: message},
        durable=wreck.notes.durable | {message.body: place},
    )
    verify_engine(engine, notes, queries=False)


def sent_as(message: Message, engine: Store, place: Place) -> Message:
    """The message with the born time that the store gave it."""
    topic, queue_id, offset = place
    (stored,) = engine.pull(topic, queue_id, offset, 1).messages
    return Message(message.topic, message.body, message.keys, born_ms=stored.record.born_ms)


def test_uncut_run_keeps_everything(seed: int) -> None:
    world = PowerWorld(seed)
    world.run(STEPS)
    wreck = Wreck(
        0, "clean stop", world.fs.crash(0, lose_everything=True), world.objects,
        world.notes(), seed, world.clock.now_ms(),
    )  # fmt: skip
    engine = reopen(wreck, wreck.fs.crash(0), world.objects.copy())
    found = verify_engine(engine, wreck.notes, deep=True)
    assert {message.record.body for message in found.values()} == set(world.attempted)


def test_power_cut_at_every_call_of_the_first_open(seed: int) -> None:
    """A store that is being made is made by the next open, whatever is left of it."""
    world = PowerWorld(seed)
    whole = world.fs.crash(0)
    empty = Wreck(0, "first open", whole, world.objects.copy(), Notes({}, {}), seed, world.clock.now_ms())
    reopen(empty, probe := whole.crash(0), world.objects.copy())
    for number in range(1, probe.calls + 1):
        fs = whole.crash(0, cut_at=number)
        with pytest.raises(PowerCut):
            reopen(empty, fs, world.objects.copy())
        engine = reopen(empty, fs.crash(number), world.objects.copy(), 1)
        assert engine.check() == []
        assert everything(engine) == {}
        engine.append([Message("orders", b"first")])
        assert [message.record.body for message in everything(engine).values()] == [b"first"]


def test_every_call_fails_once_the_power_is_gone() -> None:
    fs = CrashFileSystem(cut_at=3)
    world = PowerWorld(1)
    wreck = Wreck(0, "", fs, world.objects, Notes({}, {}), 1, world.clock.now_ms())
    with pytest.raises(PowerCut):
        reopen(wreck, fs, world.objects.copy())
    assert fs.calls == 3
    with pytest.raises(PowerCut):
        fs.list_dir(ROOT)
    assert fs.is_dead
