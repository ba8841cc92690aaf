"""A power cut at every call to the disk while messages are delivered: nothing is lost, nothing comes out of order.

One run of a seeded workload is cut at one call after the other. After each, the store is opened again and all that is
left is consumed. An acknowledged message may come again only if it was acknowledged after the last save that was over.
"""

from __future__ import annotations

import random

import pytest

from tests.support.fs.crash_fs import PowerCut
from tests.support.service.delivery_world import DeliveryWorld
from tierlog.tiering.base.errors import StoreError

MAX_ATTEMPTS = 2
LINES = ("", "A", "B")
_STEPS, _SAMPLES = 24, 12


class Workload:
    """What was promised until the power went."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = DeliveryWorld(seed=seed)
        self.line_of: dict[str, str] = {}
        self.done: set[str] = set()
        """Acknowledged, or given up and told so."""
        self.noted: set[str] = set()
        """Of these, what was done when the last save that was over began."""

    def run(self, steps: int) -> None:
        """Send, consume, note."""
        world, chance = self.world, self.chance
        for number in range(steps):
            line = chance.choice(LINES)
            body = f"{number:03d}"
            world.send(body, line=line)
            self.line_of[body] = line
            for one in world.receive(limit=2, fifo=True, invisible_ms=1_000, max_attempts=MAX_ATTEMPTS):
                self.answer(one.handle, one.message.record.body.decode())
            world.clock.advance(chance.choice((0, 400, 1_100)))
            if number % 4 == 3:
                done = set(self.done)
                world.deliveries.save()
                self.noted = done
        self.world.close()
        self.noted = set(self.done)

    def answer(self, handle: str, body: str) -> None:
        say = self.chance.choice(("done", "done", "later", "dead", "nothing"))
        if say == "done":
            self.world.deliveries.acknowledge(handle)
            self.done.add(body)
        elif say == "later":
            self.world.deliveries.nack(handle, delay_ms=300)
        elif say == "dead":
            self.world.deliveries.forward_to_dead_letters(handle)
            self.done.add(body)

    def verify(self, acknowledged: int) -> None:
        """Consume what is left in a store that was opened after the cut."""
        world = self.world
        world.start()
        letters = {letter.record.body.decode() for letter in world.dead_letters()}
        assert len(letters) == len(world.dead_letters()), "a dead letter is there once"
        found: list[str] = []
        for _ in range(2 * acknowledged + 4):
            world.clock.advance(2_000)
            for one in world.receive(limit=2, fifo=True, invisible_ms=1_000, max_attempts=MAX_ATTEMPTS):
                found.append(one.message.record.body.decode())
                world.deliveries.acknowledge(one.handle)
        letters |= {letter.record.body.decode() for letter in world.dead_letters()}
        assert len(letters) == len(world.dead_letters())
        assert not self.noted & set(found), "what was noted as done comes again"
        assert self.line_of.keys() <= self.done | set(found) | letters, "a message is lost"
        for line in ("A", "B"):
            of_line = [body for body in found if self.line_of.get(body) == line]
            assert of_line == sorted(of_line), "a message group is out of order"
        world.restart()
        world.clock.advance(10_000)
        assert world.receive(fifo=True) == []
        assert world.engine.check() == []
        world.close()


def cut(seed: int, number: int, *, lose_everything: bool) -> bool:
    """Cut one run at a call to the disk; whether the run was over before."""
    run = Workload(seed)
    run.world.fs.cut_at = run.world.fs.calls + number
    try:
        run.run(_STEPS)
    except PowerCut:
        is_over = False
    else:
        is_over = True
    run.world.fs = run.world.fs.crash(seed + number, lose_everything=lose_everything)  # type: ignore[assignment]
    run.verify(len(run.line_of))
    return is_over


@pytest.mark.parametrize("lose_everything", [False, True])
def test_a_power_cut_at_sampled_calls(seed: int, lose_everything: bool) -> None:
    uncut = Workload(seed)
    before = uncut.world.fs.calls
    uncut.run(_STEPS)
    calls = uncut.world.fs.calls - before
    chance = random.Random(seed)
    were_over = [cut(seed, chance.randrange(1, calls), lose_everything=lose_everything) for _ in range(_SAMPLES)]
    assert not all(were_over)


@pytest.mark.slow
@pytest.mark.parametrize("lose_everything", [False, True])
def test_a_power_cut_at_every_call(seed: int, lose_everything: bool) -> None:
    for number in range(1, 5_000):
        if cut(seed, number, lose_everything=lose_everything):
            break
    assert number > 100


def test_a_failed_save_is_made_good_by_the_next_one() -> None:
    world = DeliveryWorld()
    world.send("a")
    (only,) = world.receive()
    world.deliveries.acknowledge(only.handle)
    world.engine.groups.claim = _refuse
    with pytest.raises(StoreError):
        world.receive(group="other")
    world.engine.groups.claim = lambda name: None
    world.restart()
    assert (world.committed(), world.receive()) == (1, [])
    world.close()


def _refuse(name: str) -> None:
    raise StoreError(f"no home for {name}")
