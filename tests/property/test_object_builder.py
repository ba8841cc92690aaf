"""Objects built piece by piece equal a dict of their items, whatever the sizes of pages, pieces and parts."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.index.given_items import GivenItems
from tests.support.index.item_layouts import LEAST, THIRD
from tests.support.oracles.plain_objects import plain_order
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, ItemLayout
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.objects.builder import IndexMeta, IndexObject, build_index_object
from tierlog.index.objects.item_order import SlotOrder
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.objects.writer import PageWriter
from tierlog.index.rocketmq.export import export_object
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import TimeBounds

SEGMENT = 1024
FS = LocalFileSystem()
BOUNDS = TimeBounds(0, 1, 0, 1)
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
#: Few slots and few hashes, so that keys meet in slots, and runs begin and end at the borders of pages.
keys = st.tuples(st.integers(0, 9) | st.just(2**31 - 1), st.integers(0, 2) | st.just(2**32 - 1))
runs = st.lists(st.tuples(keys, st.integers(1, 9)), min_size=1, max_size=25)
Key = tuple[int, int]


def source_of(put: list[Key], slots: int, layout: ItemLayout = TIERLOG) -> GivenItems:
    """A compacted file to which these keys were put one after the other."""
    items = np.zeros(len(put), layout.compacted)
    items["hash"] = [low for low, _ in put]
    if layout.has_hash_high:
        items["hash_high"] = [high for _, high in put]
    items["offset"] = 7 * np.arange(len(put))
    items["seconds"] = np.arange(len(put)) // 3
    items = items[np.lexsort((-items["offset"], items["hash"] % slots))]
    return GivenItems(items, slots, layout, bounds=BOUNDS)


def mirrored(physical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cold offsets, counted from the end of each segment."""
    base = physical // SEGMENT * SEGMENT
    return base + SEGMENT - 1 - (physical - base)


def offsets_of(source: GivenItems, key: Key) -> list[int]:
    """The cold offsets of a key, newest first, straight from the items."""
    items = source.items
    mine = items["hash"] == key[0]
    if source.layout.has_hash_high:
        mine &= items["hash_high"] == key[1]
    found: list[int] = mirrored(np.sort(items["offset"][mine].astype(np.int64))[::-1]).tolist()
    return found


class Counted:
    """The bytes of an object, and the ranges that were read."""

    def __init__(self, made: IndexObject) -> None:
        self.data = made.data
        self.reads: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.reads.append((start, end))
        return self.data[start:end]


@QUICK
@given(runs, st.randoms(use_true_random=False), st.sampled_from([48, 56, 80, 112, 144, 400, 65536]),
       st.sampled_from([1, 3, 10, 40]), st.sampled_from([1, 2, 7, 1000]))  # fmt: skip
def test_every_key_is_found_and_no_byte_is_read_twice(
    given_runs: list[tuple[Key, int]], chance: object, page_bytes: int, slots: int, piece_items: int
) -> None:
    put = [key for key, count in given_runs for _ in range(count)]
    chance.shuffle(put)  # type: ignore[attr-defined]
    source = source_of(put, slots)
    made = build_index_object(
        source, mirrored, IndexMeta("s", SEGMENT, {}), page_bytes, piece_items=piece_items
    )  # fmt: skip
    whole = build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), page_bytes)
    assert made.data == whole.data
    counted = Counted(made)
    reader = IndexObjectReader(counted.fetch, made.sections)
    reader.page_directory()
    key_filter = reader.key_filter()
    assert key_filter is not None
    assert key_filter.keys == len(set(put))
    for key in {*put, (0, 7), (5, 1), (9, 0), (2**31 - 1, 0)}:
        counted.reads.clear()
        expected = offsets_of(source, key)
        assert reader.lookup(*key)["offset"].tolist() == expected
        assert len(set(counted.reads)) == len(counted.reads)
        room = (page_bytes - 16) // 32
        assert len(counted.reads) == 1 or len(expected) > room
        assert key_filter.may_contain(*key) or not expected


@QUICK
@given(runs, st.sampled_from([48, 144, 400]), st.sampled_from([3, 10, 40]), st.lists(st.integers(0, 40), max_size=4),
       st.sampled_from([1, 5, 1000]))  # fmt: skip
