"""What a producer for asyncio promises: an answer is a promise kept, senders share batches, none harms another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.service.engine.test_producer import bodies, opened
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.producers import AsyncProducer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ClosedError, InvalidRequestError, ReadOnlyError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Durability

LOG = "*/commitlog/*"


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


async def turns(count: int = 10) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


QUICK_APPENDS = 8
"""So many are short before the loop takes over from the thread."""


async def send_together(producer: AsyncProducer, count: int, body: bytes = b"x") -> None:
    await asyncio.gather(*(producer.send("orders", body) for _ in range(count)))


async def appending_on_the_loop(engine: Store) -> AsyncProducer:
    producer = AsyncProducer(engine, max_blocking_s=1e6)
    for _ in range(QUICK_APPENDS):
        await producer.send("warm-up", b"x")
    return producer


async def reached(hold: Any) -> None:
    await asyncio.to_thread(hold.wait_until_reached)


def test_each_sender_is_told_where_its_own_message_went() -> None:
    async def story() -> None:
        engine = opened()
        async with AsyncProducer(engine) as producer:
            found = await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(100)))
            alone = await producer.send("orders", b"alone")
        assert [engine.message(one.message_id).record.body for one in found] == [b"%d" % n for n in range(100)]
        assert engine.message(alone.message_id).record.body == b"alone"
        engine.close()

    run(story())


@pytest.mark.parametrize("together", [1, 7])
def test_what_was_answered_survives_a_power_cut(together: int) -> None:
    async def story() -> None:
        fs = CrashFileSystem()
        engine = opened(fs)
        producer = AsyncProducer(engine, max_blocking_s=1e6)  # on the thread at first, on the loop then
        for first in range(0, (QUICK_APPENDS + 5) * together, together):
            await asyncio.gather(*(producer.send("orders", b"%d" % (first + n), queue_id=0) for n in range(together)))
            again = opened(fs.crash(first, lose_everything=True))
            assert bodies(again) == [b"%d" % number for number in range(first + together)]
            again.close()
        await producer.close()

    run(story())


def test_senders_that_wait_for_a_flush_share_the_next() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        held = fs.hold("flush", LOG)
        async with AsyncProducer(engine) as producer:
            first = [asyncio.create_task(producer.send("orders", b"%d" % number)) for number in range(2)]
            await reached(held)
            rest = [asyncio.create_task(producer.send("orders", b"%d" % number)) for number in range(2, 50)]
            await turns()
            assert not any(task.done() for task in first + rest), "answered before the flush"
            before = engine._hot.log.flushes
            held.release()
            await asyncio.gather(*first, *rest)
            assert engine._hot.log.flushes - before == 2
        engine.close()

    run(story())


def test_the_loop_goes_on_while_a_batch_is_flushed() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        held = fs.hold("flush", LOG)
        async with AsyncProducer(engine) as producer:
            tasks = [asyncio.create_task(producer.send("orders", b"x")) for _ in range(2)]
            await reached(held)  # it would not be, were the loop held up
            held.release()
            await asyncio.gather(*tasks)
        engine.close()

    run(story())


def test_what_is_wrong_with_a_message_is_its_senders_alone() -> None:
    async def story() -> None:
        engine = opened()
        async with AsyncProducer(engine) as producer:
            found = await asyncio.gather(
                producer.send("orders", b"good", queue_id=0), producer.send("orders", b""),
                producer.send("orders", b"good too", queue_id=0), return_exceptions=True,
            )  # fmt: skip
        assert [type(one) for one in found] == [Appended, InvalidRequestError, Appended]
        assert bodies(engine) == [b"good", b"good too"]
        engine.close()

    run(story())


@pytest.mark.parametrize("max_blocking_s", [0, 1e6])
def test_a_failed_batch_reaches_all_its_senders_and_nobody_else(max_blocking_s: float) -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        async with AsyncProducer(engine, max_blocking_s=max_blocking_s) as producer:
            for _ in range(QUICK_APPENDS):
                await producer.send("orders", b"before")
            fs.refuse("flush", LOG)
            found = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(20)), return_exceptions=True)
            assert all(isinstance(one, ReadOnlyError) for one in found)
            with pytest.raises(ReadOnlyError):
                await producer.send("orders", b"after")
        engine.close()

    run(story())


def test_a_sender_that_is_cancelled_before_its_batch_begins_takes_nobody_with_it() -> None:
    async def story() -> None:
        engine = opened()
        producer = await appending_on_the_loop(engine)
        tasks = [asyncio.create_task(producer.send("orders", b"%d" % n, queue_id=0)) for n in range(3)]
        asyncio.get_running_loop().call_soon(tasks[1].cancel)  # once they have sent, and before anybody is answered
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [Appended, asyncio.CancelledError, Appended]
        assert [await producer.send("orders", b"3", queue_id=0)], "the producer goes on"
        assert set(bodies(engine)) >= {b"0", b"2", b"3"}
        await producer.close()
        engine.close()

    run(story())


def test_a_sender_that_is_cancelled_takes_nobody_with_it() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        held = fs.hold("flush", LOG)
        async with AsyncProducer(engine) as producer:
            tasks = [asyncio.create_task(producer.send("orders", b"%d" % n, queue_id=0)) for n in range(3)]
            await reached(held)
            late = [asyncio.create_task(producer.send("orders", b"late %d" % n, queue_id=0)) for n in range(2)]
            await turns()
            for task in (tasks[1], late[0]):
                task.cancel()
            await turns()
            assert tasks[1].cancelled(), "it had to wait for the disk"
            assert late[0].cancelled(), "it had to wait for the disk"
            held.release()
            await asyncio.gather(tasks[0], tasks[2], late[1])
        assert set(bodies(engine)) >= {b"0", b"2", b"late 1"}
        engine.close()

    run(story())


def test_senders_wait_while_too_much_is_pending() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        held = fs.hold("flush", LOG)
        async with AsyncProducer(engine, max_pending_bytes=1_000) as producer:
            tasks = [asyncio.create_task(producer.send("orders", b"x" * 400)) for _ in range(2)]
            await reached(held)
            tasks += [asyncio.create_task(producer.send("orders", b"x" * 400)) for _ in range(20)]
            await turns()
            assert len(producer._next.senders) == 3, "no more than the bound and one message"
            tasks[-1].cancel()
            held.release()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(one) for one in found] == [Appended] * 21 + [asyncio.CancelledError]
            assert len(producer._room) == 0
        engine.close()

    run(story())


def test_closing_answers_everybody_and_takes_no_more() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(CrashFileSystem())
        engine = opened(fs)
        held = fs.hold("flush", LOG)
        producer = AsyncProducer(engine, max_pending_bytes=15)
        tasks = [asyncio.create_task(producer.send("orders", b"x" * 10, queue_id=0)) for _ in range(5)]
        await reached(held)
        closing = asyncio.create_task(producer.close())
        await turns()
        with pytest.raises(ClosedError):
            await producer.send("orders", b"y")
        assert not closing.done()
        held.release()
        await closing
        await producer.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        answered = [one for one in found if isinstance(one, Appended)]
        assert len(answered) == len(bodies(engine)) >= 1
        assert all(isinstance(one, Appended | ClosedError) for one in found)
        assert producer._thread is not None
        producer._thread.join(10)
        assert not producer._thread.is_alive()
        engine.close()

    run(story())


def test_archived_is_answered_once_the_bucket_has_it(tmp_path: Path) -> None:
    async def story() -> None:
        settings = tiny_settings(cold__tail_interval_ms=1)
        engine = Store.open(tmp_path / "s", settings=settings, cold_url=f"file://{tmp_path}/cold", fs=LocalFileSystem())
        async with AsyncProducer(engine, Durability.ARCHIVED) as producer:
            await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(9)))
        assert engine._archived is not None
        assert engine._archived.writer.is_covered(engine._hot.log.end)
        assert engine.counted.messages.reading() == {("archived",): 9}
        engine.close()

    run(story())
