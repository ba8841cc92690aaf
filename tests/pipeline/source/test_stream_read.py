"""The streaming read without Spark: where it begins, what it goes over, and what it refuses to go over in silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.pipeline.stream_driver import Row, StreamDriver
from tests.support.service.served import served
from tests.support.stores.followed import SEGMENT_BYTES
from tests.support.stores.irregular import followed_archive, irregular_log, lose, sent
from tests.support.stores.streamed_store import SETTINGS, StreamedStore, streamed
from tierlog.index.search.query import Query
from tierlog.pipeline.read.views import MESSAGES_SPARK
from tierlog.pipeline.source.options import SourceOptions, SourceUse
from tierlog.pipeline.source.stream_reader import TierlogStreamReader
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import NotFoundError, StoreMismatchError, TopicNotFoundError
from tierlog.tiering.message.batch import Message

SOURCES = ["cold", "url", "cold+url"]


@pytest.fixture(params=SOURCES)
def store(request: pytest.FixtureRequest) -> Iterator[StreamedStore]:
    with streamed(request.param) as found:
        found.append("orders", 0, 30)
        found.engine.archive(everything=True)
        yield found


def offsets(rows: list[Row]) -> list[int]:
    return [row[2] for row in rows]


def later(store: StreamedStore) -> int:
    """A time after all that is stored, and before what will be."""
    last_ms = store.engine.stats()["last_store_ms"]
    assert isinstance(last_ms, int)
    while SystemClock().now_ms() <= last_ms + 1:
        pass
    return last_ms + 1


def test_a_stream_from_the_latest_message_reads_what_comes_after_its_first_batch_was_planned(
    store: StreamedStore,
) -> None:
    query = store.new_query(start="latest")
    assert query.plan()
    store.append("orders", 0, 5)
    store.append("new", 1, 3)
    store.engine.archive(everything=True)
    query.restart()  # "latest" is elsewhere by now
    assert query.everything() == []
    assert sorted(query.trigger()) == sorted(store.expected[30:])
    query.stop()


def test_a_stream_begins_at_a_time_in_every_queue(store: StreamedStore) -> None:
    store.append("orders", 1, 4)
    since = later(store)
    query = store.new_query(start=str(since))
    query.trigger()
    assert query.everything() == []
    store.append("orders", 0, 5)
    store.append("orders", 1, 6)
    store.engine.archive(everything=True)
    query.restart()
    query.until_quiet()
    assert sorted(query.everything()) == sorted(store.expected[34:])
    query.stop()


def test_only_the_topics_that_are_named(store: StreamedStore) -> None:
    store.append("pays", 0, 5)
    store.append("noise", 0, 5)
    store.engine.archive(everything=True)
    query = store.new_query(topic="pays, orders")
    assert sorted(query.trigger()) == sorted(store.expected[:35])
    query.stop()
    query = store.new_query(topic="pay,orders")
    with pytest.raises(TopicNotFoundError, match="no such topic 'pay'"):
        query.plan()
    query.stop()


@pytest.mark.parametrize("source", SOURCES)
def test_a_restore_in_between_costs_no_batches_and_no_messages(source: str) -> None:
    with streamed(source, maxMessagesPerTrigger="7") as store:
        store.append("orders", 0, 30)
        store.engine.archive(everything=True)
        store.query.until_quiet()
        store.append("orders", 0, 10)
        if source != "cold":
            store.query.until_quiet()  # who had read the lost messages keeps them
        else:
            del store.expected[30:]
        store.restore()
        store.append("orders", 0, 12)
        store.append("pays", 0, 3)
        store.engine.archive(everything=True)
        before = len(store.query.rows)
        store.query.restart()
        store.query.until_quiet()
        assert sorted(store.query.everything()) == sorted(store.expected)
        assert len(store.query.rows) <= before + 4
        assert store.expected[-4][2] >= 1 << 32
        query = store.new_query()
        query.until_quiet()  # from the first message, over the gap
        lost = 0 if source == "cold" else 10
        assert len(query.everything()) == len(store.expected) - lost
        query.stop()


def test_what_expired_before_it_was_read_is_an_error_that_names_it(store: StreamedStore) -> None:
    store.query.until_quiet()
    store.append("orders", 0, 400)
    store.engine.archive(everything=True, drop_hot=True)
    store.engine.removal.configure("orders", cold_retention_ms=1)
    later(store)
    store.engine.run_tiers()
    store.append("orders", 0, 5)
    store.engine.archive(everything=True)
    with pytest.raises(NotFoundError, match=r"offsets \[30, \d+\) of topic 'orders' queue 0 of store s are not there"):
        store.query.plan()
    query = store.new_query(failOnDataLoss="false", maxMessagesPerTrigger="9")
    query.take_checkpoint_of(store.query)
    query.until_quiet()
    found = offsets(query.everything())
    assert found == [*range(30), *range(found[30], 435)]
    assert found[30] > 30
    query.stop()


def test_messages_that_expire_between_plan_and_read_are_not_left_out_in_silence(store: StreamedStore) -> None:
    store.append("orders", 0, 400)
    store.engine.archive(everything=True, drop_hot=True)
    assert store.query.plan()
    store.engine.removal.configure("orders", cold_retention_ms=1)
    later(store)
    store.engine.run_tiers()
    with pytest.raises(NotFoundError, match=r"of topic 'orders' queue 0 of store s"):
        store.query.read()


def test_erased_messages_are_passed_over(store: StreamedStore) -> None:
    store.append("orders", 0, 300)
    store.engine.archive(everything=True, drop_hot=True)
    assert store.query.plan()
    store.engine.removal.erase(Query("orders"), wait=True)
    assert store.query.read() == []
    store.append("orders", 0, 3)
    store.engine.archive(everything=True)
    store.query.restart()
    store.query.until_quiet()
    assert offsets(store.query.everything()) == [330, 331, 332]


def test_the_service_gives_what_a_topic_has_beside_the_archive() -> None:
    with streamed("cold+url") as store:
        store.append("orders", 0, 30)
        store.engine.archive(everything=True)
        store.engine.removal.configure("orders", archive=False)
        store.append("orders", 0, 30)
        store.engine.archive(everything=True)
        store.engine.removal.configure("orders", archive=True)
        store.append("orders", 0, 30)
        store.engine.archive(everything=True)
        store.query.until_quiet()
        assert store.query.everything() == store.expected


def test_a_store_that_was_made_again_under_its_id_is_no_continuation() -> None:
    with streamed("url") as store, streamed("url") as other:
        store.append("orders", 0, 30)
        store.query.until_quiet()
        other.append("orders", 0, 10)
        query = other.new_query()
        query.take_checkpoint_of(store.query)
        with pytest.raises(NotFoundError, match=r"queue 0 of store s ends at 10, but was read up to 30"):
            query.plan()
        waiting = other.new_query(failOnDataLoss="false")
        waiting.take_checkpoint_of(store.query)
        assert not waiting.plan()
        other.append("orders", 0, 25)
        assert offsets(waiting.trigger()) == [*range(30, 35)]
        query.stop()
        waiting.stop()


def test_archive_and_service_of_different_stores_are_refused(tmp_path: Path) -> None:
    cold = f"file://{tmp_path}/cold"
    with contextlib.closing(Store.open(tmp_path / "t", cold_url=cold, store_id="t", settings=SETTINGS)) as engine:
        engine.append([Message("orders", b"x")])
        engine.archive(everything=True)
    with streamed("url") as store:
        with pytest.raises(StoreMismatchError, match="store 's' has no archive here, but t has"):
            store.new_query(cold=cold).plan()
        with pytest.raises(StoreMismatchError, match="the service serves store 's', not 't'"):
            store.new_query(store="t").plan()


_MADE_AGAIN = [
    *sent("orders", 0, range(40)),
    *sent("orders", 0, range(30), 40),
    *sent("orders", 0, range(20), 70),
    *sent("noise", 0, range(40), 90),  # so that the segment before is closed
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_reads_each_generation_once_through_a_topic_that_is_made_again(source: str, tmp_path: Path) -> None:
    log = irregular_log(_MADE_AGAIN)
    with followed_archive(tmp_path, log, log.records[35].at) as store, served(store.store, SETTINGS) as url:
        both = {"cold": f"file://{tmp_path}/cold", "url": url}
        named = {name: both[name] for name in source.split("+")}
        store.archive_all()
        queries = {name: StreamDriver(partial(_reader, {**named, "topic": name})) for name in ("orders", "orders@1")}
        for end in (35, 45, 60, 65, 75, 90):
            log.log.feed(store, end=log.log.end if end == 90 else log.records[end].at)
            store.flush()
            if end in (60, 75) or source == "cold":
                store.archive_all()
            for query in queries.values():
                query.restart()
                query.until_quiet()
        bodies = [int(row[3].split(b".")[0].removeprefix(b"message ")) for row in queries["orders"].everything()]
        assert sorted(bodies) == list(range(90))
        bodies = [int(row[3].split(b".")[0].removeprefix(b"message ")) for row in queries["orders@1"].everything()]
        assert bodies == list(range(40))
        for query in queries.values():
            query.stop()


def _reader(options: dict[str, str]) -> TierlogStreamReader:
    return TierlogStreamReader(SourceOptions.parse(options, SourceUse.READ_STREAM), MESSAGES_SPARK)


@pytest.mark.parametrize("source", SOURCES)
def test_a_range_that_a_follower_lost_is_said_once(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = irregular_log(sent("orders", 0, range(200)))
    with followed_archive(tmp_path, log, SEGMENT_BYTES) as store:
        pass
    lose(tmp_path / "s", 3 * SEGMENT_BYTES)
    with followed_archive(tmp_path, log) as store, served(store.store, SETTINGS) as url:
        store.archive_all()
        both = {"cold": f"file://{tmp_path}/cold", "url": url}
        query = StreamDriver(lambda: _reader({name: both[name] for name in source.split("+")}))
        query.until_quiet()
        query.plan()
        query.stop()
    said = [message for message in caplog.messages if "not complete" in message]
    assert said == [
        f"store s is not complete: the broker had deleted its log [{SEGMENT_BYTES}, {3 * SEGMENT_BYTES}) "
        "before the follower came there"
    ]
