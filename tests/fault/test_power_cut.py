"""A store whose power goes at any moment keeps what it promised, nothing twice, and its parts agree.

One run of the workload gives the wrecks of many moments: the disk is copied, as a power cut would leave it, while the
run goes on. ``POWER_CUTS`` in the environment asks for more of them than the default.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path

import pytest

from service.engine import Engine
from tests.support.crash_fs import CrashFileSystem, PowerCut
from tests.support.faulty_store import FaultyObjectStore
from tests.support.power_world import (
    ROOT,
    Notes,
    Place,
    PowerWorld,
    Wreck,
    everything,
    reopen,
    verify_engine,
)
from tiering.batch import Message
from tiering.checks.store import check_store
from tiering.message import StoredMessage

STEPS = 70
RUNS = 3
CUTS = int(os.environ.get("POWER_CUTS", "0")) or 150


def chosen_calls(seed: int, count: int) -> set[int]:
    """Numbers of calls to cut at: as many of each kind, whether it is made often or seldom, as there are."""
    kinds: dict[str, list[int]] = {}

    def note(number: int, operation: str, path: Path) -> None:
        place = "/".join(path.parts[1:5] if path.parts[1] == ROOT.name else path.parts[:1])
        kinds.setdefault(f"{operation} {re.sub('[0-9a-f]{8,}', '', place)}", []).append(number)

    world = PowerWorld(seed)
    world.fs.on_call = note
    steps = world.run(STEPS)
    assert len(steps) >= 8, f"the workload is too short to mean anything: {steps}"
    chance = random.Random(seed)
    for numbers in kinds.values():
        chance.shuffle(numbers)
    rounds = (number for each in zip_longest(*kinds.values()) for number in each if number is not None)
    return set(islice(rounds, count))


@pytest.mark.parametrize("run", range(RUNS))
def test_power_cut_anywhere(seed: int, run: int) -> None:
    seed = seed * RUNS + run
    wanted = chosen_calls(seed, CUTS // RUNS)
    tried: Counter[str] = Counter()

    def examine(wreck: Wreck) -> None:
        try:
            recovered_calls = examine_first(wreck)
            examine_second(wreck, recovered_calls)
        except BaseException as error:
            error.add_note(f"seed {seed}, cut at call {wreck.number}: {wreck.call}")
            raise
        tried[wreck.call.partition(" /")[0]] += 1

    world = PowerWorld(seed)
    world.watch(lambda number, _: number in wanted, examine)
    world.run(STEPS)
    assert sum(tried.values()) == len(wanted)


def examine_first(wreck: Wreck) -> int:
    """Open the wreck, compare, and let the store work on; returns how many calls the recovery took."""
    fs = wreck.fs.crash(0)
    engine = reopen(wreck, fs, wreck.objects.copy())
    calls = fs.calls
    found = verify_engine(engine, wreck.notes, deep=wreck.number % 8 == 0, queries=wreck.number % 2 == 0)
    if wreck.number % 4 == 0:
        works_on(engine, wreck, found)
    if wreck.number % 4 == 1:
        opens_without_the_archive(wreck)
    return calls


def works_on(engine: Engine, wreck: Wreck, found: dict[Place, StoredMessage]) -> None:
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
    """A dead bucket keeps nobody from opening, writing, or reading what is hot; nothing is lost by it."""
    fs, objects = wreck.fs.crash(0), FaultyObjectStore(wreck.objects.copy())
    objects.die()
    engine = reopen(wreck, fs, objects)
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


def sent_as(message: Message, engine: Engine, place: Place) -> Message:
    """The message with the born time that the store gave it."""
    topic, queue_id, offset = place
    (stored,) = engine.pull(topic, queue_id, offset, 1).messages
    return Message(message.topic, message.body, message.keys, born_ms=stored.record.born_ms)


def examine_second(wreck: Wreck, recovered_calls: int) -> None:
    """Cut the recovery as well, then recover from that."""
    cut_at = random.Random(wreck.seed).randrange(1, recovered_calls + 1)
    fs = wreck.fs.crash(0, cut_at=cut_at)
    objects = wreck.objects.copy(fs)
    with pytest.raises(PowerCut):
        reopen(wreck, fs, objects, 1)
    engine = reopen(wreck, fs.crash(wreck.seed), objects.copy(), 2)
    verify_engine(engine, wreck.notes, queries=wreck.number % 2 == 1)


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
