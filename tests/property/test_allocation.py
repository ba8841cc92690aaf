"""Average allocation: every queue goes to one member, in shares that differ by one, whoever computes it."""

from __future__ import annotations

import random
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from service.allocation import allocate

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
    found = allocate({"t": queues}, {member: ["t"] for member in members})
    for member in members:
        assert [queue_id for _, queue_id in found[member]] == by_the_formula(queues, sorted(members), member)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40), max_size=4),
    st.dictionaries(st.text("0123456789", min_size=1, max_size=3), st.sets(st.sampled_from("abcd")), max_size=9),
    st.randoms(use_true_random=False),
)
def test_every_queue_goes_to_one_member_that_wants_it_in_even_shares(
    counts: dict[str, int], subscriptions: dict[str, set[str]], chance: random.Random
) -> None:
    found = allocate(counts, subscriptions)
    assert found.keys() == subscriptions.keys()
    for topic, queues in counts.items():
        readers = {member for member, topics in subscriptions.items() if topic in topics}
        shares = {member: [queue_id for each, queue_id in given if each == topic] for member, given in found.items()}
        assert all(not share for member, share in shares.items() if member not in readers)
        assert sorted(chain.from_iterable(shares.values())) == (list(range(queues)) if readers else [])
        sizes = {len(shares[member]) for member in readers}
        assert not sizes or max(sizes) - min(sizes) <= 1
    shuffled = list(subscriptions.items())
    chance.shuffle(shuffled)
    assert allocate(dict(reversed(counts.items())), {key: sorted(topics) for key, topics in shuffled}) == found
