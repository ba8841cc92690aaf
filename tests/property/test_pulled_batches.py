"""A pull as Arrow gives the rows that a pull of messages gives, whatever lies where, and fails where that fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import record
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.types import PullStatus, Tier
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.queue_unit import UNIT, UNIT_DTYPE
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA, message_batch
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.record_columns import RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.pull_batch import PulledBatch

QUEUES = 2
EVERYTHING = np.array([(-(1 << 63), (1 << 63) - 1)] * 4, np.int64)


class PulledWorld(World):
    """A store that is written to, archived and erased from by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(settings=tiny_settings(hot__default_queues=QUEUES))
        self.open()
        self.append()
        self.engine.archive()

    def message(self) -> Message:
        chance = self.chance
        keys = [f"k{chance.randrange(4)}" for _ in range(chance.choice((0, 1, 1, 3)))]
        properties = {f"p{number}": "ä" * number for number in range(1, chance.choice((1, 1, 4)))}
        body = chance.randbytes(chance.choice((1, 5, 300, 5000)))
        return Message(
            "t", body, keys, chance.choice(("", "A", "B")), properties=properties, queue_id=chance.randrange(QUEUES)
        )

    def append(self) -> None:
        self.clock.advance(50)
        self.engine.append([self.message() for _ in range(self.chance.choice((1, 20, 80)))])

    def step(self) -> None:
        """Something that moves messages, or hides some."""
        steps: list[Callable[[], object]] = [
            self.append, self.append, self.engine._hot.roll,
            lambda: self.engine.archive(everything=True),
            lambda: self.engine.archive(everything=True, drop_hot=True),
            lambda: self.engine.removal.erase(Query("t", self.chance.choice((None, "k1", "k2")), 0, self._moment())),
            self.engine.run_tiers,
        ]  # fmt: skip
        self.chance.choice(steps)()

    def _moment(self) -> int:
        return self.clock.now_ms() - self.chance.randrange(1, 200)


def messages_of(engine: StoreReader, queue: int, offset: int = 0) -> list[StoredMessage]:
    """All that a queue shows, message by message."""
    found: list[StoredMessage] = []
    while (page := engine.pull("t", queue, offset, 100)).status not in (
        PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_TOO_LARGE,
    ):  # fmt: skip
        found += page.messages
        offset = page.next_offset
    return found


def batches_of(engine: StoreReader, queue: int, limit: int, names: list[str] | None = None) -> list[PulledBatch]:
    """The answers of pulls as Arrow from a queue's beginning to its end."""
    found: list[PulledBatch] = []
    offset = 0
    while True:
        found.append(engine.pull_batch("t", queue, offset, limit, names))
        assert found[-1].messages.num_rows <= limit
        assert (found[-1].status is PullStatus.FOUND) == (found[-1].messages.num_rows > 0)
        if found[-1].status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_TOO_LARGE):
            return found
        assert found[-1].next_offset > offset
        offset = found[-1].next_offset


def table_of(found: list[PulledBatch]) -> pa.Table:
    return pa.Table.from_batches([one.messages for one in found]).combine_chunks()


@pytest.mark.parametrize("seed", range(8))
def test_batches_have_the_rows_of_messages_in_both_tiers_whatever_happened(seed: int) -> None:
    world = PulledWorld(seed)
    readers: list[StoreReader] = [world.engine]
    for turn in range(8):
        world.step()
        if turn == 7:
            readers.append(world.cold())
        for reader in readers:
            for queue in range(QUEUES):
                expected = pa.Table.from_batches([message_batch(messages_of(reader, queue))])
                names = world.chance.sample(MESSAGE_SCHEMA.names, world.chance.randint(1, 6))
                limit = world.chance.choice((1, 7, 50, 10_000))
                table = table_of(batches_of(reader, queue, limit))
                table.validate(full=True)
                assert table.equals(expected)
                assert table_of(batches_of(reader, queue, limit, names)).equals(expected.select(names))
    world.engine.close()


def test_pulls_of_both_kinds_take_turns_in_one_replay_of_the_archive() -> None:
    world = PulledWorld(3)
    for _ in range(6):
        world.append()
    world.engine.archive(everything=True, drop_hot=True)
    expected = [message.record.queue_offset for message in messages_of(world.engine, 0)]
    got: list[int] = []
    offset = 0
    while len(got) < len(expected):
        batch = world.engine.pull_batch("t", 0, offset, 7, ["queue_offset"])
        got += batch.messages.column(0).to_pylist()
        page = world.engine.pull("t", 0, batch.next_offset, 3)
        got += [message.record.queue_offset for message in page.messages]
        offset = page.next_offset
    assert got == expected


