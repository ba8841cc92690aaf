"""What of an archive is wanted, in a form that goes with every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.rows import FIRST_SHOWN_MS, LAST_SHOWN_MS, key_pairs, shown_ms
from tiering.format.record import Record
from tiering.types import TimeRange

IntArray = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open ``[first, end)``; None on a side: no bound."""

    first: int | None = None
    end: int | None = None

    def contains(self, value: int) -> bool:
        """Whether a number lies inside."""
        return (self.first is None or value >= self.first) and (self.end is None or value < self.end)

    def overlaps(self, least: int, greatest: int) -> bool:
        """Whether any number of the inclusive ``[least, greatest]`` may lie inside."""
        return (self.first is None or greatest >= self.first) and (self.end is None or least < self.end)

    def meet(self, other: Span) -> Span:
        """What lies in both."""
        firsts = [first for first in (self.first, other.first) if first is not None]
        ends = [end for end in (self.end, other.end) if end is not None]
        return Span(max(firsts, default=None), min(ends, default=None))

    def overlap(self, least: IntArray, greatest: IntArray) -> NDArray[np.bool_]:
        """:meth:`overlaps` of many ranges."""
        found = np.ones(len(least), bool)
        if self.first is not None:
            found &= greatest >= self.first
        if self.end is not None:
            found &= least < self.end
        return found


ANY = Span()


@dataclass(frozen=True, slots=True)
class Predicate:
    """Messages that fit every part; None and :data:`ANY` mean that the part does not matter.

    Times are in ms, compared as rows show them (``pipeline.rows``). A message fits ``keys`` if it is found by any of
    them, which in the view ``keys`` leaves rows of its other keys too.
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    queue_offsets: Span = ANY
    physical_offsets: Span = ANY
    stored: Span = ANY
    born: Span = ANY
    keys: frozenset[str] | None = None

    @classmethod
    def of(cls, topics: Sequence[str] = (), stored: TimeRange | None = None) -> Predicate:
        """Topics, none meaning all, and a range of store times."""
        within = ANY if stored is None else Span(stored.from_ms, stored.to_ms)
        return cls(topics=frozenset(topics) or None, stored=within)

    def may_match(self, runs: Mapping[str, IntArray] | NDArray[np.void], counts: IntArray) -> NDArray[np.bool_]:
        """Whether any record of each run of consecutive queue offsets may fit, of whatever topic it is.

        ``runs`` has the columns that queue rows and directories share, ``counts`` the records of each.
        """
        first = runs["first_queue_offset"]
        found = self.queue_offsets.overlap(first, first + counts - 1)
        if self.queue_ids is not None:
            found &= np.isin(runs["queue_id"], list(self.queue_ids))
        for span, axis in ((self.stored, "store"), (self.born, "born")):
            if span != ANY:
                found &= span.overlap(*(_shown(runs[f"{end}_{axis}_ms"]) for end in ("min", "max")))
        return found

    def matches(self, record: Record) -> bool:
        """Whether a record fits, but for its keys, of which :meth:`with_keys` knows."""
        return (
            (self.topics is None or record.topic in self.topics)
            and (self.queue_ids is None or record.queue_id in self.queue_ids)
            and self.queue_offsets.contains(record.queue_offset)
            and self.physical_offsets.contains(record.physical_offset)
            and self.stored.contains(shown_ms(record.store_ms))
            and self.born.contains(shown_ms(record.born_ms))
        )

    def with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch of the view ``messages`` that fit ``keys``."""
        if self.keys is None:
            return batch
        rows, texts = key_pairs(batch)
        found = rows.filter(pc.is_in(texts, value_set=pa.array(sorted(self.keys), pa.string())))
        return batch.take(found.unique())


EVERYTHING = Predicate()


def _shown(times_ms: IntArray) -> IntArray:
    return np.clip(times_ms, FIRST_SHOWN_MS, LAST_SHOWN_MS)