def test_parts_by_slot_range_hold_together_what_the_whole_holds(
    given_runs: list[tuple[Key, int]], page_bytes: int, slots: int, cuts: list[int], piece_items: int
) -> None:
    put = [key for key, count in given_runs for _ in range(count)]
    source = source_of(put, slots)
    edges = sorted({0, slots, *(cut for cut in cuts if cut < slots)})
    items = 0
    found: dict[Key, list[int]] = {}
    for low, high in itertools.pairwise(edges):
        mine = [key for key in put if low <= key[0] % slots < high]
        if not mine:
            continue
        made = build_index_object(
            source, mirrored, IndexMeta("s", SEGMENT, {}), page_bytes, slot_range=(low, high), piece_items=piece_items
        )  # fmt: skip
        assert made.meta["slot_range"] == [low, high]
        items += made.meta["items"]
        reader = IndexObjectReader(Counted(made).fetch, made.sections)
        pages = [reader.page(number) for number in range(len(reader.page_directory()))]
        assert pages[0].first_slot == low
        assert pages[-1].first_slot + len(pages[-1].entries) == high
        for key in {*put, (0, 7)}:
            hits = reader.lookup(*key)["offset"].tolist()
            assert hits == (offsets_of(source, key) if low <= key[0] % slots < high else [])
            found.setdefault(key, []).extend(hits)
    assert items == len(put)
    assert all(found[key] == offsets_of(source, key) for key in put)


def exported(made: IndexObject, folder: Path) -> CompactedIndexFile:
    """The object in RocketMQ's form, read again."""
    reader = IndexObjectReader(Counted(made).fetch, made.sections)
    low, high = made.meta["slot_range"]
    target = folder / "exported"
    export_object(
        FS,
        reader,
        end_ms=1,
        item_count=made.meta["items"],
        target=target,
        tmp_dir=folder / "tmp",
        slot_range=(low, high),
    )
    return CompactedIndexFile.open_bare(FS, target, ROCKETMQ, made.meta["slots"])


@settings(QUICK, max_examples=25)
@given(runs, st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2), min_size=1, max_size=9),
       st.randoms(use_true_random=False), st.sampled_from([48, 112, 400]), st.sampled_from([1, 3, 40]),
       st.booleans())  # fmt: skip
def test_export_equals_the_local_file_slot_by_slot(
    given_runs: list[tuple[Key, int]], seconds: list[int], chance: object, page_bytes: int, slots: int, is_part: bool
) -> None:
    put = [key for key, count in given_runs for _ in range(count)]
    chance.shuffle(put)  # type: ignore[attr-defined]
    source = source_of(put, slots)
    source.items["seconds"] = np.resize(seconds, len(put))
    fields = [name for name in ROCKETMQ.compacted_fields if name != "offset"]
    middle = put[0][0] % slots
    low, high = (middle, middle + 1) if is_part else (0, slots)
    made = build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), page_bytes, slot_range=(low, high))
    with tempfile.TemporaryDirectory() as folder:
        file = exported(made, Path(folder))
        for slot in range(slots):
            found = file.slot_items(slot)
            local = source.items[source.items["hash"] % slots == slot] if low <= slot < high else source.items[:0]
            assert sorted(found[fields].tolist()) == sorted(local[fields].tolist())
            assert (np.diff(found["seconds"].astype(np.int64)) <= 0).all()
            cold = mirrored(local["offset"].astype(np.int64))
            assert sorted(zip(found["hash"].tolist(), found["offset"].tolist(), strict=True)) == sorted(
                zip(local["hash"].tolist(), cold.tolist(), strict=True)
            )
            for key in {*put}:  # of one key in equal seconds the newest comes first
                mine = set(mirrored(np.array(physical_of(source, key), np.int64)).tolist())
                chosen = [item for item in found if int(item["offset"]) in mine]
                physical = mirrored(np.array([item["offset"] for item in chosen], np.int64))
                by_time = [(-int(item["seconds"]), -at) for item, at in zip(chosen, physical.tolist(), strict=True)]
                assert by_time == sorted(by_time)


def physical_of(source: GivenItems, key: Key) -> list[int]:
    """The physical offsets of a key."""
    mine = (source.items["hash"] == key[0]) & (source.items["hash_high"] == key[1])
    found: list[int] = source.items["offset"][mine].tolist()
    return found


