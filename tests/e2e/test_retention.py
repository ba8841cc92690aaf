"""Hot copies go by age and by size, and never before they may."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.base.types import Boundary, Order, PullStatus
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_HOUR_MS = 3_600_000


def append(engine: Store, clock: ManualClock, first: int, count: int) -> None:
    for number in range(first, first + count):
        clock.advance(100)
        engine.append([Message("t", b"%06d" % number + bytes(1000), [f"k{number}"], queue_id=0)])


def numbers(engine: Store) -> list[int]:
    answer = engine.query(Query("t", None, limit=10_000, order=Order.OLDEST))
    assert answer.coverage.complete
    return [int(message.record.body[:6]) for message in answer.messages]


def test_without_a_cold_tier_old_segments_go_and_readers_are_told_where_to_go_on(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=tiny_settings(hot__retention_ms=_HOUR_MS), clock=clock)
    try:
        append(engine, clock, 0, 200)
        engine.run_tiers()
        assert numbers(engine) == list(range(200))  # nothing is old enough
        clock.advance(2 * _HOUR_MS)
        append(engine, clock, 200, 1)
        engine.run_tiers()
        left = numbers(engine)
        assert left[-1] == 200
        assert 0 < len(left) < 100  # only the last segment is left
        answer = engine.pull("t", 0, 0, 10)
        assert answer.status is PullStatus.OFFSET_TOO_SMALL
        assert answer.next_offset == answer.min_offset == left[0]
        assert engine.query(Query("t", "k0")).messages == []
        assert engine.check() == []
    finally:
        engine.close()


def test_with_a_cold_tier_age_removes_only_what_the_archive_holds(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = FaultyObjectStore(MemoryObjectStore(clock))
    settings = tiny_settings(hot__retention_ms=_HOUR_MS, hot__roll_age_ms=_HOUR_MS)
    engine = Store.open(tmp_path, settings=settings, clock=clock, cold_url="memory://r", objects=bucket)
    try:
        append(engine, clock, 0, 200)
        engine.run_tiers()
        bucket.die()
        clock.advance(3 * _HOUR_MS)
        append(engine, clock, 200, 50)
        for _ in range(3):
            with contextlib.suppress(UnavailableError):  # the bucket is dead; what matters is what is still there
                engine.run_tiers()
        bucket.revive()
        assert numbers(engine) == list(range(250))
        engine.run_tiers()
        clock.advance(3 * _HOUR_MS)
        engine.run_tiers()
        engine.run_tiers()
        hot = [info for info in engine.files() if info.tier == "hot" and info.kind == "segment"]
        assert [info.state for info in hot] == ["active"]
        assert numbers(engine) == list(range(250))
        assert len(engine.query(Query("t", "k3")).messages) == 1
        assert engine.check(deep=True) == []
    finally:
        engine.close()


def test_size_limit_removes_the_oldest_archived_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    settings = tiny_settings(hot__max_bytes=3 * 65_536)
    engine = Store.open(tmp_path, settings=settings, clock=clock, cold_url="memory://r", objects=bucket)
    try:
        append(engine, clock, 0, 500)
        engine.run_tiers()
        hot = [info for info in engine.files() if info.tier == "hot" and info.kind == "segment"]
        assert len(hot) == 3
        assert numbers(engine) == list(range(500))
        assert engine.check(deep=True) == []
    finally:
        engine.close()


def test_a_queue_whose_messages_are_all_gone_begins_at_its_end_also_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = tiny_settings(hot__retention_ms=_HOUR_MS)
    engine = Store.open(tmp_path, settings=settings, clock=clock)
    engine.append([Message("quiet", b"%d" % number, queue_id=1) for number in range(130)])
    append(engine, clock, 0, 200)
    clock.advance(2 * _HOUR_MS)
    engine.run_tiers()
    for _ in range(2):
        assert engine.pull("quiet", 1, 0, 10).status is PullStatus.OFFSET_TOO_SMALL
        page = engine.pull("quiet", 1, 129, 10)
        assert (page.status, page.next_offset, page.min_offset, page.max_offset) == (
            PullStatus.OFFSET_TOO_SMALL, 130, 130, 130,
        )  # fmt: skip
        assert engine.pull("quiet", 1, 130, 10).status is PullStatus.NO_NEW_MESSAGE
        assert engine.offset_by_time("quiet", 1, 0, Boundary.LOWER) == 130
        assert engine.offset_by_time("quiet", 1, clock.now_ms(), Boundary.UPPER) == 0
        assert engine.check() == []
        engine.close()
        engine = Store.open(tmp_path, settings=settings, clock=clock)
    assert engine.append([Message("quiet", b"next", queue_id=1)])[0].queue_offset == 130
    assert engine.pull("quiet", 1, 130, 10).status is PullStatus.FOUND
    engine.close()
