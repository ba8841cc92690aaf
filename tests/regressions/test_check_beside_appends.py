"""A check that runs while messages are appended has no findings: the queues are ahead of what it has scanned."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.checks import store as checks
from tiering.hot.commit_log import Segment
from tiering.hot.store import HotStore
from tiering.kernels.scan import ScanRows


def test_what_is_appended_and_derived_during_a_check_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Engine.open(tmp_path, settings=tiny_settings())) as engine:
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
