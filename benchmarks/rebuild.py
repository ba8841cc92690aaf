"""How fast does an archived segment become a segment of the log again, and its keys an index?

A segment of ``--mib`` MiB is filled with records of ``--body`` bytes of text in eight queues, two keys each, and
archived. Then it is put together in memory, item by item (``raw_items``) and frame by frame, and
restored to a file, and made into index objects by ``index.maintenance.rebuild``.

``python benchmarks/rebuild.py [--mib 256] [--body 200]``
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.stores.engines import tiny_settings
from tierlog.index.maintenance.rebuild import IndexRebuild
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.restoration import restore_segment
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.local import LocalObjectStore

_BATCH = 2_000


def fill(root: Path, mib: int, body: int) -> None:
    chance = random.Random(1)
    engine = Store.open(
        root / "store",
        settings=tiny_settings(
            hot__segment_bytes=mib << 20, index__slots=1 << 20, index__items=1 << 22, cold__frame_bytes=64 << 10
        ),
        cold_url=f"file://{root}/cold", store_id="bench",
    )  # fmt: skip
    number = 0
    while engine._hot.log.end < (mib << 20) - _BATCH * (body + 220):
        engine.append(
            [
                Message("orders", b"%0*d" % (body, chance.randrange(10**15)), [f"k{number + at}", f"c{at % 97}"])
                for at in range(_BATCH)
            ]
        )
        number += _BATCH
    engine.archive(everything=True, drop_hot=True)
    engine.close()


def timed(what: str, run: Callable[[], object], entry: LogEntry) -> None:
    begun = time.perf_counter()
    run()
    seconds = time.perf_counter() - begun
    gib = entry.raw_bytes / (1 << 30)
    print(f"{what:32} {seconds:7.2f} s  {seconds / gib:7.1f} s a GiB  {entry.raw_bytes / seconds / 1e6:7.0f} MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--body", type=int, default=200)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), chosen.mib, chosen.body)
        objects = LocalObjectStore(Path(folder, "cold"), SystemClock())
        manifest = ManifestStore(
            objects,
            ColdKeys("bench"),
            randomness=SystemRandomness(),
            options=ColdOptions(),
            cache=ArchiveCache(64 << 20),
        )
        head = manifest.refresh()
        entry = max(manifest.log_entries(manifest.reader(), head), key=lambda each: each.records)
        segment = SegmentReader(manifest.reader(scan=True), entry)
        print(f"{entry.records:,} records, {entry.raw_bytes / (1 << 20):.0f} MiB, in {entry.size_bytes / 1e6:.0f} MB")
        out = np.zeros(entry.segment_bytes, np.uint8)

        def by_item() -> None:
            for position, item in segment.raw_items():
                out[position : position + len(item)] = np.frombuffer(item, np.uint8)

        def by_frame() -> None:
            for _ in segment.put_together(out):
                pass

        by_frame()  # compiled, and the object in the page cache
        timed("put together item by item", by_item, entry)
        timed("put together frame by frame", by_frame, entry)
        out_file, fs = Path(folder, "segment"), LocalFileSystem()
        timed("restored to a file", lambda: restore_segment(segment, entry, fs, out_file, "x"), entry)
        old = next(manifest.all_index_entries(manifest.reader(), head))
        rebuild = IndexRebuild(manifest, fs, SystemRandomness())
        timed("index objects made again", lambda: rebuild.replace(head, old), entry)


if __name__ == "__main__":
    main()
