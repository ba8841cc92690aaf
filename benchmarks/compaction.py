"""How fast is an index file compacted, and in how much memory?

A sealed file of ``--items`` items with random hashes in ``--slots`` slots, in the page cache. Its compaction, and in
the same run the method before it: numpy's stable sort by slot with the same writes, without a comparison and a flush.
Of ``--runs`` runs each the lowest, the median and the highest. The parts: checksum of the source; layout with its
writes and checksum; comparison; flush. Memory is RssAnon of /proc/self/status, sampled every 2 ms: pages of the two
maps are page cache and do not count. Kernels are compiled before.

``python benchmarks/compaction.py [--items 20000000] [--slots 5000000] [--runs 3] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from index import compactor
from index.batch import KeyBatch
from index.chained_file import ChainedIndexFile
from index.compacted_file import SLOT_ENTRY
from index.cover import TRAILER_BYTES, Trailer, crc_of
from index.header import END_MAGIC, FileHeader, compacted_bytes, items_position
from index.kernels.keys import KEY_ROW
from index.layout import TIERLOG
from tests.support.measured import Measured, measured
from tiering.fs import ByteArray, LocalFileSystem, flush_file
from tiering.kernels.scan import SCAN_ROW

_T = 1_700_000_000_000
_BATCH = 1 << 20
_SORTED_PIECE_ITEMS = 1 << 17
FS = LocalFileSystem()


def sealed_file(path: Path, items: int, slots: int) -> ChainedIndexFile:
    chance = np.random.default_rng(1)
    file = ChainedIndexFile.create(FS, path, TIERLOG, slots, items + 1, _T, 0)
    topic_ids = np.array([7], np.int32)
    for start in range(0, items, _BATCH):
        count = min(_BATCH, items - start)
        rows = np.zeros(count, SCAN_ROW)
        rows["physical_offset"] = np.arange(start, start + count, dtype=np.int64) * 436
        rows["size"] = 436
        rows["store_ms"] = rows["born_ms"] = _T + np.arange(start, start + count, dtype=np.int64) // 10
        keys = np.empty(count, KEY_ROW)
        keys["row"] = np.arange(count, dtype=np.int32)
        keys["hash"] = chance.integers(0, 1 << 31, count)
        keys["hash_high"] = chance.integers(0, 1 << 32, count)
        file.put(KeyBatch(rows, keys, topic_ids), 0, count)
    file.seal(items * 436)
    return file


def sort_and_write(source: ChainedIndexFile, path: Path) -> None:
    """The peer: the order of all items at once."""
    layout, slots, count = source.layout, source.slots, source.item_count
    items = source.all_items()[1 : count + 1]
    slot_of = (items["hash"].astype(np.int64) % slots).astype(np.int32)
    order = np.argsort(slot_of[::-1], kind="stable")
    np.subtract(count - 1, order, out=order)
    lengths = np.bincount(slot_of, minlength=slots) * layout.compacted_bytes
    table = np.empty(slots, SLOT_ENTRY)
    table["position"] = items_position(slots) + np.cumsum(lengths) - lengths
    table["length"] = lengths
    FS.create(path, compacted_bytes(layout, slots, count) + TRAILER_BYTES, prewrite=False)
    old = source.header
    header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, old.used_slots, count)
    file = FS.open(path)
    position = crc = 0

    def append(data: ByteArray) -> None:
        nonlocal position, crc
        file.write_at(position, data)
        position += len(data)
        crc = crc_of(data, crc)

    append(np.frombuffer(header.encode(), np.uint8))
    append(table.view(np.uint8))
    for start in range(0, count, _SORTED_PIECE_ITEMS):
        append(source.compacted_form(items[order[start : start + _SORTED_PIECE_ITEMS]]).view(np.uint8))
    assert source.trailer is not None
    file.write_at(position, Trailer(source.trailer.cover, source.trailer.bounds, crc).encode())
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--slots", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None, help="where the files are made; a folder for temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        here = Path(folder)
        compactor.compact(FS, sealed_file(here / "small", 1000, 100), here / "small.compacted", here / "tmp")
        source = sealed_file(here / "sealed", given.items, given.slots)
        target = here / "compacted"
        rows: dict[str, list[Measured[object]]] = {}

        def row(name: str, work: Callable[[], object]) -> None:
            rows.setdefault(name, []).append(measured(work))

        for _ in range(given.runs):
            row("numpy's sort by slot, written", lambda: sort_and_write(source, here / "sorted"))
            row("compaction", lambda: compactor.compact(FS, source, target, here / "tmp"))
            assert (here / "sorted").read_bytes() == target.read_bytes(), "the two methods differ"
            row("  checksum of the source", source.verify)
            row("  layout, written", lambda: compactor._write(FS, source, here / "again", compactor.PIECE_BYTES))
            row("  comparison", lambda: compactor._compare(source, FS.map_read(here / "again")))
            row("  flush", lambda: flush_file(FS, here / "again"))
            for name in ("sorted", "compacted", "again"):
                (here / name).unlink()
    seconds = {name: statistics.median(run.seconds for run in runs) for name, runs in rows.items()}
    print(f"{given.items:,} items, {given.slots:,} slots, source {len(source.data) >> 20} MiB, {given.runs} runs")
    for name, runs in rows.items():
        memory = max(run.peak_bytes for run in runs) / (1 << 20)
        lowest, highest = min(run.seconds for run in runs), max(run.seconds for run in runs)
        print(
            f"{name:32} {given.items / seconds[name] / 1e6:7.2f} M items/s   {lowest:.2f} / {seconds[name]:.2f} / "
            f"{highest:.2f} s   {memory:6.0f} MiB more at its peak"
        )
    peer = seconds["numpy's sort by slot, written"]
    print(f"layout against the sort: {peer / seconds['  layout, written']:.1f} times as fast")
    print(f"whole compaction against the sort alone: {peer / seconds['compaction']:.1f} times as fast")


if __name__ == "__main__":
    main()
