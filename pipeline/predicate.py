"""What of an archive is wanted, in a form that goes with every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.rows import key_pairs, shown_ms
from tiering.cold.segment.reader import DirectoryRow
from tiering.message import StoredMessage
from tiering.types import TimeRange


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

    def may_match(self, run: DirectoryRow) -> bool:
        """Whether any record of a run may fit."""
        return (
            (self.topics is None or run.topic in self.topics)
            and (self.queue_ids is None or run.queue_id in self.queue_ids)
            and self.queue_offsets.overlaps(run.first_queue_offset, run.first_queue_offset + run.records - 1)
            and self.stored.overlaps(shown_ms(run.min_store_ms), shown_ms(run.max_store_ms))
            and self.born.overlaps(shown_ms(run.min_born_ms), shown_ms(run.max_born_ms))
        )

    def matches(self, message: StoredMessage) -> bool:
        """Whether a message fits, but for its keys, of which :meth:`with_keys` knows."""
        record = message.record
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
