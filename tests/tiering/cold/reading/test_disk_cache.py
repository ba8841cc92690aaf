"""The disk cache: never wrong bytes, never over its limit, never in a reader's way, and there again after a restart."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.threads import wait_for_threads
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError, StoreLockedError
from tierlog.tiering.base.fs import ByteArray, File, FileSystem, LocalFileSystem
from tierlog.tiering.cold.reading.disk_cache import DiskCache

FOLDER = Path("/cache")
BLOCK = 4096
LIMIT = 11 * BLOCK
"""Room for ten blocks, and one for what the file system keeps of a file with holes."""


def content(key: str, start: int, end: int) -> bytes:
    return random.Random(f"{key} {start}").randbytes(end - start)


def fill(cache: DiskCache, count: int, key: str = "store/log/a", size: int = 4000) -> list[tuple[str, int, int]]:
    """So many ranges; one of 4,000 bytes leaves no room beside it in its block."""
    places = [(key, number * size, (number + 1) * size) for number in range(count)]
    for place in places:
        assert cache.put(*place, content(*place))
    return places


def kept(cache: DiskCache, places: list[tuple[str, int, int]]) -> int:
    """How many are there; all that are must be right."""
    found = [cache.get(*place) for place in places]
    assert all(data is None or data == content(*place) for place, data in zip(places, found, strict=True))
    return sum(data is not None for data in found)


def bytes_below(fs: FileSystem, folder: Path) -> int:
    """Bytes in blocks of all files of a cache, holes excluded."""
    files = [folder / "shared"]
    files += [path / name for path in (folder / "ranges", folder / "writing") for name in fs.list_dir(path)]
    if isinstance(fs, LocalFileSystem):
        return sum(blocks_on_disk(file) for file in files)
    return sum(written_blocks(fs, file) for file in files) * BLOCK


def written_blocks(fs: FileSystem, file: Path) -> int:
    sectors = fs._inode(file).blocks.tolist()  # type: ignore[attr-defined]
    return sum(any(sectors[at : at + 8]) for at in range(0, len(sectors), 8))


def blocks_on_disk(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def is_anywhere(fs: FileSystem, place: tuple[str, int, int]) -> bool:
    """Whether any 16 bytes of a range are in what ranges share."""
    data, shared = content(*place), fs.read(FOLDER / "shared")
    return any(data[at : at + 16] in shared for at in range(0, len(data) - 15, 16))


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    places = fill(cache, 20)
    assert kept(cache, places) == 20
    cache.close()
    again = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    assert kept(again, places) == 20
    assert 20 * BLOCK <= bytes_below(LocalFileSystem(), tmp_path) <= again.counters().bytes == 21 * BLOCK


def test_reopening_reads_no_file(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    fill(cache, 20)
    cache.close()
    fs = FaultyFileSystem(LocalFileSystem())
    for operation in ("read", "open", "map_read", "size"):
        fs.refuse(operation, f"{tmp_path}/ranges/*")
    assert DiskCache(fs, tmp_path, 1 << 20).counters().entries == 20
    assert fs.refused == []


def test_a_smaller_limit_takes_hold_at_the_next_open() -> None:
    fs = CrashFileSystem()
    cache = DiskCache(fs, FOLDER, LIMIT)
    fill(cache, 10)
    cache.close()
    again = DiskCache(fs, FOLDER, 3 * BLOCK)
    assert again.counters().entries == 3
    assert bytes_below(fs, FOLDER) <= 3 * BLOCK


def test_the_least_recently_used_goes_first() -> None:
    cache = DiskCache(CrashFileSystem(), FOLDER, LIMIT)
    places = fill(cache, 10)
    assert cache.get(*places[0]) is not None
    fill(cache, 1, "store/log/b")
    assert [cache.get(*place) is not None for place in places[:3]] == [True, False, True]
    assert cache.counters().evictions == 1


def test_a_range_over_the_limit_is_not_kept_and_costs_no_other() -> None:
    cache = DiskCache(CrashFileSystem(), FOLDER, LIMIT)
    assert not cache.put("k", 0, LIMIT, bytes(LIMIT))


def pieces(name: str, key: str, size: int) -> tuple[int, int, int]:
    """Of a range's file: bytes in it, and where the rest of its record is in what is shared."""
    position, length = (int(each) for each in name.split("-")[3:])
    return 14 + len(key) + size - length, position, length


