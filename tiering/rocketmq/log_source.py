"""Where the bytes of a running broker's commit log come from; the follower knows nothing else of a source.

Two give them: the protocol by which a broker's slave copies (:mod:`~tierlog.tiering.rocketmq.remote_log`), and the
broker's store directory (:mod:`~tierlog.tiering.rocketmq.broker_directory`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, Self

from tierlog.tiering.base.errors import NotFoundError, UnavailableError
from tierlog.tiering.format.record import BLANK, FIXED_BYTES_V1, MAGIC_V1, MAGIC_V2

#: Size, magic and place of a record.
_HEAD = struct.Struct(">ii20xq")
HEAD_BYTES = _HEAD.size
#: How often nothing may come while bytes are waited for that the broker says it has.
PATIENCE = 20
_WAIT_S = 1.0


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

    def heard_s(self) -> float:
        """Returns when the broker gave a sign of life by this source last: monotonic seconds; -inf if it never did."""
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


def behind_hole(source: LogSource, end: int) -> int | None:
    """Returns the base of the segment with which a broker's log goes on behind zeros that begin at ``end``.

    A record that was torn may lie before them. None where anything else is there. A broker whose machine went down may
    have lost whole segments, and write on in a later one. Zeros alone are no hole, as what is not written yet is zero
    as well. But a source gives bytes only where the broker has written something behind them, and it writes from the
    front to the back: zeros of before a segment that has a record stay. Only the broker's own recovery may take back
    such a segment, so it has to run and to count that as its log before anything is
    declared. *Killed in here*: nothing was done.
    """
    source.begin(end)
    size = source.segment_bytes
    #: What was read and is not looked at, where it begins, and up to where a torn record may reach.
    held, position, torn_to, waited = b"", end, end, 0
    while waited <= PATIENCE:
        data = bytes(source.read(_WAIT_S))
        if not data:
            waited += 1
            continue
        if source.position() != position + len(held):
            break
        held, waited = held + data, 0
        if position == end:
            if len(held) < BLANK.size:
                continue
            torn_to = end + _torn_bytes(held, size - end % size)
        elif position % size == 0:
            if len(held) < HEAD_BYTES:
                continue
            if begins_record(held, position):
                return position
        zeros = held[max(0, torn_to - position) :]
        if zeros.count(0) < len(zeros):
            break
        held, position = b"", position + len(held)
    return None


def _torn_bytes(data: bytes, room: int) -> int:
    """Returns how long a record is of which at least the beginning is there, or what tells that."""
    length, magic = BLANK.unpack_from(data)
    return length if magic in (MAGIC_V1, MAGIC_V2) and BLANK.size < length <= room else BLANK.size
