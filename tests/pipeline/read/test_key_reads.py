"""A batch read by key asks for the frames that hold the key; tasks survive that their objects are replaced."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.support.pipeline.batch_reads import planned, read, rows_of
from tests.support.stores.engines import tiny_settings
from tests.support.stores.irregular import followed_archive, irregular_log, sent
from tierlog.index.search.query import Query
from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, open_manifest, open_objects
from tierlog.pipeline.read.frames import read_frames
from tierlog.pipeline.read.partitions import HitsPart, SegmentPart, despite_rewriting
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ObjectNotFoundError, StoreError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.message.batch import BytesColumn, Message, MessageBatch

EVERY = 300


class CountedStore:
    """Notes the ranges that are asked for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.ranges: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self.ranges.append((key, start, end))
        data: bytes = self.inner.get_range(key, start, end)
        return data


@contextlib.contextmanager
def counted(url: str, store_id: str) -> Iterator[CountedStore]:
    manifest = open_manifest(url, store_id)
    objects = manifest.objects
    counting: Any = CountedStore(objects)
    manifest.objects = counting
    try:
        yield counting
    finally:
        manifest.objects = objects


def test_a_key_read_asks_for_the_frames_that_hold_the_key(tmp_path: Path) -> None:
    """Of four segments of a MiB each, index pages, seek tables and five frames."""
    cold = f"file://{tmp_path}/cold"
    settings = tiny_settings(hot__segment_bytes=1 << 20, cold__frame_bytes=16_384, hot__default_queues=1)
    chance, rare = random.Random(1), []
    with contextlib.closing(Store.open(tmp_path / "s", cold_url=cold, store_id="s", settings=settings)) as engine:
        for number in range(1500):
            keys = [f"k{number}"] + ["rare"] * (number % EVERY == 100)
            (at,) = engine.append([Message("orders", chance.randbytes(2000), keys)])
            rare += [int(at.message_id[-16:], 16)] * (number % EVERY == 100)
        engine.archive(everything=True)
    store = ArchiveSnapshot.take(cold).only()
    entries = list(store.manifest.log_entries(store.manifest.reader(), store.head))
    assert len(entries) == 4
    assert store.head.indexed_to == store.head.archived_to
    frames, tables, all_frames = [], [], 0
    for entry in entries:
        segment = SegmentReader(store.manifest.reader(), entry)
        table = segment.seek_table()
        all_frames += len(table.checksums)
        held = [table.frame_of(at - entry.base) for at in map(segment.cold_offset, rare) if at is not None]
        frames += [(entry.key, table.place(number)) for number in sorted(set(held))]
        seek = entry.sections["seek_table"]
        tables += [(entry.key, seek.position, seek.position + seek.length)] * bool(held)
    assert len(frames) == len(rare) == 5

    with counted(cold, "s") as plan:
        reader, partitions = planned({"cold": cold, "view": "keys", "topic": "orders", "key": "rare"})
    assert not [key for key, _, _ in plan.ranges if "/log/" in key]
    objects = len(list(store.manifest.all_index_entries(store.manifest.reader(), store.head)))
    assert len([key for key, _, _ in plan.ranges if "/index/" in key]) == 2 * objects
    store.manifest.cache = ArchiveCache(1 << 20)  # as in another process
    with counted(cold, "s") as task:
        rows = read(reader, partitions)
    assert {row["key"] for row in rows} == {"rare"}
    assert sorted(row["physical_offset"] for row in rows) == rare
    asked = sorted(task.ranges)
    assert asked == sorted([(key, place.position, place.position + place.length) for key, place in frames] + tables)
    assert len(frames) < all_frames // 20


class Reads:
    """An archive of a segment of 30,000 messages in frames of 64 kB, and what reading it asked for."""

    def __init__(self, folder: Path) -> None:
        self.cold = f"file://{folder}/cold"
        settings = tiny_settings(hot__segment_bytes=16 << 20, cold__frame_bytes=65_536, hot__default_queues=1)
        with contextlib.closing(
            Store.open(folder / "s", cold_url=self.cold, store_id="s", settings=settings)
        ) as engine:
            for first in range(0, 30_000, 1000):
                engine.append([self._message(number) for number in range(first, first + 1000)])
            engine.archive(everything=True)

    @staticmethod
    def _message(number: int) -> Message:
        keys = ["often"] * (number % 5 == 0) + ["close"] * (number < 300) + ["rare"] * (number == 17_000)
        return Message("wide" if number % 3 else "thin", b"%d" % number * 40, keys)

    def tasks(self, key: str, size: int = 2 << 20) -> list[Any]:
        reader, found = planned({"cold": self.cold, "key": key, "partition_bytes": str(size)})
        self.rows = read(reader, found)
        return found


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Reads:
    return Reads(tmp_path_factory.mktemp("reads"))


