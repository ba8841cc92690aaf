"""Logs of a broker whose queue offsets jump, come again and begin again, and in plain Python what becomes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.support.stores.engines import small_settings
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog
from tierlog.index.search.query import Answer, Query
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.changes import begin_again
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.record import (
    BLANK,
    MAGIC_BLANK,
    Record,
    RecordVersion,
    encode_host,
    encode_message_id,
    encode_record,
)

HOST = encode_host(bytes((10, 0, 0, 1)), 10911)
FIRST_MS = 1_700_000_000_000


class Sent(NamedTuple):
    """One record of a log, its number in the body; its key is ``key-`` and the number."""

    topic: str
    queue_id: int
    queue_offset: int
    number: int
    at: int = 0


@dataclass
class ToldGeneration:
    """What one generation of a topic is to have."""

    begin: int
    queues: dict[int, dict[int, int]] = field(default_factory=dict)
    """Numbers by queue and offset."""


@dataclass
class IrregularLog:
    """The bytes of a log, and what its records are to become, by topic."""

    log: BrokerLog
    records: list[Sent]

    @property
    def told(self) -> dict[str, list[ToldGeneration]]:
        """Generations, oldest first, found by looking at one record after the other."""
        found: dict[str, list[ToldGeneration]] = {}
        for record in self.records:
            generations = found.setdefault(record.topic, [ToldGeneration(0)])
            if record.queue_offset == 0 and generations[-1].queues.get(record.queue_id):
                generations.append(ToldGeneration(record.at))
            queue = generations[-1].queues.setdefault(record.queue_id, {})
            if not queue or record.queue_offset > max(queue):
                queue[record.queue_offset] = record.number
        return found


def record_bytes(sent: Sent, at: int, more: bytes = b"") -> bytes:
    """The record as a broker writes it."""
    return encode_record(
        Record(
            size=0, version=RecordVersion.V1, body_crc=0, queue_id=sent.queue_id, flag=0,
            queue_offset=sent.queue_offset, physical_offset=at, sys_flag=0, born_ms=FIRST_MS + sent.number,
            born_host=HOST, store_ms=FIRST_MS + sent.number, store_host=HOST, reconsume_times=0, prepared_offset=0,
            body=f"message {sent.number}".encode().ljust(120, b"."), topic=sent.topic,
            properties_text=f"KEYS\1key-{sent.number}\2TAGS\1even\2".encode() + more,
        )
    )  # fmt: skip


def message_id_of(sent: Sent) -> str:
    """The id that its broker gave it."""
    return encode_message_id(HOST, sent.at)


def irregular_log(
    records: Iterable[Sent], segment_bytes: int = SEGMENT_BYTES, more: Mapping[int, bytes] | None = None
) -> IrregularLog:
    """The log that has these records, one behind the other; ``more`` properties of some, by their numbers."""
    data, placed = bytearray(), []
    for sent in records:
        room = segment_bytes - len(data) % segment_bytes
        added = (more or {}).get(sent.number, b"")
        if len(record_bytes(sent, 0, added)) + BLANK.size > room:
            data += BLANK.pack(room, MAGIC_BLANK) + bytes(room - BLANK.size)
        placed.append(sent._replace(at=len(data)))
        data += record_bytes(sent, len(data), added)
    return IrregularLog(BrokerLog(bytes(data), segment_bytes=segment_bytes), placed)


def sent(topic: str, queue_id: int, offsets: Iterable[int], first: int = 0) -> list[Sent]:
    """Records of one queue with these offsets, numbered from ``first`` on."""
    return [Sent(topic, queue_id, offset, first + number) for number, offset in enumerate(offsets)]


def random_records(random: Random, count: int, topics: int = 2, queues: int = 2) -> list[Sent]:
    """Records whose queues mostly go on, and now and then jump, come again, or begin again with their topic."""
    following: dict[tuple[int, int], int] = {}
    found = []
    for number in range(count):
        topic, queue = random.randrange(topics), random.randrange(queues)
        offset = following.get((topic, queue), 0)
        chance = random.random()
        if chance < 0.05:
            offset += random.choice((1, 2, 7, 40, 1000))
        elif chance < 0.10 and offset > 1:
            offset = random.randrange(1, offset)
        elif chance < 0.13:
            for key in [key for key in following if key[0] == topic]:
                del following[key]
            offset = 0
        following[topic, queue] = max(offset + 1, following.get((topic, queue), 0))
        found.append(Sent(f"topic{topic}", queue, offset, number))
    return found


def pulled(store: Store | Archive, topic: str, queue_id: int, limit: int = 7) -> dict[int, int]:
    """Numbers by queue offset, as pulls from 0 on tell them."""
    found, offset = {}, 0
    for _ in range(10_000):
        answer = store.pull(topic, queue_id, offset, limit)
        for message in answer.messages:
            found[message.record.queue_offset] = int(message.record.body.split(b".")[0].removeprefix(b"message "))
        if answer.status is PullStatus.NO_NEW_MESSAGE:
            return found
        assert answer.next_offset > offset
        offset = answer.next_offset
    raise AssertionError("the queue has no end")


def numbers(answer: Answer) -> list[int]:
    """The numbers of the messages of a complete answer."""
    assert answer.coverage.complete
    return sorted(int(each.record.body.split(b".")[0].removeprefix(b"message ")) for each in answer.messages)


def compare(store: Store | Archive, log: IrregularLog) -> None:
    """A store answers by queue, key, time and generation what the log tells."""
    for topic, generations in log.told.items():
        mine = [record for record in log.records if record.topic == topic]
        for record in mine[::9]:
            assert numbers(store.query(Query(topic, f"key-{record.number}"))) == [record.number]
            number = sum(each.begin <= record.at for each in generations)
            assert numbers(store.query(Query(f"{topic}@{number}", f"key-{record.number}"))) == [record.number]
            assert store.message(message_id_of(record)).record.physical_offset == record.at
            others = [each for each in range(1, len(generations) + 1) if each != number]
            assert not any(numbers(store.query(Query(f"{topic}@{each}", f"key-{record.number}"))) for each in others)
        placed = [{n for queue in each.queues.values() for n in queue.values()} for each in generations]
        assert numbers(store.query(Query(topic, limit=10_000))) == sorted(n for each in placed for n in each)
        for number, wanted in enumerate(placed, 1):
            assert numbers(store.query(Query(f"{topic}@{number}", limit=10_000))) == sorted(wanted)
        listed = {each.name: each for each in store.topics()}
        assert {name for name in listed if name.split("@")[0] == topic} == {
            topic, *(f"{topic}@{number}" for number in range(1, len(generations)))
        }  # fmt: skip
        assert listed[topic].messages in (len(placed[-1]), None)
    for topic, generations in log.told.items():
        names = [f"{topic}@{number}" for number in range(1, len(generations) + 1)]
        for name, told in [*zip(names, generations, strict=True), (topic, generations[-1])]:
            queues = {queue_id: pulled(store, name, queue_id) for queue_id in told.queues}
            assert queues == told.queues, name
        with pytest.raises(TopicNotFoundError):
            store.pull(f"{topic}@{len(generations) + 1}", 0, 0, 1)


@contextlib.contextmanager
def followed_archive(
    root: Path, log: IrregularLog, end: int | None = None, *, name: str = "s", settings: Settings | None = None
) -> Iterator[FollowedStore]:
    """A store with an archive in a folder that has a log up to ``end``, none of it archived yet."""
    store = FollowedStore.open(
        root / name, cold_url=f"file://{root}/cold", store_id="s", segment_bytes=log.log.segment_bytes, begin=0,
        settings=settings or small_settings(), clock=ManualClock(),
    )  # fmt: skip
    with contextlib.closing(store):
        log.log.feed(store, end=end)
        store.flush()
        yield store


def lose(root: Path, begin: int) -> None:
    """Have a store that follows go on at ``begin``, behind a gap."""
    settings = small_settings().with_segments_of(SEGMENT_BYTES)
    begin_again(
        root, begin, Components(settings, ManualClock(), LocalFileSystem(), SystemRandomness(), follow_from=0)
    )  # fmt: skip