@pytest.mark.parametrize("size", [1000, 9000, 8170])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "other key"])
def test_a_damaged_record_is_a_miss_and_goes(tmp_path: Path, damage: str, size: int) -> None:
    """Of 1,000 bytes it lies in what is shared, of 9,000 in both, of 8,170 it has a file of its own alone."""
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    for number in range(40):
        key = f"store/log/{number}"
        key += "k" * (8192 - 14 - size - len(key)) if size == 8170 else ""
        ((place),) = fill(cache, 1, key, size)
        (path,) = (tmp_path / "ranges").iterdir()
        own, position, length = pieces(path.name, key, size)
        own_part = bytearray(path.read_bytes())
        shared = bytearray((tmp_path / "shared").read_bytes())
        assert (len(own_part), len(shared) >= position + length) == (own, True)
        at = number * (own + length) // 40
        part, at = (own_part, at) if at < own else (shared, position + at - own)
        if damage == "flip":
            part[at] ^= 1 << (number % 8)
        elif damage == "cut":
            del part[at:]
        elif damage == "empty":
            own_part.clear()
            shared.clear()
        elif damage == "longer":
            own_part += b"x"
            if not own:  # no byte of its file is read
                part[at] ^= 1
        else:
            own_part, shared = (bytearray(each.replace(b"store/log", b"store/lag")) for each in (own_part, shared))
        path.write_bytes(own_part)
        (tmp_path / "shared").write_bytes(shared)
        assert cache.get(*place) is None
        assert not path.exists()
    assert cache.counters().bytes == 0
    assert bytes_below(LocalFileSystem(), tmp_path) == 0


def test_forgetting_an_object_leaves_none_of_its_bytes_and_keeps_it_out() -> None:
    fs = CrashFileSystem()
    cache = DiskCache(fs, FOLDER, LIMIT)
    gone, stays = fill(cache, 3, "store/log/gone"), fill(cache, 3, "store/log/stays")
    cache.forget("store/log/gone")
    assert (kept(cache, gone), kept(cache, stays)) == (0, 3)
    assert len(fs.list_dir(FOLDER / "ranges")) == 3
    assert not cache.put(*gone[0], content(*gone[0])), "a fetch that was on its way must not bring it back"


def test_forgetting_tells_that_a_file_could_not_be_removed() -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    cache = DiskCache(fs, FOLDER, LIMIT)
    fill(cache, 1)
    fs.refuse("unlink")
    with pytest.raises(DiskFailedError):
        cache.forget("store/log/a")


@pytest.mark.parametrize("operation", ["open", "write_at", "rename", "unlink", "zero"])
@pytest.mark.parametrize("error", [DiskFullError("full"), DiskFailedError("failed")])
def test_a_disk_that_refuses_costs_the_cache_and_never_a_read(
    operation: str, error: DiskFullError | DiskFailedError
) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    cache = DiskCache(fs, FOLDER, LIMIT)
    places = fill(cache, 10)
    fs.refuse(operation, error=error, after_bytes=100 if operation == "write_at" else None)
    for number in range(200):
        place = ("store/log/b", number * 1000, number * 1000 + 1000)
        assert not cache.put(*place, content(*place))
        assert cache.get(*place) is None
        kept(cache, places)
        assert bytes_below(fs.inner, FOLDER) <= LIMIT
    assert len(fs.refused) < 20, "a disk that refuses is not asked each time"
    fs.heal()
    for number in range(200, 300):
        cache.put("store/log/b", number, number + 5, content("store/log/b", number, number + 5))
    assert cache.get("store/log/b", 299, 304) == content("store/log/b", 299, 304)


class FullVolume(CrashFileSystem):
    """A volume of which another part is used."""

    used = 0

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) * (100 - self.used) // 100


def test_above_its_share_of_the_volume_the_cache_gives_room_back() -> None:
    fs = FullVolume()
    cache = DiskCache(fs, FOLDER, LIMIT, max_used_percent=85)
    fill(cache, 8)
    fs.used = 86
    assert not cache.put("store/log/b", 0, 1000, content("store/log/b", 0, 1000))
    assert cache.counters().entries == 7
    fs.used = 80
    fill(cache, 1, "store/log/c")


