"""Symptom: opening a store read-only while its writer went on said that the log was damaged below its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.message.batch import Message


def test_writer_that_rolls_and_checkpoints_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    writer.append([Message("t", b"first", ["k"])])
    writer.flush()
    load = CommitLog.load

    def load_beside_a_writer(log: CommitLog, published_below: int = 0) -> None:
        load(log, published_below)
        writer._hot.roll()
        writer.append([Message("t", b"second", ["k"])])
        writer.flush()

    monkeypatch.setattr(CommitLog, "load", load_beside_a_writer)
    reader = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock(), read_only=True)
    assert [message.record.body for message in reader.query(Query("t", "k")).messages] == [b"first"]
    assert [message.record.body for message in writer.query(Query("t", "k")).messages] == [b"second", b"first"]
    reader.close()
    writer.close()


def test_segment_that_goes_between_list_and_look_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())
    for number in range(200):
        writer.append([Message("t", b"%d" % number + bytes(900), ["k"], queue_id=0)])
    writer.flush()
    bases = CommitLog.bases

    def bases_beside_a_writer(log: CommitLog) -> list[int]:
        found = bases(log)
        writer._hot.remove_below(writer._hot.log.last_base, forget=writer._index.remove_below)
        return found

    monkeypatch.setattr(CommitLog, "bases", bases_beside_a_writer)
    reader = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock(), read_only=True)
    assert reader.topic("t").queues[0] == writer.topic("t").queues[0]
    assert reader.topic("t").queues[0].min_offset > 0
    reader.close()
    writer.close()
