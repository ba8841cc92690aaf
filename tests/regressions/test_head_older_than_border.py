"""A reader whose manifest head was older than the hot tier's border left out all between, and said "complete"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import StoreMismatchError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


class Node:
    """A running store of which 100 messages are archived and 100 are hot."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clock = ManualClock()
        self.objects = FaultyObjectStore(MemoryObjectStore(self._clock))
        self.engine = self._open(LocalFileSystem(), read_only=False)
        self.append(100)
        self.archive()
        self.append(100)

    def _open(self, fs: LocalFileSystem, *, read_only: bool) -> Store:
        return Store.open(
            self._root, settings=tiny_settings(), clock=self._clock, cold_url="memory://archive", fs=fs,
            objects=self.objects, read_only=read_only,
        )  # fmt: skip

    def append(self, count: int) -> None:
        self.engine.append([Message("t", bytes(300), ["k"], queue_id=0) for _ in range(count)])

    def archive(self) -> None:
        self.engine.archive(everything=True, drop_hot=True)

    def reader(self) -> Store:
        """Opened read-only while the node archives between the look at the head and the look at the log."""
        node = self

        class ArchivedMeanwhile(LocalFileSystem):
            is_done = False

            def list_dir(self, path: Path) -> list[str]:
                if path.name == "commitlog" and not self.is_done:
                    self.is_done = True
                    node.archive()
                return super().list_dir(path)

        return self._open(ArchivedMeanwhile(), read_only=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.engine.close()


@pytest.mark.parametrize("key", [None, "k"])
def test_a_query_looks_for_a_head_that_covers_all_below_the_border(node: Node, key: str | None) -> None:
    answer = node.reader().query(Query("t", key, limit=1000))
    assert (len(answer.messages), answer.coverage.complete) == (200, True)


def test_a_pull_looks_for_a_head_that_covers_all_below_the_border(node: Node) -> None:
    found = node.reader().pull("t", 0, 150, 10)
    assert (found.status, found.next_offset, len(found.messages)) == (PullStatus.FOUND, 160, 10)


def test_an_archive_that_was_set_back_is_not_searched_and_not_claimed(node: Node) -> None:
    key = f"{node.engine.store_id}/head"
    before, _ = node.objects.get(key)
    reader = node.reader()
    node.objects.put(key, before)
    answer = reader.query(Query("t", limit=1000))
    (store,) = answer.coverage.stores
    assert (answer.messages, answer.coverage.complete, store.cold) == ([], False, None)
    assert store.error is not None
    assert "the archive ends at" in store.error
    with pytest.raises(StoreMismatchError):
        reader.pull("t", 0, 150, 10)
