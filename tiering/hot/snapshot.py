"""What one reader sees of the hot tier at one moment."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tiering.errors import CorruptionError, ReadOnlyError, TornRecordError, UnavailableError
from tiering.format.record import FIXED_BYTES_V1, Record, decode_record
from tiering.hot.commit_log import Segment

_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """What one reader sees: records in ``[border, end)``. Its maps stay readable after a removal.

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
    """Why dispatching failed, if it is tried again."""

    @property
    def undispatched(self) -> int:
        """Bytes of records to be seen that no queue and no index shows."""
        return max(0, self.visible - self.end)

    def require_dispatched(self) -> None:
        """Raise if there are records that the snapshot cannot show.

        :class:`UnavailableError` while dispatching is tried again, :class:`ReadOnlyError` once it is not.
        """
        if self.undispatched:
            text = f"{self.undispatched} bytes not dispatched: records from {self.end} on cannot be read"
            if self.dispatch_error is not None:
                raise UnavailableError(f"{text} yet: {self.dispatch_error}", hint="it is tried again; see to the disk")
            raise ReadOnlyError(text, hint="repair the cause and restart")

    def record(self, physical_offset: int) -> Record:
        """Decode and check one record; :class:`CorruptionError` where there is none."""
        segment = self.segments.get(physical_offset - physical_offset % self.segment_bytes)
        if segment is None:
            raise CorruptionError("no segment holds this offset", path="commitlog", position=physical_offset)
        return decode_record(segment.data.data, physical_offset - segment.base_offset, physical_offset=physical_offset)

    def record_offsets(self, first: int, end: int) -> list[int]:
        """Where the records begin that fill ``[first, end)`` of one segment; none of them is decoded.

        Raises :class:`TornRecordError` if no records fill it.
        """
        segment = self.segments[first - first % self.segment_bytes]
        found = []
        while first < end:
            (size,) = _SIZE.unpack_from(segment.data.data, first - segment.base_offset)
            if not FIXED_BYTES_V1 <= size <= end - first:
                raise TornRecordError(f"record at {first} says that it has {size} bytes", position=first)
            found.append(first)
            first += size
        return found
