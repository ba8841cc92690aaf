"""A bulk read of frames shows what the engine's own reads show."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from index.query import Query
from pipeline.archive import ArchiveSnapshot, PinnedStore
from pipeline.frames import read_frames
from pipeline.predicate import EVERYTHING, Predicate
from pipeline.rows import MESSAGES
from tests.support.archive_copies import put_on_disk
from tests.support.removal_world import KEYS, RemovalWorld, asked
from tiering.errors import CorruptionError
from tiering.format.manifest import LogEntry


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
    cold = world.cold_engine()
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
        assert round(row["store_time"].timestamp() * 1000) == one.store_ms
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
