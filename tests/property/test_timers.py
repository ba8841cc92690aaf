"""Delayed messages as a state machine beside plain sets: whatever happens, each is delivered once and not early.

Send, call back, let time pass, step the clock, archive, drop the hot copies, stop cleanly, be killed or lose power in
the middle of any step, and be restored into another volume from what the archive has.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.fs.crash_fs import PowerCut
from tests.support.stores.delay_world import DelayWorld
from tests.support.stores.engines import small_settings
from tierlog.service.delivery.timers import Scheduled
from tierlog.tiering.base.errors import InvalidRequestError, TopicNotFoundError
from tierlog.tiering.message.waiting import RECALLED, TIMER_TOPIC

TOPICS = ("orders", "payments")
DELAYS = st.one_of(st.integers(1, 50), st.integers(1, 3_000), st.integers(1, 3_000_000))
CUTS = st.one_of(st.none(), st.integers(1, 12))
LATER_MS = 40 * 86_400_000


class TimerMachine(RuleBasedStateMachine):
    """One store; what was asked for and what was promised is noted beside it."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.world = DelayWorld(settings=small_settings(hot__segment_bytes=16_384, cold__disk_cache_bytes=0), seed=seed)
        #: What was sent, by its body.
        self.sent: dict[str, Scheduled] = {}
        #: What must arrive, and what must not.
        self.told: set[str] = set()
        self.called_back: set[str] = set()
        #: What may arrive or not: the process died before the answer.
        self.doubtful: set[str] = set()
        self.volumes = 0

    def take(self, step: Callable[[], object], cut: int | None, *, kill: bool, seed: int = 0) -> bool:
        """Take a step on a disk whose power goes somewhere in it, or whose process dies there; whether it ended."""
        world = self.world
        if cut is not None:
            world.fs.cut_at = world.fs.calls + cut
        is_done = False
        with contextlib.suppress(PowerCut):
            step()
            is_done = True
        world.fs.cut_at = None
        if world.fs.is_dead:  # also behind the answer, where what is derived is checkpointed
            world.fs = world.fs.after_kill() if kill else world.fs.crash(seed)
            self.reopen()
        return is_done

    def reopen(self) -> None:
        self.world.fs.kill()
        self.world.open(f"volume-{self.volumes}" if self.volumes else None)

    @rule(
        delays=st.lists(DELAYS, min_size=1, max_size=6), size=st.sampled_from([10, 10, 1500]),
        topic=st.sampled_from(TOPICS), cut=CUTS, kill=st.booleans(),
    )  # fmt: skip
    def send(self, delays: list[int], size: int, topic: str, cut: int | None, *, kill: bool) -> None:
        for delay_ms in delays:
            body = f"{len(self.sent)}-{'x' * size}"

            def step(body: str = body, delay_ms: int = delay_ms) -> None:
                entry = self.world.send(body, delay_ms, topic=topic, queue_id=len(body) % 2)
                assert entry is not None
                self.sent[body] = entry

            if self.take(step, cut, kill=kill):
                self.told.add(body)
            else:
                self.sent.setdefault(body, Scheduled(topic, 0, b"", 0))
                self.doubtful.add(body)

    @rule(
        ms=st.one_of(st.integers(0, 100), st.integers(0, 3_000_000)),
        cut=CUTS,
        kill=st.booleans(),
        seed=st.integers(0, 99),
    )
    def pass_time(self, ms: int, cut: int | None, seed: int, *, kill: bool) -> None:
        self.take(lambda: self.world.pass_time(ms), cut, kill=kill, seed=seed)

    @rule(cut=CUTS, kill=st.booleans(), seed=st.integers(0, 99))
    def move_on(self, cut: int | None, seed: int, *, kill: bool) -> None:
        """Have all that is pending appended again, as if the log were to go."""
        self.world.timers.run_once()
        self.world.timers.keep(1 << 62, LATER_MS + self.world.clock.now_ms())
        self.take(self.world.timers.run_once, cut, kill=kill, seed=seed)

    @rule(ms=st.integers(-4_000_000, 4_000_000))
    def step_clock(self, ms: int) -> None:
        self.world.clock.step(ms)

    @rule(data=st.data(), cut=CUTS, kill=st.booleans())
    def call_back(self, data: st.DataObject, cut: int | None, *, kill: bool) -> None:
        known = sorted(body for body in self.told if self.sent[body].due_ms)
        if not known:
            return
        body = data.draw(st.sampled_from(known))
        entry = self.sent[body]
        topic = dict(piece.split(b"\x01") for piece in entry.properties.split(b"\x02") if piece)[b"REAL_TOPIC"].decode()
        refused = []

        def step() -> None:
            try:
                self.world.recall(entry, topic)
            except InvalidRequestError:
                refused.append(True)

        if not self.take(step, cut, kill=kill):
            self.told.discard(body)
            self.doubtful.add(body)
        elif not refused:
            self.told.discard(body)
            self.doubtful.discard(body)
            self.called_back.add(body)

    @rule(drop_hot=st.booleans(), everything=st.booleans())
    def archive(self, *, drop_hot: bool, everything: bool) -> None:
        self.world.engine.archive(everything=everything, drop_hot=drop_hot)

    @rule(way=st.sampled_from(["close", "kill", "power"]), seed=st.integers(0, 99))
    def stop(self, way: str, seed: int) -> None:
        if way == "close":
            self.world.engine.close()
        elif way == "power":
            self.world.cut_power(seed)
        else:
            self.world.fs = self.world.fs.after_kill()
        self.reopen()

    @rule()
    def restore(self) -> None:
        """What the archive has not is lost, as with any volume."""
        world = self.world
        if not world.engine.stats().get("archived_to"):
            world.engine.archive(everything=True)
        world.engine.close()
        kept, recalled = self.archived()
        self.told = {body for body in self.told | self.called_back if body in kept}
        self.doubtful &= kept
        self.called_back = {body for body in self.called_back if body in recalled}
        self.told -= self.called_back
        self.doubtful |= {body for body in self.told if body in recalled}
        self.told -= self.doubtful
        self.volumes += 1
        world.restore(f"volume-{self.volumes}")

    def archived(self) -> tuple[set[str], set[str]]:
        """Bodies in the archive's timer topic, and unique keys called back there."""
        kept, recalled = set(), set()
        with contextlib.closing(self.world.cold()) as cold, contextlib.suppress(TopicNotFoundError):
            at = 0
            while True:
                found = cold.pull(TIMER_TOPIC, 0, at, 1000)
                for message in found.messages:
                    properties = message.record.properties
                    if RECALLED in properties:
                        recalled.add(properties[RECALLED])
                    else:
                        kept.add(message.record.body.decode())
                if found.next_offset <= at or found.next_offset >= found.max_offset:
                    break
                at = found.next_offset
        return kept, recalled

    def arrived(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for topic in TOPICS:
            for message in self.world.arrived(topic):
                properties = message.record.properties
                assert int(properties["TIMER_DEQUEUE_MS"]) >= int(properties["TIMER_OUT_MS"])
                found[message.record.body.decode()] += 1
        return found

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        found = self.arrived()
        assert max(found.values(), default=1) == 1
        assert not self.called_back & found.keys()
        world.clock.advance(LATER_MS)
        world.timers.run_once()
        self.reopen()
        world.timers.run_once()
        found = self.arrived()
        assert max(found.values(), default=1) == 1
        assert found.keys() >= self.told
        assert not self.called_back & found.keys()
        assert found.keys() <= self.told | self.doubtful
        assert world.timers.pending() == 0
        assert world.engine.check() == []


@pytest.mark.parametrize("examples", [25, pytest.param(150, marks=pytest.mark.slow)])
def test_each_delayed_message_is_delivered_once_whatever_happens(examples: int) -> None:
    run_state_machine_as_test(TimerMachine, settings=settings(max_examples=examples, stateful_step_count=20))
