"""Offsets of a stream: what a checkpoint keeps of them, declared gaps, limits, and ranges cut for tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.pipeline.source.stream_offsets import (
    INITIAL,
    Gaps,
    QueueKey,
    QueueRange,
    StreamOffset,
    messages_between,
    offset_after,
    pieces_of,
    present,
    ranges_between,
    shares,
)
from tierlog.tiering.base.errors import InvalidRequestError, UnsupportedFormatError

KEYS = [QueueKey(store, topic, queue) for store in ("a", "b") for topic in ("t", "u-2") for queue in (0, 2, 10)]
offsets = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 1 << 60))


@st.composite
def gaps(draw: st.DrawFn) -> Gaps:
    edges = draw(st.lists(st.integers(0, 60), unique=True).map(sorted))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


@given(offsets, offsets, st.booleans())
def test_an_offset_survives_the_checkpoint_and_has_one_text(
    following: dict[QueueKey, int], met: dict[QueueKey, int], has_begun: bool
) -> None:
    offset = StreamOffset(following, met, has_begun)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    turned = StreamOffset(dict(reversed(following.items())), dict(reversed(met.items())), has_begun)
    assert json.dumps(turned.to_json()) == text  # Spark compares texts to see whether there is something new


@pytest.mark.parametrize("value", [{}, {"version": 1}, {"version": 1, "begun": True, "next": {"s": 3}}, {"offset": 7}])
def test_the_checkpoint_of_another_source_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="no offsets of tierlog"):
        StreamOffset.from_json(value)


def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        StreamOffset.from_json({**INITIAL.to_json(), "version": 2})


def test_a_batch_reads_what_lies_between_its_offsets_and_begins_new_queues_where_it_met_them() -> None:
    old, new, idle = KEYS[:3]
    start = StreamOffset({old: 5, idle: 9}, {old: 2})
    end = StreamOffset({old: 8, idle: 9, new: 30}, {new: 20})
    assert ranges_between(start, end) == [QueueRange(old, 5, 8), QueueRange(new, 20, 30)]
    assert ranges_between(end, end) == []
    assert ranges_between(INITIAL, StreamOffset({old: 5, new: 4}, {old: 2, new: 4})) == [QueueRange(old, 2, 5)]


@given(st.integers(0, 60), st.integers(0, 60), gaps(), st.integers(0, 70))
def test_offsets_in_gaps_count_for_nothing(first: int, following: int, missing: Gaps, count: int) -> None:
    there = [at for at in range(first, following) if not any(begin <= at < end for begin, end in missing)]
    assert [at for begin, end in present(first, following, missing) for at in range(begin, end)] == there
    assert messages_between(first, following, missing) == len(there)
    if first <= following:
        after = offset_after(first, following, missing, count)
        assert first <= after <= following
        assert messages_between(first, after, missing) == min(count, len(there))
        if count >= len(there):
            assert after == following  # over a gap at the end too, or the stream would never reach it


def test_a_batch_that_ends_where_a_gap_begins_goes_on() -> None:
    """It ended where it began, and so did all after it."""
    assert offset_after(21, (1 << 32) + 5, ((28, 1 << 32),), 7) == 28
    assert offset_after(28, (1 << 32) + 5, ((28, 1 << 32),), 7) == (1 << 32) + 5


@given(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 1 << 40)), st.integers(1, 1 << 41))
def test_a_limit_is_used_up_and_never_passed(backlogs: dict[QueueKey, int], limit: int) -> None:
    found = shares(backlogs, limit)
    assert sum(found.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= found[key] <= backlogs[key] for key in backlogs)


def test_a_quiet_queue_does_not_starve_beside_a_busy_one() -> None:
    busy, quiet = KEYS[:2]
    assert shares({busy: 1_000_000, quiet: 1}, 10)[quiet] == 1


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 50), st.integers(1, 90)), max_size=8), st.integers(1, 70)
)
def test_pieces_are_the_ranges_in_their_order(given_ranges: list[tuple[QueueKey, int, int]], size: int) -> None:
    ranges = [QueueRange(key, first, first + count) for key, first, count in given_ranges]
    pieces = list(pieces_of(ranges, size))
    flat = [(key, at) for piece in pieces for key, first, following in piece for at in range(first, following)]
    assert flat == [(key, at) for key, first, following in ranges for at in range(first, following)]
    assert all(sum(one.next - one.first for one in piece) == size for piece in pieces[:-1])
