"""The classic index beside a log: what it holds after any stop, failure, removal or change of settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.rocketmq.classic_world import ClassicWorld, items_of, numbered, wanted_files, wanted_items
from tests.support.stores.hot_stores import append
from tests.support.stores.scanned_bytes import counting_scans
from tierlog.index.rocketmq.classic_index import ClassicIndex, ClassicIndexFile, file_name
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError, ReadOnlyError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message

NAME_MS = 1_700_000_000_123


def read_files(world: ClassicWorld, classic: ClassicIndex) -> list[bytes]:
    return [world.fs.read(file.path) for file in classic.files()]


def check_whole(world: ClassicWorld, hot: HotStore, classic: ClassicIndex) -> None:
    """The same bytes as if nothing had ever stopped."""
    assert read_files(world, classic) == wanted_files(hot, world.slots, world.items)


def check_items(world: ClassicWorld, hot: HotStore, classic: ClassicIndex) -> None:
    """Every item of the hot log once."""
    assert items_of(classic.files(), read_files(world, classic), hot.border) == wanted_items(hot)


def names(world: ClassicWorld) -> list[str]:
    return [name for name in world.fs.list_dir(world.paths.index) if name.isdecimal()]


def write(world: ClassicWorld, hot: HotStore, start: int, count: int) -> None:
    for message in numbered(start, count):
        append(hot, message)
        world.clock.advance(300)
    hot.dispatch()


def test_items_lie_in_rocketmqs_files_in_their_order() -> None:
    world = ClassicWorld()
    hot, classic = world.open_both()
    write(world, hot, 0, 60)
    assert len(classic.files()) > 10
    check_whole(world, hot, classic)
    check_items(world, hot, classic)
    assert names(world) == [file.path.name for file in classic.files()]


def test_dispatch_in_any_pieces_gives_the_same_files() -> None:
    for step in (1, 7, 60):
        world = ClassicWorld()
        hot, classic = world.open_both()
        for start in range(0, 60, step):
            append(hot, *numbered(start, min(step, 60 - start)))
            hot.dispatch()
        check_whole(world, hot, classic)


def test_switched_on_for_an_existing_store_it_covers_the_whole_hot_log() -> None:
    world = ClassicWorld()
    hot = world.open()
    write(world, hot, 0, 40)
    hot.close()
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


def test_clean_stop_goes_on_in_the_same_file() -> None:
    world = ClassicWorld()
    for start in range(0, 50, 5):
        hot, classic = world.open_both()
        before = names(world)
        write(world, hot, start, 5)
        check_whole(world, hot, classic)
        assert names(world)[: len(before)] == before
        hot.close()


def test_switched_off_for_a_while_it_is_completed() -> None:
    world = ClassicWorld()
    hot, _ = world.open_both()
    write(world, hot, 0, 10)
    hot.close()
    hot = world.open()
    write(world, hot, 10, 10)
    hot.close()
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


@pytest.mark.parametrize("is_killed", [False, True])
def test_opening_scans_what_came_after_the_last_checkpoint_and_not_the_store(is_killed: bool) -> None:
    scanned = []
    for count in (20, 400):
        world = ClassicWorld(items=100_000, slots=500)
        hot, _ = world.open_both()
        append(hot, *numbered(0, count))
        hot.dispatch()
        hot.checkpoint()
        append(hot, *numbered(900, 5))
        hot.dispatch()
        if not is_killed:
            hot.close()
        assert isinstance(world.fs, CrashFileSystem)
        world.fs = world.fs.crash(3, lose_everything=True)
        with counting_scans() as scans:
            hot, classic = world.open_both()
        check_whole(world, hot, classic)
        scanned.append(scans.bytes)
    assert scanned[0] == scanned[1]
    assert (scanned[0] > 0) == is_killed


def test_checkpoint_notes_how_far_a_log_without_keys_was_seen() -> None:
    world = ClassicWorld()
    hot, _ = world.open_both()
    append(hot, *(Message("t", b"no key") for _ in range(50)))
    hot.dispatch()
    hot.checkpoint()
    assert isinstance(world.fs, CrashFileSystem)
    world.fs = world.fs.crash(3, lose_everything=True)
    with counting_scans() as scans:
        _, classic = world.open_both()
    assert classic.next_offset() == hot.log.end
    assert (scans.bytes, classic.files()) == (0, [])


@pytest.mark.parametrize("seed", range(8))
def test_kill_loses_no_key_of_the_hot_log_as_rocketmq_8007_does(seed: int) -> None:
    """apache/rocketmq #8007, #3868, #4463: the last index file goes with a kill, and old keys are never found again."""
    world = ClassicWorld()
    hot, classic = world.open_both()
    for round_number in range(4):
        write(world, hot, 20 * round_number, 20)
        if round_number % 2:
            hot.checkpoint()
        full = [file.path.name for file in classic.files() if file.is_full]
        assert isinstance(world.fs, CrashFileSystem)
        world.fs = world.fs.crash(seed, lose_everything=seed == 0)
        hot, classic = world.open_both()
        check_whole(world, hot, classic)
        assert names(world)[: len(full)] == full
    hot.close()


