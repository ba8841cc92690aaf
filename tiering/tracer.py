"""What the code says about what it is doing, for whoever follows single requests; by default nobody does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Value = str | int | float | bool


class Span(Protocol):
    """One thing that is being done."""

    def tell(self, **facts: Value) -> None:
        """Say more about it; never keys, bodies or names that a client chose."""
        ...


class Tracer(Protocol):
    """Follows what is done. Thread safe; it belongs to the span around it, on whichever thread that was begun."""

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        """Surrounds one thing; an error that leaves the context is noted and passes on."""
        ...


class _NoSpan:
    def tell(self, **facts: Value) -> None:
        pass


class NoTracer:
    """Follows nothing, at no cost to speak of."""

    _NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())

    def span(self, name: str, **facts: Value) -> AbstractContextManager[Span]:
        """Nothing."""
        return self._NOTHING


NO_TRACER = NoTracer()
