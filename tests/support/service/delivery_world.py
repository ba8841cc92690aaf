"""A store and the deliveries of it to groups, on a disk and a clock of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.service.delivery.deliveries import Deliveries, Delivery
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage


class _Disk(CrashFileSystem):
    """A disk that is full when told so."""

    is_full = False

    def free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else super().free_bytes(path)


class DeliveryWorld(World):
    """A store with a topic ``t`` of one queue, and its deliveries."""

    fs: _Disk

    deliveries: Deliveries

    def __init__(self, **given: Any) -> None:
        sizes = tiny_settings(hot__disk_max_used_percent=50, hot__disk_full_percent=75)
        super().__init__(**{"url": None, "fs": _Disk(seed=given.get("seed", 0)), "settings": sizes, **given})
        self.start()
        self.engine.create_topic("t", 1)

    def start(self) -> None:
        """Open, as after a kill."""
        self.open()
        self.deliveries = Deliveries(self.engine, self.clock, self.randomness)

    def restart(self) -> None:
        """Stop cleanly and open."""
        self.close()
        self.start()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait, 10 s at most, for what another thread does."""
        waited = threading.Event()
        for _ in range(1_000):
            if holds():
                return
            waited.wait(0.01)
        raise AssertionError("it did not come")

    def close(self) -> None:
        self.deliveries.close()
        self.engine.close()

    def send(
        self, *bodies: str, topic: str = "t", queue_id: int = 0, line: str = "", tag: str = "",
        keys: tuple[str, ...] = (), properties: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Send messages of a message group ``line``."""
        named = {**(properties or {}), **({"__SHARDINGKEY": line} if line else {})}
        self.engine.append([Message(topic, body.encode(), keys, tag, named, queue_id=queue_id) for body in bodies])

    def receive(self, group: str = "g", topic: str = "t", **asked: Any) -> list[Delivery]:
        return self.deliveries.receive(group, topic, **{"limit": 32, "invisible_ms": 60_000, **asked})

    def bodies(self, group: str = "g", **asked: Any) -> list[str]:
        return [one.message.record.body.decode() for one in self.receive(group, **asked)]

    def committed(self, group: str = "g", queue_id: int = 0) -> int | None:
        return self.engine.groups.committed(group).offsets.get(("t", self.engine.store_id, queue_id))

    def dead_letters(self, group: str = "g") -> list[StoredMessage]:
        try:
            return self.engine.pull(f"%DLQ%{group}", 0, 0, 1_000).messages
        except TopicNotFoundError:
            return []

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Nothing can be appended meanwhile."""
        self.fs.is_full = True
        self.clock.advance(1_000)  # how full it is, is looked at once a second
        yield
        self.fs.is_full = False
        self.clock.advance(1_000)

    @contextlib.contextmanager
    def watching(self, group: str = "g") -> Iterator[threading.Event]:
        told = threading.Event()
        with self.deliveries.watch(group, "t", told.set):
            yield told
