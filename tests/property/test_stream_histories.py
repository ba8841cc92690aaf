"""Whatever happens to a store and to a query that streams it: every message once, in the order of its queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.streamed_store import by_queue, streamed

TOPICS = ["orders", "pays"]

appends = st.tuples(st.just("append"), st.sampled_from(TOPICS), st.integers(0, 3), st.integers(1, 25))
others = st.sampled_from(["archive", "drop hot", "trigger", "kill between plan and commit", "restart", "available now"])
histories = st.lists(appends | others.map(lambda name: (name, "", 0, 0)), min_size=4, max_size=16)


@pytest.mark.parametrize(
    "source", ["cold", *(pytest.param(source, marks=pytest.mark.slow) for source in ("url", "cold+url"))]
)
@settings(max_examples=8)
@given(history=histories, limit=st.sampled_from([None, 7, 50]))
def test_every_message_once_in_the_order_of_its_queue(
    source: str, history: list[tuple[str, str, int, int]], limit: int | None
) -> None:
    options = {} if limit is None else {"maxMessagesPerTrigger": str(limit)}
    with streamed(source, **options) as store:
        store.append("orders", 0, 1)
        store.engine.archive(everything=True)  # so that there is an archive to name
        for step in history:
            store.step(*step)
        store.engine.archive(everything=True)
        store.query.until_quiet()
        assert by_queue(store.query.everything()) == by_queue(store.expected)
        if limit is not None:
            assert max(len(rows) for rows in store.query.rows) <= limit
