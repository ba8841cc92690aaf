"""100,000 published segments: the head stays small, and commit, refresh and look-up cost what they cost with 100."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.stores.big_archive import Asked, BigArchive, Costs

_HEAD_LIMIT = 150_000


def check(small: Costs, big: Costs, count: int) -> None:
    """The big archive costs as much as the small one, but for the depth of its tree."""
    assert big.largest_head < _HEAD_LIMIT
    assert big.refresh_without_change == small.refresh_without_change == Asked(1, 0, 0)
    assert big.first_refresh.requests == small.first_refresh.requests == 1
    assert big.commits.requests <= 1.1 * small.commits.requests, "spilling rewrites a page or two more of the tree"
    assert big.commits.bytes_written <= 1.25 * small.commits.bytes_written
    assert big.look_up.requests <= 2, "one page of each level"
    assert big.look_up.bytes_read <= 60_000
    assert big.pull.requests <= 3 * count.bit_length()
    assert big.pull.bytes_read <= 150_000


@pytest.mark.slow
def test_costs_do_not_grow_with_the_archive() -> None:
    check(Costs(BigArchive(100)), Costs(BigArchive(5_000)), 5_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_costs_of_a_hundred_thousand_segments_are_those_of_a_hundred() -> None:
    big = Costs(BigArchive(100_000))
    check(Costs(BigArchive(100)), big, 100_000)
    assert big.kept_bytes <= 64 << 20, "a reader's memory is what its cache may take"


def test_the_head_of_ten_years_stays_under_its_limit() -> None:
    """880,000 segments in pages, and as many entries in the head as it ever holds; merged index objects are few."""
    archive = BigArchive(5_000)
    (node,) = archive.head.log_tree
    nodes = []
    for number in range(-(-880_000 // 256 // 256)):
        ref = replace(node.ref, key=node.ref.key[:-8] + archive.randomness.token_hex(4), crc32=number * 7919)
        nodes.append(replace(node, ref=ref, first=number << 46, next=(number + 1) << 46))
    while len(archive.head.log) + len(archive.head.index) < 199:
        archive.publish(1)
    head = replace(archive.head, log_tree=tuple(nodes))
    assert len(head.encode()) < _HEAD_LIMIT / 2
