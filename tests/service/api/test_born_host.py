"""With ``produce.born_host`` a message that comes over HTTP has the address of the other end of its connection."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.message_bodies import born_host_of
from tierlog.service.engine.store import Store

_JSON, _LINES, _ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
_LINE = json.dumps({"body": "a", "keys": ["k"]}).encode() + b"\n"
_SHARDED = json.dumps({"body": "a", "sharding_key": "s"}).encode() + b"\n"
#: Somebody who says to be somebody else.
_CLAIMS = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9", "X-Real-IP": "203.0.113.9"}


def _arrow() -> bytes:
    out = pa.BufferOutputStream()
    table = pa.table({"body": [b"a"], "keys": [["k"]]})
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def _sent(url: str, body: bytes, kind: str, path: str = "", **headers: str) -> tuple[list[str], str]:
    """Ids of the messages, and the address from which they were sent."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
    connection.request(
        "POST", f"/v1/topics/t/messages{path}", body, {"Content-Type": kind, "Accept": _JSON, **_CLAIMS, **headers}
    )
    host, port = connection.sock.getsockname()
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return [one["message_id"] for one in answer["results"]], f"{host}:{port}"


_WAYS = [
    (b'{"messages":[{"body":"a","keys":["k"]}]}', _JSON, {}),
    (b'{"messages":[{"body_base64":"YQ==","born_ms":5}]}', _JSON, {}),
    (b'{"messages":[{"body":"a"}]}', _JSON, {"Idempotency-Key": "p"}),
    (_LINE * 3, _LINES, {}),
    (_SHARDED * 2, _LINES, {}),
    (_LINE * 500, _LINES, {}),
    (_arrow(), _ARROW, {}),
]


@pytest.mark.parametrize(("body", "kind", "headers"), _WAYS)
def test_every_form_of_request_leaves_the_peers_address_and_no_header_another(
    tmp_path: Path, body: bytes, kind: str, headers: dict[str, str]
) -> None:
    settings = tiny_settings(produce__born_host=True)
    with Store.open(tmp_path / "store", settings=settings) as engine, served(engine, settings) as url:
        ids, peer = _sent(url, body, kind, **headers)
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        connection.request("GET", f"/v1/messages/{ids[-1]}")
        assert json.loads(connection.getresponse().read())["born_host"] == peer
        connection.request("GET", "/v1/topics/t/messages?limit=1000")
        found = json.loads(connection.getresponse().read())["messages"]
        connection.close()
        assert [one["born_host"] for one in found] == [peer] * len(ids)


def test_a_delayed_message_keeps_its_producers_address(tmp_path: Path) -> None:
    settings = tiny_settings(produce__born_host=True)
    with Store.open(tmp_path / "store", settings=settings) as engine, served(engine, settings) as url:
        (message_id,), peer = _sent(url, b'{"messages":[{"body":"a"}]}', _JSON, "?delay=1h")
        record = engine.message(message_id).record
        assert record.topic == "rmq_sys_wheel_timer"
        assert f"127.0.0.1:{int.from_bytes(record.born_host[-4:])}" == peer


def test_without_the_setting_no_record_and_no_answer_has_an_address(tmp_path: Path) -> None:
    settings = tiny_settings()
    with Store.open(tmp_path / "store", settings=settings) as engine, served(engine, settings) as url:
        for body, kind, headers in _WAYS:
            ids, _ = _sent(url, body, kind, **headers)
            assert engine.message(ids[-1]).record.born_host == bytes(8)


@pytest.mark.parametrize(
    ("client", "born_host"),
    [
        (("fd00::7", 80), "[fd00::7]:80"),
        (("::ffff:10.0.0.7", 80), "10.0.0.7:80"),
        (("a-socket-without-address", 0), ""),
        (None, ""),
    ],
)
def test_a_peer_of_ipv6_is_stored_whole_and_one_without_an_address_not_at_all(
    client: tuple[str, int] | None, born_host: str
) -> None:
    assert born_host_of({"client": client}, tiny_settings(produce__born_host=True)) == born_host