def test_a_key_on_a_fifth_of_the_messages_is_a_scan(reads: Reads) -> None:
    """As many tasks as a scan has, not one for every eight messages."""
    scan = planned({"cold": reads.cold, "partition_bytes": str(2 << 20)})[1]
    tasks = reads.tasks("often")
    assert len(tasks) <= len(scan)
    assert all(isinstance(part, SegmentPart) for task in tasks for part in task.parts)
    assert len(reads.rows) == len({row["physical_offset"] for row in reads.rows}) == 6000


def test_messages_that_share_frames_count_once_for_each_frame(reads: Reads) -> None:
    """Three hundred hits in four frames are three tasks, and nothing but those frames is read."""
    tasks = reads.tasks("close", 1 << 20)
    assert len(tasks) <= 3
    assert all(isinstance(part, HitsPart) for task in tasks for part in task.parts)
    assert len(reads.rows) == 300
    (task,) = reads.tasks("rare")
    assert [type(part) for part in task.parts] == [HitsPart]
    assert len(reads.rows) == 1


def test_a_key_that_rows_show_with_replaced_bytes_is_found_by_what_they_show(tmp_path: Path) -> None:
    """The index has the hash of the bytes themselves."""
    cold = f"file://{tmp_path}/cold"
    with contextlib.closing(
        Store.open(tmp_path / "s", cold_url=cold, store_id="s", settings=tiny_settings())
    ) as engine:
        messages = [Message("orders", b"%d" % number) for number in range(3)]
        batch = MessageBatch.of(messages, now_ms=1, max_body_bytes=100)
        engine._hot.append(replace(batch, keys=BytesColumn.of([b"a\xffb"] * 3)), Durability.FLUSHED)
        engine.archive(everything=True)
    rows = rows_of({"cold": cold, "view": "keys"})
    assert [row["key"] for row in rows] == ["a\ufffdb"] * 3
    assert rows_of({"cold": cold, "view": "keys", "key": "a\ufffdb"}) == rows


# ------------------------------------------------------------------------------------- objects that are replaced


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    """A store of a few segments on a disk, everything archived: bodies are numbers, every third has the key ``a``."""
    settings = tiny_settings(hot__segment_bytes=8192, hot__default_queues=2, index__items=60)
    cold, clock = f"file://{tmp_path}/cold", ManualClock()
    engine = Store.open(tmp_path / "s", cold_url=cold, store_id="s", settings=settings, clock=clock)
    with contextlib.closing(engine):
        for number in range(150):
            clock.advance(1000)
            engine.append([Message(f"t{number % 2}", b"%d" % number, ["a" if number % 3 == 0 else "b"])])
        engine.archive(everything=True, drop_hot=True)
        yield engine


def cold_of(engine: Store) -> str:
    assert engine.cold_url is not None
    return engine.cold_url


def clock_of(engine: Store) -> ManualClock:
    assert isinstance(engine._clock, ManualClock)
    return engine._clock


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def rewritten(engine: Store, topic: str) -> None:
    """Everything of a topic that has the key ``b`` is erased, and the objects that held it are gone."""
    engine.removal.erase(Query(topic, "b"))
    while engine.removal.run_once():
        pass
    store = ArchiveSnapshot.take(cold_of(engine)).only()
    assert not store.head.tombstones
    named = {entry.key for entry in store.manifest.log_entries(store.manifest.reader(), store.head)}
    objects = open_objects(store.url)
    gone = [info.key for info in objects.list("s/log/") if info.key not in named]
    assert gone
    for key in gone:
        objects.delete(key)


@pytest.mark.parametrize("key", [None, "a"])
def test_a_task_goes_on_in_the_object_that_replaced_its_own(engine: Store, key: str | None) -> None:
    options = {"cold": cold_of(engine), "view": "keys", "partition_bytes": "3000"}
    reader, partitions = planned(options if key is None else {**options, "key": key})
    first, *others = partitions
    before = read(reader, [first])
    rewritten(engine, "t1")
    rows = before + read(reader, others)
    left = [number for number in range(150) if number % 2 == 0 or number % 3 == 0]
    seen = set(numbers(rows))
    assert key in (None, *{row["key"] for row in rows})
    assert len(rows) == len({row["physical_offset"] for row in rows})
    if key is None:
        assert set(left) <= seen <= {*left, *numbers(before)}
    else:
        assert seen == {*range(0, 150, 3)}


