"""``durability=archived`` as the engine gives it: what waits, what is refused, and what a dead bucket does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock, ManualClock, SystemClock
from tierlog.tiering.base.errors import ClosedError, FencedError, InvalidRequestError, ReadOnlyError, UnavailableError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.tail import TailHead, TailKind
from tierlog.tiering.lifecycle.tail_store import TailObjects
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

ARCHIVED = Durability.ARCHIVED
FAST = {"cold__tail_interval_ms": 0, "cold__retry_interval_ms": 10, "cold__retry_max_ms": 20}


class World:
    """An engine with a bucket in memory."""

    def __init__(self, root: Path, *, start: bool, clock: Clock | None = None, **overrides: object) -> None:
        self.clock = clock or SystemClock()
        self.objects = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.root, self.settings = root, tiny_settings(**{**FAST, **overrides})
        self.engine = self.open(self.settings)
        if start:
            self.engine.start()

    def open(self, settings: Settings) -> Store:
        return Store.open(
            self.root / "store", settings=settings, cold_url="memory://archive", store_id="s", objects=self.objects,
            clock=self.clock,
        )  # fmt: skip

    def append(self, *bodies: str, durability: Durability = ARCHIVED) -> None:
        self.engine.append([Message("orders", body.encode()) for body in bodies], durability)

    def sweep(self) -> None:
        assert self.engine._archived is not None
        self.engine._archived.sweep_due()

    def tails(self) -> list[str]:
        return [info.key for info in self.objects.inner.list("s/tail/")]


@pytest.mark.parametrize("start", [False, True], ids=["by the caller", "by threads"])
def test_an_archived_append_is_in_the_bucket_when_it_returns(tmp_path: Path, start: bool) -> None:
    world = World(tmp_path, start=start)
    world.append("one", "two")
    tail = TailObjects(world.objects, ColdKeys("s")).read(0)
    assert tail is not None
    assert b"one" in tail.payload
    assert b"two" in tail.payload
    stats = world.engine.stats()
    assert (stats["tails_written"], stats["tail_lag_bytes"]) == (1, 0)
    assert stats["tailed_to"] == stats["log_end"]
    assert stats["unarchived_bytes"] == 0
    world.engine.close()


def test_other_appends_write_no_tails(tmp_path: Path) -> None:
    world = World(tmp_path, start=True)
    world.append("one", durability=Durability.FLUSHED)
    world.append("two", durability=Durability.ASYNC)
    assert world.engine.stats()["tailed_to"] is None
    world.engine.close()
    assert world.tails() == []


def test_many_who_append_at_once_share_tails(tmp_path: Path) -> None:
    world = World(tmp_path, start=True, cold__tail_interval_ms=50)
    world.append("first")
    threads = [threading.Thread(target=world.append, args=(f"body {number}",)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.engine.stats()["appended_messages"] == 41
    assert len(world.tails()) < 20
    world.engine.close()


def test_a_store_without_a_cold_tier_refuses_before_anything_is_written(tmp_path: Path) -> None:
    engine = Store.open(tmp_path / "store", settings=tiny_settings())
    with pytest.raises(InvalidRequestError, match="no cold tier"):
        engine.append([Message("orders", b"x")], ARCHIVED)
    assert engine.stats()["log_end"] == 0
    engine.close()


def test_a_topic_that_is_not_archived_refuses(tmp_path: Path) -> None:
    world = World(tmp_path, start=False)
    world.append("one", durability=Durability.FLUSHED)
    topics = world.engine._hot.topics
    topics.set_options(topics.get("orders"), archive=False, cold_retention_ms=None, hold=False)
    with pytest.raises(InvalidRequestError, match="not archived"):
        world.append("two")
    world.engine.close()


@pytest.mark.parametrize("start", [False, True], ids=["by the caller", "by threads"])
def test_a_dead_bucket_gives_an_error_in_bounded_time_and_the_next_append_fills_the_hole(
    tmp_path: Path, start: bool
) -> None:
    world = World(tmp_path, start=start, cold__tail_timeout_ms=1500)
    world.append("one")
    world.objects.die()
    with pytest.raises(UnavailableError, match="did not take") as raised:
        world.append("two")
    assert "unknown" in str(raised.value)
    world.append("three", durability=Durability.FLUSHED)
    world.objects.revive()
    world.append("four")
    found, position = b"", 0
    tails = TailObjects(world.objects, ColdKeys("s"))
    while (tail := tails.read(position)) is not None:
        found += tail.payload
        position = tail.head.end
    assert all(body in found for body in (b"one", b"two", b"three", b"four"))
    assert world.engine.read_only_reason is None
    world.engine.close()


def test_the_store_closes_while_an_append_waits_for_a_bucket_that_hangs(tmp_path: Path) -> None:
    world = World(tmp_path, start=True, cold__tail_timeout_ms=60_000)
    world.append("one")
    hold = world.objects.hold("put", "s/tail/*", times=None)
    failures: list[Exception] = []

    def wait() -> None:
        try:
            world.append("two")
        except ClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    hold.wait_until_reached()
    world.engine.close()
    thread.join()
    assert "whether they are archived is unknown" in str(failures[0])
    hold.release()


def test_a_fence_makes_the_store_read_only_for_good(tmp_path: Path) -> None:
    world = World(tmp_path, start=False)
    world.append("one")
    end = world.engine.stats()["tailed_to"]
    assert isinstance(end, int)
    TailObjects(world.objects, ColdKeys("s")).create(TailHead("s", "new", 2, "f" * 16, TailKind.FENCE, end, end, 65536))
    with pytest.raises(FencedError):
        world.append("two")
    with pytest.raises(ReadOnlyError):
        world.append("three", durability=Durability.FLUSHED)
    world.engine.close()


def test_everything_since_the_last_archived_segment_goes_up_with_the_first_that_waits(tmp_path: Path) -> None:
    world = World(tmp_path, start=False, cold__tail_bytes=4096)
    for number in range(300):
        world.append(f"{number}: " + "x" * 500, durability=Durability.FLUSHED)
    world.append("last")
    stats = world.engine.stats()
    assert isinstance(stats["log_end"], int)
    assert stats["log_end"] > 2 * 65_536, "two segments are rolled and not archived"
    assert stats["tailed_to"] == stats["log_end"]
    assert all(info.size_bytes < 8192 for info in world.objects.inner.list("s/tail/"))
    world.engine.close()


def test_tails_go_a_grace_period_after_they_were_written_once_their_segment_is_archived(tmp_path: Path) -> None:
    clock = ManualClock()
    world = World(tmp_path, start=False, clock=clock, cold__grace_ms=60_000)
    world.append("one")
    clock.advance(60_001)
    world.sweep()
    assert len(world.tails()) == 1, "old, but not archived"
    world.engine.archive(everything=True)
    world.append("two")
    clock.advance(15_000)
    world.sweep()
    assert [int(key[-20:]) for key in world.tails()] == [65_536]
    world.engine.archive(everything=True)
    clock.advance(45_000)
    world.sweep()
    assert len(world.tails()) == 1, "archived, but not older than the grace period"
    clock.advance(15_001)
    world.sweep()
    assert world.tails() == []
    world.engine.close()


def test_another_open_goes_on_behind_the_tails(tmp_path: Path) -> None:
    world = World(tmp_path, start=False)
    world.append("one")
    world.engine.close()
    world.engine = world.open(world.settings)
    world.append("two")
    assert [int(key[-20:]) for key in world.tails()] == [0, 100]
    world.engine.close()
