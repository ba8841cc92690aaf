"""A check beside appends and removal has no findings: queues may be ahead of what it scanned, or on their way out."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.checks import invariants as checks
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.scan import ScanRows
from tierlog.tiering.message.batch import Message


def test_what_is_appended_and_derived_during_a_check_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Store.open(tmp_path, settings=tiny_settings())) as engine:
        scan = checks.segment_rows

        def append(times: int) -> None:
            engine.append([Message("t", b"body", ["key"], queue_id=0)] * times)
            engine.pull("t", 0, 0, 1)  # which derives

        def beside_appends(hot: HotStore, segment: Segment, end: int) -> ScanRows:
            rows = scan(hot, segment, end)
            append(3)
            return rows

        append(5)
        monkeypatch.setattr(checks, "segment_rows", beside_appends)
        assert engine.check() == []
        assert engine.offsets("t", 0) == (0, 8)


def test_what_is_removed_during_a_check_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Store.open(tmp_path, settings=tiny_settings())) as engine:
        hot, scan = engine._hot, checks.segment_rows
        engine.append([Message("t", b"x" * 500, queue_id=0)] * 400)
        border = hot.log.last_base
        removal = threading.Thread(target=hot.remove_below, args=(border,), kwargs={"forget": lambda border: None})
        reader = contextlib.ExitStack()
        reader.enter_context(hot.snapshot())  # which the removal waits for
        removal.start()
        while hot.border < border:
            threading.Event().wait(0.001)

        def beside_removal(hot: HotStore, segment: Segment, end: int) -> ScanRows:
            reader.close()
            removal.join()
            return scan(hot, segment, end)

        monkeypatch.setattr(checks, "segment_rows", beside_removal)
        assert hot.log.begin < border
        assert checks.check_store(hot) == []
        assert hot.log.begin == border
