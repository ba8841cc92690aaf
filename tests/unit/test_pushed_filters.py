"""Pushed filters keep every row that fits, and name what they rule out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pipeline.predicate import ANY, Predicate, Span
from pipeline.source.options import View
from pipeline.source.pushed import Pushed

BERLIN = timezone(timedelta(hours=1))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(microseconds: int, zone: timezone = UTC) -> datetime:
    return (EPOCH + timedelta(microseconds=microseconds)).astimezone(zone)


def pushed(*filters: Filter, view: View = View.KEYS) -> Pushed:
    return Pushed.of(filters, view)


@pytest.mark.parametrize("moment", [0, 1, 999, 1000, 1001, 5_000_000, -1, -999, -1000, -1001, -1_000_500])
@pytest.mark.parametrize("kind", [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
def test_a_time_is_compared_to_the_microsecond(kind: type[Any], moment: int) -> None:
    """The span of ms holds exactly those whose instant fits the comparison."""
    operators = {
        EqualTo: int.__eq__, EqualNullSafe: int.__eq__, GreaterThan: int.__gt__, GreaterThanOrEqual: int.__ge__,
        LessThan: int.__lt__, LessThanOrEqual: int.__le__,
    }  # fmt: skip
    found = pushed(kind(("store_time",), at(moment, BERLIN)))
    ms = moment // 1000
    for time_ms in range(ms - 3, ms + 4):
        assert found.predicate.stored.contains(time_ms) == operators[kind](time_ms * 1000, moment)


def test_every_column_has_its_part() -> None:
    found = pushed(
        IsNotNull(("topic",)), EqualTo(("topic",), "orders"), In(("key",), ("a", "b", None)), EqualTo(("queue_id",), 3),
        GreaterThan(("queue_offset",), 10), LessThanOrEqual(("physical_offset",), 99),
        GreaterThanOrEqual(("store_time",), at(5_000_000)), LessThan(("born_time",), at(6_000_001)),
        EqualTo(("store_id",), "s"),
    )  # fmt: skip
    assert found == Pushed(
        Predicate(
            frozenset({"orders"}), frozenset({3}), Span(11, None), Span(None, 100), Span(5000, None), Span(None, 6001),
            frozenset({"a", "b"}),
        ),
        frozenset({"s"}),
    )  # fmt: skip
    assert found.wants_store("s")
    assert not found.wants_store("t")


def test_filters_meet() -> None:
    found = pushed(
        In(("topic",), ("a", "b")), In(("topic",), ("b", "c")), GreaterThan(("queue_offset",), 3),
        LessThan(("queue_offset",), 9), In(("queue_offset",), (1, 5, 20)),
    )  # fmt: skip
    assert found.predicate == Predicate(topics=frozenset("b"), queue_offsets=Span(4, 9))
    assert not found.is_empty


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("topic",), "a"), EqualTo(("topic",), "b")],
        [In(("key",), ())],
        [In(("key",), (None,))],
        [GreaterThan(("queue_offset",), 5), LessThan(("queue_offset",), 6)],
        [EqualTo(("store_time",), at(1))],
        [EqualTo(("store_id",), "a"), EqualTo(("store_id",), "b")],
    ],
)
def test_what_contradicts_itself_is_empty(filters: list[Filter]) -> None:
    assert pushed(*filters).is_empty


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("topic",), None), EqualTo(("tier",), "cold"), EqualTo(("queue_offset",), 1.5),
        EqualTo(("queue_offset",), True), EqualTo(("store_time",), datetime(2026, 1, 1)),
        Not(EqualTo(("topic",), "a")), IsNull(("topic",)), EqualTo(("properties", "a"), "b"),
        StringStartsWith(("topic",), "a"), GreaterThan(("topic",), "a"), LessThan(("queue_id",), 3),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_understood_leaves_everything(given: Filter) -> None:
    assert pushed(given) == Pushed()


def test_a_key_is_a_column_of_one_view_only() -> None:
    assert pushed(EqualTo(("key",), "a"), view=View.MESSAGES) == Pushed()


def test_no_bound_is_not_empty() -> None:
    assert pushed().predicate.stored is ANY
    assert not pushed().is_empty
