"""What opening costs grows with the log since the last checkpoint, not with the store: bytes scanned, not time."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import ROOT, HotWorld, fill
from tests.support.stores.scanned_bytes import counting_scans
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.message.batch import Message

SEGMENTS = (1, 4, 16)
RECORD_BYTES, RECORDS_A_SEGMENT, TAIL = 200, 20, 8


def scanned_after_a_kill(segments: int, since_checkpoint: int) -> int:
    """Bytes of log that recovery scans of a store of so many segments, its last records not in the checkpoint."""
    world = HotWorld()
    hot = world.open()
    fill(hot, "a", (segments - 1) * RECORDS_A_SEGMENT + 10, size=RECORD_BYTES)
    hot.dispatch()
    hot.checkpoint()
    fill(hot, "a", since_checkpoint, size=RECORD_BYTES)
    hot.dispatch()
    assert isinstance(world.fs, CrashFileSystem)
    world.fs = world.fs.crash(0, lose_everything=True)
    assert hot.log.last_base == (segments - 1) * 4096
    with counting_scans() as scans:
        again = world.open()
    assert again.log.end == hot.log.end
    return scans.bytes


@pytest.mark.parametrize("segments", SEGMENTS)
def test_recovery_of_log_and_queues_scans_what_came_after_the_checkpoint(segments: int) -> None:
    assert scanned_after_a_kill(segments, TAIL) == TAIL * RECORD_BYTES


@pytest.mark.parametrize("segments", SEGMENTS)
def test_a_clean_stop_leaves_nothing_to_scan(segments: int) -> None:
    world = HotWorld()
    hot = world.open()
    fill(hot, "a", (segments - 1) * RECORDS_A_SEGMENT + 10, size=RECORD_BYTES)
    hot.close()
    with counting_scans() as scans:
        world.open()
    assert scans.bytes == 0


def opened(fs: CrashFileSystem) -> Store:
    settings = Settings(
        hot=HotSettings(segment_bytes=4096, queue_file_units=60), index=IndexSettings(slots=10, items=41),
        advertise="10.0.0.1:1",
    )  # fmt: skip
    return Store.open(ROOT, settings=settings, fs=fs, clock=ManualClock(), randomness=SeededRandomness(1))


def scanned_by_an_engine(segments: int, *, keyed: bool) -> tuple[int, int]:
    """Bytes scanned when a killed store with an index is opened, and bytes of its whole log."""
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    engine = opened(fs)
    while engine._hot.log.end < (segments - 1) * 4096 + 2000:
        engine.append([Message("a", b"x" * 90, ["k"] if keyed else [], queue_id=0)])
    engine.flush()
    engine.append([Message("a", b"x" * 90, ["k"] if keyed else [], queue_id=0) for _ in range(TAIL)])
    end = engine._hot.log.end
    fs.kill()
    with counting_scans() as scans:
        again = opened(fs)
    assert again._hot.log.end == end
    return scans.bytes, end


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_the_key_index_goes_on_from_its_checkpoint(segments: int, keyed: bool) -> None:
    scanned, end = scanned_by_an_engine(segments, keyed=keyed)
    assert 0 < scanned < (TAIL + 1) * 210 < end


def test_power_cut_at_every_call_of_a_checkpoint_costs_no_more_than_what_came_after_the_one_before() -> None:
    world = HotWorld()
    hot = world.open()
    fill(hot, "a", 3 * RECORDS_A_SEGMENT + 10, size=RECORD_BYTES)
    hot.dispatch()
    hot.checkpoint()
    fill(hot, "a", TAIL, size=RECORD_BYTES)
    hot.dispatch()
    assert isinstance(world.fs, CrashFileSystem)
    wrecks: list[CrashFileSystem] = []
    fs = world.fs
    fs.on_call = lambda number, operation, path: wrecks.extend(
        fs.crash(number, lose_everything=lose) for lose in (True, False)
    )
    hot.checkpoint()
    assert len(wrecks) > 10
    for wreck in wrecks:
        with counting_scans() as scans:
            world.open(fs=wreck)
        assert scans.bytes in (0, TAIL * RECORD_BYTES)
