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

from benchmarks.harness import Report, Row, drained, in_turns
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
    "of about 110 ns a record 70 are the compiled loop: 39 with records in the cache, 13 of them their checksum, and "
    "30 of waiting for memory although ten records are asked for ahead; the other 40 are a batch's calls, 0.3 ms each."
)
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
            for what, columns, target in _ASKED:
                sides = in_turns(
                    {
                        "tierlog": partial(pull_all, engine, columns),
                        "RocketMQ": partial(java.rate, "consume", n=given.messages),
                    },
                    given.runs,
                )
                report.add(Row(what, "messages/s", sides, target, held_by=_HELD_BY))
    report.save()


if __name__ == "__main__":
    main()
