"""The commit log's files: RocketMQ's rule for the end of a segment, blank records, holes, recovery of the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import HotWorld, append, array, fill, queue_offsets, sized_body, snapshot_of
from tierlog.tiering.base.errors import ClosedError, CorruptionError, DiskFailedError, StoreMismatchError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot import commit_log
from tierlog.tiering.message.batch import Message


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


def segment(world: HotWorld, base: int) -> bytes:
    return world.fs.read(world.paths.segment(base))


def test_a_record_may_end_eight_bytes_before_the_end(world: HotWorld) -> None:
    """Formats 1.10: records of 168 bytes fill 4096 but for 64; the last one is made to end at 4088."""
    hot = world.open()
    offsets = [int(append(hot, Message("a", sized_body(168, "a"))).physical_offset[0]) for _ in range(24)]
    assert offsets == list(range(0, 24 * 168, 168))
    hot = world.open_again(hot)
    hot.roll()
    assert hot.log.last_base == 4096
    last = sized_body(4096 - 8 - 22 * 168, "a")
    for _ in range(22):
        append(hot, Message("a", sized_body(168, "a")))
    assert append(hot, Message("a", last)).physical_offset.tolist() == [4096 + 22 * 168]
    assert hot.log.end == 8192 - 8
    assert hot.log.room() == 0
    assert append(hot, Message("a", b"next")).physical_offset.tolist() == [8192]
    assert segment(world, 4096)[-8:].hex() == "00000008cbd43194"


def test_one_byte_more_rolls(world: HotWorld) -> None:
    hot = world.open()
    for _ in range(22):
        append(hot, Message("a", sized_body(168, "a")))
    longer = sized_body(4096 - 8 - 22 * 168 + 1, "a")
    assert append(hot, Message("a", longer)).physical_offset.tolist() == [4096]
    assert segment(world, 0)[22 * 168 :][:8].hex() == f"{4096 - 22 * 168:08x}cbd43194"


def test_blank_record_by_command_and_zeros_behind_it(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 2)
    hot.roll()
    data = segment(world, 0)
    assert data[400:408].hex() == f"{4096 - 400:08x}cbd43194"
    assert data[408:] == bytes(4096 - 408)
    assert hot.log.end == hot.log.flushed == hot.log.last_base == 4096
    hot.roll()
    assert hot.log.last_base == 4096, "an empty segment is not rolled"
    fill(hot, "a", 1)
    assert queue_offsets(hot, "a") == [0, 1, 2]


def test_stale_bytes_in_the_last_page_do_not_matter(world: HotWorld) -> None:
    """The hole begins at a page; what lies between the blank record and it is undefined."""
    world.segment_bytes = 16384
    hot = world.open()
    fill(hot, "a", 3)
    hot.roll()
    assert segment(world, 0)[608:] == bytes(16384 - 608)
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == [0, 1, 2]


def test_blank_at_the_very_end_of_a_full_segment(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", sized_body(4096 - 8, "a")))
    append(hot, Message("a", sized_body(4096 - 8, "a")))
    assert segment(world, 0)[-8:].hex() == "00000008cbd43194"
    hot = world.open_again(hot)
    assert hot.log.end == 8192 - 8
    assert hot.log.bases() == [0, 4096]
    fill(hot, "a", 1)
    assert check_store(hot) == []


def test_files_are_made_whole_and_named_for_their_offset(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 30)
    assert world.fs.list_dir(world.paths.commitlog) == ["0" * 20, "0" * 16 + "4096"]
    assert [world.fs.size(world.paths.segment(base)) for base in (0, 4096)] == [4096, 4096]
    assert world.fs.list_dir(world.paths.tmp) == []
    assert [each.base_offset for each in hot.log.segments()] == [0, 4096]
    assert hot.log.segment_of(5000).end == 8192
    with pytest.raises(KeyError):
        hot.log.segment_of(8192)


def test_offsets_outside_the_log_lead_nowhere(world: HotWorld) -> None:
    """RocketMQ's testFindMappedFileByOffset_StartOffsetIsNonZero."""
    hot = world.open()
    fill(hot, "a", 50)
    hot.dispatch()
    hot.remove_below(4096, forget=lambda _: None)
    for log in (hot.log, world.open_again(hot).log):
        assert log.begin == 4096
        assert [log.segment_of(offset).base_offset for offset in (4096, 4097, 8191, 8192)] == [4096] * 3 + [8192]
        for outside in (0, 123, 4095, 12288):
            with pytest.raises(KeyError):
                log.segment_of(outside)


