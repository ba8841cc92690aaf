"""Where index objects are put together: what is uploaded is what was written, and nothing stays behind."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.property.test_object_builder import SEGMENT, mirrored, source_of
from tierlog.index.objects.builder import IndexMeta, write_index_object
from tierlog.index.objects.publisher import AssemblyFolder
from tierlog.tiering.base.errors import ClosedError, UnavailableError
from tierlog.tiering.base.fs import LocalFileSystem

FS = LocalFileSystem()
META = IndexMeta("s", SEGMENT, {})


def test_file_holds_the_object_and_is_gone_afterwards(tmp_path: Path) -> None:
    assembly = AssemblyFolder(FS, tmp_path / "tmp", contextlib.nullcontext)
    source = source_of([(number % 50, number) for number in range(3000)], 40)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "object").write_bytes(b"left by a process that was killed" * 10_000)
    with assembly.file("object") as draft:
        written = write_index_object(draft, source, mirrored, META, 1000)
        data = b"".join(draft.pieces(written.size_bytes))
    from_memory = write_index_object(memory := Memory(), source, mirrored, META, 1000)
    assert (written.crc32, data) == (from_memory.crc32, bytes(memory.data))
    assert list((tmp_path / "tmp").iterdir()) == []


class Memory:
    """An object in memory, written at its places."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self.data.extend(bytes(max(0, position + len(data) - len(self.data))))
        self.data[position : position + len(data)] = data


def test_file_is_gone_when_the_upload_fails(tmp_path: Path) -> None:
    assembly = AssemblyFolder(FS, tmp_path / "tmp", contextlib.nullcontext)

    def upload() -> None:
        with assembly.file("object") as draft:
            draft.write_at(0, b"some")
            raise UnavailableError("the bucket is down")

    with pytest.raises(UnavailableError):
        upload()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_nothing_is_written_once_the_store_is_closed(tmp_path: Path) -> None:
    is_closed = False

    @contextlib.contextmanager
    def step() -> Iterator[None]:
        if is_closed:
            raise ClosedError("the store is closing")
        yield

    assembly = AssemblyFolder(FS, tmp_path / "tmp", step)

    def write() -> None:
        nonlocal is_closed
        with assembly.file("object") as draft:
            draft.write_at(0, b"before")
            is_closed = True
            draft.write_at(6, b"after")

    with pytest.raises(ClosedError):
        write()
    assert (tmp_path / "tmp" / "object").read_bytes() == b"before"
    is_closed = False
    with assembly.file("object") as draft:
        assert b"".join(draft.pieces(0)) == b""
    assert list((tmp_path / "tmp").iterdir()) == []


class Nowhere:
    """Keeps nothing."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        pass


def peak_bytes(items: int) -> int:
    chance = np.random.default_rng(1)
    keys = list(
        zip(chance.integers(0, 1 << 31, items).tolist(), chance.integers(0, 1 << 32, items).tolist(), strict=True)
    )
    source = source_of(keys, items // 4)
    tracemalloc.start()
    try:
        write_index_object(Nowhere(), source, lambda offsets: offsets, IndexMeta("s", 1 << 16, {}), piece_items=4096)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bytes_held_for_each_further_item() -> None:
    """4 while offsets are collected; fewer than 16 for each record (here one an item), 3 in the filter; page rows."""
    peak_bytes(1000)
    assert (peak_bytes(160_000) - peak_bytes(40_000)) / 120_000 < 24
