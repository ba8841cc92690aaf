"""What consumers pull at the remoting door: records taken apart, and a queue whose beginning is in the archive only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.rocketmq.remoting_world import RemotingWorld, remoting_world
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


def decoded(body: bytes) -> list[Record]:
    """Takes the body of a pull apart as clients do."""
    found, at = [], 0
    while at < len(body):
        record = decode_record(body, at)
        found.append(record)
        at += record.size
    return found


def fill(world: RemotingWorld, count: int, body: bytes = b"body") -> None:
    """Appends to queue 0 of ``orders``, with TagA, TagB and no tag in turn."""
    tags = ("TagA", "TagB", "")
    world.store.append(
        [Message("orders", body + b"-%d" % number, tag=tags[number % 3], queue_id=0) for number in range(count)]
    )


class HeldStore(MemoryObjectStore):
    """Answers no range while it is held."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.may_answer = threading.Event()
        self.may_answer.set()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self.may_answer.wait(120)
        return super().get_range(key, start, end)


@contextmanager
def archived_world(root: Path, objects: MemoryObjectStore, **given: Any) -> Iterator[RemotingWorld]:
    """A world whose first 200 messages are in the archive only, and 50 more in the log."""
    settings = {"hot.segment_bytes": 65_536, **given}
    with remoting_world(root, settings, objects=objects, cold_url="memory://archive") as world:
        fill(world, 200, bytes(100))
        world.store.archive(everything=True, drop_hot=True)
        fill(world, 50, b"hot")
        yield world
