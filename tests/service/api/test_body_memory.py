"""The budget of memory for request bodies: in turn, never over, and given back."""

from __future__ import annotations

import asyncio

import pytest

from tierlog.service.api.limits import BodyMemory
from tierlog.tiering.base.errors import OverloadedError


def test_room_is_given_back_and_taken_in_the_order_it_was_asked_for() -> None:
    async def run() -> list[str]:
        memory = BodyMemory(100, 60_000)
        order: list[str] = []

        async def ask(name: str, size: int) -> None:
            with memory.share() as share:
                await memory.take(share, size)
                order.append(name)
                assert memory.used_bytes <= 100

        with memory.share() as first:
            await memory.take(first, 60)
            waiting = [asyncio.ensure_future(ask(name, size)) for name, size in (("large", 90), ("small", 10))]
            await asyncio.sleep(0)
            assert order == []
        await asyncio.gather(*waiting)
        assert memory.used_bytes == 0
        return order

    assert asyncio.run(run()) == ["large", "small"]


def test_who_waits_too_long_is_refused_and_those_behind_it_are_served() -> None:
    async def run() -> None:
        memory = BodyMemory(100, 10)
        with memory.share() as holding, memory.share() as late, memory.share() as small:
            await memory.take(holding, 60)
            with pytest.raises(OverloadedError):
                await memory.take(late, 50)
            await memory.take(small, 40)
            assert memory.used_bytes == 100
        assert memory.used_bytes == 0

    asyncio.run(run())


def test_a_body_that_is_larger_than_the_budget_is_let_in_alone() -> None:
    async def run() -> None:
        memory = BodyMemory(100, 10)
        with memory.share() as large:
            await memory.take(large, 80)
            await memory.take(large, 400)
            with memory.share() as other, pytest.raises(OverloadedError):
                await memory.take(other, 1)
        assert memory.used_bytes == 0

    asyncio.run(run())
