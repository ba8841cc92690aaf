"""Symptom: while a dropped index file was derived again, key queries missed its messages and said ``complete``."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hold import Hold
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


def test_query_says_what_the_index_lacks_until_it_is_derived_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryObjectStore(ManualClock())

    def open_engine() -> Store:
        return Store.open(
            tmp_path, settings=tiny_settings(), cold_url="memory://d", objects=bucket, clock=ManualClock()
        )

    engine = open_engine()
    engine.append([Message("t", b"%04d" % number, [f"k{number}"]) for number in range(1_000)])
    engine._hot.dispatch()
    engine._index.seal_full()
    engine.close()
    damaged = sorted((tmp_path / "index" / "sealed").iterdir())[0]
    content = bytearray(damaged.read_bytes())
    content[-400] ^= 1
    damaged.write_bytes(content)
    engine = open_engine()
    hold, derive = Hold(), engine._hot.derive

    def held_derive(*stretch: object) -> None:
        hold.stop_here()
        derive(*stretch)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._hot, "derive", held_derive)
    thread = threading.Thread(target=lambda: engine.archive(everything=True))
    thread.start()
    hold.wait_until_reached()
    lacking = 0
    for number in range(1_000):
        answer = engine.query(Query("t", f"k{number}"))
        assert not answer.coverage.complete
        assert "derived again" in answer.coverage.failures[0].error
        lacking += not answer.messages
    assert lacking  # what the dropped file had
    hold.release()
    thread.join()
    for number in range(0, 1_000, 7):
        answer = engine.query(Query("t", f"k{number}"))
        assert answer.coverage.complete
        assert len(answer.messages) == 1
    engine.close()
