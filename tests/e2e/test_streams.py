"""Answers of any length: every message once, what stands beside them at the end, and no end where they fail."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import Request

from tests.support.service.flow_client import Flow, flow
from tierlog.index.search.query import Answer, Query
from tierlog.service.api.answers import AnswerMemory
from tierlog.service.api.lanes import Lanes
from tierlog.service.api.routes.messages import download
from tierlog.service.config.serve import ServeSettings
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON, PARQUET
from tierlog.service.wire.paged_query import PagedQuery
from tierlog.tiering.base.errors import UnavailableError

COUNT = 700
ALL = "/v1/topics/t/messages?all=true&order=oldest"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    """Half in the archive, half hot, and pages so small that there are many."""
    with flow(tmp_path_factory.mktemp("streams"), serve__stream_page_bytes=8_192) as service:
        service.fill(COUNT // 2)
        service.engine.archive(everything=True, drop_hot=True)
        service.fill(COUNT // 2)
        yield service


def bodies_of(table: pa.Table) -> list[int]:
    return sorted(int(body.partition(b":")[0]) for body in table["body"].to_pylist())


EXPECTED = sorted([*range(COUNT // 2)] * 2)


def test_ndjson_of_all_has_every_message_once_and_the_merged_coverage_last(filled: Flow) -> None:
    status, headers, content = filled.ask("GET", ALL, accept=NDJSON)
    assert (status, headers["content-type"]) == (200, NDJSON)
    assert "content-length" not in headers
    *messages, last = [json.loads(line) for line in content.splitlines()]
    assert sorted(int(one["body"].partition(":")[0]) for one in messages) == EXPECTED
    assert len({one["message_id"] for one in messages}) == COUNT
    assert last["next_cursor"] is None
    assert last["coverage"]["complete"] is True
    assert last["coverage"]["stores"][0]["cold"] is not None


@pytest.mark.parametrize("extra", ["", "&limit=9", "&time=born"])
def test_all_that_passes_filters_comes_once_from_both_tiers_and_the_coverage_counts_what_was_read(
    filled: Flow, extra: str
) -> None:
    status, _, content = filled.ask("GET", f"{ALL}&contains=1&contains=7%3A{extra}", accept=NDJSON)
    assert status == 200
    *messages, last = [json.loads(line) for line in content.splitlines()]
    wanted = [number for number in EXPECTED if "1" in f"{number}:" and "7:" in f"{number}:"]
    assert sorted(int(one["body"].partition(":")[0]) for one in messages) == wanted
    assert last["coverage"]["complete"] is True
    assert last["coverage"]["messages"]["matched"] >= len(wanted)
    assert last["coverage"]["messages"]["read"] >= COUNT
    _, _, stream = filled.ask("GET", f"{ALL}&where=none=x{extra}", accept=ARROW_STREAM)
    assert pa.ipc.open_stream(stream).read_all().num_rows == 0


@pytest.mark.parametrize("bad", ["where=region", "where==eu", "contains=", "tag=%7C%7C", "contains=" + "x" * 1025])
def test_a_filter_that_means_nothing_is_refused_with_a_status(filled: Flow, bad: str) -> None:
    assert filled.ask("GET", f"{ALL}&{bad}")[0] == 400
    assert filled.ask("GET", f"{ALL.replace('all=true', 'all=false')}&{bad}")[0] == 400


def test_an_arrow_stream_of_all_ends_with_an_empty_batch_that_has_the_coverage(filled: Flow) -> None:
    _, _, content = filled.ask("GET", ALL, accept=ARROW_STREAM)
    reader = pa.ipc.open_stream(content)
    batches = []
    metadata: Any = None
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        batches.append(batch)
    assert len(batches) > 5
    assert batches[-1].num_rows == 0
    assert json.loads(metadata[b"coverage"])["complete"] is True
    assert json.loads(metadata[b"next_cursor"]) is None
    assert bodies_of(pa.Table.from_batches(batches)) == EXPECTED


def test_a_parquet_file_of_all_has_the_coverage_in_its_footer(filled: Flow) -> None:
    status, headers, content = filled.ask("GET", ALL, accept=PARQUET)
    assert (status, headers["content-type"]) == (200, PARQUET)
    file = pq.ParquetFile(io.BytesIO(content))
    assert bodies_of(file.read()) == EXPECTED
    assert json.loads(file.metadata.metadata[b"coverage"])["complete"] is True


def test_a_page_is_parquet_too(filled: Flow) -> None:
    _, _, content = filled.ask("GET", "/v1/topics/t/messages?limit=7", accept=PARQUET)
    file = pq.ParquetFile(io.BytesIO(content))
    assert file.metadata.num_rows == 7
    assert json.loads(file.metadata.metadata[b"next_cursor"])


@pytest.mark.parametrize(("accept", "kind"), [("*/*", NDJSON), ("application/*", NDJSON)])
def test_all_is_ndjson_unless_told(filled: Flow, accept: str, kind: str) -> None:
    assert filled.ask("GET", ALL + "&key=none", accept=accept)[1]["content-type"] == kind


def test_all_is_never_one_json_document(filled: Flow) -> None:
    assert filled.ask("GET", ALL, accept=JSON)[0] == 406
    assert filled.ask("GET", ALL + "&dry_run=true")[0] == 400


def test_what_is_wrong_before_the_first_page_has_a_status(filled: Flow) -> None:
    assert filled.ask("GET", ALL.replace("/t/", "/nope/"))[0] == 404


def test_a_budget_is_one_for_all_pages(filled: Flow) -> None:
    _, _, content = filled.ask("GET", ALL + "&max_requests=3")
    last = json.loads(content.splitlines()[-1])
    assert last["coverage"]["requests"] <= 3


def test_a_pull_comes_as_ndjson_and_as_arrow(filled: Flow) -> None:
    path = "/v1/topics/t/queues/0/messages?offset=0&limit=5"
    _, _, as_json = filled.ask("GET", path)
    expected = json.loads(as_json)
    _, _, lines = filled.ask("GET", path, accept=NDJSON)
    *messages, last = [json.loads(line) for line in lines.splitlines()]
    assert messages == expected.pop("messages")
    assert last == expected
    _, _, stream = filled.ask("GET", path, accept=ARROW_STREAM)
    table = pa.ipc.open_stream(stream).read_all()
    assert table["message_id"].to_pylist() == [one["message_id"] for one in messages]
    assert json.loads(table.schema.metadata[b"next_offset"]) == expected["next_offset"]


@pytest.mark.parametrize("tag", ["", "&tag=*", "&tag=nobody"])
def test_pulls_as_arrow_and_as_json_have_the_same_messages_through_both_tiers(filled: Flow, tag: str) -> None:
    def pulled(accept: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        found, offset = [], 0
        while True:
            path = f"/v1/topics/t/queues/0/messages?offset={offset}&limit=30{tag}"
            status, _, content = filled.ask("GET", path, accept=accept)
            assert status == 200
            if accept == JSON:
                beside = json.loads(content)
                rows = [{**one, "body": one["body"].encode()} for one in beside.pop("messages")]
            else:
                table = pa.ipc.open_stream(content).read_all()
                rows = [{**row, "properties": dict(row["properties"])} for row in table.to_pylist()]
                beside = {name.decode(): json.loads(value) for name, value in table.schema.metadata.items()}
            found += rows
            if beside["status"] == "NO_NEW_MESSAGE":
                return found, beside
            assert beside["next_offset"] > offset
            offset = beside["next_offset"]

    columns, end = pulled(ARROW_STREAM)
    objects, expected_end = pulled(JSON)
    assert end == expected_end
    assert [row["message_id"] for row in columns] == [row["message_id"] for row in objects]
    shared = set(columns[0]) & set(objects[0]) if columns else set()
    assert [{name: row[name] for name in shared} for row in columns] == [
        {name: row[name] for name in shared} for row in objects
    ]
    if tag != "&tag=nobody":
        assert {row["tier"] for row in columns} == {"hot", "cold"}
        assert len(shared) > 10


def sent(filled: Flow, kind: str) -> list[dict[str, Any]]:
    """What is sent of a query whose second page fails."""
    asked = 0

    def ask(query: Query, page_bytes: int) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise UnavailableError("the archive is away")
        return filled.engine.query(query, page_bytes=page_bytes)

    messages: list[dict[str, Any]] = []

    async def run() -> None:
        app = SimpleNamespace(state=SimpleNamespace(answer_memory=AnswerMemory(1 << 20, 0)))
        scope = {
            "type": "http", "method": "GET", "path": "/", "headers": [], "tierlog.lane": Lanes(ServeSettings()).stream,
            "app": app,
        }  # fmt: skip
        answer = await download(Request(scope), PagedQuery(ask, Query("t"), 1 << 20, most_rows=10), kind, "t")
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {}

        async def send(message: Any) -> None:
            messages.append(dict(message))

        await answer(scope, receive, send)

    asyncio.run(run())
    return messages


def test_ndjson_that_fails_half_way_ends_with_the_problem(filled: Flow) -> None:
    messages = sent(filled, NDJSON)
    lines = b"".join(one.get("body", b"") for one in messages).splitlines()
    problem = json.loads(lines[-1])["problem"]
    assert (len(lines), problem["status"], problem["detail"]) == (11, 503, "the archive is away")
    assert messages[-1]["more_body"] is False


@pytest.mark.parametrize("kind", [ARROW_STREAM, PARQUET])
def test_arrow_and_parquet_that_fail_half_way_have_no_end(filled: Flow, kind: str) -> None:
    messages = sent(filled, kind)
    assert all(one["more_body"] for one in messages[1:])
    content = b"".join(one.get("body", b"") for one in messages)
    if kind == PARQUET:
        with pytest.raises(pa.ArrowInvalid):
            pq.ParquetFile(io.BytesIO(content))
    else:
        assert pa.ipc.open_stream(content + b"").read_next_batch().num_rows == 10
        assert not content.endswith(b"\xff\xff\xff\xff\0\0\0\0")


def test_text_is_compressed_for_who_asks_and_arrow_never(filled: Flow) -> None:
    import gzip

    import zstandard

    path = "/v1/topics/t/messages?limit=50"
    _, plain_headers, plain = filled.ask("GET", path)
    assert plain_headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain_headers
    _, headers, content = filled.ask("GET", path, accept_encoding="gzip;q=0.9, br")
    assert headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(content))["messages"] == json.loads(plain)["messages"]
    _, headers, content = filled.ask("GET", ALL, accept_encoding="gzip, zstd")
    assert headers["content-encoding"] == "zstd"
    with zstandard.ZstdDecompressor().stream_reader(content) as reader:
        assert reader.read().count(b"\n") == COUNT + 1
    _, headers, _ = filled.ask("GET", ALL, accept=ARROW_STREAM, accept_encoding="gzip, zstd")
    assert "content-encoding" not in headers
    _, headers, _ = filled.ask("GET", "/livez", accept_encoding="gzip")
    assert "content-encoding" not in headers


def test_pages_of_a_stream_look_small_in_memory(filled: Flow) -> None:
    """Each page is bounded by `serve.stream_page_bytes`, however many messages a page may have."""

    def ask(query: Query, page_bytes: int) -> Answer:
        return filled.engine.query(query, page_bytes=page_bytes)

    pages = list(PagedQuery(ask, Query("t"), 8_192).pages())
    assert sum(page.num_rows for page in pages) == COUNT
    assert all(sum(page.column("size_bytes").to_pylist()) <= 8_192 for page in pages)
