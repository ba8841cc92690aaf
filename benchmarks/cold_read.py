"""How much of zstd's decompression rate is left when a queue is read in order out of the archive?

A segment of ``--mib`` MiB of log records (``log_records``) in 4 queues lies in a local archive and in the page cache.
Each run begins with empty caches and reads every queue from its first message to its last as record batches with body,
offsets and times, every frame's and every record's checksum compared. Bare zstd decompresses the same frames, whose
compressed bytes lie in memory, one after the other on one thread. A second row only reads and decompresses the frames
of the segment, as restoring and jobs do.

``python benchmarks/cold_read.py [--mib 256] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import zstandard

from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.least_work import pull_cold
from benchmarks.log_records import QUEUED_TOPIC, fill_segment
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.cold.segment.reader import SegmentReader

QUEUES = 4
_ROWS = 8192
_COLUMNS = ("queue_offset", "physical_offset", "store_ms", "born_ms", "body")
_LEAST_RECORD = 256
_TARGETS = {"cold queues in order, as Arrow": 0.87, "frames of a segment": 0.8}
_LIMIT = "frames and bodies, one thread"
_PROOF = (
    "a program that has the compressed frames in memory decompresses one after the other, compares each record's "
    "checksum, and copies its body and four numbers once into Arrow's buffers: benchmarks/least_work.py"
)
_HELD_BY = {
    "cold queues in order, as Arrow": (
        "processor seconds for 1 GiB, 0.84 in all: decompressing 0.62 to 0.68, taking records apart and comparing "
        "checksums 0.1; the rest goes into directories, windows, batches and pulls. Another thread that decompresses "
        "ahead made it slower on a quiet machine, 0.63 instead of 0.70: record 0067"
    ),
    "frames of a segment": (
        "seconds for 1 GiB: decompressing 0.71; 0.2 go into requests, copies out of them and looks into the cache, "
        "about 12 us a frame."
    ),
}


class MadeArchive:
    """One archived segment."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.settings = Settings()
        manifest = self._manifest(self._opened())
        (entry,) = manifest.log_entries(manifest.reader(), manifest.refresh())
        self._entry = entry
        segment = SegmentReader(manifest.reader(scan=True), entry)
        self._table = segment.seek_table()
        ends = self._table.compressed.tolist()
        data = manifest.objects.get(entry.key)[0]
        self._pieces = [data[start:end] for start, end in pairwise(ends)]
        self.raw_bytes = int(self._table.decompressed[-1])

    def _opened(self) -> Archive:
        return Archive.open(self._url, settings=self.settings)

    @staticmethod
    def _manifest(engine: Archive):  # type: ignore[no-untyped-def]
        (manifest,) = engine._manifests.values()
        return manifest

    def decompress(self) -> None:
        """Bare zstd."""
        decompressor = zstandard.ZstdDecompressor()
        for piece in self._pieces:
            decompressor.decompress(piece)

    def pull_least(self) -> None:
        """What cannot be left out of that."""
        pull_cold(self._pieces, _LEAST_RECORD)

    def read_frames(self) -> None:
        """Frames of the segment, fetched in large requests and checked."""
        segment = SegmentReader(self._manifest(self._opened()).reader(scan=True), self._entry)
        for _ in segment.frames(self._table.places()):
            pass

    def pull(self) -> None:
        """Every queue to its end."""
        engine = self._opened()
        for queue in range(QUEUES):
            offset = 0
            while (page := engine.pull_batch(QUEUED_TOPIC, queue, offset, _ROWS, _COLUMNS)).messages.num_rows:
                offset = page.next_offset


def rate(raw_bytes: int, work: Callable[[], object]) -> float:
    """MB of records a second."""
    begin = time.perf_counter()
    work()
    return raw_bytes / (time.perf_counter() - begin) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name).absolute()
        url = f"file://{folder}/cold"
        settings = Settings.load(overrides={"hot.segment_bytes": given.mib << 20, "advertise": "127.0.0.1:10911"})
        engine = Store.open(folder / "store", settings=settings, cold_url=url, store_id="store")
        fill_segment(engine._hot, given.mib, QUEUES)
        engine.archive()
        engine.close()
        archive = MadeArchive(url)
        drained()
        works: dict[str, tuple[Callable[[], object], dict[str, Callable[[], object]]]] = {
            "cold queues in order, as Arrow": (archive.pull, {_LIMIT: archive.pull_least}),
            "frames of a segment": (archive.read_frames, {}),
        }
        for what, (work, limit) in works.items():
            sides = in_turns(
                {
                    "tierlog": partial(rate, archive.raw_bytes, work),
                    "zstd": partial(rate, archive.raw_bytes, archive.decompress),
                    **{name: partial(rate, archive.raw_bytes, least) for name, least in limit.items()},
                },
                given.runs,
            )
            limits = {name: sides.pop(name) for name in limit}
            report.add(
                Row(
                    what, "MB/s", sides, _TARGETS[what], held_by=_HELD_BY[what], limit=limits,
                    proof=_PROOF if limits else "",
                )
            )  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