class CountingFileSystem(LocalFileSystem):
    """Looks after each write at what the files of a cache take, and keeps the most."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0

    def open(self, path: Path) -> File:
        file = super().open(path)
        write = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
            write(position, data)
            self.most = max(self.most, bytes_below(self, self.folder))

        file.write_at = write_at  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("sizes", [(3000, 3000), (100, 3000), (1000, 12_000)])
def test_concurrent_writers_and_readers_get_what_was_written_and_never_pass_the_limit(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    fs = CountingFileSystem(tmp_path)
    cache = DiskCache(fs, tmp_path, LIMIT)
    chance = random.Random(1)
    places = {
        writer: [(f"store/log/{writer}", at, at + chance.randint(*sizes)) for at in range(0, 150 * 20_000, 20_000)]
        for writer in range(4)
    }
    wrong: list[tuple[str, int, int]] = []
    done = threading.Event()

    def look(place: tuple[str, int, int]) -> None:
        if cache.get(*place) not in (None, content(*place)):
            wrong.append(place)

    def write(writer: int) -> None:
        for place in places[writer]:
            cache.put(*place, content(*place))
            look(place)

    def read(reader: int) -> None:
        mine = random.Random(reader)
        while not done.is_set():
            look(mine.choice(places[mine.randrange(4)][: 1 + len(cache._kept) % 150]))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert LIMIT - 3 * BLOCK < fs.most <= LIMIT
    assert bytes_below(fs, tmp_path) <= cache.counters().bytes <= bytes_below(fs, tmp_path) + BLOCK


# sharing blocks


def ranges_as_recorded(count: int, seed: int = 1) -> Iterator[tuple[str, int, int]]:
    """Metadata of some hundred bytes, frames and pages of 3 to 20 KB, as real logs have."""
    chance, at = random.Random(seed), 0
    for _ in range(count):
        size = chance.randint(200, 900) if chance.random() < 0.4 else chance.randint(3000, 20_000)
        yield f"store/log/{chance.randrange(40):060}", at, at + size
        at += size


def test_of_a_full_cache_at_most_a_twentieth_is_rounding_and_the_rest_ranges(tmp_path: Path) -> None:
    fs, limit = LocalFileSystem(), 6 << 20
    cache = DiskCache(fs, tmp_path, limit)
    chance = random.Random(2)
    seen: list[tuple[str, int, int]] = []
    for number, place in enumerate(ranges_as_recorded(3000)):
        assert cache.put(*place, content(*place))
        seen.append(place)
        cache.get(*chance.choice(seen[-200:]))
        if number % 300 == 299:
            there = bytes_below(fs, tmp_path)
            assert there <= cache.counters().bytes <= limit
            records = sum(14 + len(key) + end - start for key, start, end in filter(cache.__contains__, seen))
            assert number < 900 or records >= 0.95 * there
    assert cache.counters().evictions > 1000
    cache.close()
    again = DiskCache(fs, tmp_path, limit)
    assert bytes_below(fs, tmp_path) <= again.counters().bytes <= limit
    assert kept(again, seen) == again.counters().entries > 300


def test_however_many_ranges_a_cache_has_one_file_open(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    places = fill(cache, 200, size=500)
    assert kept(cache, places) == 200
    assert len(os.listdir("/proc/self/fd")) == before
    cache.close()
    assert not [each for each in os.listdir("/proc/self/fd") if _leads_below(each, tmp_path)]


def _leads_below(fd: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
    except FileNotFoundError:  # the one that lists them
        return False


def test_another_range_of_the_same_object_and_size_is_never_taken_for_it(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    fill(cache, 1, "k", 1000)
    cache.close()
    (path,) = (tmp_path / "ranges").iterdir()
    path.rename(path.with_name(re.sub("-0-1000-", "-1000-2000-", path.name)))
    again = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    assert again.counters().entries == 1
    assert again.get("k", 1000, 2000) is None


class InTheMiddle(LocalFileSystem):
    """Does something between a reader's look at the list and its read of what is shared."""

    def __init__(self) -> None:
        self.do: Callable[[], None] = lambda: None

    def open(self, path: Path) -> File:
        file = super().open(path)
        read = file.read_at

        def read_at(position: int, length: int) -> bytes:
            do, self.do = self.do, lambda: None
            do()
            return read(position, length)

        file.read_at = read_at  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("to", [("k", 1000, 2000), ("l", 0, 1000), ("k", 0, 1000)])
