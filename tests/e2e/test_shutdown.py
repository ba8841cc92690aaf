"""A stop flushes and ends in time, whatever the object store does (RocketMQ waited for ever: #7338, #9838)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.objects.black_hole import black_hole
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine import recovery
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_EXIT_S = 10


@contextmanager
def served(folder: Path, cold_url: str, endpoint: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ``tierlog serve`` process and its URL; killed if the test leaves it running."""
    command = [
        sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(folder / "store"), "--cold", cold_url,
        "--port", "0", "--segment-bytes", "65536", "--queue-file-units", "60", "--index-slots", "100",
        "--index-items", "400",
    ]  # fmt: skip
    environment = {
        **os.environ, "TIERLOG_S3_ENDPOINT": endpoint, "TIERLOG_HOT_ROLL_AGE_MS": "1", "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "serving http" in line:
                yield process, line.split()[-1].rstrip("/")
                return
        raise AssertionError("the service ended before it served")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def post(url: str, bodies: list[str], durability: str) -> None:
    data = json.dumps({"messages": [{"body": body, "keys": ["k"]} for body in bodies]}).encode()
    request = urllib.request.Request(
        f"{url}/v1/topics/orders/messages?durability={durability}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stop_flushes_and_ends_in_time_although_the_bucket_never_answers(
    signal_number: signal.Signals, tmp_path: Path
) -> None:
    Store.open(tmp_path / "store", settings=tiny_settings()).close()  # a new one would wait for its archive
    with black_hole() as endpoint, served(tmp_path, "s3://bucket/prefix", endpoint) as (process, url):
        post(url, ["flushed"], "flushed")
        post(url, ["not flushed yet"], "async")
        process.send_signal(signal_number)
        assert process.wait(_EXIT_S) == 0
    assert not (tmp_path / "store" / "abort").exists()
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), objects=MemoryObjectStore(SystemClock()))
    try:
        found = engine.query(Query("orders", "k")).messages
        assert sorted(message.record.body for message in found) == [b"flushed", b"not flushed yet"]
        assert engine.check() == []
    finally:
        engine.close()


def test_stop_during_an_upload_that_hangs_leaves_a_store_that_archives_later(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(SystemClock())
    faulty = FaultyObjectStore(bucket)
    settings = tiny_settings(hot__roll_age_ms=1)
    engine = Store.open(tmp_path / "store", settings=settings, cold_url="memory://stop", objects=faulty)
    hold = faulty.hold("upload")
    engine.append([Message("orders", b"one", ["k"])] * 50, Durability.FLUSHED)
    engine.start()
    hold.wait_until_reached()
    engine.close()
    hold.release()
    again = Store.open(tmp_path / "store", settings=settings, cold_url="memory://stop", objects=bucket)
    try:
        assert again.check() == []
        again.archive(everything=True, drop_hot=True)
        assert len(again.query(Query("orders", "k", limit=100)).messages) == 50
        assert again.check(deep=True) == []
    finally:
        again.close()


def test_open_waits_for_no_request_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at the archive is given up; a request of it that is still under way holds nothing up."""
    monkeypatch.setattr(recovery, "_FIRST_LOOK_S", 0.1)
    Store.open(tmp_path / "store", settings=tiny_settings()).close()
    faulty = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    hold = faulty.hold("get")
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), cold_url="memory://hang", objects=faulty)
    try:
        hold.wait_until_reached()
        engine.append([Message("orders", b"one", ["k"])])
        assert engine.pull("orders", 0, 0, 10).messages
    finally:
        hold.release()
        engine.close()


def test_open_and_append_work_although_the_bucket_never_answers(tmp_path: Path) -> None:
    with black_hole() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("NO_PROXY", "127.0.0.1")
        settings = tiny_settings(cold__s3_endpoint=endpoint)
        Store.open(tmp_path / "store", settings=settings).close()  # a new one would wait for its archive
        engine = Store.open(tmp_path / "store", settings=settings, cold_url="s3://bucket/prefix")
        try:
            engine.append([Message("orders", b"one", ["k"])])
            answer = engine.query(Query("orders", "k"))
            assert [message.record.body for message in answer.messages] == [b"one"]
            assert answer.coverage.complete  # nothing lies below the border, so the bucket is not needed
            assert engine.pull("orders", 0, 0, 10).messages
        finally:
            engine.close()
