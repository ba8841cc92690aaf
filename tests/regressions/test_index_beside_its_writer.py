"""What happened to index files beside their writer and at the end of their store, and should not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.index.index_logs import Log, T, numbered
from tests.support.index.local_indexes import assert_all_found, derive_all, names, open_index, states
from tests.support.stores.engines import tiny_settings
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.message.batch import Message


@pytest.mark.parametrize("messages_without_keys", [0, 5])
def test_an_archive_command_beside_the_first_key_of_a_file_failed_and_left_the_file_behind(
    messages_without_keys: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was there and nothing in it yet; until a restart nobody wrote or sealed it."""
    log = Log([("t", "", T)] * messages_without_keys + [("t", f"k{number}-0", T) for number in range(10)])
    index = open_index(StorePaths(tmp_path))
    index.on_records(log.range(end=log.offsets[messages_without_keys]))
    show = index._set.show_writing

    def shown(file: ChainedIndexFile) -> None:
        show(file)
        monkeypatch.undo()
        assert not index.put_aside()

    monkeypatch.setattr(index._set, "show_writing", shown)
    index.on_records(log.range())
    assert states(index) == [("writing", log.offsets[messages_without_keys], None)]
    assert index.seal()
    assert states(index) == [("sealed", log.offsets[messages_without_keys], log.end)]
    assert index.gaps(0, log.end) == []
    assert len(names(StorePaths(tmp_path))["writing"]) == 0


def test_a_watermark_that_rises_beside_the_first_key_of_a_file_stopped_the_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log([("t", "", T)] * 5 + [("t", f"k{number}-0", T) for number in range(5)])
    index = open_index(StorePaths(tmp_path))
    show = index._set.show_writing

    def shown(file: ChainedIndexFile) -> None:
        show(file)
        monkeypatch.undo()
        index.set_indexed_to(log.offsets[3])

    monkeypatch.setattr(index._set, "show_writing", shown)
    index.on_records(log.range())
    assert states(index) == [("writing", log.offsets[3], None)]
    assert index.gaps(0, log.end) == []


def test_a_store_that_was_closed_right_after_an_index_file_was_derived_again_failed_to_close(tmp_path: Path) -> None:
    """The checkpoint at the end flushed that file through what refuses changes once the store is closing."""

    def open_engine() -> Store:
        return Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock())

    engine = open_engine()
    engine.append([Message("t", b"%04d" % number, [f"k{number}"]) for number in range(1_000)])
    engine.flush()
    engine.run_tiers()
    file = engine._index.files()[0]
    assert file.next is not None
    engine._index.discard(file)
    engine._index.maintain()
    engine._hot.derive(engine._index.derive(file.first, file.next), file.first, file.next)
    engine.close()
    engine = open_engine()
    assert [file.state for file in engine.files() if file.kind == "index"] == ["writing", "compacted", "writing"]
    for number in range(1_000):
        assert len(engine.query(Query("t", f"k{number}")).messages) == 1
    engine.close()


class LittleRoom(LocalFileSystem):
    """A disk that has room for a part of a compacted file only."""

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        if path.name.startswith("compact-"):
            path.write_bytes(bytes(size_bytes // 2))
            raise DiskFullError("no space left for the write", path=str(path))
        super().create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)


def test_a_compaction_without_room_kept_what_was_left_of_the_disk(tmp_path: Path) -> None:
    paths, log = StorePaths(tmp_path), numbered(10)
    index = open_index(paths, fs=LittleRoom())
    index.on_records(log.range())
    index.seal()
    with pytest.raises(DiskFullError):
        index.compact_sealed()
    assert list(paths.tmp.iterdir()) == []


def test_a_file_that_two_gave_up_took_the_next_of_its_name_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was removed below the border while its sealing failed: it stood on the list of files to unlink twice."""
    log = numbered(10)
    fs = FaultyFileSystem(LocalFileSystem())
    index = open_index(StorePaths(tmp_path), fs=fs)
    index.on_records(log.range())
    index.put_aside()
    fs.refuse("flush", "*/index/writing/*", times=1)
    seal = ChainedIndexFile.seal

    def removed(file: ChainedIndexFile) -> None:
        assert index.remove_below(log.end) == 1
        seal(file)

    monkeypatch.setattr(ChainedIndexFile, "seal", removed)
    with pytest.raises(DiskFailedError):
        index.seal_full()
    assert index._set.hidden == [T]
    index.maintain()
    assert index._set.hidden == []


def test_a_gap_that_was_derived_while_its_watermark_rose_was_published_twice(tmp_path: Path) -> None:
    """The archive was reached only now, and had more than was known at opening."""
    log = numbered(30)
    index = open_index(StorePaths(tmp_path))
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    for file in index.files()[:2]:
        index.discard(file)
    derived = index.derive(0, log.offsets[20])
    derived.on_records(log.range(end=log.offsets[15]))
    index.set_indexed_to(log.offsets[10])
    derived.on_records(log.range(end=log.offsets[20]))
    assert derived.done
    assert index.pending() == []
    derive_all(index, log, log.end)
    index.maintain()
    assert states(index) == [
        ("uploaded", 0, log.offsets[10]),
        ("compacted", log.offsets[10], log.offsets[20]),
        ("compacted", log.offsets[20], log.end),
    ]
    assert_all_found(index, log)


def test_what_could_not_be_unlinked_after_a_file_found_no_room_stayed_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = numbered(10)
    fs = FaultyFileSystem(LocalFileSystem())
    paths = StorePaths(tmp_path)
    index = open_index(paths, fs=fs)
    fs.refuse("unlink", "*/index/writing/*", times=1)

    def no_room(*given: object) -> None:
        raise DiskFullError("no space left for the write")

    monkeypatch.setattr("tierlog.index.local.chained_file.FileHeader", no_room)
    with pytest.raises(DiskFullError):
        index.on_records(log.range())
    assert len(names(paths)["writing"]) == 1
    monkeypatch.undo()
    index.maintain()
    assert names(paths)["writing"] == []
    index.on_records(log.range())
    assert_all_found(index, log)
