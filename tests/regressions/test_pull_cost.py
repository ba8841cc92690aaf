"""A pull of a hot message read the queue rows of the whole archive, and one for a rare tag the whole queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import World
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.batch import Message
from tierlog.tiering.read import pull_result

_SEGMENTS = 20
_EACH = 50
_COUNT = _SEGMENTS * _EACH


class QueueWorld(World):
    """Twenty archived segments and 20 hot messages, all of one queue; tag b on every fifth."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open()
        for _ in range(_SEGMENTS):
            self.append(_EACH)
            self.archive()
        self.append(20)
        self.reopen()

    def append(self, count: int) -> None:
        self.engine.append(
            [Message("t", bytes(100), tag="b" if number % 5 == 0 else "a", queue_id=0) for number in range(count)]
        )

    def requests(self) -> int:
        return len(self.bucket.calls)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[QueueWorld]:
    store = QueueWorld(tmp_path)
    yield store
    store.bucket.heal()
    store.engine.close()


@pytest.fixture(scope="module")
def only_read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueWorld]:
    store = QueueWorld(tmp_path_factory.mktemp("only-read"))
    yield store
    store.engine.close()


def test_a_hot_pull_asks_for_the_first_offset_once(store: QueueWorld) -> None:
    before = store.requests()
    found = store.engine.pull("t", 0, _COUNT, 5)
    assert (found.min_offset, found.max_offset, len(found.messages)) == (0, _COUNT + 20, 5)
    asked = store.requests()
    assert asked - before <= 4  # a manifest page of each level, the head and a page of the first rows
    assert store.engine.pull("t", 0, _COUNT + 5, 5).min_offset == 0
    store.append(1)
    store.engine.archive(everything=True, drop_hot=True)
    store.append(1)
    before = store.requests()
    assert store.engine.pull("t", 0, _COUNT + 21, 5).min_offset == 0
    assert store.requests() == before


def test_a_hot_pull_does_not_wait_for_a_bucket_that_hangs(store: QueueWorld) -> None:
    store.bucket.hold("get_range", times=None)
    started = time.monotonic()
    for offset in range(_COUNT, _COUNT + 20):
        found = store.engine.pull("t", 0, offset, 1)
        assert (found.status, found.min_offset) == (PullStatus.FOUND, _COUNT), "not known yet, and not asked for twice"
    assert time.monotonic() - started < 5
    store.bucket.heal()
    deadline = time.monotonic() + 30
    while store.engine.pull("t", 0, _COUNT, 1).min_offset != 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.engine.pull("t", 0, _COUNT, 1).min_offset == 0


def test_a_queue_of_which_nothing_is_archived_is_asked_about_once(store: QueueWorld) -> None:
    store.engine.append([Message("t", b"x", queue_id=1)])
    assert store.engine.pull("t", 1, 0, 1).min_offset == 0
    before = store.requests()
    assert store.engine.pull("t", 1, 0, 1).min_offset == 0
    assert store.requests() == before


@pytest.mark.parametrize("limit_name", ["MAX_MESSAGES", "MAX_READ_BYTES"])
@pytest.mark.parametrize("start", [0, _COUNT])
def test_a_rare_tag_ends_a_pull_where_it_has_looked_at_enough(
    only_read: QueueWorld, monkeypatch: pytest.MonkeyPatch, limit_name: str, start: int
) -> None:
    monkeypatch.setattr(pull_result, limit_name, {"MAX_MESSAGES": 3, "MAX_READ_BYTES": 500}[limit_name])
    looked_at = []
    found_at = []
    offset = start
    while offset < start + 20:
        found = only_read.engine.pull("t", 0, offset, 10, "b")
        looked_at.append(found.next_offset - offset)
        found_at += [message.record.queue_offset for message in found.messages]
        assert found.status is (PullStatus.FOUND if found.messages else PullStatus.NO_MATCHED_MESSAGE)
        assert found.next_offset > offset
        offset = found.next_offset
    assert found_at[:4] == [start, start + 5, start + 10, start + 15]
    # the hash in the queue rules out most hot messages, which are then not read
    assert max(looked_at) <= (20 if start and limit_name == "MAX_READ_BYTES" else 4)