def test_every_file_is_flushed_at_a_clean_stop_unlike_rocketmq_4463() -> None:
    world = ClassicWorld()
    hot, classic = world.open_both()
    write(world, hot, 0, 30)
    wanted = read_files(world, classic)
    hot.close()
    assert isinstance(world.fs, CrashFileSystem)
    world.fs = world.fs.crash(0, lose_everything=True)
    hot, classic = world.open_both()
    assert read_files(world, classic) == wanted


def test_checkpoint_is_never_ahead_of_what_is_flushed() -> None:
    world = ClassicWorld()
    hot, _ = world.open_both()
    moved = set()
    for start in range(60):
        append(hot, *numbered(start, 1))
        world.clock.advance(start % 3 * 400)
        hot.dispatch()
        hot.checkpoint()
        index_ms = Checkpoint.decode(world.fs.read(world.paths.checkpoint)).index_ms
        moved.add(index_ms)
        assert isinstance(world.fs, CrashFileSystem)
        lost = ClassicWorld(fs=world.fs.crash(0, lose_everything=True))
        on_disk = {name: lost.fs.read(lost.paths.index / name) for name in names(lost)}
        for name in names(world):
            file = ClassicIndexFile.open(world.fs, world.paths.index / name, world.slots, world.items)
            if file.header.end_ms <= index_ms:
                assert on_disk[name] == world.fs.read(world.paths.index / name)
    hot.close()
    assert len(moved) > 3


def test_what_rocketmq_drops_after_a_kill_is_what_it_indexes_again() -> None:
    """It drops files that end after the checkpoint's time and reads records again that are later than it."""
    world = ClassicWorld()
    hot, _ = world.open_both()
    for start in range(60):
        append(hot, *numbered(start, 1))
        world.clock.advance(start % 3 * 400)
        hot.dispatch()
        hot.checkpoint()
        index_ms = Checkpoint.decode(world.fs.read(world.paths.checkpoint)).index_ms
        paths = [world.paths.index / name for name in names(world)]
        files = [ClassicIndexFile.open(world.fs, path, world.slots, world.items) for path in paths]
        kept = [file for file in files if file.header.end_ms <= index_ms]
        found = items_of(kept, [world.fs.read(file.path) for file in kept])
        assert found == wanted_items(hot, until_ms=index_ms)
    hot.close()