def test_no_record_of_ours_needs_the_plain_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PulledWorld(5)
    world.engine.archive(everything=True, drop_hot=True)
    for _ in range(3):
        world.append()

    def fail(*_: object) -> None:
        raise AssertionError("a message was made")

    monkeypatch.setattr(RecordBatchBuilder, "add_plain", fail)
    rows = sum(one.messages.num_rows for queue in range(QUEUES) for one in batches_of(world.engine, queue, 1000))
    assert rows > 100


def test_a_column_that_is_not_there_or_asked_for_twice_is_refused() -> None:
    world = PulledWorld(1)
    for names in (["bodies"], ["body", "body"]):
        with pytest.raises(InvalidRequestError, match="bod"):
            world.engine.pull_batch("t", 0, 0, 1, names)


def failure_of(pull: Callable[[str, int, int, int], object], offset: int) -> str | None:
    try:
        pull("t", 0, offset, 1000)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_record_in_the_log_ends_the_batch_before_it_and_then_fails_alike(seed: int) -> None:
    world = PulledWorld(seed)
    for _ in range(4):
        world.append()
    chance = world.chance
    held = [message.record for message in messages_of(world.engine, 0)]
    victim = chance.choice(held)
    segment = max(
        (one for one in world.engine._hot.log.segments() if one.base_offset <= victim.physical_offset),
        key=lambda one: one.base_offset,
    )
    place = victim.physical_offset - segment.base_offset + chance.randrange(victim.size)
    data = segment.data.copy()
    data[place] ^= 1 << chance.randrange(8)
    world.engine._hot.log._segments[segment.base_offset] = replace(segment, data=data)
    at = held[0].queue_offset
    for _ in range(len(held)):
        failure = failure_of(world.engine.pull, at)
        assert failure_of(world.engine.pull_batch, at) == failure
        if failure is not None:
            return
        page, batch = world.engine.pull("t", 0, at, 1000), world.engine.pull_batch("t", 0, at, 1000)
        assert (batch.status, batch.next_offset) == (page.status, page.next_offset)
        assert batch.messages.equals(message_batch(page.messages))
        if page.status is not PullStatus.FOUND:
            return
        at = page.next_offset


def units_of(*units: tuple[int, int, int]) -> np.ndarray:
    return np.frombuffer(b"".join(UNIT.pack(*unit) for unit in units), UNIT_DTYPE)


@pytest.mark.parametrize("seed", range(30))
def test_hostile_units_and_lengths_are_never_followed_outside_the_segment(seed: int) -> None:
    """Whatever the units and the record say, what is taken is what the plain codec takes too, and nothing else."""
    chance = random.Random(seed)
    text = encode_properties({"KEYS": "a b", "TAGS": "x", "p": "v"})
    data = bytearray()
    for number in range(3):
        data += encode_record(record(topic="t", physical_offset=len(data), queue_offset=number, properties_text=text))
    for _ in range(chance.randrange(4)):
        field = chance.choice((0, 4, 8, 84, 88 + 4, len(data) // 3 - 1))
        data[chance.randrange(3) * (len(data) // 3) + field] = chance.randrange(256)
    log = np.frombuffer(bytes(data), np.uint8)
    wild = [0, 1, len(data) // 3, len(data) - 90, len(data) - 1, len(data), 1 << 62, -1, -(1 << 63), (1 << 63) - 1]
    units = units_of(*((chance.choice(wild), chance.choice((0, 91, -1, 1 << 30)), 0) for _ in range(12)))
    for name in (None, "keys", "body"):
        schema = MESSAGE_SCHEMA if name is None else pa.schema([MESSAGE_SCHEMA.field(name)])
        columns = RecordBatchBuilder("store", Tier.HOT, chance.choice((0, 200, 1 << 16)), 12, schema)
        taken = columns.add_units(units, log, chance.choice((0, 0, 64)), topic="t", bounds=EVERYTHING)
        assert columns.finish().num_rows == taken


def test_units_in_another_byte_order_are_refused() -> None:
    columns = RecordBatchBuilder("store", Tier.HOT, 1000)
    with pytest.raises(ValueError, match="bytes of their file"):
        columns.add_units(
            np.zeros(1, UNIT_DTYPE.newbyteorder()), np.zeros(91, np.uint8), 0, topic="t", bounds=EVERYTHING
        )