def test_a_place_that_another_range_took_while_it_was_read_is_a_miss_and_costs_the_other_nothing(
    tmp_path: Path, to: tuple[str, int, int]
) -> None:
    fs = InTheMiddle()
    cache = DiskCache(fs, tmp_path, 1 << 20)
    (place,) = fill(cache, 1, "k", 1000)

    def replace() -> None:
        cache.drop(*place)
        if to == place:  # it comes back elsewhere
            fill(cache, 1, "m", 1000)
        assert cache.put(*to, content(*to))

    fs.do = replace
    assert cache.get(*place) is None
    assert cache.get(*to) == content(*to)


@pytest.mark.parametrize("how", ["forgotten", "dropped", "pushed out", "refused"])
def test_of_what_went_no_byte_stays_in_what_others_share(how: str) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    cache = DiskCache(fs, FOLDER, LIMIT)
    stays, (gone,) = fill(cache, 3, "store/log/stays", 700), fill(cache, 1, "store/log/gone", 1000)
    assert is_anywhere(fs.inner, gone)
    assert cache.put("store/log/later", 0, 700, content("store/log/later", 0, 700))
    if how == "forgotten":
        cache.forget(gone[0])
    elif how == "dropped":
        cache.drop(*gone)
    elif how == "pushed out":
        for _ in range(5):
            kept(cache, stays)
        number = 0
        while gone in cache:
            cache.put("store/log/new", number, number + 8170, bytes(8170))
            number += 1
    else:
        gone = ("store/log/refused", 0, 1000)
        fs.refuse("rename")
        assert not cache.put(*gone, content(*gone))
    assert not is_anywhere(fs.inner, gone)
    assert kept(cache, stays) == 3 or how == "pushed out"


class WithoutHoles(LocalFileSystem):
    """Where a file's blocks stay until it is removed."""

    def open(self, path: Path) -> File:
        file = super().open(path)
        file.zero = lambda start, end: file.write_at(start, bytes(end - start))  # type: ignore[method-assign]
        file.first_hole = lambda position: self.size(path)  # type: ignore[method-assign]
        return file


def test_without_holes_the_limit_holds_and_blocks_are_used_again(tmp_path: Path) -> None:
    fs = WithoutHoles()
    for opened in range(3):
        cache = DiskCache(fs, tmp_path, LIMIT)
        for number in range(200):
            place = ("store/log/a", number * 9999, number * 9999 + (3000, 500, 9000)[(number + opened) % 3])
            cache.put(*place, content(*place))
            assert cache.get(*place) in (None, content(*place))
            assert bytes_below(fs, tmp_path) <= cache.counters().bytes <= LIMIT
        assert cache.counters().entries > 2
        cache.close()


