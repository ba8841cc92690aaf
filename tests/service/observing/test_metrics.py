"""Metrics say what the store says, in Prometheus' words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from docs.tools.metrics import page
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT
from tests.support.world import World
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, ObjectStoreUnavailableError
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.message.batch import Message

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class ScrapedWorld(World):
    """A store on a disk and a bucket that can be made to fail, and a client of its service."""

    def __init__(self) -> None:
        super().__init__()
        self.files = self.faulty = FaultyFileSystem(self.fs)
        self.client = TestClient(create_app(self.open(), self.settings), "http://localhost")

    def scrape(self) -> Samples:
        answer = self.client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
def world() -> ScrapedWorld:
    return ScrapedWorld()


def test_metrics_agree_with_stats(world: ScrapedWorld) -> None:
    world.engine.append([Message("orders", b"x" * 100, ["k"])] * 5)
    world.engine.archive(everything=True)
    world.engine.append([Message("orders", b"x" * 100, ["k"])])
    found, stats = world.scrape(), world.engine.stats()
    for name, stat in (
        ("tierlog_log_end_bytes", "log_end"), ("tierlog_flushed_to_bytes", "flushed_to"),
        ("tierlog_archived_to_bytes", "archived_to"), ("tierlog_indexed_to_bytes", "indexed_to"),
        ("tierlog_manifest_version", "manifest_version"), ("tierlog_archive_requests_total", "archive_requests"),
    ):  # fmt: skip
        assert found[name, ()] == stats[stat]
    assert found["tierlog_appended_messages_total", ()] == 6
    assert found["tierlog_last_store_time_seconds", ()] == world.clock.now_ms() / 1000
    assert found["tierlog_read_only", (("reason", ""),)] == 0
    assert found["tierlog_archive_failing", ()] == 0


def test_without_an_archive_its_numbers_are_left_out() -> None:
    engine = Store.open(ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=ManualClock())
    text = TestClient(create_app(engine, tiny_settings()), "http://localhost").get("/metrics").text
    assert "tierlog_log_end_bytes 0.0" in text
    assert "tierlog_archived_to_bytes" not in text


def test_failed_disk_shows_its_reason_on_readyz_in_metrics_and_in_the_log(
    world: ScrapedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    assert world.client.get("/readyz").status_code == 200
    world.faulty.refuse("flush", "*/commitlog/*")
    with pytest.raises(DiskFailedError):
        world.engine.append([Message("orders", b"x")])
    reason = "flush failed: scripted failure"
    ready = world.client.get("/readyz")
    assert (ready.status_code, ready.json()["detail"]) == (503, f"read-only: {reason}")
    assert world.scrape()["tierlog_read_only", (("reason", reason),)] == 1
    assert f"the store is read-only now: {reason}" in caplog.text
    assert world.client.get("/livez").status_code == 200


def test_dead_archive_shows_in_metrics_and_leaves_the_store_ready(world: ScrapedWorld) -> None:
    world.bucket.die()
    world.engine.append([Message("orders", b"x")])
    with pytest.raises(ObjectStoreUnavailableError):
        world.engine.archive(everything=True)
    assert world.scrape()["tierlog_archive_failing", ()] == 0
    for name in ("1-a3", "1-b7"):  # every try has a new one, which must not make a new series
        world.engine._background._tiers[1].error = f"the bucket is gone [log/{name}.zst]"
        assert world.scrape()["tierlog_archive_failing", ()] == 1
    assert world.client.get("/readyz").status_code == 200


def test_the_page_of_metrics_is_what_the_code_makes_of_it() -> None:
    written = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.tools.metrics"


def test_times_bytes_and_money_are_counted_where_they_are_spent(world: ScrapedWorld) -> None:
    client = world.client
    body = {"messages": [{"body": "x", "keys": ["k"]}] * 3}
    for durability in ("async", "flushed", "archived"):
        assert client.post(f"/v1/topics/orders/messages?durability={durability}", json=body).status_code == 200
    world.engine.archive(everything=True, drop_hot=True)
    assert len(client.get("/v1/topics/orders/messages?key=k").json()["messages"]) == 9
    assert client.get("/v1/topics/orders/messages?key=k&dry_run=true").status_code == 200
    found = world.scrape()
    for durability in ("async", "flushed", "archived"):
        assert found["tierlog_append_seconds_count", (("durability", durability),)] == 1
        assert found["tierlog_acknowledged_messages_total", (("durability", durability),)] == 3
    assert found["tierlog_flush_seconds_count", ()] == found["tierlog_flushes_total", ()] > 0
    assert found["tierlog_queries_total", (("by", "key"), ("outcome", "complete"))] == 1
    assert found["tierlog_queries_total", (("by", "key"), ("outcome", "dry_run"))] == 1
    assert found["tierlog_query_seconds_count", (("by", "key"),)] == 1
    assert found["tierlog_query_requests_sum", ()] > 0
    uploads = found["tierlog_archive_calls_total", (("operation", "upload"), ("outcome", "ok"))]
    assert found["tierlog_archive_cost_usd_total", (("operation", "upload"),)] == pytest.approx(uploads * 0.005 / 1000)
    assert found["tierlog_archive_call_seconds_count", (("operation", "upload"),)] == uploads > 0
    post = (("method", "POST"), ("route", "/v1/topics/{topic}/messages"))
    assert found["tierlog_http_requests_total", (*post, ("status", "200"))] == 3
    assert found["tierlog_http_request_seconds_count", post] == 3
    assert found["tierlog_http_received_bytes_total", ()] > 100
    assert found["tierlog_http_requests_in_flight", ()] == 1  # this one


def test_an_answer_that_could_not_read_everything_counts_as_unreachable(world: ScrapedWorld) -> None:
    world.engine.append([Message("orders", b"x", ["k"])])
    world.engine.archive(everything=True, drop_hot=True)
    world.bucket.fail_before("get_range", times=None)
    assert not world.client.get("/v1/topics/orders/messages?key=k").json()["coverage"]["complete"]
    found = world.scrape()
    assert found["tierlog_queries_total", (("by", "key"), ("outcome", "unreachable"))] == 1
    assert found["tierlog_archive_calls_total", (("operation", "get_range"), ("outcome", "unavailable"))] > 0


def test_what_a_client_makes_up_is_no_label(world: ScrapedWorld) -> None:
    for number in range(5):
        world.client.get(f"/no/such/place/{number}")
        world.client.request(f"VERB{number}", "/v1/topics")
        world.client.get(f"/v1/topics/made-up-{number}")
    found = world.scrape()
    assert found["tierlog_http_requests_total", _request("unmatched", "GET", 404)] == 5
    assert found["tierlog_http_requests_total", _request("/v1/topics", "other", 405)] == 5
    assert found["tierlog_http_requests_total", _request("/v1/topics/{topic}", "GET", 404)] == 5
    assert not [labels for _, labels in found if "made-up" in str(labels)]


def _request(route: str, method: str, status: int) -> tuple[tuple[str, str], ...]:
    return (("method", method), ("route", route), ("status", str(status)))


def test_refusals_are_counted_by_the_title_of_their_problem(world: ScrapedWorld) -> None:
    world.faulty.refuse("flush", "*/commitlog/*")
    for _ in range(2):
        assert world.client.post("/v1/topics/orders/messages", json={"messages": [{"body": "x"}]}).status_code == 503
    found = world.scrape()
    assert found["tierlog_http_refused_requests_total", (("reason", "disk_failed"),)] == 1
    assert found["tierlog_http_refused_requests_total", (("reason", "read_only"),)] == 1


def test_the_archive_is_behind_by_the_age_and_bytes_of_what_waits(world: ScrapedWorld) -> None:
    world.engine.append([Message("orders", b"x")])
    world.engine.archive(everything=True)
    assert world.scrape()["tierlog_archive_lag_bytes", ()] == world.scrape()["tierlog_archive_lag_seconds", ()] == 0
    world.engine.append([Message("orders", b"y" * 100)])
    world.clock.advance(90_000)
    world.engine.append([Message("orders", b"z")])
    found = world.scrape()
    assert found["tierlog_archive_lag_seconds", ()] == 90
    assert 100 < found["tierlog_archive_lag_bytes", ()] < 400


def test_queues_and_index_are_behind_by_the_age_of_what_they_have_not_seen(world: ScrapedWorld) -> None:
    world.engine.append([Message("orders", b"x")])
    world.engine.flush()
    assert world.scrape()["tierlog_dispatch_lag_seconds", ()] == 0
    world.engine.append([Message("orders", b"y")])
    world.clock.advance(7_000)
    found = world.scrape()
    assert found["tierlog_dispatch_lag_seconds", ()] == 7
    assert found["tierlog_dispatch_lag_bytes", ()] > 0


def test_files_are_counted_as_they_are_listed_and_a_scrape_asks_the_archive_for_nothing(world: ScrapedWorld) -> None:
    for _ in range(16):  # more than the head holds
        world.engine.append([Message("orders", b"x", ["k"])])
        world.engine.archive(everything=True, drop_hot=True)
    world.engine.append([Message("orders", b"x", ["k"])])
    hot = (("kind", "segment"), ("state", "active"), ("tier", "hot"))
    cold = {kind: (("kind", kind), ("state", "published"), ("tier", "cold")) for kind in ("segment", "index")}
    assert ("tierlog_files", cold["segment"]) not in world.scrape()  # not read yet
    manifest, totals = world.engine._manifest, world.engine._totals
    assert manifest is not None
    assert manifest.head is not None
    assert totals is not None
    totals.learn(manifest.reader(scan=True), manifest.head)
    world.engine.archive(everything=True)  # what stands in the head itself needs no reading
    asked = len(world.bucket.calls)
    found = world.scrape()
    assert len(world.bucket.calls) == asked
    listed = world.engine.files()
    assert found["tierlog_files", hot] == 1
    for kind, labels in cold.items():
        bytes_listed = [file.bytes for file in listed if file.kind == kind and file.tier == "cold"]
        assert found["tierlog_files", labels] == len(bytes_listed) == 17
        assert found["tierlog_files_bytes", labels] == sum(bytes_listed)


def test_pages_of_the_manifest_are_read_once_for_their_sums(world: ScrapedWorld) -> None:
    manifest, totals = world.engine._manifest, world.engine._totals
    assert manifest is not None
    assert totals is not None
    for _ in range(20):
        world.engine.append([Message("orders", b"x", ["k"])])
        world.engine.archive(everything=True, drop_hot=True)
        assert manifest.head is not None
        totals.learn(cast(ArchiveReader, NotingReader(manifest.reader())), manifest.head)
    read = NotingReader.pages
    assert len(read) == len(set(read)) > 5


class NotingReader:
    """Reads the archive, and notes what."""

    pages: ClassVar[list[str]] = []

    def __init__(self, reader: ArchiveReader) -> None:
        self._reader = reader

    def metadata(self, key: str, *arguments: Any) -> Any:
        self.pages.append(key)
        return self._reader.metadata(key, *arguments)


def test_the_lag_of_as_many_groups_is_shown_as_the_settings_say() -> None:
    engine = Store.open(ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=ManualClock())
    engine.append([Message("orders", b"x", queue_id=0)] * 5)
    engine.flush()
    for group in ("a", "b", "c"):
        engine.groups.commit(group, {("orders", engine.store_id, 0): 2})
    text = TestClient(create_app(engine, tiny_settings(metrics__max_groups=2)), "http://localhost").get("/metrics").text
    assert "tierlog_groups 3.0" in text
    assert 'tierlog_group_lag_messages{group="b"} 3.0' in text
    assert 'group="c"' not in text


def test_a_group_that_reads_and_has_committed_nothing_is_behind_by_all_that_it_reads() -> None:
    engine = Store.open(ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=ManualClock())
    engine.append([Message("orders", b"x", queue_id=0)] * 5)
    engine.flush()
    engine.groups.join("new", ["orders"])
    client = TestClient(create_app(engine, tiny_settings()), "http://localhost")
    assert 'tierlog_group_lag_messages{group="new"} 5.0' in client.get("/metrics").text
