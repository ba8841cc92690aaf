"""A seeded workload on a whole store, and what must be true of that store after any power cut.

:class:`PowerWorld` runs a store on a :class:`~tests.support.fs.crash_fs.CrashFileSystem` and a memory object store, and
notes beside it, in plain dictionaries, what was asked for and what was promised. A :class:`Wreck` is the world at one
moment of that run with the power gone; :func:`verify` opens one and compares it with the notes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.engines import small_settings
from tests.support.world import ROOT, URL, World
from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability, Order, PullStatus, TimeAxis, Visibility
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore

TOPICS = ("orders", "pay-ments", "%RETRY%group_1", "%DLQ%" + "w" * 140)
KEYS = tuple(f"key-{number}" for number in range(12))
Queue = tuple[str, str, int]
Place = tuple[str, int, int]
GROUP = "group"
Step = Callable[[Store], Store | None]


def tiny_settings(segment_bytes: int = 8192, visibility: Visibility = Visibility.FLUSHED) -> Settings:
    """Sizes at which a few hundred messages cross every border."""
    return small_settings(
        hot__segment_bytes=segment_bytes, hot__visibility=visibility.value, index__classic=True,
        index__classic_slots=20, index__classic_items=40, cold__disk_cache_bytes=0,
    )  # fmt: skip


class CountedObjectStore(MemoryObjectStore):
    """An object store in memory whose writes are places where the power may go, before and after."""

    def __init__(self, clock: ManualClock, fs: CrashFileSystem | None = None) -> None:
        super().__init__(clock)
        self._fs = fs

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        self._count("before put", key)
        info = super().put(key, data, if_absent=if_absent, if_match=if_match)
        self._count("after put", key)
        return info

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        self._count("before upload", key)
        info = super().upload(key, pieces)
        self._count("after upload", key)
        return info

    def copy(self, fs: CrashFileSystem | None = None) -> CountedObjectStore:
        """Another server with the same objects."""
        copied = CountedObjectStore(ManualClock(), fs)
        with self._lock:
            copied._objects = dict(self._objects)
        return copied

    def _count(self, operation: str, key: str) -> None:
        if self._fs is not None:
            self._fs.outside_call(operation, key)


@dataclass(frozen=True)
class Notes:
    """What was asked for and what was promised."""

    attempted: dict[bytes, Message]
    durable: dict[bytes, Place]
    """Acknowledged as flushed, or seen by a reader."""
    asked_offsets: dict[Queue, int] = field(default_factory=dict)
    committed_offsets: dict[Queue, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Wreck:
    """The world at call ``number``, the power gone."""

    number: int
    call: str
    fs: CrashFileSystem
    objects: CountedObjectStore
    notes: Notes
    seed: int
    now_ms: int
    settings: Settings = field(default_factory=tiny_settings)
    killed: bool = False
    """The process alone is gone, nothing that it had written."""

    def disk(self, *, cut_at: int | None = None) -> CrashFileSystem:
        """A copy of the disk to go on with."""
        return self.fs.after_kill(cut_at=cut_at) if self.killed else self.fs.crash(0, cut_at=cut_at)


class PowerWorld(World):
    """One run of the seeded workload."""

    objects: CountedObjectStore

    def __init__(
        self,
        seed: int,
        *,
        segment_bytes: int = 8192,
        largest_batch: int = 30,
        visibility: Visibility = Visibility.FLUSHED,
    ) -> None:
        clock, fs = ManualClock(), CrashFileSystem(seed=seed)
        fs.make_dirs(ROOT.parent)
        objects = CountedObjectStore(clock, fs)
        super().__init__(
            settings=tiny_settings(segment_bytes, visibility), clock=clock, fs=fs, objects=objects, store_id=None,
            seed=seed,
        )  # fmt: skip
        self.attempted: dict[bytes, Message] = {}
        self.durable: dict[bytes, Place] = {}
        self._visibility = visibility
        self._batches = [count for count in (1, 1, 2, 3, 8, 30) if count <= largest_batch]
        self._asked: dict[Queue, int] = {}
        self._committed: dict[Queue, int] = {}
        self._unflushed: dict[bytes, Place] = {}
        self._random = random.Random(seed)
        self._count = self._created = 0
        self._steps: dict[str, int] = {}

    def watch(self, wanted: Callable[[int, str], bool], take: Callable[[Wreck], None], *, killed: bool = False) -> None:
        """Hand a wreck of every wanted call to ``take`` while the run goes on: the power gone, or the process."""

        def on_call(number: int, operation: str, path: Path) -> None:
            if wanted(number, operation):
                crash_seed = self.seed * 1_000_003 + number
                lost = number % 5 == 0
                after = self.fs.after_kill() if killed else self.fs.crash(crash_seed, lose_everything=lost)
                take(
                    Wreck(
                        number, f"{operation} {path}", after, self.objects.copy(), self.notes(), crash_seed,
                        self.clock.now_ms(), self.settings, killed,
                    )
                )  # fmt: skip

        self.fs.on_call = on_call

    def gateway(self) -> CountedObjectStore:
        return self.objects

    def notes(self) -> Notes:
        """What was asked and promised so far."""
        return Notes(dict(self.attempted), dict(self.durable), dict(self._asked), dict(self._committed))

    def run(self, steps: int) -> dict[str, int]:
        """The workload in a random order; returns how often each kind of step was made."""
        kinds = [kind for weight, kind in self._weighted() for _ in range(weight)]
        return self._make(self._random.choice(kinds) for _ in range(steps))

    def run_each(self, rounds: int) -> dict[str, int]:
        """A short workload that has every kind of step: in each round all of them, with more appends in between."""
        steps: list[Step] = []
        for _ in range(rounds):
            kinds = [kind for _, kind in self._weighted()]
            self._random.shuffle(kinds)
            for kind in kinds[::2]:
                kinds.insert(kinds.index(kind), self._append_async)
            steps += [*kinds, self._append_flushed, self._drop_hot]  # an index file goes through all its states
        return self._make(steps)

    def _weighted(self) -> list[tuple[int, Step]]:
        return [
            (10, self._append_flushed), (9, self._append_async), (3, self._flush), (2, self._read),
            (2, self._archive), (2, self._archive_everything), (2, self._drop_hot), (1, self._reopen),
            (1, self._kill), (1, self._clock_steps), (1, self._create_topic), (1, self._roll),
            (1, self._dispatch), (1, self._compact), (1, self._round), (1, self._prepare), (1, self._commit_offsets),
        ]  # fmt: skip

    def _make(self, steps: Iterable[Step]) -> dict[str, int]:
        engine = self.open()
        for step in steps:
            self._steps[step.__name__] = self._steps.get(step.__name__, 0) + 1
            self.clock.advance(self._random.randrange(400))
            engine = step(engine) or engine
        engine.close()
        return self._steps

    def _append_flushed(self, engine: Store) -> None:
        places = self._append(engine, Durability.FLUSHED)
        self._unflushed.update(places)
        self._promise()

    def _append_async(self, engine: Store) -> None:
        self._unflushed.update(self._append(engine, Durability.ASYNC))

    def _append(self, engine: Store, durability: Durability) -> dict[bytes, Place]:
        messages = [self._message() for _ in range(self._random.choice(self._batches))]
        self.attempted.update({message.body: message for message in messages})
        results = engine.append(messages, durability)
        return {
            message.body: (message.topic, result.queue_id, result.queue_offset)
            for message, result in zip(messages, results, strict=True)
        }

    def _message(self) -> Message:
        self._count += 1
        chance = self._random
        size = chance.choice((1, 20, 60, 60, 200, 200, 700, 2500))
        body = b"%d:" % self._count + chance.randbytes(size)
        queue_id = chance.choice((-1, -1, -1, 0, 1, 1))
        keys = [*chance.sample(KEYS, chance.choice((0, 1, 1, 2, 3)))]
        return Message(
            chance.choice(TOPICS), body, keys, chance.choice(("", "TagA", "TagB")), {"n": str(self._count)},
            self.clock.now_ms() - chance.randrange(5000), queue_id,
        )  # fmt: skip

    def _flush(self, engine: Store) -> None:
        engine.flush()
        self._promise()

    def _promise(self) -> None:
        """What was appended is durable by now."""
        self.durable.update(self._unflushed)
        self._unflushed.clear()

    def _read(self, engine: Store) -> None:
        """What a reader saw must not change either, unless it may see what is not durable."""
        for place, message in everything(engine).items():
            if self._visibility is Visibility.FLUSHED:
                self.durable[message.record.body] = place

    def _archive(self, engine: Store) -> None:
        engine.archive()

    def _archive_everything(self, engine: Store) -> None:
        engine.archive(everything=True)

    def _drop_hot(self, engine: Store) -> None:
        engine.archive(everything=True, drop_hot=True)

    def _reopen(self, engine: Store) -> Store:
        engine.close()
        self._promise()
        return self.open()

    def _kill(self, engine: Store) -> Store:
        """A killed process loses nothing that it had written, but it had promised nothing either."""
        self.fs.kill()
        return self.open()

    def _roll(self, engine: Store) -> None:
        rolls = engine._hot.log.end > engine._hot.log.last_base
        engine._hot.roll()
        if rolls:
            self._promise()

    def _dispatch(self, engine: Store) -> None:
        engine._hot.dispatch()

    def _compact(self, engine: Store) -> None:
        """An index file may be sealed and compacted long before its segment goes to the archive."""
        engine._index.seal()
        engine._index.compact_sealed()

    def _round(self, engine: Store) -> None:
        engine.run_tiers()

    def _prepare(self, engine: Store) -> None:
        """Zeros are written ahead, and the next segment is made, whether it will be needed or not."""
        engine._hot.prepare_segment()
        engine._hot.log.prepare_next()

    def _commit_offsets(self, engine: Store) -> None:
        own = engine.store_id
        offsets = {(topic.name, own, q.queue_id): q.max_offset for topic in engine.topics() for q in topic.queues}
        self._asked = self._committed | offsets
        engine.groups.commit(GROUP, offsets)
        self._committed = dict(self._asked)

    def _clock_steps(self, engine: Store) -> None:
        self.clock.step(self._random.choice((-3_600_000, -1, 5, 60_000)))

    def _create_topic(self, engine: Store) -> None:
        self._created += 1
        engine.create_topic(f"made-{self._created}", self._random.randrange(1, 4))


def everything(engine: Store) -> dict[Place, StoredMessage]:
    """Every message that pulls give, queue offsets checked to be consecutive from 0 on."""
    found: dict[Place, StoredMessage] = {}
    for topic in engine.topics():
        for queue in topic.queues:
            offset = 0
            while True:
                pulled = engine.pull(topic.name, queue.queue_id, offset, 1000)
                # a pull below the hot tier waits for the archive; a listing would not, and tell the hot minimum
                assert offset or pulled.min_offset == 0, f"{topic.name}/{queue.queue_id} begins at {pulled.min_offset}"
                for message in pulled.messages:
                    assert message.record.queue_offset == offset, f"{topic.name}/{queue.queue_id}: gap at {offset}"
                    found[topic.name, queue.queue_id, offset] = message
                    offset += 1
                if pulled.status is not PullStatus.FOUND:
                    assert pulled.status is PullStatus.NO_NEW_MESSAGE, f"{topic.name}/{queue.queue_id}: {pulled}"
                    break
    return found


def verify_engine(
    engine: Store, notes: Notes, *, deep: bool = False, queries: bool = True
) -> dict[Place, StoredMessage]:
    """Compare an open store with the notes; returns what it holds."""
    assert engine.read_only_reason is None
    assert engine.check(deep=deep) == []
    found = everything(engine)
    places: dict[bytes, Place] = {}
    for place, message in found.items():
        body = message.record.body
        assert body in notes.attempted, f"nobody sent the message at {place}"
        assert body not in places, f"the message at {place} is at {places[body]} as well"
        places[body] = place
        asked = notes.attempted[body]
        assert (message.record.topic, message.keys, message.tag, message.properties, message.record.born_ms) == (
            asked.topic, list(asked.keys), asked.tag, asked.properties, asked.born_ms,
        )  # fmt: skip
    for body, place in notes.durable.items():
        assert places.get(body) == place, f"promised at {place}, found at {places.get(body)}"
    _verify_committed(engine, notes)
    if queries:
        _verify_queries(engine, found)
    return found


def _verify_committed(engine: Store, notes: Notes) -> None:
    """A group's offsets are all those acknowledged last or all those asked for, and lie in their queues."""
    kept = engine.groups.committed(GROUP).offsets if engine.groups.all() else {}
    assert kept in (notes.committed_offsets, notes.asked_offsets), kept
    ends = {(topic.name, queue.queue_id): queue.max_offset for topic in engine.topics() for queue in topic.queues}
    assert all(offset <= ends[topic, queue_id] for (topic, _, queue_id), offset in kept.items())


