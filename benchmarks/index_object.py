"""How fast does one core build an index object of a compacted file, and how much memory does it take?

Items have random keys, two for each record; the file is made first, by a process of its own, and lies in the page
cache. The object, with new offsets, pages, checksums and filter, is written to a file. Items for a second of the
processor, all threads, so that what else runs hardly counts. Memory is RssAnon of /proc/self/status above what it was,
sampled every 2 ms.

``python benchmarks/index_object.py [--items 20000000] [--slot-share 4] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Report, Row, drained
from tests.support.index.given_items import GivenItems
from tests.support.processes.measured import measured
from tierlog.index.format.layout import TIERLOG
from tierlog.index.objects.builder import IndexMeta, build_index_object, write_index_object
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import TimeBounds

_SEGMENT = 1 << 30
_RECORD_BYTES = 300
_BOUNDS = TimeBounds(0, 1, 0, 1)


def make(path: Path, count: int, slots: int) -> None:
    chance = np.random.default_rng(1)
    items = np.zeros(count, TIERLOG.compacted)
    items["hash"] = chance.integers(0, 1 << 31, count)
    items["hash_high"] = chance.integers(0, 1 << 32, count)
    items["topic_id"], items["queue_id"] = chance.integers(0, 20, count), chance.integers(0, 8, count)
    items["offset"] = np.arange(count) // 2 * _RECORD_BYTES
    items["size"] = chance.integers(_RECORD_BYTES - 10, _RECORD_BYTES, count)
    items["seconds"] = np.arange(count) // 20_000
    order = np.lexsort((-items["offset"].astype(np.int64), items["hash"].astype(np.int64) % slots))
    items[order].tofile(path)


def mirrored(physical: NDArray[np.int64]) -> NDArray[np.int64]:
    base = physical // _SEGMENT * _SEGMENT
    return base + (_SEGMENT - 1 - (physical - base))


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--slot-share", type=int, default=4, help="items a slot")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    slots = given.items // given.slot_share
    meta = IndexMeta("store", _SEGMENT, {})
    fs = LocalFileSystem()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        path = Path(folder, "items")
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(path, given.items, slots))
        maker.start()
        maker.join()
        items = fs.map_read(path).view(TIERLOG.compacted)
        source = GivenItems(items, slots, bounds=_BOUNDS)
        head = items[: int(np.searchsorted(items["hash"].astype(np.int64) % slots, 9))]
        build_index_object(GivenItems(head, slots, bounds=_BOUNDS), mirrored, meta, slot_range=(0, 9))  # compiles
        rates, peaks, sizes = [], [], []
        for _ in range(given.runs):
            drained()
            file = fs.open(Path(folder, "object"))
            run = measured(partial(write_index_object, file, source, mirrored, meta))
            file.close()
            rates.append(given.items / run.cpu_seconds)
            peaks.append(run.peak_bytes / given.items)
            sizes.append(run.result.size_bytes / given.items)
    what = f"index object of {given.items:,} items"
    held_by = (
        "of 160 ns an item zstd takes 31, translating offsets 31 and the filter 13 to 24, which wait for memory,"
        " sorting slots 13, laying out pages 13, sorting offsets 11 to 17"
    )
    report.add(Row(what, "items/s a core", {"tierlog": rates}, target=10_000_000, held_by=held_by))
    report.add(Row(f"{what}, memory", "bytes an item", {"tierlog": peaks}, smaller_is_better=True))
    report.add(Row(f"{what}, size", "bytes an item", {"tierlog": sizes}, smaller_is_better=True))
    report.save()


if __name__ == "__main__":
    main()
