"""Damaged local queue files and segments: every answer is whole and right, or says what it could not give.

Never a message of another topic or queue, never an error that is not of the tree, never short and complete. Damage to
queue files alone is mended from the log, so that nothing is missing at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import records_in
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.types import Boundary, Order, TimeAxis
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.queue_unit import UNIT_BYTES
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage

TOPICS = ("orders", "secret")
QUEUES = 2
UNITS = 16
SEGMENT_BYTES = 1 << 14
#: Changes a file, given the others of its kind.
Damage = Callable[[random.Random, bytearray, list[bytes]], None]
Queue = tuple[str, int]


class QueuesWorld(World):
    """Messages in four queues, and what was sent: per queue by offset."""

    def __init__(self, root: Path) -> None:
        settings = tiny_settings(
            hot__segment_bytes=SEGMENT_BYTES, hot__queue_file_units=UNITS, hot__default_queues=QUEUES,
            hot__record_checksum=True,
        )  # fmt: skip
        super().__init__(root, settings=settings)
        self.sent: dict[Queue, list[StoredMessage]] = {}

    def fill(self, chance: random.Random, count: int = 150) -> None:
        engine = self.open()
        for number in range(count):
            message = Message(
                chance.choice(TOPICS), b"%d" % number + bytes(chance.randrange(200)), queue_id=chance.randrange(QUEUES),
                keys=[f"k{number % 7}"], tag=chance.choice(["a", "b", ""]),
                born_ms=self.clock.now_ms() - chance.randrange(1000),
            )  # fmt: skip
            engine.append([message])
            self.clock.advance(chance.randrange(3))
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                self.sent[topic, queue_id] = engine.pull(topic, queue_id, 0, 1000).messages
        assert sum(map(len, self.sent.values())) == count
        engine.close()

    def files_of(self, kind: str) -> list[Path]:
        return sorted(path for path in (self.root / kind).rglob("*") if path.is_file())


def flip(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def zero_units(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    start = chance.randrange(len(data) // UNIT_BYTES) * UNIT_BYTES
    end = min(len(data), start + UNIT_BYTES * chance.choice((1, 3, 9)))
    data[start:end] = bytes(end - start)


def zero_all(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    data[:] = bytes(len(data))


def noise(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((1, 20, 512)))
    data[start:end] = chance.randbytes(end - start)


def units_of_another(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    other = chance.choice(others)
    start = chance.randrange(len(data) // UNIT_BYTES) * UNIT_BYTES
    end = min(len(data), len(other), start + UNIT_BYTES * chance.choice((1, 4, 100)))
    data[start:end] = other[start:end]


def swap(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    first, second = (UNIT_BYTES * chance.randrange(len(data) // UNIT_BYTES) for _ in range(2))
    data[first : first + UNIT_BYTES], data[second : second + UNIT_BYTES] = (
        data[second : second + UNIT_BYTES], data[first : first + UNIT_BYTES],
    )  # fmt: skip


def cut(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    del data[chance.randrange(len(data)) :]


IN_PLACE: list[Damage] = [flip, zero_units, zero_all, noise, units_of_another, swap]


def damage(world: QueuesWorld, kind: str, how: Damage, chance: random.Random, times: int = 1) -> None:
    files = world.files_of(kind)
    for _ in range(times):
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        how(chance, data, [each.read_bytes() for each in files if each != path])
        if len(data) < path.stat().st_size:
            path.write_bytes(data)
        else:
            with path.open("r+b") as file:  # in place: it may be mapped
                file.write(data)


class Failures:
    """Counts what could not be given; each must say where."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, error: StoreError) -> None:
        assert isinstance(error, CorruptionError), error
        assert error.position is not None
        self.count += 1


def same(found: list[StoredMessage], wanted: list[StoredMessage]) -> bool:
    return [each.record for each in found] == [each.record for each in wanted]


def pull_all(world: QueuesWorld, engine: Store, failures: Failures) -> None:
    for (topic, queue_id), sent in world.sent.items():
        for tag in (None, "a", "b || c"):
            at = 0
            while at < len(sent):
                try:
                    page = engine.pull(topic, queue_id, at, 7, tag)
                except StoreError as error:
                    failures.note(error)
                    at += 1
                    continue
                assert at < page.next_offset <= len(sent), (at, page)
                wanted = [each for each in sent[at : page.next_offset] if tag is None or each.tag in tag.split(" || ")]
                assert same(page.messages, wanted)
                at = page.next_offset
        at = 0
        while at < len(sent):
            try:
                batch = engine.pull_batch(topic, queue_id, at, 7)
            except StoreError as error:
                failures.note(error)
                at += 1
                continue
            assert at < batch.next_offset <= len(sent)
            wanted = sent[at : batch.next_offset]
            assert batch.messages.column("body").to_pylist() == [each.record.body for each in wanted]
            assert batch.messages.column("queue_offset").to_pylist() == [each.record.queue_offset for each in wanted]
            assert set(batch.messages.column("topic").to_pylist()) <= {topic}
            at = batch.next_offset
        for tag in (None, "a"):
            at = 0
            while at < len(sent):
                hashes = None if tag is None else frozenset([tag_hash(tag)])
                try:
                    with engine.pull_records(topic, queue_id, at, 7, tag_hashes=hashes) as pulled:
                        records = records_in(pulled.parts)
                except StoreError as error:
                    failures.note(error)
                    at += 1
                    continue
                assert at < pulled.next_offset <= len(sent)
                wanted = [each for each in sent[at : pulled.next_offset] if tag is None or each.tag == tag]
                assert records == [each.record for each in wanted]
                at = pulled.next_offset