def test_records_lie_where_they_say(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 50, size=150)
    for base in hot.log.bases():
        data, position = segment(world, base), 0
        while data[position + 4 : position + 8].hex() == "daa320a7":
            found = decode_record(data, position, physical_offset=base + position)
            position += found.size


def test_truncation_leaves_zeros(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 5)
    append(hot, *[Message("a", sized_body(200, "a"))] * 5, durability=Durability.ASYNC)
    file = world.fs.open(world.paths.segment(0))
    file.write_at(5 * 200 + 4, bytes(4))
    file.close()
    assert any(segment(world, 0)[1400:])
    hot = world.open()
    assert hot.log.end == hot.log.flushed == 1000
    assert segment(world, 0)[1000:] == bytes(3096)


def test_damage_before_a_segment_with_records_is_no_torn_tail_and_cuts_nothing_off(world: HotWorld) -> None:
    """A segment is flushed before the next gets its first byte: what follows was acknowledged."""
    hot = world.open()
    fill(hot, "a", 20)
    append(hot, *[Message("a", sized_body(200, "a"))] * 60, durability=Durability.ASYNC)
    file = world.fs.open(world.paths.segment(4096))
    file.write_at(400, bytes(300))
    file.close()
    assert hot.log.bases() == [0, 4096, 8192, 12288]
    before = snapshot_of(world.fs, world.paths.commitlog)
    with pytest.raises(CorruptionError, match="goes on behind the damage"):
        world.open()
    assert snapshot_of(world.fs, world.paths.commitlog) == before


def test_log_that_ends_below_what_is_archived_is_refused_and_nothing_is_cut_off(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 3)
    before = snapshot_of(world.fs, world.paths.commitlog)
    with pytest.raises(StoreMismatchError, match="below 8192, up to which it was archived"):
        world.open(published_below=8192)
    assert snapshot_of(world.fs, world.paths.commitlog) == before


def test_an_empty_last_segment_is_legal(world: HotWorld) -> None:
    """RocketMQ allocates one ahead; so does a roll that was cut off."""
    hot = world.open()
    fill(hot, "a", 3)
    hot.close()
    world.fs.create(world.paths.segment(4096), 4096, prewrite=True)
    hot = world.open()
    assert (hot.log.end, hot.log.bases()) == (600, [0])
    fill(hot, "a", 1)
    assert queue_offsets(hot, "a") == [0, 1, 2, 3]


def test_power_cut_at_every_call_of_a_roll(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 3)
    hot.dispatch()
    wrecks: list[CrashFileSystem] = []
    fs = world.fs
    assert isinstance(fs, CrashFileSystem)
    fs.on_call = lambda number, operation, path: wrecks.extend(fs.crash(seed + number) for seed in (0, 1000, 2000))
    fill(hot, "a", 1)
    hot.roll()
    fs.on_call = None
    assert len(wrecks) > 20
    for wreck in wrecks:
        again = HotWorld(fs=wreck).open()
        kept = queue_offsets(again, "a")
        assert kept == list(range(len(kept)))
        assert len(kept) >= 3
        fill(again, "a", 1)
        assert check_store(again) == []


