"""Where a producer for asyncio appends, and with whom: on the loop while the disk is quick, without timers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.service.engine.test_async_producer import QUICK_APPENDS, appending_on_the_loop, run, send_together, turns
from tests.service.engine.test_producer import ROOT, opened
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.producers import AsyncProducer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.telemetry import NoTracer, Span, Value

WHOSE = ContextVar("WHOSE", default="nobody's")


class SlowFlushes(FaultyFileSystem):
    """Notes on which threads the log is flushed, each of which takes a second of a clock that is played."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(CrashFileSystem())
        self.clock, self.flush_ms = clock, 0
        self.threads: list[str] = []

    def check(self, operation: str, path: Path) -> None:
        super().check(operation, path)
        if operation == "flush" and path.parent.name == "commitlog":
            self.threads.append(threading.current_thread().name)
            self.clock.advance(self.flush_ms)


@pytest.mark.parametrize("together", [1, 64])
def test_one_slow_flush_moves_appends_off_the_loop_until_flushes_are_quick_again(together: int) -> None:
    async def story() -> None:
        clock = ManualClock()
        fs = SlowFlushes(clock)
        engine = Store.open(ROOT, settings=tiny_settings(hot__segment_bytes=1 << 20), fs=fs, clock=clock)
        here, apart = threading.current_thread().name, "tierlog-producer"
        await asyncio.to_thread(engine.create_topic, "orders", 4)
        fs.threads.clear()
        async with AsyncProducer(engine, clock=clock) as producer:
            for _ in range(QUICK_APPENDS + 2):
                await send_together(producer, together)
            assert fs.threads == [apart] * QUICK_APPENDS + [here] * 2, "an unknown disk holds nobody up"
            fs.threads.clear()
            fs.flush_ms = 10
            for _ in range(3):
                await send_together(producer, together)
            assert fs.threads == [here, apart, apart], "the first slow one was known to nobody"
            fs.flush_ms = 0
            fs.threads.clear()
            for _ in range(100):
                await send_together(producer, together)
            assert fs.threads == [apart] * QUICK_APPENDS + [here] * (100 - QUICK_APPENDS), "a few may be luck"
        engine.close()

    run(story())


class NotingTracer(NoTracer):
    """Notes whose each append is."""

    def __init__(self) -> None:
        self.appends: list[str] = []

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        if name == "append":
            self.appends.append(WHOSE.get())
        return super().span(name, **facts)


def test_an_append_of_many_belongs_to_the_trace_of_none() -> None:
    async def story() -> None:
        tracer = NotingTracer()
        engine = Store.open(
            ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=ManualClock(), tracer=tracer
        )  # fmt: skip
        async with await appending_on_the_loop(engine) as producer:
            WHOSE.set("the first sender's")
            await send_together(producer, 2)
            await producer.send("orders", b"x")
        assert set(tracer.appends) == {"nobody's"}
        engine.close()

    run(story())


def test_a_producer_that_may_not_hold_up_the_loop_never_does() -> None:
    async def story() -> None:
        clock = ManualClock()
        fs = SlowFlushes(clock)
        engine = Store.open(ROOT, settings=tiny_settings(hot__segment_bytes=1 << 20), fs=fs, clock=clock)
        fs.threads.clear()
        async with AsyncProducer(engine, max_blocking_s=0, clock=clock) as producer:
            for _ in range(30):
                await producer.send("orders", b"x")
        assert set(fs.threads) == {"tierlog-producer"}
        engine.close()

    run(story())


@pytest.mark.parametrize(("count", "body"), [(257, b"x"), (2, bytes(200_000))])
def test_a_batch_that_is_much_work_holds_nobody_up(count: int, body: bytes) -> None:
    async def story() -> None:
        clock = ManualClock()
        fs = SlowFlushes(clock)
        engine = Store.open(ROOT, settings=tiny_settings(hot__segment_bytes=1 << 20), fs=fs, clock=clock)
        async with AsyncProducer(engine, clock=clock) as producer:
            for _ in range(QUICK_APPENDS + 1):
                await producer.send("orders", b"x")
            assert fs.threads[-1] == threading.current_thread().name
            await send_together(producer, count, body)
            assert fs.threads[-1] == "tierlog-producer"
        engine.close()

    run(story())


async def sends_itself(producer: AsyncProducer) -> None:
    await producer.send("orders", b"x")


async def sends_through_a_task(producer: AsyncProducer) -> None:
    await asyncio.create_task(producer.send("orders", b"x"))


async def sends_through_two_tasks(producer: AsyncProducer) -> None:
    await asyncio.gather(producer.send("orders", b"x"))


@pytest.mark.parametrize("max_blocking_s", [0, 1e6])
def test_who_was_answered_joins_the_next_batch_without_a_timer(
    max_blocking_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 20

    async def story() -> None:
        engine = opened()
        producer = AsyncProducer(engine, max_blocking_s=max_blocking_s)
        await producer.send("orders", b"x")

        async def send(one: Any) -> None:
            for _ in range(rounds):
                await one(producer)

        before = engine._hot.log.flushes
        ways = [sends_itself, sends_through_a_task, sends_through_two_tasks]
        with monkeypatch.context() as patched:
            patched.delattr(asyncio.BaseEventLoop, "call_later")
            patched.delattr(asyncio.BaseEventLoop, "call_at")
            await asyncio.gather(*(send(ways[number % 3]) for number in range(30)))
        # at first nobody knows how many they are
        assert engine._hot.log.flushes - before <= rounds + 2
        await producer.close()
        engine.close()

    run(story())


def test_company_that_has_left_is_not_waited_for() -> None:
    async def story() -> None:
        engine = opened()
        producer = await appending_on_the_loop(engine)
        await send_together(producer, 50)
        assert not producer._is_busy or producer._turns < 3
        found = [asyncio.create_task(producer.send("orders", b"%d" % number)) for number in range(2)]
        await turns(6)
        assert all(task.done() for task in found), "no more than a few turns of the loop"
        await producer.close()
        engine.close()

    run(story())
