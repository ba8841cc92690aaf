"""Several volumes of one store, one after the other or at once, over one archive; each volume is a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from service.engine import Engine
from service.settings import ColdSettings, HotSettings, IndexSettings, QuerySettings, Settings
from tests.support.crash_fs import CrashFileSystem
from tiering.batch import ANY_QUEUE, Message
from tiering.clock import ManualClock
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.memory import MemoryObjectStore
from tiering.cold.object_store import ObjectStore
from tiering.format.manifest import Head
from tiering.format.store_state import StoreState
from tiering.message import StoredMessage
from tiering.options import ColdOptions
from tiering.paths import ColdKeys
from tiering.randomness import SeededRandomness
from tiering.types import PullStatus

COLD_URL = "memory://archive"
STORE_ID = "store"


def small_settings(**hot: object) -> Settings:
    """Sizes at which a hundred messages cross every border."""
    sizes: dict[str, object] = {"segment_bytes": 4096, "queue_file_units": 60, "default_queues": 2}
    return Settings(
        advertise="10.0.0.1:7777",
        hot=HotSettings.model_validate({**sizes, **hot}),
        index=IndexSettings(slots=25, items=90),
        cold=ColdSettings(frame_bytes=4096, max_inline_entries=4, page_entries=3),
        query=QuerySettings(concurrency=1),
    )


class RestoreWorld:
    """Volumes are named by a letter; what is appended has a body and a key that say what it is."""

    def __init__(self) -> None:
        self.fs = CrashFileSystem()
        self.clock = ManualClock()
        self.objects = MemoryObjectStore(self.clock)
        self.settings = small_settings()
        self._opens = 0

    def root(self, volume: str) -> Path:
        """The directory of a volume."""
        return Path("/") / volume

    def open(
        self, volume: str, *, restore: bool = False, store_id: str | None = STORE_ID, objects: object = None,
        settings: Settings | None = None, fs: CrashFileSystem | None = None,
    ) -> Engine:  # fmt: skip
        """Open a volume, or make it from the archive."""
        self._opens += 1
        return Engine.open(
            self.root(volume), settings=settings or self.settings, cold_url=COLD_URL, store_id=store_id,
            clock=self.clock, fs=fs or self.fs, randomness=SeededRandomness(self._opens), restore=restore,
            objects=cast(ObjectStore, objects or self.objects),
        )  # fmt: skip

    def copy_volume(self, volume: str, other: str) -> None:
        """``cp -a`` of a volume's directory."""
        source, target = self.root(volume), self.root(other)
        for folder in [each for each in self.fs._folders if each == source or source in each.parents]:
            self.fs.make_dirs(target / folder.relative_to(source))
        for path in [each for each in self.fs._names if source in each.parents]:
            copied = target / path.relative_to(source)
            self.fs.create(copied, self.fs.size(path), prewrite=False)
            file = self.fs.open(copied)
            file.write_at(0, self.fs.read(path))
            file.close()

    def manifest(self) -> ManifestStore:
        """The archive as somebody else sees it."""
        return ManifestStore(self.objects, ColdKeys(STORE_ID), SeededRandomness(99), ColdOptions())

    def head(self) -> Head:
        """The newest head."""
        return self.manifest().refresh()

    def state(self) -> StoreState:
        """The newest state object."""
        manifest = self.manifest()
        return manifest.state(manifest.reader(), manifest.refresh())


def send(engine: Engine, topic: str, first: int, end: int, *, queue_id: int = ANY_QUEUE) -> list[int]:
    """Append messages numbered ``[first, end)``; their queue offsets."""
    messages = [
        Message(topic, f"{topic} {number}".encode() + b"." * 60, (f"key-{number}",), queue_id=queue_id)
        for number in range(first, end)
    ]
    return [appended.queue_offset for appended in engine.append(messages)]


def numbers_of(messages: Sequence[StoredMessage]) -> list[int]:
    """The numbers that :func:`send` gave."""
    return [int(message.record.body.split(b".")[0].split()[1]) for message in messages]


def read_all(engine: Engine, topic: str, queue_id: int, offset: int = 0) -> list[StoredMessage]:
    """Follow a queue to its end as a consumer does, whatever is in the way."""
    found: list[StoredMessage] = []
    while True:
        page = engine.pull(topic, queue_id, offset, 32)
        found += page.messages
        if page.status is PullStatus.NO_NEW_MESSAGE:
            return found
        assert page.next_offset > offset, f"{page.status} leads from {offset} to {page.next_offset}"
        offset = page.next_offset
