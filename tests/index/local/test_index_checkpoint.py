"""Opening the index goes on where it was last durable, whatever happened since."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.index.index_logs import Log, T, numbered
from tests.support.index.index_puts import PUTS_A11, batch_of
from tests.support.index.local_indexes import found_in
from tests.support.plain_start import WAYS, take
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT
from tierlog.index.format.header import items_position
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import KeyWalk
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, ReadOnlyError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Order
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.message.batch import Message

PATHS = StorePaths(ROOT)


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take(request.param, monkeypatch)


def open_index(
    fs: FileSystem, *, indexed_to: int = 0, border: int = 0, slots: int = 100, items: int = 400
) -> LocalIndex:
    for folder in (PATHS.tmp, PATHS.tierlog):
        fs.make_dirs(folder)
    return LocalIndex.open(
        fs, PATHS, slots=slots, items=items, layout=TIERLOG, border=border, indexed_to=indexed_to, log_start=0
    )  # fmt: skip


def all_hits(index: LocalIndex, log: Log) -> list[list[int]]:
    snapshot = index.snapshot()
    return [[hit.offset for hit in found_in(snapshot, f"k{number}-0")] for number in range(len(log.offsets))]


def each_once(log: Log) -> list[list[int]]:
    return [[offset] for offset in log.offsets]


@pytest.mark.parametrize("seed", range(8))
def test_opening_goes_on_from_the_last_checkpoint(seed: int) -> None:
    log, fs = numbered(60), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[10]))
    index.checkpoint()
    index.on_records(log.range(end=log.offsets[30]))
    index.checkpoint()
    index.on_records(log.range(end=log.offsets[50]))
    again = open_index(fs.crash(seed))
    assert again.next_offset() == log.offsets[30]
    assert again.gaps(0, log.end) == []
    again.on_records(log.range())
    assert all_hits(again, log) == each_once(log)
    again.seal()
    again.compact_sealed()
    assert [(entry.first, entry.next) for entry in again.files()] == [(0, log.end)]
    assert all_hits(again, log) == each_once(log)


def test_file_taken_up_again_ends_with_the_bytes_of_one_that_was_never_left() -> None:
    log = numbered(60)
    sealed = []
    for stops in (False, True):
        fs = CrashFileSystem()
        index = open_index(fs, slots=7)
        index.on_records(log.range(end=log.offsets[25]))
        index.checkpoint()
        if stops:
            index.on_records(log.range(end=log.offsets[40]))
            index = open_index(fs.crash(3), slots=7)
        index.on_records(log.range())
        index.seal()
        (entry,) = index.files()
        sealed.append(bytes(entry.reader.data))
    assert sealed[0] == sealed[1]


def test_linking_again_gives_the_chains_that_puts_gave() -> None:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT)
    path = ROOT / "file"
    file = ChainedIndexFile.create(fs, path, TIERLOG, slots=4, items=8, begin_ms=T, first_physical=0, generation=1)
    file.put(batch_of(sorted(PUTS_A11, key=lambda put: put[4])), 0, 5)
    before = bytes(file.data)
    state = file.written(1000)
    file.data[28 : items_position(4)] = 0xFF
    again = ChainedIndexFile.open_writing(fs, path, state)
    again.look_up_row()
    assert bytes(again.data) == before


def test_items_are_found_alike_before_a_file_is_linked_again_and_afterwards() -> None:
    log = Log([("t", f"k{number % 7} a", T + 250 * number) for number in range(90)])
    fs = CrashFileSystem()
    index = open_index(fs, slots=3)
    index.on_records(log.range(end=log.offsets[80]))
    index.checkpoint()
    borders = (None, _At(log.offsets[20]), _At(log.offsets[60]))
    ways = [(order, low, high) for order in Order for low in borders for high in borders]
    for key in ("a", *(f"k{number}" for number in range(8))):
        hashes = key_hash("t", key), key_hash_high("t", key)
        found = []
        for is_linked in (False, True):
            (entry,) = open_index(fs, slots=3).snapshot().writing
            assert isinstance(entry.reader, ChainedIndexFile)
            if is_linked:
                entry.reader.look_up_row()
            newest = [_taken(KeyWalk.newest_first(entry.reader, hashes), step) for step in (1, 5, 1000)]
            found.append((newest, [_taken(KeyWalk.in_order(entry.reader, hashes, *way), 3) for way in ways]))
        assert found[0] == found[1]


def test_the_first_put_goes_on_with_the_chains_whoever_looks_up_meanwhile() -> None:
    log, fs = numbered(60), CrashFileSystem()
    index = open_index(fs, slots=3)
    index.on_records(log.range(end=log.offsets[40]))
    index.checkpoint()
    again = open_index(fs, slots=3)
    hits: list[list[list[int]]] = []
    readers = [threading.Thread(target=lambda: hits.append(all_hits(again, log)[:40])) for _ in range(4)]
    for reader in readers:
        reader.start()
    again.on_records(log.range())
    for reader in readers:
        reader.join()
    assert hits == [each_once(log)[:40]] * 4
    assert all_hits(again, log) == each_once(log)


class _At:
    """A border at a physical offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def is_reached(self, offset: int) -> bool:
        return offset >= self._offset

    def lies_between(self, before: int | None, behind: int | None) -> bool:
        return True


