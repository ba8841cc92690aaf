"""Symptom: opening a store read-only while its writer went on said that the log was damaged below its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.query import Query
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.hot.commit_log import CommitLog


def test_writer_that_rolls_and_checkpoints_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Engine.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    writer.append([Message("t", b"first", ["k"])])
    writer.flush()
    load = CommitLog.load

    def load_beside_a_writer(log: CommitLog, published_below: int = 0) -> None:
        load(log, published_below)
        writer._hot.roll()
        writer.append([Message("t", b"second", ["k"])])
        writer.flush()

    monkeypatch.setattr(CommitLog, "load", load_beside_a_writer)
    reader = Engine.open(tmp_path, settings=tiny_settings(), clock=ManualClock(), read_only=True)
    assert [message.record.body for message in reader.query(Query("t", "k")).messages] == [b"first"]
    assert [message.record.body for message in writer.query(Query("t", "k")).messages] == [b"second", b"first"]
    reader.close()
    writer.close()
