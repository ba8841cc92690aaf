"""Numbers that are counted where things happen and read by whoever shows them: tallies and histograms.

Nothing here knows who reads. Counting takes a lock for less than a microsecond, so that a hot path can afford it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

#: Upper bounds in s of what a disk or a bucket takes: three steps a decade.
LATENCY_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Upper bounds of small numbers of things.
COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A histogram at one moment: how many observations fell up to each bound, the last number being all of them."""

    bounds: Sequence[float]
    cumulative: Sequence[int]
    total: float

    @property
    def count(self) -> int:
        """Observations so far."""
        return self.cumulative[-1]


class Histogram:
    """Counts observations by fixed upper bounds, which are inclusive. Thread safe; nothing ever falls."""

    __slots__ = ("_bounds", "_counts", "_lock", "_total")

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def reading(self) -> HistogramReading:
        """All counts at once."""
        with self._lock:
            counts, total = list(self._counts), self._total
        for place in range(1, len(counts)):
            counts[place] += counts[place - 1]
        return HistogramReading(self._bounds, counts, total)


class Histograms:
    """A histogram for each combination of labels that occurs. Thread safe."""

    __slots__ = ("_bounds", "_found", "_lock")

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self._bounds = bounds
        self._found: dict[Labels, Histogram] = {}
        self._lock = threading.Lock()

    def observe(self, labels: Labels, value: float) -> None:
        """Count one observation under its labels, of which there must be few."""
        found = self._found.get(labels)
        if found is None:
            with self._lock:
                found = self._found.setdefault(labels, Histogram(self._bounds))
        found.observe(value)

    def reading(self) -> dict[Labels, HistogramReading]:
        """Every combination seen so far."""
        with self._lock:
            found = dict(self._found)
        return {labels: histogram.reading() for labels, histogram in found.items()}


class Tally:
    """A sum for each combination of labels that occurs. Thread safe; sums only rise."""

    __slots__ = ("_lock", "_sums")

    def __init__(self) -> None:
        self._sums: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add to the sum of these labels, of which there must be few."""
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + amount

    def reading(self) -> dict[Labels, float]:
        """Every sum at one moment."""
        with self._lock:
            return dict(self._sums)
