"""Pages of a growing file: asked for once, in windows that abut, before they are written, never beyond the file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from tierlog.index.local import chained_file
from tierlog.index.local.chained_file import FIRST_WINDOW_BYTES, WINDOW_BYTES, PagesAhead
from tierlog.tiering.base.errors import DiskFullError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem

FS = LocalFileSystem()


class _Pages:
    """A map that grows: pages of memory, and a file system that counts the blocks that it gave."""

    def __init__(self, size_bytes: int, start: int = 0) -> None:
        self.room = size_bytes
        self.blocks = start
        self.pages = PagesAhead(self, Path("f"), np.zeros(size_bytes, np.uint8), start)  # type: ignore[arg-type]

    def allocate(self, path: Path, start: int, end: int) -> None:
        if end > self.room:
            raise DiskFullError("no space left for the write")
        assert start <= self.blocks
        self.blocks = max(self.blocks, end)


def test_what_is_reached_was_asked_for_once_and_the_next_window_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    grown = _Pages(9 * WINDOW_BYTES + 77, 100)
    data, pages = grown.pages._data, grown.pages

    def populate(data: ByteArray, start: int, end: int) -> None:
        assert end <= grown.blocks
        asked.append((start, end))

    monkeypatch.setattr(chained_file, "populate", populate)
    ends = [101, 500, *(windows * WINDOW_BYTES for windows in (1, 2, 3, 6)), len(data) - 1, len(data)]
    for end in ends:
        pages.reach(end)
        assert pages._coming is not None
        pages._coming.result()
        starts, stops = [start for start, _ in asked], [stop for _, stop in asked]
        assert starts == [100, *stops[:-1]]
        assert asked[-1][1] >= min(end + 1, len(data))
        assert asked[-1][1] <= len(data)


def test_bytes_that_are_there_stay(tmp_path: Path) -> None:
    FS.create(tmp_path / "f", 3 * WINDOW_BYTES, prewrite=False, first_bytes=1)
    data: ByteArray = FS.map_write(tmp_path / "f")
    pages = PagesAhead(FS, tmp_path / "f", data, 1)
    for end in range(WINDOW_BYTES // 2, len(data) + 1, WINDOW_BYTES // 2):
        pages.reach(end)
        data[end - WINDOW_BYTES // 2 : end] = end % 251
    for end in range(WINDOW_BYTES // 2, len(data) + 1, WINDOW_BYTES // 2):
        assert (data[end - WINDOW_BYTES // 2 : end] == end % 251).all()


def test_a_failure_of_the_thread_beside_is_the_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = _Pages(4 * WINDOW_BYTES).pages

    def fails(data: ByteArray, start: int, end: int) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(chained_file, "populate", lambda *given: None)
    pages.reach(1)
    monkeypatch.setattr(chained_file, "populate", fails)
    pages.reach(3 * FIRST_WINDOW_BYTES // 2)
    with pytest.raises(OSError, match="no memory"):
        pages.reach(5 * FIRST_WINDOW_BYTES // 2)


def test_without_a_thread_to_be_had_puts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(chained_file._BESIDE, "submit", refuses)
    grown = _Pages(4 * WINDOW_BYTES)
    for end in (1, WINDOW_BYTES + 1, 4 * WINDOW_BYTES):
        grown.pages.reach(end)
        assert grown.blocks >= end


def test_a_small_file_gets_as_many_blocks_again_as_it_uses_and_a_large_one_a_window() -> None:
    grown = _Pages(9 * WINDOW_BYTES)
    grown.pages.reach(1)
    assert grown.blocks <= 3 * FIRST_WINDOW_BYTES + 1
    for end in range(1, 9 * WINDOW_BYTES, FIRST_WINDOW_BYTES // 2):
        grown.pages.reach(end)
        assert end <= grown.blocks <= end + 3 * max(FIRST_WINDOW_BYTES, min(end, WINDOW_BYTES))


def test_a_full_disk_is_told_before_a_page_without_a_block_is_written() -> None:
    grown = _Pages(4 * WINDOW_BYTES)
    grown.room = WINDOW_BYTES
    grown.pages.reach(FIRST_WINDOW_BYTES)
    for end in range(FIRST_WINDOW_BYTES, WINDOW_BYTES - FIRST_WINDOW_BYTES, FIRST_WINDOW_BYTES):
        with contextlib.suppress(DiskFullError):
            grown.pages.reach(end)
            assert end <= grown.blocks
    with pytest.raises(DiskFullError):
        grown.pages.reach(WINDOW_BYTES + 1)
    grown.room = 4 * WINDOW_BYTES
    grown.pages.reach(4 * WINDOW_BYTES)
    assert grown.blocks == 4 * WINDOW_BYTES
