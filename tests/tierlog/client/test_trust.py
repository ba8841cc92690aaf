"""A service that cannot prove who it is gets no request, and is not asked again and again."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service.certificates import Authority
from tierlog.client import AsyncClient, Client
from tierlog.client.errors import AccessError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")

_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n{"topics":[]}'


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture
def url(ours: Authority) -> Iterator[str]:
    """Somebody with a certificate of ours, who has no topics."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*ours.sign("service"))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(raw, server_side=True) as connection:
                    connection.recv(65_536)
                    connection.sendall(_ANSWER)
            except OSError:  # the client has hung up
                raw.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_authority_that_is_known_is_believed(url: str, ours: Authority) -> None:
    async def topics() -> object:
        async with AsyncClient(url, ca_file=ours.file) as client:
            return await client.topics()

    with Client(url, ca_file=ours.file) as client:
        assert client.topics() == []
    assert asyncio.run(topics()) == []


def test_an_authority_that_is_not_known_is_not(url: str, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")

    async def topics() -> None:
        async with AsyncClient(url, ca_file=other.file) as client:
            await client.topics()

    with Client(url, ca_file=other.file) as client, pytest.raises(AccessError, match="is not who it says it is"):
        client.topics()
    with pytest.raises(AccessError, match="is not who it says it is"):
        asyncio.run(topics())
