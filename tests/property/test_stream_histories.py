"""Whatever happens to a store and to a query that streams it: every message once, in the order of its queue."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.source.options import SourceOptions, Use
from pipeline.source.stream_reader import TierlogStreamReader
from service.engine import Engine
from tests.support.engines import tiny_settings
from tests.support.served import served
from tests.support.stream_driver import Row, StreamDriver
from tiering.batch import Message

TOPICS = ["orders", "pays"]
SETTINGS = tiny_settings(hot__segment_bytes=4096)

appends = st.tuples(st.just("append"), st.sampled_from(TOPICS), st.integers(0, 3), st.integers(1, 25))
others = st.sampled_from(["archive", "drop hot", "trigger", "kill between plan and commit", "restart", "available now"])
histories = st.lists(appends | others.map(lambda name: (name, "", 0, 0)), min_size=4, max_size=16)


class StreamedStore:
    """A store, what was appended to it, and a query that streams it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, source: str, options: dict[str, str]) -> None:
        cold = f"file://{folder}/cold"
        self.engine = Engine.open(folder / "store", cold_url=cold, store_id="s", settings=SETTINGS)
        stack.callback(self.engine.close)
        given: dict[str, str] = dict(options)
        if "url" in source:
            given["url"] = stack.enter_context(served(self.engine, SETTINGS))
        if "cold" in source:
            given["cold"] = cold
        self.archived_only = source == "cold"
        self.expected: list[Row] = []
        self.query = StreamDriver(lambda: TierlogStreamReader(SourceOptions.parse(given, Use.READ_STREAM)))
        stack.callback(lambda: self.query.stop())

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
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield StreamedStore(folder, stack, source, {"start": "earliest", **options})


def by_queue(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[row[:2]].append(row)
    return dict(found)


@pytest.mark.parametrize("source", ["cold", "url", "cold+url"])
@settings(max_examples=8)
@given(history=histories, limit=st.sampled_from([None, 7, 50]))
def test_every_message_once_in_the_order_of_its_queue(
    source: str, history: list[tuple[str, str, int, int]], limit: int | None
) -> None:
    options = {} if limit is None else {"maxMessagesPerTrigger": str(limit)}
    with streamed(source, **options) as store:
        store.append("orders", 0, 1)
        store.engine.archive(everything=True)  # so that there is an archive to name
        for step in history:
            store.step(*step)
        store.engine.archive(everything=True)
        store.query.until_quiet()
        assert by_queue(store.query.everything()) == by_queue(store.expected)
        if limit is not None:
            assert max(len(rows) for rows in store.query.rows) <= limit
