"""The disk cache: never wrong bytes, never over its limit, never in a reader's way, and there again after a restart."""

from __future__ import annotations

import random
import threading
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
LIMIT = 10 * BLOCK


def content(key: str, start: int, end: int) -> bytes:
    return random.Random(f"{key} {start}").randbytes(end - start)


def fill(cache: DiskCache, count: int, key: str = "store/log/a", size: int = 1000) -> list[tuple[str, int, int]]:
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
    """Bytes in blocks of all files of a cache."""
    files = [path / name for path in (folder / "ranges", folder / "writing") for name in fs.list_dir(path)]
    return sum(-(-fs.size(file) // BLOCK) * BLOCK for file in files)


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    places = fill(cache, 20)
    assert kept(cache, places) == 20
    cache.close()
    again = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    assert kept(again, places) == 20
    assert again.counters().bytes == 20 * BLOCK


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


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "other key"])
def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path, damage: str) -> None:
    cache = DiskCache(LocalFileSystem(), tmp_path, 1 << 20)
    for number in range(40):
        ((place),) = fill(cache, 1, f"store/log/{number}")
        (path,) = (tmp_path / "ranges").iterdir()
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[number * len(data) // 40] ^= 1 << (number % 8)
        elif damage == "cut":
            del data[number * len(data) // 40 :]
        elif damage == "empty":
            data.clear()
        elif damage == "longer":
            data += b"x"
        else:
            data = bytearray(data.replace(b"store/log", b"store/lag"))
        path.write_bytes(data)
        assert cache.get(*place) is None
        assert not path.exists()
    assert cache.counters().bytes == 0


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


@pytest.mark.parametrize("operation", ["open", "write_at", "rename", "unlink"])
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
    """Knows at each moment what its files take, and the most that they ever took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[Path, int] = {}
        self.most = 0

    def open(self, path: Path) -> File:
        file = super().open(path)
        write = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
            with self._lock:
                self._sizes[path] = -(-(position + len(data)) // BLOCK) * BLOCK
                self.most = max(self.most, sum(self._sizes.values()))
            write(position, data)

        file.write_at = write_at  # type: ignore[method-assign]
        return file

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            super().rename(source, target)
            self._sizes[target] = self._sizes.pop(source)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        with self._lock:
            self._sizes.pop(path, None)


def test_concurrent_writers_never_pass_the_limit(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    cache = DiskCache(fs, tmp_path, LIMIT)

    def write(writer: int) -> None:
        for number in range(150):
            place = (f"store/log/{writer}", number * 3000, (number + 1) * 3000)
            cache.put(*place, content(*place))
            assert cache.get(*place) in (None, content(*place))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert fs.most == LIMIT
    assert bytes_below(fs, tmp_path) == cache.counters().bytes


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
        cache = DiskCache(fs, FOLDER, LIMIT)
        for number in range(12):
            place = (f"store/log/{number % 4}", opened * 10_000 + number * 700, opened * 10_000 + (number + 1) * 700)
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
        for after in (world.crash(cut_at), world.crash(cut_at, lose_everything=True)):
            cache = DiskCache(after, FOLDER, LIMIT)
            assert after.list_dir(FOLDER / "writing") == []
            kept(cache, places)
            assert bytes_below(after, FOLDER) <= LIMIT
            place = ("store/log/new", 0, 700)
            assert cache.put(*place, content(*place))
            assert kept(cache, [place]) == 1
