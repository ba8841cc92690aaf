"""Logs of a broker, and stores that follow one: their disk and their bucket outlive the process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tests.support.world import ROOT, STORE_ID, URL, World, send
from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.engine.parts import Components
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore

SEGMENT_BYTES = 4096


@dataclass
class BrokerLog:
    """The log of a broker: what it may delete from the front, and what a kill may take from the end."""

    data: bytes
    """From physical offset 0 on."""
    begin: int = 0
    segment_bytes: int = SEGMENT_BYTES

    @property
    def end(self) -> int:
        """Behind the last record."""
        return len(self.data)

    def read(self, offset: int, most: int) -> bytes:
        """The next bytes, of one segment."""
        return self.data[offset : min(offset + most, offset - offset % self.segment_bytes + self.segment_bytes)]

    def feed(self, store: FollowedStore, *, most: int = 1 << 20, end: int | None = None) -> None:
        """Give a store what it lacks below ``end``, in pieces."""
        position, end = store.end, self.end if end is None else end
        while position < end:
            piece = self.read(position, min(most, end - position))
            store.append(position, memoryview(piece))
            position += len(piece)


def broker_log(
    messages: int = 120, *, topics: tuple[str, ...] = ("orders", "%RETRY%shop"), pause_ms: int = 1000
) -> BrokerLog:
    """A log of several segments with a few queues: one of ours has the bytes of a broker's. A pause after each six."""
    world = World(settings=small_settings(hot__segment_bytes=SEGMENT_BYTES), url=None)
    store = world.open()
    for first in range(0, messages, 6):
        send(store, topics[first // 6 % len(topics)], first, min(first + 6, messages))
        world.clock.advance(pause_ms)
    hot = store._hot
    data = b"".join(bytes(segment.data) for segment in hot.log.segments())[: hot.log.end]
    store.close()
    return BrokerLog(data)


class FollowedWorld:
    """A store that follows, opened again and again on one disk and one bucket, which fails when told to."""

    engine: FollowedStore

    def __init__(
        self, root: Path = ROOT, *, files: FileSystem | None = None, settings: Settings | None = None,
        segment_bytes: int = SEGMENT_BYTES, url: str | None = URL, fs: CrashFileSystem | None = None,
        objects: MemoryObjectStore | None = None, clock: ManualClock | None = None,
    ) -> None:  # fmt: skip
        self.root, self.files, self.url, self.segment_bytes = root, files, url, segment_bytes
        self.settings = (settings or small_settings(cold__disk_cache_bytes=0)).unsized()
        self.clock = clock or ManualClock()
        self.fs = fs or CrashFileSystem()
        self.objects = objects or MemoryObjectStore(self.clock)
        self.bucket = FaultyObjectStore(self.objects)
        self.opens = 0

    @property
    def components(self) -> Components:
        """What every opening is given; whoever had the store open is killed."""
        self.fs.kill()
        self.opens += 1
        bucket = cast("ObjectStore", self.bucket) if self.url else None
        randomness = SeededRandomness(len(str(self.root)) * 1000 + self.opens)
        return Components(self.settings, self.clock, self.files or self.fs, randomness, bucket, follow_from=0)

    def open(self, begin: int = 0, **options: Any) -> FollowedStore:
        """Open the store as after a kill of whoever had it open."""
        seams = self.components
        self.engine = FollowedStore.open(
            self.root, cold_url=self.url, store_id=STORE_ID, segment_bytes=self.segment_bytes, begin=begin,
            settings=seams.settings, clock=seams.clock, fs=seams.fs, randomness=seams.randomness, objects=seams.objects,
            **options,
        )  # fmt: skip
        return self.engine

    def ordinary(self) -> World:
        """The same directory and bucket for who opens an ordinary store."""
        world = World(
            self.root if self.files else None, settings=self.settings, clock=self.clock, fs=self.fs, files=self.files,
            objects=self.objects, url=self.url,
        )  # fmt: skip
        world._opens = self.opens + 500
        return world

    def archived(self, log: BrokerLog) -> World:
        """What is left of a store that followed a log to its end, was promoted, and has archived all of it."""
        store = self.open()
        log.feed(store)
        store.promote()
        store.close()
        world = self.ordinary()
        world.open().archive(everything=True)
        world.engine.close()
        return world

    def head(self) -> Head:
        """The newest head of the archive."""
        return self.ordinary().head()

    def log_bytes(self) -> bytes:
        """The bytes of the log that is open, from its first segment to its end."""
        log = self.engine.store._hot.log
        data = b"".join(bytes(segment.data) for segment in log.segments())
        return data[: log.end - log.begin]