def gone_behind(store: PinnedStore, batch: Any, cut: int) -> Callable[[PinnedStore, LogEntry], Iterator[Any]]:
    """Reads a store's segment, which has ``batch`` and is gone behind so many rows; any other store's as it is."""

    def cached(its: PinnedStore, of: LogEntry) -> Iterator[Any]:
        if its is not store:
            yield from read_frames(its, of)
            return
        if cut:
            yield batch.slice(0, cut)
        raise ObjectNotFoundError("it is gone", path=of.key)

    return cached


def test_a_segment_that_is_replaced_while_it_is_read_gives_each_row_once(engine: Store) -> None:
    store = ArchiveSnapshot.take(cold_of(engine)).only()
    (entry, *_) = store.manifest.log_entries(store.manifest.reader(), store.head)
    whole = [row for batch in read_frames(store, entry) for row in batch.to_pylist()]

    (batch,) = read_frames(store, entry)
    engine.removal.erase(Query("t1", "b"))
    while engine.removal.run_once():
        pass
    for cut in range(len(whole)):
        cached = gone_behind(store, batch, cut)
        rows = [row for part in despite_rewriting(store, entry, cached) for row in part.to_pylist()]
        assert rows == [
            row for number, row in enumerate(whole) if number < cut or row["topic"] == "t0" or int(row["body"]) % 3 == 0
        ]


def test_what_has_expired_since_the_plan_is_an_error_that_says_so(engine: Store) -> None:
    options = {"cold": cold_of(engine)}
    reader, partitions = planned(options)
    for topic in ("t0", "t1"):
        engine.removal.configure(topic, cold_retention_ms=1)
    clock_of(engine).advance(86_400_000)
    engine.run_tiers()
    store = ArchiveSnapshot.take(cold_of(engine)).only()
    assert store.head.cold_min > 0
    objects = open_objects(store.url)
    for info in list(objects.list("s/log/")):
        objects.delete(info.key)
    with pytest.raises(ObjectNotFoundError, match="have expired since the read was planned"):
        read(reader, partitions)
    assert rows_of(options) == []


@pytest.mark.parametrize("kind", ["log", "index"])
def test_an_object_that_is_lost_is_named(engine: Store, kind: str) -> None:
    """A read fails; it never gives fewer rows."""
    options = {"cold": cold_of(engine), "view": "keys", "key": '["a", "b"]'}
    assert len(rows_of(options)) == 150
    objects = open_objects(options["cold"])
    for info in list(objects.list(f"s/{kind}/")):
        data, _ = objects.get(info.key)
        objects.delete(info.key)
        open_manifest(options["cold"], "s").cache = ArchiveCache(1 << 20)  # as in a new process
        with pytest.raises(StoreError) as raised:
            rows_of(options)
        assert raised.value.path == info.key
        objects.put(info.key, data)


def test_no_generation_is_passed_over_in_a_segment_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    # the second generation begins at offset 0 again, in a queue that comes before the first one's last
    made = [*sent("orders", 1, range(4)), *sent("orders", 0, range(3), 4), *sent("orders", 1, range(3), 7)]
    log = irregular_log([*made, *sent("noise", 0, range(40), 100)])
    with followed_archive(tmp_path, log) as followed:
        followed.archive_all()
        store = ArchiveSnapshot.take(f"file://{tmp_path}/cold").only()
        (entry, *_) = store.manifest.log_entries(store.manifest.reader(), store.head)
        whole = [row["body"] for batch in read_frames(store, entry) for row in batch.to_pylist()]
        (batch,) = read_frames(store, entry)
        followed.store.removal.erase(Query("noise", "key-100"))
        while followed.store.removal.run_once():
            pass
    for cut in range(len(whole)):
        cached = gone_behind(store, batch, cut)
        bodies = [row["body"] for part in despite_rewriting(store, entry, cached) for row in part.to_pylist()]
        assert [body for body in bodies if not body.startswith(b"message 100.")] == [
            body for body in whole if not body.startswith(b"message 100.")
        ]
