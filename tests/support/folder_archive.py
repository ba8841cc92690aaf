"""A small archive in a folder, as Spark's workers reach it; what tests do to its objects, and what it answers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from index.query import Query
from service.cold_engine import ColdEngine
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import SystemClock
from tiering.cold.local import LocalObjectStore
from tiering.cold.manifest_store import ManifestStore
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.message import StoredMessage
from tiering.options import ColdOptions
from tiering.paths import ColdKeys
from tiering.randomness import SystemRandomness

SEGMENT = 65_536
KEYS = [f"k{number}" for number in range(11)]


class FolderArchive:
    """Store ``one`` in ``folder/cold``, wholly archived: 2,000 messages of two keys each."""

    def __init__(self, folder: Path, *, is_there: bool = False) -> None:
        self.url, self.folder = f"file://{folder}/cold", folder / "cold"
        if is_there:
            return
        with closing(
            Engine.open(folder / "store", settings=tiny_settings(), cold_url=self.url, store_id="one")
        ) as engine:
            for start in range(0, 2000, 500):
                engine.append(
                    [
                        Message(("orders", "pays")[at % 2], b"%d-" % at * 20, [KEYS[at % 11], f"all-{at % 3}"])
                        for at in range(start, start + 500)
                    ]
                )
            engine.archive(everything=True, drop_hot=True)

    @staticmethod
    def at(folder: Path) -> FolderArchive:
        """One that was copied there."""
        return FolderArchive(folder, is_there=True)

    def manifest(self) -> ManifestStore:
        """Nothing of it in memory yet."""
        objects = LocalObjectStore(self.folder, SystemClock())
        return ManifestStore(objects, ColdKeys("one"), SystemRandomness(), ColdOptions())

    def entries(self) -> list[IndexEntry]:
        """Index objects of the newest manifest."""
        manifest = self.manifest()
        return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))

    def forget_index(self) -> None:
        """No object, and no entry of one."""
        for entry in self.entries():
            (self.folder / entry.key).unlink()
        path = self.folder / "one" / "head"
        head = Head.decode(path.read_bytes(), path="head")
        path.write_bytes(replace(head, index=(), index_tree=()).encode())

    def segments(self) -> list[LogEntry]:
        """Of the newest manifest."""
        manifest = self.manifest()
        return list(manifest.log_entries(manifest.reader(), manifest.refresh()))

    def damage(self, key: str) -> None:
        """Turn a bit in the middle of an object."""
        data = bytearray((self.folder / key).read_bytes())
        data[len(data) // 2] ^= 1
        (self.folder / key).write_bytes(data)

    def answers(self) -> list[list[StoredMessage]]:
        """Messages of keys of both topics."""
        cold = ColdEngine.open(self.url, settings=tiny_settings())
        with closing(cold):
            return [
                cold.query(Query(topic, key, limit=5000)).messages
                for topic in ("orders", "pays")
                for key in (*KEYS, "all-0", "all-1")
            ]

    def problems(self) -> list[str]:
        """What a deep check in this process finds."""
        with closing(ColdEngine.open(self.url, settings=tiny_settings())) as cold:
            return cold.check(deep=True)
