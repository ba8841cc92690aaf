"""A pull died with a KeyError when a segment was rolled between its snapshot and its look at the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.hot.consume_queue import QueueView
from tierlog.tiering.message.batch import Message


@pytest.mark.parametrize("offset", [0, 39, 40])
def test_a_pull_ends_where_its_snapshot_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())

    def append(count: int) -> None:
        engine.append([Message("t", bytes(300), queue_id=0) for _ in range(count)])

    append(40)
    hot, view = engine._hot, engine._hot.queues.view

    def view_after_a_roll(topic_id: int, queue_id: int) -> QueueView | None:
        monkeypatch.undo()
        append(4)
        hot.roll()
        append(4)
        hot.dispatch()
        return view(topic_id, queue_id)

    monkeypatch.setattr(hot.queues, "view", view_after_a_roll)
    found = engine.pull("t", 0, offset, 100)
    assert (len(found.messages), found.next_offset, found.max_offset) == (40 - offset, 40, 40)
    assert found.status is (PullStatus.FOUND if offset < 40 else PullStatus.NO_NEW_MESSAGE)
    assert len(engine.pull("t", 0, offset, 100).messages) == 48 - offset
    engine.close()
