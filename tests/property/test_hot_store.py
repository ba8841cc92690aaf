"""The hot tier as a state machine beside plain lists: every step that a store without an archive can take.

Append, flush, roll, dispatch, checkpoint, seal, compact, expire, pull, query, kill, power cut, reopen; the key index is
attached as in a running store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import NOW_MS, ROOT
from tierlog.index.search.query import Query
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability, Order, PullStatus
from tierlog.tiering.message.batch import Message

TOPICS = ("a", "orders", "%DLQ%" + "w" * 150)
KEYS = "pqr"
SETTINGS = Settings(
    advertise="10.0.0.1:7777", hot=HotSettings(segment_bytes=4096, queue_file_units=7, default_queues=2),
    index=IndexSettings(slots=3, items=9),
)  # fmt: skip
Queue = tuple[str, int]

messages = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.integers(1, 900).map(lambda size: b"x" * size),
    keys=st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
    tag=st.sampled_from(["", "t"]),
    queue_id=st.integers(0, 1),
)


@dataclass(frozen=True)
class Kept:
    """One message of the model; ``physical_offset`` says whether it is flushed and whether it is still hot."""

    message: Message
    physical_offset: int
    store_ms: int


class HotMachine(RuleBasedStateMachine):
    """Model: per queue its messages by queue offset, and how many of them are promised."""

    engine: Store

    @initialize()
    def make(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.fs = CrashFileSystem()
        self.fs.make_dirs(ROOT.parent)
        self.opens = 0
        self.queues: dict[Queue, list[Kept]] = {}
        self.promised: dict[Queue, int] = {}
        self.open()

    def open(self) -> None:
        self.opens += 1
        randomness = SeededRandomness(self.opens)
        self.engine = Store.open(ROOT, settings=SETTINGS, clock=self.clock, fs=self.fs, randomness=randomness)

    def promise(self) -> None:
        self.promised = {queue: len(kept) for queue, kept in self.queues.items()}

    def readable(self, queue: Queue) -> list[tuple[int, Kept]]:
        """Queue offsets and messages that are flushed and hot."""
        border, flushed = self.engine._hot.border, self.engine._hot.log.flushed
        kept = enumerate(self.queues.get(queue, []))
        return [(offset, each) for offset, each in kept if border <= each.physical_offset < flushed]

    # ---- writing

    @rule(
        batch=st.lists(messages, min_size=1, max_size=5),
        durability=st.sampled_from([Durability.ASYNC, Durability.FLUSHED]),
    )
    def append(self, batch: list[Message], durability: Durability) -> None:
        results = self.engine.append(batch, durability)
        for message, result in zip(batch, results, strict=True):
            mine = self.queues.setdefault((message.topic, message.queue_id), [])
            assert (result.queue_id, result.queue_offset) == (message.queue_id, len(mine))
            mine.append(Kept(message, int(result.message_id[16:], 16), result.store_ms))
        if durability is not Durability.ASYNC:
            self.promise()

    @rule(step=st.sampled_from(["flush", "roll", "prepare", "dispatch", "checkpoint", "seal", "compact"]))
    def run_maintenance(self, step: str) -> None:
        """One rule for all of them, so that appends and stops are as frequent as they should be."""
        hot, index = self.engine._hot, self.engine._index
        rolls = step == "roll" and hot.log.end > hot.log.last_base
        steps: dict[str, Callable[[], object]] = {
            "flush": hot.flush, "roll": hot.roll, "prepare": hot.log.prepare_next, "dispatch": hot.dispatch,
            "checkpoint": hot.checkpoint, "seal": index.seal, "compact": index.compact_sealed,
        }  # fmt: skip
        steps[step]()
        if step == "flush" or rolls:
            self.promise()

    @rule(keep=st.integers(0, 2))
    def expire(self, keep: int) -> None:
        hot = self.engine._hot
        hot.dispatch()
        bases = hot.log.bases()
        hot.remove_below(bases[max(0, len(bases) - 1 - keep)], forget=self.engine._index.remove_below)

    @rule(step=st.integers(-5000, 5000))
    def clock_steps(self, step: int) -> None:
        self.clock.step(step)

    # ---- stopping

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.promise()
        self.open()

    @rule()
    def kill(self) -> None:
        self.fs.kill()
        self.open()
        self.promise()

    @rule(seed=st.integers(0, 1 << 16), lose_everything=st.booleans())
    def power_cut(self, seed: int, lose_everything: bool) -> None:
        self.fs = self.fs.crash(seed, lose_everything=lose_everything)
        self.open()
        ends = {(topic.name, queue.queue_id): queue.max_offset for topic in self.engine.topics()
                for queue in topic.queues}  # fmt: skip
        for queue, kept in self.queues.items():
            end = ends.get(queue, 0)
            assert self.promised.get(queue, 0) <= end <= len(kept)
            del kept[end:]
        self.promise()

    # ---- reading

    @rule(
        queue=st.tuples(st.sampled_from(TOPICS), st.integers(0, 1)), offset=st.integers(0, 60),
        limit=st.integers(1, 9), tag=st.sampled_from([None, "t"]),
    )  # fmt: skip
    def pull(self, queue: Queue, offset: int, limit: int, tag: str | None) -> None:
        if self.engine._hot.topics.find(queue[0]) is None or queue not in self.queues:
            return
        pulled = self.engine.pull(*queue, offset, limit, tag)
        readable = self.readable(queue)
        end = pulled.max_offset
        assert end == (readable[-1][0] + 1 if readable else pulled.min_offset)
        assert pulled.min_offset == (readable[0][0] if readable else end)
        if offset < pulled.min_offset:
            assert pulled.status is PullStatus.OFFSET_TOO_SMALL
        elif offset > end:
            assert pulled.status is PullStatus.OFFSET_TOO_LARGE
        else:
            wanted = [(at, each) for at, each in readable if at >= offset and tag in (None, each.message.tag)][:limit]
            found = [(each.record.queue_offset, each.record.body) for each in pulled.messages]
            assert found == [(at, each.message.body) for at, each in wanted]

    @rule(
        topic=st.sampled_from(TOPICS), key=st.sampled_from([None, *KEYS]), limit=st.integers(1, 20),
        order=st.sampled_from(list(Order)), times=st.tuples(st.integers(-4000, 4000), st.integers(1, 5000)),
    )  # fmt: skip
    def query(self, topic: str, key: str | None, limit: int, order: Order, times: tuple[int, int]) -> None:
        if self.engine._hot.topics.find(topic) is None:
            return
        start, end = NOW_MS + times[0], NOW_MS + times[0] + times[1]
        matching = sorted(
            (each.store_ms, each.physical_offset)
            for queue in self.queues
            if queue[0] == topic
            for _, each in self.readable(queue)
            if start <= each.store_ms < end and (key is None or key in each.message.keys)
        )
        answer = self.engine.query(Query(topic, key, start, end, limit, order=order))
        found = [(each.record.store_ms, each.record.physical_offset) for each in answer.messages]
        assert found == (matching if order is Order.OLDEST else matching[::-1])[:limit]
        assert answer.coverage.complete
        assert (answer.next_cursor is not None) or len(matching) <= limit

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.engine.read_only_reason is None
        assert self.engine.check() == []
        for queue in self.queues:
            readable = self.readable(queue)
            if readable:
                pulled = self.engine.pull(*queue, readable[0][0], 1000)
                assert [each.record.body for each in pulled.messages] == [each.message.body for _, each in readable]


TestHotMachine = HotMachine.TestCase
TestHotMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
