"""Acknowledged messages were lost: the process was killed in a roll, went on, and later the power went.

The new segment had its name, but nobody had flushed the folder, neither the process that was killed nor the next one.
"""

from __future__ import annotations

import contextlib

import pytest

from service.engine import Engine
from tests.support.crash_fs import CrashFileSystem, PowerCut
from tests.support.power_world import ROOT, tiny_settings
from tiering.batch import Message
from tiering.clock import ManualClock

BIG = b"x" * 5000


def opened(fs: CrashFileSystem) -> Engine:
    return Engine.open(ROOT, settings=tiny_settings(8192), clock=ManualClock(), fs=fs)


@pytest.mark.parametrize("calls", range(1, 14))
def test_what_is_appended_after_a_kill_survives_a_power_cut(calls: int) -> None:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    engine = opened(fs)
    engine.append([Message("t", BIG)])
    fs.cut_at = fs.calls + calls
    with contextlib.suppress(PowerCut):
        engine.append([Message("t", BIG)])  # rolls
    fs = fs.after_kill()
    engine = opened(fs)
    (result,) = engine.append([Message("t", b"after the kill")])
    engine = opened(fs.crash(0, lose_everything=True))
    assert engine.message(result.message_id).record.body == b"after the kill"
    engine.close()