@pytest.mark.parametrize("leave", ["nothing", "a part"])
def test_file_that_cannot_be_made_loses_no_key_and_leaves_nothing_as_rocketmq_7539(tmp_path: Path, leave: str) -> None:
    """apache/rocketmq #7539: each try leaves a file of 400 MB; and the tiered index drops keys after three tries."""

    class FullDisk(LocalFileSystem):
        tries = 0

        def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
            if path.parent.name == "index" and 0 < self.tries < 4:
                self.tries += 1
                if leave == "a part":
                    path.write_bytes(bytes(size_bytes // 2))
                raise DiskFullError("no space left", path=str(path))
            super().create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)

    disk = FullDisk()
    world = ClassicWorld(fs=disk, root=tmp_path)
    hot, classic = world.open_both()
    write(world, hot, 0, 2)
    disk.tries = 1
    append(hot, *numbered(2, 20))
    for _ in range(3):
        before = names(world)
        hot.dispatch()
        assert "no space left" in str(hot.dispatch_error)
        assert names(world) == before
        world.clock.advance(30_000)
    hot.dispatch()
    assert disk.tries == 4
    assert hot.guard.read_only_reason is None
    check_whole(world, hot, classic)
    hot.close()
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


def test_flush_that_failed_is_never_tried_again(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(LocalFileSystem())
    world = ClassicWorld(fs=faulty, root=tmp_path)
    hot, classic = world.open_both()
    faulty.refuse("flush", "*/index/*", times=1, error=DiskFailedError("EIO"))
    append(hot, *numbered(0, 20))
    hot.dispatch()
    assert "EIO" in str(hot.guard.read_only_reason)
    (file,) = classic.files()
    for _ in range(2):
        hot.dispatch()
        assert classic.files() == [file]
    with pytest.raises(ReadOnlyError):
        classic.checkpoint()
    assert len(faulty.refused) == 1
    hot.close()
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


def test_progress_that_cannot_be_saved_is_saved_later(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(LocalFileSystem())
    world = ClassicWorld(fs=faulty, root=tmp_path)
    hot, classic = world.open_both()
    append(hot, *numbered(0, 30))
    faulty.refuse("rename", "*classic_index.json", times=3, error=DiskFullError("ENOSPC"))
    for _ in range(4):
        hot.dispatch()
        world.clock.advance(30_000)
    assert len(faulty.refused) == 3
    check_whole(world, hot, classic)
    hot.close()
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


def test_files_go_with_the_border_but_never_the_last() -> None:
    world = ClassicWorld()
    hot, classic = world.open_both()
    write(world, hot, 0, 120)
    assert len(hot.log.segments()) > 3
    before = len(classic.files())
    hot.remove_below(hot.log.segments()[2].base_offset, forget=lambda _: None)
    assert 1 < len(classic.files()) < before
    assert classic.files()[0].header.end_offset >= hot.border
    check_items(world, hot, classic)
    assert names(world) == [file.path.name for file in classic.files()]
    for clean in (True, False):
        if clean:
            hot.close()
        else:
            assert isinstance(world.fs, CrashFileSystem)
            world.fs = world.fs.crash(1)
        hot, classic = world.open_both()
        check_items(world, hot, classic)
        write(world, hot, 200, 5)
        check_items(world, hot, classic)
    append(hot, Message("t", bytes(3_000)), Message("t", bytes(3_000)), Message("t", bytes(3_000)))
    hot.dispatch()
    hot.remove_below(hot.log.last_base, forget=lambda _: None)
    assert len(classic.files()) == 1


def damages(world: ClassicWorld) -> Iterator[str]:
    """One after the other, what others may do to the files of a stopped store."""
    index, first, last = world.paths.index, names(world)[0], names(world)[-1]
    world.fs.unlink(index / first)
    yield "a full file is gone"
    data = world.fs.read(index / last)
    file = world.fs.open(index / last)
    file.write_at(36, (int.from_bytes(data[36:40], "big") + 1).to_bytes(4, "big"))
    file.flush()
    file.close()
    yield "another program wrote into the last file"
    world.fs.unlink(index / names(world)[-1])
    yield "the last file is gone"
    world.fs.unlink(world.paths.classic_index_json)
    yield "nobody says which files are whole"
    file = world.fs.open(index / names(world)[1])
    file.write_at(100_000, b"x")
    file.close()
    yield "a file is longer"
    world.fs.create(index / "99991231235959999", 40, prewrite=False)
    yield "a file nobody knows"
    world.slots, world.items = 9, 30
    yield "other settings"


def test_whatever_others_do_to_the_files_the_log_is_indexed_whole() -> None:
    world = ClassicWorld()
    hot, _ = world.open_both()
    write(world, hot, 0, 33)
    hot.close()
    count = 0
    for what in damages(world):
        hot, classic = world.open_both()
        assert read_files(world, classic) == wanted_files(hot, world.slots, world.items), what
        assert names(world) == [file.path.name for file in classic.files()], what
        hot.close()
        count += 1
    assert count == 7


def test_index_ahead_of_the_log_is_made_again() -> None:
    # as if the disk had forgotten records that were flushed: a shorter log beside the index of a longer one
    world = ClassicWorld()
    hot, classic = world.open_both()
    write(world, hot, 0, 20)
    last = classic.next_offset()
    hot.close()
    progress = world.fs.read(world.paths.classic_index_json)
    other = ClassicWorld()
    hot, _ = other.open_both()
    write(other, hot, 0, 12)
    hot.close()
    for name in names(other):
        other.fs.unlink(other.paths.index / name)
    for name in names(world):
        data = world.fs.read(world.paths.index / name)
        other.fs.create(other.paths.index / name, len(data), prewrite=False)
        file = other.fs.open(other.paths.index / name)
        file.write_at(0, data)
        file.close()
    file = other.fs.open(other.paths.classic_index_json)
    file.write_at(0, progress.ljust(2_000))
    file.close()
    hot, classic = other.open_both()
    assert classic.next_offset() == hot.log.end < last
    check_whole(other, hot, classic)


def test_disk_that_cannot_be_read_is_no_reason_to_drop_files(tmp_path: Path) -> None:
    class BadDisk(LocalFileSystem):
        is_bad = False

        def map_read(self, path: Path) -> ByteArray:
            if self.is_bad and path.parent.name == "index":
                raise DiskFailedError("EIO", path=str(path))
            return super().map_read(path)

    disk = BadDisk()
    world = ClassicWorld(fs=disk, root=tmp_path)
    hot, _ = world.open_both()
    write(world, hot, 0, 20)
    hot.close()
    before = names(world)
    disk.is_bad = True
    with pytest.raises(DiskFailedError):
        world.open_both()
    assert names(world) == before


def test_folders_and_other_names_beside_the_files_are_left_alone() -> None:
    world = ClassicWorld()
    world.fs.make_dirs(world.paths.index / "writing")
    world.fs.make_dirs(world.paths.index / "20231114221320123")
    for name in ("notes", "1700000000000", "2023111422132012x"):
        world.fs.create(world.paths.index / name, 10, prewrite=False)
    hot, classic = world.open_both()
    write(world, hot, 0, 20)
    check_whole(world, hot, classic)
    hot.close()
    left = {"writing", "20231114221320123", "notes", "1700000000000", "2023111422132012x"}
    assert left <= set(world.fs.list_dir(world.paths.index))


def test_names_rise_even_if_the_clock_steps_back() -> None:
    world = ClassicWorld()
    hot, classic = world.open_both()
    for start in range(0, 40, 4):
        write(world, hot, start, 4)
        world.clock.step(-7_200_000)
    check_whole(world, hot, classic)
    assert names(world) == sorted(names(world)) == [file.path.name for file in classic.files()]


def test_name_is_local_time_with_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone, wanted in (("UTC", "20231114221320123"), ("Asia/Shanghai", "20231115061320123")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert file_name(NAME_MS, None) == wanted
        assert file_name(NAME_MS, wanted) == str(int(wanted) + 1)
        assert file_name(NAME_MS, "20991231235959999") == "20991231235960000"
    monkeypatch.undo()
    time.tzset()


def test_keys_of_one_message_may_lie_in_several_files() -> None:
    world = ClassicWorld()
    hot, classic = world.open_both()
    append(hot, Message("t", b"x", keys=[f"k{i}" for i in range(50)]), *numbered(0, 3))
    hot.dispatch()
    check_whole(world, hot, classic)
    assert isinstance(world.fs, CrashFileSystem)
    world.fs = world.fs.crash(5)
    hot, classic = world.open_both()
    check_whole(world, hot, classic)


def test_query_takes_the_newest_and_says_how_far_the_index_reaches() -> None:
    world = ClassicWorld(items=400)
    hot, classic = world.open_both()
    write(world, hot, 0, 90)
    found = classic.query("t", "k1", 1_000, 0, (1 << 63) - 1)
    assert found.offsets == sorted(found.offsets, reverse=True)
    assert len(classic.query("t", "T#T", 1_000, 0, (1 << 63) - 1).offsets) == 64
    assert found.last_update_offset == max(offset for _, offset in wanted_items(hot))
    assert found.last_update_ms == hot.last_store_ms