def _verify_queries(engine: Store, found: dict[Place, StoredMessage]) -> None:
    known = {info.name for info in engine.topics()}
    for topic in (name for name in TOPICS if name in known):
        mine = [message.record for (name, _, _), message in found.items() if name == topic]
        for key in KEYS[::3]:
            expected = sorted(
                (message.record.store_ms, message.record.physical_offset)
                for (name, _, _), message in found.items()
                if name == topic and key in message.keys
            )
            assert _answers(engine, Query(topic, key, limit=10_000, order=Order.OLDEST)) == expected, (topic, key)
        if mine:
            times = sorted(record.born_ms for record in mine)
            low, high = times[len(times) // 4], times[-1 - len(times) // 4] + 1
            inside = sorted((r.store_ms, r.physical_offset) for r in mine if low <= r.born_ms < high)
            query = Query(topic, None, low, high, 10_000, TimeAxis.BORN, Order.OLDEST)
            assert sorted(_answers(engine, query)) == inside, topic
            stored = sorted((r.store_ms, r.physical_offset) for r in mine)
            assert _answers(engine, Query(topic, limit=10_000, order=Order.OLDEST)) == stored, topic


def _answers(engine: Store, query: Query) -> list[tuple[int, int]]:
    answer = engine.query(query)
    assert answer.coverage.complete, answer.coverage
    assert answer.next_cursor is None
    return [(message.record.store_ms, message.record.physical_offset) for message in answer.messages]


def reopen(wreck: Wreck, fs: CrashFileSystem, objects: ObjectStore, salt: int = 0) -> Store:
    """Start the store again on what the power cut left."""
    return Store.open(
        ROOT, settings=wreck.settings, cold_url=URL, clock=ManualClock(wreck.now_ms + 1000),
        fs=fs, randomness=SeededRandomness(wreck.seed * 31 + salt), objects=objects,
    )  # fmt: skip


def recover_twice(wreck: Wreck, examine: Callable[[Store, CrashFileSystem, bool], None]) -> int:
    """Open the wreck; then stop that recovery too, at a call drawn by lot, and open what this left.

    ``examine`` takes the store, its disk and whether it is the second one. Returns how many calls the first recovery
    took.
    """
    try:
        fs = wreck.disk()
        engine = reopen(wreck, fs, wreck.objects.copy())
        calls = fs.calls
        examine(engine, fs, False)
        second = wreck.disk(cut_at=random.Random(wreck.seed).randrange(1, calls + 1))
        objects = wreck.objects.copy(second)
        with pytest.raises(PowerCut):
            reopen(wreck, second, objects, 1)
        fs = second.after_kill() if wreck.killed else second.crash(wreck.seed)
        examine(reopen(wreck, fs, objects.copy(), 2), fs, True)
    except BaseException as error:
        stop = "killed" if wreck.killed else "cut"
        error.add_note(f"seed {wreck.seed}, {stop} at call {wreck.number}: {wreck.call}")
        raise
    return calls


def spread_calls(world: PowerWorld, run: Callable[[], object], count: int, about: str = "") -> set[int]:
    """Numbers of calls of a run to stop at: as many of each kind, whether it is made often or seldom, as there are.

    Where there are fewer than kinds, the seed decides which. Of the kinds, such as ``rename store/index/sealed/``,
    those in which the pattern ``about`` is found.
    """
    kinds: dict[str, list[int]] = {}

    def note(number: int, operation: str, path: Path) -> None:
        place = "/".join(path.parts[1:5] if path.parts[1] == ROOT.name else path.parts[:1])
        kind = f"{operation} {re.sub('[0-9a-f]{8,}', '', place)}"
        if re.search(about, kind):
            kinds.setdefault(kind, []).append(number)

    world.fs.on_call = note
    run()
    chance = random.Random(world.seed)
    shuffled = list(kinds.values())
    for numbers in shuffled:
        chance.shuffle(numbers)
    chance.shuffle(shuffled)  # a workload begins with appends and ends in the archive
    rounds = (number for each in zip_longest(*shuffled) for number in each if number is not None)
    return set(islice(rounds, count))
