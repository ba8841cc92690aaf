"""A bulk read of frames shows what the engine's own reads show."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.pipeline.archive_copies import put_on_disk
from tests.support.stores.engines import small_settings
from tests.support.stores.hot_stores import record
from tests.support.stores.removal_world import KEYS, RemovalWorld, asked
from tests.support.stores.segments import Written, mixed_records, write_segment
from tierlog.index.search.query import Query
from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, open_objects
from tierlog.pipeline.read.frames import read_frames
from tierlog.pipeline.read.partitions import plan_parts, read_parts
from tierlog.pipeline.read.predicate import EVERYTHING, Predicate, ValueRange
from tierlog.pipeline.read.views import MESSAGES, message_batch
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.record import Record, SysFlag
from tierlog.tiering.message.stored_message import StoredMessage

TIMES = [ManualClock().now_ms() + 1000 * (number + 1) for number in range(90)]


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def entries_of(store: PinnedStore) -> list[LogEntry]:
    return list(store.manifest.log_entries(store.manifest.reader(), store.head))


def read_all(store: PinnedStore, predicate: Predicate = EVERYTHING) -> pa.Table:
    batches = [batch for entry in entries_of(store) for batch in read_frames(store, entry, predicate)]
    return pa.Table.from_batches(batches, MESSAGES)


def on_disk(world: RemovalWorld, folder: Path) -> PinnedStore:
    return ArchiveSnapshot.take(put_on_disk(world.objects, folder)).only()


def filled(count: int = 90) -> RemovalWorld:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, count)
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    return world


def bodies_by_time(rows: pa.Table) -> list[bytes]:
    order = [(column, "ascending") for column in ("store_time", "physical_offset")]
    return list(rows.sort_by(order).column("body").to_pylist())


def verify(world: RemovalWorld, store: PinnedStore) -> None:
    """By topic, and by topic and key, the rows are the messages that queries of the archive alone find."""
    cold = world.cold()
    for topic in [info.name for info in cold.topics()]:
        rows = read_all(store, Predicate.of([topic]))
        assert bodies_by_time(rows) == asked(cold, Query(topic))
        for key in KEYS:
            rows = read_all(store, Predicate(topics=frozenset([topic]), keys=frozenset([key])))
            assert bodies_by_time(rows) == asked(cold, Query(topic, key))


def test_all_messages_of_an_archive_as_the_engine_reads_them(tmp_path: Path) -> None:
    world = filled()
    store = on_disk(world, tmp_path)
    rows = read_all(store)
    assert rows.num_rows == len(world.sent)
    by_offset = {one.offset: one for one in world.sent}
    for row in rows.to_pylist():
        one = by_offset.pop(row["physical_offset"])
        assert (row["topic"], row["body"], row["keys"]) == (one.message.topic, one.message.body, [*one.message.keys])
        assert (row["message_id"], row["queue_id"], row["queue_offset"]) == (
            one.message_id, one.queue_id, one.queue_offset
        )  # fmt: skip
        assert (row["tag"], row["store_id"], row["tier"]) == (one.message.tag, "store", "cold")
        assert millis(row["store_time"]) == one.store_ms
    verify(world, store)


def test_what_is_hidden_by_a_tombstone_is_not_read_and_neither_are_fillers(tmp_path: Path) -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t", "k1")
    world.erase(engine, "u", None, world.sent[20].store_ms, world.sent[60].store_ms)
    hidden = on_disk(world, tmp_path / "hidden")
    assert hidden.head.tombstones
    verify(world, hidden)
    before = read_all(hidden)
    assert before.num_rows == len(world.visible())
    world.finish(engine)
    rewritten = on_disk(world, tmp_path / "rewritten")
    assert not rewritten.head.tombstones
    verify(world, rewritten)
    assert read_all(rewritten).sort_by("physical_offset").equals(before.sort_by("physical_offset"))


@pytest.mark.parametrize("part_bytes", [500, 3000, 1 << 30])
@pytest.mark.parametrize("topics", [(), ("t",), ("t", "u"), ("unknown",)])
def test_parts_of_any_size_hold_each_message_once_and_in_order(
    tmp_path: Path, part_bytes: int, topics: tuple[str, ...]
) -> None:
    store = on_disk(filled(), tmp_path)
    predicate = Predicate.of(topics)
    tasks = list(plan_parts(store, predicate, part_bytes=part_bytes))
    batches = [batch for task in tasks for batch in read_parts(store, task, predicate)]
    rows = pa.Table.from_batches(batches, MESSAGES)
    assert rows.equals(read_all(store, predicate).combine_chunks())
    if topics != ("unknown",):
        segments = len(entries_of(store))
        assert len(tasks) == 1 if part_bytes == 1 << 30 else len(tasks) > segments or part_bytes == 3000
    else:
        assert tasks == []


@pytest.mark.parametrize(
    ("predicate", "fits"),
    [
        (Predicate(physical_offsets=ValueRange(3000, 9000)), lambda row: 3000 <= row["physical_offset"] < 9000),
        (
            Predicate(stored=ValueRange(TIMES[20], TIMES[50])),
            lambda row: TIMES[20] <= millis(row["store_time"]) < TIMES[50],
        ),
        (Predicate(stored=ValueRange(end=TIMES[3])), lambda row: millis(row["store_time"]) < TIMES[3]),
        (Predicate(keys=frozenset(["k1", "none", "k2"])), lambda row: {"k1", "k2"} & set(row["keys"])),
        (Predicate(topics=frozenset(["t", "x"])), lambda row: row["topic"] == "t"),
    ],
)
def test_a_predicate_gives_what_a_filter_of_all_rows_gives(
    tmp_path: Path, predicate: Predicate, fits: Callable[[dict[str, Any]], bool]
) -> None:
    store = on_disk(filled(), tmp_path)
    every = read_all(store).to_pylist()
    wanted = [row for row in every if fits(row)]
    assert 0 < len(wanted) < len(every)
    assert read_all(store, predicate).to_pylist() == wanted
    planned = [batch for task in plan_parts(store, predicate) for batch in read_parts(store, task, predicate)]
    assert pa.Table.from_batches(planned, MESSAGES).to_pylist() == wanted


def segment_store(parts: list[Record], folder: Path) -> tuple[PinnedStore, Written]:
    """A store of one segment with these records."""
    written = write_segment(parts)
    url = f"file://{folder}"
    open_objects(url).put(written.entry.key, written.data)
    end = written.entry.next
    head = Head("store", "volume", "open", 1, 1, "c", ("c",), end, end, written.entry.base, log=(written.entry,))
    return PinnedStore(url, "store", head.encode()), written


def test_records_as_rocketmq_writes_them_and_none_that_no_queue_leads_to(tmp_path: Path) -> None:
    parts = mixed_records(5)
    for number in range(0, len(parts), 7):  # bodies of clients that compress, between others
        packed = zlib.compress(parts[number].body)
        parts[number] = replace(parts[number], body=packed, sys_flag=parts[number].sys_flag | SysFlag.COMPRESSED)
    store, written = segment_store(parts, tmp_path)
    shown = [each for each in written.sorted_records if each.has_queue_unit]
    assert 0 < len(shown) < len(parts)
    expected = message_batch([StoredMessage(each, "store", Tier.COLD) for each in shown])
    assert read_all(store).combine_chunks().equals(pa.Table.from_batches([expected]))


def test_bodies_that_are_large_once_inflated_go_into_batches_of_bounded_size(tmp_path: Path) -> None:
    body = zlib.compress(bytes(1 << 20))
    parts = [record(queue_offset=number, body=body, sys_flag=int(SysFlag.COMPRESSED)) for number in range(20)]
    store, written = segment_store(parts, tmp_path)
    batches = list(read_frames(store, written.entry))
    assert [offset for batch in batches for offset in batch.column("queue_offset").to_pylist()] == [*range(20)]
    assert all(batch.num_rows <= 4 for batch in batches)


def test_what_has_expired_is_not_read(tmp_path: Path) -> None:
    world = filled()
    engine = world.open()
    engine.removal.configure("t", cold_retention_ms=3_600_000)
    world.clock.advance(3_600_000 - 60_000 - 80_000)
    for step in ("of one topic", "of all, by whole segments"):
        world.clock.advance(60_000)
        while engine.removal.run_once():
            pass
        store = on_disk(world, tmp_path / step)
        verify(world, store)
        assert store.head.expired
        assert 0 < read_all(store).num_rows < len(world.sent)
        world.settings = small_settings(cold__retention_ms=3_600_000)
        engine = world.open()
    assert store.head.cold_min > 0


def test_a_frame_that_is_damaged_is_an_error_that_names_the_object(tmp_path: Path) -> None:
    store = on_disk(filled(), tmp_path)
    entry = entries_of(store)[1]
    path = tmp_path / entry.key
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as raised:
        list(read_frames(store, entry))
    assert raised.value.path == entry.key
