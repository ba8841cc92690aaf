"""Queries of an archive in parallel: the same answer whatever the threads do, and no request too many."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.index.synthetic_archive import START_MS, STORE, TOPIC, Shape, SyntheticArchive
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.objects.priced_store import PricedStore
from tests.support.objects.slow_store import SlowStore
from tests.support.stores.engines import tiny_settings
from tests.support.threads import wait_for_threads
from tierlog.index.format.layout import Items
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.lookup import KeyRun
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import Searcher
from tierlog.index.search.store_search import ArchiveSearch
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis, TimeRange
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore, usd_of

HOUR_MS = 3_600_000
FILES = 48
EACH = 60
HOT, RARE = "hot", "rare"
RARE_FILES = (3, 11, 12, 40, 47)
EVER = TimeRange(0, END_OF_TIME_MS)
SHAPE = Shape(
    days=2, file_ms=HOUR_MS, messages=150, keys_a_message=2, page_bytes=1024, frame_bytes=4096, queues=2, merged=True,
    spread={RARE: RARE_FILES, HOT: [number for number in range(FILES) for _ in range(EACH)]},
)  # fmt: skip


@dataclass
class TwoDays:
    """An archive of two days, an hour a file: the first day merged into one index object."""

    objects: MemoryObjectStore
    archive: SyntheticArchive

    def manifest(self, objects: ObjectStore | None = None) -> ManifestStore:
        """The manifest, nothing else in memory yet."""
        manifest = ManifestStore(
            objects or self.objects,
            ColdKeys(STORE),
            randomness=SeededRandomness(1),
            options=ColdOptions(),
            clock=ManualClock(),
        )
        list(manifest.log_entries(manifest.reader(), manifest.refresh()))
        list(self.index(manifest))
        manifest.state(manifest.reader(), manifest.refresh())
        return manifest

    @staticmethod
    def index(manifest: ManifestStore) -> Iterator[IndexEntry]:
        return manifest.all_index_entries(manifest.reader(), manifest.refresh())

    @staticmethod
    def make_resident(manifest: ManifestStore) -> None:
        """Page directories and seek tables, but neither pages nor frames."""
        for entry in TwoDays.index(manifest):
            KeyRun(manifest.reader(), entry, 1, 1).pages()
        for log in manifest.log_entries(manifest.reader(), manifest.refresh()):
            SegmentReader(manifest.reader(), log).seek_table()


@pytest.fixture(scope="module")
def days() -> TwoDays:
    objects = MemoryObjectStore(ManualClock())
    return TwoDays(objects, SyntheticArchive(SHAPE, objects))


def ask(manifest: ManifestStore, query: Query, concurrency: int = 32, clock: ManualClock | None = None) -> Answer:
    searcher = Searcher(WorkerPool(concurrency, "test-query"), concurrency, clock or ManualClock())
    return searcher.search([ArchiveSearch(STORE, ColdIndex(manifest, SeededRandomness(2)))], query)


def shown(answer: Answer) -> object:
    """What must not depend on threads."""
    coverage = answer.coverage
    places = [message.place(TimeAxis.STORE) for message in answer.messages]
    index = (coverage.index_considered, coverage.index_searched, coverage.index_skipped, coverage.index_unreachable)
    failures = [failure.object for failure in coverage.failures]
    return places, answer.next_cursor, coverage.complete, coverage.cut_by, coverage.stores, index, failures


QUESTIONS = [
    Query(TOPIC, key, *span, limit=limit, axis=axis, order=order)
    for key, span, limit, axis, order in product(
        (HOT, RARE, None),
        ((0, END_OF_TIME_MS), (START_MS + 10 * HOUR_MS + 1234, START_MS + 13 * HOUR_MS)),
        (7, 200),
        TimeAxis,
        Order,
    )
    if not (key is None and limit == 200)
]


def test_the_answer_does_not_depend_on_how_threads_follow_each_other(days: TwoDays, seed: int) -> None:
    for number, query in enumerate(random.Random(seed).sample(QUESTIONS, 8)):
        alone = shown(ask(days.manifest(), query, 1))
        assert shown(ask(days.manifest(SlowStore(days.objects, seed + number)), query)) == alone, query


def test_a_piece_that_fails_and_was_not_needed_is_not_told(days: TwoDays, seed: int) -> None:
    """Of the objects that a busy key has, all but the newest fail; the page needs the newest alone."""
    newest = max(days.index(days.manifest()), key=lambda entry: entry.first)
    others = [entry.key for entry in days.index(days.manifest()) if entry is not newest and entry.key != newest.key]
    for number in range(5):
        faulty = FaultyObjectStore(SlowStore(days.objects, seed + number))
        manifest = days.manifest(faulty)
        for key in others:
            faulty.fail_before("get_range", key, times=None)
        answer = ask(manifest, Query(TOPIC, HOT, limit=7))
        assert (len(answer.messages), answer.coverage.complete, answer.coverage.failures) == (7, True, [])
        assert answer.coverage.index_searched >= 1


def test_a_piece_under_way_that_matters_no_more_is_not_waited_for(days: TwoDays) -> None:
    """The object of the first day hangs; the newest hour gives the page."""
    faulty = FaultyObjectStore(days.objects)
    manifest = days.manifest(faulty)
    day = next(entry for entry in days.index(manifest) if entry.level)
    hold = faulty.hold("get_range", day.key, times=None)
    late = faulty.hold("get_range", "*/index/*", times=None)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(manifest, Query(TOPIC, HOT, limit=7))))
    thread.start()
    hold.wait_until_reached()
    late.wait_until_reached()
    late.release()
    thread.join(30)
    assert not thread.is_alive()
    let_go(faulty)
    assert (len(answers[0].messages), answers[0].coverage.complete) == (7, True)
    assert answers[0].coverage.index_skipped > 0


@pytest.mark.parametrize("broken", [0, 7, 20])
def test_one_object_that_fails_makes_the_answer_incomplete_and_the_rest_right(days: TwoDays, broken: int) -> None:
    entries = sorted(days.index(days.manifest()), key=lambda entry: entry.first)
    entry = entries[broken]
    faulty = FaultyObjectStore(days.objects)
    manifest = days.manifest(faulty)
    faulty.fail_before("get_range", entry.key, times=None)
    whole = ask(days.manifest(), Query(TOPIC, HOT, limit=10_000))
    answer = ask(manifest, Query(TOPIC, HOT, limit=10_000))
    coverage = answer.coverage
    assert (coverage.complete, coverage.index_unreachable) == (False, 1)
    assert [failure.object for failure in coverage.failures] == [entry.key]
    lacking = {message.record.physical_offset for message in whole.messages}
    lacking -= {message.record.physical_offset for message in answer.messages}
    assert lacking
    assert all(entry.first <= offset < entry.next for offset in lacking)
    (covered,) = coverage.stores
    assert entry.bounds is not None
    assert covered.cold is None or covered.cold.from_ms > entry.bounds.max_store_ms


def test_every_overlapping_object_has_one_fate(days: TwoDays) -> None:
    for query in QUESTIONS:
        if query.key is None:
            continue
        manifest = days.manifest()
        coverage = ask(manifest, query).coverage
        overlapping = list(manifest.index_entries(manifest.reader(), manifest.refresh(), query.axis, query.time_range))
        assert coverage.index_considered == len(overlapping)
        fates = coverage.index_filtered + coverage.index_searched + coverage.index_expired
        assert fates + coverage.index_unreachable + coverage.index_skipped == len(overlapping)


def test_two_round_trips_with_directories_resident_and_four_from_an_empty_cache(days: TwoDays) -> None:
    query = Query(TOPIC, RARE)
    manifest = days.manifest()
    cold = ask(manifest, query).coverage
    assert (cold.round_trips, cold.manifest_requests) == (4, 1)
    manifest = days.manifest()
    days.make_resident(manifest)
    answer = ask(manifest, query)
    coverage = answer.coverage
    assert (len(answer.messages), coverage.round_trips, coverage.waves) == (len(RARE_FILES), 2, 2)
    objects = coverage.index_searched
    assert coverage.requests == 1 + objects + len(RARE_FILES), "the head, a page an object, a frame a message"
    assert coverage.cost_usd == usd_of(reads=coverage.requests)
    again = ask(manifest, query).coverage
    assert (again.round_trips, again.waves, again.requests) == (0, 0, 1), "all but the head is in memory"


def test_depth_is_the_same_one_after_another_and_rounds_are_not(days: TwoDays) -> None:
    query = Query(TOPIC, RARE)
    for concurrency in (1, 2, 5):
        manifest = days.manifest()
        days.make_resident(manifest)
        coverage = ask(manifest, query, concurrency).coverage
        pages, frames = coverage.index_searched, len(RARE_FILES)
        assert coverage.round_trips == 2
        assert coverage.waves == -(-pages // concurrency) + -(-frames // concurrency)


def test_no_more_requests_at_once_than_the_concurrency(days: TwoDays, seed: int) -> None:
    for concurrency in (1, 3):
        slow = SlowStore(days.objects, seed)
        manifest = days.manifest(slow)
        slow.most_at_once = 0
        ask(manifest, Query(TOPIC, RARE), concurrency)
        assert slow.most_at_once == concurrency


@pytest.mark.parametrize("order", Order)
def test_a_long_run_is_read_page_by_page_until_the_limit_is_certain(days: TwoDays, order: Order) -> None:
    """The object of the first day has a run of 1,440 items of the busy key, 30 in a page."""
    query = Query(TOPIC, HOT, START_MS, START_MS + 24 * HOUR_MS, limit=5, order=order)
    manifest = days.manifest()
    days.make_resident(manifest)
    day = next(entry for entry in days.index(manifest) if entry.level)
    run = KeyRun(manifest.reader(), day, key_hash(TOPIC, HOT), key_hash_high(TOPIC, HOT)).pages()
    answer = ask(manifest, query, 1)
    assert len(answer.messages) == 5
    assert len(run) > 20
    assert answer.coverage.requests <= 5, "the head, a page or two, and the frames of six messages"
    everything = ask(manifest, replace(query, limit=10_000))
    assert len(everything.messages) == 24 * EACH
    expected = sorted((message.place(TimeAxis.STORE) for message in everything.messages), reverse=order is Order.NEWEST)
    assert [message.place(TimeAxis.STORE) for message in answer.messages] == expected[:5]


@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("key", [RARE, None])
def test_queue_rows_are_read_of_what_is_not_indexed_or_asked_for_alone(
    days: TwoDays, monkeypatch: pytest.MonkeyPatch, key: str | None, axis: TimeAxis
) -> None:
    """The newest hour is archived and not indexed yet; the rows of each of 48 hours are an object of their own."""
    manifest = ManifestStore(
        days.objects, ColdKeys(STORE), randomness=SeededRandomness(1), options=ColdOptions(), clock=ManualClock()
    )
    whole = manifest.refresh()
    last = whole.log[-1].base
    head = replace(whole, indexed_to=last, index=tuple(entry for entry in whole.index if entry.next <= last))
    monkeypatch.setattr(manifest, "refresh", lambda bill=None: head)
    query = Query(TOPIC, key, START_MS + 46 * HOUR_MS, limit=10_000, axis=axis)
    answer = ask(manifest, query)
    expected = [message.place(axis) for message in ask(days.manifest(), query).messages]
    assert ([message.place(axis) for message in answer.messages], answer.coverage.complete) == (expected, True)
    assert expected
    rows = answer.coverage.manifest_requests - 1  # the topics
    if key is not None:
        assert rows == 1
    elif axis is TimeAxis.STORE:
        assert rows <= 3


def test_no_piece_of_a_long_run_is_longer_than_memory_has_room_for(
    days: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(TOPIC, HOT, START_MS, START_MS + 24 * HOUR_MS, limit=200)
    whole = shown(ask(days.manifest(), query, 1))
    read, items = [], KeyRun.items

    def counted(run: KeyRun, pages: range) -> Items:
        read.append(len(pages))
        return items(run, pages)

    monkeypatch.setattr(KeyRun, "items", counted)
    monkeypatch.setattr("tierlog.index.search.cold_search._MOST_PAGES", 3)
    late = replace(query, limit=1, to_ms=START_MS + HOUR_MS)
    assert len(ask(days.manifest(), late, 1).messages) == 1
    assert max(read) == 3
    assert shown(ask(days.manifest(), query, 1)) == whole


def test_a_key_below_the_slots_of_an_object_has_no_pages_and_no_items(days: TwoDays) -> None:
    manifest = days.manifest()
    (entry, *_) = days.index(manifest)
    assert len(KeyRun(manifest.reader(), entry, 1, 1).items(range(0))) == 0


def test_hits_in_one_frame_cost_one_request_and_neighbours_share_one(days: TwoDays) -> None:
    manifest = days.manifest()
    days.make_resident(manifest)
    hour = START_MS + 30 * HOUR_MS
    answer = ask(manifest, Query(TOPIC, HOT, hour, hour + HOUR_MS, limit=1000))
    assert len(answer.messages) == EACH
    assert answer.coverage.index_searched <= 3
    frames = answer.coverage.requests - 1 - manifest_pages(manifest, hour)
    assert frames <= 2, "one segment, whose frames lie side by side"


def manifest_pages(manifest: ManifestStore, hour_ms: int) -> int:
    """How many index pages the busy key has in the objects that overlap an hour."""
    span = TimeRange(hour_ms, hour_ms + HOUR_MS)
    entries = manifest.index_entries(manifest.reader(), manifest.refresh(), TimeAxis.STORE, span)
    hashes = key_hash(TOPIC, HOT), key_hash_high(TOPIC, HOT)
    return sum(len(KeyRun(manifest.reader(), entry, *hashes).pages()) for entry in entries)


@pytest.mark.parametrize("budget", [0, 1, 5, 9, 17, 30, 60])
def test_threads_that_race_never_exceed_the_budget(days: TwoDays, budget: int, seed: int) -> None:
    slow = SlowStore(days.objects, seed)
    manifest = days.manifest(slow)
    slow.requests.clear()
    answer = ask(manifest, Query(TOPIC, HOT, limit=10_000, max_requests=budget))
    assert slow.requests.total() == answer.coverage.requests <= budget
    assert (answer.coverage.complete, answer.coverage.cut_by) == (False, "budget")
    whole = ask(days.manifest(), Query(TOPIC, HOT, limit=10_000))
    (covered,) = answer.coverage.stores
    found = {message.record.physical_offset for message in answer.messages}
    if covered.cold is not None:
        for message in whole.messages:
            claimed = covered.cold.from_ms <= message.record.store_ms < covered.cold.to_ms
            assert not claimed or message.record.physical_offset in found


def test_the_newest_of_a_topic_ask_for_little_more_than_they_need(days: TwoDays) -> None:
    """Older segments could be asked at once, but what is under way is expected to suffice."""
    coverage = ask(days.manifest(), Query(TOPIC, None, limit=7)).coverage
    assert coverage.requests - coverage.manifest_requests <= 8


def let_go(faulty: FaultyObjectStore) -> None:
    """Let what hangs go on, and wait until it has ended."""
    faulty.heal()
    wait_for_threads("test-query")


def ask_beside(manifest: ManifestStore, query: Query, clock: ManualClock) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(manifest, query, clock=clock)))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("pattern", ["*/head", "*/index/*", "*/log/*"])
def test_requests_that_hang_for_ever_end_with_the_time_of_the_query(days: TwoDays, pattern: str) -> None:
    clock = ManualClock()
    faulty = FaultyObjectStore(days.objects)
    manifest = days.manifest(faulty)
    hold = faulty.hold("get_if_changed" if pattern == "*/head" else "get_range", pattern, times=None)
    thread, answers = ask_beside(manifest, Query(TOPIC, HOT, limit=100, timeout_ms=5_000), clock)
    hold.wait_until_reached()
    assert not answers
    clock.advance(5_000)
    thread.join(20)
    (answer,) = answers
    coverage = answer.coverage
    (covered,) = coverage.stores
    assert (answer.messages, coverage.complete, coverage.cut_by) == ([], False, "timeout")
    if covered.cold is not None:  # behind the newest hit, whose frame hangs
        newest = ask(days.manifest(), Query(TOPIC, HOT, limit=1)).messages[0].record.store_ms
        assert pattern == "*/log/*"
        assert covered.cold.from_ms > newest
    before = coverage.to_json(), len(faulty.calls)
    let_go(faulty)
    assert (coverage.to_json(), len(faulty.calls)) == before, "what was abandoned asks for nothing more"


def test_what_is_certain_when_time_is_over_is_in_the_answer(days: TwoDays) -> None:
    """One object in the middle hangs: the newer ones are there and claimed."""
    clock = ManualClock()
    faulty = FaultyObjectStore(days.objects)
    manifest = days.manifest(faulty)
    entries = sorted(days.index(manifest), key=lambda entry: -entry.first)
    stuck = entries[9]
    hold = faulty.hold("get_range", stuck.key, times=None)
    thread, answers = ask_beside(manifest, Query(TOPIC, RARE, timeout_ms=5_000), clock)
    hold.wait_until_reached()
    while sum(thread.name == "test-query" for thread in threading.enumerate()) > 1:
        threading.Event().wait(0.005)  # all others have been asked, and threads without work end
    clock.advance(5_000)
    thread.join(20)
    let_go(faulty)
    (answer,) = answers
    (covered,) = answer.coverage.stores
    assert (answer.coverage.complete, answer.coverage.cut_by) == (False, "timeout")
    assert stuck.bounds is not None
    assert covered.cold is not None
    assert covered.cold.from_ms >= stuck.bounds.max_store_ms
    assert answer.coverage.index_skipped == 1


def test_a_query_that_hangs_takes_no_thread_from_others(days: TwoDays) -> None:
    clock = ManualClock()
    faulty = FaultyObjectStore(days.objects)
    manifest = days.manifest(faulty)
    pool = WorkerPool(4, "test-query")
    entries = list(days.index(manifest))
    hold = faulty.hold("get_range", entries[-1].key, times=1)
    stores = [ArchiveSearch(STORE, ColdIndex(manifest, SeededRandomness(2)))]
    first: list[Answer] = []
    thread = threading.Thread(
        target=lambda: first.append(Searcher(pool, 32, clock).search(stores, Query(TOPIC, HOT, limit=10_000)))
    )
    thread.start()
    hold.wait_until_reached()
    other = Searcher(pool, 32, clock).search(
        [ArchiveSearch(STORE, ColdIndex(days.manifest(), SeededRandomness(2)))], Query(TOPIC, RARE)
    )
    assert len(other.messages) == len(RARE_FILES)
    hold.release()
    thread.join(60)
    assert len(first[0].messages) == FILES * EACH


@pytest.mark.parametrize("key", ["k", None])
def test_an_archive_is_not_asked_where_the_hot_tier_has_the_page(tmp_path: Path, key: str | None) -> None:
    clock = ManualClock()
    objects = PricedStore(MemoryObjectStore(clock))
    engine = Store.open(tmp_path, settings=tiny_settings(), cold_url="memory://a", objects=objects, clock=clock)
    for number in range(60):
        engine.append([Message("t", b"%d" % number, ["k"])])
        clock.advance(1000)
        if number == 39:
            engine.archive(everything=True, drop_hot=True)
    objects.requests.clear()
    answer = engine.query(Query("t", key, limit=5))
    assert [int(message.record.body) for message in answer.messages] == [59, 58, 57, 56, 55]
    assert (answer.coverage.complete, answer.coverage.stores[0].cold, objects.requests.total()) == (True, None, 0)
    answer = engine.query(Query("t", key, limit=30))
    assert [int(message.record.body) for message in answer.messages] == list(range(59, 29, -1))
    assert (answer.coverage.complete, answer.coverage.stores[0].cold is None) == (True, False)
    engine.close()


@pytest.mark.parametrize(("key", "axis", "order"), list(product((HOT, None), TimeAxis, Order)))
def test_pages_follow_each_other_without_a_gap_or_a_double(
    days: TwoDays, key: str | None, axis: TimeAxis, order: Order
) -> None:
    span = START_MS + 22 * HOUR_MS, START_MS + 26 * HOUR_MS
    manifest = days.manifest()
    query = Query(TOPIC, key, *span, limit=10_000, axis=axis, order=order)
    whole = [message.place(axis) for message in ask(manifest, query).messages]
    found = []
    cursor = None
    while True:
        answer = ask(manifest, replace(query, limit=37, cursor=cursor))
        found += [message.place(axis) for message in answer.messages]
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert found == whole == sorted(whole, reverse=order is Order.NEWEST)
    assert len(found) >= 4 * EACH
