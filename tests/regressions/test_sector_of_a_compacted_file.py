"""A sector of zeros in a compacted index file: 312 of 400 messages were found, and each answer said it was complete."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from tests.support.index.index_bytes import compacted_body, paged, unpaged
from tests.support.index.index_puts import PUTS_A11, T, batch_of
from tests.support.stores.engines import tiny_settings
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import TIERLOG
from tierlog.index.format.trailer import TRAILER_BYTES
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.message.batch import Message

FS = LocalFileSystem()


def engine_at(root: Path) -> Store:
    return Store.open(root, settings=tiny_settings(), clock=ManualClock())


def damaged_store(root: Path) -> Path:
    """A store of 400 messages whose compacted index file has a sector of zeros among its items; the file."""
    engine = engine_at(root)
    engine.append([Message("t", b"%d" % number, [f"k{number}"]) for number in range(400)])
    engine.flush()
    engine._hot.dispatch()
    engine._index.seal()
    engine._index.compact_sealed()
    engine.close()
    file = sorted((root / "index" / "compacted").iterdir())[0]
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(512))
    return file


def test_no_short_answer_is_complete_and_the_file_is_derived_again(tmp_path: Path) -> None:
    file = damaged_store(tmp_path)
    zeroed = file.read_bytes()
    engine = engine_at(tmp_path)
    short = 0
    for number in range(400):
        answer = engine.query(Query("t", f"k{number}"))
        if not answer.messages:
            short += 1
            assert not answer.coverage.complete
            assert any(file.name in failure.object for failure in answer.coverage.failures)
    assert short > 0
    with pytest.raises(CorruptIndexError, match=file.name), engine.hot_keys("t") as hot:
        hot.look_up([f"k{number}" for number in range(400)])
    engine._background._index_maintenance.run_once()
    for number in range(400):
        answer = engine.query(Query("t", f"k{number}"))
        assert answer.coverage.complete
        assert len(answer.messages) == 1
    assert engine.stats()["index_files_damaged"] == 1
    assert [kept.read_bytes() for kept in (tmp_path / "quarantine").iterdir()] == [zeroed]
    assert engine.check() == []
    engine.close()


def test_check_names_the_file(tmp_path: Path) -> None:
    file = damaged_store(tmp_path)
    engine = engine_at(tmp_path)
    assert any(line.startswith("I3 index") and file.name in line for line in engine.check())
    engine.close()


def test_damage_of_the_file_being_written_is_found_when_it_is_taken_up(tmp_path: Path) -> None:
    """Symptom: an item whose hash was zero was linked into another slot, and its message was found no more."""
    engine = engine_at(tmp_path)
    engine.append([Message("t", b"%d" % number, [f"k{number}"]) for number in range(100)])
    engine.close()
    (file,) = (tmp_path / "index" / "writing").iterdir()
    with file.open("r+b") as opened:
        opened.seek(28 + 8 * 100 + 36 * 40)
        opened.write(bytes(512))
    engine = engine_at(tmp_path)
    assert all(len(engine.query(Query("t", f"k{number}")).messages) == 1 for number in range(100))
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    engine.close()


def test_item_that_changed_before_the_file_was_sealed_does_not_become_a_sound_file(tmp_path: Path) -> None:
    """Symptom: the seal's checksum was that of the damaged bytes, and compaction compared them with themselves."""
    file = ChainedIndexFile.create(FS, tmp_path / "f", TIERLOG, slots=4, items=20, begin_ms=T, first_physical=0)
    batch = batch_of(PUTS_A11)
    file.put(batch, 0, len(batch))
    size_of_item_2 = 28 + 8 * 4 + 36 * 2 + 20
    file.data[size_of_item_2] ^= 1
    file.seal(1000)
    with pytest.raises(CorruptionError, match="checksum"):
        compact(FS, file, tmp_path / "g", tmp_path / "tmp")


def compacted_bytes_of(folder: Path) -> bytes:
    file = ChainedIndexFile.create(FS, folder / "f", TIERLOG, slots=4, items=20, begin_ms=T, first_physical=0)
    batch = batch_of(PUTS_A11)
    file.put(batch, 0, len(batch))
    file.seal(1000)
    compact(FS, file, folder / "g", folder / "tmp")
    return (folder / "g").read_bytes()


def test_bytes_behind_the_items_are_those_of_the_format_page(tmp_path: Path) -> None:
    data = compacted_bytes_of(tmp_path)
    body, trailer = compacted_body(data, TIERLOG), data[-TRAILER_BYTES:]
    first = struct.pack(">I", zlib.crc32(body))
    assert data == body + first + struct.pack(">I", zlib.crc32(first + trailer[:68])) + trailer
    assert trailer[-8:] == b"TLIDXEN2"
    assert data == paged(body, trailer)
    assert zlib.crc32(data) == 2_449_635_156, "other bytes than those that stores have: a new version"


def test_file_without_page_checksums_is_read_whole_before_its_first_look_up(tmp_path: Path) -> None:
    """As versions before page checksums wrote it."""
    data = compacted_bytes_of(tmp_path)
    old = unpaged(compacted_body(data, TIERLOG), data[-TRAILER_BYTES:])
    (tmp_path / "old").write_bytes(old)
    key = key_hash("TopicTest", "k1"), key_hash_high("TopicTest", "k1")
    file = CompactedIndexFile.open(FS, tmp_path / "old", verify=False)
    assert file.lookup(*key)["offset"].tolist() == [338, 0]
    for position in range(60, len(old) - TRAILER_BYTES, 7):
        (tmp_path / "bad").write_bytes(old[:position] + bytes([old[position] ^ 1]) + old[position + 1 :])
        with pytest.raises(CorruptIndexError):
            CompactedIndexFile.open(FS, tmp_path / "bad", verify=False).lookup(*key)
