"""Appends the bytes of a RocketMQ broker's log to the log of a store, at the same physical offsets.

A follower gives the bytes as they come, cut anywhere. Only whole records are appended, each verified: its length, its
magic, its place, the checksum of its body and, if it has one, of all of it. The rest waits in memory. A blank record
closes the segment here as it does there. So the log has what every log of ours has, and recovery is the same.

Killed anywhere: the log ends behind the last record that is whole, :attr:`FollowedLog.end` says where, and the follower
asks for what comes then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan, topic_at_stop

#: Of a record: its size and its magic, as of a blank one.
_HEAD_BYTES = BLANK_BYTES
_LEAST_RECORD_BYTES = 91
#: Ends of records are remembered about so far apart, to find one below any limit of what may be published.
_BETWEEN_ENDS = 64 << 10


class FollowedLog:
    """The end of a log that a follower writes. For one thread, beside all who read."""

    def __init__(self, hot: HotStore, note_times_fall: Callable[[int], None]) -> None:
        """``note_times_fall`` makes durable that store times step back below a physical offset."""
        self._hot = hot
        self._note_times_fall = note_times_fall
        self._held = bytearray()
        #: Bytes that are wanted before the held ones are looked at again.
        self._wanted = 0
        #: Where the next bytes lie that are given.
        self._given = self.end
        self._table = TopicTable([])
        self._known = -1
        self._ends = deque([self.end])

    @property
    def end(self) -> int:
        """Physical offset of the next byte that is wanted: behind the last whole record, or the next segment."""
        return self._hot.log.end

    def append(self, position: int, data: bytes | memoryview) -> None:
        """Takes the next bytes of the broker's log, which begin at ``position``, and appends the records they complete.

        They continue what was given last, or begin at :attr:`end` again. Bytes behind a blank record are passed over.
        Raises :class:`CorruptionError` for what is no record of this place, with nothing of it appended, and
        :class:`InvalidRequestError` for another position.
        """
        if position == self.end:
            self._held.clear()
        elif position != self._given:
            raise InvalidRequestError(f"the log goes on at {self.end} or {self._given}, not at {position}")
        self._given = position + len(data)
        piece = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        if position < self.end and not self._held:  # behind a blank record
            piece = piece[self.end - position :]
        if self._held:
            self._held += piece.data
            if len(self._held) < self._wanted:
                return
            piece, self._held = np.frombuffer(self._held, np.uint8), bytearray()
        while len(piece):
            used = self._append_some(piece)
            if not used:
                self._held = bytearray(piece.data)
                return
            piece = piece[used:]

    def flush(self) -> int:
        """Makes all whole records durable; returns :attr:`end`."""
        self._hot.flush()
        return self.end

    def tail(self, most: int, below: int | None = None) -> tuple[int, bytes]:
        """Returns where the last whole records begin, at most so many bytes of one segment, and their bytes.

        A segment that was just closed has its blank record behind them. No bytes for a log without a record. ``below``
        is the base of a segment, whose predecessor is meant then.
        """
        log, end = self._hot.log, self.end if below is None else below
        segment = log.segment_at(end - 1)
        if segment is None or end == log.begin:
            return end, b""
        limit = min(end - segment.base_offset, len(segment.data))
        starts, stop = np.empty(0, np.int32), 0
        while stop < limit:
            found = scan(segment.data, stop, limit, segment.base_offset, self._topic_table(), check_crc=False)
            stop = found.position
            starts = np.append(starts, found.rows["position"])
            starts = starts[starts >= stop - most]
            if found.stop is ScanStop.BLANK:
                break
            if found.stop not in (ScanStop.END, ScanStop.ROWS_FULL):
                at = segment.base_offset + stop
                raise CorruptionError("the log is damaged below its end", path="commitlog", position=at)
        first = int(starts[0]) if len(starts) else stop
        last = stop if limit < len(segment.data) else stop + BLANK_BYTES
        return segment.base_offset + first, segment.data[first:last].tobytes()

    def end_below(self, limit: int) -> int:
        """Returns where a record ends at or below ``limit``, close to it; 0 if none is known. Limits never fall."""
        ends = self._ends
        while len(ends) > 1 and ends[1] <= limit:
            ends.popleft()
        return ends[0] if ends[0] <= limit else 0

    # appending

    def _append_some(self, piece: ByteArray) -> int:
        """Appends the whole records at the start of ``piece``, which begins at the end; returns the bytes used up.

        With a blank record they are those to the end of its segment, or all that there are. 0: a record is not whole.
        """
        hot, log = self._hot, self._hot.log
        room = log.last_base + log.segment_bytes - log.end
        limit = min(len(piece), room)
        found = scan(piece, 0, limit, log.end, self._topic_table(), check_crc=True)
        if found.stop is ScanStop.UNKNOWN_TOPIC:
            # Durable before its first record, as a topic of ours. Killed here: an empty topic.
            self._make_topic(topic_at_stop(piece, found), log.end + found.position)
            if not found.position:
                return self._append_some(piece)
        rows = found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows
        if found.position:
            if found.position > room - BLANK_BYTES:
                raise self._not_a_record(log.end + int(rows[-1]["position"]), "it leaves no room for a blank one")
            self._watch_times(rows)
            hot.append_records(piece[: found.position], len(rows), int(rows["store_ms"].max()))
            self._note_end()
        if found.stop is ScanStop.BLANK:
            return self._roll(piece, found.position, room)
        if found.stop is ScanStop.INVALID and not found.position:
            self._wanted = self._size_wanted(piece[:limit], room)
            if self._wanted <= limit:
                raise self._not_a_record(log.end, "its checksum, its place or its lengths are wrong")
        return found.position

    def _roll(self, piece: ByteArray, position: int, room: int) -> int:
        size, _ = BLANK.unpack_from(piece.data, position)
        if size != room - position:
            raise self._not_a_record(self._hot.log.end, f"a blank one of {size} bytes, {room - position} are left")
        self._hot.close_segment()
        self._note_end()
        return min(room, len(piece))

    def _size_wanted(self, piece: ByteArray, room: int) -> int:
        """Returns the bytes of the record that begins here, or those that tell; raises for what begins no record."""
        if len(piece) < _HEAD_BYTES:
            return _HEAD_BYTES
        size, magic = BLANK.unpack_from(piece.data)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            raise self._not_a_record(self._hot.log.end, f"its magic is {magic & 0xFFFFFFFF:08x}")
        if not _LEAST_RECORD_BYTES <= size <= room - BLANK_BYTES:
            raise self._not_a_record(self._hot.log.end, f"it has {size} bytes, and {room} are left in the segment")
        return int(size)

    def _not_a_record(self, position: int, why: str) -> CorruptionError:
        self._held.clear()
        self._given = self.end
        return CorruptionError(f"what the broker sent is no record: {why}", path="commitlog", position=position)

    def _make_topic(self, name: str, position: int) -> None:
        try:
            with self._hot.guard.writing("creating a topic"):
                self._hot.topics.create(name)
        except InvalidRequestError as error:
            raise self._not_a_record(position, error.message) from error

    def _topic_table(self) -> TopicTable:
        topics = self._hot.topics
        if self._known != topics.version:
            self._known = topics.version
            self._table = TopicTable([topic.name for topic in topics.all()])
        return self._table

    def _watch_times(self, rows: ScanRows) -> None:
        """Has it noted where store times step back, for the rest of the segment: before those records are there."""
        hot, times = self._hot, rows["store_ms"]
        if int(times[0]) >= hot.last_store_ms and bool((times[1:] >= times[:-1]).all()):
            return
        below = hot.log.last_base + hot.log.segment_bytes
        if hot.times_fall_below < below:
            self._note_times_fall(below)
            hot.times_fall_below = below

    def _note_end(self) -> None:
        ends = self._ends
        is_base = ends[-1] % self._hot.log.segment_bytes == 0
        if len(ends) > 1 and not is_base and self.end - ends[-2] < _BETWEEN_ENDS:
            ends.pop()
        ends.append(self.end)
