"""Flushed messages that could not be dispatched were missing from answers that called themselves complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.query import Query
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.errors import DiskFullError, ReadOnlyError
from tiering.fs import LocalFileSystem
from tiering.types import Order, PullStatus, TimeAxis


class IndexDiskFull(LocalFileSystem):
    """No new index file finds room once ``is_full`` is set."""

    is_full = False

    def create(self, path: Path, size: int, *, prewrite: bool) -> None:
        if self.is_full and "index" in path.parts:
            raise DiskFullError("no space", path=str(path))
        super().create(path, size, prewrite=prewrite)


def append(engine: Engine, count: int) -> None:
    engine.append([Message("t", bytes(300), ["k"], queue_id=0) for _ in range(count)])


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """100 messages dispatched, then 400 flushed of which the index takes only some."""
    fs = IndexDiskFull()
    engine = Engine.open(tmp_path, settings=tiny_settings(), clock=ManualClock(), fs=fs)
    append(engine, 100)
    assert engine.query(Query("t", limit=1000)).coverage.complete
    fs.is_full = True
    append(engine, 400)
    return engine


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("order", Order)
def test_a_query_says_what_is_not_dispatched(engine: Engine, key: str | None, axis: TimeAxis, order: Order) -> None:
    answer = engine.query(Query("t", key, limit=1000, axis=axis, order=order))
    assert 100 <= len(answer.messages) < 500
    assert not answer.coverage.complete
    (failure,) = answer.coverage.failures
    assert failure.object == f"{engine.store_id}/hot"
    assert "bytes not dispatched" in failure.error


def test_a_pull_does_not_take_the_end_of_the_dispatched_for_the_end_of_the_queue(engine: Engine) -> None:
    found = engine.pull("t", 0, 0, 1000)
    assert found.status is PullStatus.FOUND
    assert 100 <= found.next_offset < 500
    for offset in (found.next_offset, 499):
        with pytest.raises(ReadOnlyError, match="bytes not dispatched"):
            engine.pull("t", 0, offset, 1)
