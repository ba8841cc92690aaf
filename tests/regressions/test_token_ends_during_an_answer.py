"""A token that is withdrawn or expires ends answers that go on for long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Message as Sent

from tests.support.service.access import GuardedService, line, token
from tests.support.service.asgi_call import Call
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message

_LATE = {"accept": "application/x-ndjson, application/json", "authorization": f"Bearer {token('late')}"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GuardedService]:
    made = GuardedService(tmp_path, [line("late", "read", "t", "1970-01-01T01:00:00Z")], clock=ManualClock(0))
    serve = made.settings.serve.model_copy(update={"stream_page_bytes": 1024})
    made.app.state.settings = made.settings.model_copy(update={"serve": serve})
    made.engine.append([Message("t", b"%d" % number * 500, ("k",), queue_id=0) for number in range(8)])
    yield made
    made.close()


def test_a_download_ends_at_the_next_page(service: GuardedService) -> None:
    async def expire(message: Sent) -> None:
        assert isinstance(service.clock, ManualClock)
        service.clock.advance(3_600_000)

    call = Call("GET", "/v1/topics/t/messages?all=true", on_send=expire, headers=_LATE)
    asyncio.run(call.run(service.app))
    *messages, last = [json.loads(line) for line in call.body.splitlines()]
    assert call.status == 200
    assert 0 < len(messages) < 8
    assert last["problem"]["status"] == 401


def test_a_long_poll_tells_nothing_of_what_came_later(service: GuardedService) -> None:
    async def run() -> Call:
        call = Call("GET", "/v1/topics/t/queues/0/messages?offset=8&wait_ms=30000", headers=_LATE)
        polling = asyncio.ensure_future(call.run(service.app))
        while not service.engine._background.pull_waiters._watches:
            await asyncio.sleep(0)
        assert isinstance(service.clock, ManualClock)
        service.clock.advance(3_600_000)
        service.engine.append([Message("t", b"later", queue_id=0)])
        await polling
        return call

    call = asyncio.run(run())
    assert (call.status, b"later" in call.body) == (401, False)
