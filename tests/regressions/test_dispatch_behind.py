"""Flushed messages that could not be dispatched were missing from answers that called themselves complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.small_steps import small_steps
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFullError, UnavailableError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Order, PullStatus, TimeAxis
from tierlog.tiering.message.batch import Message


class IndexDiskFull(LocalFileSystem):
    """No new index file finds room once ``is_full`` is set, or none grows."""

    is_full = False

    def __init__(self, refused: str) -> None:
        self._refused = refused

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        self._check("create", path)
        super().create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)

    def allocate(self, path: Path, start: int, end: int) -> None:
        self._check("allocate", path)
        super().allocate(path, start, end)

    def _check(self, call: str, path: Path) -> None:
        if self.is_full and call == self._refused and "index" in path.parts:
            raise DiskFullError("no space", path=str(path))


def append(engine: Store, count: int) -> None:
    engine.append([Message("t", bytes(300), ["k"], queue_id=0) for _ in range(count)])


@pytest.fixture(params=["create", "allocate"])
def fs(request: pytest.FixtureRequest) -> Iterator[IndexDiskFull]:
    with small_steps(4096):
        yield IndexDiskFull(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, fs: IndexDiskFull, clock: ManualClock) -> Store:
    """100 messages dispatched, then 400 flushed of which the index takes only some."""
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=clock, fs=fs)
    append(engine, 100)
    assert engine.query(Query("t", limit=1000)).coverage.complete
    fs.is_full = True
    append(engine, 400)
    return engine


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("order", Order)
def test_a_query_says_what_is_not_dispatched(engine: Store, key: str | None, axis: TimeAxis, order: Order) -> None:
    answer = engine.query(Query("t", key, limit=1000, axis=axis, order=order))
    assert 100 <= len(answer.messages) < 500
    assert not answer.coverage.complete
    (failure,) = answer.coverage.failures
    assert failure.object == f"{engine.store_id}/hot"
    assert "bytes not dispatched" in failure.error


def test_a_pull_does_not_take_the_end_of_the_dispatched_for_the_end_of_the_queue(engine: Store) -> None:
    found = engine.pull("t", 0, 0, 1000)
    assert found.status is PullStatus.FOUND
    assert 100 <= found.next_offset < 500
    for offset in (found.next_offset, 499):
        with pytest.raises(UnavailableError, match="bytes not dispatched"):
            engine.pull("t", 0, offset, 1)


def test_a_pull_does_not_skip_what_a_checkpoint_counted_and_the_index_lacks(
    engine: Store, fs: IndexDiskFull, clock: ManualClock
) -> None:
    """Symptom: the consumer was sent on to the offset of the queue's floor, over messages it never saw."""
    engine.flush()  # the queue has taken what the index cannot, and its floor is raised over it
    seen = engine.pull("t", 0, 0, 1000).next_offset
    with pytest.raises(UnavailableError, match="bytes not dispatched"):
        engine.pull("t", 0, seen, 1000)
    assert engine.offsets("t", 0) == (0, seen)
    assert 100 <= seen < 500
    fs.is_full = False
    clock.advance(31_000)
    assert_all_there(engine)
    engine.close()


def assert_all_there(engine: Store) -> None:
    answer = engine.query(Query("t", "k", limit=1000))
    assert answer.coverage.complete
    assert len(answer.messages) == 500
    assert engine.pull("t", 0, 0, 1000).next_offset == 500
    assert engine.check() == []


def test_the_index_goes_on_without_a_restart_once_there_is_room(
    engine: Store, fs: IndexDiskFull, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    behind = []
    for _ in range(5):
        clock.advance(31_000)
        engine.query(Query("t", "k"))
        behind.append(engine.stats()["index_behind_bytes"])
    assert len(set(behind)) == 1
    assert isinstance(behind[0], int)
    assert behind[0] > 0
    assert engine.read_only_reason is None
    assert "no space" in (engine.index_error or "")
    assert [record.message for record in caplog.records if "cannot follow" in record.message] == [
        f"queues and index cannot follow the log, will try again: {engine.index_error}"
    ]
    fs.is_full = False
    clock.advance(31_000)
    engine.flush()
    assert engine.index_error is None
    assert engine.stats()["index_behind_bytes"] == 0
    assert_all_there(engine)
    engine.close()


def test_what_could_not_be_indexed_is_derived_after_a_restart(
    engine: Store, fs: IndexDiskFull, clock: ManualClock, tmp_path: Path
) -> None:
    assert not engine.query(Query("t", "k", limit=1000)).coverage.complete
    engine.close()
    fs.is_full = False
    again = Store.open(tmp_path, settings=tiny_settings(), clock=clock, fs=fs)
    assert_all_there(again)
    again.close()


def test_appends_go_on_while_the_index_finds_no_room(engine: Store) -> None:
    append(engine, 10)
    assert engine.stats()["flushed_to"] == engine.stats()["log_end"]
    assert engine.pull("t", 0, 0, 100).status is PullStatus.FOUND
    engine.close()


def test_a_dispatch_that_runs_out_of_memory_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: the thread that derives was gone, and nothing said that queues and index did not follow any more."""
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=clock)
    append(engine, 100)

    def no_memory(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tierlog.index.local.local_index.KeyBatch.of", no_memory)
    assert not engine.query(Query("t", "k", limit=1000)).coverage.complete
    assert engine.index_error == "MemoryError()"
    monkeypatch.undo()
    clock.advance(60_000)
    answer = engine.query(Query("t", "k", limit=1000))
    assert answer.coverage.complete
    assert len(answer.messages) == 100
    assert engine.index_error is None
    assert engine.check() == []
    engine.close()
