"""How fast are messages found by their keys while they are hot, with the records as the answer?

Every message has one key of 16 random hex digits; random ones of them are asked for, all of which are there. Tierlog
looks them up in one snapshot, ``--batch`` at a time (bodies and other fields come back as Arrow columns) and one by one
(the record's bytes come back); checksum, topic and key of each record are compared. RocketMQ's ``queryMessage`` returns
views of records that it does not check. RocksDB, LMDB and SQLite have the same records by topic and key. Everything is
in the page cache, or in a cache of the peer's.

``python benchmarks/hot_lookup.py [--messages 1000000] [--queries 100000] [--batch 1000] [--runs 5]
[--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.corpus import drawn, hex_keys
from benchmarks.harness import Report, Row, Side, in_turns
from benchmarks.peers.lmdb_ import lmdb
from benchmarks.peers.rocketmq import rocketmq
from benchmarks.peers.rocksdb import rocksdb
from benchmarks.peers.sqlite import sqlite
from tierlog.index.search.hot_lookup import HotKeys
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message

_TOPIC = "TopicTest"
_BODY_BYTES = 256
_APPENDED = 1_000
_ITEM_WORDS = 5
_LEAST = "a call, three places, a copy"
_PROOF = (
    "A key leads to a slot, that to an item and that to a record: three places in memory, none known before the last; "
    "the caller is Python and gets the record's bytes."
)
ONE_HELD_BY = (
    "of 2.9 us a key 1.5 are waiting for memory (slot, item, record: nothing can be asked for ahead), 0.5 the kernel"
    " with its checks and 0.9 Python; RocksDB, all in its cache, takes 3 to 4.5"
)


def filled(folder: Path, keys: Sequence[str]) -> Store:
    """A store with a message of each key, all of it derived."""
    settings = Settings.load(None, {"index.items": len(keys) + 1, "index.slots": max(1, len(keys) // 4)})
    engine = Store.open(folder, settings=settings)
    bodies = np.random.default_rng(1).integers(0, 256, (_APPENDED, _BODY_BYTES), np.uint8)
    for start in range(0, len(keys), _APPENDED):
        part = keys[start : start + _APPENDED]
        messages = [Message(_TOPIC, body.tobytes(), [key]) for key, body in zip(part, bodies, strict=False)]
        engine.append(messages, Durability.ASYNC)
    engine.flush()
    return engine


def one_by_one(
    get: Callable[[str], object] | Callable[[bytes], object] | Callable[[int], object], asked: Sequence[object]
) -> Side:
    """Keys a second, each of which is found."""

    def run() -> float:
        begun = time.perf_counter()
        for key in asked:
            found = get(key)  # type: ignore[arg-type]  # of the kind that this side wants
        seconds = time.perf_counter() - begun
        assert found is not None
        return len(asked) / seconds

    return run


def in_batches(get_many: Callable[[Any], object], asked: Sequence[object] | pa.Array, batch: int) -> Side:
    """Keys a second, so many a call."""
    parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]

    def run() -> float:
        begun = time.perf_counter()
        for part in parts:
            found = get_many(part)
        seconds = time.perf_counter() - begun
        assert len(found) == len(parts[-1])  # type: ignore[arg-type]  # every peer answers with something countable
        return len(asked) / seconds

    return run


class LeastLookUp:
    """What no look-up can leave out: a call, a slot, an item and a record, each where the one before says, and a copy.

    Nothing is hashed, compared or checked.
    """

    def __init__(self, records: int, record_bytes: int) -> None:
        chance = np.random.default_rng(3)
        data = np.zeros(records * record_bytes, np.uint8)
        data[::4096] = 1  # pages that nobody wrote to are one
        items = np.zeros((records, _ITEM_WORDS), np.int64)
        items[:, 0] = chance.permutation(records) * record_bytes
        self._data, self._size = data.data, record_bytes
        self._items, self._slots = items.reshape(-1).data, chance.permutation(records).data

    def get(self, number: int) -> bytes:
        """The bytes of a record."""
        at = self._items[_ITEM_WORDS * self._slots[number]]
        return bytes(self._data[at : at + self._size])


def records_of(hot: HotKeys, keys: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """What the peers are given: topic and key, and the record."""
    for key in keys:
        found = hot.get(key)
        assert found is not None
        yield f"{_TOPIC}#{key}".encode(), found.data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    keys = [key.decode() for key in hex_keys(given.messages).tolist()]
    numbers = dict.fromkeys(drawn(given.queries, given.messages).tolist())  # each once: SQLite answers it once
    asked = [keys[number] for number in numbers]
    named = [f"{_TOPIC}#{key}".encode() for key in asked]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.dir)))
        engine = filled(folder / "tierlog", keys)
        stack.callback(engine.close)
        hot = stack.enter_context(engine.hot_keys(_TOPIC))
        java = stack.enter_context(rocketmq(folder / "rocketmq"))
        java.run("fill", n=given.messages, body=_BODY_BYTES)
        rocks = stack.enter_context(rocksdb(folder / "rocksdb"))
        rocks.put_many(records_of(hot, keys))
        rocks.settle()
        tree = stack.enter_context(lmdb(folder / "lmdb"))
        tree.put_many(records_of(hot, keys))
        tree.begin_reading()
        table = stack.enter_context(sqlite(folder / "sqlite"))
        table.put_many(records_of(hot, keys))
        found = hot.get(asked[0])
        assert found is not None
        sides: dict[str, Side] = {
            "tierlog": in_batches(hot.look_up, pa.array(asked), given.batch),
            "tierlog, keys in a list": in_batches(hot.look_up, asked, given.batch),
            "tierlog, one by one": one_by_one(hot.get, asked),
            "RocketMQ queryMessage": lambda: java.rate("query_message", queries=given.queries),
            "RocksDB get": one_by_one(rocks.get, named),
            "RocksDB multi_get": in_batches(rocks.get_many, named, given.batch),
            "LMDB get": one_by_one(tree.get, named),
            "LMDB getmulti": in_batches(tree.get_many, named, given.batch),
            "SQLite select": one_by_one(table.get, named),
            "SQLite select in": in_batches(table.get_many, named, given.batch),
            _LEAST: one_by_one(LeastLookUp(given.messages, len(found.data)).get, list(numbers)),
        }
        figures = in_turns(sides, given.runs)

    def row(what: str, ours: str, peer: str, target: float | None = None, note: str = "", held_by: str = "") -> None:
        sides = {name: figures[name] for name in (ours, peer)}
        limit = {_LEAST: figures[_LEAST]} if held_by else {}
        report.add(Row(what, "keys/s", sides, target, note=note, held_by=held_by, limit=limit, proof=_PROOF))

    many, one = f"{given.batch:,} keys at a time", "one key at a time"
    row(many, "tierlog", "RocketMQ queryMessage", 4, f"of {given.messages:,}; RocketMQ takes them one by one")
    row(many, "tierlog, keys in a list", "RocketMQ queryMessage")
    for peer in ("RocksDB multi_get", "LMDB getmulti", "SQLite select in"):
        row(many, "tierlog", peer)
    row(one, "tierlog, one by one", "RocketMQ queryMessage", 0.6)
    same = f"the same {given.messages:,} records, compacted, in a block cache that holds them all"
    row(one, "tierlog, one by one", "RocksDB get", 3, same, ONE_HELD_BY)
    row(one, "tierlog, one by one", "LMDB get")
    row(one, "tierlog, one by one", "SQLite select")
    report.save()


if __name__ == "__main__":
    main()
