"""What RocketMQ's own tests of its tiered index assert, asked of our index files: its numbers, our words.

Set-up as there: 5 slots, 20 items. Fixed positions, five topics in five slots, look-ups in compacted files:
``tests/index/local/test_index_files.py``. What they assert of uploading at a stop does not hold here by design: a stop
waits for no bucket, and what is not archived stays hot.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index.index_puts import Put, T, batch_of
from tests.support.rocketmq.classic_world import ClassicWorld, numbered
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import append
from tierlog.index.format.header import BEGIN_MAGIC, END_MAGIC, HEADER_BYTES, FileHeader, chained_bytes, compacted_bytes
from tierlog.index.format.layout import ROCKETMQ
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CapacityError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.message.batch import Message

SLOTS, ITEMS = 5, 20
MESSAGE_KEY = key_hash("TopicTest", "MessageKey")


def put(number: int = 0) -> list[Put]:
    return [("TopicTest", 123, 2, "MessageKey", 666 + number, 1024, T)]


@pytest.fixture
def file(tmp_path: Path) -> ChainedIndexFile:
    return ChainedIndexFile.create(
        LocalFileSystem(), tmp_path / "f", ROCKETMQ, slots=SLOTS, items=ITEMS, begin_ms=T, first_physical=0
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    settings = tiny_settings(index__slots=SLOTS, index__items=ITEMS)
    engine = Store.open(tmp_path, settings=settings, clock=ManualClock())
    yield engine
    engine.close()


def test_header_constants() -> None:
    assert HEADER_BYTES == 28
    assert (BEGIN_MAGIC, END_MAGIC) == (-1127939447, -1127939451)
    encoded = FileHeader(BEGIN_MAGIC, 1, 2, 3, 4).encode()
    for position, kind, value in ((0, ">i", BEGIN_MAGIC), (4, ">q", 1), (12, ">q", 2), (20, ">i", 3), (24, ">i", 4)):
        assert struct.unpack_from(kind, encoded, position)[0] == value


def test_put_and_get(file: ChainedIndexFile) -> None:
    fresh = file.header
    assert (fresh.begin_ms, fresh.end_ms, fresh.used_slots, fresh.item_count) == (T, 0, 0, 0)
    empty = batch_of([])
    file.put(empty, 0, 0)
    assert file.header == fresh
    for number in range(18):
        file.put(batch_of(put(number)), 0, 1)
        header = file.header
        assert (header.begin_ms, header.end_ms, header.used_slots, header.item_count) == (T, T, 1, number + 1)
    file.put(batch_of(put(18)), 0, 1)
    with pytest.raises(CapacityError):
        file.put(batch_of(put(19)), 0, 1)
    assert (file.header.used_slots, file.header.item_count) == (1, 19)


def test_file_of_ten_items_after_a_seal_opens_with_ten(file: ChainedIndexFile, tmp_path: Path) -> None:
    for number in range(10):
        file.put(batch_of(put(number)), 0, 1)
    file.seal(10_000)
    assert (tmp_path / "f").stat().st_size == chained_bytes(ROCKETMQ, SLOTS, ITEMS)
    compact(LocalFileSystem(), file, tmp_path / "c", tmp_path)
    assert (tmp_path / "c").stat().st_size == compacted_bytes(ROCKETMQ, SLOTS, 10) == 28 + 8 * 5 + 28 * 10
    opened = CompactedIndexFile.open_bare(LocalFileSystem(), tmp_path / "c", ROCKETMQ, SLOTS)
    assert opened.item_count == 10
    assert opened.lookup(MESSAGE_KEY)["offset"].tolist() == list(range(675, 665, -1))


def test_readers_beside_a_writer_see_whole_items_newest_first(file: ChainedIndexFile) -> None:
    wrong: list[list[int]] = []
    seen: set[int] = set()
    writing = threading.Event()

    def read() -> None:
        while True:
            is_last = writing.is_set()
            found = file.lookup(MESSAGE_KEY)["offset"].tolist()
            seen.add(len(found))
            if found != list(range(665 + len(found), 665, -1)):
                wrong.append(found)
            if is_last:
                return

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(19):
        file.put(batch_of(put(number)), 0, 1)
    writing.set()
    for reader in readers:
        reader.join(60)
    assert wrong == []
    assert max(seen) == 19


def test_fifty_puts_of_one_key_make_files_of_19_19_and_12_items(engine: Store) -> None:
    for number in range(50):
        engine.append([Message("TopicTest", str(number).encode(), ["MessageKey"])])
    found = engine.query(Query("TopicTest", "MessageKey", limit=100)).messages
    assert sorted(int(message.record.body) for message in found) == list(range(50))
    assert [entry.reader.item_count for entry in engine._index.files()] == [19, 19, 12]


def test_limit_over_three_files_is_kept_each_time(engine: Store) -> None:
    for _ in range(3):
        engine.append([Message("TopicTest", b"x", [str(key)]) for key in range(19)])
    for _ in range(3):
        for limit, count in ((1, 1), (3, 3), (5, 3)):
            assert len(engine.query(Query("TopicTest", "1", limit=limit)).messages) == count


def test_queries_from_several_threads_find_the_least_of_limit_and_ten(tmp_path: Path) -> None:
    engine = Store.open(tmp_path, settings=tiny_settings(index__items=2_000), clock=ManualClock())
    for _ in range(10):
        engine.append([Message("TopicTest", b"x", [str(key)]) for key in range(300)])
    counts: list[tuple[int, int]] = []

    def ask() -> None:
        for key in map(str, range(10)):
            counts.extend(
                (limit, len(engine.query(Query("TopicTest", key, limit=limit)).messages)) for limit in (5, 10, 15)
            )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.close()
    assert len(counts) == 4 * 10 * 3
    assert all(count == min(limit, 10) for limit, count in counts)


def test_readers_of_the_classic_index_beside_its_writer_miss_nothing_older() -> None:
    world = ClassicWorld(items=60, segment_bytes=1 << 20)
    hot, classic = world.open_both()
    append(hot, *numbered(0, 20))
    hot.dispatch()
    first = set(classic.query("t", "k1", 64, 0, (1 << 63) - 1).offsets)
    assert len(first) > 3
    missed: list[set[int]] = []
    writing = threading.Event()

    def read() -> None:
        while not writing.is_set():
            found = set(classic.query("t", "k1", 64, 0, (1 << 63) - 1).offsets)
            if not first <= found and len(found) < 64:
                missed.append(first - found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for start in range(20, 200, 5):
        append(hot, *numbered(start, 5))
        hot.dispatch()
    writing.set()
    for reader in readers:
        reader.join(60)
    assert missed == []
