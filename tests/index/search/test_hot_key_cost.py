"""A page of a key costs the same however many messages have the key, counted in items, records and requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.local.snapshot import KeyWalk
from tierlog.index.objects.lookup import KeyRun
from tierlog.index.search.hot_search import HotTierSearch
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import Searcher
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Durability, Order, TimeAxis
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

FEW, MANY = 1_000, 20_000
LIMIT = 32
EACH = 100
"""Messages of each millisecond."""


def filled(root: Path, count: int, clock: ManualClock, objects: MemoryObjectStore | None = None) -> Store:
    """So many messages of one key in one index file and one segment, a few of another key among them."""
    settings = tiny_settings(hot__segment_bytes=8 << 20, index__items=30_000, index__slots=64, cold__frame_bytes=8192)
    url = None if objects is None else "memory://archive"
    engine = Store.open(root, settings=settings, clock=clock, cold_url=url, objects=objects)
    for number in range(count // EACH):
        keys = [["hot"]] * (EACH - 1) + [["other", f"own-{number}"]]
        engine.append([Message("t", b"%d" % number, key, born_ms=count - number) for key in keys], Durability.ASYNC)
        clock.advance(1)
    engine.flush()
    return engine


@dataclass
class Counted:
    """What the hot tier looked at since the last question."""

    items: int = 0
    records: int = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found, take, record = Counted(), KeyWalk._take, HotSnapshot.record

    def taken(walk: KeyWalk, most: int, steps: int) -> object:
        items, rest = take(walk, most, steps)
        found.items += len(items)
        return items, rest

    def read(snapshot: HotSnapshot, physical_offset: int) -> object:
        found.records += 1
        return record(snapshot, physical_offset)

    monkeypatch.setattr(KeyWalk, "_take", taken)
    monkeypatch.setattr(HotSnapshot, "record", read)
    return found


@pytest.fixture(scope="module", params=["writing", "sealed", "compacted"])
def hot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    engine = filled(tmp_path_factory.mktemp("hot"), MANY, ManualClock())
    if request.param != "writing":
        engine._index.seal()
    if request.param == "compacted":
        engine._index.compact_sealed()
    yield engine
    engine.close()


@pytest.mark.parametrize("order", Order)
def test_a_hot_page_reads_the_records_of_the_page_wherever_it_begins(
    hot: Store, counted: Counted, order: Order
) -> None:
    """The first page, the next one, and one in the middle of the millisecond in the middle."""
    begin_ms = ManualClock().now_ms()
    middle = begin_ms + MANY // EACH // 2
    first = Query("t", "hot", limit=LIMIT, order=order)
    inside = replace(first, from_ms=middle, to_ms=middle + 1)
    for query in (first, inside):
        for _ in range(2):
            counted.items = counted.records = 0
            answer = hot.query(query)
            assert len(answer.messages) == LIMIT
            assert answer.coverage.complete
            assert counted.records <= LIMIT + 2, "the one behind it, and the one at the border"
            assert counted.items <= 4096 + 2 * (LIMIT + 1), "a short chain at most, and a step"
            query = replace(query, cursor=answer.next_cursor)


@pytest.mark.parametrize("order", Order)
def test_all_messages_of_one_time_cost_no_more(tmp_path: Path, counted: Counted, order: Order) -> None:
    """Times alone would make the page certain only behind the last of them."""
    engine = Store.open(tmp_path, settings=tiny_settings(index__items=10_000), clock=ManualClock())
    for _ in range(20):
        engine.append([Message("t", b"x", ["hot"])] * 100)
    answer = engine.query(Query("t", "hot", limit=LIMIT, order=order))
    assert (len(answer.messages), answer.next_cursor is not None, counted.records) == (LIMIT, True, LIMIT + 2)
    engine.close()


@pytest.mark.parametrize("order", Order)
def test_by_born_time_few_records_are_decoded(hot: Store, counted: Counted, order: Order) -> None:
    answer = hot.query(Query("t", "hot", limit=LIMIT, order=order, axis=TimeAxis.BORN))
    assert len(answer.messages) == LIMIT
    assert counted.records <= EACH + 2 * (LIMIT + 1), "those of the born time with which the page ends"


class Ticking(ManualClock):
    """A clock on which each look takes a second."""

    def monotonic_s(self) -> float:
        self.advance(1000)
        return super().monotonic_s()


@pytest.mark.parametrize(("order", "axis"), list(product(Order, TimeAxis)))
def test_the_time_of_a_query_cuts_the_walk_through_a_hot_key(
    hot: Store, counted: Counted, order: Order, axis: TimeAxis
) -> None:
    """A filter that nothing passes would look at all of them."""
    query = Query("t", "hot", limit=LIMIT, order=order, axis=axis, timeout_ms=6_000, contains=("nowhere",))
    tier = HotTierSearch("store", hot._hot, hot._index, hot._known)
    answer = Searcher(clock=Ticking()).search([tier], query)
    assert (answer.messages, answer.coverage.complete, answer.coverage.cut_by) == ([], False, "timeout")
    assert counted.items <= 4096 * 8
    assert counted.records <= 256 * 8


def test_a_miss_in_the_slot_of_a_hot_key_is_cut_by_time(
    hot: Store, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.index.local.snapshot._MOST_STEPS", 100)
    monkeypatch.setattr("tierlog.index.local.snapshot._SHORT_CHAIN", 100)
    missing = next(key for key in map(str, range(10_000)) if _slot(key) == _slot("hot"))
    tier = HotTierSearch("store", hot._hot, hot._index, hot._known)
    for order in Order:
        query = Query("t", missing, order=order, timeout_ms=6_000)
        answer = Searcher(clock=Ticking()).search([tier], query)
        assert (answer.messages, answer.coverage.cut_by) == ([], "timeout")
        assert hot.query(replace(query, timeout_ms=None)).coverage.complete


def _slot(key: str) -> int:
    return key_hash("t", key) % 64


# archived


@dataclass
class Archived:
    """An archive, and readers of it that were just started."""

    objects: MemoryObjectStore
    clock: ManualClock

    def ask(self, query: Query) -> Answer:
        """Asks with nothing in memory."""
        settings = tiny_settings(query__concurrency=1)
        reader = Archive.open("memory://archive", settings=settings, clock=self.clock, objects=self.objects)
        try:
            return reader.query(query)
        finally:
            reader.close()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Archived]:
    """By the number of messages: all of them archived, within 10 and 200 ms."""
    made = {}
    for count in (FEW, MANY):
        clock = ManualClock()
        made[count] = Archived(MemoryObjectStore(clock), clock)
        engine = filled(tmp_path_factory.mktemp("archived"), count, clock, made[count].objects)
        engine.archive(everything=True, drop_hot=True)
        engine.close()
    return made


@pytest.mark.parametrize("order", Order)
def test_an_archived_page_of_a_hot_key_costs_about_what_it_does_without_the_key(
    archives: dict[int, Archived], order: Order
) -> None:
    first = Query("t", "hot", limit=LIMIT, order=order)
    second = replace(first, cursor=archives[MANY].ask(first).next_cursor)
    for query in (first, second):
        cost = {}
        for count, archive in archives.items():
            answer, by_time = archive.ask(query), archive.ask(replace(query, key=None))
            assert len(answer.messages) == len(by_time.messages) == LIMIT or count == FEW
            assert answer.coverage.complete
            cost[count] = answer.coverage.requests
            assert cost[count] <= 2 * by_time.coverage.requests
        assert cost[MANY] <= 2 * cost[FEW]


@pytest.mark.parametrize("order", Order)
def test_an_archived_page_reads_few_of_the_items_of_a_second(
    archives: dict[int, Archived], monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    """All are of one second, so that only the times of their frames tell where a page ends."""
    found: list[int] = []
    items = KeyRun.items

    def counting(run: KeyRun, pages: range) -> object:
        taken = items(run, pages)
        found.append(len(taken))
        return taken

    monkeypatch.setattr(KeyRun, "items", counting)
    answer = archives[MANY].ask(Query("t", "hot", limit=LIMIT, order=order))
    assert (len(answer.messages), answer.coverage.complete) == (LIMIT, True)
    assert sum(found) <= MANY // 2


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("segment_bytes", [128 << 10, 8 << 20])
def test_pages_of_an_archived_hot_key_have_each_message_once_in_order_whatever_its_queue(
    tmp_path: Path, order: Order, segment_bytes: int
) -> None:
    """Queues that have the key only in the log's first or last part, and one that has it throughout."""
    clock, count = ManualClock(), 9_000
    objects = MemoryObjectStore(clock)
    settings = tiny_settings(
        hot__segment_bytes=segment_bytes, index__items=30_000, index__slots=64, cold__frame_bytes=4096
    )
    engine = Store.open(tmp_path, settings=settings, clock=clock, cold_url="memory://archive", objects=objects)
    for begin in range(0, count, 30):
        engine.append([
            Message("t", b"%d" % number, ["hot"], queue_id=2 if number % 3 == 0 else int(number > count // 2))
            for number in range(begin, begin + 30)
        ], Durability.ASYNC)  # fmt: skip
        clock.advance(1)
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    archived = Archived(objects, clock)
    query = Query("t", "hot", limit=1_000, order=order)
    bodies: list[bytes] = []
    while True:
        answer = archived.ask(query)
        assert answer.coverage.complete
        bodies += [found.record.body for found in answer.messages]
        if answer.next_cursor is None:
            break
        query = replace(query, cursor=answer.next_cursor)
    wanted = [b"%d" % number for number in range(count)]
    assert bodies == (wanted[::-1] if order is Order.NEWEST else wanted)


def test_an_archived_page_by_born_time_reads_the_frames_of_its_times_alone(archives: dict[int, Archived]) -> None:
    cost = [
        archive.ask(Query("t", "hot", limit=LIMIT, axis=TimeAxis.BORN)).coverage.requests
        for archive in archives.values()
    ]
    assert cost[1] <= 2 * cost[0]


@pytest.mark.parametrize(("order", "budget"), list(product(Order, (0, 1, 3, 6))))
def test_a_budget_of_requests_cuts_the_reading_of_a_hot_key(
    archives: dict[int, Archived], order: Order, budget: int
) -> None:
    answer = archives[MANY].ask(Query("t", "hot", limit=10_000, order=order, max_requests=budget))
    assert answer.coverage.requests <= budget
    assert (answer.coverage.complete, answer.coverage.cut_by) == (False, "budget")
