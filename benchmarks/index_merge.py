"""How fast are index objects merged, and how much memory does it take?

Objects of a day with random keys, one of which every 200th item has, are made first, by a process of its own, in a
directory that is the bucket; then they are merged. Printed: seconds of the clock and of the processor, items a second,
and the greatest anonymous memory of the process above what it had before.

``PYTHONPATH=. python benchmarks/index_merge.py [--objects 87] [--items 50000] [--max-part-bytes 600000000]``
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import pickle
import tempfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.index.given_items import GivenItems
from tests.support.processes.measured import measured
from tierlog.index.format.layout import TIERLOG
from tierlog.index.maintenance.merge_task import MergeTask, merge_range
from tierlog.index.objects.builder import build_index_object
from tierlog.index.objects.publisher import AssemblyFolder
from tierlog.index.objects.writer import IndexMeta
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.objects.local import LocalObjectStore

_SEGMENT = 1 << 30
_RECORD_BYTES = 300
_FILE_MS = 1_000_000
_META = IndexMeta("store", _SEGMENT, {1: "orders"})


def _mirrored(physical: NDArray[np.int64]) -> NDArray[np.int64]:
    base = physical // _SEGMENT * _SEGMENT
    return base + (_SEGMENT - 1 - (physical - base))


def make(folder: Path, objects: int, count: int) -> None:
    """Put objects into a bucket, and their entries into a file beside it."""
    store = LocalObjectStore(folder / "bucket", SystemClock())
    entries = []
    slots = count // 4
    for number in range(objects):
        chance = np.random.default_rng(number)
        items = np.zeros(count, TIERLOG.compacted)
        items["hash"] = chance.integers(0, 1 << 31, count)
        items["hash_high"] = chance.integers(0, 1 << 32, count)
        items["hash"][::200], items["hash_high"][::200] = 4711, 4711
        items["topic_id"], items["queue_id"] = chance.integers(0, 20, count), chance.integers(0, 8, count)
        first = number * count * _RECORD_BYTES // 2
        items["offset"] = first + np.arange(count) // 2 * _RECORD_BYTES
        items["size"] = chance.integers(_RECORD_BYTES - 10, _RECORD_BYTES, count)
        items["seconds"] = np.arange(count) * (_FILE_MS // 1000) // count
        items = items[np.lexsort((-items["offset"].astype(np.int64), items["hash"].astype(np.int64) % slots))]
        begin_ms, end = number * _FILE_MS, first + count * _RECORD_BYTES // 2
        bounds = TimeBounds(begin_ms, begin_ms + _FILE_MS, begin_ms, begin_ms + _FILE_MS)
        made = build_index_object(
            GivenItems(items, slots, TIERLOG, begin_ms, first, end, bounds), _mirrored, _META, filter_bits=0
        )
        key = ColdKeys("store").index(0, begin_ms=begin_ms, first_physical=first, epoch=1, nonce=f"{number:08x}")
        store.put(key, made.data)
        entries.append(
            IndexEntry(
                key, 0, first, end, begin_ms, len(made.data), zlib.crc32(made.data), count, slots, 0, slots,
                TIERLOG.name, bounds, dict(made.sections),
            )
        )  # fmt: skip
    (folder / "entries").write_bytes(pickle.dumps(entries))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=87)
    parser.add_argument("--items", type=int, default=50_000, help="of an object")
    parser.add_argument("--max-part-bytes", type=int, default=600_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(folder, args.objects, args.items))
        maker.start()
        maker.join()
        entries = pickle.loads((folder / "entries").read_bytes())
        store = LocalObjectStore(folder / "bucket", SystemClock())
        assembly = AssemblyFolder(LocalFileSystem(), folder / "tmp", contextlib.nullcontext)
        slots = entries[0].slots
        task = MergeTask(1, tuple(entries), 0, slots, _META, 1, 0, args.max_part_bytes)
        few = MergeTask(1, tuple(entries[:2]), 0, 9, _META, 1, 0, args.max_part_bytes)
        merge_range(few, store, SeededRandomness(1), assembly)  # compiles
        run = measured(lambda: merge_range(task, store, SeededRandomness(2), assembly))
        merged, count = run.result, args.objects * args.items
        print(
            f"{args.objects} objects of {args.items} items, {sum(entry.size_bytes for entry in entries) / 1e6:.0f} MB: "
            f"{run.seconds:.1f} s ({count / run.seconds / 1e6:.2f} M items/s), {run.cpu_seconds:.1f} s of processor "
            f"({count / run.cpu_seconds / 1e6:.2f} M items/s), {run.peak_bytes / 1e6:.0f} MB of memory, "
            f"{len(merged.entries)} objects of {sum(entry.size_bytes for entry in merged.entries) / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
