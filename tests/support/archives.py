"""A small archive with every kind of object, and copies of it that tests may damage."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.cold_engine import ColdEngine
from service.engine import Engine
from service.settings import ColdSettings, HotSettings, IndexSettings, Settings
from tests.support.crash_fs import CrashFileSystem
from tiering.batch import Message
from tiering.clock import ManualClock
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.memory import MemoryObjectStore
from tiering.cold.object_store import ObjectStore
from tiering.format.manifest import Head, LogEntry, PageNode
from tiering.paths import ColdKeys
from tiering.randomness import SeededRandomness
from tiering.types import END_OF_TIME_MS, TimeAxis, TimeRange

ROOT = Path("/store")
URL = "memory://archive"
STORE = "store"
TOPICS = ("orders", "pays", "rare")
KEYS = tuple(f"key-{number}" for number in range(7))


def archive_settings() -> Settings:
    """Sizes at which a hundred messages need pages on both levels, several frames and several index pages."""
    return Settings(
        advertise="10.0.0.1:7777",
        hot=HotSettings(segment_bytes=16_384, queue_file_units=60, default_queues=2),
        index=IndexSettings(slots=25, items=40),
        cold=ColdSettings(frame_bytes=4096, max_inline_entries=4, page_entries=2),
    )


@dataclass
class ArchiveWorld:
    """A store on a file system and an object store that outlive it."""

    clock: ManualClock = field(default_factory=ManualClock)
    fs: CrashFileSystem = field(default_factory=CrashFileSystem)
    objects: MemoryObjectStore = field(init=False)
    _opens: int = 0

    def __post_init__(self) -> None:
        self.objects = MemoryObjectStore(self.clock)

    def open(self, *, objects: ObjectStore | None = None, read_only: bool = False) -> Engine:
        """The store, as after a kill of whoever had it open."""
        self._opens += 1
        self.fs.kill()
        return Engine.open(
            ROOT, settings=archive_settings(), cold_url=URL, store_id=STORE, clock=self.clock, fs=self.fs,
            randomness=SeededRandomness(self._opens), objects=objects or self.objects, read_only=read_only,
        )  # fmt: skip

    def cold(self, objects: ObjectStore | None = None) -> ColdEngine:
        """The archive alone, nothing of it in memory yet."""
        return ColdEngine.open(
            URL, settings=archive_settings(), store_id=STORE, clock=self.clock, objects=objects or self.objects
        )

    def manifest(self) -> ManifestStore:
        """The manifest, nothing of it in memory yet."""
        self._opens += 1
        options = archive_settings().cold_options()
        return ManifestStore(self.objects, ColdKeys(STORE), SeededRandomness(1000 + self._opens), options)

    def copy(self) -> ArchiveWorld:
        """The same world apart from this one."""
        world = ArchiveWorld(ManualClock(self.clock.now_ms()), self.fs.crash(0), _opens=self._opens + 100)
        world.objects._objects = dict(self.objects._objects)
        return world


def fill(engine: Engine, clock: ManualClock, count: int, start: int = 0) -> None:
    """Messages of three topics with keys, some of them of several segments' size."""
    for number in range(start, start + count):
        clock.advance(700)
        topic = TOPICS[2] if number % 20 == 7 else TOPICS[number % 2]
        keys = [KEYS[number % 7], KEYS[(number * 3 + 1) % 7]] if number % 5 else []
        engine.append(
            [Message(topic, b"%d-" % number * (100 + number % 13), keys, born_ms=clock.now_ms() - 100 * number)]
        )


def build(*, drop_hot: bool = True, unindexed: bool = True) -> ArchiveWorld:
    """An archive of about a dozen segments; the last of them are not indexed yet."""
    world = ArchiveWorld()
    engine = world.open()
    for start in range(0, 200, 40):
        fill(engine, world.clock, 40, start)
        engine.archive(everything=True, drop_hot=drop_hot)
    if unindexed:
        fill(engine, world.clock, 60, 200)
        engine.archive()  # the index file of the last segments is not sealed
    engine.flush()
    return world


@dataclass(frozen=True)
class Named:
    """Every object of an archive that the manifest names, by kind."""

    head: Head
    kinds: dict[str, list[str]]

    @classmethod
    def of(cls, manifest: ManifestStore) -> Named:
        """Read the whole manifest."""
        head, reader = manifest.refresh(), manifest.reader()
        kinds: dict[str, list[str]] = {"head": [manifest.keys.head]}

        def add(kind: str, key: str) -> None:
            kinds.setdefault(kind, []).append(key)

        def walk(kind: str, nodes: tuple[PageNode, ...] | list[PageNode]) -> None:
            for node in nodes:
                add(f"{kind} page {node.level}", node.ref.key)
                if node.rows is not None:
                    add("companion", node.rows.key)
                if node.level:
                    walk(kind, list(manifest._page(reader, node, kind)))

        walk("log", head.log_tree)
        walk("index", head.index_tree)
        for entry in head.log:
            if entry.rows is not None:
                add("rows", entry.rows.key)
        assert head.state is not None
        add("state", head.state.key)
        for log in manifest.log_entries(reader, head):
            add("segment", log.key)
        ever = TimeRange(-END_OF_TIME_MS, END_OF_TIME_MS)
        for index in manifest.index_entries(reader, head, TimeAxis.STORE, ever):
            add("index object", index.key)
        return cls(head, kinds)


def entry_of(manifest: ManifestStore, key: str) -> LogEntry:
    """The segment with this object."""
    head = manifest.refresh()
    return next(entry for entry in manifest.log_entries(manifest.reader(), head) if entry.key == key)
