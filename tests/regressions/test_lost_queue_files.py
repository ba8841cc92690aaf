"""Symptom: after queue files were lost, offsets began again at the floor and were given out twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


@pytest.mark.parametrize("lost", ["", "t", "t/1"], ids=["all topics", "one topic", "one queue"])
@pytest.mark.parametrize("archived", [False, True])
def test_lost_queue_files_are_derived_again_and_no_offset_is_given_twice(
    lost: str, archived: bool, tmp_path: Path
) -> None:
    objects = MemoryObjectStore(ManualClock())

    def open_engine() -> Store:
        return Store.open(tmp_path, settings=tiny_settings(), cold_url="memory://lost", objects=objects)

    engine = open_engine()
    for number in range(400):
        engine.append([Message("t", b"%04d" % number + bytes(500))])
    if archived:
        engine.archive(everything=True, drop_hot=True)
        for number in range(400, 500):
            engine.append([Message("t", b"%04d" % number + bytes(500))])
    before = [(queue.queue_id, queue.max_offset) for queue in engine.topic("t").queues]
    engine.close()
    shutil.rmtree(tmp_path / "consumequeue" / lost)
    engine = open_engine()
    try:
        assert [(queue.queue_id, queue.max_offset) for queue in engine.topic("t").queues] == before
        assert engine.check() == []
        for queue_id, next_offset in before:
            assert engine.append([Message("t", b"x", queue_id=queue_id)])[0].queue_offset == next_offset
        assert engine.check() == []
    finally:
        engine.close()
