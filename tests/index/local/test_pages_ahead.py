"""Pages of a growing file: asked for once, in windows that abut, before they are written, never beyond the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tierlog.index.local import chained_file
from tierlog.index.local.chained_file import WINDOW_BYTES, PagesAhead
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem

FS = LocalFileSystem()


def test_what_is_reached_was_asked_for_once_and_the_next_window_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(chained_file, "populate", lambda data, start, end: asked.append((start, end)))
    data = np.zeros(9 * WINDOW_BYTES + 77, np.uint8)
    pages = PagesAhead(data, 100)
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
    FS.create(tmp_path / "f", 3 * WINDOW_BYTES, prewrite=False)
    data: ByteArray = FS.map_write(tmp_path / "f")
    pages = PagesAhead(data, 0)
    for end in range(WINDOW_BYTES // 2, len(data) + 1, WINDOW_BYTES // 2):
        pages.reach(end)
        data[end - WINDOW_BYTES // 2 : end] = end % 251
    for end in range(WINDOW_BYTES // 2, len(data) + 1, WINDOW_BYTES // 2):
        assert (data[end - WINDOW_BYTES // 2 : end] == end % 251).all()


def test_a_failure_of_the_thread_beside_is_the_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = PagesAhead(np.zeros(4 * WINDOW_BYTES, np.uint8), 0)

    def fails(data: ByteArray, start: int, end: int) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(chained_file, "populate", lambda *given: None)
    pages.reach(1)
    monkeypatch.setattr(chained_file, "populate", fails)
    pages.reach(WINDOW_BYTES + 1)
    with pytest.raises(OSError, match="no memory"):
        pages.reach(2 * WINDOW_BYTES + 2)


def test_without_a_thread_to_be_had_puts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(chained_file._BESIDE, "submit", refuses)
    data = np.zeros(4 * WINDOW_BYTES, np.uint8)
    pages = PagesAhead(data, 0)
    for end in (1, WINDOW_BYTES + 1, len(data)):
        pages.reach(end)
