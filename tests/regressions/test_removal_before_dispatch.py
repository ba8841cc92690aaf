"""Removal by age took segments whose records were in no queue and no index yet; dispatching then failed for good."""

from __future__ import annotations

from pathlib import Path

from index.query import Query
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.types import PullStatus


def test_what_is_not_dispatched_is_dispatched_before_it_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = Engine.open(tmp_path, settings=tiny_settings(hot__retention_ms=1), clock=clock)
    for number in range(300):
        clock.advance(10)
        engine.append([Message("t", bytes(1_000), [f"k{number}"], queue_id=0)])
    engine.tiers_round()
    assert engine.pull("t", 0, 0, 1).status is PullStatus.OFFSET_TOO_SMALL
    engine.append([Message("t", b"last", ["last"], queue_id=0)])
    assert [message.record.queue_offset for message in engine.query(Query("t", "last")).messages] == [300]
    assert engine.pull("t", 0, 300, 1).status is PullStatus.FOUND
    assert engine.check() == []
    engine.close()
