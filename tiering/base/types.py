"""Small values that several modules pass around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: The first instant of the year 10000, in ms: no calendar says a later one, so a range up to it has no end.
END_OF_TIME_MS = 253_402_300_800_000


class TimeAxis(StrEnum):
    """One of a message's two times, as a query chooses it."""

    STORE = "store"
    BORN = "born"


class Order(StrEnum):
    """Direction of the total order (time_ms, store_id, physical_offset)."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Tier(StrEnum):
    """The tier that a message was read from."""

    HOT = "hot"
    COLD = "cold"


class Durability(StrEnum):
    """The moment at which an append is acknowledged."""

    ASYNC = "async"
    FLUSHED = "flushed"
    ARCHIVED = "archived"


class Visibility(StrEnum):
    """The part of the log that readers see: what a power cut cannot take back, or all that was written."""

    FLUSHED = "flushed"
    WRITTEN = "written"


class PullStatus(StrEnum):
    """Expected outcomes of a pull."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_TOO_LARGE = "OFFSET_TOO_LARGE"


class Boundary(StrEnum):
    """The end of a run of equal store times that an offset by time means."""

    LOWER = "lower"
    UPPER = "upper"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Half-open ``[from_ms, to_ms)``."""

    from_ms: int
    to_ms: int

    @classmethod
    def asked(cls, from_ms: int, to_ms: int) -> TimeRange:
        """The range that somebody asks for: from 0 and up to :data:`END_OF_TIME_MS` stand for ends that are open.

        Records may have earlier and later times than people can say, from clients that send microseconds or whose
        clock is wrong.
        """
        return cls(from_ms or EVER.from_ms, EVER.to_ms if to_ms == END_OF_TIME_MS else to_ms)

    def overlaps(self, min_ms: int, max_ms: int) -> bool:
        """Whether any instant of the inclusive ``[min_ms, max_ms]`` lies inside."""
        return min_ms < self.to_ms and max_ms >= self.from_ms

    def contains(self, time_ms: int) -> bool:
        return self.from_ms <= time_ms < self.to_ms


#: Every time that a record can say, in ms.
EVER = TimeRange(-(1 << 63), 1 << 63)
#: The same as inclusive bounds.
ALL_TIME = (EVER.from_ms, EVER.to_ms - 1)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Inclusive least and greatest of both times over some records."""

    min_store_ms: int
    max_store_ms: int
    min_born_ms: int
    max_born_ms: int

    def on(self, axis: TimeAxis) -> tuple[int, int]:
        """(least, greatest) on one axis."""
        if axis is TimeAxis.STORE:
            return self.min_store_ms, self.max_store_ms
        return self.min_born_ms, self.max_born_ms

    def union(self, other: TimeBounds) -> TimeBounds:
        return TimeBounds(
            min(self.min_store_ms, other.min_store_ms),
            max(self.max_store_ms, other.max_store_ms),
            min(self.min_born_ms, other.min_born_ms),
            max(self.max_born_ms, other.max_born_ms),
        )


def uncovered(covered: Iterable[tuple[int, int]], first: int, end: int) -> list[tuple[int, int]]:
    """Returns the parts of ``[first, end)`` that none of the ranges ``covered`` touches, ascending."""
    missing = []
    for start, stop in sorted(covered):
        if first >= end:
            break
        if start > first:
            missing.append((first, min(start, end)))
        first = max(first, stop)
    if first < end:
        missing.append((first, end))
    return missing


def count_present(start: int, end: int, gaps: Iterable[tuple[int, int]] | None) -> int | None:
    """Counts the offsets in ``[start, end)`` that lie in none of the ``gaps``, half-open ranges that do not overlap.

    None if it is not known which gaps there are: then nobody knows the count either.
    """
    if gaps is None:
        return None
    missing = sum(max(0, min(end, following) - max(start, first)) for first, following in gaps)
    return max(0, end - start) - missing
