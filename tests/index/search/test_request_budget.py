"""What a look-up by key may cost, counted at the object store: a month of 2,592 index objects, one key.

The budget: a miss asks the objects without a resident filter, and those whose filter errs; a hit asks one page of each
object that holds the key, and one frame for each that holds a message; two round trips with directories and seek tables
in memory, four with nothing but the manifest. Every answer says what the store counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.index.look_ups import LookUps
from tests.support.index.synthetic_archive import TOPIC, Shape, SyntheticArchive
from tests.support.objects.priced_store import PricedStore
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.object_sections import FILTER
from tierlog.index.search.query import Answer, Query
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.objects.memory import MemoryObjectStore

FILES = 2_592
#: Numbers of the files that hold a key.
SPREAD = {"thrice": (3, 900, 2_500), "ten": tuple(range(77, FILES, 260)), "everywhere": tuple(range(FILES))}
SHAPE = Shape(days=30, messages=32, files_a_segment=24, frame_bytes=2048, spread=SPREAD)
#: Objects that a miss asks in vain on average, with all filters in memory: for most keys none, for some one.
MOST_ERRORS = 0.5
#: Keys that nobody has.
ABSENT = [f"nobody-{number}" for number in range(40)]


class PricedMonth:
    """An archive behind a store that counts."""

    def __init__(self) -> None:
        self.plain = MemoryObjectStore(ManualClock())
        self.priced = PricedStore(self.plain)
        self.archive = SyntheticArchive(SHAPE, self.plain)
        self.filters: list[KeyFilter] = []
        for entry in LookUps(self.plain).objects:
            ref = entry.sections[FILTER]
            data = self.plain.get_range(entry.key, ref.position, ref.position + ref.length)
            self.filters.append(KeyFilter.decode(data))

    def look_ups(self) -> LookUps:
        """A process that has loaded the manifest."""
        return LookUps(self.priced, concurrency=8)

    def warm(self) -> LookUps:
        """A process with filters, directories and seek tables in memory."""
        made = self.look_ups()
        made.load_filters(self.plain)
        made.load_directories()
        made.load_seek_tables()
        return made


@pytest.fixture(scope="module")
def month() -> PricedMonth:
    made = PricedMonth()
    assert len(made.look_ups().objects) == FILES
    return made


@pytest.fixture(scope="module")
def warm(month: PricedMonth) -> LookUps:
    return month.warm()


class Asked:
    """An answer and what the store counted while it was made."""

    def __init__(self, month: PricedMonth, look_ups: LookUps, query: Query) -> None:
        before, read = Counter(month.priced.requests), month.priced.bytes_read
        self.answer: Answer = look_ups.ask(query)
        counted = month.priced.requests - before
        self.coverage = self.answer.coverage
        assert self.coverage.requests == counted.total()
        assert self.coverage.manifest_requests == counted["get_if_changed"] == 1, "the head is looked at once"
        assert self.coverage.bytes == month.priced.bytes_read - read
        assert self.coverage.cost_usd == pytest.approx(counted.total() * 0.4e-6)
        assert counted.keys() <= {"get_range", "get_if_changed"}
        assert (
            self.coverage.index_considered == (self.coverage.index_filtered + self.coverage.index_searched)
            or self.answer.next_cursor
        )
        self.requests = counted["get_range"]
        self.found = len(self.answer.messages)


def query(key: str, limit: int = 10_000, from_ms: int = 0, to_ms: int = END_OF_TIME_MS) -> Query:
    return Query(TOPIC, key, from_ms=from_ms, to_ms=to_ms, limit=limit)


def hits(month: PricedMonth) -> Iterator[tuple[str, int]]:
    """Keys, and how many objects hold them."""
    for file, message in ((0, 5), (1_300, 15), (FILES - 1, 9)):
        yield month.archive.key_of(file, message), 1
    yield "thrice", 3
    yield "ten", 10


def holders_by_filter(month: PricedMonth, key: str) -> int:
    """Objects whose filter does not rule a key out, by the filters as they are stored."""
    low, high = key_hash(TOPIC, key), key_hash_high(TOPIC, key)
    return sum(found.may_contain(low, high) for found in month.filters)


# misses


def test_miss_with_filters_in_memory_asks_for_nothing_or_one_page(month: PricedMonth, warm: LookUps) -> None:
    asked = [Asked(month, warm, query(key)) for key in ABSENT]
    assert [each.requests for each in asked] == [holders_by_filter(month, key) for key in ABSENT]
    assert sum(each.requests <= 1 for each in asked) >= 0.9 * len(asked)
    for each in asked:
        assert each.found == 0
        assert each.coverage.complete
        assert each.coverage.index_considered == FILES
        assert each.coverage.index_filtered == FILES - each.requests
        assert each.coverage.round_trips == min(1, each.requests)


def test_miss_without_filters_asks_every_object_once(month: PricedMonth) -> None:
    bare = month.look_ups()
    bare.load_directories()
    asked = Asked(month, bare, query("nobody"))
    assert (asked.requests, asked.coverage.round_trips, asked.coverage.index_filtered) == (FILES, 1, 0)


def test_miss_from_an_empty_cache_asks_for_directory_and_page(month: PricedMonth) -> None:
    asked = Asked(month, month.look_ups(), query("nobody"))
    assert (asked.requests, asked.coverage.round_trips) == (2 * FILES, 2)


@pytest.mark.parametrize("every", [pytest.param(2, marks=pytest.mark.slow), 30])
def test_miss_asks_at_most_the_objects_whose_filter_is_not_in_memory(month: PricedMonth, every: int) -> None:
    some = month.look_ups()
    without = some.objects[::every]
    names = {entry.key for entry in without}
    some.load_filters(month.plain, [entry for entry in some.objects if entry.key not in names])
    some.load_directories()
    key = next(key for key in ABSENT if holders_by_filter(month, key) == 0)
    asked = Asked(month, some, query(key))
    assert asked.requests == len(without)
    assert asked.coverage.index_searched == len(without)


def test_filters_err_as_seldom_as_their_size_promises(month: PricedMonth) -> None:
    """Measured on all filters of the month with keys that nobody has, against the share of bits that are set."""
    keys = [f"else-{number}" for number in range(400)]
    low = np.array([key_hash(TOPIC, key) for key in keys])
    high = np.array([key_hash_high(TOPIC, key) for key in keys])
    wrong = sum(int(found.may_contain_each(low, high).sum()) for found in month.filters)
    a_miss = wrong / len(keys)
    expected = sum(found.false_positive_rate() for found in month.filters)
    bits = sum(found.bits_per_key for found in month.filters) / FILES
    print(f"{bits:.1f} bits a key: {a_miss:.2f} of {FILES} filters err for a key, expected {expected:.2f}")
    assert expected / 1.5 < a_miss < 1.5 * expected
    assert a_miss < MOST_ERRORS


# hits


def test_hit_asks_one_page_of_each_object_that_has_the_key_and_one_frame_of_each_message(
    month: PricedMonth, warm: LookUps
) -> None:
    for key, holders in hits(month):
        asked = Asked(month, warm, query(key))
        errors = holders_by_filter(month, key) - holders
        assert (asked.found, asked.requests) == (holders, 2 * holders + errors)
        assert errors <= 2
        assert asked.coverage.round_trips == 2
        assert asked.coverage.index_searched == holders + errors
        assert asked.coverage.complete


def test_hit_from_an_empty_cache_takes_four_round_trips(month: PricedMonth) -> None:
    cold = month.look_ups()
    cold.load_filters(month.plain)
    for key, holders in hits(month):
        cold.forget_all_but_the_manifest()
        asked = Asked(month, cold, query(key))
        errors = holders_by_filter(month, key) - holders
        assert (asked.found, asked.requests) == (holders, 4 * holders + 2 * errors)
        assert asked.coverage.round_trips == 4


@pytest.mark.slow
def test_hit_from_an_empty_cache_without_filters_takes_four_round_trips(month: PricedMonth) -> None:
    asked = Asked(month, month.look_ups(), query("thrice"))
    assert (asked.found, asked.requests, asked.coverage.round_trips) == (3, 2 * FILES + 2 * 3, 4)


@pytest.mark.slow
def test_key_that_every_object_has_costs_a_page_of_each_and_every_frame_once(month: PricedMonth) -> None:
    kept = LookUps(month.priced, concurrency=8, data_bytes=256 << 20)
    kept.load_directories()
    kept.load_seek_tables()
    low, frames = key_hash(TOPIC, "everywhere"), set()
    for file in month.archive.files:
        cold = int(file.cold[file.items["hash"] == low][0])
        segment = kept.segments[cold // month.archive.segment_bytes]
        table = SegmentReader(kept.manifest.reader(), segment).seek_table()
        frames.add((segment.base, table.frame_of(cold - segment.base)))
    asked = Asked(month, kept, query("everywhere"))
    assert (asked.found, asked.requests) == (FILES, FILES + len(frames))
    assert FILES > len(frames) > FILES // 5, "messages share frames"
    assert asked.coverage.round_trips == 2


@pytest.mark.parametrize("limit", [1, 3])
def test_newest_of_a_key_that_every_object_has_cost_a_few_requests(
    month: PricedMonth, warm: LookUps, limit: int
) -> None:
    asked = Asked(month, warm, query("everywhere", limit))
    newest = [message.record.store_ms for message in asked.answer.messages]
    assert len(newest) == limit
    assert newest == sorted(newest, reverse=True)
    assert newest[-1] >= SHAPE.begin_of(FILES - limit)
    assert asked.requests <= 64
    assert asked.coverage.round_trips == 2
    assert asked.coverage.cut_by == "limit"


def test_oldest_first_costs_as_little(month: PricedMonth, warm: LookUps) -> None:
    asked = Asked(month, warm, Query(TOPIC, "everywhere", limit=1, order=Order.OLDEST))
    assert asked.answer.messages[0].record.store_ms < SHAPE.begin_of(1)
    assert asked.requests <= 64


# windows


@pytest.mark.parametrize("axis", list(TimeAxis))
def test_window_of_a_few_objects_asks_only_those(month: PricedMonth, axis: TimeAxis) -> None:
    bare = month.look_ups()
    bare.load_directories()
    first, end = SHAPE.begin_of(1_000) + 5_000, SHAPE.begin_of(1_003) - 5_000
    asked = Asked(month, bare, Query(TOPIC, "nobody", from_ms=first, to_ms=end, axis=axis))
    assert asked.requests == asked.coverage.index_considered == 3
    everywhere = Asked(month, bare, Query(TOPIC, "everywhere", from_ms=first, to_ms=end, axis=axis))
    assert everywhere.coverage.index_considered == 3
    assert everywhere.requests <= 3 + 2 * 3


def test_one_millisecond_asks_one_object(month: PricedMonth, warm: LookUps) -> None:
    (message,) = Asked(month, warm, query(month.archive.key_of(777, 3))).answer.messages
    at = message.record.store_ms
    asked = Asked(month, warm, query(month.archive.key_of(777, 3), from_ms=at, to_ms=at + 1))
    assert (asked.found, asked.requests, asked.coverage.index_considered) == (1, 2, 1)
