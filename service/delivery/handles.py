"""The text by which a consumer names one delivery when it acknowledges it, wants more time or gives it back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tierlog.tiering.base.errors import InvalidHandleError

_NAME = "[A-Za-z0-9_%|-]{1,255}"
#: Every handle, whole; names of groups and topics have no dot.
HANDLE_PATTERN = rf"({_NAME})\.({_NAME})\.([0-9]{{1,4}})\.([0-9]{{1,19}})\.([0-9]{{1,9}})\.([0-9]{{1,15}})"
_HANDLE = re.compile(HANDLE_PATTERN)


@dataclass(frozen=True, slots=True)
class HandleFields:
    """One delivery: the group, the place of the message, which attempt it is, and when it is over.

    The time tells two deliveries of one attempt apart, such as one before and one after a kill.
    """

    group: str
    topic: str
    """Where the message lies, which for a retry is the group's retry topic."""
    queue_id: int
    offset: int
    attempt: int
    """How often the message was given from this place, counted from 1."""
    invisible_until_ms: int

    @property
    def text(self) -> str:
        """The handle."""
        return f"{self.group}.{self.topic}.{self.queue_id}.{self.offset}.{self.attempt}.{self.invisible_until_ms}"


def handle_fields(handle: str) -> HandleFields:
    """Returns what a handle says; :class:`InvalidHandleError` for a text that is none."""
    found = _HANDLE.fullmatch(handle)
    if found is None:
        raise InvalidHandleError(f"{handle[:100]!r} is no handle of a delivery", hint="it comes with each message")
    group, topic, *numbers = found.groups()
    return HandleFields(group, topic, *map(int, numbers))
