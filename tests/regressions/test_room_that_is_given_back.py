"""However a request ends, the room and the places that it held are free again; who needs no token holds none."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.types import Message as Sent

from tests.support.service.access import GuardedService, line
from tests.support.service.asgi_call import GONE, SILENT, Call
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app, routed_app
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import Lanes
from tierlog.service.api.limits import BodyMemory, decoder_of
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

_APPEND = "/v1/topics/t/messages"
_LINE = b'{"body":"x"}\n'


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    settings = tiny_settings(
        serve__max_request_bytes=100_000, serve__receive_timeout_ms=10, serve__stream_page_bytes=1024,
        serve__body_memory_bytes=1 << 20, serve__wait_ms=10,
    )  # fmt: skip
    with contextlib.closing(Store.open(tmp_path / "store", settings=settings)) as engine:
        engine.append([Message("t", b"%d" % number * 500, ("k",), queue_id=0) for number in range(20)])
        yield create_app(engine, settings)


async def _reset(message: Sent) -> None:
    raise OSError("connection reset")


async def _reset_in_body(message: Sent) -> None:
    if message["type"] == "http.response.body":
        raise OSError("connection reset")


async def _takes_nothing(message: Sent) -> None:
    await asyncio.Event().wait()


def _append(*pieces: bytes | str, **headers: str) -> Call:
    named = {"content_type": "application/x-ndjson", "content_length": "90000", **headers}
    return Call("POST", _APPEND, pieces, headers={name.replace("_", "-"): value for name, value in named.items()})


def _ends() -> dict[str, tuple[Call, int | None]]:
    chunked = {"content_length": "", "transfer_encoding": "chunked"}
    return {
        "gone before its body": (_append(GONE), None),
        "gone within its body": (_append(_LINE, GONE), None),
        "gone within chunks": (_append(_LINE * 1000, GONE, **chunked), None),
        "silent": (_append(_LINE, SILENT), 408),
        "too large as it says": (_append(content_length="100001"), 413),
        "too large as it comes": (_append(*[_LINE * 4000] * 3, **chunked), 413),
        "too large as it decodes": (_append(gzip.compress(b"\n" * 200_000), content_encoding="gzip"), 413),
        "damaged": (_append(b"not gzip", content_encoding="gzip"), 422),
        "unknown encoding": (_append(_LINE, content_encoding="br"), 415),
        "no messages": (_append(b"{"), 422),
        "not acceptable": (_append(_LINE, accept="image/png"), 406),
        "reset before the answer": (Call("GET", _APPEND, on_send=_reset), None),
        "reset within the answer": (Call("GET", _APPEND + "?all=true", on_send=_reset_in_body), None),
        "cancelled within the body": (_append(_LINE, SILENT), None),
        "cancelled in a download": (Call("GET", _APPEND + "?all=true", on_send=_takes_nothing), None),
        "cancelled in a long poll": (Call("GET", "/v1/topics/t/queues/0/messages?offset=20&wait_ms=30000"), None),
        "cancelled in an answer": (Call("GET", "/v1/stats", on_send=_takes_nothing), None),
    }


def _held(app: FastAPI) -> dict[str, int]:
    lanes: Lanes = app.state.lanes
    memory: BodyMemory = app.state.body_memory
    found = {lane.name: lane.under_way for lane in (lanes.append, lanes.read, lanes.poll, lanes.stream, lanes.admin)}
    found |= {f"{name} gate": gate.inside for name, gate in lanes.gates.items()}
    return {**found, "always": lanes.always.under_way, "memory": memory.used_bytes}


def test_every_end_of_a_request_gives_back_what_it_held(app: FastAPI) -> None:
    async def run() -> None:
        for name, (call, status) in _ends().items():
            task = asyncio.ensure_future(call.run(app))
            if name.startswith("cancelled"):
                while not task.done() and not any(_held(app).values()):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            if status is not None or "gone" in name:
                assert call.status == status, (name, call.body)
            assert not any(_held(app).values()), (name, _held(app))
        good = _append(_LINE, content_length=str(len(_LINE)))
        await good.run(app)
        assert good.status == 200

    asyncio.run(run())


def test_a_cancellation_is_not_lost_beside_the_end_of_the_work() -> None:
    """A download whose client left went on to its end if a page was ready at the same moment."""

    async def run() -> None:
        lane = Lanes(tiny_settings().serve).stream
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def work() -> None:
            await lane.run(lambda: loop.call_soon_threadsafe(begun.set), is_timed=False)
            await asyncio.Event().wait()

        for lag in range(4):
            begun.clear()
            task = asyncio.ensure_future(work())
            await begun.wait()
            for _ in range(lag):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=60)
            assert done

    asyncio.run(run())


def test_who_waits_for_room_and_leaves_is_not_served_later(app: FastAPI) -> None:
    async def run() -> None:
        memory: BodyMemory = app.state.body_memory
        with memory.share() as share:
            await memory.take(share, 1 << 20)
            refused, left = _append(_LINE), asyncio.ensure_future(_append(_LINE).run(app))
            while not memory._waiting:
                await asyncio.sleep(0)
            left.cancel()
            await asyncio.wait([left])
            await refused.run(app)
            assert refused.status == 429
            assert memory.used_bytes == 1 << 20
        assert not any(_held(app).values())

    asyncio.run(run())


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 405)])
def test_nobody_without_a_token_takes_the_room_of_bodies(tmp_path: Path, method: str, status: int) -> None:
    """Else a handful of connections to the health check that announce a body keep all producers out."""
    service = GuardedService(tmp_path, [line("root", "admin", "*")])

    async def run() -> None:
        call = Call(method, "/livez", [SILENT], headers={"content-length": str(60 << 20)})
        await asyncio.wait_for(call.run(service.app), 60)
        assert call.status == status

    asyncio.run(run())
    service.close()


def test_a_body_that_is_no_messages_is_bounded_by_itself(tmp_path: Path) -> None:
    """It is taken apart on the event loop: 64 MiB of it would stop every answer for seconds."""
    with contextlib.closing(
        Store.open(tmp_path / "store", settings=tiny_settings(serve__max_request_bytes=64 << 20))
    ) as engine:
        app = create_app(engine, tiny_settings(serve__max_request_bytes=64 << 20))
        headers = {"content-length": str(5 << 20), "content-type": "application/json"}
        call = Call("PUT", "/v1/groups/g/offsets", [b"{"], headers=headers)
        asyncio.run(call.run(app))
        assert call.status == 413


def test_tiny_members_are_decoded_together() -> None:
    """Each piece goes to a thread and back: a body of members of one byte cost a second of it for 64 KiB."""
    decoder = decoder_of("gzip")
    assert [len(piece) for piece in decoder.feed(gzip.compress(b"x") * 3000)] == [3000]
    decoder.end()


def test_all_work_is_done_on_threads_of_its_lane() -> None:
    """What the framework runs by itself shares few threads, which calls that wait for the archive used up."""
    app = routed_app(access=False)
    assert {route.path for route in app.routes if not isinstance(route, LaneRoute)} == {app.openapi_url}  # type: ignore[attr-defined]


def test_problems_are_told_without_a_thread(app: FastAPI) -> None:
    ours = [handler for handler in app.exception_handlers.values() if handler.__module__.startswith("tierlog.")]
    assert len(ours) >= 4
    assert all(inspect.iscoroutinefunction(handler) for handler in ours)
