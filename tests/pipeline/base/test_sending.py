"""Rows on their way to a service: numbered by topic in their order, however they are cut into requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.base.client import AppendedRows, RowSender, ServiceClient
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError, KeyReusedError
from tierlog.tiering.base.types import Durability


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Store, ServiceClient]]:
    settings = tiny_settings(hot__segment_bytes=1 << 20)
    engine = Store.open(tmp_path / "store", settings=settings)
    engine.start()
    try:
        with served(engine, settings) as url, ServiceClient(url) as client:
            yield engine, client
    finally:
        engine.close()


def rows(first: int, end: int, **columns: pa.Array) -> pa.RecordBatch:
    numbers = range(first, end)
    return pa.record_batch({"topic": ["ab"[n % 2] for n in numbers], "body": [f"body {n}" for n in numbers], **columns})


def bodies(engine: Store, topic: str) -> list[str]:
    found = []
    for queue in engine.topic(topic).queues:
        found += [one.record.body.decode() for one in engine.pull(topic, queue.queue_id, 0, 10_000).messages]
    return found


def test_an_attempt_sends_what_the_one_before_did_not(
    service: tuple[Store, ServiceClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, client = service

    def cut() -> Iterator[pa.RecordBatch]:
        yield rows(0, 60)
        yield rows(60, 100)
        raise RuntimeError("the task fails")

    monkeypatch.setattr("tierlog.pipeline.base.client.REQUEST_ROWS", 25)
    with pytest.raises(RuntimeError):
        RowSender(client, "p", None).send(cut())
    assert len(bodies(engine, "a")) == len(bodies(engine, "b")) == 50
    monkeypatch.setattr("tierlog.pipeline.base.client.REQUEST_ROWS", 70)  # cut otherwise this time
    assert RowSender(client, "p", None).send([rows(0, 100), rows(100, 200)]) == 200
    for topic in (0, 1):
        assert sorted(bodies(engine, "ab"[topic])) == sorted(f"body {n}" for n in range(topic, 200, 2))


def test_requests_are_bounded_and_a_huge_row_is_one_by_itself(
    service: tuple[Store, ServiceClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, client = service
    sizes: list[int] = []
    produce = client.produce

    def counted(topic: str, stream: bytes, key: str, durability: Durability) -> list[AppendedRows]:
        sizes.append(len(stream))
        return produce(topic, stream, key, durability)

    monkeypatch.setattr(client, "produce", counted)
    monkeypatch.setattr("tierlog.pipeline.base.client.REQUEST_BYTES", 10_000)
    texts = ["x" * 50] * 300 + ["y" * 30_000] + ["z" * 50] * 3
    assert RowSender(client, "p", "t").send([pa.record_batch({"body": texts})]) == 304
    assert sum(size > 12_000 for size in sizes) == 1
    assert len(bodies(engine, "t")) == 304


def test_one_key_may_stand_by_itself(service: tuple[Store, ServiceClient]) -> None:
    engine, client = service
    batch = pa.record_batch({"body": ["1", "2", "3"], "keys": ["a", None, "c"], "queue_id": pa.array([0] * 3)})
    RowSender(client, "p", "t").send([batch.slice(0, 1), batch.slice(1)])
    assert [one.keys for one in engine.pull("t", 0, 0, 10).messages] == [["a"], [], ["c"]]


@pytest.mark.parametrize("name", ["topic", "body"])
def test_a_row_without_topic_or_body_is_named(service: tuple[Store, ServiceClient], name: str) -> None:
    _, client = service
    missing = pa.record_batch({"topic": ["a", "a"], "body": ["x", "y"], name: ["a", None]})
    with pytest.raises(InvalidRequestError, match=f"row 11 of the partition has no {name}"):
        RowSender(client, "p", None).send([rows(0, 10), missing])


def test_a_message_that_the_service_refuses_is_named(service: tuple[Store, ServiceClient]) -> None:
    _, client = service
    wrong = rows(0, 10, tag=pa.array(["\x01" if n == 7 else "t" for n in range(10)]))
    with pytest.raises(InvalidRequestError, match="topic b, number 3 from this partition: message 3: a tag contains"):
        RowSender(client, "p", None).send([wrong])


def test_rows_in_another_order_are_noticed(service: tuple[Store, ServiceClient]) -> None:
    engine, client = service
    RowSender(client, "p", "t").send([pa.record_batch({"body": ["a", "b"]})])
    with pytest.raises(KeyReusedError):
        RowSender(client, "p", "t").send([pa.record_batch({"body": ["b", "a"]})])
    assert len(bodies(engine, "t")) == 2