def test_files_of_an_earlier_version_are_removed_at_open(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    places = fill(cache, 3)
    cache.close()
    hashed = next((tmp_path / "ranges").iterdir()).name[:32]
    (tmp_path / "ranges" / f"{hashed}-8000-9000").write_bytes(b"TLCACHE1" + bytes(1017))
    (tmp_path / "writing" / "17").write_bytes(bytes(1000))
    again = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    assert kept(again, places) == again.counters().entries == 3
    assert bytes_below(LocalFileSystem(), tmp_path) <= again.counters().bytes == 3 * BLOCK


@pytest.mark.parametrize(
    "place", ["0-1000", "64-1000", f"{10**18}-1000", "4096-1000", "16-1000", "3968-1000", "0-4096", "32-0", "0-9999"]
)
def test_a_name_that_leads_to_no_place_of_its_own_is_removed_at_open(tmp_path: Path, place: str) -> None:
    """Taken by another, beyond the file, between units or across blocks."""
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    places = fill(cache, 1, "k", 3000)
    cache.close()
    (path,) = (tmp_path / "ranges").iterdir()
    path.with_name(f"{path.name[:32]}-7000-7900-{place}").touch()
    again = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    assert (kept(again, places), again.counters().entries) in ((1, 1), (0, 1))
    assert again.get("k", 7000, 7900) is None
    assert again.counters().bytes == bytes_below(LocalFileSystem(), tmp_path) <= BLOCK


def test_a_read_waits_for_no_write(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    cache = DiskCache(fs, tmp_path, 1 << 20)
    places = fill(cache, 3)
    hold = fs.hold("write_at")
    cache.offer("store/log/b", 0, 10, bytes(10))
    hold.wait_until_reached()
    assert kept(cache, places) == 3
    for number in range(2000):
        cache.offer("store/log/c", number, number + 100_000, bytes(100_000))
    assert sum(len(data) for _, data in cache._queue) <= 8 << 20, "what waits for a disk that hangs is bounded"
    cache.close()
    hold.release()


def test_closing_ends_all_writing(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    for number in range(50):
        cache.offer("store/log/a", number, number + 1000, bytes(1000))
    cache.close()
    before = sorted(tmp_path.rglob("*"))
    assert not cache.put("store/log/b", 0, 5, b"12345")
    assert cache.get("store/log/a", 0, 1000) is None
    wait_for_threads("tierlog-disk-cache")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    with pytest.raises(StoreLockedError):
        DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    first.close()
    DiskCache(LocalFileSystem(), tmp_path, 1 << 20).close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("ranges/notes.txt", "writing/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    DiskCache(LocalFileSystem(), tmp_path, 1 << 20).close()
    assert (tmp_path / "ranges/notes.txt").exists()
    assert (tmp_path / "writing/notes.txt").exists()


def run(fs: CrashFileSystem) -> list[tuple[str, int, int]]:
    """A cache at work: it fills, evicts, forgets and is opened again."""
    places = []
    for opened in range(3):
        cache = DiskCache(fs, FOLDER, LIMIT // 2)
        for number in range(8):
            start = opened * 100_000 + number * 7000
            place = (f"store/log/{number % 4}", start, start + (700, 2000, 6500)[number % 3])
            places.append(place)
            cache.put(*place, content(*place))
            cache.get(*places[number // 2])
        cache.forget(f"store/log/{opened}")
        cache.close()
    return places


def test_killed_or_without_power_at_any_call_it_opens_and_says_nothing_wrong() -> None:
    fs = CrashFileSystem()
    places = run(fs)
    calls = fs.calls
    assert calls > 100
    for cut_at in range(1, calls + 1):
        world = CrashFileSystem(seed=cut_at, cut_at=cut_at)
        with pytest.raises(PowerCut):
            run(world)
        for after in (world.after_kill(), world.crash(cut_at), world.crash(cut_at, lose_everything=True)):
            cache = DiskCache(after, FOLDER, LIMIT)
            assert after.list_dir(FOLDER / "writing") == []
            assert bytes_below(after, FOLDER) <= cache.counters().bytes <= LIMIT
            kept(cache, places)
            place = ("store/log/new", 0, 700)
            assert cache.put(*place, content(*place))
            assert kept(cache, [place]) == 1
            assert bytes_below(after, FOLDER) <= cache.counters().bytes <= LIMIT


def test_killed_at_any_call_no_byte_stays_of_what_has_no_name() -> None:
    fs = CrashFileSystem()
    places = run(fs)
    for cut_at in range(1, fs.calls + 1):
        world = CrashFileSystem(cut_at=cut_at)
        with pytest.raises(PowerCut):
            run(world)
        after = world.after_kill()
        cache = DiskCache(after, FOLDER, LIMIT)
        there = [place for place in places if place in cache]
        assert not [place for place in places if place not in there and is_anywhere(after, place)]


def test_without_power_at_any_call_no_byte_stays_of_what_is_then_forgotten() -> None:
    fs = CrashFileSystem()
    places = run(fs)
    left_over = 0
    for cut_at in range(1, fs.calls + 1):
        world = CrashFileSystem(seed=cut_at, cut_at=cut_at)
        with pytest.raises(PowerCut):
            run(world)
        after = world.crash(cut_at)
        cache = DiskCache(after, FOLDER, LIMIT)
        key = f"store/log/{cut_at % 4}"
        of_it = [place for place in places if place[0] == key]
        left_over += any(is_anywhere(after, place) for place in of_it if place not in cache)
        cache.forget(key)
        assert not [place for place in of_it if is_anywhere(after, place)]
    assert left_over > 0, "the disk never left what only forgetting clears"
