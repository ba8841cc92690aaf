"""Whatever is wrong with one object, every read gives the right answer or names the object; others are not affected."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.support.objects.damage import Damage, damages
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.archives import KEYS, TOPICS, Named, build
from tests.support.world import World
from tierlog.index.search.query import Answer, Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.errors import ObjectNotFoundError, StoreError
from tierlog.tiering.base.types import Boundary, Order, PullStatus, Tier, TimeAxis
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.pull_result import PullResult

KINDS = (
    "head", "state", "segment", "index object", "rows", "companion",
    "log page 0", "log page 1", "index page 0", "index page 1",
)  # fmt: skip
EVER = (0, 1 << 62)
Reader = StoreReader


@dataclass(frozen=True)
class Good:
    """The archive as it should be, and what it answers."""

    world: World
    named: Named
    answers: dict[str, object]
    ranges: dict[str, tuple[int, int]]
    """Physical offsets that an object tells of."""


@pytest.fixture(scope="module")
def good() -> Good:
    world = build()
    named = Named.of(world.manifest())
    cold, hot = world.cold(), world.open(read_only=True)
    answers = {f"cold {name}": read(cold) for name, read in reads()}
    answers |= {f"hot {name}": read(hot) for name, read in reads()}
    hot.close()
    queried = answers["cold query orders key-1 store newest"]
    assert isinstance(queried, Answer)
    assert len(queried.messages) > 20
    return Good(world, named, answers, ranges_of(world))


def ranges_of(world: World) -> dict[str, tuple[int, int]]:
    manifest = world.manifest()
    head, reader = manifest.refresh(), manifest.reader()
    found: dict[str, tuple[int, int]] = {}
    for kind, tree, inline in (("log", head.log_tree, head.log), ("index", head.index_tree, head.index)):
        parts = list(tree)
        for node in parts:
            found[node.ref.key] = node.first, node.next
            if node.rows is not None:
                found[node.rows.key] = node.first, node.next
            children = manifest._page(reader, node, kind)
            if node.level:
                parts += children
            else:
                found |= {entry.key: (entry.first, entry.next) for entry in children}
        for entry in inline:
            found[entry.key] = entry.first, entry.next
    for entry in head.log:
        assert entry.rows is not None
        found[entry.rows.key] = entry.first, entry.next
    return found


def queries() -> Iterator[Query]:
    for axis in TimeAxis:
        for order in Order:
            for key in (None, KEYS[1], KEYS[4]):
                yield Query(TOPICS[0], key, limit=1000, axis=axis, order=order)
    yield Query(TOPICS[2], limit=1000)
    yield Query(TOPICS[1], KEYS[0], from_ms=1_700_000_030_000, to_ms=1_700_000_120_000, limit=1000)


def reads() -> Iterator[tuple[str, Callable[[Reader], object]]]:
    for query in queries():
        name = f"query {query.topic} {query.key} {query.axis.value} {query.order.value}"
        yield name + (" between" if query.from_ms else ""), partial(queried, query=query)
    for topic in TOPICS:
        yield f"replay {topic}", partial(replayed, topic=topic)
        for boundary in Boundary:
            yield f"offset {topic} {boundary.value}", partial(offset_of, topic=topic, boundary=boundary)
    yield "topics", lambda engine: engine.topics()
    yield "files", lambda engine: engine.files()


def queried(engine: Reader, query: Query) -> Answer:
    return engine.query(query)


def replayed(engine: Reader, topic: str) -> list[StoredMessage]:
    return list(replay(engine, topic))


def offset_of(engine: Reader, topic: str, boundary: Boundary) -> int:
    return engine.offset_by_time(topic, 1, 1_700_000_090_000, boundary)


def replay(engine: Reader, topic: str) -> Iterator[StoredMessage]:
    offset = 0
    while True:
        found = engine.pull(topic, 1, offset, 5)
        yield from found.messages
        if found.status is not PullStatus.FOUND:
            assert found.status is PullStatus.NO_NEW_MESSAGE, found
            return
        offset = found.next_offset


def compare(good: Good, key: str, name: str, read: Callable[[Reader], object], opened: Callable[[], Reader]) -> None:
    """The right answer, or one that names the object and is right as far as it says."""
    expected = good.answers[name]
    try:
        got = read(opened())
    except StoreError as error:
        assert key in str(error), f"{name}: {error} does not name it"  # noqa: PT017
        return
    if isinstance(expected, Answer):
        assert isinstance(got, Answer)
        compare_answers(good, key, name, expected, got)
    elif name == "hot topics":  # a queue begins where the hot tier does until the archive tells better
        assert ends_of(got) == ends_of(expected)
    elif name == "hot files" and key == "store/head":  # the archive's are listed if its head was seen
        assert isinstance(got, list)
        assert {file.tier for file in got} == {Tier.HOT}
    else:
        assert got == expected, name


def ends_of(topics: object) -> list[tuple[str, list[int]]]:
    assert isinstance(topics, list)
    return [(topic.name, [queue.max_offset for queue in topic.queues]) for topic in topics]


def compare_answers(good: Good, key: str, name: str, expected: Answer, got: Answer) -> None:
    offsets = [message.record.physical_offset for message in got.messages]
    if got.coverage.complete:
        assert got.messages == expected.messages, f"{name}: complete, but another answer"
        assert not got.coverage.failures
        return
    failures = got.coverage.failures
    assert failures, name
    assert all(key in (failure.object, *failure.error.split("[")) or key in failure.error for failure in failures), (
        f"{name}: {failures}"
    )
    assert any(failure.object == key for failure in failures), f"{name}: {failures}"
    assert got.coverage.index_unreachable + got.coverage.segments_unreachable == len(failures)
    by_offset = {message.record.physical_offset: message for message in expected.messages}
    assert got.messages == [by_offset[offset] for offset in by_offset if offset in set(offsets)], f"{name}: wrong ones"
    axis = TimeAxis.BORN if " born " in name else TimeAxis.STORE
    store = got.coverage.stores[0]
    first, end = good.ranges.get(key, EVER)
    for message in expected.messages:
        offset = message.record.physical_offset
        claims = [claim for claim in (store.cold if message.tier == "cold" else store.hot,) if claim]
        claimed = any(claim.from_ms <= message.time_ms(axis) < claim.to_ms for claim in claims)
        if claimed or not first <= offset < end:
            assert offset in offsets, f"{name}: lacks {offset}, claimed {claimed}"


@pytest.mark.parametrize(  # all of them in more ways below
    "kind",
    ["state", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("segment", "index object", "log page 0"))],
)
def test_one_damaged_object(good: Good, kind: str, seed: int) -> None:
    damage_some(good, kind, seed, objects=1, positions=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_damaged_object_in_many_ways(good: Good, kind: str, seed: int) -> None:
    damage_some(good, kind, seed, objects=2, positions=6)


def damage_some(good: Good, kind: str, seed: int, *, objects: int, positions: int) -> None:
    chance = random.Random(f"{seed} {kind}")
    keys = good.named.kinds[kind]
    for key in chance.sample(keys, min(objects, len(keys))):
        same = [other for other in keys if other != key]
        foreign = chance.choice([name for name, names in good.named.kinds.items() if name != kind])
        others = [*chance.sample(same, min(2, len(same))), good.named.kinds[foreign][0]]
        size = len(good.world.objects._objects[key][0])
        for name, damage in damages(chance, size, others, positions).items():
            read_all(good, key, damage, f"{kind} {key}: {name}", hot=name == "missing")


def read_all(good: Good, key: str, damage: Damage, what: str, *, hot: bool) -> None:
    world = good.world.copy()
    damage(world.objects, key)
    try:
        for name, read in reads():
            compare(good, key, f"cold {name}", read, world.cold)
        if hot:
            engine = world.open(read_only=True)
            for name, read in reads():
                compare(good, key, f"hot {name}", read, lambda: engine)
            engine.close()
    except AssertionError as error:
        raise AssertionError(f"{what}\n{error}") from error


@pytest.mark.parametrize("kind", ["segment", "index object", "rows", "companion", "log page 0", "index page 1"])
def test_a_server_that_gives_fewer_bytes_than_were_asked(good: Good, kind: str) -> None:
    for key in good.named.kinds[kind][:2]:
        for cut in (1, 100):
            for name, read in reads():
                faulty = FaultyObjectStore(good.world.objects)
                faulty.short_read("*", key, times=None, cut_bytes=cut)
                compare(good, key, f"cold {name}", read, partial(good.world.cold, faulty))


def pulled(engine: Archive, topic: str, queue_id: int, offset: int) -> PullResult:
    return engine.pull(topic, queue_id, offset, 1000)


@pytest.mark.parametrize("kind", ["segment", "companion", "log page 0"])
def test_pulls_of_what_lies_elsewhere_go_on(good: Good, kind: str) -> None:
    cold = good.world.cold()
    for key in good.named.kinds[kind][:2]:
        world = good.world.copy()
        del world.objects._objects[key]
        first, end = good.ranges[key]
        broken, failed = world.cold(), 0
        for topic in cold.topics():
            for queue in topic.queues:
                for message in pulled(cold, topic.name, queue.queue_id, 0).messages:
                    offset = message.record.queue_offset
                    if first <= message.record.physical_offset < end:
                        failed += 1
                        with pytest.raises(ObjectNotFoundError, match=key):
                            pulled(broken, topic.name, queue.queue_id, offset)
                    else:
                        found = pulled(broken, topic.name, queue.queue_id, offset)
                        assert found.messages[0] == message
                        assert found.next_offset == found.messages[-1].record.queue_offset + 1
        assert failed > 5


def test_a_message_by_its_id(good: Good) -> None:
    cold = good.world.cold()
    messages = pulled(cold, "orders", 0, 0).messages
    for key in good.named.kinds["segment"]:
        world = good.world.copy()
        del world.objects._objects[key]
        first, end = good.ranges[key]
        engine = world.open(read_only=True)
        border = engine._hot.border
        for message in messages:
            if first <= message.record.physical_offset < min(end, border):
                with pytest.raises(ObjectNotFoundError, match=key):
                    engine.message(message.record.message_id)
            else:
                assert engine.message(message.record.message_id).record == message.record
        engine.close()
