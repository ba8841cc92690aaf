"""A small archive in a folder, as Spark's workers reach it; what tests do to its objects, and what it answers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.local import LocalObjectStore

SEGMENT = 65_536
KEYS = [f"k{number}" for number in range(11)]


class FolderArchive:
    """Store ``one`` in ``folder/cold``, wholly archived: 2,000 messages of two keys each."""

    def __init__(self, folder: Path, *, is_there: bool = False) -> None:
        self.url, self.folder = f"file://{folder}/cold", folder / "cold"
        if is_there:
            return
        with closing(
            Store.open(folder / "store", settings=tiny_settings(), cold_url=self.url, store_id="one")
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
        return ManifestStore(objects, ColdKeys("one"), randomness=SystemRandomness(), options=ColdOptions())

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
        cold = Archive.open(self.url, settings=tiny_settings())
        with closing(cold):
            return [
                cold.query(Query(topic, key, limit=5000)).messages
                for topic in ("orders", "pays")
                for key in (*KEYS, "all-0", "all-1")
            ]

    def problems(self) -> list[str]:
        """What a deep check in this process finds."""
        with closing(Archive.open(self.url, settings=tiny_settings())) as cold:
            return cold.check(deep=True)
