"""A producer on an event loop: in order, each message once, and what is cancelled holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.client.scripted import Said, good
from tests.support.client.scripted_log import FakeLog
from tierlog.client import AsyncClient, Batching, RetryPolicy
from tierlog.client.errors import ClosedError, InvalidRequestError, NoAnswerError, StoreError
from tierlog.client.requests import Answer, Request
from tierlog.tiering.base.clock import ManualClock


class SlowLog:
    """Answers after the others had their turn, and not before it is let go."""

    def __init__(self, log: Callable[[Request], Said]) -> None:
        self._log = log
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        if request.method == "POST":
            await self.gate.wait()
        said = self._log(request)
        if isinstance(said, BaseException):
            raise said
        return said

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass


def client_of(slow: SlowLog, within_s: float = 60) -> AsyncClient:
    return AsyncClient(
        "http://127.0.0.1:1", clock=ManualClock(), transport=slow, retries=RetryPolicy(within_s=within_s)
    )  # fmt: skip


def test_messages_are_in_order_once_and_gathered_while_a_batch_is_on_its_way() -> None:
    log = FakeLog(lost=2)

    async def work() -> list[int]:
        slow = SlowLog(log)
        async with client_of(slow).producer("t") as producer:
            return [one.queue_offset for one in await asyncio.gather(*(producer.send(f"{at}") for at in range(200)))]

    assert asyncio.run(work()) == list(range(200))
    assert log.bodies == [f"{at}" for at in range(200)]
    assert len(log.sizes) < 50


def test_a_wrong_message_is_told_alone() -> None:
    log = FakeLog(frozenset({"3"}))

    async def work() -> list[object]:
        producer = client_of(SlowLog(log)).producer("t")
        found = await asyncio.gather(*(producer.send(f"{at}") for at in range(8)), return_exceptions=True)
        with pytest.raises(InvalidRequestError):
            await producer.close()
        return list(found)

    assert [at for at, one in enumerate(asyncio.run(work())) if isinstance(one, InvalidRequestError)] == [3]
    assert log.bodies == ["0", "1", "2", "4", "5", "6", "7"]


def test_a_failure_is_told_by_flush_once_and_the_next_message_goes() -> None:
    log = FakeLog(lost=1)

    async def work() -> None:
        producer = client_of(SlowLog(log), within_s=0).producer("t")
        await producer.submit("1")
        with pytest.raises(NoAnswerError):
            await producer.flush()
        await producer.flush()
        assert (await producer.send("2")).queue_offset == 1
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.submit("3")

    asyncio.run(work())


def test_a_sender_that_is_cancelled_holds_nobody_up_and_room_comes_back() -> None:
    log = FakeLog()

    async def work() -> None:
        slow = SlowLog(log)
        slow.gate.clear()
        producer = client_of(slow).producer("t", batching=Batching(max_pending_bytes=1_200))
        first = asyncio.create_task(producer.send("x" * 100))
        waiting = asyncio.create_task(producer.send("y" * 1_000))
        for _ in range(20):
            await asyncio.sleep(0)
        waiting.cancel()
        first.cancel()
        slow.gate.set()
        assert (await producer.send("z")).queue_offset == 1
        await producer.close()

    asyncio.run(work())
    assert [body[0] for body in log.bodies] == ["x", "z"]


def test_messages_linger_for_others() -> None:
    log = FakeLog()

    async def work() -> None:
        async with client_of(SlowLog(log)).producer("t", batching=Batching(linger_ms=3_600_000)) as producer:
            futures = [await producer.submit(f"{at}") for at in range(5)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert log.bodies == []
            await producer.flush()
            assert [future.result().queue_offset for future in futures] == list(range(5))

    asyncio.run(work())
    assert log.sizes == [5]


def test_a_close_that_is_cancelled_loses_nothing() -> None:
    log = FakeLog()

    async def work() -> None:
        slow = SlowLog(log)
        slow.gate.clear()
        producer = client_of(slow).producer("t", batching=Batching(max_messages=2))
        futures = [await producer.submit(f"{at}") for at in range(6)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.02)
        slow.gate.set()
        await producer.close()
        assert [one.result().queue_offset for one in futures] == list(range(6))

    asyncio.run(work())


def test_nobody_waits_for_a_task_that_the_end_of_the_loop_has_cancelled() -> None:
    async def work() -> None:
        slow = SlowLog(FakeLog())
        slow.gate.clear()
        producer = client_of(slow).producer("t", batching=Batching(max_messages=2))
        futures = [await producer.submit(f"{at}") for at in range(6)]
        await asyncio.sleep(0.01)
        (sender,) = asyncio.all_tasks() - {asyncio.current_task()}
        sender.cancel()
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(one) for one in found] == [ClosedError] * 6
        with pytest.raises(ClosedError):
            await producer.submit("more")
        with pytest.raises(ClosedError):
            await producer.close()

    asyncio.run(work())


def test_an_answer_of_another_length_fails_its_batch_and_no_more() -> None:
    def short(request: Request) -> Said:
        if request.method == "GET":
            return log(request)
        return good({"results": [{"message_id": "A", "queue_id": 0, "queue_offset": 0, "store_ms": 5}]})

    log = FakeLog()

    async def work() -> None:
        producer = client_of(SlowLog(short)).producer("t", batching=Batching(linger_ms=3_600_000))
        futures = [await producer.submit(f"{at}") for at in range(2)]
        with pytest.raises(StoreError, match="2 messages were answered with 1 results"):
            await producer.flush()
        assert all(isinstance(future.exception(), StoreError) for future in futures)
        alone = await producer.submit("alone")
        await producer.close()
        assert alone.result().queue_offset == 0

    asyncio.run(asyncio.wait_for(work(), 60))