def _taken(walk: KeyWalk | None, most: int) -> list[int]:
    found: list[int] = []
    while walk is not None:
        items, walk = walk.take(most)
        found += items["offset"].tolist()
    return found


def test_stretches_without_keys_are_not_scanned_again() -> None:
    log = Log([("t", "", T + number) for number in range(20)])
    fs = CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[15]))
    index.checkpoint()
    index.on_records(log.range())
    again = open_index(fs.crash(1))
    assert again.next_offset() == log.offsets[15]
    assert again.gaps(0, log.end) == []
    assert again.covered_to() == log.offsets[15]


def test_checkpoint_of_what_did_not_change_writes_nothing() -> None:
    log, fs = numbered(5), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range())
    index.checkpoint()
    calls = fs.calls
    index.checkpoint()
    assert fs.calls == calls


def test_file_of_the_same_name_that_is_another_is_derived_again() -> None:
    """The one that the checkpoint speaks of was sealed and lost; its range is being derived into a new file."""
    log, fs = numbered(30), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[20]))
    index.checkpoint()
    index.seal()
    (entry,) = index.files()
    index.discard(entry)
    index.maintain()
    derived = index.derive(0, log.offsets[20])
    derived.on_records(log.range(end=log.offsets[5]))
    assert (PATHS.index / "writing" / entry.name) in fs._names
    fs.flush_dir(PATHS.index / "writing")
    again = open_index(fs.crash(0, lose_everything=True))
    assert again.next_offset() == 0
    again.on_records(log.range())
    assert all_hits(again, log) == each_once(log)


@pytest.mark.parametrize("indexed_to", [1, 15, 30])
def test_file_that_straddles_the_watermark_is_derived_again_from_there(indexed_to: int) -> None:
    log, fs = numbered(30), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[20]))
    index.checkpoint()
    again = open_index(fs, indexed_to=log.offsets[indexed_to] if indexed_to < 30 else log.end)
    for first, end in again.gaps(0, log.end):
        again.derive(first, end).on_records(log.range())
    again.on_records(log.range())
    assert all_hits(again, log) == each_once(log)


def test_checkpoint_below_the_border_is_of_no_use() -> None:
    log, fs = numbered(30), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[10]))
    index.checkpoint()
    again = open_index(fs, border=log.offsets[20])
    assert again.next_offset() == log.offsets[20]
    again.on_records(log.range(start=log.offsets[20]))
    assert all_hits(again, log)[20:] == each_once(log)[20:]


