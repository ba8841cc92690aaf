"""Symptom: one damaged index file stopped archiving and removal for good, until the disk was full."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.query import Query
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.cold.memory import MemoryObjectStore


@pytest.mark.parametrize("state", ["sealed", "compacted"])
def test_damaged_index_file_is_derived_again_from_the_log(state: str, tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())

    def open_engine() -> Engine:
        return Engine.open(
            tmp_path, settings=tiny_settings(), cold_url="memory://d", objects=bucket, clock=ManualClock()
        )

    engine = open_engine()
    for number in range(1_000):
        engine.append([Message("t", b"%04d" % number, [f"k{number}"])])
    engine._hot.dispatch()
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
