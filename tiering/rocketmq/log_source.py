"""Where the bytes of a running broker's commit log come from; the follower knows nothing else of a source.

Two give them: the protocol by which a broker's slave copies (:mod:`~tierlog.tiering.rocketmq.remote_log`), and the
broker's store directory (:mod:`~tierlog.tiering.rocketmq.broker_directory`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, Self

from tierlog.tiering.base.errors import NotFoundError, UnavailableError
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_V1, MAGIC_V2

#: Size, magic and place of a record.
_HEAD = struct.Struct(">ii20xq")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Physical offsets of a broker's log, as they are now: its first byte, and the byte behind its last."""

    min_offset: int
    max_offset: int


class SourceLostError(UnavailableError):
    """The source gives nothing more; :meth:`LogSource.begin` may find it again."""


class NoLogYetError(UnavailableError):
    """The broker has written nothing so far: there is no segment whose size would be known."""


class OffsetGoneError(NotFoundError):
    """The broker's log does not have the wanted offset: it has removed it, or it ends before it."""

    #: Where the log begins and ends instead.
    min_offset = max_offset = 0

    @classmethod
    def of(cls, offset: int, bounds: LogBounds, *, path: str) -> Self:
        """Returns the error for an offset of a log that is what ``bounds`` say."""
        said = f"the broker's log is [{bounds.min_offset}, {bounds.max_offset}) and does not go on at {offset}"
        error = cls(said, path=path)
        error.min_offset, error.max_offset = bounds.min_offset, bounds.max_offset
        return error


class LogSource(Protocol):
    """The bytes of one broker's log, from an offset on. For one thread; :meth:`close` may be called from any.

    Every call may raise :class:`SourceLostError`, after which only :meth:`begin` and :meth:`close` may be called.
    """

    segment_bytes: int
    """The size of the broker's segments."""

    def bounds(self) -> LogBounds:
        """Returns where the broker's log begins and ends now."""
        ...

    def begin(self, offset: int) -> None:
        """Makes ``offset`` what :meth:`read` gives next; connects again where the protocol needs it.

        To be called with what is durable here: whoever acts as a replica acknowledges everything below. Raises
        :class:`OffsetGoneError` if the broker's log has neither this byte nor ends there.
        """
        ...

    def read(self, wait_s: float) -> memoryview | bytes:
        """Returns the next bytes, in order, of one segment, cut anywhere; ``b""`` if none came within ``wait_s``.

        They are valid until the next call of this. What lies behind a segment's blank record may be given or left out.
        """
        ...

    def position(self) -> int:
        """Returns the physical offset of the first byte that was read last, or of the next one before any was."""
        ...

    def report(self, durable: int) -> None:
        """Says below which offset everything is durable here."""
        ...

    def settled(self) -> int:
        """Returns at once the offset below which the broker does not take bytes back, as far as it can be known."""
        ...

    def close(self) -> None:
        """Ends a read that waits, too; idempotent."""
        ...


def begins_record(data: bytes, position: int) -> bool:
    """Whether bytes from ``position`` on begin with the head of a record that was written there."""
    if len(data) < HEAD_BYTES:
        return False
    size, magic, place = _HEAD.unpack_from(data)
    return magic in (MAGIC_V1, MAGIC_V2) and size >= FIXED_BYTES_V1 and place == position
