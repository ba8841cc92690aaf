"""Archives and queriers opened by a program, without a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog import Archive, Message, Querier, Query, Store
from tierlog.index.search.counts import CountQuery
from tierlog.service.archive.querier import merged
from tierlog.service.cluster.fan_out import topic_of
from tierlog.service.engine.catalogue import TopicInfo
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import TopicNotFoundError

_TOPIC = {"topic": "t", "topic_id": 1, "archive": True, "cold_retention_ms": None, "hold": False}


@pytest.fixture
def cold(tmp_path: Path) -> str:
    """An archive with one message."""
    url = f"file://{tmp_path}/cold"
    with Store.open(tmp_path / "store", cold_url=url) as store:
        store.append([Message("orders", b"paid", keys=["4711"])])
        store.archive(everything=True)
    return url


def test_a_querier_reads_an_archive_with_the_settings_of_the_environment(cold: str) -> None:
    with Archive.open(cold) as archive, Querier.open(None, [cold]) as querier:
        for reader in (archive, querier):
            found = reader.query(Query("orders", key="4711"))
            assert [message.record.body for message in found.messages] == [b"paid"]
            assert found.coverage.complete
            assert [topic.name for topic in reader.topics()] == ["orders"]


def test_what_no_store_has_is_not_found_by_any_reader(cold: str) -> None:
    with Archive.open(cold) as archive, Querier.open(None, [cold]) as querier:
        for reader in (archive, querier):
            with pytest.raises(TopicNotFoundError):
                reader.topic("payments")


def test_a_querier_counts_messages_without_what_a_restore_left_out(cold: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "new", cold_url=cold, restore=True) as store:
        store.append([Message("orders", b"sent")])
        store.archive(everything=True)
    with Archive.open(cold) as archive, Querier.open(None, [cold]) as querier:
        assert [reader.topic("orders").messages for reader in (archive, querier)] == [2, 2]


def test_both_rounds_of_a_count_share_one_time_out(cold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = ManualClock(), []

    def slow(services: object, query: CountQuery) -> list[object]:
        given.append(query.timeout_ms)
        clock.advance(600)
        return []

    with Querier.open(None, [cold], clock=clock) as querier:
        monkeypatch.setattr(querier.fan_out, "counts", slow)
        assert sum(querier.counts(CountQuery("orders", timeout_ms=1000)).counts) <= 1
    assert given == [1000, 400]


def test_a_querier_adds_up_what_stores_say_and_says_nothing_where_one_does_not_know() -> None:
    def told(**more: object) -> TopicInfo:
        queue = {"queue_id": 0, "min_offset": 5, "max_offset": (1 << 32) + 9, "gaps": [[7, 1 << 32]], **more}
        return topic_of({**_TOPIC, "offsets": [queue]}, "a")

    assert told().messages == 2 + 9, "of a node that does not say it"
    both = merged(told(messages=3), told(messages=4))
    assert both.messages == 7
    assert merged(both, told(messages=None)).messages is None
    assert told(gaps=None).messages is None
