"""Traces of single requests, and counters; the code that feeds them knows nothing of who reads them.

A :class:`Tracer` is for whoever follows single requests; by default nobody does. Tallies and histograms are counted
where things happen and read by whoever shows them. Counting takes a lock for less than a microsecond, so that a hot
path can afford it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

Value = str | int | float | bool
#: Upper bounds in s of what a disk or a bucket takes: three steps a decade.
LATENCY_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Upper bounds of small numbers of things.
COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Labels = tuple[str, ...]


class Span(Protocol):
    """A piece of work that is traced."""

    #: Of the trace that it belongs to, None if nobody follows it.
    trace_id: str | None

    def annotate(self, **facts: Value) -> None:
        """Says more about it; never keys, bodies or names that a client chose."""
        ...

    def rename(self, name: str) -> None:
        """Calls it by what is known of it by now."""
        ...


class Tracer(Protocol):
    """Follows what is done. Thread safe; it belongs to the span around it, on whichever thread that was begun."""

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        """Surrounds one thing; the class of an error that leaves the context is noted, and it passes on."""
        ...

    def joined(self, traceparent: str | None) -> AbstractContextManager[None]:
        """Inside the context, spans belong to the trace of a caller who sent this (W3C Trace Context)."""
        ...


class _NoSpan:
    trace_id: str | None = None

    def rename(self, name: str) -> None:
        pass

    def annotate(self, **facts: Value) -> None:
        pass


class NoTracer:
    """Follows nothing, at no cost to speak of."""

    _NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        return self._NOTHING

    def joined(self, traceparent: str | None) -> AbstractContextManager[None]:
        return nullcontext()


NO_TRACER = NoTracer()


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A histogram at one moment: how many observations fell up to each bound, the last number being all of them."""

    bounds: Sequence[float]
    cumulative: Sequence[int]
    total: float

    @property
    def count(self) -> int:
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
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def reading(self) -> HistogramReading:
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
        """Counts one observation under its labels, of which there must be few."""
        found = self._found.get(labels)
        if found is None:
            with self._lock:
                found = self._found.setdefault(labels, Histogram(self._bounds))
        found.observe(value)

    def reading(self) -> dict[Labels, HistogramReading]:
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
        """Adds to the sum of these labels, of which there must be few."""
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + amount

    def reading(self) -> dict[Labels, float]:
        with self._lock:
            return dict(self._sums)
