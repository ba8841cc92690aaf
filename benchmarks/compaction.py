"""How fast is an index file compacted into one that is compared with its source, and in how much memory?

A sealed file of ``--items`` keys, a slot for every four, in the page cache. tierlog, on two threads: the checksum of
the source, the layout, its writes, and the comparison of what was written with every item of the source; once more with
the flush that makes it durable. RocketMQ: ``doCompaction`` of a file of the same shape with keys of the same kind,
which neither compares nor flushes. Both make a new file each time: over the pages of the last one RocketMQ is up to
four times as fast. Keys are 16 hex digits, whose hashes spread over all slots, or counted (``key-0``, ``key-1``), which
lie in the order of their slots nearly. Memory is RssAnon of /proc/self/status, sampled every 2 ms: pages of the two
maps are page cache and do not count.

``python benchmarks/compaction.py [--items 20000000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.peers.rocketmq import rocketmq
from tests.support.index.key_batches import BEGIN_MS, RECORD_BYTES, TOPIC_IDS, ManyKeys
from tests.support.processes.measured import measured
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local import compaction
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compaction import PIECE_BYTES
from tierlog.index.local.key_batch import KeyBatch
from tierlog.tiering.base.fs import LocalFileSystem

FS = LocalFileSystem()
_BATCH = 1 << 13
_KEYS_PER_SLOT = 4
#: By kind of keys; single figures are ns an item.
HELD_BY = {
    "random": (
        "of 42 ns of processor time on two threads the walk of chains takes 17, mostly waiting for memory, the "
        "comparison with the source 10, writing into new pages 8, checksums of both files 4, counting halves 2; where "
        "other work has one of the two cores it is half as fast"
    ),
    "seq": (
        "of 24 ns of processor time on two threads the walk and the comparison take 7 each, writing into new pages 4, "
        "checksums of both files 4, counting halves 2"
    ),
}


def sealed_file(path: Path, keys: ManyKeys, slots: int) -> ChainedIndexFile:
    """A file of all keys, durable."""
    file = ChainedIndexFile.create(
        FS, path, TIERLOG, slots=slots, items=len(keys) + 1, begin_ms=BEGIN_MS, first_physical=0
    )
    for data, rows in keys.batches(_BATCH):
        batch = KeyBatch.of(data, rows, TOPIC_IDS)
        file.put(batch, 0, len(batch))
    file.seal(len(keys) * RECORD_BYTES)
    return file


def laid_out(source: ChainedIndexFile, target: Path) -> None:
    """All of a compaction but its flush and its name."""
    compaction._write(FS, source, target, PIECE_BYTES)


def durable(source: ChainedIndexFile, target: Path) -> None:
    """A compaction as the service does it."""
    compaction.compact(FS, source, target, target.parent / "tmp")


def rate(work: Callable[[ChainedIndexFile, Path], None], source: ChainedIndexFile, target: Path) -> float:
    """Items a second."""
    drained()
    begun = time.perf_counter()
    work(source, target)
    seconds = time.perf_counter() - begun
    target.unlink()
    return source.item_count / seconds


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    slots = given.items // _KEYS_PER_SLOT
    with tempfile.TemporaryDirectory(dir=given.dir) as inside, rocketmq(Path(inside) / "rocketmq") as java:
        folder = Path(inside)
        durable(sealed_file(folder / "small", ManyKeys.random(1000), 100), folder / "small.compacted")  # compiles
        for kind, keys, target in (("random", ManyKeys.random, 10), ("seq", ManyKeys.counted, 2)):
            source = sealed_file(folder / kind, keys(given.items), slots)
            java.run("index_put", n=given.items, slots=slots, items=given.items + 2, keys=kind)
            figures = in_turns(
                {
                    "tierlog": partial(rate, laid_out, source, folder / "compacted"),
                    "RocketMQ doCompaction": lambda: java.rate("compact"),
                    "tierlog, durable": partial(rate, durable, source, folder / "compacted"),
                },
                given.runs,
            )
            ours, theirs, flushed = figures.items()
            what = f"compaction, {given.items:,} {'random' if kind == 'random' else 'counted'} keys"
            report.add(Row(f"{what}, compared", "items/s", dict([ours, theirs]), target=target, held_by=HELD_BY[kind]))
            report.add(Row(f"{what}, and flushed", "items/s", dict([flushed, theirs])))
            run = measured(partial(durable, source, folder / "compacted"))
            peak = {"tierlog": [run.peak_bytes / (1 << 20)]}
            report.add(Row(f"{what}, memory", "MiB", peak, smaller_is_better=True))
            for name in (kind, "compacted"):
                (folder / name).unlink()
    report.save()


if __name__ == "__main__":
    main()
