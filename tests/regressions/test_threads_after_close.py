"""Symptom: a call to a slow bucket came back after close, and its thread wrote over the store's next open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hold import Hold
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ClosedError, ReadOnlyError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


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


def open_engine(root: Path, bucket: MemoryObjectStore | FaultyObjectStore) -> Store:
    return Store.open(root, settings=tiny_settings(), cold_url="memory://late", objects=bucket, clock=ManualClock())


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


def test_topic_made_after_close_does_not_overwrite_those_of_the_next_open(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    engine = open_engine(tmp_path, bucket)
    engine.close()
    again = open_engine(tmp_path, bucket)
    again.append([Message("new-topic", b"x")])
    before = (tmp_path / "tierlog" / "topics.json").read_bytes()
    with pytest.raises(ClosedError):
        engine.create_topic("late", 1)
    assert (tmp_path / "tierlog" / "topics.json").read_bytes() == before
    again._hot.guard.turn_read_only("a test")
    with pytest.raises(ReadOnlyError):
        again.create_topic("refused", 1)
    assert (tmp_path / "tierlog" / "topics.json").read_bytes() == before
    again.close()


def test_next_segment_is_not_prepared_after_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryObjectStore(ManualClock())
    engine = open_engine(tmp_path, bucket)
    engine.append([Message("t", bytes(900)) for _ in range(40)])
    hold, prepare = Hold(), engine._hot.log.prepare_next

    def held_prepare() -> None:
        hold.stop_here()
        prepare()

    monkeypatch.setattr(engine._hot.log, "prepare_next", held_prepare)
    late = in_thread(engine._hot.prepare_segment)
    hold.wait_until_reached()
    engine.close()
    again = open_engine(tmp_path, bucket)
    hold.release()
    late.join()
    with pytest.raises(ClosedError):
        engine._hot.roll()
    assert list((tmp_path / "tmp").iterdir()) == []
    again.close()


def test_close_is_clean_though_a_removal_meets_it(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(tmp_path, settings=tiny_settings(), fs=fs, clock=ManualClock())
    engine.append([Message("t", bytes(900)) for _ in range(300)])
    engine.append([Message("t", b"last")], Durability.ASYNC)
    hold = fs.hold("flush", "*/commitlog/*")
    with engine._hot.snapshot():
        removal = in_thread(lambda: engine._hot.remove_below(engine._hot.log.last_base, forget=lambda border: None))
        while engine._hot.border == 0:
            removal.join(0.01)
        closing = in_thread(engine.close)
        hold.wait_until_reached()
        removal.join()
    hold.release()
    closing.join()
    assert engine.read_only_reason is None
    assert not (tmp_path / "abort").exists()
    again = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    assert sum(queue.max_offset for queue in again.topic("t").queues) == 301
    again.close()


def test_close_waits_for_no_segment_that_is_being_made_and_its_failure_removes_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(tmp_path, settings=tiny_settings(), fs=fs, clock=ManualClock())
    engine.append([Message("t", bytes(900)) for _ in range(40)])
    hold = fs.hold("create", "*/tmp/0*")
    fs.refuse("create", "*/tmp/0*")
    late = in_thread(engine._hot.prepare_segment)
    hold.wait_until_reached()
    engine.close()
    assert not (tmp_path / "abort").exists()
    again = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    assert again._hot.prepare_segment()
    (prepared,) = (tmp_path / "tmp").iterdir()
    hold.release()
    late.join()
    assert prepared.exists(), "a thread of the store before removed it"
    again.close()
