"""What both time axes promise at their edges, wherever the messages lie: skewed and equal times, windows on borders.

Others are elsewhere: whole seconds in ``tests/regressions/test_rocketmq_index_issues.py``, refused messages in
``tests/e2e/test_refusals.py``.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from tests.support.index.index_merge import Shape
from tests.support.oracles.plain_search import check_all_pages, matching
from tests.support.stores.look_up_stores import DAY_MS, LookUpStore, Sending, SharedBucket, Sizes
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis
from tierlog.tiering.format.hashing import java_hash

SLOW = [pytest.param(where, marks=pytest.mark.slow) for where in ("writing", "compacted", "archived", "merged")]
WHERE = pytest.mark.parametrize("where", ["mixed", *SLOW])
T = "TopicTest"


def moved(store: LookUpStore, where: str) -> None:
    """Bring everything so far into one state; ``mixed`` leaves what comes after in the one before."""
    if where == "compacted":
        store.roll()
        store.seal()
        store.compact()
    if where in ("archived", "merged"):
        store.drop_hot()
    if where == "merged":
        store.merge(0, 0, 100, Shape(2, 300))


def made(where: str, batches: list[tuple[int, list[Sending]]], sizes: Sizes | None = None) -> SharedBucket:
    """A store with batches, each some ms after the one before, in a state."""
    shared = SharedBucket(sizes or Sizes(items=20))
    store = shared.stores[0]
    for number, (step_ms, batch) in enumerate(batches):
        shared.clock.advance(step_ms)
        store.append(batch)
        if where == "mixed" and number == len(batches) // 3:
            store.drop_hot()
            store.merge(0, 0, 100)
        if where == "mixed" and number == len(batches) * 2 // 3:
            store.archive_everything()
    moved(store, where)
    store.dispatch()
    return shared


def ask(
    shared: SharedBucket, *windows: tuple[int, int], key: str | None = "k", limits: tuple[int, ...] = (3, 1000)
) -> int:
    """Every axis, order and limit in every window, of every reader; how many messages are in them."""
    for (from_ms, to_ms), axis, order, limit in product(windows, TimeAxis, Order, limits):
        shared.ask(Query(T, key, from_ms, to_ms, limit, axis, order), most_pages=4)
    held = shared.stores[0].held()
    return sum(len(matching(Query(T, key, *window, axis=axis), held)) for window in windows for axis in TimeAxis)


def instants(shared: SharedBucket) -> list[tuple[int, int]]:
    """Windows of one ms at, before and after times of messages on both axes."""
    times = sorted({kept.time_ms(axis) for kept in shared.stores[0].sent for axis in TimeAxis})
    return [(time + step, time + step + 1) for time in times[:: max(1, len(times) // 5)] for step in (-1, 0, 1)]


@WHERE
def test_messages_born_days_before_and_after_they_were_stored(where: str) -> None:
    skews = [0, -4 * DAY_MS, 3 * DAY_MS, -1, 1, 999, -1000, -1_700_000_000_000]
    shared = made(where, [(800, [Sending(T, ("k",), skew) for skew in skews]) for _ in range(9)])
    now_ms = shared.clock.now_ms()
    late = [(now_ms - 5 * DAY_MS, now_ms - DAY_MS), (now_ms + DAY_MS, now_ms + 5 * DAY_MS), (0, DAY_MS), (0, now_ms)]
    assert ask(shared, *late) > 50
    assert ask(shared, *instants(shared)) > 5
    assert ask(shared, late[0], key=None) > 5


@WHERE
def test_equal_times_across_files_segments_and_pages(where: str) -> None:
    """Three times for hundreds of messages, in steps that are no multiple of a second."""
    batches = [
        (step, [Sending(T, ("k", f"own-{number}"), -7, 300)] * 12) for number, step in enumerate([0] * 8 + [1] * 2)
    ]
    shared = made(where, batches)
    begin_ms = shared.stores[0].sent[0].store_ms
    assert (
        ask(shared, (0, END_OF_TIME_MS), (begin_ms, begin_ms + 1), (begin_ms - 7, begin_ms - 6), limits=(1, 50)) > 200
    )
    assert ask(shared, (begin_ms + 1, begin_ms + 3)) == 24


@WHERE
def test_windows_that_start_or_end_inside_a_file_and_on_its_borders(where: str) -> None:
    shared = made(where, [(430, [Sending(T, ("k",), 100 * number, 200) for number in range(5)]) for _ in range(24)])
    borders = sorted({*shared.borders(TimeAxis.STORE), *shared.borders(TimeAxis.BORN)})
    chosen = borders[:: max(1, len(borders) // 4)]
    windows = [(low + step, high + 1 - step) for low, high in pairwise(chosen) for step in (0, 1)]
    windows += (
        [(low - 1, low) for low in chosen]
        + [(low, low + 1) for low in chosen]
        + [(low + 1, low + 215) for low in chosen]
    )
    assert ask(shared, *windows, limits=(4,)) > 100


@WHERE
def test_a_limit_reached_inside_the_run_of_one_slot(where: str) -> None:
    """One slot for all keys: other keys' items lie between those of the page, and the run is longer than a page."""
    shared = made(
        where,
        [(90, [Sending(T, ("k",) if number % 3 else ("x",), number) for number in range(9)]) for _ in range(12)],
        Sizes(slots=1, items=60),
    )
    assert ask(shared, (0, END_OF_TIME_MS), limits=(1, 7, 71, 72)) == 144


