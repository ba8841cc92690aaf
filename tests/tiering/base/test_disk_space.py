"""A volume's space: what is too much, and when appends are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFullError
from tierlog.tiering.base.write_guard import DiskSpace

ROOT = Path("/store")


class Volume(CrashFileSystem):
    """1,000 bytes, of which a test says how many are used."""

    used = 0

    def free_bytes(self, path: Path) -> int:
        assert path == ROOT
        return 1_000 - self.used

    def total_bytes(self, path: Path) -> int:
        assert path == ROOT
        return 1_000


@pytest.fixture
def volume() -> Volume:
    return Volume()


@pytest.mark.parametrize(("used", "excess"), [(0, 0), (750, 0), (751, 1), (1_000, 250)])
def test_what_is_beyond_the_share_is_too_much(volume: Volume, used: int, excess: int) -> None:
    volume.used = used
    assert DiskSpace(volume, ROOT, ManualClock(), max_used_percent=75).excess_bytes() == excess
    assert DiskSpace(volume, ROOT, ManualClock()).excess_bytes() == 0


def test_appends_are_refused_above_the_limit_and_go_on_when_there_is_room(volume: Volume) -> None:
    clock = ManualClock()
    disk = DiskSpace(volume, ROOT, clock, full_percent=90)
    volume.used = 900
    disk.check_room()
    volume.used = 901
    clock.advance(1_000)
    with pytest.raises(DiskFullError, match="over 90 % full: 901 of 1000 bytes"):
        disk.check_room()
    volume.used = 900
    clock.advance(1_000)
    disk.check_room()


def test_it_is_measured_once_a_second_for_those_who_append(volume: Volume) -> None:
    clock = ManualClock()
    disk = DiskSpace(volume, ROOT, clock, full_percent=90)
    assert disk.full_reason is None
    volume.used = 1_000
    clock.advance(999)
    assert disk.full_reason is None
    clock.advance(1)
    assert disk.full_reason is not None


def test_a_hundred_percent_is_never_exceeded(volume: Volume) -> None:
    volume.used = 1_000
    disk = DiskSpace(volume, ROOT, ManualClock())
    assert (disk.excess_bytes(), disk.full_reason) == (0, None)
    disk.check_room()
