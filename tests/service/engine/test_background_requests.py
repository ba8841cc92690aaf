"""What a running node asks of its archive: next to nothing when idle, less and less of one that is dead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.objects.priced_store import PricedStore
from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
DAYS_A_MONTH = 30
HANG_S = 75.0


class LoopClock(ManualClock):
    """Ends the loop that waits on it when its time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_at_s = 0.0
        self.beside: Callable[[], None] = lambda: None

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Also sets ``event`` once the time is over, and takes a turn of what another thread would do meanwhile."""
        super().wait(event, timeout_s)
        self.beside()
        if self.monotonic_s() >= self.ends_at_s:
            event.set()
        return event.is_set()


class LoopWorld(World):
    """A node whose background is played on a clock of its own."""

    clock: LoopClock

    def __init__(self, root: Path, **settings: object) -> None:
        super().__init__(root, clock=LoopClock(), settings=tiny_settings(**settings))
        self.priced = PricedStore(self.bucket)
        self.open(objects=self.priced)
        self.append(300)

    def append(self, count: int) -> None:
        """Messages enough for some segments."""
        for number in range(count):
            self.engine.append([Message("orders", b"%04d" % number + bytes(700), [f"k{number}"])])

    def play(self, seconds: float) -> None:
        """Let the loop of the tiers run for so long, in this thread."""
        background = self.engine._background
        self.clock.beside = background._run_beside
        self.clock.ends_at_s = self.clock.monotonic_s() + seconds
        background._tiers_loop()
        background._stopping.clear()

    def tries_in(self, seconds: float) -> int:
        """Requests made while that long is played."""
        before = len(self.bucket.calls)
        self.play(seconds)
        return len(self.bucket.calls) - before


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LoopWorld]:
    world = LoopWorld(tmp_path)
    yield world
    world.engine.close()


@pytest.mark.slow
def test_an_idle_node_costs_less_than_a_dollar_a_month(world: LoopWorld) -> None:
    world.play(2 * HOUR_S)
    assert world.engine.stats()["unarchived_bytes"] == 0, "everything is archived before the idle day begins"
    usd, requests = world.priced.usd, world.priced.requests.copy()
    world.play(DAY_S)
    asked = world.priced.requests - requests
    assert 8_000 <= asked["get_if_changed"] <= 8_650, "the head is looked at every 10 s"
    assert asked["list_uploads"] == 4 * 4, "four folders are swept four times a day"
    assert asked["list"] == 5 * 4, "and the tails"
    assert set(asked) <= {"get_if_changed", "list", "list_uploads", "head", "get_range"}, "nothing is written"
    assert (world.priced.usd - usd) * DAYS_A_MONTH < 1.0


def test_a_dead_bucket_is_asked_less_and_less(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.die()
    world.append(100)
    first = world.tries_in(60)
    assert first <= 9, "1, 2, 4, 8, 16 and 32 s lie between the tries"
    tries = world.tries_in(HOUR_S)
    assert 60 <= tries <= 130, "a pause is 30 to 60 s"
    assert world.engine.cold_error is not None
    world.engine.append([Message("orders", b"still taken")])


def test_an_idle_node_backs_off_too_and_shows_the_failure_until_the_bucket_answers(world: LoopWorld) -> None:
    world.play(2 * HOUR_S)
    world.bucket.die()
    world.play(30)
    for _ in range(50):
        assert world.tries_in(20) <= 1
        assert world.engine.cold_error is not None
    world.bucket.revive()
    world.play(61)
    assert world.engine.cold_error is None


def test_a_bucket_that_hangs_is_asked_one_thing_at_a_time(world: LoopWorld) -> None:
    class Hanging(MemoryObjectStore):
        def get_if_changed(self, key: str, etag: str) -> None:
            world.clock.advance(int(HANG_S * 1000))
            raise ObjectStoreUnavailableError("no answer")

    world.play(60)
    world.bucket.inner = Hanging(world.clock)
    world.append(100)
    tries = world.tries_in(HOUR_S)
    assert HOUR_S / (HANG_S + 61) <= tries <= HOUR_S / (HANG_S + 30) + 5


def test_archiving_goes_on_soon_after_the_bucket_answers(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.die()
    world.append(400)
    world.play(HOUR_S)
    behind = world.engine.stats()["archived_to"]
    world.bucket.revive()
    world.play(61)
    archived_to = world.engine.stats()["archived_to"]
    assert isinstance(archived_to, int)
    assert isinstance(behind, int)
    assert archived_to > behind
    assert world.engine.cold_error is None
    calls = len(world.bucket.calls)
    world.bucket.die()
    world.play(60)
    assert len(world.bucket.calls) - calls >= 4, "a success forgets the failures, so the pauses are short again"


def test_a_bucket_that_takes_everything_but_the_head_is_not_filled(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.fail_before("put", "*/head", times=None)
    world.append(400)
    world.play(HOUR_S)
    uploads = [call.key for call in world.bucket.calls if call.operation == "upload"]
    names = sum(1 for _ in world.bucket.inner.list(f"{world.engine.store_id}/log/"))
    assert names <= 140, "one attempt a pause, each with a name of its own"
    assert len(set(uploads)) == len(uploads)


@pytest.mark.slow
def test_what_failed_attempts_left_is_swept_after_the_grace_period(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.fail_before("put", "*/head", times=None)
    world.append(200)
    world.play(HOUR_S)
    world.bucket.heal()
    world.play(3 * HOUR_S)
    folder = f"{world.engine.store_id}/log/"
    assert world.engine.stats()["unarchived_bytes"] == 0
    segments = [file for file in world.engine.files() if file.kind == "segment" and file.tier == "cold"]
    assert sum(1 for _ in world.bucket.list(folder)) > len(segments)
    world.play(1.5 * DAY_S)
    assert sum(1 for _ in world.bucket.list(folder)) == len(segments)
    assert world.engine.check(deep=True) == []


def test_a_dead_bucket_is_not_swept(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.die()
    world.append(100)
    world.play(6 * HOUR_S)
    assert not [call for call in world.bucket.calls if call.operation in ("list", "list_uploads", "now_ms")]


def test_local_work_goes_on_while_the_archive_is_left_alone(tmp_path: Path) -> None:
    world = LoopWorld(tmp_path, hot__roll_age_ms=5_000, cold__retry_interval_ms=3_600_000, cold__retry_max_ms=3_600_000)
    world.play(10)
    world.bucket.die()
    world.play(60)
    world.engine.append([Message("orders", b"x")])
    end = world.engine._hot.log.last_base
    world.play(10)
    assert world.engine._hot.log.last_base > end, "a segment is rolled by age beside a dead archive"
    world.engine.close()


def test_a_command_asks_at_once_whatever_the_pause(world: LoopWorld) -> None:
    world.play(60)
    world.bucket.die()
    world.append(100)
    world.play(HOUR_S)
    world.bucket.revive()
    assert world.engine.archive(everything=True).segments >= 1


def test_reads_ask_the_archive_whatever_the_pause(world: LoopWorld) -> None:
    world.engine.archive(everything=True, drop_hot=True)
    world.bucket.die()
    world.play(HOUR_S)
    assert world.engine.cold_error is not None
    world.bucket.revive()
    assert world.engine.pull("orders", 0, 0, 5).messages
