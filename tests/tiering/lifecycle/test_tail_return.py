"""A volume that has lost flushed bytes: tails give them back, and nothing else ever takes their places."""

from __future__ import annotations

import random

import pytest

from tests.support.stores.power_world import everything, tiny_settings
from tests.support.world import ROOT, World
from tierlog.tiering.base.errors import ReadOnlyError
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.types import Durability
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.message.batch import Message

PATHS = StorePaths(ROOT)


class Volume(World):
    """A store whose disk can be damaged behind its back."""

    def __init__(self) -> None:
        super().__init__(settings=tiny_settings(), store_id="s")
        self.fs.make_dirs(ROOT.parent)
        self.open()

    def send(self, first: int, end: int, durability: Durability = Durability.ARCHIVED) -> None:
        for number in range(first, end):
            body = b"%d " % number + random.Random(number).randbytes(150)
            self.engine.append([Message("orders", body, ["k"], queue_id=0)], durability)

    def lose(self, position: int, length: int, base: int = 0) -> None:
        """A power cut, at which the disk forgets flushed bytes."""
        self.cut_power(1, lose_everything=True)
        file = self.fs.open(PATHS.segment(base))
        file.write_at(position - base, bytes(length))
        file.flush()
        file.close()

    def numbers(self) -> list[int]:
        """What pulls give, offsets consecutive."""
        found = everything(self.engine)
        return [int(found[place].record.body.split()[0]) for place in sorted(found)]

    def end(self) -> int:
        return self.engine._hot.log.end


def test_what_the_disk_forgot_comes_back_under_its_old_offsets() -> None:
    volume = Volume()
    volume.send(0, 10)
    end = volume.end()
    volume.lose(end - 700, 700)
    volume.engine = volume.open()
    assert volume.end() == end
    assert volume.numbers() == [*range(10)]
    volume.send(10, 12)
    assert volume.numbers() == [*range(12)]
    assert volume.engine.check(deep=True) == []


def test_a_damaged_record_in_the_middle_is_mended() -> None:
    volume = Volume()
    volume.send(0, 10)
    end = volume.end()
    volume.lose(400, 20)
    volume.engine = volume.open()
    assert (volume.end(), volume.numbers()) == (end, [*range(10)])


def test_segments_that_follow_come_back_too() -> None:
    volume = Volume()
    volume.send(0, 60)
    end = volume.end()
    assert end > 8192
    volume.lose(8192 - 900, 900)
    volume.fs.unlink(PATHS.segment(8192))
    volume.engine = volume.open()
    assert (volume.end(), volume.numbers()) == (end, [*range(60)])
    volume.send(60, 62)
    assert volume.engine.check(deep=True) == []


def test_a_dead_bucket_makes_the_volume_refuse_appends_until_it_was_asked() -> None:
    volume = Volume()
    volume.send(0, 10)
    end = volume.end()
    volume.lose(end - 700, 700)
    volume.bucket.die()
    volume.engine = volume.open()
    assert "may be in the bucket" in str(volume.engine.read_only_reason)
    with pytest.raises(ReadOnlyError):
        volume.send(10, 11, Durability.FLUSHED)
    volume.engine.close()
    volume.bucket.revive()
    volume.engine = volume.open()
    assert (volume.end(), volume.numbers()) == (end, [*range(10)])


def test_a_bucket_that_dies_in_the_middle_of_it_is_the_same() -> None:
    volume = Volume()
    volume.send(0, 10)
    end = volume.end()
    volume.lose(end - 700, 700)
    volume.bucket.fail_before("get", "s/tail/*", times=None)
    volume.engine = volume.open()
    assert volume.engine.read_only_reason is not None
    volume.engine.close()
    volume.bucket.heal()
    volume.engine = volume.open()
    assert (volume.end(), volume.numbers()) == (end, [*range(10)])


def test_places_of_a_tail_that_never_arrived_are_not_given_out_again() -> None:
    volume = Volume()
    volume.send(0, 5)
    end = volume.end()
    volume.bucket.fail_before("put", "s/tail/*", times=None)
    with pytest.raises(Exception, match="did not take"):
        volume.send(5, 6)
    volume.bucket.heal()
    assert TailMark(volume.fs, PATHS).end > end
    volume.lose(end, 300)
    volume.engine = volume.open()
    assert volume.numbers() == [*range(5)]
    assert volume.end() == 8192
    volume.send(6, 8)
    assert volume.numbers() == [0, 1, 2, 3, 4, 6, 7]
    assert volume.engine.check(deep=True) == []


def test_an_old_copy_of_the_volume_gets_what_was_archived_since() -> None:
    volume = Volume()
    volume.send(0, 5)
    copy = volume.fs.crash(1, lose_everything=False)
    volume.send(5, 10)
    end = volume.end()
    volume.fs = copy  # the volume is gone, and a snapshot of it is mounted
    volume.engine = volume.open()
    assert (volume.end(), volume.numbers()) == (end, [*range(10)])
    volume.send(10, 12)
    assert volume.numbers() == [*range(12)]
    assert volume.engine.check(deep=True) == []


def test_a_volume_that_lost_nothing_asks_for_one_name() -> None:
    volume = Volume()
    volume.send(0, 10)
    volume.engine.close()
    before = len(volume.bucket.calls)
    volume.engine = volume.open()
    tails = [call for call in volume.bucket.calls[before:] if "/tail/" in call.key]
    # the last tail is found again, because its answer came after the mark was written
    assert len(tails) <= 3
    assert TailObjects(volume.bucket, ColdKeys("s")).describe(volume.end()) is None
