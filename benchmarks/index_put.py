"""How fast are random keys put into an index, from text on?

Keys of 16 hex digits, one a message, go into a new file with a slot for every four keys. Timed is what the dispatcher
does with scanned rows: both hashes of topic and key, the item, its slot, with the pages of the file that come to be
meanwhile. RocketMQ puts as many keys into an ``IndexStoreFile`` one by one, in its file of the same shape; making the
file is not timed on either side. RocksDB gets the first ``--rocksdb-keys`` of them, which flatters it, in batches that
are not logged, the value being an item's 32 bytes.

``python benchmarks/index_put.py [--items 20000000] [--rocksdb-keys 1000000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.peers.rocketmq import rocketmq
from benchmarks.peers.rocksdb import rocksdb
from tests.support.index.key_batches import BEGIN_MS, TOPIC_IDS, ManyKeys
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.key_batch import KeyBatch
from tierlog.tiering.base.fs import LocalFileSystem

FS = LocalFileSystem()
#: As many messages of some 400 bytes are scanned at a time.
_BATCH = 1 << 13
_KEYS_PER_SLOT = 4


def put(folder: Path, keys: ManyKeys) -> float:
    """Keys a second into a new file."""
    path = folder / "index"
    drained()
    file = ChainedIndexFile.create(
        FS, path, TIERLOG, slots=len(keys) // _KEYS_PER_SLOT, items=len(keys) + 1, begin_ms=BEGIN_MS, first_physical=0
    )
    seconds = 0.0
    for data, rows in keys.batches(_BATCH):
        begun = time.perf_counter()
        batch = KeyBatch.of(data, rows, TOPIC_IDS)
        file.put(batch, 0, len(batch))
        seconds += time.perf_counter() - begun
    assert file.item_count == len(keys)
    path.unlink()
    return len(keys) / seconds


def put_into_rocksdb(folder: Path, pairs: list[tuple[bytes, bytes]]) -> float:
    """Keys a second into a new database."""
    drained()
    with tempfile.TemporaryDirectory(dir=folder) as inside, rocksdb(Path(inside)) as database:
        begun = time.perf_counter()
        database.put_many(pairs)
        return len(pairs) / (time.perf_counter() - begun)


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--rocksdb-keys", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    keys = ManyKeys.random(given.items)
    few = min(given.items, given.rocksdb_keys)
    pairs = [(key, b"%032d" % number) for number, key in enumerate(keys.first(few))]
    slots = given.items // _KEYS_PER_SLOT
    with tempfile.TemporaryDirectory(dir=given.dir) as inside:
        folder = Path(inside)
        put(folder, ManyKeys.random(_BATCH))  # compiles
        with rocketmq(folder / "rocketmq") as java:
            sides = {
                "tierlog": lambda: put(folder, keys),
                "RocketMQ putKey": lambda: java.rate("index_put", n=given.items, slots=slots, items=given.items + 2),
                "RocksDB put": lambda: put_into_rocksdb(folder, pairs),
            }
            figures = in_turns(sides, given.runs)
        ours, putkey, rocks = figures.items()
    what = f"put {given.items:,} random keys, hashed"
    held_by = (
        "58 ns a key where the kernel has pages at hand, 27 of them both hashes and 19 the item with its slot; right"
        " after RocketMQ's files 65 to 105, as puts wait for pages that the host has to find first"
    )
    note = f"RocksDB: the first {few:,}, through Python"
    report.add(Row(what, "keys/s", dict([ours, putkey]), target=8, held_by=held_by))
    report.add(Row(what, "keys/s", dict([ours, rocks]), target=40, note=note, held_by=held_by))
    report.save()


if __name__ == "__main__":
    main()