@pytest.mark.parametrize(
    "key", ["ключ", "\U0001d518\U0001f511", "e\u0301", "\u00e9", "\uffff", "\uff5e", "\x00", "a\x7fb", "键" * 300]
)
def test_unicode_keys_are_compared_as_they_were_written(key: str) -> None:
    """Nothing is normalized; what only looks alike is another key."""
    others = [other for other in ("e\u0301", "\u00e9", "ключ", "\U0001d518", "a") if other != key]
    shared = made(
        "mixed",
        [(50, [Sending(T, (key, other))]) for other in others] + [(50, [Sending(T, (other,)) for other in others])],
    )
    assert ask(shared, (0, END_OF_TIME_MS), key=key) == 2 * len(others)
    for other in others:
        assert ask(shared, (0, END_OF_TIME_MS), key=other) == 4


def test_topics_that_collide_with_keys_that_do() -> None:
    assert len({java_hash(f"{topic}#{key}") for topic, key in product(("Aa", "BB"), ("Aa", "BB"))}) == 1
    batches = [(10, [Sending(topic, (key,)) for topic in ("Aa", "BB")]) for key in ("Aa", "BB", "Aa", "Aa")]
    shared = made("mixed", batches)
    for topic, (key, count) in product(("Aa", "BB"), (("Aa", 3), ("BB", 1))):
        query = Query(topic, key, limit=1000)
        shared.ask(query)
        assert len(matching(query, shared.stores[0].held())) == count


@pytest.mark.parametrize("key", ["", " ", "a b", "a\x01", "\x02b", " a", "a "])
def test_a_key_that_cannot_be_indexed_is_refused_alike_at_append_and_query(key: str) -> None:
    shared = made("writing", [(0, [Sending(T, ("k",))])])
    engine = shared.stores[0].engine
    words = "a key is not empty and has no space, 0x01 or 0x02"
    with pytest.raises(InvalidRequestError, match="bad key") as appended:
        shared.stores[0].append([Sending(T, ("k", key))])
    with pytest.raises(InvalidRequestError, match="bad key") as asked:
        engine.query(Query(T, key))
    assert (appended.value.hint, asked.value.hint) == (words, words)
    assert ask(shared, (0, END_OF_TIME_MS)) == 2


def test_a_key_with_half_a_surrogate_pair_is_refused_at_query_as_at_append() -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode text"):
        Query(T, "a\udcffb")


@pytest.mark.parametrize(
    ("count", "limit"),
    [(1500, 700), pytest.param(100_000, 10_000, marks=(pytest.mark.slow, pytest.mark.timeout(900)))],
    ids=["small", "100,000"],
)
def test_a_key_of_very_many_messages_is_paged_through_from_both_ends(count: int, limit: int) -> None:
    sizes = Sizes(1 << 20, slots=100, items=20_000, inline_entries=50, page_entries=20)
    batch = 100
    batches = [(37, [Sending(T, ("k",), 13 * (number % 7))] * batch) for number in range(count // batch)]
    shared = made("mixed", batches, sizes)
    held = shared.stores[0].held()
    assert len({each.tier for each in held}) == 2
    for axis, order in product(TimeAxis, Order):
        check_all_pages(
            shared.stores[0].engine.query, Query(T, "k", limit=limit, axis=axis, order=order), held, shared.tally
        )
    assert shared.tally.messages == 4 * count
