"""Messages of a numbered request were refused when they came again, because another one of that request was erased."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError
from tierlog.tiering.message.batch import Message

COUNT = 10


class StoreWorld:
    """An engine whose producer ``p`` has sent ten messages, numbers 0 to 9, in one request."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.open()
        self.first = self.send(0, COUNT)

    def open(self) -> None:
        url = f"file://{self.folder}/cold"
        self.engine = Store.open(self.folder / "s", settings=tiny_settings(), cold_url=url, clock=self.clock)

    def send(self, first: int, end: int) -> Sequence[Appended]:
        messages = [Message("t", b"body %d" % number * (number + 1), [f"k{number}"]) for number in range(first, end)]
        return self.engine.append(messages, key=IdempotencyKey("p", first))

    def reopen(self) -> None:
        self.engine.close()
        self.open()

    def archive_what_is_erased(self) -> None:
        """As fillers: they were erased before."""
        self.engine.archive(everything=True, drop_hot=True)

    @property
    def count(self) -> int:
        self.engine.flush()
        return sum(queue.max_offset for topic in self.engine.topics() for queue in topic.queues)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreWorld]:
    found = StoreWorld(tmp_path)
    yield found
    found.engine.close()


@pytest.mark.parametrize("then", [lambda store: None, StoreWorld.reopen, StoreWorld.archive_what_is_erased])
def test_messages_that_were_not_erased_are_answered_again(
    store: StoreWorld, then: Callable[[StoreWorld], None]
) -> None:
    store.engine.removal.erase(Query("t", key="k3"))
    then(store)
    assert store.send(5, 10) == store.first[5:]
    assert store.send(0, 3) == store.first[:3]
    assert store.send(4, 5) == store.first[4:5]
    assert store.count == COUNT
    assert store.send(8, 12)[:2] == store.first[8:], "and what is new is appended"
    assert store.count == COUNT + 2


@pytest.mark.parametrize("then", [lambda store: None, StoreWorld.reopen, StoreWorld.archive_what_is_erased])
def test_the_erased_message_itself_is_not_appended_again(store: StoreWorld, then: Callable[[StoreWorld], None]) -> None:
    store.engine.removal.erase(Query("t", key="k3"))
    then(store)
    for first, end, place in ((3, 10, 0), (0, 4, 3), (2, 12, 1)):
        with pytest.raises(ConflictError, match=f"message {place} was appended before, and is erased or expired"):
            store.send(first, end)
    assert store.count == COUNT


def test_an_archived_segment_that_was_written_again_answers_too(store: StoreWorld) -> None:
    store.engine.archive(everything=True, drop_hot=True)
    store.engine.removal.erase(Query("t", key="k3"))
    while store.engine.removal.run_once():
        pass
    assert store.engine.query(Query("t", key="k3")).messages == []
    assert store.send(5, 10) == store.first[5:]
    with pytest.raises(ConflictError, match="message 0 was appended before"):
        store.send(3, 5)


def test_all_of_a_topic_that_was_erased_is_refused(store: StoreWorld) -> None:
    store.engine.archive(everything=True, drop_hot=True)
    store.engine.removal.erase(Query("t"))
    while store.engine.removal.run_once():
        pass
    with pytest.raises(ConflictError, match="message 0 was appended before"):
        store.send(5, 10)
