"""What do this machine's disk and memory do without any log?

Rows with one side: what the figures of the other benchmarks can be held against. A piece is 1 MiB of random bytes and
a record 436 bytes, as a message with a body of 256 bytes takes; files are written before, so that blocks are allocated,
unless the row says that they grow.

``python benchmarks/limits.py [--mib 512] [--syncs 2000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Report, Row, drained, in_turns

_PIECE = 1 << 20
_RECORD = 436


class Disk:
    """One file, and a piece of random bytes that is aligned as O_DIRECT wants it."""

    def __init__(self, path: Path, pieces: int) -> None:
        self._path = path
        self._pieces = pieces
        self._piece = mmap.mmap(-1, _PIECE)
        self._piece[:] = os.urandom(_PIECE)
        self.grow()

    def grow(self) -> float:
        """MB a second of a file that comes to be, until it is on the disk."""
        self._path.unlink(missing_ok=True)
        return self._written(os.O_CREAT, lambda file: os.fdatasync(file))

    def overwrite(self) -> float:
        """MB a second through the page cache, until they are on the disk."""
        return self._written(0, lambda file: os.fdatasync(file))

    def overwrite_directly(self) -> float:
        """MB a second beside the page cache."""
        return self._written(os.O_DIRECT, lambda file: os.fdatasync(file))

    def overwrite_cached(self) -> float:
        """MB a second into the page cache alone."""
        return self._written(0, lambda _: None)

    def read_cached(self) -> float:
        """MB a second out of the page cache."""
        with self._opened(0) as file:
            begun = time.perf_counter()
            for number in range(self._pieces):
                os.preadv(file, [self._piece], number * _PIECE)
            return self._rate(begun)

    def synced(self, times: int) -> float:
        """Records a second, each of them on the disk before the next."""
        record = bytes(self._piece[:_RECORD])
        with self._opened(0) as file:
            begun = time.perf_counter()
            for number in range(times):
                os.pwrite(file, record, number * _RECORD)
                os.fdatasync(file)
            return times / (time.perf_counter() - begun)

    def _written(self, flags: int, finish: Callable[[int], None]) -> float:
        with self._opened(flags) as file:
            begun = time.perf_counter()
            for number in range(self._pieces):
                os.pwrite(file, self._piece, number * _PIECE)
            finish(file)
            return self._rate(begun)

    def _rate(self, begun: float) -> float:
        return self._pieces * _PIECE / 1e6 / (time.perf_counter() - begun)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        drained()
        file = os.open(self._path, os.O_RDWR | flags)
        try:
            yield file
        finally:
            os.close(file)


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--syncs", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        disk = Disk(Path(folder) / "file", given.mib)
        rows = {
            "sequential write of a file that grows, then fdatasync": ("MB/s", disk.grow),
            "sequential overwrite, then fdatasync": ("MB/s", disk.overwrite),
            "sequential overwrite with O_DIRECT, then fdatasync": ("MB/s", disk.overwrite_directly),
            "overwrite in the page cache": ("MB/s", disk.overwrite_cached),
            "read from the page cache": ("MB/s", disk.read_cached),
            f"pwrite of {_RECORD} bytes and fdatasync in turn": ("records/s", lambda: disk.synced(given.syncs)),
        }
        figures = in_turns({what: side for what, (_, side) in rows.items()}, given.runs)
    for what, (unit, _) in rows.items():
        report.add(Row(what, unit, {"this machine": figures[what]}))
    print(report.save())


if __name__ == "__main__":
    main()
