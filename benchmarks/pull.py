"""How fast does a consumer get a queue's messages in order, each decoded, out of the hot tier?

Both sides hold ``--messages`` of 256 random bytes with a key of 16 hex digits, a unique key and a tag in 4 queues of a
topic, in the page cache. tierlog's answers are record batches of 8,192 rows: with bodies, offsets and times; then with
keys and tag beside them; then with all that a message has. Every record's checksum is compared. RocketMQ's
``getMessage`` is asked for as many as it gives at once, and every record is decoded into an object with a copy of its
body, without comparing checksums. Both decode whatever is in a record; what a row of tierlog leaves out is not decoded.

``python benchmarks/pull.py [--messages 1000000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.least_work import pull_hot
from benchmarks.peers.rocketmq import rocketmq
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message

TOPIC = "orders-topic-00"
QUEUES = 4
_BATCH = 10_000
_ROWS = 8192
_HELD_BY = (
    "of about 55 ns a record 31 are the compiled loop: 13 the checksum, 6 the copy of the body, and most of the others "
    "waiting for memory, as a record's end is read too, where its own checksum would lie. The rest is a batch's calls, "
    "0.17 ms each: record 0067"
)
_LIMIT = "one copy of each body, checked"
_PROOF = (
    "a program that knows where each record lies, compares its checksum, copies its body once into a buffer of "
    "Arrow's, and writes four numbers beside it, in batches of as many rows: benchmarks/least_work.py"
)
_NOTE = "RocketMQ's side decodes every record and copies its body, but compares no checksum; tierlog's compares each."
_BASE = ("queue_offset", "physical_offset", "store_ms", "born_ms", "body")
_ASKED: tuple[tuple[str, Sequence[str] | None, float | None], ...] = (
    ("pull: body, offsets and times", _BASE, 10),
    ("pull: the same with keys and tag", (*_BASE, "keys", "tag"), 2.5),
    ("pull: all columns", None, None),
)


def fill(engine: Store, count: int) -> None:
    """Append the messages and derive their queues."""
    chance = random.Random(1)
    for start in range(0, count, _BATCH):
        engine.append(
            [
                Message(
                    TOPIC, chance.randbytes(256), [f"{chance.getrandbits(64):016x}"], "TagA",
                    properties={"UNIQ_KEY": f"{chance.getrandbits(128):032X}"}, queue_id=number % QUEUES,
                )
                for number in range(start, min(start + _BATCH, count))
            ],
            Durability.ASYNC,
        )  # fmt: skip
    engine.flush()


def pull_all(engine: Store, columns: Sequence[str] | None) -> float:
    """Messages a second from the first of each queue to its last."""
    got = 0
    begin = time.perf_counter()
    for queue in range(QUEUES):
        offset = 0
        while rows := (page := engine.pull_batch(TOPIC, queue, offset, _ROWS, columns)).messages.num_rows:
            got += rows
            offset = page.next_offset
    return got / (time.perf_counter() - begin)


class Least:
    """What :func:`pull_hot` is given: where each record of each queue lies in the mapped log."""

    def __init__(self, engine: Store, root: Path) -> None:
        self._maps: dict[int, NDArray[np.uint8]] = {
            int(path.name): np.memmap(path, np.uint8, "r") for path in (root / "commitlog").iterdir()
        }
        self._queues = [self._places(engine, queue) for queue in range(QUEUES)]

    def _places(self, engine: Store, queue: int) -> NDArray[np.int64]:
        found, offset = [], 0
        while (page := engine.pull_batch(TOPIC, queue, offset, _ROWS, ["physical_offset"])).messages.num_rows:
            found.append(page.messages.column("physical_offset").to_numpy())
            offset = page.next_offset
        offsets = np.concatenate(found)
        bases = np.array(sorted(self._maps))
        addresses = np.array([self._maps[base].ctypes.data for base in bases.tolist()])
        files = np.searchsorted(bases, offsets, side="right") - 1
        places: NDArray[np.int64] = addresses[files] + offsets - bases[files]
        return places

    def rate(self) -> float:
        """Messages a second."""
        begin = time.perf_counter()
        return pull_hot(self._queues, 256, _ROWS) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        settings = Settings.load(overrides={"advertise": "127.0.0.1:10911"})
        engine = Store.open(Path(folder, "tierlog"), settings=settings)
        with closing(engine), rocketmq(Path(folder, "java")) as java:
            fill(engine, given.messages)
            java.run("fill", n=given.messages)
            drained()
            least = Least(engine, Path(folder, "tierlog"))
            for what, columns, target in _ASKED:
                limit = {_LIMIT: least.rate} if columns == _BASE else {}
                sides = in_turns(
                    {
                        "tierlog": partial(pull_all, engine, columns),
                        "RocketMQ": partial(java.rate, "consume", n=given.messages),
                        **limit,
                    },
                    given.runs,
                )
                limits = {name: sides.pop(name) for name in limit}
                report.add(
                    Row(
                        what, "messages/s", sides, target, note=_NOTE, held_by=_HELD_BY, limit=limits,
                        proof=_PROOF if limits else "",
                    )
                )  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
