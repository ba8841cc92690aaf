"""A restore from an archive with any damage: what it brings back is what was archived, or it says what it cannot read.

Once the damage is undone, the same command, or the volume that it made, has every archived message. No offset that was
ever given out is given out again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.objects.damage import damages
from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.objects.memory import MemoryObjectStore

TOPICS = ("orders", "events")
SEEDS = range(40)
#: How many of them are in `make test`.
_QUICK = 12
LATER = 100_000
HEAD = "store/head"
Queue = tuple[str, int]


@dataclass(frozen=True)
class Lost:
    """The archive of a volume that is gone."""

    world: World
    archived: dict[str, list[int]]
    """Numbers of the archived messages, by topic: what a restore from the whole archive brings back."""
    given_out: dict[Queue, int]
    """The greatest offset that anybody saw in each queue."""


def _lost(chance: random.Random) -> Lost:
    """Rounds of appends; what was not archived when the volume went, only its clients know."""
    world = World(settings=small_settings())
    engine = world.open("0")
    given_out: dict[Queue, int] = {}
    sent = 0
    for _ in range(chance.randint(2, 5)):
        for _ in range(chance.randint(1, 4)):
            topic, queue_id, count = chance.choice(TOPICS), chance.randrange(2), chance.randint(1, 25)
            given_out[topic, queue_id] = send(engine, topic, sent, sent + count, queue_id=queue_id)[-1]
            sent += count
        world.clock.advance(61_000)
        engine.run_tiers()
        if chance.random() < 0.7:
            engine.archive(everything=True, drop_hot=chance.random() < 0.5)
    objects = MemoryObjectStore(world.clock)
    objects._objects = dict(world.objects._objects)
    whole = world.open("whole", restore=True, objects=objects)
    archived = {topic: sorted(number for number in _read(whole, topic) if number is not None) for topic in TOPICS}
    whole.close()
    return Lost(world, archived, given_out)


def _read(engine: Store, topic: str) -> Iterator[int | None]:
    """Numbers of a topic's messages as a consumer reads them; None for a queue that cannot be read to its end."""
    for queue_id in range(2):
        try:
            yield from numbers_of(read_all(engine, topic, queue_id))
        except StoreError:
            yield None


def _damage(objects: MemoryObjectStore, chance: random.Random) -> tuple[str, str]:
    """Damage one object, or put one there that does not belong; its key, and what was done."""
    keys = sorted(objects._objects)
    key = chance.choice(keys)
    if chance.random() < 0.15:
        name = chance.choice(["readme.txt", "0" * 20 + ".zst", f"{1 << 60:020d}-1-deadbeef.zst", "x" * 100])
        key = f"{key.rpartition('/')[0]}/{name}"
        objects.put(key, chance.randbytes(chance.choice([0, 1, 5000])))
        return key, f"foreign object {key}"
    kinds = damages(chance, len(objects._objects[key][0]), [chance.choice(keys)], flips=2)
    kind = chance.choice(sorted(kinds))
    kinds[kind](objects, key)
    return key, f"{key}: {kind}"


def _check(engine: Store, lost: Lost, chance: random.Random, what: str) -> None:
    """Every answer is whole, or says that it is not."""
    for topic, archived in lost.archived.items():
        try:
            found = list(_read(engine, topic))
        except StoreError:
            continue
        numbers = [number for number in found if number is not None and number < LATER]
        assert len(numbers) == len(set(numbers)), what
        assert set(numbers) <= set(archived), what
        if None not in found:
            assert sorted(numbers) == archived, f"{what}: messages are missing, and nothing says so"
        for number in chance.sample(archived, min(5, len(archived))):
            try:
                answer = engine.query(Query(topic, f"key-{number}", limit=10))
            except StoreError:
                continue
            got = numbers_of(answer.messages)
            assert got == [number] or (got == [] and not answer.coverage.complete), f"{what}: key-{number}"


@pytest.mark.parametrize(
    "seed", [*SEEDS[:_QUICK], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[_QUICK:])]
)
def test_what_comes_back_is_what_was_archived_or_the_damage_is_named(seed: int) -> None:
    chance = random.Random(seed)
    lost = _lost(chance)
    objects = lost.world.objects
    sound = dict(objects._objects)
    key, what = _damage(objects, chance)
    is_restored = False
    try:
        engine = lost.world.open("1", restore=True)
    except StoreError:
        pass
    else:
        is_restored = True
        _check(engine, lost, chance, what)
        for (topic, queue_id), seen in lost.given_out.items():
            (offset,) = send(engine, topic, LATER, LATER + 1, queue_id=queue_id)
            assert offset > seen, what
        engine.close()
    if key in sound and not (key == HEAD and is_restored):
        objects._objects[key] = sound[key]
    engine = lost.world.open("1", restore=True)
    for topic, archived in lost.archived.items():
        if archived:
            assert sorted(each for each in _read(engine, topic) if each is not None and each < LATER) == archived, what
    engine.close()


def test_the_seeds_reach_restores_that_go_on_and_restores_that_refuse() -> None:
    """Otherwise the test above would have shown one half of it."""
    outcomes = set()
    for seed in SEEDS:
        chance = random.Random(seed)
        lost = _lost(chance)
        _damage(lost.world.objects, chance)
        try:
            lost.world.open("1", restore=True).close()
            outcomes.add("restored")
        except StoreError:
            outcomes.add("refused")
        if len(outcomes) == 2:
            return
    raise AssertionError(outcomes)
