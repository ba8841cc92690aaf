"""Compressed bodies as RocketMQ's clients write them: read inflated, within bounds, and never in place of a record."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq.golden import STORES, expected, unpack
from tests.support.stores.hot_stores import record
from tierlog.service.main import main
from tierlog.service.wire.documents import message_json
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.body import MAX_INFLATED_BYTES, inflated_body, is_compressed
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.message.stored_message import StoredMessage

LONG = b"body of some length, " * 100_000


def packed(body: bytes, flag: int) -> bytes:
    codec = {0x100: "lz4", 0x200: "zstd"}.get(flag)
    if codec is None:
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def compressed(body: bytes, flag: int) -> Record:
    return record(body=packed(body, flag), sys_flag=flag | 1)


ALL = pytest.mark.parametrize("flag", [0x000, 0x100, 0x200, 0x300])


@ALL
@pytest.mark.parametrize("body", [b"", b"x", "текст".encode(), bytes(range(256)), LONG])
def test_inflated(flag: int, body: bytes) -> None:
    assert inflated_body(compressed(body, flag)) == body


@ALL
def test_no_longer_than_the_limit(flag: int) -> None:
    made = compressed(LONG, flag)
    assert len(made.body) < 30_000
    assert inflated_body(made, len(LONG)) == LONG
    assert inflated_body(made, len(LONG) - 1) is None
    assert inflated_body(compressed(bytes(MAX_INFLATED_BYTES + 1), flag)) is None


@ALL
def test_a_body_cut_anywhere_is_none(flag: int) -> None:
    body = packed(b"hello " * 40, flag)
    for end in range(1, len(body)):
        assert inflated_body(record(body=body[:end], sys_flag=flag | 1)) is None


def test_what_follows_zlib_is_ignored_as_java_does() -> None:
    assert inflated_body(record(body=packed(b"hello", 0) + b"rest", sys_flag=1)) == b"hello"


@pytest.mark.parametrize("flag", [0x400, 0x500, 0x600, 0x700])
def test_an_unknown_format_is_none(flag: int) -> None:
    assert inflated_body(record(body=packed(b"hello", 0), sys_flag=flag | 1)) is None


@given(st.binary(max_size=60), st.sampled_from([0x000, 0x100, 0x200, 0x300, 0x400]))
def test_arbitrary_bytes(body: bytes, flag: int) -> None:
    found = inflated_body(record(body=body, sys_flag=flag | 1), 1000)
    assert found is None or len(found) <= 1000


@pytest.mark.parametrize("body", ["plain", "текст"])
@ALL
def test_answers_show_it_inflated(flag: int, body: str) -> None:
    made = compressed(body.encode(), flag)
    found = message_json(StoredMessage(made, "s", Tier.HOT))
    assert found["body"] == body
    assert found["size_bytes"] == made.size
    assert "body_compressed" not in found


def test_answers_show_what_does_not_inflate_as_it_is_stored() -> None:
    made = record(body=b"\xff\xfe no zlib", sys_flag=1)
    found = message_json(StoredMessage(made, "s", Tier.HOT))
    assert base64.b64decode(found["body_base64"]) == made.body
    assert found["body_compressed"] is True


def test_a_body_that_only_looks_compressed_stays() -> None:
    made = record(body=zlib.compress(b"hello"))
    assert not is_compressed(made)
    assert StoredMessage(made, "s", Tier.HOT).readable_body() == (made.body, False)


@pytest.mark.parametrize("name", STORES)
def test_every_compressed_body_of_rocketmqs_own_clients(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpack(name, tmp_path)
    seen = 0
    for message in expected(name)["messages"]:
        if message["sysFlag"] & 1:
            base = message["physicalOffset"] // 262_144 * 262_144
            data = (root / "commitlog" / f"{base:020d}").read_bytes()
            assert inflated_body(decode_record(data, message["physicalOffset"] - base))
            seen += 1
    assert seen > 0
    assert (
        main(["query", "TopicTest", "--limit", "10000", "--root", str(root), "--read-only", "--format", "ndjson"]) == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) > 100
    assert not any("body_compressed" in row for row in rows)
