"""Which request is being worked on: what its log lines, its traces and its problem body say of it.

Bound to the context, which threads of a pool take over from whoever gave them the work.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass

from tiering.randomness import Randomness

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


@dataclass(slots=True)
class RequestNotes:
    """What is known of one request; filled in while it is worked on."""

    request_id: str
    #: Title of the problem that it was answered with.
    problem: str | None = None
    #: Of the trace that follows it, if one does.
    trace_id: str | None = None


_CURRENT: ContextVar[RequestNotes | None] = ContextVar("tierlog_request", default=None)
bind, unbind = _CURRENT.set, _CURRENT.reset


def current_request() -> RequestNotes | None:
    """The request that this thread or task works for, if any."""
    return _CURRENT.get()


def request_id(given: str | None, randomness: Randomness) -> str:
    """The id that a client gave, if it can stand in a log as it is, else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return randomness.token_hex(8)
