"""The Java side of the benchmarks does what a row says it does; how fast is not asked here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.corpus import hex_keys
from benchmarks.peers.rocketmq import RocketMQ, rocketmq
from tests.tools.cache import ToolMissingError

pytestmark = [pytest.mark.java, pytest.mark.timeout(1_200)]  # a fresh machine loads the jars first


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    try:
        with rocketmq(tmp_path_factory.mktemp("peer")) as process:
            yield process
    except ToolMissingError as error:
        pytest.skip(f"Apache RocketMQ cannot be run: {error}")


def test_both_sides_have_the_same_keys(java: RocketMQ) -> None:
    assert java.run("index_put", n=1000, slots=500, items=2000)["last_key"].encode() == hex_keys(1000)[-1]


def test_what_was_put_is_found_before_and_after_compaction(java: RocketMQ) -> None:
    java.run("index_put", n=1000, slots=500, items=2000)
    assert java.run("query_before", queries=300)["hits"] >= 300
    assert java.run("compact")["bytes"] > 1000 * 28
    assert java.run("query_after", queries=300)["hits"] >= 300


@pytest.mark.parametrize(("batch", "sync", "threads"), [(1, False, 1), (100, False, 1), (1, True, 4)])
def test_all_messages_are_appended(java: RocketMQ, batch: int, sync: bool, threads: int) -> None:
    answer = java.run("append", n=1050, body=100, batch=batch, sync=sync, threads=threads)
    assert answer["n"] == 1050
    assert answer["bytes"] > 1050 * 200


def test_a_filled_store_is_consumed_and_found_by_key(java: RocketMQ) -> None:
    java.run("fill", n=2000, body=100)
    assert java.run("consume", decode=True)["body_bytes"] == 2000 * 100
    assert java.run("query_message", queries=300, decode=True)["body_bytes"] >= 300 * 100


def test_a_killed_store_is_recovered_as_often_as_asked(java: RocketMQ, tmp_path: Path) -> None:
    assert java.prepare_killed(tmp_path, n=1000, linger_ms=0) > 1000 * 300
    assert java.recovered_seconds(tmp_path) > 0
    assert java.recovered_seconds(tmp_path, with_start=True) > 0