def query_all(world: QueuesWorld, engine: Store, failures: Failures, chance: random.Random) -> None:
    everything = [each for sent in world.sent.values() for each in sent]
    times = sorted(each.record.store_ms for each in everything)
    for axis in TimeAxis:
        for order in Order:
            for key in (None, "k3"):
                start, end = sorted(chance.choices(times, k=2)) if chance.random() < 0.5 else (0, times[-1])
                end += 1
                for topic in TOPICS:
                    wanted = [
                        each
                        for each in everything
                        if each.record.topic == topic and start <= each.time_ms(axis) < end
                        if key is None or each.has_key(key)
                    ]
                    answer = engine.query(Query(topic, key, start, end, limit=1000, axis=axis, order=order))
                    found = {each.record.physical_offset: each.record for each in answer.messages}
                    all_wanted = {each.record.physical_offset: each.record for each in wanted}
                    assert found.items() <= all_wanted.items()
                    if answer.coverage.complete:
                        assert found == all_wanted
                    else:
                        assert answer.coverage.failures
                        failures.count += 1


def ask_by_time_and_id(world: QueuesWorld, engine: Store, failures: Failures) -> None:
    for (topic, queue_id), sent in world.sent.items():
        times = [each.record.store_ms for each in sent]
        for time_ms in (times[0], times[len(times) // 2], times[-1], times[-1] + 1):
            for boundary in Boundary:
                after = next((at for at, each in enumerate(times) if each >= time_ms), len(times))
                before = max((at for at, each in enumerate(times) if each <= time_ms), default=0)
                try:
                    found = engine.offset_by_time(topic, queue_id, time_ms, boundary)
                    assert found == (after if boundary is Boundary.LOWER else before)
                except StoreError as error:
                    failures.note(error)
        for message in sent:
            try:
                assert engine.message(message.record.message_id).record == message.record
            except StoreError as error:
                failures.note(error)


def ask_everything(world: QueuesWorld, engine: Store, chance: random.Random) -> Failures:
    failures = Failures()
    asked: list[Callable[[], None]] = [
        lambda: pull_all(world, engine, failures),
        lambda: query_all(world, engine, failures, chance),
        lambda: ask_by_time_and_id(world, engine, failures),
    ]
    chance.shuffle(asked)
    for ask in asked:
        ask()
    return failures


@pytest.fixture
def world(tmp_path: Path) -> QueuesWorld:
    return QueuesWorld(tmp_path)


def seeds(count: int, *, quick: int) -> pytest.MarkDecorator:
    """As many, of which the first few are in `make test`."""
    more = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, count)]
    return pytest.mark.parametrize("seed", [*range(quick), *more])


@seeds(3, quick=1)
@pytest.mark.parametrize("how", [*IN_PLACE, cut], ids=lambda how: how.__name__)
def test_damaged_queue_files_are_mended_from_the_log(how: Damage, seed: int, world: QueuesWorld) -> None:
    chance = random.Random(f"{how.__name__} {seed}")
    world.fill(chance)
    damage(world, "consumequeue", how, chance, times=1 + 2 * seed)
    engine = world.open()
    try:
        assert ask_everything(world, engine, chance).count == 0
        assert engine.check() == []
        for topic, queue_id in world.sent:
            (appended,) = engine.append([Message(topic, b"next", queue_id=queue_id)])
            assert appended.queue_offset == len(world.sent[topic, queue_id])
    finally:
        engine.close()


@pytest.mark.parametrize("how", IN_PLACE, ids=lambda how: how.__name__)
def test_queue_files_that_are_damaged_under_an_open_store_are_mended(how: Damage, world: QueuesWorld) -> None:
    chance = random.Random(f"{how.__name__} open")
    world.fill(chance)
    engine = world.open()
    try:
        for _ in range(3):
            damage(world, "consumequeue", how, chance)
            assert ask_everything(world, engine, chance).count == 0
    finally:
        engine.close()


@seeds(4, quick=2)
@pytest.mark.parametrize("how", [flip, noise, zero_units], ids=lambda how: how.__name__)
def test_a_damaged_segment_hides_nothing_in_silence(how: Damage, seed: int, world: QueuesWorld) -> None:
    chance = random.Random(f"{how.__name__} log {seed}")
    world.fill(chance)
    engine = world.open()
    try:
        damage(world, "commitlog", how, chance)
        if seed % 2:
            damage(world, "consumequeue", flip, chance)
        failures = ask_everything(world, engine, chance)
        try:
            engine.archive(everything=True, drop_hot=True)
        except StoreError:
            return
        assert ask_everything(world, engine, chance).count == failures.count == 0
    finally:
        engine.close()


@seeds(2, quick=1)
@pytest.mark.parametrize("how", [flip, zero_units, zero_all, cut], ids=lambda how: how.__name__)
def test_damaged_queue_files_above_a_border_are_mended(how: Damage, seed: int, world: QueuesWorld) -> None:
    chance = random.Random(f"{how.__name__} border {seed}")
    world.fill(chance)
    engine = world.open()
    engine.append([Message("orders", b"last", queue_id=0)])
    world.sent["orders", 0] = engine.pull("orders", 0, 0, 1000).messages
    engine.archive(everything=True)
    engine._hot.remove_below(engine._hot.log.segments()[2].base_offset, forget=lambda _: None)
    engine.close()
    damage(world, "consumequeue", how, chance)
    engine = world.open()
    try:
        assert engine._hot.border > 0
        assert ask_everything(world, engine, chance).count == 0
    finally:
        engine.close()
