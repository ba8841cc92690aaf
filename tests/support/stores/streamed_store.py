"""A store, what was appended to it, and a query that streams it."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.pipeline.stream_driver import Row, StreamDriver
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.read.views import MESSAGES_SPARK
from tierlog.pipeline.source.options import SourceOptions, SourceUse
from tierlog.pipeline.source.stream_reader import TierlogStreamReader
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

SETTINGS = tiny_settings(hot__segment_bytes=4096)


class StreamedStore:
    """A store, what was appended to it, and a query that streams it."""

    def __init__(self, folder: Path, source: str, options: dict[str, str]) -> None:
        self._folder, self._volumes = folder, 0
        self.cold = f"file://{folder}/cold"
        self._port = 0
        self._is_served = "url" in source
        self._running = contextlib.ExitStack()
        self._open()
        self.options = dict(options)
        if self._is_served:
            self.options["url"] = f"http://127.0.0.1:{self._port}"
        if "cold" in source:
            self.options["cold"] = self.cold
        self.expected: list[Row] = []
        self.query = self.new_query()

    def new_query(self, **options: str) -> StreamDriver:
        """A query with a checkpoint of its own; options of the store's query unless told otherwise."""
        given = {**self.options, **options}
        return StreamDriver(
            lambda: TierlogStreamReader(SourceOptions.parse(given, SourceUse.READ_STREAM), MESSAGES_SPARK)
        )

    def restore(self) -> None:
        """The volume is lost; another is made from the archive and served where the lost one was."""
        self._running.close()
        self._open(restore=True)

    def close(self) -> None:
        """End the query and the store."""
        self.query.stop()
        self._running.close()

    def _open(self, *, restore: bool = False) -> None:
        self._volumes += 1
        root = self._folder / f"volume-{self._volumes}"
        self.engine = Store.open(root, cold_url=self.cold, store_id="s", settings=SETTINGS, restore=restore)
        self._running.callback(self.engine.close)
        if self._is_served:
            url = self._running.enter_context(served(self.engine, SETTINGS, port=self._port))
            self._port = int(url.rpartition(":")[2])

    def append(self, topic: str, queue_id: int, count: int) -> None:
        messages = [Message(topic, b"%d" % (len(self.expected) + at), queue_id=queue_id) for at in range(count)]
        for message, result in zip(messages, self.engine.append(messages), strict=True):
            self.expected.append((topic, queue_id, result.queue_offset, message.body))

    def step(self, name: str, topic: str, queue_id: int, count: int) -> None:
        match name:
            case "append":
                self.append(topic, queue_id, count)
            case "archive":
                self.engine.archive(everything=True)
            case "drop hot":
                self.engine.archive(everything=True, drop_hot=True)
            case "trigger":
                self.query.trigger()
            case "kill between plan and commit":
                if self.query.plan():
                    planned = self.query.read()
                    self.query.restart()
                    assert self.query.rows[-1] == planned
            case "restart":
                self.query.restart()
            case "available now":
                self.query.available_now()


@contextlib.contextmanager
def streamed(source: str, **options: str) -> Iterator[StreamedStore]:
    """``source`` says what the query is told of: ``cold``, ``url`` or ``cold+url``."""
    with tempfile.TemporaryDirectory() as folder:
        store = StreamedStore(Path(folder), source, {"start": "earliest", **options})
        try:
            yield store
        finally:
            store.close()


def by_queue(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows by topic and queue, in their order."""
    found = defaultdict(list)
    for row in rows:
        found[row[:2]].append(row)
    return dict(found)
