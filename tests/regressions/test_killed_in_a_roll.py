"""Acknowledged messages were lost: the process was killed in a roll, went on, and later the power went.

The new segment had its name, but nobody had flushed the folder, neither the process that was killed nor the next one.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.power_world import tiny_settings
from tests.support.world import ROOT
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message

BIG = b"x" * 5000


def opened(fs: CrashFileSystem) -> Store:
    return Store.open(ROOT, settings=tiny_settings(8192), clock=ManualClock(), fs=fs)


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
