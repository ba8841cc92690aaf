"""A service without tokens: for this machine alone, whatever page a browser on it shows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.support.service.access import GuardedService, line
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.api.application.process import serve
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError


def ask(app: FastAPI, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
            return await http.request(method, path, headers=headers)

    return asyncio.run(send())


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    settings = tiny_settings(access__cors_origins="https://console.example.com http://localhost:3000")
    engine = Store.open(tmp_path / "store", settings=settings)
    yield create_app(engine, settings)
    engine.close()


def test_a_name_that_somebody_lets_point_to_the_loopback_gets_no_answer(app: FastAPI) -> None:
    for host in ("127.0.0.1", "127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]:8080", "a.localhost", "localhost."):
        assert ask(app, "GET", "/v1/topics", {"Host": host}).status_code == 200, host
    for host in (
        "evil.example.com",
        "127.0.0.1.evil.example.com",
        "10.0.0.7:8080",
        "0.0.0.0",
        "[::]",
        "localhost@x",
        "",
    ):
        for path in ("/v1/topics", "/", "/livez", "/openapi.json"):
            answer = ask(app, "GET", path, {"Host": host})
            assert answer.status_code == 421, host
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_page_of_another_origin_changes_nothing(app: FastAPI) -> None:
    for origin in ("https://evil.example.com", "null", "http://localhost:8081", "http://127.0.0.1:8080"):
        assert ask(app, "POST", "/v1/admin/flush", {"Origin": origin}).status_code == 403, origin
        assert ask(app, "PUT", "/v1/topics/t", {"Origin": origin}).status_code == 403, origin
    assert ask(app, "POST", "/v1/admin/flush", {"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert ask(app, "DELETE", "/v1/topics/t", {"Sec-Fetch-Site": "same-site"}).status_code == 403
    for headers in (
        {}, {"Origin": "http://localhost:8080"}, {"Origin": "http://localhost:3000"},
        {"Origin": "https://console.example.com", "Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-origin"},
    ):  # fmt: skip
        assert ask(app, "POST", "/v1/admin/flush", headers).status_code == 200, headers


def test_only_named_origins_may_read_from_a_page(app: FastAPI, tmp_path: Path) -> None:
    def allowed(origin: str) -> str | None:
        found: str | None = ask(app, "GET", "/v1/topics", {"Origin": origin}).headers.get("access-control-allow-origin")
        return found

    assert allowed("https://console.example.com") == "https://console.example.com"
    assert allowed("https://evil.example.com") is None
    plain = GuardedService(tmp_path / "plain", [line("a", "read", "*")])
    asked = {"Origin": "https://console.example.com", "Access-Control-Request-Method": "GET"}
    assert not [
        name for name in plain.ask("OPTIONS", "/v1/topics", by=None, headers=asked).headers if "allow-o" in name
    ]
    plain.close()
    named = GuardedService(tmp_path / "named", [line("a", "read", "*")], cors_origins="https://console.example.com")
    preflight = named.ask(
        "OPTIONS", "/v1/topics", by=None, headers={**asked, "Access-Control-Request-Headers": "authorization"}
    )
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, asked["Origin"])
    named.close()


@pytest.mark.parametrize("origins", ["*", "https://*.example.com", "https://a.example.com/", "console.example.com"])
def test_origins_are_named_in_full(origins: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"access\.cors_origins"):
        tiny_settings(access__cors_origins=origins)


def test_beyond_the_loopback_a_service_does_not_start_without_tokens(tmp_path: Path) -> None:
    settings = tiny_settings(serve__host="0.0.0.0", serve__port=0)
    with pytest.raises(InvalidRequestError, match=r"on the loopback only, not on 0\.0\.0\.0; `tierlog token`"):
        serve(tmp_path / "store", settings)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("192.0.2.1", "--host is an address of this machine"),
        ("127.0.0.1", "choose another with --port"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_told_by_its_host_or_its_port(
    host: str, said: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = tiny_settings(serve__host=host, serve__port=taken.getsockname()[1])
        with pytest.raises(InvalidRequestError, match=f"cannot listen on {host}:") as refused:
            serve(tmp_path / "store", settings)
    assert said in (refused.value.hint or "")
    assert ("--port" in said) == ("--port" in (refused.value.hint or ""))


def test_a_wrong_tokens_file_keeps_a_service_from_starting(tmp_path: Path) -> None:
    settings = tiny_settings(serve__port=0, access__tokens_file=str(tmp_path / "none.toml"))
    with pytest.raises(InvalidRequestError, match="cannot read the tokens file"):
        serve(tmp_path / "store", settings)
    assert not (tmp_path / "store").exists()
