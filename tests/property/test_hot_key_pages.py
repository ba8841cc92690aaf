"""Pages of a key that many messages have are those of a plain list, however few items are looked at in a step."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.oracles.plain_search import check_all_pages
from tests.support.stores.look_up_stores import Sending, SharedBucket, Sizes
from tierlog.index.local import snapshot
from tierlog.index.search import hot_search, segment_search
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Order, TimeAxis

T = "TopicTest"
HOT, RARE = "often", "Aa"
SHARES = st.floats(0, 1, allow_nan=False, width=16)

sendings = st.builds(
    Sending, st.just(T), st.sampled_from([(HOT,), (HOT,), (HOT, RARE), (RARE,), ("BB",)]), st.integers(-1500, 1500),
    st.sampled_from([20, 400]),
)  # fmt: skip
#: How long after the one before it a batch comes, which has one store time, and what becomes of the store behind it.
batches = st.tuples(
    st.sampled_from([0, 1, 400, 999, 1000, 5000]), st.lists(sendings, min_size=1, max_size=15),
    st.sampled_from([(), (), (), ("seal",), ("seal", "compact"), ("roll",)]),
)  # fmt: skip
questions = st.tuples(
    st.sampled_from([HOT, HOT, RARE]), st.sampled_from(["ever", "instant", "range", "borders"]), SHARES, SHARES,
    st.sampled_from([1, 2, 5, 40]), st.sampled_from(TimeAxis), st.sampled_from(Order),
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of walking through a key is taken, and ends between any two items."""
    for module, name, most in (
        (snapshot, "_SHORT_CHAIN", 3), (snapshot, "_MOST_STEPS", 2), (hot_search, "_STEP", 3),
        (hot_search, "_KEY_STEP", 4), (segment_search, "_DIRECTORY_SHARE", 0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, most)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(batches, min_size=2, max_size=8), st.lists(questions, min_size=1, max_size=5), st.sampled_from([1, 50]),
    st.sampled_from([20, 300, 300]), st.sampled_from([None, None, "middle", "end"]),
)  # fmt: skip
def test_every_page_of_a_hot_key_is_that_of_a_plain_list(
    sent: list[tuple[int, list[Sending], tuple[str, ...]]],
    asked: list[tuple[str, str, float, float, int, TimeAxis, Order]],
    slots: int,
    items: int,
    archived_at: str | None,
) -> None:
    shared = SharedBucket(Sizes(slots=slots, items=items))
    store = shared.stores[0]
    for number, (step_ms, batch, then) in enumerate(sent, 1):
        shared.clock.advance(step_ms)
        store.append(batch)
        for step in then:
            getattr(store, step)()
        if archived_at == ("end" if number == len(sent) else "middle" if number == len(sent) // 2 else ""):
            store.drop_hot()
    store.dispatch()
    held = store.held()
    for key, kind, first, second, limit, axis, order in asked:
        query = Query(T, key, *shared.window(kind, first, second, axis), limit=limit, axis=axis, order=order)
        check_all_pages(store.engine.query, query, held, shared.tally)
