"""Symptom: an append that died of MemoryError left a hole in the queue offsets, and the store never opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ReadOnlyError
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.message.batch import Message


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_append_that_dies_of_anything_stops_the_store_and_the_next_open_goes_on(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Store.open(tmp_path, settings=tiny_settings())
    engine.append([Message("t", b"one", queue_id=0)])
    with monkeypatch.context() as patch:

        def fail(self: CommitLog, data: object) -> None:
            raise error

        patch.setattr(CommitLog, "write", fail)
        with pytest.raises(error):
            engine.append([Message("t", b"two", queue_id=0)])
    with pytest.raises(ReadOnlyError):
        engine.append([Message("t", b"three", queue_id=0)])
    assert engine.read_only_reason is not None
    engine.close()
    engine = Store.open(tmp_path, settings=tiny_settings())
    try:
        assert engine.append([Message("t", b"four", queue_id=0)])[0].queue_offset == 1
        assert engine.check() == []
    finally:
        engine.close()
