"""Records as services write them: bodies of 256 bytes cut from logs, a random key, a unique key and a tag each."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Durability
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message, MessageBatch

QUEUED_TOPIC = "orders-topic-00"
BODY = 256
_BATCH = 10_000
_WORDS = (
    "request", "GET", "/v1/orders/", "status=200", "status=404", "took_ms=", "INFO", "user=", "trace=", "retry",
)  # fmt: skip


def bodies() -> Iterator[bytes]:
    """Text of the real logs below ``TIERLOG_DATA`` again and again, each time at another byte; else made up."""
    folder = Path(os.environ.get("TIERLOG_DATA", "../shared/data"), "loghub")
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))) or _made_up()
    for shift in itertools.count():
        for at in range(shift * 37 % BODY, len(text) - BODY, BODY):
            yield text[at : at + BODY]


def _made_up() -> bytes:
    chance = random.Random(1)
    lines = (
        " ".join(f"{chance.choice(_WORDS)}{chance.randrange(1 << 20):x}" for _ in range(12)) for _ in range(20_000)
    )
    return "\n".join(lines).encode()


def messages(count: int, topic: str, queues: int) -> Iterator[list[Message]]:
    """Batches of messages, queue after queue in turns."""
    chance = random.Random(2)
    body = bodies()
    for start in range(0, count, _BATCH):
        yield [
            Message(
                topic, next(body), [f"{chance.getrandbits(64):016x}"], f"Tag{number % 4}",
                properties={"UNIQ_KEY": f"{chance.getrandbits(128):032X}"}, queue_id=number % queues,
            )
            for number in range(start, min(start + _BATCH, count))
        ]  # fmt: skip


def open_hot(root: Path, segment_bytes: int, queues: int = 16) -> HotStore:
    """The log alone, without a service around it."""
    for name in ("tmp", "tierlog", "commitlog", "consumequeue"):
        (root / name).mkdir(parents=True, exist_ok=True)
    hot = HotStore(
        LocalFileSystem(), StorePaths(root), SystemClock(),
        HotOptions(segment_bytes=segment_bytes, default_queues=queues), bytes(8), published_below=0,
    )  # fmt: skip
    hot.recover([])
    return hot


def fill_segment(hot: HotStore, mib: int, queues: int) -> int:
    """Fill a store's first segment with records and roll it; how many there are."""
    count = 0
    for batch in messages(1 << 40, QUEUED_TOPIC, queues):
        made = MessageBatch.of(batch, now_ms=1_700_000_000_000 + count // 100, max_body_bytes=1 << 22)
        if hot.log.end + int(made.record_sizes(16).sum()) > (mib << 20) - 8:
            break
        hot.append(made, Durability.ASYNC)
        count += len(batch)
    hot.roll()
    hot.dispatch()
    return count
