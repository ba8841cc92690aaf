"""Whatever happens to the bytes of local index files: every answer is whole, or says that it is not and why.

Bits are turned, sectors zeroed, files cut, sectors copied and exchanged between files, in every state that a file has
on the disk, before the store is opened or while it is open. Nothing is ever missing from an answer that is complete;
what is damaged is put aside and derived again, so that the store answers in full and is sound soon after.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.search.query import Query
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_MESSAGES = 120
_KEYS = [f"k{number}" for number in range(_MESSAGES)]
_SECTOR = 512
#: What each damage is drawn from, and how many of them are in `make test`.
_SEEDS, _QUICK = 3, 1


def opened(root: Path, bucket: MemoryObjectStore) -> Store:
    settings = Settings(hot=HotSettings(segment_bytes=1 << 15), index=IndexSettings(slots=900, items=80))
    return Store.open(root, settings=settings, cold_url="memory://d", objects=bucket, clock=ManualClock())


class Stores:
    """A directory for each state, with index files of three pages in it, and the bucket that belongs to it."""

    def __init__(self, folder: Path) -> None:
        self.buckets: dict[str, MemoryObjectStore] = {}
        self.folder = folder
        for state in ("writing", "full", "sealed", "compacted", "uploaded"):
            bucket = self.buckets[state] = MemoryObjectStore(ManualClock())
            engine = opened(folder / f"made-{state}", bucket)
            for start in range(0, _MESSAGES, 10):
                engine.append([Message("t", key.encode(), [key, "all"]) for key in _KEYS[start : start + 10]])
            engine.flush()
            engine._hot.dispatch()
            if state not in ("writing", "full"):
                engine._index.seal_full()
            if state in ("compacted", "uploaded"):
                engine._index.compact_sealed()
            if state == "uploaded":
                engine.archive(everything=True)
            if state == "full":  # as a kill leaves them
                engine._checkpoint()
                shutil.copytree(folder / "made-full", folder / "full")
            engine.close()
            if state != "full":
                shutil.copytree(folder / f"made-{state}", folder / state)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def files_in(root: Path, state: str) -> list[Path]:
    return sorted((root / "index" / ("writing" if state == "full" else state)).iterdir())


def turn_bits(chance: random.Random, files: list[Path]) -> None:
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 3))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    put(path, data)


def zero_a_sector(chance: random.Random, files: list[Path]) -> None:
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    at = chance.randrange(0, len(data), _SECTOR)
    end = min(at + _SECTOR, len(data))
    data[at:end] = bytes(end - at)
    put(path, data)


def cut_short(chance: random.Random, files: list[Path]) -> None:
    path = chance.choice(files)
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def copy_a_sector(chance: random.Random, files: list[Path]) -> None:
    """From the same place of another file, or from another place of the same one."""
    source, target = chance.choice(files), chance.choice(files)
    data, other = bytearray(target.read_bytes()), source.read_bytes()
    at = chance.randrange(0, min(len(data), len(other)), _SECTOR)
    start = at if source != target else chance.randrange(0, len(other), _SECTOR)
    piece = other[start : start + _SECTOR][: len(data) - at]
    data[at : at + len(piece)] = piece
    put(target, data)


def exchange_ends(chance: random.Random, files: list[Path]) -> None:
    """The trailers of two files, or more of their ends than that."""
    length = chance.choice((80, 84, 100, 512))
    first, second = chance.choice(files), chance.choice(files)
    ends = first.read_bytes()[-length:], second.read_bytes()[-length:]
    for path, end in ((second, ends[0]), (first, ends[1])):
        put(path, bytearray(path.read_bytes()[:-length] + end))


def exchange_files(chance: random.Random, files: list[Path]) -> None:
    first, second = chance.choice(files), chance.choice(files)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])


def put(path: Path, data: bytearray) -> None:
    """In place: who has mapped the file sees it."""
    with path.open("r+b") as file:
        file.write(data)


DAMAGE: dict[str, Callable[[random.Random, list[Path]], None]] = {
    "bits": turn_bits, "zeros": zero_a_sector, "cut": cut_short, "copied": copy_a_sector, "ends": exchange_ends,
    "files": exchange_files,
}  # fmt: skip


def ask_all(engine: Store, names: set[str]) -> bool:
    """Ask every key in each way: no answer is short and says that it is whole. Whether all were whole."""
    are_whole = True
    for key in (*_KEYS, "all"):
        answer = engine.query(Query("t", key, limit=2 * _MESSAGES))
        wanted = _MESSAGES if key == "all" else 1
        if answer.coverage.complete:
            assert len(answer.messages) == wanted, key
        else:
            are_whole = False
            said = [f"{failure.object} {failure.error}" for failure in answer.coverage.failures]
            assert any(name in text for name in names for text in said), said
        assert len(answer.messages) <= wanted
    return are_whole


def look_up_all(engine: Store) -> bool:
    try:
        with engine.hot_keys("t") as hot:
            assert len(hot.look_up(_KEYS)) == _MESSAGES
            assert all(hot.get(key) is not None for key in _KEYS[::7])
    except (CorruptIndexError, UnavailableError):
        return False
    return True


def verify(engine: Store, root: Path, state: str, files: list[Path]) -> None:
    are_whole = ask_all(engine, {path.name for path in files})
    assert look_up_all(engine) or not are_whole
    engine._background._index_maintenance.run_once()
    assert engine.index_error is None
    assert ask_all(engine, set())
    assert look_up_all(engine)
    assert engine.check() == []
    if not are_whole:
        assert list((root / "quarantine").iterdir())


all_seeds = pytest.mark.parametrize(
    "seeds", [range(_QUICK), pytest.param(range(_QUICK, _SEEDS), marks=pytest.mark.slow)], ids=("quick", "more")
)


def copies(stores: Stores, state: str, folder: Path, seeds: range) -> Iterator[tuple[random.Random, Path]]:
    for seed in seeds:
        root = folder / str(seed)
        shutil.copytree(stores.folder / state, root)
        yield random.Random(seed), root
        shutil.rmtree(root)


@all_seeds
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("state", ["writing", "full", "sealed", "compacted", "uploaded"])
def test_files_damaged_while_the_store_is_closed(
    stores: Stores, tmp_path: Path, state: str, damage: str, seeds: range
) -> None:
    for chance, root in copies(stores, state, tmp_path, seeds):
        files = files_in(root, state)
        DAMAGE[damage](chance, files)
        engine = opened(root, stores.buckets[state])
        try:
            verify(engine, root, state, files)
        finally:
            engine.close()


@all_seeds
@pytest.mark.parametrize("damage", [name for name in DAMAGE if name not in ("cut", "files")])
@pytest.mark.parametrize("state", ["sealed", "compacted", "uploaded"])
def test_files_damaged_while_the_store_is_open(
    stores: Stores, tmp_path: Path, state: str, damage: str, seeds: range
) -> None:
    """What was not looked at since the store was opened."""
    for chance, root in copies(stores, state, tmp_path, seeds):
        engine = opened(root, stores.buckets[state])
        try:
            files = files_in(root, state)
            DAMAGE[damage](chance, files)
            verify(engine, root, state, files)
        finally:
            engine.close()


@all_seeds
@pytest.mark.parametrize("damage", ["bits", "zeros", "cut"])
def test_index_json_damaged(stores: Stores, tmp_path: Path, damage: str, seeds: range) -> None:
    for state in ("writing", "full"):
        for chance, root in copies(stores, state, tmp_path, seeds):
            DAMAGE[damage](chance, [root / "tierlog" / "index.json"])
            engine = opened(root, stores.buckets[state])
            try:
                verify(engine, root, state, [])
            finally:
                engine.close()
