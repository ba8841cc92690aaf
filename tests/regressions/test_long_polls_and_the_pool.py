"""Forty long polls held every thread of the pool, and a produce beside them took seconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter

from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

_POLLS = 60
_QUEUE = "/v1/topics/polled/queues/0/messages"

Polls = list[asyncio.Task[httpx.Response]]
Client = httpx.AsyncClient


class World:
    def __init__(self, folder: Path) -> None:
        settings = tiny_settings()
        self.stopping = threading.Event()
        self.engine = Store.open(folder, settings=settings)
        self.engine.append([Message("polled", b"first", queue_id=0)])
        self.engine.start()
        self.app = create_app(self.engine, settings, self.stopping)

    def run(self, scenario: Callable[[Client, Polls], Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
        """What the polls answer if ``scenario`` runs while all of them wait."""

        async def main() -> list[httpx.Response]:
            async with (
                asyncio.timeout(60),
                Client(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as http,
            ):
                polls = [asyncio.create_task(http.get(f"{_QUEUE}?offset=1&wait_ms=60000")) for _ in range(_POLLS)]
                await scenario(http, polls)
                return await asyncio.gather(*polls)

        return [answer.json() for answer in asyncio.run(main())]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.engine.close()


async def produce(http: Client, topic: str) -> None:
    body = {"messages": [{"body": "second", "queue_id": 0}]}
    answer = await http.post(f"/v1/topics/{topic}/messages", json=body)
    assert answer.status_code == 200


async def all_wait(http: Client, polls: Polls) -> None:
    """Return when no thread of the pool is busy although no poll has ended."""
    assert current_default_thread_limiter().total_tokens < _POLLS
    await produce(http, "other")
    while current_default_thread_limiter().borrowed_tokens:
        await asyncio.sleep(0.01)
    assert not any(poll.done() for poll in polls)


def test_waiting_takes_no_thread_and_a_message_ends_it(world: World) -> None:
    async def scenario(http: Client, polls: Polls) -> None:
        await all_wait(http, polls)
        await produce(http, "polled")

    pages = world.run(scenario)
    assert [page["messages"][0]["body"] for page in pages] == ["second"] * _POLLS


def test_a_stop_ends_all_of_them(world: World) -> None:
    async def scenario(http: Client, polls: Polls) -> None:
        await all_wait(http, polls)
        world.stopping.set()

    assert {page["status"] for page in world.run(scenario)} == {"NO_NEW_MESSAGE"}


def test_closing_the_store_ends_a_wait(world: World) -> None:
    waiting = threading.Thread(target=world.engine.wait_for_message, args=("polled", 0, 1, 60.0))
    waiting.start()
    world.engine.close()
    waiting.join(10)
    assert not waiting.is_alive()


def test_waiting_longer_looks_no_more_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.engine.close()
    world.engine = Store.open(world.engine._hot._paths.root, settings=tiny_settings())  # whose threads do not run
    app = create_app(world.engine, tiny_settings(), world.stopping)
    dispatch, looks = world.engine._hot.dispatch, 0

    def counted() -> int:
        nonlocal looks
        looks += 1
        return dispatch()

    monkeypatch.setattr(world.engine._hot, "dispatch", counted)
    monkeypatch.setattr(world.engine._background.pull_waiters, "_catch_up", counted)

    def looks_of(wait_ms: int) -> int:
        before = looks
        answer = ApiClient(app).request("GET", f"{_QUEUE}?offset=1&wait_ms={wait_ms}")
        assert answer.json()["status"] == "NO_NEW_MESSAGE"
        return looks - before

    assert looks_of(1_600) == looks_of(50) == 3, "one before, one to see nothing come, one after"
