"""Items of another system go through every stage: a layout is a value, and nobody assumes ours."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.support.index.index_items import put_so
from tests.support.index.index_logs import Log, T, numbered
from tests.support.index.item_layouts import BY_NUMBER, COVERED, NARROW, THIRD
from tests.support.index.local_indexes import found_in
from tests.support.stores.dumps import dumped
from tests.support.stores.index_world import index_settings
from tests.support.world import URL
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, ItemLayout
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.states import IndexState
from tierlog.index.objects.builder import IndexMeta, IndexObject, build_index_object
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.rocketmq.export import export_rocketmq
from tierlog.index.search.query import Query
from tierlog.service.engine.opening import open_parts
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

FS = LocalFileSystem()
every_covered = pytest.mark.parametrize("layout", COVERED, ids=lambda layout: layout.name)


@every_covered
def test_a_layout_that_was_used_goes_to_another_process(layout: ItemLayout) -> None:
    item = np.zeros(1, layout.compacted)
    assert layout.decode_compacted(item.tobytes()) == layout.decode_compacted(item.tobytes())
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert copy.compacted == layout.compacted


def open_index(folder: Path, layout: ItemLayout) -> LocalIndex:
    paths = StorePaths(folder)
    FS.make_dirs(paths.tmp)
    FS.make_dirs(paths.tierlog)
    return LocalIndex.open(FS, paths, slots=7, items=50, layout=layout, border=0, indexed_to=0, log_start=0)


def assert_found(index: LocalIndex, log: Log, layout: ItemLayout, state: IndexState) -> None:
    assert {entry.state for entry in index.files()} == {state}
    assert {entry.reader.layout for entry in index.files()} == {layout}
    for number, offset in enumerate(log.offsets):
        (hit,) = found_in(index.snapshot(), f"k{number}-0")
        assert hit.offset == offset
        assert hit.topic_id == 100
        assert abs(hit.second_ms - (T + 100 * number)) < 1000
    assert found_in(index.snapshot(), "none") == []


def compacted(folder: Path, layout: ItemLayout) -> tuple[CompactedIndexFile, Log]:
    log, index = numbered(30, keys=2), open_index(folder, layout)
    index.on_records(log.range())
    index.seal()
    index.compact_sealed()
    file = index.files()[0].reader
    assert isinstance(file, CompactedIndexFile)
    return file, log


def built(file: CompactedIndexFile) -> IndexObject:
    return build_index_object(file, lambda offsets: offsets, IndexMeta("s", 1 << 20, {100: "t"}), 1024)


@every_covered
def test_found_in_every_local_state_before_and_after_each_stop(tmp_path: Path, layout: ItemLayout) -> None:
    log, index = numbered(24), open_index(tmp_path, layout)
    index.on_records(log.range())
    assert_found(index, log, layout, IndexState.WRITING)
    index.checkpoint()
    index = open_index(tmp_path, layout)
    assert index.next_offset() == log.end, "what was written is taken up, not derived again"
    assert_found(index, log, layout, IndexState.WRITING)
    index.seal()
    assert_found(index, log, layout, IndexState.SEALED)
    index = open_index(tmp_path, layout)
    assert_found(index, log, layout, IndexState.SEALED)
    assert index.compact_sealed() == 1
    assert_found(index, log, layout, IndexState.COMPACTED)
    index = open_index(tmp_path, layout)
    assert_found(index, log, layout, IndexState.COMPACTED)
    index.set_indexed_to(log.end)
    index.settle()
    assert_found(open_index(tmp_path, layout), log, layout, IndexState.UPLOADED)


@every_covered
def test_index_object_of_any_layout_answers_as_its_file(tmp_path: Path, layout: ItemLayout) -> None:
    file, log = compacted(tmp_path, layout)
    made = built(file)
    for reader in (
        IndexObjectReader(lambda start, end: made.data[start:end], made.sections, layouts=BY_NUMBER),
        IndexObjectReader.from_tail(lambda start, end: made.data[start:end], len(made.data), layouts=BY_NUMBER)[0],
    ):
        assert reader.page_directory().layout == layout
        for number, offset in enumerate(log.offsets[:24]):
            low, high = key_hash("t", f"k{number}-1"), key_hash_high("t", f"k{number}-1")
            found = reader.lookup(low, high)
            assert found["offset"].tolist() == [offset]
            assert found.tolist() == file.lookup(low, high).tolist()
        assert len(reader.lookup(key_hash("t", "none"), key_hash_high("t", "none"))) == 0


def test_object_of_a_layout_that_nobody_let_in_is_refused(tmp_path: Path) -> None:
    file, _ = compacted(tmp_path, THIRD)
    made = built(file)
    with pytest.raises(CorruptIndexError):
        IndexObjectReader(lambda start, end: made.data[start:end], made.sections).page_directory()
    with pytest.raises(CorruptIndexError):
        CompactedIndexFile.open(FS, file.path)


@every_covered
def test_dumps_show_what_the_layout_has(tmp_path: Path, layout: ItemLayout) -> None:
    log, index = numbered(24), open_index(tmp_path, layout)
    index.on_records(log.range())
    index.seal()
    (sealed,) = index.files()
    chained = dumped(sealed.path, layouts=BY_NUMBER)
    index.compact_sealed()
    (entry,) = index.files()
    assert isinstance(entry.reader, CompactedIndexFile)
    (tmp_path / "object").write_bytes(built(entry.reader).data)
    for found in (chained, dumped(entry.path, layouts=BY_NUMBER), dumped(tmp_path / "object", layouts=BY_NUMBER)):
        assert found.findings == []
        assert found.head["layout"] == layout.name
        assert sorted(row["offset"] for row in found.rows) == log.offsets
        assert {row["queue_id"] for row in found.rows} == {0 if "queue_id" in layout.fields else None}
        highs = {key_hash_high("t", f"k{number}-0") for number in range(24)}
        assert {row["hash_high"] for row in found.rows} == (highs if layout.has_hash_high else {None})


def test_dump_of_an_unknown_layout_says_so(tmp_path: Path) -> None:
    file, _ = compacted(tmp_path, THIRD)
    assert "layout 77 is unknown" in dumped(file.path).findings


@every_covered
def test_rocketmq_form_has_zeros_for_what_a_layout_lacks(tmp_path: Path, layout: ItemLayout) -> None:
    file, log = compacted(tmp_path, layout)
    export_rocketmq(FS, file, tmp_path / "out", tmp_path / "tmp")
    exported = CompactedIndexFile.open_bare(FS, tmp_path / "out", ROCKETMQ, file.slots)
    (item,) = exported.lookup(key_hash("t", "k3-1"))
    assert (int(item["offset"]), int(item["topic_id"]), int(item["queue_id"])) == (log.offsets[3], 100, 0)
    assert np.array_equal(exported.all_items()["hash"], file.all_items()["hash"])


# ---- a whole store


def open_store(folder: Path, objects: MemoryObjectStore, clock: ManualClock, layout: ItemLayout) -> Store:
    settings, randomness = index_settings(), SeededRandomness(1)
    components = Components(settings, clock, FS, randomness, objects, layout)
    parts = open_parts(folder, components, cold_url=URL, store_id="s", read_only=False)
    return Store(parts, settings, clock, randomness, read_only=False)


@pytest.mark.parametrize("layout", [THIRD, NARROW], ids=lambda layout: layout.name)
def test_store_with_items_of_another_system_searches_both_tiers_and_checks_clean(
    tmp_path: Path, layout: ItemLayout
) -> None:
    clock = ManualClock()
    objects = MemoryObjectStore(clock)
    engine = open_store(tmp_path, objects, clock, layout)

    def assert_answers() -> None:
        for key in range(5):
            answer = engine.query(Query("orders", f"k{key}", limit=100, order=Order.OLDEST))
            assert answer.coverage.complete
            assert [message.record.body for message in answer.messages] == [b"%d" % n for n in range(key, 40, 5)]
        assert engine.check(deep=True) == []

    for number in range(40):
        clock.advance(300)
        engine.append([Message("orders", b"%d" % number, [f"k{number % 5}", f"own-{number}"], queue_id=0)])
    assert_answers()
    engine.archive(everything=True, drop_hot=True)
    assert engine._hot.border == engine._hot.log.end
    assert_answers()
    engine.close()
    engine = open_store(tmp_path, objects, clock, layout)
    assert_answers()
    engine.close()


def test_deep_check_compares_what_the_layout_has(tmp_path: Path) -> None:
    """The topic id of an item is wrong: told although other fields are not there to be compared."""
    clock = ManualClock()
    objects = MemoryObjectStore(clock)
    engine = open_store(tmp_path, objects, clock, THIRD)
    engine.append([Message("orders", b"1", ["k"], queue_id=0)])
    engine._hot.dispatch()
    file = engine._index.files()[0].reader
    file.all_items()["topic_id"][1] += 1
    put_so(file)
    engine.archive(everything=True)
    (finding,) = engine.check(deep=True)
    assert "say something else of their record" in finding
    engine.close()


def test_every_layout_has_a_number_of_its_own() -> None:
    assert len(BY_NUMBER) == 5
    assert TIERLOG.number in BY_NUMBER
