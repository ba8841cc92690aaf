"""Symptom: a call to a slow bucket came back after close, and its thread wrote over the store's next open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from service.engine import Engine
from tests.support.engines import tiny_settings
from tests.support.faulty_store import FaultyObjectStore
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.cold.memory import MemoryObjectStore
from tiering.errors import StoreError


def in_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except StoreError as error:
            errors.append(error)

    errors: list[StoreError] = []
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def open_engine(root: Path, bucket: MemoryObjectStore | FaultyObjectStore) -> Engine:
    return Engine.open(root, settings=tiny_settings(), cold_url="memory://late", objects=bucket, clock=ManualClock())


def test_claim_that_lands_after_close_does_not_change_who_the_next_open_is(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    engine = open_engine(tmp_path, bucket)
    engine.append([Message("t", b"x", ["k"])])
    engine.archive(everything=True)
    engine.close()
    slow = FaultyObjectStore(bucket)
    engine = open_engine(tmp_path, slow)
    engine.append([Message("t", b"y", ["k"])])
    hold = slow.hold("put")
    late = in_thread(lambda: engine.archive(everything=True))
    hold.wait_until_reached()
    engine.close()
    again = open_engine(tmp_path, bucket)
    before = (tmp_path / "tierlog" / "store.json").read_bytes()
    hold.release()
    late.join()
    assert (tmp_path / "tierlog" / "store.json").read_bytes() == before
    again.close()
    open_engine(tmp_path, bucket).close()


def test_removal_that_waits_for_a_reader_does_not_go_on_after_close(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    engine = open_engine(tmp_path, bucket)
    for number in range(300):
        engine.append([Message("t", b"%04d" % number + bytes(900))])
    engine.archive(everything=True)
    with engine._hot.snapshot():
        late = in_thread(lambda: engine.archive(drop_hot=True))
        while engine._hot.border == 0:
            late.join(0.01)
        engine.close()
        again = open_engine(tmp_path, bucket)
        segments = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
        again.append([Message("new-topic", b"x")])
    late.join()
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == segments
    assert [topic.name for topic in again.topics()] == ["t", "new-topic"]
    again.close()
    again = open_engine(tmp_path, bucket)
    assert [topic.name for topic in again.topics()] == ["t", "new-topic"]
    assert again.check() == []
    again.close()
