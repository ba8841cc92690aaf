"""A small archive with every kind of object, and copies of it that tests may damage."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.stores.engines import small_settings
from tests.support.world import World
from tierlog.service.config.settings import QuerySettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import END_OF_TIME_MS, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, PageNode
from tierlog.tiering.message.batch import Message

TOPICS = ("orders", "pays", "rare")
KEYS = tuple(f"key-{number}" for number in range(7))


def archive_settings() -> Settings:
    """Sizes at which a hundred messages need pages on both levels, several frames and several index pages."""
    return small_settings(
        hot__segment_bytes=16_384, index__items=40, cold__page_entries=2,
        query__concurrency=QuerySettings().concurrency,
    )  # fmt: skip


def archive_world() -> World:
    """A world of such sizes."""
    return World(settings=archive_settings())


def fill(engine: Store, clock: ManualClock, count: int, start: int = 0) -> None:
    """Messages of three topics with keys, some of them of several segments' size."""
    for number in range(start, start + count):
        clock.advance(700)
        topic = TOPICS[2] if number % 20 == 7 else TOPICS[number % 2]
        keys = [KEYS[number % 7], KEYS[(number * 3 + 1) % 7]] if number % 5 else []
        engine.append(
            [Message(topic, b"%d-" % number * (100 + number % 13), keys, born_ms=clock.now_ms() - 100 * number)]
        )


def build(*, drop_hot: bool = True, unindexed: bool = True) -> World:
    """An archive of about a dozen segments; the last of them are not indexed yet."""
    world = archive_world()
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
