"""Pages of a key that all messages of a broker's topic have, out of an archive whose log no store of ours wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from tests.support.stores.engines import small_settings
from tests.support.stores.followed import BrokerLog, FollowedWorld
from tests.support.stores.hot_stores import NOW_MS, record
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.tiering.base.types import Order
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, Record, encode_record

_SEGMENT_BYTES = 1 << 20
_SECOND_MS = NOW_MS // 1000 * 1000


class Sent(NamedTuple):
    """What a broker wrote: a message of the one topic and queue."""

    queue_offset: int
    store_ms: int
    body_bytes: int = 100


@dataclass
class Broker:
    """The log of a broker, archived, and what it has."""

    world: World
    records: Sequence[Record]

    def pages(self, order: Order, limit: int) -> Iterator[tuple[int, int]]:
        """Time and place of each message, page after page, from empty caches."""
        query: Query | None = Query("a", "all", limit=limit, order=order)
        archive: Archive = self.world.cold()
        try:
            while query is not None:
                answer = archive.query(query)
                assert answer.coverage.complete
                yield from ((found.record.store_ms, found.record.physical_offset) for found in answer.messages)
                query = None if answer.next_cursor is None else replace(query, cursor=answer.next_cursor)
        finally:
            archive.close()

    def sorted(self, order: Order) -> list[tuple[int, int]]:
        """The same by the log."""
        found = ((each.store_ms, each.physical_offset) for each in self.records)
        return sorted(found, reverse=order is Order.NEWEST)


def archived(sent: Sequence[Sent]) -> Broker:
    """Segments begin where the next record finds no room, as a broker's do; one index object has them all."""
    data, records = b"", []
    for queue_offset, store_ms, body_bytes in sent:
        one = record(
            topic="a", queue_id=0, queue_offset=queue_offset, physical_offset=len(data), store_ms=store_ms,
            born_ms=store_ms, properties_text=b"KEYS\x01all\x02", body=b"b" * body_bytes,
        )  # fmt: skip
        if len(data) % _SEGMENT_BYTES + len(encode_record(one)) + BLANK.size > _SEGMENT_BYTES:
            rest = _SEGMENT_BYTES - len(data) % _SEGMENT_BYTES
            data += BLANK.pack(rest, MAGIC_BLANK) + bytes(rest - BLANK.size)
            one = replace(one, physical_offset=len(data))
        data += encode_record(one)
        records.append(one)
    settings = small_settings(index__items=30_000, index__slots=100, cold__frame_bytes=4096)
    followed = FollowedWorld(settings=settings, segment_bytes=_SEGMENT_BYTES)
    return Broker(followed.archived(BrokerLog(data, segment_bytes=_SEGMENT_BYTES)), records)


@pytest.mark.parametrize("order", Order)
def test_a_topic_that_was_made_again_is_paged_over_segments_of_one_generation(order: Order) -> None:
    first = [Sent(number, NOW_MS + number // 100) for number in range(3_000)]
    again = [Sent(number, NOW_MS + 30 + number // 100) for number in range(9_000)]
    broker = archived(first + again)
    for limit in (32, 700):
        assert list(broker.pages(order, limit)) == broker.sorted(order)


@pytest.mark.parametrize("order", Order)
def test_a_record_in_no_queue_does_not_say_that_its_queue_ends_there(order: Order) -> None:
    sent = [Sent(number, _SECOND_MS + (500 if number < 5_000 else 100), 20) for number in range(7_000)]
    sent.insert(6, Sent(3, _SECOND_MS + 600, 20))  # an offset again: a record in no queue, and the clock stepped back
    broker = archived(sent)
    assert list(broker.pages(order, 32)) == broker.sorted(order)
