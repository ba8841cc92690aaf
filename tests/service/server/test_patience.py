"""How long a client that is behind is waited for: as long as it takes something, whatever the size of its answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from tests.support.stores.engines import tiny_settings
from tierlog.service.server.connections import Connections
from tierlog.service.server.http_server import TimedProtocol, http_config


class Timers:
    """A loop whose timers a test lets run out."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.TimerHandle] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **_: Any) -> asyncio.TimerHandle:
        self.waiting.append(asyncio.TimerHandle(delay, callback, args, self))  # type: ignore[arg-type]  # what it asks
        return self.waiting[-1]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.waiting.remove(handle)

    def run_out(self) -> None:
        """All that wait now."""
        due, self.waiting = self.waiting, []
        for handle in due:
            handle._run()


class Wire(asyncio.Transport):
    """A transport whose client takes what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.untaken = 0
        self.is_cut = self.is_closed = False
        self.socket = socket.socket()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_cut = True


class World:
    def __init__(self, **bounds: object) -> None:
        limits = tiny_settings(serve__send_timeout_ms=10_000, **bounds).serve
        config = http_config(lambda scope: None, limits)
        self.loop, self.wire = Timers(), Wire()
        place = Connections(1).enter()
        assert place is not None
        self.protocol = TimedProtocol(config, ServerState(), {}, cast(Any, self.loop), limits=limits, place=place)
        self.protocol.connection_made(self.wire)
        self.protocol._stop_waiting()  # the head was there


@pytest.fixture
def wire() -> Any:
    made: list[World] = []

    def make(**bounds: object) -> World:
        made.append(World(**bounds))
        return made[-1]

    yield make
    for world in made:
        world.wire.socket.close()


def test_a_client_that_goes_on_taking_is_waited_for(wire: Callable[..., World]) -> None:
    world = wire(serve__min_send_rate=100)
    world.wire.untaken = 200_000
    world.protocol.pause_writing()
    for _ in range(150):  # 25 minutes
        world.wire.untaken -= 1_001
        world.loop.run_out()
        assert not world.wire.is_cut
    world.protocol.resume_writing()
    assert not world.loop.waiting
    assert world.protocol.flow._is_writable_event.is_set()


@pytest.mark.parametrize(
    ("rate", "taken", "is_cut"), [(100, 999, True), (100, 1_000, False), (0, 1, False), (0, 0, True)]
)
def test_a_client_that_takes_less_than_it_has_to_is_cut_off(
    wire: Callable[..., World], rate: int, taken: int, is_cut: bool
) -> None:
    world = wire(serve__min_send_rate=rate)
    world.wire.untaken = 100_000
    world.protocol.pause_writing()
    world.wire.untaken -= taken
    world.loop.run_out()
    assert world.wire.is_cut is is_cut


def test_what_waits_in_a_closed_connection_has_to_be_taken_too(wire: Callable[..., World]) -> None:
    world = wire(serve__min_send_rate=100)
    world.wire.untaken = 50_000
    world.protocol.timeout_keep_alive_handler()
    for _ in range(10):
        world.wire.untaken -= 2_000
        world.loop.run_out()
    assert not world.wire.is_cut
    world.loop.run_out()
    assert world.wire.is_cut


def test_what_the_socket_holds_counts_as_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.connect(server.getsockname())
        writer, _ = server.accept()
        with writer:
            world = World(serve__min_send_rate=100)
            world.wire.socket.close()
            world.wire.socket = writer
            writer.setblocking(False)
            writer.send(bytes(200_000))
            world.protocol.pause_writing()
            left = world.protocol._untaken_bytes()
            assert left > 0
            while reader.recv(65_536, socket.MSG_DONTWAIT) and world.protocol._untaken_bytes() == left:
                reader.setblocking(True)
            world.loop.run_out()
            assert not world.wire.is_cut, "its reader took something, though the transport saw nothing of it"
