"""No credential in a log, an error, a repr or the figures of a store, whatever is wrong with it."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.objects.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_store import S3ObjectStore
from tierlog.tiering.objects.urls import canonical_url

_TOKEN = "session-token-9b1f6f1d"
_QUICK = S3Limits(connect_timeout_s=1, read_timeout_s=1, max_attempts=1)


class _Everything(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter("%(name)s %(message)s").format(record))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> Iterator[list[str]]:
    """All records of all loggers at DEBUG, as text, while a session token is set too."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", _TOKEN)
    handler, root = _Everything(), logging.getLogger()
    S3ObjectStore("bucket", endpoint_url=s3_server.endpoint_url).close()  # the SDK makes its loggers
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for name in levels:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield handler.texts
    root.removeHandler(handler)
    root.setLevel(before)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def assert_clean(texts: list[str]) -> None:
    for text in texts:
        for secret in (SECRET_KEY, ACCESS_KEY, _TOKEN, "Signature=", "another-secret"):
            assert secret not in text


def what_is_told(error: StoreError) -> list[str]:
    return [str(error), repr(error), *traceback.format_exception(error)]


def test_a_store_that_works(logged: list[str], s3_server: S3Server) -> None:
    store = S3ObjectStore(s3_server.new_bucket(), endpoint_url=s3_server.endpoint_url)
    store.put("k", bytes(100_000))
    store.get("k")
    store.upload("u", [bytes(9 << 20)])
    list(store.list(""))
    assert any("urllib3" in text for text in logged), "nothing was captured"
    assert_clean([*logged, repr(store), repr(vars(store)), repr(vars(store._client))])


def test_a_wrong_endpoint(logged: list[str]) -> None:
    store = S3ObjectStore("bucket", endpoint_url="http://127.0.0.1:9", limits=_QUICK)
    for call in (lambda: store.put("k", b""), lambda: store.get("k")):
        with pytest.raises(StoreError) as caught:
            call()
        assert_clean([*logged, *what_is_told(caught.value)])


def test_a_token_that_no_header_can_hold(
    logged: list[str], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{_TOKEN}\nx")
    store = S3ObjectStore(s3_server.new_bucket(), endpoint_url=s3_server.endpoint_url, limits=_QUICK)
    with pytest.raises(StoreError) as caught:
        store.put("k", b"x")
    assert_clean([*logged, *what_is_told(caught.value)])


@pytest.mark.parametrize("endpoint", ["http://key:another-secret@127.0.0.1:9", "https://another-secret@host/"])
def test_credentials_in_the_endpoint_are_refused_and_not_repeated(logged: list[str], endpoint: str) -> None:
    with pytest.raises(StoreError) as caught:
        S3ObjectStore("bucket", endpoint_url=endpoint)
    assert_clean([*logged, *what_is_told(caught.value)])


@pytest.mark.parametrize(
    "url",
    ["s3://key:another-secret@bucket/x", "s3://bucket?secret=another-secret", "s3://bucket/x?secret=another-secret"],
)
def test_credentials_in_the_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        canonical_url(url)
    assert_clean(what_is_told(caught.value))


def test_the_figures_of_a_store(logged: list[str], s3_server: S3Server, tmp_path: Path) -> None:
    settings = tiny_settings(cold__s3_endpoint=s3_server.endpoint_url)
    engine = Store.open(tmp_path / "store", settings=settings, cold_url=f"s3://{s3_server.new_bucket()}/a")
    try:
        engine.append([Message("t", b"x", keys=("k",))])
        engine.archive(everything=True)
        assert_clean([*logged, json.dumps(engine.stats(), default=str)])
    finally:
        engine.close()
    for path in (tmp_path / "store" / "tierlog").iterdir():
        assert_clean([path.read_text()])
