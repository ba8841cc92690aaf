"""What readers see: what is flushed, or with ``written`` all that is in the log, and what a power cut makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tierlog.index.search.query import Query
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Durability, PullStatus, Visibility
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.message.batch import Message

ROOT = Path("/store")


def opened(fs: CrashFileSystem, visibility: Visibility) -> Store:
    """A store without background: nothing is flushed unless somebody asks for it."""
    settings = Settings(
        advertise="10.0.0.1:7777",
        hot=HotSettings(segment_bytes=8192, queue_file_units=60, default_queues=1, visibility=visibility.value),
        index=IndexSettings(slots=25, items=90, classic=True, classic_slots=20, classic_items=40),
    )
    return Store.open(ROOT, settings=settings, fs=fs, clock=ManualClock())


def append(engine: Store, *bodies: str) -> None:
    engine.append([Message("orders", body.encode(), [f"key-{body}"]) for body in bodies], Durability.ASYNC)


def bodies(engine: Store) -> list[str]:
    return [message.record.body.decode() for message in engine.pull("orders", 0, 0, 100).messages]


def found(engine: Store, key: str) -> list[str]:
    answer = engine.query(Query("orders", key, limit=100))
    assert answer.coverage.complete
    return [message.record.body.decode() for message in answer.messages]


@pytest.fixture
def fs() -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    return fs


def test_readers_see_what_is_flushed_and_no_more(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.FLUSHED)
    append(engine, "a")
    assert engine.pull("orders", 0, 0, 100).status is PullStatus.NO_NEW_MESSAGE
    engine.flush()
    assert bodies(engine) == found(engine, "key-a") == ["a"]


def test_written_shows_a_message_before_it_is_flushed(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, "a")
    assert bodies(engine) == found(engine, "key-a") == ["a"]
    assert engine._hot.log.flushed < engine._hot.log.end


def test_written_recovery_points_speak_of_nothing_that_a_power_cut_takes_back(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, "a")
    engine._hot.dispatch()
    engine._hot.checkpoint()
    assert Checkpoint.decode(fs.read(ROOT / "checkpoint")).confirm_offset == engine._hot.log.flushed > 0
    append(engine, "b")
    engine._hot.dispatch()
    engine._index.checkpoint()
    assert engine._index.next_offset() == engine._hot.log.flushed == engine._hot.log.end


def test_written_offsets_that_a_power_cut_gave_back_lead_to_their_new_messages_only(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, "a")
    engine.flush()
    append(engine, "lost-1", "lost-2")
    assert bodies(engine) == ["a", "lost-1", "lost-2"]
    again = opened(fs.crash(1, lose_everything=True), Visibility.WRITTEN)
    assert bodies(again) == ["a"]
    append(again, "new")
    assert bodies(again) == ["a", "new"]
    assert found(again, "key-new") == ["new"]
    assert found(again, "key-lost-1") == found(again, "key-lost-2") == []
    assert again.check() == []


def test_written_commit_of_a_group_makes_durable_what_it_is_about(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, "a", "b")
    own = engine.store_id
    engine.groups.commit("billing", {("orders", own, 0): len(bodies(engine))})
    again = opened(fs.crash(1, lose_everything=True), Visibility.WRITTEN)
    assert bodies(again) == ["a", "b"]
    assert again.groups.committed("billing").offsets == {("orders", own, 0): 2}


def test_written_classic_index_knows_no_record_that_a_power_cut_takes_back(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    engine.append([Message("orders", b"full", [f"a{number}" for number in range(37)])])
    engine.append([Message("orders", b"cut", [f"b{number}" for number in range(6)])], Durability.ASYNC)
    engine._hot.dispatch()  # the second one's first keys are the last that the file has room for
    again = opened(fs.crash(1, lose_everything=True), Visibility.WRITTEN)
    assert again._classic is not None
    keys = [f"c{number}" for number in range(6)]
    physical_offset = again._hot.log.end
    again.append([Message("orders", b"new", keys)])
    again._hot.dispatch()
    for key in keys:
        assert again._classic.query("orders", key, 64, 0, 1 << 60).offsets == [physical_offset]
    assert again.check() == []


def test_written_archive_holds_flushed_bytes_only(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, *(f"{number:04}" for number in range(100)))
    log = engine._hot.log
    assert log.last_base > 0
    assert log.last_base <= log.flushed < log.end
    assert engine._hot.dispatch() == log.end
    again = opened(fs.crash(1, lose_everything=True), Visibility.WRITTEN)
    assert again._hot.log.end >= log.last_base


def test_a_store_goes_back_to_flushed(fs: CrashFileSystem) -> None:
    engine = opened(fs, Visibility.WRITTEN)
    append(engine, "a")
    engine.close()
    again = opened(fs, Visibility.FLUSHED)
    append(again, "b")
    assert bodies(again) == ["a"]
