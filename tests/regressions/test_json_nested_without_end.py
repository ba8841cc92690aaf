"""JSON nested a hundred thousand times, from another node, a bucket or a message, was an error that nobody expected."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.service.raw_server import Connection, raw_server
from tests.support.stores.engines import tiny_settings
from tierlog.index.rocketmq.classic_format import ClassicCheckpoint
from tierlog.index.search.query import Query
from tierlog.pipeline.base.client import ServiceClient
from tierlog.pipeline.jobs.export_table import ExportPlan
from tierlog.service.cli.output import full_lines
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cluster.node_client import NodeClient
from tierlog.service.engine.store import Store
from tierlog.service.wire.hot_page import hot_stream, read_hot_stream
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.lifecycle.erasure_receipts import Receipt
from tierlog.tiering.message.batch import Message
from tierlog.tiering.remote.problems import answered_error

NESTED = b"[" * 200_000


def answers_nested(connection: Connection) -> None:
    connection.head()
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(NESTED) + NESTED)


def test_a_node_that_answers_so_is_one_that_is_no_tierlog() -> None:
    with raw_server(answers_nested) as url, pytest.raises(UnavailableError, match="without JSON"):
        NodeClient("a", 30_000).get(url, "/v1/stats")
    with raw_server(answers_nested) as url, pytest.raises(StoreError, match="without JSON"):
        ServiceClient(url).topics()


def test_what_another_service_says_of_a_refusal_is_handed_on_up_to_a_bound() -> None:
    error = answered_error(400, {"detail": "d" * 1_000_000, "hint": "h" * 1_000_000, "path": "p" * 1_000_000})
    assert len(error.message) + len(error.hint or "") + len(error.path or "") < 20_000


def test_what_an_archive_has_of_it_is_damage() -> None:
    with pytest.raises(CorruptionError):
        Receipt.decode(NESTED, path="receipt")
    with pytest.raises(CorruptionError):
        ExportPlan.decode(NESTED, path="plan")
    assert ClassicCheckpoint.decode(NESTED) is None


def test_a_message_of_it_is_shown_as_it_is() -> None:
    assert NESTED.decode() in full_lines([{"message_id": "1", "body": NESTED.decode()}], OutputStyle("table"))


def hot_answer(tmp_path: Path) -> bytes:
    with contextlib.closing(Store.open(tmp_path / "store", settings=tiny_settings())) as engine:
        engine.append([Message("t", bytes(5_000), ("k",))] * 5)
        return hot_stream(engine.hot_page(Query("t")))


def changed(answer: bytes, change: Callable[[pa.Table], pa.Table], compression: str | None = None) -> bytes:
    table = change(pa.ipc.open_stream(answer).read_all())
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_what_a_node_says_of_its_hot_tier_is_bounded_by_its_bytes(tmp_path: Path) -> None:
    answer = hot_answer(tmp_path)
    assert len(read_hot_stream(changed(answer, lambda table: table)).messages) == 5
    before = pa.total_allocated_bytes()
    bomb = changed(answer, lambda table: table, "zstd")
    assert len(bomb) < len(answer) / 10
    with pytest.raises(CorruptionError, match="when it is decoded"):
        read_hot_stream(bomb)
    with pytest.raises(CorruptionError):
        read_hot_stream(changed(answer, lambda table: table.replace_schema_metadata({"hot": NESTED})))
    with pytest.raises(CorruptionError, match="no bytes"):
        read_hot_stream(changed(answer, lambda table: table.set_column(0, "record", pa.array(["x"] * 5))))
    with pytest.raises(CorruptionError):
        read_hot_stream(changed(answer, lambda table: table.rename_columns(["other"])))
    assert pa.total_allocated_bytes() == before
