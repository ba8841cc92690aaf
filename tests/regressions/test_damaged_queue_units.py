"""Three queue units of zeros gave messages of another topic, and a query by time 37 of 40 as if they were all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import records_in
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.queue_unit import UNIT_BYTES, QueueUnit
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.message.batch import Message

COUNT = 40


class DamagedWorld(World):
    """40 messages in the queue of each of two topics; tag b on every tenth."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, settings=tiny_settings(hot__default_queues=1), url=None)
        self.open()
        for number in range(COUNT):
            for topic in ("secret", "orders"):
                body = f"{topic} {number}".encode()
                self.engine.append([Message(topic, body, queue_id=0, tag="a" if number % 10 else "b")])
        assert self.bodies() == WHOLE

    def path(self, topic: str) -> Path:
        return self.root / "consumequeue" / topic / "0" / f"{0:020}"

    def unit(self, topic: str, number: int) -> QueueUnit:
        return QueueUnit.decode(self.path(topic).read_bytes(), UNIT_BYTES * number)

    def put(self, number: int, data: bytes) -> None:
        with self.path("orders").open("r+b") as file:
            file.seek(UNIT_BYTES * number)
            file.write(data)

    def bodies(self, first: int = 0, tag: str | None = None) -> list[bytes]:
        found = [each.record.body for each in self.engine.pull("orders", 0, first, 1000, tag).messages]
        hashes = None if tag is None else frozenset([tag_hash(tag)])
        with self.engine.pull_records("orders", 0, first, 1000, tag_hashes=hashes) as pulled:
            assert [each.body for each in records_in(pulled.parts)] == found
        return found


WHOLE = [f"orders {number}".encode() for number in range(COUNT)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DamagedWorld]:
    store = DamagedWorld(tmp_path)
    yield store
    store.engine.close()


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("at", [0, 7, COUNT - 3])
def test_zeroed_units_are_derived_again(store: DamagedWorld, at: int, reopened: bool) -> None:
    before = store.path("orders").read_bytes()
    store.put(at, bytes(3 * UNIT_BYTES))
    if reopened:
        store.reopen()
    assert store.engine.pull_batch("orders", 0, 0, 1000).messages.column("body").to_pylist() == WHOLE
    assert store.bodies() == WHOLE
    answer = store.engine.query(Query("orders", limit=1000))
    assert len(answer.messages) == COUNT
    assert answer.coverage.complete
    assert store.path("orders").read_bytes() == before  # as RocketMQ would have written it
    assert store.engine.topic("orders").queues[0].max_offset == COUNT


def test_units_of_another_topics_queue_lead_nobody_there(store: DamagedWorld) -> None:
    store.put(0, store.path("secret").read_bytes()[: 10 * UNIT_BYTES])
    assert store.engine.pull_batch("orders", 0, 0, 1000).messages.column("body").to_pylist() == WHOLE
    assert store.bodies() == WHOLE


@pytest.mark.parametrize("tag", ["a", "b"])
def test_a_damaged_tag_hash_hides_and_shows_nothing(store: DamagedWorld, tag: str) -> None:
    for number in (10, 11):
        unit, other = store.unit("orders", number), store.unit("orders", 21 - number)
        store.put(number, QueueUnit(unit.physical_offset, unit.size, other.tag_hash).encode())
    assert store.bodies(tag=tag) == [body for at, body in enumerate(WHOLE) if (tag == "b") == (at % 10 == 0)]


def test_what_a_tag_rules_out_is_not_decoded(store: DamagedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    record = HotSnapshot.record

    def counted(snapshot: HotSnapshot, physical_offset: int) -> Record:
        decoded.append(physical_offset)
        return record(snapshot, physical_offset)

    monkeypatch.setattr(HotSnapshot, "record", counted)
    assert len(store.bodies(tag="b")) == len(decoded) == COUNT // 10


def test_a_read_only_reader_is_answered_too_and_the_file_stays_as_it_is(store: DamagedWorld) -> None:
    store.put(5, bytes(3 * UNIT_BYTES))
    store.engine.close()
    store.open(read_only=True)
    damaged = store.path("orders").read_bytes()
    assert store.bodies() == WHOLE
    assert store.path("orders").read_bytes() == damaged


def test_what_neither_unit_nor_log_tells_is_an_error_that_names_its_place(store: DamagedWorld) -> None:
    unit = store.unit("orders", 7)
    segment = store.root / "commitlog" / f"{0:020}"
    with segment.open("r+b") as file:
        file.seek(unit.physical_offset + 4)
        file.write(bytes(4))
    assert store.bodies() == WHOLE[:7]
    for pull in (store.engine.pull, store.engine.pull_batch):
        with pytest.raises(CorruptionError, match=r"message 7 of queue orders/0 .*commitlog at") as raised:
            pull("orders", 0, 7, 10)
        assert raised.value.position == unit.physical_offset
    assert store.bodies(8) == WHOLE[8:]
    assert store.engine.pull("secret", 0, 0, 1000).status is PullStatus.FOUND
    answer = store.engine.query(Query("orders", limit=1000))
    assert not answer.coverage.complete
    assert sorted(each.record.body for each in answer.messages) == sorted(WHOLE[:7] + WHOLE[8:])
