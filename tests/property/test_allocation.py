"""Average allocation: every queue goes to one member, in shares that differ by one, whoever computes it."""

from __future__ import annotations

import random
from itertools import chain, product

from hypothesis import given
from hypothesis import strategies as st

from tierlog.service.engine.groups import allocate

MEMBERS = st.lists(st.text("abcdef0123456789", min_size=1, max_size=4), unique=True, min_size=1, max_size=12)


def by_the_formula(queues: int, members: list[str], member: str) -> list[int]:
    """RocketMQ's own arithmetic: index, modulus, average size, start, range."""
    index, modulus = members.index(member), queues % len(members)
    if queues <= len(members):
        size = 1
    else:
        size = queues // len(members) + (1 if modulus > 0 and index < modulus else 0)
    start = index * size if modulus > 0 and index < modulus else index * size + modulus
    return [(start + at) % queues for at in range(min(size, queues - start))]


@given(st.integers(0, 64), MEMBERS)
def test_it_is_what_rocketmq_computes(queues: int, members: list[str]) -> None:
    found = allocate({"t": {"s": queues}}, {member: ["t"] for member in members})
    for member in members:
        assert [queue_id for _, _, queue_id in found[member]] == by_the_formula(queues, sorted(members), member)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "b-2"]), st.integers(0, 20)), MEMBERS)
def test_queues_of_all_stores_are_shared_as_rocketmq_shares_those_of_all_brokers(
    stores: dict[str, int], members: list[str]
) -> None:
    queues = [("t", store, queue_id) for store in sorted(stores) for queue_id in range(stores[store])]
    found = allocate({"t": stores}, {member: ["t"] for member in members})
    for member in members:
        assert found[member] == [queues[at] for at in by_the_formula(len(queues), sorted(members), member)]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 20)), max_size=4),
    st.dictionaries(st.text("0123456789", min_size=1, max_size=3), st.sets(st.sampled_from("abcd")), max_size=9),
    st.randoms(use_true_random=False),
)
def test_every_queue_goes_to_one_member_that_wants_it_in_even_shares(
    counts: dict[str, dict[str, int]], subscriptions: dict[str, set[str]], chance: random.Random
) -> None:
    found = allocate(counts, subscriptions)
    assert found.keys() == subscriptions.keys()
    for topic, stores in counts.items():
        queues = [queue for store, count in sorted(stores.items()) for queue in product([store], range(count))]
        readers = {member for member, topics in subscriptions.items() if topic in topics}
        shares = {member: [queue for each, *queue in given if each == topic] for member, given in found.items()}
        assert all(not share for member, share in shares.items() if member not in readers)
        assert sorted(chain.from_iterable(shares.values())) == ([*map(list, queues)] if readers else [])
        sizes = {len(shares[member]) for member in readers}
        assert not sizes or max(sizes) - min(sizes) <= 1
    shuffled = list(subscriptions.items())
    chance.shuffle(shuffled)
    turned = {topic: dict(reversed(stores.items())) for topic, stores in reversed(counts.items())}
    assert allocate(turned, {key: sorted(topics) for key, topics in shuffled}) == found
