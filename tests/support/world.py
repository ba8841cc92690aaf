"""A store of small files on a disk, a bucket and a clock of its own: what most tests of whole stores begin with.

A world is what outlives a store's process. ``PowerWorld``, ``IndexWorld``, ``RemovalWorld`` and ``LookUpStore`` in
``tests/support/stores`` derive from :class:`World`, as do worlds of single tests; ``SharedBucket`` is several of them
around one bucket, and ``ArchivedHistory`` and ``SalvagedHistory`` are random runs on one. ``page_world`` serves one.
``HotWorld``, ``ClassicWorld`` and ``GroupWorld`` are worlds of a part alone, below the engine. A simulation has its own
scheduler, server and disks, and is no world.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.message.batch import ANY_QUEUE, Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore

ROOT = Path("/store")
URL = "memory://archive"
STORE_ID = "store"


class World:
    """A store whose disk and bucket outlive its process.

    Everything is in memory unless ``root`` names a directory. Stores are opened on ``files``, by default the disk
    ``fs``, and reach their objects through ``bucket``, which fails when told to. A ``seed`` decides which
    names are drawn.
    """

    engine: Store
    """What was opened last."""
    randomness: SeededRandomness
    """Draws the names of objects that other processes than the store write."""

    def __init__(
        self, root: Path | None = None, *, settings: Settings | None = None, clock: ManualClock | None = None,
        fs: CrashFileSystem | None = None, files: FileSystem | None = None, objects: MemoryObjectStore | None = None,
        url: str | None = URL, store_id: str | None = STORE_ID, seed: int = 0,
    ) -> None:  # fmt: skip
        self.root = root or ROOT
        self.settings = settings or tiny_settings()
        self.clock = clock or ManualClock()
        self.fs = fs or CrashFileSystem(seed=seed)
        self.files = LocalFileSystem() if root is not None and files is None else files
        self.objects = objects or MemoryObjectStore(self.clock)
        self.bucket = FaultyObjectStore(self.objects)
        self.url, self.store_id, self.seed = url, store_id, seed
        self.randomness = SeededRandomness(99 + seed)
        self._opens = 0

    @property
    def segment_bytes(self) -> int:
        """Of the log."""
        assert self.settings.hot.segment_bytes is not None
        return self.settings.hot.segment_bytes

    def place(self, volume: str) -> Path:
        """The directory of a volume beside the first."""
        return self.root.parent / volume

    def gateway(self) -> object:
        """Returns what the next store reaches its objects through."""
        return self.bucket

    def open(
        self, volume: str | None = None, *, restore: bool = False, read_only: bool = False, store_id: str | None = "",
        objects: object = None, settings: Settings | None = None, fs: FileSystem | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> Store:  # fmt: skip
        """Open the store as after a kill of whoever had it open, or a volume of its own beside it."""
        self._opens += 1
        if volume is None:
            self.fs.kill()
        if self.url is not None:
            objects = objects or self.gateway()
        self.engine = Store.open(
            self.root if volume is None else self.place(volume), settings=settings or self.settings, cold_url=self.url,
            store_id=self.store_id if store_id == "" else store_id, clock=self.clock, fs=fs or self.files or self.fs,
            randomness=SeededRandomness(self.seed * 1000 + self._opens), restore=restore, read_only=read_only,
            objects=cast("ObjectStore | None", objects), tracer=tracer,
        )  # fmt: skip
        return self.engine

    def reopen(self) -> Store:
        """Close cleanly and open."""
        self.engine.close()
        return self.open()

    def cut_power(self, seed: int = 0, *, lose_everything: bool = False) -> None:
        """What was not made durable may be gone."""
        self.fs = self.fs.crash(seed, lose_everything=lose_everything)

    def archive(self) -> None:
        """Archive everything and remove the hot copies."""
        self.engine.archive(everything=True, drop_hot=True)

    def cold(self, objects: ObjectStore | None = None, settings: Settings | None = None) -> Archive:
        """The archive alone, nothing of it in memory yet."""
        assert self.url is not None
        return Archive.open(
            self.url, settings=settings or self.settings, store_id=self.store_id, clock=self.clock,
            objects=objects or self.bucket,
        )  # fmt: skip

    def manifest(self, objects: ObjectStore | None = None) -> ManifestStore:
        """The archive's manifest as another process sees it, nothing of it in memory yet."""
        assert self.store_id is not None
        return ManifestStore(
            objects or self.objects, ColdKeys(self.store_id), randomness=self.randomness,
            options=self.settings.cold_options(), clock=self.clock,
        )  # fmt: skip

    def head(self) -> Head:
        """The newest head."""
        return self.manifest().refresh()

    def state(self) -> StoreState:
        """The newest state object."""
        manifest = self.manifest()
        return manifest.state(manifest.reader(), manifest.refresh())

    def entries(self) -> list[LogEntry]:
        """Published segments."""
        manifest = self.manifest()
        return list(manifest.log_entries(manifest.reader(), manifest.refresh()))

    def copy(self) -> World:
        """The same world apart from this one, as after a power cut."""
        copied = World(
            settings=self.settings, clock=ManualClock(self.clock.now_ms()), fs=self.fs.crash(0), url=self.url,
            store_id=self.store_id, seed=self.seed,
        )  # fmt: skip
        copied.objects._objects = dict(self.objects._objects)
        copied._opens = self._opens + 100
        copied.randomness = SeededRandomness(99 + copied._opens)
        return copied

    def copy_volume(self, volume: str, other: str) -> None:
        """``cp -a`` of a volume's directory."""
        source, target = self.place(volume), self.place(other)
        for folder in [each for each in self.fs._folders if each == source or source in each.parents]:
            self.fs.make_dirs(target / folder.relative_to(source))
        for path in [each for each in self.fs._names if source in each.parents]:
            copied = target / path.relative_to(source)
            self.fs.create(copied, self.fs.size(path), prewrite=False)
            file = self.fs.open(copied)
            file.write_at(0, self.fs.read(path))
            file.close()


def send(engine: Store, topic: str, first: int, end: int, *, queue_id: int = ANY_QUEUE) -> list[int]:
    """Append messages numbered ``[first, end)``; their queue offsets."""
    messages = [
        Message(topic, f"{topic} {number}".encode() + b"." * 60, (f"key-{number}",), queue_id=queue_id)
        for number in range(first, end)
    ]
    return [appended.queue_offset for appended in engine.append(messages)]


def numbers_of(messages: Sequence[StoredMessage]) -> list[int]:
    """The numbers that :func:`send` gave."""
    return [int(message.record.body.split(b".")[0].split()[1]) for message in messages]


def read_all(engine: Store, topic: str, queue_id: int, offset: int = 0) -> list[StoredMessage]:
    """Follow a queue to its end as a consumer does, whatever is in the way."""
    found: list[StoredMessage] = []
    while True:
        page = engine.pull(topic, queue_id, offset, 32)
        found += page.messages
        if page.status is PullStatus.NO_NEW_MESSAGE:
            return found
        assert page.next_offset > offset, f"{page.status} leads from {offset} to {page.next_offset}"
        offset = page.next_offset
