"""The request that is being worked on: what its log lines, its traces and its problem body say of it.

Bound to the context, which threads of a pool take over from whoever gave them the work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from tierlog.tiering.base.randomness import Randomness

_ID_BYTES, _IDS_AT_ONCE = 8, 128
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


@dataclass(slots=True)
class RequestNotes:
    """The facts known of one request; filled in while it is worked on."""

    request_id: str
    #: When it came, by the clock of the service: what its relative times are relative to.
    now_ms: int
    #: Title of the problem that it was answered with.
    problem: str | None = None
    #: Of the trace that follows it, if one does.
    trace_id: str | None = None


_CURRENT: ContextVar[RequestNotes | None] = ContextVar("tierlog_request", default=None)
bind, unbind = _CURRENT.set, _CURRENT.reset


def current_request() -> RequestNotes | None:
    """Returns the request that this thread or task works for, if any."""
    return _CURRENT.get()


def is_sane_id(given: str) -> bool:
    """Whether an id that a client gave can stand in a log as it is."""
    return _SANE_ID.fullmatch(given) is not None


def request_ids(randomness: Randomness) -> Iterator[str]:
    """Yields new ids without end. Randomness is taken for many of them at once: the kernel is asked for it."""
    while True:
        digits = randomness.token_hex(_ID_BYTES * _IDS_AT_ONCE)
        for start in range(0, len(digits), 2 * _ID_BYTES):
            yield digits[start : start + 2 * _ID_BYTES]
