"""What tombstones hide, and what nobody reads out of one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.hot_stores import NOW_MS, record
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Tier, TimeBounds
from tierlog.tiering.format.manifest import Head, Tombstone, tombstone_from_json
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import Record
from tierlog.tiering.lifecycle.hidden_rows import hidden_rows
from tierlog.tiering.lifecycle.tombstones import (
    NOTHING_ERASED,
    Erasures,
    KnownErasures,
    is_for,
    make_tombstone,
    reaching,
)
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.waiting import HALF_TOPIC, TIMER_TOPIC

END = 10_000


def stone(
    topic: str = "orders",
    key: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    end: int = END,
    seed: int = 1,
) -> Tombstone:
    return make_tombstone(topic, key, from_ms=from_ms, to_ms=to_ms, end=end, randomness=SeededRandomness(seed))


def keyed(*keys: str, **changes: object) -> Record:
    text = encode_properties({"KEYS": " ".join(keys)}) if keys else b""
    return record(properties_text=text, **changes)


class Row:
    def __init__(self, topic: str, low: int, high: int) -> None:
        self.topic = topic
        self.bounds = TimeBounds(low, high, 0, 0)


def test_a_tombstone_hides_its_topic_only() -> None:
    erased = Erasures([stone()])
    assert erased.hides(record())
    assert not erased.hides(record(topic="other"))


def test_store_times_are_compared_to_the_millisecond() -> None:
    erased = Erasures([stone(from_ms=NOW_MS, to_ms=NOW_MS + 10)])
    hidden = [erased.hides(record(store_ms=NOW_MS + ms)) for ms in (-1, 0, 9, 10)]
    assert hidden == [False, True, True, False]
    assert Erasures([stone(to_ms=NOW_MS)]).hides(record(store_ms=-5))
    assert Erasures([stone(from_ms=NOW_MS)]).hides(record(store_ms=1 << 50))


def test_what_is_written_after_an_erasure_is_seen() -> None:
    erased = Erasures([stone(end=500)])
    assert erased.hides(record(physical_offset=499))
    assert not erased.hides(record(physical_offset=500))


def test_any_of_several_keys_and_the_clients_unique_key_are_erased() -> None:
    erased = Erasures([stone(key="k2")])
    assert erased.hides(keyed("k1", "k2"))
    assert not erased.hides(keyed("k1", "k22"))
    assert not erased.hides(keyed())
    assert erased.hides(record(properties_text=encode_properties({"UNIQ_KEY": "k2"})))


def test_a_tombstone_does_not_tell_its_key_and_no_two_hashes_of_one_key_are_alike() -> None:
    first, second = stone(key="customer-4711", seed=1), stone(key="customer-4711", seed=2)
    assert "4711" not in str(asdict(first))
    assert first.key_hash != second.key_hash
    assert len(first.key_hash or "") == 32
    assert Erasures([replace(first, salt=second.salt)]).hides(keyed("customer-4711")) is False


def test_one_tombstone_may_be_for_many_keys_and_is_read_back_as_it_was_written() -> None:
    made = make_tombstone(
        "orders", "k0", from_ms=None, to_ms=None, end=END, randomness=SeededRandomness(1), other_keys=["k1", "k2"]
    )
    read = tombstone_from_json(json.loads(json.dumps(asdict(made))))
    assert read == made
    erased = Erasures([read])
    assert [erased.hides(keyed(key)) for key in ("k0", "k1", "k2", "k3")] == [True, True, True, False]
    assert not erased.hides(keyed())
    assert pickle.loads(pickle.dumps(erased)).hides(keyed("k1")), "executors are given erasures"
    assert is_for(made, "orders", ["k2", "k0", "k1"], None, None)
    assert not is_for(made, "orders", ["k2", "k0"], None, None)
    assert not is_for(made, "orders", ["k0", "k1", "k3"], None, None)
    assert not is_for(made, "orders", ["k0", "k1", "k2"], 5, None)


def test_a_tombstone_of_before_there_were_many_keys_is_read() -> None:
    value = asdict(stone(key="k1"))
    del value["other_hashes"]
    assert Erasures([tombstone_from_json(value)]).hides(keyed("k1"))


def test_an_empty_range_of_times_is_refused() -> None:
    for from_ms, to_ms in ((5, 5), (6, 5)):
        with pytest.raises(InvalidRequestError, match="nothing lies between"):
            stone(from_ms=from_ms, to_ms=to_ms)


def test_runs_that_cannot_hold_anything_hidden_are_told_by_topic_and_time() -> None:
    erased = Erasures([stone(key="k", from_ms=100, to_ms=200)])
    rows = [Row("orders", 200, 300), Row("orders", 0, 99), Row("orders", 0, 100), Row("orders", 199, 500)]
    assert [erased.may_hide(row) for row in rows] == [False, False, True, True]
    assert not erased.may_hide(Row("other", 100, 199))


STONES = st.builds(
    lambda topic, key, times, end, seed: stone(topic, key, times[0], times[1], end, seed),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, "k1", "k2"]),
    st.one_of(
        st.tuples(st.none(), st.none()),
        st.tuples(st.integers(0, 4), st.integers(5, 9)),
        st.tuples(st.none(), st.integers(0, 9)),
    ),
    st.integers(0, 9),
    st.integers(0, 1000),
)


@given(
    st.lists(STONES, max_size=6),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.sampled_from(["k1", "k2", "k3"]), unique=True),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_several_tombstones_hide_what_any_of_them_hides(
    stones: list[Tombstone], topic: str, keys: list[str], store_ms: int, offset: int
) -> None:
    found = keyed(*keys, topic=topic, store_ms=store_ms, physical_offset=offset)
    assert Erasures(stones).hides(found) == any(Erasures([each]).hides(found) for each in stones)
    row = Row(topic, store_ms, store_ms)
    assert not Erasures(stones).hides(found) or Erasures(stones).may_hide(row)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from([None, "k1", "k2"]),
            st.sampled_from([(None, None), (0, 5), (3, 7), (None, 4), (6, None), (-(1 << 62), 1)]),
            st.integers(0, 9),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_whatever_the_salts_all_ways_to_ask_agree_with_what_was_erased(
    asked: list[tuple[str, str | None, tuple[int | None, int | None], int, bool]],
) -> None:
    stones: list[Tombstone] = []
    for number, (topic, key, times, end, shares) in enumerate(asked):
        beside = stones if shares else ()
        from_ms, to_ms = times
        stones.append(
            make_tombstone(
                topic, key, from_ms=from_ms, to_ms=to_ms, end=end, randomness=SeededRandomness(number), beside=beside
            )
        )
    erased = Erasures(stones)

    def meant(topic: str, store_ms: int, offset: int, keys: Sequence[str]) -> bool:
        return any(
            (of, offset < end) == (topic, True)
            and (key is None or key in keys)
            and (first is None or first <= store_ms)
            and (last is None or store_ms < last)
            for of, key, (first, last), end, _ in asked
        )

    places = list(product(range(-1, 9), range(10)))
    store_ms, offsets = (np.array(column, np.int64) for column in zip(*places, strict=True))
    for topic in ("a", "c"):
        hidden, by_key = erased.hidden_rows(topic, offsets, store_ms)
        covers = {key: erased.of_key(topic, key) for key in ("k1", "k3")}
        for at, (ms, offset) in enumerate(places):
            assert hidden[at] == meant(topic, ms, offset, ())
            assert by_key[at] == (not hidden[at] and meant(topic, ms, offset, ("k1", "k2")))
            for key, found in covers.items():
                expected = meant(topic, ms, offset, (key,))
                assert (hidden[at] or any(cover.has(offset, ms) for cover in found)) == expected
        for ms, offset, keys in ((0, 3, ("k1",)), (4, 8, ("k2", "k3")), (7, 0, ())):
            expected = meant(topic, ms, offset, keys)
            assert erased.hides(keyed(*keys, topic=topic, store_ms=ms, physical_offset=offset)) == expected
        for low, high in ((-5, -1), (0, 0), (5, 5), (2, 8)):
            expected = any(meant(topic, ms, 0, ("k1", "k2")) for ms in range(low, high + 1))
            assert erased.may_hide(Row(topic, low, high)) == expected


@given(
    st.lists(
        st.builds(
            lambda topic, key, times, end: stone(topic, key, times[0], times[1], end, 3),
            st.sampled_from(["a", "b", TIMER_TOPIC]),
            st.sampled_from([None, "k1", "k2"]),
            st.sampled_from([(None, None), (0, 5), (3, 7)]),
            st.integers(0, 9),
        ),
        max_size=4,
    ),
    st.sampled_from([TIMER_TOPIC, HALF_TOPIC, "c"]),
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "", HALF_TOPIC]),
            st.lists(st.sampled_from(["k1", "k2", "k3"]), unique=True),
            st.booleans(),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=5,
    ),
)
def test_what_waits_is_hidden_with_the_topic_that_it_is_for_whoever_asks(
    stones: list[Tombstone], topic: str, waiting: list[tuple[str, list[str], bool, int, int]]
) -> None:
    erased = Erasures(stones)
    records = []
    for real, keys, is_recall, store_ms, offset in waiting:
        asked = {"KEYS": " ".join(keys), "REAL_TOPIC": real, **({"TIMER_DEL_UNIQKEY": "k1"} if is_recall else {})}
        text = encode_properties({name: value for name, value in asked.items() if value})
        found = record(topic=topic, properties_text=text, store_ms=store_ms, physical_offset=offset)
        records.append(found)
        belongs = {topic} if topic == "c" or is_recall or real == HALF_TOPIC else {topic, real}
        expected = any(one.topic in belongs and offset < one.end and meant(one, keys, store_ms) for one in stones)
        assert erased.hides(found) == expected
        if expected:
            assert erased.concerns(topic)
            assert erased.may_hide(Row(topic, store_ms, store_ms))
            assert erased.end_of(topic) > offset
            assert Erasures(reaching(stones, topic)).hides(found)
    if records:
        batch = message_batch([StoredMessage(one, "s", Tier.HOT) for one in records], FOUND_SCHEMA)
        times = np.array([one.store_ms for one in records], np.int64)
        assert hidden_rows(batch, topic, times, erased).tolist() == [erased.hides(one) for one in records]


def meant(one: Tombstone, keys: Sequence[str], store_ms: int) -> bool:
    """Whether keys and time are those of a tombstone."""
    of_keys = one.key_hash is None or any(is_for(one, one.topic, [key], one.from_ms, one.to_ms) for key in keys)
    return of_keys and (one.from_ms is None or one.from_ms <= store_ms) and (one.to_ms is None or store_ms < one.to_ms)


class Seen:
    def __init__(self, *stones: Tombstone) -> None:
        self.head: Head | None = Head("s", "v", "o", 1, 1, "c", (), 0, 0, 0, tombstones=stones)


def test_the_saved_tombstones_hide_until_a_head_is_seen_and_beside_it() -> None:
    old, new = stone("a", seed=1), stone("b", seed=2)
    seen = Seen(new)
    known = KnownErasures(seen, [old])
    assert {each.topic for each in known.current().tombstones} == {"a", "b"}
    assert known.current() is known.current()
    seen.head = None
    assert known.current().hides(record(topic="a"))
    assert KnownErasures(None).current() is NOTHING_ERASED


def test_a_closed_tombstone_is_kept_until_no_hot_copy_is_left_below_its_end() -> None:
    seen = Seen(stone("b", seed=2))
    known = KnownErasures(seen, [stone("a", end=100, seed=1)])
    assert seen.head is not None
    assert [each.topic for each in known.to_save(seen.head, 99)] == ["a", "b"]
    assert [each.topic for each in known.to_save(seen.head, 100)] == ["b"]
    known.was_saved(known.to_save(seen.head, 100))
    assert [each.topic for each in known.current().tombstones] == ["b"]
