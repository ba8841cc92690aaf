"""What a store does to its index files by itself: sealing by age, compaction beside a dead bucket, and its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.index.search.query import Query
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

HOUR_MS = 3_600_000


def settings(**index: int) -> Settings:
    return Settings(
        advertise="10.0.0.1:7777", hot=HotSettings(segment_bytes=1 << 20, roll_age_ms=100 * HOUR_MS, default_queues=1),
        index=IndexSettings(**{"slots": 10, "items": 50, **index}),  # type: ignore[arg-type]
    )  # fmt: skip


def append(engine: Store, *keys: str) -> None:
    engine.append([Message("t", key.encode(), [key]) for key in keys])
    engine.flush()


def states(engine: Store) -> list[str]:
    return [file.state for file in engine.files() if file.kind == "index" and file.tier == "hot"]


@pytest.mark.parametrize("cold_url", [None, "memory://archive"])
def test_a_file_is_sealed_an_hour_after_its_first_message_with_and_without_a_cold_tier(
    tmp_path: Path, cold_url: str | None
) -> None:
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=settings(), clock=clock, cold_url=cold_url, objects=MemoryObjectStore(clock))
    engine.run_tiers()
    assert states(engine) == []
    append(engine, "a")
    clock.advance(HOUR_MS - 1)
    append(engine, "b")  # a later message does not put it off
    engine.run_tiers()
    assert states(engine) == ["writing"]
    clock.advance(2)
    engine.run_tiers()
    assert states(engine) == ["compacted"]
    clock.advance(10 * HOUR_MS)
    engine.run_tiers()  # no message, no file
    assert states(engine) == ["compacted"]
    append(engine, "c")
    for key in "abc":
        assert len(engine.query(Query("t", key)).messages) == 1
    assert states(engine) == ["compacted", "writing"]
    engine.close()


def test_the_age_is_a_setting(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=settings(seal_age_ms=50), clock=clock)
    append(engine, "a")
    clock.advance(51)
    engine.run_tiers()
    assert states(engine) == ["compacted"]
    engine.close()


def test_a_dead_bucket_holds_up_no_sealing_and_no_compaction(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = FaultyObjectStore(MemoryObjectStore(clock))
    engine = Store.open(tmp_path, settings=settings(), clock=clock, cold_url="memory://d", objects=bucket)
    hold = bucket.hold("put")
    archiving = threading.Thread(target=lambda: engine.archive(everything=True))
    append(engine, "first")
    archiving.start()
    hold.wait_until_reached()
    append(engine, *(f"k{number}" for number in range(120)))
    engine._index_maintenance.run_once()
    assert states(engine)[-3:] == ["compacted", "compacted", "writing"]
    assert archiving.is_alive()
    hold.release()
    archiving.join()
    assert engine.check() == []
    engine.close()


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [("write_at", "*/tmp/compact-*"), ("rename", "*/compacted/*")],
)
def test_no_file_of_the_index_changes_after_the_store_was_closed(tmp_path: Path, operation: str, pattern: str) -> None:
    """One call that is under way ends; the work it was a part of does not go on in what another has opened."""
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(tmp_path, settings=settings(), clock=ManualClock(), fs=fs)
    append(engine, *(f"k{number}" for number in range(120)))
    hold = fs.hold(operation, pattern)
    failures: list[StoreError] = []

    def keep() -> None:
        try:
            engine._index_maintenance.run_once()
        except StoreError as error:
            failures.append(error)

    late = threading.Thread(target=keep)
    late.start()
    hold.wait_until_reached()
    engine.close()
    again = Store.open(tmp_path, settings=settings(), clock=ManualClock())
    hold.release()
    late.join()
    assert failures
    for number in range(120):
        assert len(again.query(Query("t", f"k{number}")).messages) == 1
    again.run_tiers()
    assert again.check() == []
    assert states(again) == ["compacted", "compacted", "writing"]
    again.close()


def test_a_file_that_could_not_be_sealed_is_derived_again_by_the_next_turn(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(tmp_path, settings=settings(), clock=ManualClock(), fs=fs)
    append(engine, *(f"k{number}" for number in range(60)))
    fs.refuse("flush", "*/index/writing/*", times=1)
    with pytest.raises(DiskFailedError):
        engine._index_maintenance.run_once()
    answer = engine.query(Query("t", "k7"))
    assert not answer.messages
    assert not answer.coverage.complete
    engine._index_maintenance.run_once()
    for number in range(60):
        answer = engine.query(Query("t", f"k{number}"))
        assert answer.coverage.complete
        assert len(answer.messages) == 1
    assert engine.read_only_reason is None
    assert engine.check() == []
    engine.close()


def test_the_background_tells_why_the_index_is_not_kept_until_it_is(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=settings(), clock=clock, fs=fs)
    append(engine, *(f"k{number}" for number in range(60)))
    fs.refuse("rename", "*/compacted/*", error=DiskFailedError("EIO"))
    engine._background._index_maintenance.run_once()
    assert engine.index_error is not None
    assert "EIO" in engine.index_error
    assert engine.stats()["index_files_waiting"] == 1
    fs.heal()
    clock.advance(120_000)
    engine._background._index_maintenance.run_once()
    assert engine.index_error is None
    assert engine.stats()["index_files_waiting"] == 0
    engine.close()


def test_what_nobody_foresaw_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=settings(), clock=clock)
    append(engine, *(f"k{number}" for number in range(60)))

    def no_memory(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tierlog.index.local.file_set.compact", no_memory)
    engine._background._index_maintenance.run_once()
    assert engine.index_error == "MemoryError()"
    monkeypatch.undo()
    clock.advance(120_000)
    engine._background._index_maintenance.run_once()
    assert engine.index_error is None
    assert engine.stats()["index_files_waiting"] == 0
    engine.close()
