"""The hot store as a state machine beside a plain list: append, flush, roll, remove, kill, power cut, reopen."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.crash_fs import CrashFileSystem
from tests.support.hot_stores import HotWorld, append, queue_offsets
from tiering.batch import Message
from tiering.check import check_store
from tiering.hot.store import HotStore
from tiering.types import Durability

TOPICS = ("a", "orders", "%DLQ%" + "w" * 150)
Queue = tuple[str, int]

messages = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.integers(1, 900).map(lambda size: b"x" * size),
    keys=st.lists(st.sampled_from("pqr"), max_size=2),
    tag=st.sampled_from(["", "t"]),
    queue_id=st.integers(0, 1),
)


class HotMachine(RuleBasedStateMachine):
    """Model: per queue the bodies by queue offset, how many of them are promised, and the least that is kept."""

    hot: HotStore

    @initialize()
    def make(self) -> None:
        self.world = HotWorld(queue_file_units=7)
        self.hot = self.world.open()
        self.bodies: dict[Queue, list[bytes]] = {}
        self.promised: dict[Queue, int] = {}

    @property
    def fs(self) -> CrashFileSystem:
        assert isinstance(self.world.fs, CrashFileSystem)
        return self.world.fs

    def promise(self) -> None:
        self.promised = {queue: len(bodies) for queue, bodies in self.bodies.items()}

    @rule(batch=st.lists(messages, min_size=1, max_size=5), durability=st.sampled_from(list(Durability)))
    def append(self, batch: list[Message], durability: Durability) -> None:
        result = append(self.hot, *batch, durability=durability)
        for message, queue_offset in zip(batch, result.queue_offset.tolist(), strict=True):
            mine = self.bodies.setdefault((message.topic, message.queue_id), [])
            assert queue_offset == len(mine)
            mine.append(message.body)
        if durability is Durability.FLUSHED:
            self.promise()

    @rule()
    def flush(self) -> None:
        self.hot.flush()
        self.promise()

    @rule()
    def roll(self) -> None:
        rolls = self.hot.log.end > self.hot.log.last_base
        self.hot.roll()
        if rolls:
            self.promise()

    @rule()
    def checkpoint(self) -> None:
        self.hot.dispatch()
        self.hot.checkpoint()

    @rule(keep=st.integers(0, 2))
    def remove(self, keep: int) -> None:
        self.hot.dispatch()
        bases = self.hot.log.bases()
        self.hot.remove_below(bases[max(0, len(bases) - 1 - keep)], forget=lambda _: None)

    @rule(step=st.integers(-5000, 5000))
    def clock_steps(self, step: int) -> None:
        self.world.clock.step(step)

    @rule()
    def reopen(self) -> None:
        self.hot.close()
        self.promise()
        self.hot = self.world.open()

    @rule()
    def kill(self) -> None:
        self.fs.kill()
        self.hot = self.world.open()
        self.promise()

    @rule(seed=st.integers(0, 1 << 16), lose_everything=st.booleans())
    def power_cut(self, seed: int, lose_everything: bool) -> None:
        self.world.fs = self.fs.crash(seed, lose_everything=lose_everything)
        self.hot = self.world.open()
        for (topic, queue_id), bodies in self.bodies.items():
            found = self.hot.topics.find(topic)
            kept = 0 if found is None else self.hot.next_offset(found, queue_id)
            assert self.promised.get((topic, queue_id), 0) <= kept <= len(bodies)
            del bodies[kept:]
        self.promise()

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.hot.read_only_reason is None
        assert check_store(self.hot) == []
        for (topic, queue_id), bodies in self.bodies.items():
            found = self.hot.topics.find(topic)
            offsets = [] if found is None else queue_offsets(self.hot, topic, queue_id)
            if offsets:
                assert offsets == list(range(offsets[0], offsets[-1] + 1))
                with self.hot.snapshot() as snapshot:
                    assert found is not None
                    view = self.hot.queue_views(found)[queue_id]
                    for offset in (offsets[0], offsets[-1]):
                        unit = view.units(offset, offset + 1)[0]
                        assert snapshot.record(int(unit["physical_offset"])).body == bodies[offset]


TestHotMachine = HotMachine.TestCase
TestHotMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