def test_flush_says_how_far(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", b"x"), durability=Durability.ASYNC)
    end = hot.log.end
    assert hot.log.flushed == 0
    assert hot.flush() == end
    assert hot.flush() == end
    assert array(segment(world, 0)).any()


@pytest.fixture
def small_zeros(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Bounds of the zeros ahead for segments of a few hundred KiB, and pieces of zeros that fit them."""
    bounds = 4096, 64 << 10
    monkeypatch.setattr(commit_log, "ZEROS_AHEAD", bounds)
    monkeypatch.setattr(commit_log, "_ZEROS", bytes(4096))
    return bounds


def hole(world: HotWorld, base: int = 0) -> int:
    file = world.fs.open(world.paths.segment(base))
    found = file.first_hole(0)
    file.close()
    return found


def test_a_log_takes_no_more_than_it_holds_again_and_keeps_zeros_ahead_of_its_end(
    small_zeros: tuple[int, int],
) -> None:
    least, most = small_zeros
    world = HotWorld(segment_bytes=512 << 10)
    hot = world.open()
    assert hole(world) == 0, "a new log opens at once: nothing was written"
    prepared_at = None
    while not hot.log.last_base:
        position = hot.log.end
        prepared = hot.prepare_segment()
        ahead = hole(world) - position
        assert ahead >= min(max(position, least), most) // 2 or hole(world) == 512 << 10
        assert ahead <= max(position, least) + 4096
        assert world.fs.size(world.paths.segment(0)) == 512 << 10, "RocketMQ finds the whole file"
        if prepared and prepared_at is None:
            prepared_at = position
        fill(hot, "a", 10)
    assert prepared_at is not None
    assert 256 << 10 <= prepared_at < 260 << 10, "the next segment is made when this one is half full"
    assert hole(world, 512 << 10) == 512 << 10, "and has all its zeros"
    assert check_store(world.open_again(hot)) == []


def test_a_segment_that_is_rolled_while_it_is_small_is_followed_by_a_small_one(small_zeros: tuple[int, int]) -> None:
    world = HotWorld(segment_bytes=512 << 10)
    hot = world.open()
    fill(hot, "a", 3)
    hot.roll()
    assert hole(world, 512 << 10) == small_zeros[0]


def test_who_needs_the_next_segment_does_not_wait_for_all_its_zeros(small_zeros: tuple[int, int]) -> None:
    world = HotWorld(segment_bytes=512 << 10)
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    while not hot.log.wants_next:
        fill(hot, "a", 100)
    hold = fs.hold("write_at", "*/tmp/*")
    preparing = threading.Thread(target=hot.prepare_segment)
    preparing.start()
    hold.wait_until_reached()
    waiting = threading.Thread(target=hot.log.reserve, args=(1,))
    waiting.start()
    while not hot.log._is_awaited:
        time.sleep(0.001)
    hold.release()
    waiting.join(10)
    preparing.join(10)
    assert hole(world, 512 << 10) == small_zeros[0] + 4096, "the piece that was under way, and no other"
    hot.roll()
    hot.prepare_segment()
    fill(hot, "a", 10)
    assert check_store(hot) == []


@pytest.mark.usefixtures("small_zeros")
def test_a_log_that_outruns_its_zeros_goes_on_in_the_hole_and_over_several_segments() -> None:
    world = HotWorld(segment_bytes=64 << 10)
    hot = world.open()
    append(hot, *[Message("a", sized_body(400, "a"), queue_id=0)] * 600)
    assert hot.log.last_base == 3 * (64 << 10)
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == list(range(600))
    assert check_store(hot) == []


@pytest.mark.usefixtures("small_zeros")
def test_zeros_ahead_leave_the_last_room_of_a_disk_to_others() -> None:
    world = HotWorld(segment_bytes=512 << 10)
    hot = world.open()
    world.fs.free_bytes = lambda path: 8191  # type: ignore[method-assign]
    assert not hot.log.write_zeros(hot.between_appends)
    assert not hot.prepare_segment()
    assert hole(world) == 0
    fill(hot, "a", 30)
    world.fs.free_bytes = lambda path: 1 << 30  # type: ignore[method-assign]
    hot.prepare_segment()
    assert hole(world) > hot.log.end


def test_a_disk_without_room_for_zeros_is_not_asked_at_every_append(small_zeros: tuple[int, int]) -> None:
    world = HotWorld(segment_bytes=512 << 10)
    fs = AlmostFull(world.fs)
    hot = world.open(fs=fs)
    wanted = 0
    while hot.log.end < 8 * small_zeros[0]:
        fill(hot, "a", 1)
        if hot.log.wants_zeros:  # wakes the thread that does the next
            wanted += 1
            hot.prepare_segment()
    assert fs.asked == wanted
    assert 8 < wanted <= 32, "at the most once a quarter of the least zeros, and not once for all"
    fs.free = 1 << 30
    fill(hot, "a", 200)
    hot.prepare_segment()
    assert hole(world) > hot.log.end


class AlmostFull(FaultyFileSystem):
    """A disk that has less room than zeros want, and counts who asks for it."""

    free = 8191
    asked = 0

    def free_bytes(self, path: Path) -> int:
        self.asked += 1
        return self.free


@pytest.mark.usefixtures("small_zeros")
def test_what_has_its_zeros_is_known_after_a_stop_and_they_are_not_written_again() -> None:
    world = HotWorld(segment_bytes=512 << 10)
    hot = world.open()
    fill(hot, "a", 30)
    hot.prepare_segment()
    found = hole(world)
    fs = FaultyFileSystem(world.fs)
    hot.close()
    hot = world.open(fs=fs)
    fs.refuse("write_at", "*/commitlog/*")
    hot.prepare_segment()
    assert hole(world) == found
    fs.heal()
    fill(hot, "a", 1)


@pytest.mark.usefixtures("small_zeros")
def test_a_refused_zero_harms_nobody() -> None:
    world = HotWorld(segment_bytes=512 << 10)
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 3)
    fs.refuse("write_at", times=1)
    with pytest.raises(DiskFailedError):
        hot.prepare_segment()
    fill(hot, "a", 2)
    hot.prepare_segment()
    assert queue_offsets(hot, "a") == list(range(5))
    assert check_store(world.open_again(hot)) == []


@pytest.mark.usefixtures("small_zeros")
def test_zeros_end_where_the_log_went_on_to_the_next_segment() -> None:
    world = HotWorld(segment_bytes=16 << 10)
    hot = world.open()
    assert not hot.log.write_zeros(hot.between_appends)
    fill(hot, "a", 60)
    again = world.open_again(hot)
    assert check_store(again) == []
    again.close()
    with pytest.raises(ClosedError):
        again.prepare_segment()


@pytest.mark.usefixtures("small_zeros")
def test_power_cut_at_every_call_while_a_log_grows() -> None:
    world = HotWorld(segment_bytes=32 << 10)
    hot = world.open()
    wrecks: list[tuple[CrashFileSystem, int]] = []
    fill(hot, "a", 1)
    flushed = 1
    fs = world.fs
    assert isinstance(fs, CrashFileSystem)

    def cut(number: int, operation: str, path: Path) -> None:
        wrecks.extend((fs.crash(seed + number), flushed) for seed in (0, 1000, 2000))

    fs.on_call = cut
    for _ in range(12):
        fill(hot, "a", 20)
        flushed += 20
        hot.prepare_segment()
    fs.on_call = None
    assert hot.log.last_base > 0
    for wreck, durable in wrecks[::3]:
        again = HotWorld(fs=wreck, segment_bytes=32 << 10).open()
        kept = queue_offsets(again, "a")
        assert kept == list(range(len(kept)))
        assert len(kept) >= durable
        again.prepare_segment()
        fill(again, "a", 1)
        assert check_store(again) == []
