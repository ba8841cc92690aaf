"""A short life of a store in which index files go through every state: the workload of the index's kill tests."""

from __future__ import annotations

import random

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.index.index_items import verify_items
from tests.support.stores.power_world import KEYS, Notes, PowerWorld, verify_engine
from tests.support.world import ROOT
from tierlog.index.search.query import Query
from tierlog.service.config.settings import ColdSettings, HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Order
from tierlog.tiering.message.batch import Message

TOPICS = ("orders", "pay-ments")
#: One message in so many has more keys than an index file takes.
_WIDE_EVERY = 9
_WIDE = tuple(f"wide-{number}" for number in range(15))


def index_settings() -> Settings:
    """Index files of a few messages."""
    return Settings(
        advertise="10.0.0.1:7777",
        hot=HotSettings(segment_bytes=4096, queue_file_units=60, default_queues=1),
        index=IndexSettings(slots=5, items=12),
        cold=ColdSettings(frame_bytes=4096, disk_cache_bytes=0),
    )


class IndexWorld(PowerWorld):
    """Small messages with keys, always by the same steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.settings = index_settings()
        self._batches = [2, 3, 4]

    def live(self) -> None:
        """Files are written, full, sealed, compacted, uploaded and deleted, between stops of both kinds."""
        self._make([
            self._append_flushed, self._dispatch, self._checkpoint, self._append_async, self._dispatch, self._kill,
            self._append_flushed, self._compact, self._append_flushed, self._append_async, self._archive_everything,
            self._append_flushed, self._reopen, self._append_async, self._dispatch, self._drop_hot,
            self._append_flushed, self._compact, self._roll, self._append_async, self._archive, self._append_flushed,
        ])  # fmt: skip

    def _checkpoint(self, engine: Store) -> None:
        engine._checkpoint()

    def _message(self) -> Message:
        self._count += 1
        keys = random.Random(self._count).sample(KEYS, (2, 1, 3, 0)[self._count % 4])
        if self._count % _WIDE_EVERY == 0:
            keys += _WIDE
        body = b"%d:" % self._count + b"." * (self._count % 3 * 100)
        return Message(
            TOPICS[self._count % 2], body, keys, "", {}, self.clock.now_ms() - self._count % 5 * 1000, 0
        )  # fmt: skip


def verify_world(engine: Store, fs: CrashFileSystem, notes: Notes) -> None:
    """The promises of the store, every item counted, and every key asked for."""
    found = verify_engine(engine, notes, deep=True, queries=False)
    verify_items(engine, (message.record for message in found.values()), fs, StorePaths(ROOT).index)
    for topic in {place[0] for place in found}:
        for key in (*KEYS, _WIDE[0]):
            answer = engine.query(Query(topic, key, limit=1000, order=Order.OLDEST))
            assert answer.coverage.complete, answer.coverage
            expected = sorted(
                (message.record.store_ms, message.record.physical_offset, message.record.body)
                for message in found.values()
                if message.record.topic == topic and key in message.keys
            )
            assert [message.record.body for message in answer.messages] == [body for _, _, body in expected]
