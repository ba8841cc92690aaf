"""Dumps of our own files and objects say what the codecs say."""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.index.objects.test_index_object import MIXED, built  # the same objects as the codec's own tests
from tests.support.rocketmq.written_stores import WrittenStore
from tests.support.stores.dumps import column, dumped, kind_of, make_store, samples, sealed_index_file
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import ROCKETMQ, Items
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.rocketmq.export import export_object, export_rocketmq
from tierlog.service.dump.export import export
from tierlog.service.dump.index_object import slot_problem
from tierlog.service.dump.kinds import KINDS
from tierlog.service.dump.source import open_source
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, QueueGap, decode_page
from tierlog.tiering.format.queue_rows import QUEUE_ROW, decode_queue_rows_head, decode_rows_page
from tierlog.tiering.format.queue_unit import UNIT_DTYPE
from tierlog.tiering.format.store_state import OpenMessageState, QueueDeliveryState, StoreState
from tierlog.tiering.hot.delivery_states import DELIVERIES_FILE
from tierlog.tiering.objects.urls import open_object_store

FS = LocalFileSystem()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WrittenStore:
    return make_store(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def cold(store: WrittenStore) -> Path:
    (folder,) = (path for path in (store.root.parent / "cold").iterdir() if path.name != ".tmp")
    return folder


def head_of(cold: Path) -> Head:
    return Head.decode((cold / "head").read_bytes(), path="head")


def segment_readers(cold: Path) -> list[SegmentReader]:
    objects = open_object_store(f"file://{cold.parent}", clock=ManualClock())
    manifest = ManifestStore(objects, ColdKeys(cold.name), randomness=SystemRandomness(), options=ColdOptions())
    head = manifest.refresh()
    reader = ArchiveReader(objects, ArchiveCache(1 << 20))
    return [SegmentReader(reader, entry) for entry in manifest.log_entries(manifest.reader(), head)]


def test_every_kind_has_a_sample_that_is_recognised_and_whole(tmp_path: Path) -> None:
    found = samples(tmp_path)
    assert {kind_of(name) for name in found} == set(KINDS)
    for name, path in found.items():
        shown = dumped(path)
        assert (shown.dump.kind, shown.findings) == (kind_of(name), []), name
        assert all(row.keys() <= shown.dump.columns.keys() for row in shown.rows), name


def test_records_are_the_messages_that_were_sent(store: WrittenStore) -> None:
    rows = [
        row for path in sorted((store.root / "commitlog").iterdir()) for row in dumped(path, body_bytes=1 << 20).rows
    ]
    records = [row for row in rows if row["kind"] == "record"]
    assert len(records) == len(store.sent)
    for row, sent in zip(records, store.sent, strict=True):
        message = sent.message
        assert row["message_id"] == sent.appended.message_id
        assert (row["physical_offset"], row["queue_offset"]) == (sent.physical_offset, sent.appended.queue_offset)
        assert (row["topic"], row["tag"], row["keys"]) == (message.topic, message.tag, list(message.keys))
        body = base64.b64decode(row["body_base64"]) if "body_base64" in row else row["body"].encode()
        assert body == message.body
        assert (row["record_checksum"], row["body_cut"]) == ("ok", False)


def test_bodies_are_cut_to_the_limit(store: WrittenStore) -> None:
    path = sorted((store.root / "commitlog").iterdir())[0]
    for row in dumped(path, body_bytes=5).rows:
        if row["kind"] == "record":
            shown = base64.b64decode(row["body_base64"]) if "body_base64" in row else row["body"].encode()
            assert len(shown) <= 5
            assert row["body_cut"] == (row["body_bytes"] > 5)


def test_a_log_is_shown_from_an_offset_on_and_up_to_a_limit(store: WrittenStore) -> None:
    path = sorted((store.root / "commitlog").iterdir())[1]
    every = [row["physical_offset"] for row in dumped(path).rows]
    assert column(dumped(path, start=every[3], limit=2), "physical_offset") == [(every[3],), (every[4],)]
    assert dumped(path, start=every[3], limit=2).head["stopped_by_limit_at"] == every[5]
    between = dumped(path, start=every[3] + 1, limit=1)  # the next record, not half of this one
    assert column(between, "physical_offset") == [(every[4],)]
    assert not between.findings


def test_a_copy_under_another_name_takes_its_base_from_the_first_record(store: WrittenStore, tmp_path: Path) -> None:
    path = sorted((store.root / "commitlog").iterdir())[1]
    copied = Path(shutil.copy(path, tmp_path / "segment.bin"))
    assert (dumped(copied).rows, dumped(copied).findings) == (dumped(path).rows, [])


def test_units_of_a_queue(store: WrittenStore) -> None:
    for path in sorted((store.root / "consumequeue").glob("orders/*/*")):
        units = np.frombuffer(path.read_bytes(), UNIT_DTYPE)
        wanted = [unit for unit in units.tolist() if any(unit)]
        assert column(dumped(path), "physical_offset", "size_bytes", "tag_hash") == wanted


def as_tuples(items: Items, *names: str) -> list[tuple[int, ...]]:
    return [tuple(int(item[name]) for name in names) for item in items]


FIELDS = ("hash", "hash_high", "topic_id", "queue_id", "offset", "size", "seconds")


def test_items_of_local_index_files(store: WrittenStore, tmp_path: Path) -> None:
    (writing,) = (store.root / "index" / "writing").iterdir()
    found = dumped(writing)  # its capacity stands in tierlog/index.json
    assert (found.head["slots"], found.head["items"], found.head["layout"]) == (100, 400, "tierlog")
    assert len(found.rows) == found.head["item_count"] > 0
    file = sealed_index_file(tmp_path / "sealed")
    found = dumped(tmp_path / "sealed")
    assert column(found, *FIELDS) == as_tuples(file.all_items()[1:6], *FIELDS)
    assert column(found, "item", "previous", "is_newest") == [
        (1, 0, False), (2, 0, True), (3, 1, True), (4, 0, False), (5, 4, True),
    ]  # fmt: skip
    assert (found.head["first"], found.head["next"], found.head["file_crc"]) == (0, 1 << 20, "ok")
    for path in (store.root / "index" / "uploaded").iterdir():
        compacted = CompactedIndexFile.open(FS, path)
        found = dumped(path)
        assert column(found, *FIELDS) == as_tuples(compacted.all_items(), *FIELDS)
        assert (found.head["first"], found.head["next"]) == (compacted.first, compacted.next)
        for row in found.rows[:50]:
            assert row["hash"] in compacted.slot_items(row["slot"])["hash"]


def test_archived_segments(store: WrittenStore, cold: Path) -> None:
    paths = sorted((cold / "log").iterdir())
    for path, reader in zip(paths, segment_readers(cold), strict=True):
        physical, cold_offsets = reader.offset_map()
        shown = dumped(path, part="map")
        assert column(shown, "physical_offset", "cold_offset") == list(
            zip(physical.tolist(), cold_offsets.tolist(), strict=True)
        )
        records = dumped(path, part="records")
        assert sorted(column(records, "physical_offset", "cold_offset")) == column(
            shown, "physical_offset", "cold_offset"
        )
        assert {row["record_checksum"] for row in records.rows} == {"ok"}
        directory = dumped(path)
        topics = {row["topic"] for row in directory.rows}
        rows = [row for topic in sorted(topics) for row in reader.directory_rows(topic)]
        names = tuple(name for name in directory.dump.columns)
        assert column(directory, *names) == [tuple(getattr(row, name) for name in names) for row in rows]
        assert sum(row["records"] for row in directory.rows) == len(records.rows)
        frames = dumped(path, part="frames")
        table = reader.seek_table()
        starts = [row["position"] for row in frames.rows if row["kind"] == "records"]
        assert starts == table.compressed[:-1].tolist()
        assert directory.head["raw_bytes"] == int(table.decompressed[-1])
        assert (directory.head["base"], directory.head["segment_bytes"]) == (int(path.name[:20]), 16_384)


def test_archived_records_from_a_cold_offset_on(cold: Path) -> None:
    path = sorted((cold / "log").iterdir())[2]
    every = [row["cold_offset"] for row in dumped(path, part="records").rows]
    assert column(dumped(path, part="records", start=every[7], limit=3), "cold_offset") == [
        (offset,) for offset in every[7:10]
    ]


def test_hot_and_archived_records_are_shown_alike(store: WrittenStore, cold: Path) -> None:
    hot = sorted((store.root / "commitlog").iterdir())[0]
    rows = {row["physical_offset"]: row for row in dumped(hot).rows if row["kind"] == "record"}
    for row in dumped(sorted((cold / "log").iterdir())[0], part="records").rows:
        archived = {name: value for name, value in row.items() if name not in ("cold_offset", "frame", "position")}
        assert archived == {name: value for name, value in rows[row["physical_offset"]].items() if name != "position"}


def readers_of(cold: Path) -> list[tuple[Path, IndexObjectReader]]:
    found = []
    for path in sorted((cold / "index" / "L0").iterdir()):
        data = path.read_bytes()
        found.append((path, IndexObjectReader.from_tail(lambda start, end, data=data: data[start:end], len(data))[0]))  # type: ignore[misc]
    return found


def test_index_objects(cold: Path) -> None:
    topics = {topic.topic_id: topic.name for topic in state_of(cold).topics}
    for path, reader in readers_of(cold):
        items = np.concatenate([reader.page(number).items for number in range(len(reader.page_directory()))])
        found = dumped(path)
        assert column(found, *FIELDS) == as_tuples(items, *FIELDS)
        assert all(row["topic"] == topics[row["topic_id"]] for row in found.rows)
        assert found.head["items"] == len(items)
        pages = dumped(path, part="pages")
        assert [row["compressed_bytes"] for row in pages.rows] == [
            end - start for start, end in map(reader.page_directory().span, range(len(reader.page_directory())))
        ]


def state_of(cold: Path) -> StoreState:
    state = head_of(cold).state
    assert state is not None
    return StoreState.decode((cold.parent / state.key).read_bytes(), path=state.key)


def test_manifest_objects(cold: Path) -> None:
    head = head_of(cold)
    found = dumped(cold / "head")
    assert (found.head["store_id"], found.head["version"], found.head["archived_to"]) == (
        head.store_id, head.version, head.archived_to,
    )  # fmt: skip
    keys = [entry.key for entry in head.log] + [entry.key for entry in head.index]
    keys += [node.ref.key for node in (*head.log_tree, *head.index_tree)]
    assert [row["key"] for row in found.rows if row["list"] not in ("gaps", "removed")] == keys
    for level, pattern in ((0, "log0-*"), (1, "log1-*")):
        for path in (cold / "manifest").glob(pattern):
            items = decode_page(path.read_bytes(), "log", level, path="page")
            assert column(dumped(path), "first", "next") == [(item.first, item.next) for item in items]
    for path in (cold / "manifest").glob("rows-*"):
        data = path.read_bytes()
        key = f"{cold.name}/manifest/{path.name}"
        pages = decode_queue_rows_head(data, path=key).pages
        rows = [decode_rows_page(data[page.position : page.position + page.length], page, path=key) for page in pages]
        assert column(dumped(path), *(QUEUE_ROW.names or ())) == np.concatenate(rows).tolist()
    names = [(topic.topic_id, topic.name, topic.queues) for topic in state_of(cold).topics]
    state = head.state
    assert state is not None
    assert column(dumped(cold.parent / state.key), "topic_id", "topic", "queues") == names


def test_open_messages_of_groups(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    opened = (OpenMessageState(17, 2, 1_700_000_060_000, 3, 4, "timeout"), OpenMessageState(21, 1, 0))
    states: dict[str, tuple[QueueDeliveryState, ...]] = {"billing": (QueueDeliveryState("orders", 1, 17, 25, opened),)}
    DELIVERIES_FILE.replace(fs, tmp_path / "deliveries.json", states, tmp_path)
    found = dumped(tmp_path / "deliveries.json")
    names = ("group", "topic", "queue_id", "committed", "next", "offset", "attempt", "visible_ms", "reason")
    assert column(found, *names) == [
        ("billing", "orders", 1, 17, 25, 17, 2, 1_700_000_060_000, "timeout"),
        ("billing", "orders", 1, 17, 25, 21, 1, 0, ""),
    ]
    damaged = b'{"format": 1, "deliveries": [{"name": "g", "queues": [[], 7, ["t", "x", {}, null, [[], 3, [1]]]]}, {}]}'
    (tmp_path / "deliveries.json").write_bytes(damaged)
    assert len(column(dumped(tmp_path / "deliveries.json"), "offset")) == 2


def test_our_json_files(store: WrittenStore) -> None:
    topics = dumped(store.root / "tierlog" / "topics.json")
    assert {row["topic"] for row in topics.rows} == {sent.message.topic for sent in store.sent}
    identity = column(dumped(store.root / "tierlog" / "store.json"), "place", "value")
    assert ("/segment_bytes", 16_384) in identity


def test_lock_names_its_holder(store: WrittenStore) -> None:
    assert dumped(store.root / "lock").head["content"].startswith("lock\npid ")


def test_objects_of_an_object_store_are_dumped_as_files_are(cold: Path) -> None:
    objects = open_object_store("memory://dumped", clock=ManualClock())
    for path in (cold / "head", *(cold / "log").iterdir(), *(cold / "index" / "L0").iterdir()):
        key = f"prefix/{path.relative_to(cold.parent)}"
        objects.put(key, path.read_bytes())
        there, here = dumped(f"memory://dumped/{key}"), dumped(path)
        assert (there.rows, there.head, there.findings) == (here.rows, here.head, [])
        assert dumped(f"file://{path}").rows == here.rows
    for bad in ("memory://dumped/nothing", "memory://dumped", "memory://dumped/prefix/", str(cold), "nowhere"):
        with pytest.raises(InvalidRequestError):
            open_source(bad)


# --rocketmq


def exported(path: Path, folder: Path) -> Path:
    target = folder / f"{path.name}.rocketmq"
    found = export(open_source(str(path)), target)
    assert not found.findings
    assert found.head["bytes"] == target.stat().st_size
    return target


def test_export_of_an_index_object_equals_that_of_the_local_file(
    store: WrittenStore, cold: Path, tmp_path: Path
) -> None:
    to_cold: dict[int, int] = {}
    for reader in segment_readers(cold):
        physical, cold_offsets = reader.offset_map()
        to_cold |= dict(zip(physical.tolist(), cold_offsets.tolist(), strict=True))
    for path in sorted((cold / "index" / "L0").iterdir()):
        (local,) = (store.root / "index" / "uploaded").glob(path.name.partition("-")[0])
        ours = exported(path, tmp_path).read_bytes()
        export_rocketmq(FS, CompactedIndexFile.open(FS, local), tmp_path / "local", tmp_path)
        theirs = (tmp_path / "local").read_bytes()
        file = CompactedIndexFile.open_bare(FS, exported_again(ours, tmp_path), ROCKETMQ, 100)
        wanted = CompactedIndexFile.open_bare(FS, tmp_path / "local", ROCKETMQ, 100)
        hashes = sorted(set(column(dumped(path), "hash", "hash_high")))
        lows = [low for low, _ in hashes]
        single = {low for low in lows if lows.count(low) == 1}  # others are of keys that RocketMQ cannot tell apart
        assert len(single) < len(lows)
        assert ours[: 28 + 8 * 100] == theirs[: 28 + 8 * 100]  # header and slots
        for slot in range(100):
            mine, his = file.slot_items(slot), wanted.slot_items(slot)
            assert (np.diff(mine["seconds"].astype(np.int64)) <= 0).all()
            names = ("hash", "topic_id", "queue_id", "size", "seconds")
            moved = [(*row, to_cold[offset]) for (offset,), row in zip(
                as_tuples(his, "offset"), as_tuples(his, *names), strict=True)]  # fmt: skip
            assert sorted(as_tuples(mine, *names, "offset")) == sorted(moved)
            for key in set(his["hash"].tolist()) & single:  # items of one key keep their order
                of_key = [row for row in as_tuples(mine, *names, "offset") if row[0] == key]
                assert of_key == [row for row in moved if row[0] == key]


def exported_again(data: bytes, folder: Path) -> Path:
    path = folder / "object"
    path.write_bytes(data)
    return path


def test_a_slot_that_goes_on_in_the_next_page_is_written_whole(tmp_path: Path) -> None:
    for slots, page_bytes in ((1, 200), (3, 200), (10, 1000), (300, 65536)):
        folder = tmp_path / f"{slots}-{page_bytes}"
        folder.mkdir()
        keys = [*MIXED, *[(5, 7)] * 50]
        path = folder / "x.idx"
        path.write_bytes(built(folder, keys, slots, page_bytes).data)
        target = exported(path, folder)
        file = CompactedIndexFile.open_bare(FS, target, ROCKETMQ, slots)
        for slot in range(slots):
            seconds = file.slot_items(slot)["seconds"].astype(np.int64)
            assert (np.diff(seconds) <= 0).all()
        assert sorted(file.all_items()["hash"].tolist()) == sorted(low for low, _ in keys)
        assert (dumped(target).head["slots"], dumped(target).findings) == (slots, [])


def test_local_files_are_exported_and_nothing_is_overwritten(store: WrittenStore, tmp_path: Path) -> None:
    sealed_index_file(tmp_path / "sealed")
    target = exported(tmp_path / "sealed", tmp_path)
    export_rocketmq(FS, ChainedIndexFile.open_sealed(FS, tmp_path / "sealed"), tmp_path / "wanted", tmp_path)
    assert target.read_bytes() == (tmp_path / "wanted").read_bytes()
    before = target.read_bytes()
    with pytest.raises(InvalidRequestError, match="exists"):
        export(open_source(str(tmp_path / "sealed")), target)
    assert target.read_bytes() == before
    with pytest.raises(InvalidRequestError, match="no such folder"):
        export(open_source(str(tmp_path / "sealed")), tmp_path / "nowhere" / "out")
    (writing,) = (store.root / "index" / "writing").iterdir()
    assert export(open_source(str(writing)), tmp_path / "out").findings
    with pytest.raises(InvalidRequestError, match="not checkpoint"):
        export(open_source(str(store.root / "checkpoint")), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"sealed", "sealed.rocketmq", "wanted"}


def test_a_damaged_object_is_not_exported(cold: Path, tmp_path: Path) -> None:
    path, reader = readers_of(cold)[0]
    data = bytearray(path.read_bytes())
    data[reader.sections["pages"].position + 60] ^= 1
    (tmp_path / "x.idx").write_bytes(data)
    found = export(open_source(str(tmp_path / "x.idx")), tmp_path / "out")
    assert found.findings == ["checksum of an index page differs at 0"]
    (tmp_path / "x.idx").write_bytes(path.read_bytes()[:-1])  # can be shown, but is not what was uploaded
    assert export(open_source(str(tmp_path / "x.idx")), tmp_path / "out").findings
    with pytest.raises(CorruptIndexError, match="its meta says"):
        export_object(
            FS, reader, end_ms=0, item_count=found_items(path) + 1, target=tmp_path / "out", tmp_dir=tmp_path / "tmp"
        )
    assert {path.name for path in tmp_path.iterdir()} - {"tmp"} == {"x.idx"}


def found_items(path: Path) -> int:
    return int(dumped(path).head["items"])


def test_a_damaged_page_of_an_index_object_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(built(tmp_path, MIXED, 10, 1000).data)
    whole, pages = dumped(path), dumped(path, part="pages")
    assert len(pages.rows) > 3
    data = bytearray(path.read_bytes())
    data[28 + pages.rows[2]["position"] + 30] ^= 1
    path.write_bytes(data)
    damaged = dumped(path)
    kept = [{**row, "item": 0} for row in whole.rows if row["page"] != 2]
    assert [{**row, "item": 0} for row in damaged.rows] == kept
    (finding,) = damaged.findings
    assert finding == "page 2: checksum of an index page differs; its items are not shown"
    assert column(dumped(path, start=5, limit=4), "item") == [(5,), (6,), (7,), (8,)]


def test_items_in_the_wrong_slot_are_found_although_every_checksum_fits(tmp_path: Path) -> None:
    made = built(tmp_path, MIXED, 10, 1000)
    page = IndexObjectReader(lambda start, end: made.data[start:end], made.sections).page(0)
    assert slot_problem(page, 10) is None
    assert slot_problem(page, 7) == "not all items lie in the slot of their hash"
    assert slot_problem(replace(page, items=page.items[1:]), 10) == "slots and items have different lengths"


def test_a_directory_that_claims_more_slots_than_its_pages_hold_is_not_exported(tmp_path: Path) -> None:
    made = built(tmp_path, MIXED, 10, 1000)
    reader = IndexObjectReader(lambda start, end: made.data[start:end], made.sections)
    reader._directory = replace(reader.page_directory(), slots=1 << 27)
    with pytest.raises(CorruptIndexError, match="do not hold 134217728 slots"):
        export_object(FS, reader, end_ms=0, item_count=len(MIXED), target=tmp_path / "out", tmp_dir=tmp_path / "tmp")


def test_ranges_of_a_large_object_are_what_it_holds(tmp_path: Path) -> None:
    data = np.arange(1 << 20, dtype=">u4").tobytes()
    open_object_store("memory://ranges", clock=ManualClock()).put("a/b", data)
    source = open_source("memory://ranges/a/b")
    for start, end in (
        (0, 4),
        (3 << 20, (3 << 20) + 9),
        (2 << 20, (3 << 20) + 5),
        (5, 2 << 20),
        (len(data) - 3, 1 << 40),
    ):
        assert source.read(start, end) == data[start:end]
    assert source.read(-5, 3) == data[:3]
    assert source.read(len(data) + 5, len(data) + 9) == b""


def test_names_that_left_gaps_and_cached_ranges_are_shown(tmp_path: Path) -> None:
    found = samples(tmp_path)
    assert column(dumped(found["removed-names"]), "key") == [("one/log/a",), ("one/log/b",)]
    assert column(dumped(found["queue-gaps"]), *QueueGap._fields) == [(1, 0, 5, 1 << 32)]
    cached = found["cached-range"]
    assert (dumped(cached).head["key"], dumped(cached).head["range_bytes"]) == ("one/log/a", 5)
    for cut_off in (1, 10):
        data = cached.read_bytes()[:-cut_off]
        (tmp_path / "damaged").write_bytes(data)
        assert "counts as not there" in str(dumped(tmp_path / "damaged", "cached-range").findings)
