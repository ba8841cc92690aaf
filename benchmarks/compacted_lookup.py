"""How fast are a key's items found in a compacted index file on the local disk?

``--items`` keys of 16 random hex digits in ``--items`` / 4 slots; random ones of them are asked for, from text on, so
that hashing counts. Both sides have the file in the page cache. Tierlog looks up ``--batch`` keys a call, and one a
call. RocketMQ's ``IndexStoreFile`` reads the slot and then its items, as of a file that was uploaded, one query after
the other.

``python benchmarks/compacted_lookup.py [--items 20000000] [--queries 200000] [--batch 1000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.corpus import drawn
from benchmarks.harness import Report, Row, Side, in_turns
from benchmarks.peers.rocketmq import rocketmq
from tests.support.index.key_batches import BEGIN_MS, TOPIC, TOPIC_IDS, ManyKeys
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.search.hot_lookup import KeyHasher
from tierlog.tiering.base.fs import LocalFileSystem

FS = LocalFileSystem()
_BATCH = 1 << 13
_KEYS_PER_SLOT = 4


def compacted_file(folder: Path, keys: ManyKeys) -> CompactedIndexFile:
    """A file with all keys."""
    items = len(keys)
    file = ChainedIndexFile.create(
        FS, folder / "f", TIERLOG, slots=items // _KEYS_PER_SLOT, items=items + 1, begin_ms=BEGIN_MS, first_physical=0
    )
    for data, rows in keys.batches(_BATCH):
        batch = KeyBatch.of(data, rows, TOPIC_IDS)
        file.put(batch, 0, len(batch))
    file.seal(1 << 62)
    compact(FS, file, folder / "compacted", folder / "tmp")
    file.path.unlink()
    return CompactedIndexFile.open(FS, folder / "compacted")


def in_batches(file: CompactedIndexFile, topic: str, asked: pa.Array, batch: int) -> Side:
    """Keys a second, so many a call, all of which are there."""
    parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
    hashes_of = KeyHasher(topic).many

    def run() -> float:
        begun = time.perf_counter()
        for part in parts:
            items, _ = file.look_up_many(hashes_of(part))
            assert len(items) >= len(part)
        return len(asked) / (time.perf_counter() - begun)

    return run


def one_by_one(file: CompactedIndexFile, topic: str, asked: list[str]) -> Side:
    """Keys a second, one a call."""
    hashes_of = KeyHasher(topic).one

    def run() -> float:
        begun = time.perf_counter()
        for key in asked:
            items = file.lookup(*hashes_of(key))
            assert len(items)
        return len(asked) / (time.perf_counter() - begun)

    return run


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--queries", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    keys = ManyKeys.random(given.items)
    numbers = drawn(given.queries, given.items)
    asked = [bytes(key).decode() for key in keys.data.reshape(-1, 16)[numbers]]
    topic, few = TOPIC.decode(), asked[: given.queries // 4]
    with tempfile.TemporaryDirectory(dir=given.dir) as inside:
        folder = Path(inside)
        file = compacted_file(folder, keys)
        with rocketmq(folder / "rocketmq") as java:
            java.run("index_put", n=given.items, slots=given.items // _KEYS_PER_SLOT, items=given.items + 2)
            java.run("compact")
            sides = {
                "tierlog": in_batches(file, topic, pa.array(asked), given.batch),
                "tierlog, one by one": one_by_one(file, topic, few),
                "RocketMQ queryAsync": lambda: java.rate("query_after", queries=given.queries // 10),
            }
            found = in_turns(sides, given.runs)
    what, peer = f"of {given.items:,} items, ", {"RocketMQ queryAsync": found["RocketMQ queryAsync"]}
    report.add(Row(f"{what}{given.batch:,} keys a call", "keys/s", {"tierlog": found["tierlog"], **peer}, target=50))
    ours = {"tierlog, one by one": found["tierlog, one by one"]}
    report.add(Row(f"{what}one key a call", "keys/s", {**ours, **peer}, target=8))
    report.save()


if __name__ == "__main__":
    main()
