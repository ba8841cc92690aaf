"""The hot tier as one reader sees it at one moment."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, ReadOnlyError, TornRecordError, UnavailableError
from tierlog.tiering.base.paths import base_offset_name
from tierlog.tiering.format.record import FIXED_BYTES_V1, Record, decode_record
from tierlog.tiering.hot.commit_log import Segment

_WAIT_S = 60.0
_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """The records in ``[border, end)``, as one reader sees them. Its maps stay readable after a removal.

    ``times_rise``: store times never step back, which holds for every log but that of a broker whose clock did.
    ``visible`` lies above ``end`` only if dispatching failed: what is between is in the log and nowhere else.
    """

    border: int
    end: int
    visible: int
    segments: dict[int, Segment]
    segment_bytes: int
    times_rise: bool = True
    dispatch_error: str | None = None
    """The error of dispatching, if it is tried again."""
    suspect: Callable[[int], object] = lambda offset: None
    """Is told where a record cannot be read that has to be there."""

    @property
    def undispatched(self) -> int:
        """Bytes of records to be seen that no queue and no index shows."""
        return max(0, self.visible - self.end)

    def require_dispatched(self) -> None:
        """Raises if there are records that the snapshot cannot show.

        :class:`UnavailableError` while dispatching is tried again, :class:`ReadOnlyError` once it is not.
        """
        if self.undispatched:
            text = f"{self.undispatched} bytes not dispatched: records from {self.end} on cannot be read"
            if self.dispatch_error is not None:
                raise UnavailableError(f"{text} yet: {self.dispatch_error}", hint="it is tried again; see to the disk")
            raise ReadOnlyError(text, hint="repair the cause and restart")

    def record(self, physical_offset: int) -> Record:
        """Decodes and checks one record; :class:`CorruptionError` where there is none."""
        try:
            return self.guessed_record(physical_offset)
        except CorruptionError:
            self.suspect(physical_offset)
            raise

    def guessed_record(self, physical_offset: int) -> Record:
        """Does the same for an offset that anybody may have made up: nothing is suspected if there is no record."""
        segment = self.segments.get(physical_offset - physical_offset % self.segment_bytes)
        if segment is None:
            raise CorruptionError("no segment holds this offset", path="commitlog", position=physical_offset)
        position = physical_offset - segment.base_offset
        try:
            return decode_record(segment.data.data, position, physical_offset=physical_offset)
        except CorruptionError as error:
            error.path = f"commitlog/{base_offset_name(segment.base_offset)}"
            raise

    def record_offsets(self, first: int, end: int) -> list[int]:
        """Returns where the records begin that fill ``[first, end)`` of one segment; none of them is decoded.

        Raises :class:`TornRecordError` if no records fill it.
        """
        segment = self.segments[first - first % self.segment_bytes]
        found = []
        while first < end:
            (size,) = _SIZE.unpack_from(segment.data.data, first - segment.base_offset)
            if not FIXED_BYTES_V1 <= size <= end - first:
                self.suspect(first)
                raise TornRecordError(f"record at {first} says that it has {size} bytes", position=first)
            found.append(first)
            first += size
        return found


class Pins:
    """Counts the readers of each border, for whom a removal waits. The lock that guards it is the border's own."""

    def __init__(self, lock: threading.Condition, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        self._counts: dict[int, int] = {}

    def pin(self, border: int) -> contextlib.AbstractContextManager[None]:
        """Notes a reader until the context ends, which has to be entered. The caller holds the lock."""
        self._counts[border] = self._counts.get(border, 0) + 1
        return self._until_released(border)

    @contextlib.contextmanager
    def _until_released(self, border: int) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._counts[border] -= 1
                if not self._counts[border]:
                    del self._counts[border]
                self._lock.notify_all()

    def wait_below(self, border: int, *, give_up: Callable[[], bool]) -> None:
        """Waits until nobody reads below ``border``, 60 s at most. The caller holds the lock."""
        deadline = self._clock.monotonic_s() + _WAIT_S
        while not give_up() and any(pinned < border for pinned in self._counts):
            if not self._lock.wait(max(0.0, deadline - self._clock.monotonic_s())):
                break
