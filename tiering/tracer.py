"""What the code says about what it is doing, for whoever follows single requests; by default nobody does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Value = str | int | float | bool


class Span(Protocol):
    """One thing that is being done."""

    #: Of the trace that it belongs to, None if nobody follows it.
    trace_id: str | None

    def tell(self, **facts: Value) -> None:
        """Say more about it; never keys, bodies or names that a client chose."""
        ...

    def rename(self, name: str) -> None:
        """Call it by what is known of it by now."""
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

    def tell(self, **facts: Value) -> None:
        pass


class NoTracer:
    """Follows nothing, at no cost to speak of."""

    _NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        """Nothing."""
        return self._NOTHING

    def joined(self, traceparent: str | None) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()


NO_TRACER = NoTracer()
