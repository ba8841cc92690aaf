"""Predicates of messages, in a form that goes to executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tierlog.pipeline.read.views import FIRST_SHOWN_MS, LAST_SHOWN_MS, shown_ms
from tierlog.tiering.base.types import TimeRange
from tierlog.tiering.format.generation import Generation, record_topic
from tierlog.tiering.format.record import Record
from tierlog.tiering.message.arrow_schema import key_pairs

IntArray = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Half-open ``[first, end)``; None on a side: no bound."""

    first: int | None = None
    end: int | None = None

    def contains(self, value: int) -> bool:
        """Whether a number lies inside."""
        return (self.first is None or value >= self.first) and (self.end is None or value < self.end)

    def overlaps(self, least: int, greatest: int) -> bool:
        """Whether any number of the inclusive ``[least, greatest]`` may lie inside."""
        return (self.first is None or greatest >= self.first) and (self.end is None or least < self.end)

    def meet(self, other: ValueRange) -> ValueRange:
        """Returns the range of what lies in both."""
        firsts = [first for first in (self.first, other.first) if first is not None]
        ends = [end for end in (self.end, other.end) if end is not None]
        return ValueRange(max(firsts, default=None), min(ends, default=None))

    def overlap(self, least: IntArray, greatest: IntArray) -> NDArray[np.bool_]:
        """Returns :meth:`overlaps` of many ranges."""
        found = np.ones(len(least), bool)
        if self.first is not None:
            found &= greatest >= self.first
        if self.end is not None:
            found &= least < self.end
        return found


ANY = ValueRange()


@dataclass(frozen=True, slots=True)
class Predicate:
    """Messages that fit every part; None and :data:`ANY` mean that the part does not matter.

    Times are in ms, compared as rows show them (``pipeline.read.views``). A message fits ``keys`` if it is found by any
    of them, and ``tags`` if it has one of them.
    """

    topics: frozenset[str] | None = None
    physical_offsets: ValueRange = ANY
    stored: ValueRange = ANY
    keys: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    generations: tuple[Generation, ...] | None = None
    """Those of the topics, in one store; None: all."""

    @classmethod
    def of(cls, topics: Sequence[str] = (), stored: TimeRange | None = None) -> Predicate:
        """Returns the predicate of topics, none meaning all, and a range of store times."""
        within = ANY if stored is None else ValueRange(stored.from_ms, stored.to_ms)
        return cls(topics=frozenset(topics) or None, stored=within)

    def within(self, physical_offsets: ValueRange) -> Predicate:
        """Returns the same predicate for fewer records."""
        return replace(self, physical_offsets=self.physical_offsets.meet(physical_offsets))

    def includes_entry(self, name: str) -> bool:
        """Whether the entry of a topic, or of a generation, may have a record that fits."""
        if self.generations is not None:
            return any(each.name == name for each in self.generations)
        return self.topics is None or record_topic(name) in self.topics

    def may_match(self, runs: Mapping[str, IntArray] | NDArray[np.void]) -> NDArray[np.bool_]:
        """Whether any record of each run may fit, of whatever topic it is, by the bounds of their store times."""
        return self.stored.overlap(_shown(runs["min_store_ms"]), _shown(runs["max_store_ms"]))

    def matches(self, record: Record) -> bool:
        """Whether a record fits, but for its keys and its tag, of which :meth:`chosen` knows."""
        return (
            (self.topics is None or record.topic in self.topics)
            and self._is_of_generations(record)
            and self.physical_offsets.contains(record.physical_offset)
            and self.stored.contains(shown_ms(record.store_ms))
        )

    def _is_of_generations(self, record: Record) -> bool:
        return self.generations is None or any(
            record_topic(each.name) == record.topic and each.begin <= record.physical_offset < each.end
            for each in self.generations
        )

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch of the view ``messages`` that fit ``keys`` and ``tags``."""
        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch.column("tag"), value_set=_texts(self.tags)))
        if self.keys is not None:
            rows, texts = key_pairs(batch)
            batch = batch.take(rows.filter(pc.is_in(texts, value_set=_texts(self.keys))).unique())
        return batch


EVERYTHING = Predicate()


def _texts(values: frozenset[str]) -> pa.Array:
    return pa.array(sorted(values), pa.string())


def _shown(times_ms: IntArray) -> IntArray:
    return np.clip(times_ms, FIRST_SHOWN_MS, LAST_SHOWN_MS)
