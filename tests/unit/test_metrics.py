"""Metrics say what the store says, in Prometheus' words."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.api.app import create_app
from service.engine import Engine
from tests.support.crash_fs import CrashFileSystem
from tests.support.engines import tiny_settings
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.faulty_store import FaultyObjectStore
from tests.support.hot_stores import ROOT
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.cold.memory import MemoryObjectStore
from tiering.errors import DiskFailedError, ObjectStoreUnavailableError

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class World:
    """A store on a disk and a bucket that can be made to fail, and a client of its service."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fs = FaultyFileSystem(CrashFileSystem())
        self.bucket = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.engine = Engine.open(
            ROOT, settings=tiny_settings(), cold_url="memory://archive", clock=self.clock, fs=self.fs,
            objects=self.bucket,
        )  # fmt: skip
        self.client = TestClient(create_app(self.engine, tiny_settings()))

    def scrape(self) -> Samples:
        answer = self.client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
def world() -> World:
    return World()


def test_metrics_agree_with_stats(world: World) -> None:
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
    engine = Engine.open(ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=ManualClock())
    text = TestClient(create_app(engine, tiny_settings())).get("/metrics").text
    assert "tierlog_log_end_bytes 0.0" in text
    assert "tierlog_archived_to_bytes" not in text


def test_failed_disk_shows_its_reason_on_readyz_in_metrics_and_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert world.client.get("/readyz").status_code == 200
    world.fs.refuse("flush", "*/commitlog/*")
    with pytest.raises(DiskFailedError):
        world.engine.append([Message("orders", b"x")])
    reason = "flush failed: scripted failure"
    ready = world.client.get("/readyz")
    assert (ready.status_code, ready.json()["detail"]) == (503, f"read-only: {reason}")
    assert world.scrape()["tierlog_read_only", (("reason", reason),)] == 1
    assert f"the store is read-only now: {reason}" in caplog.text
    assert world.client.get("/livez").status_code == 200


def test_dead_archive_shows_in_metrics_and_leaves_the_store_ready(world: World) -> None:
    world.bucket.die()
    world.engine.append([Message("orders", b"x")])
    with pytest.raises(ObjectStoreUnavailableError):
        world.engine.archive(everything=True)
    assert world.scrape()["tierlog_archive_failing", ()] == 0
    for name in ("1-a3", "1-b7"):  # every try has a new one, which must not make a new series
        world.engine._background._tiers[1].error = f"the bucket is gone [log/{name}.zst]"
        assert world.scrape()["tierlog_archive_failing", ()] == 1
    assert world.client.get("/readyz").status_code == 200
