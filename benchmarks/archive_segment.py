"""How much of the rate of `zstd`, and of `zstd` and then `zstd -t`, is left when a segment is archived?

A segment of ``--mib`` MiB is full of log records (``log_records``) in 16 queues. Archiving reads it with every
checksum, sorts it, gathers frames, compresses them, decompresses each again and compares it with what was read, and
writes the object with directory, offset map and seek table to a new local file, which is flushed. Bare zstd compresses
the very same frames, one after the other, from memory to nowhere, on as many threads; the same promise is made by
``zstd`` and then ``zstd -t``, which decompresses each frame again and compares it with its checksum, so that is the row
with the target. The seconds of processors beside it tell what reading, checksums and the comparison of every frame with
what was read cost, which neither does.

``python benchmarks/archive_segment.py [--mib 256] [--levels 1 3] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks import least_work
from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.log_records import fill_segment, open_hot
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.scan import THREADS
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.archiver import upload_segment
from tierlog.tiering.objects.local import LocalObjectStore

_TARGET = 0.9
_LIMIT = f"what cannot be left out, {THREADS} threads"
_PROOF = (
    "a program that knows where each record goes: on as many threads it copies each into its frame, compares its "
    "checksum, compresses the frame and decompresses it again, takes the CRC-32 of the object and writes that to the "
    "disk; no order is found, no directory and no map are made, and nothing is compared with the log: "
    "benchmarks/least_work.py"
)
_HELD_BY = (
    "of 2.7 ns of processor time a byte zstd takes 1.35 and decompressing each frame again 0.6; walking the log with "
    "sums and checksums 0.18, gathering records in their order 0.13, comparing frames with what was read 0.08, writing "
    "0.07, Python around frames 0.07, the store's own checksum 0.04, the directory 0.03. With nothing but gathering, "
    "checksums and the file it would be 2.1, as the limit shows: record 0067"
)


def archived(hot: HotStore, folder: Path, level: int) -> tuple[ManifestStore, LogEntry]:
    """The store's first segment as an object below a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    objects = LocalObjectStore(folder, SystemClock())
    options = ColdOptions(compression_level=level)
    manifest = ManifestStore(objects, ColdKeys("bench"), randomness=SystemRandomness(), options=options)
    entry = upload_segment(
        manifest, SystemRandomness(), topics=hot.topics.all(), segment=hot.log.segments()[0], epoch=1
    )
    return manifest, entry


def frames_of(manifest: ManifestStore, entry: LogEntry) -> list[bytes]:
    """What its frames decompress to."""
    segment = SegmentReader(manifest.reader(scan=True), entry)
    table = segment.seek_table()
    return list(segment.frames(table.places()))


def places_of(manifest: ManifestStore, entry: LogEntry, hot: HotStore) -> list[NDArray[np.int64]]:
    """Where the records of each frame lie in memory, in the mapped log."""
    segment = SegmentReader(manifest.reader(scan=True), entry)
    physical, cold = segment.offset_map()
    order = np.argsort(cold)
    places = hot.log.segments()[0].data.ctypes.data + physical[order] - entry.base
    return np.split(places, np.searchsorted(cold[order] - entry.base, segment.seek_table().decompressed[1:-1]))


def compress(frames: list[bytes], level: int, threads: int, *, test: bool = False) -> None:
    """All frames, each thread its share; with ``test`` each is decompressed again, which compares its checksum."""

    def share(number: int) -> None:
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        decompressor = zstandard.ZstdDecompressor()
        for frame in frames[number::threads]:
            compressed = compressor.compress(frame)
            if test:
                decompressor.decompress(compressed)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))


def rate(raw_bytes: int, work: Callable[[], object], clock: Callable[[], float]) -> float:
    """MB a second, of the clock that is given, once what was written before is on the disk."""
    drained()
    begin = clock()
    work()
    return raw_bytes / (clock() - begin) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name)
        hot = open_hot(folder / "store", given.mib << 20)
        count = fill_segment(hot, given.mib, 16)
        for level in given.levels:
            manifest, entry = archived(hot, folder / "cold", level)
            frames = frames_of(manifest, entry)
            raw = sum(map(len, frames))
            ours = partial(archived, hot, folder / "cold", level)
            alone = partial(compress, frames, level, THREADS)
            tested = partial(compress, frames, level, THREADS, test=True)
            least = partial(
                least_work.archive, places_of(manifest, entry, hot), max(map(len, frames)), level, THREADS,
                folder / "least",
            )  # fmt: skip
            note = f"{count:,} records, {raw / entry.size_bytes:.2f} : 1"
            for what, clock, target in (
                (f"archive of a segment, level {level}", time.perf_counter, _TARGET),
                (f"the same, seconds of processors, level {level}", time.process_time, None),
            ):
                sides = in_turns(
                    {
                        "tierlog": partial(rate, raw, ours, clock),
                        f"zstd and zstd -t, {THREADS} threads": partial(rate, raw, tested, clock),
                        f"zstd alone, {THREADS} threads": partial(rate, raw, alone, clock),
                        _LIMIT: partial(rate, raw, least, clock),
                    },
                    given.runs,
                )
                limit = {_LIMIT: sides.pop(_LIMIT)}
                report.add(Row(what, "MB/s", sides, target, note=note, held_by=_HELD_BY, limit=limit, proof=_PROOF))
        hot.close()
    report.save()


if __name__ == "__main__":
    main()
