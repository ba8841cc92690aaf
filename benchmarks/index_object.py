"""How fast is an index object built of a compacted file, and how much memory does it take?

Items have random keys, two for each record; the file is made first, by a process of its own, and the object is
written to a file. Printed: seconds of the clock and of the processor, items a second of both, and the greatest
anonymous memory of the process above what it had before.

``PYTHONPATH=. python benchmarks/index_object.py [--items 20000000] [--slot-share 4]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.layout import TIERLOG
from index.object_builder import IndexMeta, build_index_object, write_index_object
from tests.support.given_items import GivenItems
from tests.support.measured import measured
from tiering.fs import LocalFileSystem
from tiering.types import TimeBounds

_SEGMENT = 1 << 30
_RECORD_BYTES = 300


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
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--slot-share", type=int, default=4, help="items a slot")
    args = parser.parse_args()
    slots = args.items // args.slot_share
    meta = IndexMeta("store", _SEGMENT, {})
    bounds = TimeBounds(0, 1, 0, 1)
    fs = LocalFileSystem()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "items")
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(path, args.items, slots))
        maker.start()
        maker.join()
        items = fs.map_read(path).view(TIERLOG.compacted)
        head = items[: int(np.searchsorted(items["hash"].astype(np.int64) % slots, 9))]
        build_index_object(GivenItems(head, slots, bounds=bounds), mirrored, meta, slot_range=(0, 9))  # compiles
        file = fs.open(Path(folder, "object"))
        run = measured(lambda: write_index_object(file, GivenItems(items, slots, bounds=bounds), mirrored, meta))
        file.close()
        print(
            f"{args.items} items, {slots} slots: {run.seconds:.1f} s ({args.items / run.seconds / 1e6:.2f} M items/s), "
            f"{run.cpu_seconds:.1f} s of processor ({args.items / run.cpu_seconds / 1e6:.2f} M items/s), "
            f"{run.peak_bytes / 1e6:.0f} MB of memory, object of {run.result.size_bytes / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
