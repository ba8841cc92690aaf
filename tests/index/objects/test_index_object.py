"""The index object: pages, directory, sections; every damaged byte is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import TIERLOG
from tierlog.index.format.object_sections import DIRECTORY, META, PAGES, SECTION_HEAD_BYTES
from tierlog.index.kernels.keys import KEY_ROW
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.objects.builder import IndexMeta, IndexObject, build_index_object
from tierlog.index.objects.pages import IndexPage
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.kernels.scan import SCAN_ROW

T = 1_700_000_000_000
SEGMENT = 4096
META_OF = IndexMeta("store-1", SEGMENT, {9: "orders"})
Key = tuple[int, int]


def compacted(tmp_path: Path, keys: list[Key], slots: int) -> CompactedIndexFile:
    """A compacted file with one item a key, at physical offsets 8, 16, 24 ..."""
    fs = LocalFileSystem()
    rows = np.zeros(len(keys), SCAN_ROW)
    rows["physical_offset"] = 8 * np.arange(1, len(keys) + 1)
    rows["size"] = 100
    rows["store_ms"] = T + 1000 * np.arange(len(keys))
    rows["born_ms"] = T
    table = np.array([(at, low, high) for at, (low, high) in enumerate(keys)], KEY_ROW)
    batch = KeyBatch(rows, table, np.array([9], np.int32))
    file = ChainedIndexFile.create(
        fs, tmp_path / "chained", TIERLOG, slots=slots, items=len(keys) + 2, begin_ms=T, first_physical=0
    )
    file.put(batch, 0, len(keys))
    file.seal(8 * len(keys) + 8)
    compact(fs, file, tmp_path / "compacted", tmp_path / "tmp")
    return CompactedIndexFile.open(fs, tmp_path / "compacted")


def mirrored(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bijection that keeps the segment: positions counted from its end."""
    base = offsets // SEGMENT * SEGMENT
    return base + (SEGMENT - 1 - (offsets - base))


