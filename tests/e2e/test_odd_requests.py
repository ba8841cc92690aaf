"""Requests that are unusual or wrong in their form get the answer that was decided, never a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message


class Raw:
    """Sends paths as they are written."""

    def __init__(self, engine: Store) -> None:
        self._app = create_app(engine, tiny_settings())

    def ask(self, method: str, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await http.request(method, path, content=content, headers=named)

        return asyncio.run(ask())


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    engine = Store.open(tmp_path / "store", settings=tiny_settings())
    for topic in ("t", "%RETRY%g"):
        engine.append([Message(topic, b"x", ["k"])])
    yield Raw(engine)
    engine.close()


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("form=5", "did you mean 'from'"),
        ("nothing=5", "there are"),
        ("limit=1&limit=2", "twice"),
        ("key=%ff", "UTF-8"),
        ("key=%ED%A0%80", "UTF-8"),
        ("limit=" + "9" * 5000, "limit"),
        ("limit=1e3", "limit"),
        ("limit=%D9%A3", "limit"),
        ("timeout_ms=99999999999", "timeout_ms"),
        ("dry_run=yes", "dry_run"),
        ("from=1969-12-31", "from"),
        ("&".join(f"a{n}=1" for n in range(100)), "arguments"),
    ],
)
def test_an_argument_that_is_unknown_doubled_or_no_value_of_it_is_refused(raw: Raw, query: str, word: str) -> None:
    answer = raw.ask("GET", f"/v1/topics/t/messages?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert word in answer.json()["detail"] + answer.json().get("hint", "")


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/stats", "/livez", "/metrics", "/v1/topics/t", "/v1/groups"])
def test_no_call_takes_an_argument_that_it_does_not_know(raw: Raw, path: str) -> None:
    assert raw.ask("GET", path).status_code in (200, 404)
    assert raw.ask("GET", f"{path}?x=1").status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/topics/%25RETRY%25g", 200),
        ("/v1/topics/t/", 404),
        ("/v1/topics/", 404),
        ("/v1/topics/a%2Fb", 404),
        ("/v1/topics/a%00b", 400),
        ("/v1/topics/%ED%A0%80", 400),
        ("/v1/topics/%ff", 400),
        ("/v1/topics/t/queues/99999999999999999999/messages", 400),
        ("/v1/topics/t/queues/-1/messages", 400),
        ("/v1/topics/t/queues/0.0/messages", 400),
    ],
)
def test_a_path_is_taken_as_it_is(raw: Raw, path: str, status: int) -> None:
    answer = raw.ask("GET", path)
    assert (answer.status_code, "location" in answer.headers) == (status, False)


def test_head_is_answered_as_get_without_the_body(raw: Raw) -> None:
    for path in ("/v1/topics", "/livez", "/v1/topics/t/messages?key=k"):
        head, got = raw.ask("HEAD", path), raw.ask("GET", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert raw.ask("HEAD", "/v1/topics/none").status_code == 404
    assert raw.ask("HEAD", "/v1/admin/flush").status_code == 405


def test_options_and_405_name_every_method_of_the_path(raw: Raw) -> None:
    answer = raw.ask("OPTIONS", "/v1/topics/t")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, PUT, DELETE, HEAD, OPTIONS")
    assert raw.ask("OPTIONS", "/v1/nothing").status_code == 404
    refused = raw.ask("PATCH", "/v1/topics/t")
    assert (refused.status_code, refused.headers["allow"]) == (405, answer.headers["allow"])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_in_another_form_is_refused_as_a_page_of_another_site_could_send_it(raw: Raw, kind: str) -> None:
    answer = raw.ask("POST", "/v1/admin/check", b"{}", content_type=kind)
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"queues": 8.0}', 200),
        (b'{"queues": "8"}', 422),
        (b'{"queues": true}', 422),
        (b'{"queues": 8.5}', 422),
        (b'{"queues": NaN}', 422),
        (b'{"queues": 1e400}', 422),
        (b'{"quees": 8}', 422),
    ],
)
def test_a_number_in_a_body_is_a_number(raw: Raw, content: bytes, status: int) -> None:
    assert raw.ask("PUT", "/v1/topics/t", content, content_type="application/json").status_code == status


def test_a_body_nested_without_end_is_refused(raw: Raw) -> None:
    answer = raw.ask("PUT", "/v1/topics/t", b"[" * 100_000, content_type="application/json")
    assert answer.status_code in (400, 422)
