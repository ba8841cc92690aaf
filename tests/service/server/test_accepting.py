"""A place is given back however a connection's opening ends."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from tierlog.service.server.connections import Connections, ConnectionSlot, Listener


def test_an_opening_that_fails_keeps_no_place_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong there is a defect of the service, which must not take its connections one by one."""
    connections = Connections(2)

    def broken(place: ConnectionSlot) -> asyncio.Protocol:
        raise LookupError("no protocol")

    async def connect(count: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listener = Listener(listening, connections, broken, b"", tls=None, handshake_s=5, shutdown_s=5)
            for _ in range(count):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                assert await reader.read() == b"", "it is closed"
                writer.close()
            listener.close()
            await listener.wait_closed()

    with caplog.at_level(logging.ERROR):
        asyncio.run(connect(5))
    assert connections.open == 0
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [LookupError] * 5