class Store:
    """The bytes of one object and how often they were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.reads.append((start, end))
        return self.data[start:end]


def built(tmp_path: Path, keys: list[Key], slots: int, page_bytes: int) -> IndexObject:
    return build_index_object(compacted(tmp_path, keys, slots), mirrored, META_OF, page_bytes)


def expected_offsets(keys: list[Key], key: Key) -> list[int]:
    physical = [8 * (at + 1) for at, other in enumerate(keys) if other == key]
    return [int(mirrored(np.array([offset]))[0]) for offset in reversed(physical)]


MIXED: list[Key] = [(low % 23, high) for low in range(200) for high in (low % 3, 4_000_000_000)]


@pytest.mark.parametrize("page_bytes", [48, 200, 1000, 65536])
@pytest.mark.parametrize("slots", [1, 3, 10, 300])
def test_object_equals_a_dict_of_its_keys(tmp_path: Path, page_bytes: int, slots: int) -> None:
    keys = [*MIXED, *[(5, 7)] * 50, (0, 0), (2**31 - 1, 2**32 - 1)]
    made = built(tmp_path, keys, slots, page_bytes)
    store = Store(made.data)
    reader = IndexObjectReader(store.fetch, made.sections)
    for key in dict.fromkeys(keys):
        found = reader.lookup(*key)
        assert found["offset"].tolist() == expected_offsets(keys, key)
        assert set(found["topic_id"].tolist()) == {9}
    for missing in [(1, 99), (24, 0), (2**31 - 1, 0), (0, 2**32 - 1), (299, 5)]:
        assert len(reader.lookup(*missing)) == 0
    directory = reader.page_directory()
    pages = [reader.page(number) for number in range(len(directory))]
    assert sum(len(page.items) for page in pages) == len(keys)
    for page in pages:
        assert 8 + 8 * len(page.entries) + 32 * len(page.items) <= page_bytes


def test_lookup_is_one_read_of_the_directory_and_one_of_a_page(tmp_path: Path) -> None:
    made = built(tmp_path, MIXED, 10, 400)
    store = Store(made.data)
    reader = IndexObjectReader(store.fetch, made.sections)
    reader.page_directory()
    ref = made.sections[DIRECTORY]
    assert store.reads == [(ref.position, ref.position + ref.length)]
    for key in [*dict.fromkeys(MIXED), (22, 99), (777, 1)]:
        run = 32 * MIXED.count(key) > 400 - 16
        store.reads.clear()
        reader.lookup(*key)
        assert len(store.reads) == 1 or run


def test_long_run_is_read_page_by_page_until_the_limit(tmp_path: Path) -> None:
    keys = [(1, 5), *[(1, 6)] * 100, (1, 7)]
    made = built(tmp_path, keys, 3, 200)
    store = Store(made.data)
    reader = IndexObjectReader(store.fetch, made.sections)
    reader.page_directory()
    store.reads.clear()
    assert reader.lookup(1, 6, limit=7)["offset"].tolist() == expected_offsets(keys, (1, 6))[:10]
    assert len(store.reads) == 2
    assert reader.lookup(1, 6)["offset"].tolist() == expected_offsets(keys, (1, 6))
    assert len(reader.lookup(1, 7)) == len(reader.lookup(1, 5)) == 1


def test_meta_says_what_the_object_holds(tmp_path: Path) -> None:
    keys = [(at % 7, at) for at in range(1500)]
    made = built(tmp_path, keys, 5, 1000)
    store = Store(made.data)
    reader, meta = IndexObjectReader.from_tail(store.fetch, len(made.data))
    assert len(store.reads) == 2
    assert {name: ref for name, ref in reader.sections.items() if name != META} == {
        name: ref for name, ref in made.sections.items() if name != META
    }
    assert reader.sections[META] == made.sections[META]
    assert meta["store_id"] == "store-1"
    assert meta["layout"] == "tierlog"
    assert (meta["slots"], meta["slot_range"], meta["items"]) == (5, [0, 5], 1500)
    assert meta["segments"] == [0, 4096, 8192]
    assert (meta["first"], meta["next"]) == (0, 8 * 1500 + 8)
    assert (meta["min_store_ms"], meta["max_store_ms"], meta["min_born_ms"]) == (T, T + 1_499_000, T)
    assert meta["topics"] == {"9": "orders"}
    assert meta["begin_ms"] == T == reader.page_directory().begin_ms
    key_filter = reader.key_filter()
    assert key_filter is not None
    assert key_filter.keys == 1500
    assert reader.lookup(3, 3)["offset"].tolist() == expected_offsets(keys, (3, 3))


def test_message_with_two_keys_is_mapped_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def to_cold(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        seen.extend(offsets.tolist())
        return mirrored(offsets)

    source = compacted(tmp_path, [(1, 1), (2, 2)], 4)
    source.all_items()
    build_index_object(source, to_cold, META_OF)
    assert seen == [8, 16]


@pytest.mark.parametrize(
    "to_cold",
    [
        lambda offsets: np.zeros_like(offsets),
        lambda offsets: offsets + SEGMENT,
        lambda offsets: offsets[:-1],
        lambda offsets: offsets - 9,
    ],
    ids=["same", "other segment", "short", "below"],
)
def test_offset_map_that_is_no_bijection_inside_segments_is_refused(tmp_path: Path, to_cold: object) -> None:
    source = compacted(tmp_path, [(1, 1), (2, 2), (3, 3)], 4)
    with pytest.raises(CorruptIndexError):
        build_index_object(source, to_cold, META_OF)  # type: ignore[arg-type]


def test_damaged_source_is_not_published(tmp_path: Path) -> None:
    source = compacted(tmp_path, [(1, 1), (2, 2), (3, 3)], 4)
    path = tmp_path / "compacted"
    raw = bytearray(path.read_bytes())
    raw[70] ^= 1
    path.write_bytes(raw)
    damaged = CompactedIndexFile.open(LocalFileSystem(), path, verify=False)
    assert source.item_count == damaged.item_count
    with pytest.raises(CorruptIndexError):
        build_index_object(damaged, mirrored, META_OF)


def test_page_too_small_for_one_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        built(tmp_path, [(1, 1)], 4, 47)


def read_everything(data: bytes, made: IndexObject | None) -> list[list[int]]:
    store = Store(data)
    reader = (
        IndexObjectReader(store.fetch, made.sections)
        if made
        else IndexObjectReader.from_tail(store.fetch, len(data))[0]
    )
    key_filter = reader.key_filter()
    assert key_filter is not None
    assert all(key_filter.may_contain(*key) for key in MIXED)
    return [reader.lookup(*key)["offset"].tolist() for key in dict.fromkeys(MIXED)]


def test_every_damaged_byte_is_noticed_and_no_answer_is_wrong(tmp_path: Path) -> None:
    made = built(tmp_path, MIXED, 10, 4000)
    good = read_everything(made.data, made)
    noticed = 0
    pages = made.sections[PAGES]
    for at in range(0, len(made.data), 7):
        bad = made.data[:at] + bytes([made.data[at] ^ 0x04]) + made.data[at + 1 :]
        for how in (made, None):
            try:
                assert read_everything(bad, how) == good
            except CorruptionError:
                noticed += 1
            else:
                # Only the head of the pages and what a reader with known sections never looks at.
                meta = made.sections[META].position
                assert at < pages.position + SECTION_HEAD_BYTES or (how is not None and at >= meta)
    assert noticed > len(made.data) // 7
    for length in range(0, len(made.data), 11):
        with pytest.raises(CorruptionError):
            read_everything(made.data[:length], None)


def test_bytes_that_are_no_page_are_refused() -> None:
    for junk in (b"", b"\x28\xb5\x2f\xfd", bytes(100), b"\x28\xb5\x2f\xfd\xa4\xff\xff\xff\x7f"):
        with pytest.raises(CorruptIndexError):
            IndexPage.decode(junk, TIERLOG, 65536)
