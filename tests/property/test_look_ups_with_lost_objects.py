"""Every k-th object of an archive unreachable: answers are incomplete, right as far as they go, and claim no more.

For every k over all the objects that a query asks for, in every combination of tier, axis and order that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.support.index.index_merge import Shape
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.oracles.plain_search import Held, check_all_pages, check_incomplete, check_page
from tests.support.stores.look_up_stores import DAY_MS, KEYS, TOPICS, Sending, SharedBucket, Sizes
from tierlog.index.search.query import Answer, Query
from tierlog.tiering.base.errors import ObjectStoreUnavailableError, StoreError
from tierlog.tiering.base.types import Order, TimeAxis


@cache
def made() -> SharedBucket:
    """Segments in pages of the manifest, objects of two levels with parts, an end that is not indexed, a hot rest."""
    shared = SharedBucket(Sizes(items=60, cache_bytes=1))
    store = shared.stores[0]
    for number in range(7):
        for batch in range(8):
            shared.clock.advance(700)
            store.append(
                [
                    Sending(TOPICS[each % 2], ("often", KEYS[(batch + each) % 8]), (each - 5) * DAY_MS // 3, 150)
                    for each in range(10)
                ]
            )
        store.archive_everything()
        if number == 3:
            assert store.merge(0, 0, 4, Shape(2, 300))
    store.drop_archived()
    for _ in range(12):
        shared.clock.advance(700)
        store.append([Sending(TOPICS[0], ("often",), 0, 150)] * 10)
    store.roll()
    store.archive_rolled()  # its index file is not sealed: the end of the archive is searched record by record
    return shared


def queries(shared: SharedBucket) -> list[Query]:
    middle = sorted(kept.store_ms for kept in shared.stores[0].sent)[300]
    found = [
        Query(TOPICS[0], key, limit=limit, axis=axis, order=order)
        for key in ("often", KEYS[2], "absent", None)
        for axis in TimeAxis
        for order in Order
        for limit in (5, 1000)
    ]
    return [*found, Query(TOPICS[0], "often", middle, middle + 2500, 1000), Query(TOPICS[0], "often", middle, limit=9)]


def ask_with_lost(
    shared: SharedBucket, query: Query, lose: Callable[[FaultyObjectStore], None], *, cold: bool
) -> tuple[Answer, list[Held], set[str]]:
    """The answer, what should be found, and the objects that failed."""
    store = shared.stores[0]
    faulty = FaultyObjectStore(shared.objects)
    reader = shared.cold_engine(faulty) if cold else store.engine
    lose(faulty)
    failed: set[str] = set()
    begin = faulty._begin

    def watched(operation: str, key: str) -> None:
        try:
            begin(operation, key)
        except StoreError as error:
            failed.add(key)
            raise ObjectStoreUnavailableError(error.message, path=key) from error  # as every real one says

    faulty._begin = watched  # type: ignore[method-assign]
    store.watched.inner = faulty
    try:
        return reader.query(query), store.archived() if cold else store.held(), failed
    finally:
        store.watched.inner = shared.objects


def assert_right(answer: Answer, query: Query, held: list[Held], failed: set[str]) -> None:
    if answer.coverage.complete:
        check_page(answer, query, held)
        return
    check_incomplete(answer, query, held)
    failures = answer.coverage.failures
    assert failures, "incomplete, and no failure is told"
    assert answer.coverage.cut_by in (None, "limit")
    told = {failure.object for failure in failures}
    assert told <= failed, f"{told - failed} did not fail"


def every_kth(shared: SharedBucket, steps: range, queries: list[Query], *, cold: bool) -> tuple[int, int]:
    keys = sorted(shared.objects._objects)
    incomplete = asked = 0
    for k in steps:
        for first in sorted({0, k // 2, k - 1}):
            lost = keys[first::k]

            def lose(faulty: FaultyObjectStore, lost: list[str] = lost) -> None:
                for key in lost:
                    faulty.fail_before("*", key, times=None)

            for query in queries:
                answer, held, failed = ask_with_lost(shared, query, lose, cold=cold)
                asked += 1
                incomplete += not answer.coverage.complete
                assert_right(answer, query, held, failed)
    return asked, incomplete


@pytest.mark.parametrize(
    "cold", [pytest.param(True, id="archive", marks=pytest.mark.slow), pytest.param(False, id="both tiers")]
)
def test_every_kth_object_is_unreachable(cold: bool) -> None:
    shared = made()
    for query in queries(shared)[1:3]:
        held = shared.stores[0].archived() if cold else shared.stores[0].held()
        check_all_pages(shared.cold.query if cold else shared.stores[0].engine.query, query, held, shared.tally)
    asked, incomplete = every_kth(shared, range(5, 6), queries(shared)[::11], cold=cold)
    assert incomplete > asked // 10


@pytest.mark.slow
@pytest.mark.parametrize("cold", [True, False], ids=["archive", "both tiers"])
def test_every_kth_object_is_unreachable_for_many_ks(cold: bool) -> None:
    shared = made()
    asked, incomplete = every_kth(
        shared, range(1, len(shared.objects._objects) + 1, 10), queries(shared)[::2], cold=cold
    )
    print(f"\n{asked} queries with lost objects, {incomplete} incomplete")
    assert incomplete > asked // 10


@pytest.mark.slow
@pytest.mark.parametrize("cold", [True, False], ids=["archive", "both tiers"])
def test_every_kth_request_fails(cold: bool) -> None:
    """Sections of one object fail apart from each other: a directory may be read and its pages not."""
    shared = made()
    incomplete = asked = 0
    for query in queries(shared):
        for k in (2, 3, 5, 9, 17):
            for first in range(min(k, 4)):

                def lose(faulty: FaultyObjectStore, k: int = k, first: int = first) -> None:
                    counted = faulty._begin

                    def every(operation: str, key: str) -> None:
                        if len(faulty.calls) % k == first:
                            faulty.fail_before(operation, key)
                        counted(operation, key)

                    faulty._begin = every  # type: ignore[method-assign]

                answer, held, failed = ask_with_lost(shared, query, lose, cold=cold)
                asked += 1
                incomplete += not answer.coverage.complete
                assert_right(answer, query, held, failed)
    print(f"\n{asked} queries with failed requests, {incomplete} incomplete")
    assert incomplete > asked // 10


def test_lost_segment_pages_of_the_manifest_are_named_and_not_the_index_objects_that_point_into_them() -> None:
    shared = made()
    assert shared.stores[0].manifest().refresh().log == ()

    def lose(faulty: FaultyObjectStore) -> None:
        faulty.fail_before("*", "*/manifest/log*", times=None)

    query = Query(TOPICS[0], "often", limit=1000)
    answer, held, failed = ask_with_lost(shared, query, lose, cold=False)
    assert_right(answer, query, held, failed)
    assert {failure.object for failure in answer.coverage.failures} <= failed
    assert not any("/index/" in failure.object for failure in answer.coverage.failures)
