"""Filters that Spark pushes down, as bounds on what has to be looked at.

Every filter goes back to Spark, which evaluates it on the rows: what is used here only keeps out what cannot fit, so
results never depend on what was pushed. Columns are never null, and a comparison with null keeps nothing: Spark
answers that alone, and nothing is made of it here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pipeline.predicate import ANY, EVERYTHING, Predicate, Span
from pipeline.source.options import View

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SETS = {"topic": ("topics", str), "queue_id": ("queue_ids", int), "key": ("keys", str)}
_NUMBERS = {"queue_offset": "queue_offsets", "physical_offset": "physical_offsets"}
_TIMES = {"store_time": "stored", "born_time": "born"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a query can want at most."""

    predicate: Predicate = EVERYTHING
    store_ids: frozenset[str] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter], view: View) -> Pushed:
        """What the filters leave together; those that nothing can be made of leave everything."""
        found = cls()
        for each in filters:
            found = found._narrowed(each, view)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no row can fit."""
        values = [getattr(self.predicate, field.name) for field in fields(Predicate)]
        return any(_is_empty(value) for value in (*values, self.store_ids))

    def wants_store(self, store_id: str) -> bool:
        """Whether rows of a store can fit."""
        return self.store_ids is None or store_id in self.store_ids

    def _narrowed(self, given: Filter, view: View) -> Pushed:
        column, least, greatest, among = _bounds(given)
        if column is None or (column == "key" and view is not View.KEYS):
            return self
        if column == "store_id":
            chosen = _those(among, str)
            return self if chosen is None else replace(self, store_ids=_both(self.store_ids, chosen))
        if column in _SETS:
            name, kind = _SETS[column]
            chosen = _those(among, kind)
            if chosen is None:
                return self
            return self._with(name, _both(getattr(self.predicate, name), chosen))
        if column in _NUMBERS:
            span = _number_span(least, greatest, among)
            return self._meeting(_NUMBERS[column], span)
        if column in _TIMES:
            return self._meeting(_TIMES[column], _time_span(least, greatest, among))
        return self

    def _meeting(self, name: str, span: Span | None) -> Pushed:
        return self if span is None else self._with(name, getattr(self.predicate, name).meet(span))

    def _with(self, name: str, value: Any) -> Pushed:
        return replace(self, predicate=replace(self.predicate, **{name: value}))


@dataclass(frozen=True, slots=True)
class _Edge:
    """One side of a comparison."""

    value: Any
    is_inside: bool


def _bounds(given: Filter) -> tuple[str | None, _Edge | None, _Edge | None, tuple[Any, ...] | None]:
    """(column, least, greatest, values) of a filter that says something of one column's value."""
    match given:
        case EqualTo((column,), value) | EqualNullSafe((column,), value) if value is not None:
            return column, None, None, (value,)
        case In((column,), values):
            return column, None, None, tuple(value for value in values if value is not None)
        case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value) if value is not None:
            return column, _Edge(value, isinstance(given, GreaterThanOrEqual)), None, None
        case LessThan((column,), value) | LessThanOrEqual((column,), value) if value is not None:
            return column, None, _Edge(value, isinstance(given, LessThanOrEqual)), None
    return None, None, None, None


def _those(among: tuple[Any, ...] | None, kind: type) -> frozenset[Any] | None:
    """The values to choose from; None if they are none that the column can be compared with here."""
    if among is None or not all(type(value) is kind for value in among):
        return None
    return frozenset(among)


def _number_span(least: _Edge | None, greatest: _Edge | None, among: tuple[Any, ...] | None) -> Span | None:
    values = [edge.value for edge in (least, greatest) if edge] + list(among or ())
    if not all(type(value) is int for value in values):
        return None
    if among is not None:
        return Span(min(among), max(among) + 1) if among else Span(0, 0)
    first = None if least is None else least.value + (not least.is_inside)
    end = None if greatest is None else greatest.value + greatest.is_inside
    return Span(first, end)


def _time_span(least: _Edge | None, greatest: _Edge | None, among: tuple[Any, ...] | None) -> Span | None:
    """Ms that may fit: a row's time is a whole ms, what it is compared with has microseconds."""
    values = [edge.value for edge in (least, greatest) if edge] + list(among or ())
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return None  # without a zone it is no instant
    if among is not None:
        whole = [ms for ms, beyond in map(_ms_and_rest, among) if not beyond]
        return Span(min(whole), max(whole) + 1) if whole else Span(0, 0)
    first = end = None
    if least is not None:
        ms, beyond = _ms_and_rest(least.value)
        first = ms + (beyond > 0 or not least.is_inside)
    if greatest is not None:
        ms, beyond = _ms_and_rest(greatest.value)
        end = ms + (beyond > 0 or greatest.is_inside)
    return Span(first, end)


def _ms_and_rest(moment: datetime) -> tuple[int, int]:
    """Whole ms since the epoch, floored, and the microseconds beyond."""
    return divmod((moment - _EPOCH) // _MICROSECOND, 1000)


def _both(before: frozenset[Any] | None, chosen: frozenset[Any]) -> frozenset[Any]:
    return chosen if before is None else before & chosen


def _is_empty(value: object) -> bool:
    if isinstance(value, Span):
        return value != ANY and value.first is not None and value.end is not None and value.first >= value.end
    return value is not None and not value