def test_index_ahead_of_a_log_that_lost_its_end_forgets_it_for_good() -> None:
    """What is written there next is other records: an old checkpoint must not hide them."""
    old, fs = Log([("t", "", T + number) for number in range(30)]), CrashFileSystem()
    index = open_index(fs)
    index.on_records(old.range())
    index.checkpoint()
    again = open_index(fs)
    again.discard_above(old.offsets[10])
    assert again.next_offset() == old.offsets[10]
    new = numbered(30)
    after = open_index(fs.crash(5))
    assert after.next_offset() == old.offsets[10]
    first = next(number for number, offset in enumerate(new.offsets) if offset >= old.offsets[10])
    after.on_records(new.range(start=old.offsets[10]))
    assert all_hits(after, new)[first:] == each_once(new)[first:]
    keyed = open_index(fs2 := CrashFileSystem())
    keyed.on_records(new.range())
    keyed.checkpoint()
    cut = open_index(fs2)
    cut.discard_above(new.offsets[10])
    assert [entry.state for entry in cut.files()] == []
    assert open_index(fs2.crash(1)).next_offset() == 0


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "generation": 1, "blank": 3, "writing": null}']
)
def test_unreadable_checkpoint_means_that_all_is_derived_again(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    log, fs = numbered(10), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range())
    index.checkpoint()
    document = json.loads(fs.read(PATHS.index_json))
    assert document["writing"]["item_count"] == 10
    fs.unlink(PATHS.index_json)
    fs.open(PATHS.index_json).write_at(0, text)
    again = open_index(fs)
    assert again.next_offset() == 0
    assert "derived again" in caplog.text
    again.on_records(log.range())
    assert all_hits(again, log) == each_once(log)


def test_damaged_items_are_found_and_derived_again() -> None:
    log, fs = numbered(10), CrashFileSystem()
    index = open_index(fs)
    index.on_records(log.range())
    index.checkpoint()
    (entry,) = index.files()
    items = entry.reader.all_items()
    for damage in ({"hash": -1}, {"offset": 1 << 40}):
        wreck = fs.crash(0)
        at = items_position(100) + 5 * TIERLOG.chained_bytes
        item = np.array(items[5])
        for name, value in damage.items():
            item[name] = value
        wreck.open(entry.path).write_at(at, item.tobytes())
        again = open_index(wreck)
        assert again.next_offset() == 0
        again.on_records(log.range())
        assert all_hits(again, log) == each_once(log)


def test_items_whose_flush_failed_are_never_taken_for_durable() -> None:
    log, disk = numbered(30), CrashFileSystem()
    fs = FaultyFileSystem(disk)
    index = open_index(fs)
    index.on_records(log.range(end=log.offsets[10]))
    fs.refuse("flush_mapped", times=1)
    for _ in range(2):
        with pytest.raises(DiskFailedError):
            index.checkpoint()
    with pytest.raises(DiskFailedError, match="earlier flush"):
        index.seal()
    assert open_index(disk.crash(0)).next_offset() == 0


def test_store_turns_read_only_when_its_index_cannot_be_flushed() -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    engine = Store.open(ROOT, settings=tiny_settings(), fs=fs, clock=ManualClock())
    engine.append([Message("orders", b"x", ["k"])])
    fs.refuse("flush_mapped")
    with pytest.raises(DiskFailedError):
        engine.flush()
    assert "checkpoint of the index failed" in (engine.read_only_reason or "")
    with pytest.raises(ReadOnlyError):
        engine.append([Message("orders", b"y")])
    engine.close()


def test_clean_stop_leaves_nothing_to_derive() -> None:
    fs = CrashFileSystem()
    for keys in ([], ["k"]):
        engine = Store.open(ROOT, settings=tiny_settings(), fs=fs, clock=ManualClock())
        engine.append([Message("orders", b"x", keys)] * 10)
        engine.close()
        engine = Store.open(ROOT, settings=tiny_settings(), fs=fs, clock=ManualClock())
        assert engine._index.next_offset() == engine._hot.log.end
        engine.close()
