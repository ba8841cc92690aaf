"""Counts every item of a store's key index, wherever it lies, against the messages that the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tierlog.index.format.layout import Items
from tierlog.index.format.trailer import crc_of
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.snapshot import IndexFileEntry, IndexReader
from tierlog.index.local.states import IndexState
from tierlog.index.maintenance.check import items_of_object
from tierlog.index.objects.item_order import highs
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ObjectNotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import Record

#: Physical offset and both hashes of a key of the record there.
Key = tuple[int, int, int]


def verify_items(engine: Store, records: Iterable[Record], fs: FileSystem, index_folder: Path) -> None:
    """Each key of each record is in the index exactly once, on the side of the watermark where it belongs."""
    wanted = {
        (record.physical_offset, key_hash(record.topic, key), key_hash_high(record.topic, key))
        for record in records
        for key in indexed_keys(record.properties)
    }
    indexed_to = _indexed_to(engine)
    border, end = engine._hot.border, engine._hot.log.end
    archived = _archived_items(engine) if indexed_to else Counter[Key]()
    _same(archived, {key for key in wanted if key[0] < indexed_to}, "in the archive")
    local: Counter[Key] = Counter()
    for entry in engine._index.files():
        found = _local_items(entry)
        assert all(entry.first <= key[0] < (entry.next or end) for key in found), f"{entry.path} holds what is not its"
        local += found
        published = entry.next is not None and entry.next <= indexed_to
        assert published or entry.first >= indexed_to, f"{entry.path} straddles {indexed_to}"
        assert entry.state is not IndexState.UPLOADED or published, f"{entry.path} lies above {indexed_to}"
        assert entry.state is not IndexState.COMPACTED or not published, f"{entry.path} lies below {indexed_to}"
    hot = Counter({key: count for key, count in local.items() if key[0] >= border})
    _same(hot, {key for key in wanted if key[0] >= border}, "in local files")
    _check_covers(engine, border, end)
    folders = [index_folder / state for state in IndexState]
    on_disk = sorted(folder / name for folder in folders for name in fs.list_dir(folder))
    assert on_disk == sorted(entry.path for entry in engine._index.files()), "files that nobody searches"


def _indexed_to(engine: Store) -> int:
    assert engine._manifest is not None
    try:
        return engine._manifest.refresh().indexed_to
    except ObjectNotFoundError:
        return 0  # killed before the first contact


def _same(found: Counter[Key], wanted: set[Key], where: str) -> None:
    twice = [key for key, count in found.items() if count > 1]
    assert not twice, f"{len(twice)} keys are {where} twice, such as {twice[0]}"
    assert found.keys() <= wanted, f"items {where} that belong to no key: {sorted(found.keys() - wanted)[:3]}"
    assert found.keys() >= wanted, f"keys that are not {where}: {sorted(wanted - found.keys())[:3]}"


def _check_covers(engine: Store, border: int, end: int) -> None:
    """Covers of local files abut or leave stretches without items, and what the index says of itself is so."""
    reached = 0
    for entry in sorted(engine._index.files(), key=lambda entry: entry.first):
        assert reached <= entry.first, f"{entry.path} overlaps the one before"
        reached = entry.next or max((key[0] + 1 for key in _local_items(entry)), default=entry.first)
    assert engine._index.next_offset() == end
    assert engine._index.gaps(border, end) == []
    _, missing = engine._index.searchable(border, end)
    assert missing == []


def _local_items(entry: IndexFileEntry) -> Counter[Key]:
    entry.reader.verify()
    items = entry.reader.all_items()
    if isinstance(entry.reader, ChainedIndexFile):
        items = items[1 : entry.reader.item_count + 1]
    return _keys(items)


def _archived_items(engine: Store) -> Counter[Key]:
    manifest = engine._manifest
    assert manifest is not None
    head, reader = manifest.refresh(), manifest.reader()
    physical: dict[int, int] = {}
    for segment in manifest.log_entries(reader, head):
        known, cold = SegmentReader(reader, segment).offset_map()
        physical |= dict(zip(cold.tolist(), known.tolist(), strict=True))
    found: Counter[Key] = Counter()
    reached = 0
    for entry in sorted(manifest.all_index_entries(reader, head), key=lambda entry: entry.first):
        assert reached <= entry.first < entry.next <= head.indexed_to, f"{entry.key} overlaps, or ends too late"
        reached = entry.next
        problems: list[str] = []
        for items in items_of_object(manifest.objects, manifest.keys.store_id, entry, problems.append):
            keys = _keys(items, physical)
            assert all(entry.first <= key[0] < entry.next for key in keys), f"{entry.key} holds what is not its"
            found += keys
        assert not problems, problems
    return found


def _keys(items: Items, physical: dict[int, int] | None = None) -> Counter[Key]:
    offsets = items["offset"].tolist()
    if physical is not None:
        offsets = [physical[offset] for offset in offsets]
    return Counter(zip(offsets, items["hash"].tolist(), highs(items).tolist(), strict=True))


def put_so(file: IndexReader) -> None:
    """Have a file that is being written take its items as they are now for those that were put."""
    assert isinstance(file, ChainedIndexFile)
    count, _ = file._put
    file._put = count, crc_of(file._bytes_of_items(1, count + 1))
