"""Symptom: one damaged index file stopped archiving and removal for good, until the disk was full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError, DiskFullError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.hot.dispatch import LogSubscriber
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


@pytest.mark.parametrize("state", [pytest.param("sealed", marks=pytest.mark.slow), "compacted"])
def test_damaged_index_file_is_derived_again_from_the_log(state: str, tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())

    def open_engine() -> Store:
        return Store.open(
            tmp_path, settings=tiny_settings(), cold_url="memory://d", objects=bucket, clock=ManualClock()
        )

    engine = open_engine()
    for number in range(1_000):
        engine.append([Message("t", b"%04d" % number, [f"k{number}"])])
    engine._hot.dispatch()
    engine._index.seal_full()
    if state == "compacted":
        engine._index.compact_sealed()
    engine.close()
    damaged = sorted((tmp_path / "index" / state).iterdir())[0]
    content = bytearray(damaged.read_bytes())
    content[-400] ^= 1  # in the items; the trailer, which opening reads, is whole
    damaged.write_bytes(content)
    engine = open_engine()
    try:
        report = engine.archive(everything=True, drop_hot=True)
        assert report.indexed_to == report.archived_to == report.border
        for number in range(1_000):
            assert len(engine.query(Query("t", f"k{number}")).messages) == 1
        assert engine.check(deep=True) == []
    finally:
        engine.close()


def damaged_engine(root: Path) -> tuple[Store, FaultyFileSystem]:
    """A store that has claimed its bucket and meets a damaged index file in its next round."""
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(
        root, settings=tiny_settings(), cold_url="memory://d", objects=MemoryObjectStore(ManualClock()),
        clock=ManualClock(), fs=fs,
    )  # fmt: skip
    engine.archive()  # claims the bucket
    engine.append([Message("t", b"%04d" % number, [f"k{number}"]) for number in range(1_000)])
    engine._hot.dispatch()
    engine._index.seal_full()
    with sorted((root / "index" / "sealed").iterdir())[0].open("r+b") as damaged:
        damaged.seek(-400, os.SEEK_END)
        damaged.write(b"\xff")
    return engine, fs


def test_gap_that_could_not_be_derived_at_once_is_derived_later(tmp_path: Path) -> None:
    """Symptom: the disk was full while a damaged file was derived again; its messages were missed until a restart."""
    engine, fs = damaged_engine(tmp_path)
    fs.refuse("create", "*/index/writing/*", error=DiskFullError("no space left"), times=1)
    with pytest.raises(DiskFullError):
        engine.run_tiers()
    engine.run_tiers()
    for number in range(1_000):
        answer = engine.query(Query("t", f"k{number}"))
        assert answer.coverage.complete
        assert len(answer.messages) == 1
    assert engine.archive(everything=True).indexed_to == engine._hot.log.last_base
    engine.close()


def test_derivation_that_fails_half_way_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = damaged_engine(tmp_path)
    derive = engine._hot.derive

    def half(subscriber: LogSubscriber, first: int, end: int) -> None:
        data = engine._hot.log.segment_of(first).data
        second = first + int.from_bytes(bytes(data[first : first + 4]))  # a record begins with its length
        derive(subscriber, first, second)
        raise CorruptionError("the log is damaged")

    monkeypatch.setattr(engine._hot, "derive", half)
    for _ in range(3):
        with pytest.raises(CorruptionError):
            engine.run_tiers()
    assert len(list((tmp_path / "index" / "writing").iterdir())) == 1  # that of the log's end
    monkeypatch.undo()
    engine.run_tiers()
    assert engine.check() == []
    engine.close()


@pytest.mark.parametrize("position", [0, 28])
def test_damage_before_a_file_was_sealed_is_derived_again_though_its_checksum_agrees(
    tmp_path: Path, position: int
) -> None:
    """Symptom: the file was read whole, found to be sound and kept, again and again; nothing after it was compacted."""
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    engine.append([Message("t", b"%04d" % number, [f"k{number}"]) for number in range(1_000)])
    engine.flush()
    full = engine.files()
    file = engine._index.snapshot().writing[0]
    assert file.next is not None
    file.reader.data[position : position + 4] = 0x11  # the magic, or the newest item of a slot
    engine._background._index_maintenance.run_once()
    assert engine.index_error is None
    assert [file.state for file in engine.files() if file.kind == "index"] == ["compacted", "compacted", "writing"]
    assert len(engine.files()) == len(full)
    for number in range(1_000):
        assert len(engine.query(Query("t", f"k{number}")).messages) == 1
    assert engine.check() == []
    engine.close()


def test_a_compaction_that_fails_whatever_is_derived_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: the index said that all was well, and was derived again at every turn without a pause."""
    clock = ManualClock()
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=clock)
    engine.append([Message("t", b"%04d" % number, [f"k{number}"]) for number in range(1_000)])
    engine.flush()
    monkeypatch.setattr("tierlog.index.local.compaction.compare_slots", lambda *given, **named: -1)
    engine._background._index_maintenance.run_once()
    assert engine.index_error is not None
    assert "compaction and its source differ" in engine.index_error
    assert engine.stats()["index_files_waiting"] == 2
    monkeypatch.undo()
    clock.advance(120_000)
    engine._background._index_maintenance.run_once()
    assert engine.index_error is None
    assert engine.stats()["index_files_waiting"] == 0
    engine.close()
