"""Removal by age took segments whose records were in no queue and no index yet; dispatching then failed for good."""

from __future__ import annotations

from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.batch import Message


def test_what_is_not_dispatched_is_dispatched_before_it_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=tiny_settings(hot__retention_ms=1), clock=clock)
    for number in range(300):
        clock.advance(10)
        engine.append([Message("t", bytes(1_000), [f"k{number}"], queue_id=0)])
    engine.run_tiers()
    assert engine.pull("t", 0, 0, 1).status is PullStatus.OFFSET_TOO_SMALL
    engine.append([Message("t", b"last", ["last"], queue_id=0)])
    assert [message.record.queue_offset for message in engine.query(Query("t", "last")).messages] == [300]
    assert engine.pull("t", 0, 300, 1).status is PullStatus.FOUND
    assert engine.check() == []
    engine.close()