@QUICK
@given(runs, st.randoms(use_true_random=False), st.sampled_from([1, 3, 40]), st.sampled_from([TIERLOG, THIRD, LEAST]))
def test_kernel_sorts_as_the_plain_order_says(
    given_runs: list[tuple[Key, int]], chance: object, slots: int, layout: ItemLayout
) -> None:
    put = [key for key, count in given_runs for _ in range(count)]
    chance.shuffle(put)  # type: ignore[attr-defined]
    source = source_of(put, slots, layout)
    order = SlotOrder(source.items, slots, 0, slots)
    (piece,) = order.sorted()
    assert piece.items.tobytes() == source.items[plain_order(source.items, slots)].tobytes()


def test_long_slot_is_sorted_and_paged_in_pieces() -> None:
    chance = np.random.default_rng(5)
    put = [(7, int(high)) for high in chance.integers(0, 40, 3000)] + [(3, 1), (8, 2)] * 4
    source = source_of(put, 5)
    pieces = list(SlotOrder(source.items, 5, 0, 5, piece_items=100).sorted())
    assert max(len(piece.items) for piece in pieces) == 100
    joined = np.concatenate([piece.items for piece in pieces])
    assert (joined == source.items[plain_order(source.items, 5)]).all()
    made = build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), 1000, piece_items=100)
    assert made.data == build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), 1000).data


def test_many_empty_slots_do_not_cost_memory_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.index.objects.writer._MOST_SLOTS", 50)
    source = source_of([(13, 1), (400, 2), (999, 3), (999, 3)], 1000)
    made = build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), 400)
    monkeypatch.undo()
    assert made.data == build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), 400).data
    reader = IndexObjectReader(Counted(made).fetch, made.sections)
    assert reader.lookup(999, 3)["offset"].tolist() == offsets_of(source, (999, 3))


def test_layout_without_a_second_hash_has_no_filter() -> None:
    source = source_of([(1, 0), (2, 0), (1, 0)], 4, LEAST)
    made = build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}))
    reader = IndexObjectReader(Counted(made).fetch, made.sections, layouts={LEAST.number: LEAST})
    assert reader.key_filter() is None
    assert reader.lookup(1, 99)["offset"].tolist() == offsets_of(source, (1, 0))


@pytest.mark.parametrize("piece_items", [1, 3, 1000])
@pytest.mark.parametrize("name", ["hash", "hash_high"])
def test_a_key_that_changes_before_it_is_in_the_filter_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, piece_items: int
) -> None:
    source = source_of([(low, low * 77) for low in range(40)], 7)
    sized = KeyFilter.sized

    def changing(keys: int, bits_per_key: int) -> KeyFilter:
        source.items[name][23] ^= 1 << 30
        return sized(keys, bits_per_key)

    monkeypatch.setattr(KeyFilter, "sized", changing)
    with pytest.raises(CorruptIndexError, match="changed its key"):
        build_index_object(source, mirrored, IndexMeta("s", SEGMENT, {}), piece_items=piece_items)


@pytest.mark.parametrize("piece_items", [1, 2, 1000])
def test_items_that_do_not_lie_slot_by_slot_are_refused(piece_items: int) -> None:
    source = source_of([(1, 0), (2, 0), (3, 0), (3, 1), (2, 5)], 7)
    for order in ([4, 0, 1, 2, 3], [0, 3, 1, 2, 4], [0, 1, 3, 2, 4]):
        disordered = GivenItems(source.items[order], 7, bounds=BOUNDS)
        with pytest.raises(CorruptIndexError):
            build_index_object(disordered, mirrored, IndexMeta("s", SEGMENT, {}), piece_items=piece_items)


def test_pages_are_written_as_soon_as_nothing_can_change_them() -> None:
    source = source_of([(low, 0) for low in range(500)], 500)
    written: list[bytes] = []
    writer = PageWriter(written.append, TIERLOG, slots=500, page_bytes=400, begin_ms=0, slot_from=0)
    for piece in SlotOrder(source.items, 500, 0, 500, piece_items=50).sorted():
        before = len(written)
        writer.add(piece.items, piece.slot_end)
        assert len(written) > before
    directory = writer.finish(500)
    assert len(directory) > len(written)
    assert directory.end == int(directory.rows["position"][0]) + sum(map(len, written))
