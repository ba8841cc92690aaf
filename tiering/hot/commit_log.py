"""The commit log: fixed-size segments, written at their end, mapped for reading, durable up to a flushed position.

Segments are created at their full length under a temporary name, made durable and renamed, so a segment that exists
has its size; bytes after the log's end are zero. Files are named for their first byte's physical offset.

The first write to a block costs the disk more, so zeros are written ahead of the log's end. A log that has filled half
of a segment gets the whole next one, beside appends and in a file that nobody flushes yet. Below that, and where a log
outruns its next segment, they are written into the active one, as many as it holds already, between the two bounds of
:data:`ZEROS_AHEAD`; behind them it is a hole. So a log takes about twice what is in it while it is small. Where the end
catches up with the zeros, appends go on into the hole.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sortedcontainers import SortedDict

from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import CorruptionError, StoreError, StoreMismatchError
from tierlog.tiering.base.fs import ByteArray, File, FileSystem, flush_file
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.base.telemetry import Histogram
from tierlog.tiering.base.types import Visibility
from tierlog.tiering.base.write_guard import FlushGuard
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK

_PAGE_BYTES = 4096
_DISCARD_WAIT_S = 1.0
#: Written while appends wait, which takes about a millisecond.
_ZEROS = bytes(1 << 20)
_PUT_BACK = "`tierlog repair --root DIR --from-archive` puts back what the archive has, and says what it has not"
#: MiB: a gigabyte of dirty pages at once would hold up everybody's flush; in the active file, they share each flush.
_UNFLUSHED_ZEROS, _UNFLUSHED_ZEROS_OF_ACTIVE = 16, 4
#: Such a part of the zeros that the disk has no room for is appended before it is asked again.
_REFUSED_PART = 4
#: Least and most bytes of zeros ahead of the end, in the active segment.
ZEROS_AHEAD = (16 << 20, 64 << 20)


class GroupCommit:
    """Turns at flushing a file: one flush at a time, and those who waited for it leave together. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # entered as such: a condition's own way in takes twice as long
        self._changed = threading.Condition(self._lock)
        self._is_taken = False

    def take(self, unless: Callable[[], bool]) -> bool:
        """Waits for the turn; True with the turn, to be ended by :meth:`end`, False as soon as ``unless`` holds."""
        with self._lock:
            while self._is_taken and not unless():
                self._changed.wait()
            if unless():
                return False
            self._is_taken = True
        return True

    def end(self) -> None:
        """Lets go of all who wait."""
        with self._lock:
            self._is_taken = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Takes the turn: nobody else flushes inside."""
        self.take(lambda: False)
        try:
            yield
        finally:
            self.end()


@dataclass(frozen=True, slots=True)
class Segment:
    """One mapped segment; ``data`` stays readable after the file is removed."""

    base_offset: int
    data: ByteArray

    @property
    def end(self) -> int:
        """Physical offset of the next segment."""
        return self.base_offset + len(self.data)


def _zeros_ahead(position: int) -> int:
    """Bytes of zeros to write ahead of a segment's byte ``position``, up to which it is full."""
    least, most = ZEROS_AHEAD
    return min(max(position, least), most)


#: Called with a log and its end: writes behind it what others still have, and returns whether there was any.
PutBack = Callable[["CommitLog", int], bool]


class CommitLog:
    """Segments in order. Appending, rolling and removing are the store's, one at a time; reading needs no lock."""

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        segment_bytes: int,
        clock: Clock | None = None,
        visibility: Visibility = Visibility.FLUSHED,
    ) -> None:
        self._fs = fs
        self._paths = paths
        self.segment_bytes = segment_bytes
        self._segments: SortedDict[int, Segment] = SortedDict()
        self._segments_lock = threading.Lock()
        self._active: File | None = None
        self._last_base = 0
        self._group_commit = GroupCommit()
        self._flush_guard = FlushGuard()
        self._prepare_lock = threading.Lock()
        #: Whether somebody waits for the segment that is being prepared, and takes it with the zeros that it has.
        self._is_awaited = False
        self._prepared: int | None = None
        #: Segments that exist and come next, each with its open file.
        self._reserved: deque[tuple[Segment, File]] = deque()
        self._is_closed = False
        #: Where the active segment's hole begins: a position in its file, or behind it if there is no hole.
        self._hole = 0
        #: Where the disk is asked for room for zeros again after it had none: a physical offset.
        self._zeros_again_at = 0
        self._shows_unflushed = visibility is Visibility.WRITTEN
        #: Where the next byte goes.
        self.end = 0
        #: Everything below is durable.
        self.flushed = 0
        #: How often the active file was flushed.
        self.flushes = 0
        #: How long each of those took, s.
        self.flush_seconds = Histogram()
        self._clock = clock or SystemClock()

    def load(self, published_below: int = 0) -> None:
        """Maps the segments that exist.

        A hole means that a removal was cut off: segments below it go if they lie below ``published_below``.
        Raises :class:`CorruptionError` if they do not, :class:`StoreMismatchError` for a file of another size.
        """
        bases = self.bases()
        for lower, upper in reversed(list(pairwise(bases))):
            if upper != lower + self.segment_bytes:
                self._remove_below_hole([base for base in bases if base <= lower], published_below)
                bases = [base for base in bases if base > lower]
                break
        for base in bases:
            path = self._paths.segment(base)
            size = self._fs.size(path)
            if size != self.segment_bytes or base % self.segment_bytes:
                raise StoreMismatchError(
                    f"segment of {size} bytes in a store of {self.segment_bytes}-byte segments", path=str(path)
                )
            self._segments[base] = Segment(base, self._fs.map_read(path))
        if self._segments:
            self._activate()

    def _remove_below_hole(self, bases: list[int], published_below: int) -> None:
        if bases[-1] + self.segment_bytes > published_below:
            raise CorruptionError(
                "a segment is missing after this one, which is not in the archive",
                path=str(self._paths.segment(bases[-1])),
            )
        for base in bases:
            self._fs.unlink(self._paths.segment(base))
            self._fs.flush_dir(self._paths.commitlog)

    def bases(self) -> list[int]:
        """Base offsets of the segment files on disk, ascending."""
        names = self._fs.list_dir(self._paths.commitlog)
        return sorted(base for base in map(parse_base_offset, names) if base is not None)

    @property
    def begin(self) -> int:
        """Physical offset of the first segment."""
        with self._segments_lock:
            return int(self._segments.peekitem(0)[0]) if self._segments else 0

    @property
    def last_base(self) -> int:
        """Base offset of the active segment."""
        return self._last_base

    @property
    def is_empty(self) -> bool:
        """Whether no segment exists yet."""
        return not self._segments

    @property
    def visible(self) -> int:
        """Up to where readers see the log: what is flushed, or all that is written."""
        return self.end if self._shows_unflushed else self.flushed

    def segments(self) -> list[Segment]:
        """Returns all segments, ascending; a consistent copy."""
        with self._segments_lock:
            return list(self._segments.values())

    def segment_of(self, offset: int) -> Segment:
        """Returns the segment that holds a physical offset; KeyError outside the log."""
        found: Segment = self._segments[offset - offset % self.segment_bytes]
        return found

    def segment_at(self, offset: int) -> Segment | None:
        """Returns the segment of :meth:`segment_of`, or None outside the log."""
        found: Segment | None = self._segments.get(offset - offset % self.segment_bytes)
        return found

    def add_first_segment(self, base_offset: int = 0) -> None:
        """Adds a segment whose first blocks, if it is large, are only reserved: a new log opens at once."""
        self.end = self._last_base = base_offset
        with self._prepare_lock:
            self._prepare(base_offset, prewrite=self.segment_bytes <= ZEROS_AHEAD[0])
        self.add_segment(base_offset)

    @property
    def wants_zeros(self) -> bool:
        """Whether half of the zeros that were written ahead are used up, and the active segment has room for more.

        Not for a while after the disk had no room for them: appends ask, and should not wake anybody in vain.
        """
        if self.end < self._zeros_again_at:
            return False
        position = self.end - self._last_base
        return self._hole < self.segment_bytes and self._hole - position < _zeros_ahead(position) // 2

    def write_zeros(self, no_appends: Callable[[], AbstractContextManager[object]]) -> bool:
        """Writes a part of the zeros that the active segment lacks ahead of the end, durably; whether it lacks more.

        ``no_appends`` keeps appends and the end of the log away, and is entered for a MiB at a time. They are for speed
        alone, so they leave as much of the disk free as they take. Killed in here or later: zeros are zeros, and a
        block that was never written is written by an append.
        """
        zeros = _zeros_ahead(self.end - self._last_base)
        if self._fs.free_bytes(self._paths.commitlog) < 2 * zeros:
            self._zeros_again_at = self.end + zeros // _REFUSED_PART
            return False
        pieces = 0
        while pieces < _UNFLUSHED_ZEROS_OF_ACTIVE and self._write_piece_of_zeros(no_appends):
            pieces += 1
        if pieces:
            with self._group_commit.taken():  # nobody rolls meanwhile
                end = self.end
                self._flush_file()
                self.flushed = end
        return pieces == _UNFLUSHED_ZEROS_OF_ACTIVE

    def _write_piece_of_zeros(self, no_appends: Callable[[], AbstractContextManager[object]]) -> bool:
        with no_appends():
            position = self.end - self._last_base
            start = max(self._hole, position)
            piece = memoryview(_ZEROS)[: max(min(position + _zeros_ahead(position), self.segment_bytes) - start, 0)]
            if piece:
                self._file.write_at(start, piece)
                self._hole = start + len(piece)
            return bool(piece)

    def add_segment(self, base_offset: int) -> None:
        """Makes the segment, durable and with its first zeros written, the log's last; a prepared one is taken."""
        self._begin_segment(base_offset)
        self._activate(self._reserved.popleft())

    def reserve(self, count: int) -> None:
        """Makes the next segments exist, named and open, so that so many rolls need no descriptor; idempotent.

        Killed in here or later: empty last segments, which the next recovery removes.
        """
        while len(self._reserved) < count:
            self._begin_segment(self.last_base + (1 + len(self._reserved)) * self.segment_bytes)

    def _begin_segment(self, base_offset: int) -> None:
        """Killed before the rename: a temporary file, which is garbage. After it: an empty last segment, which a
        RocketMQ store may have as well."""
        path = self._paths.segment(base_offset)
        self._is_awaited = True
        with self._prepare_lock:
            try:
                self._prepare(base_offset)
            finally:
                self._is_awaited = False
            self._fs.rename(self._paths.tmp / path.name, path)
            self._prepared = None
            self._fs.flush_dir(self._paths.commitlog)
            self._reserved.append((Segment(base_offset, self._fs.map_read(path)), self._fs.open(path)))

    @property
    def wants_next(self) -> bool:
        """Whether the active segment is half full and the next one is not prepared yet."""
        base = self._last_base
        is_there = self._reserved or self._prepared == base + self.segment_bytes
        return self.end - base >= self.segment_bytes // 2 and not is_there

    def prepare_next(self) -> None:
        """Writes the next segment's zeros under a temporary name, beside appends, unless it is done or the log closed.

        Where the log is rolled though it is small, it gets as many as are written ahead in this one. Killed in here or
        later: a temporary file, which is garbage.
        """
        with self._prepare_lock:
            if not self._is_closed and not self._reserved:  # another process may hold the store after it is closed
                self._prepare(self.last_base + self.segment_bytes)

    def _prepare(self, base_offset: int, *, prewrite: bool = True) -> None:
        if self._prepared == base_offset:
            return
        temporary = self._paths.tmp / base_offset_name(base_offset)
        position = self.end - self._last_base
        zeros = self.segment_bytes if position >= self.segment_bytes // 2 else _zeros_ahead(position)
        try:
            self._fs.create(temporary, self.segment_bytes, prewrite=prewrite, first_bytes=min(zeros, ZEROS_AHEAD[0]))
            if zeros > ZEROS_AHEAD[0]:
                self._prewrite(temporary, ZEROS_AHEAD[0], min(zeros, self.segment_bytes))
        except StoreError:
            if not self._is_closed:
                with contextlib.suppress(StoreError):
                    self._fs.unlink(temporary)  # a full disk gets its room back
            raise
        self._prepared = base_offset

    def _prewrite(self, path: Path, start: int, end: int) -> None:
        """Writes zeros into a file that nobody uses yet, until somebody waits for it."""
        file = self._fs.open(path)
        try:
            for number, position in enumerate(range(start, end, len(_ZEROS)), 1):
                if self._is_awaited or self._is_closed:
                    break
                file.write_at(position, memoryview(_ZEROS)[: end - position])
                if number % _UNFLUSHED_ZEROS == 0:
                    file.flush()
            file.flush()
        finally:
            file.close()

    def discard_prepared(self) -> None:
        """Gives back the room of a segment that was prepared and not needed.

        The next open does if one is being made.
        """
        if self._prepare_lock.acquire(timeout=_DISCARD_WAIT_S):
            try:
                if self._prepared is not None:
                    self._fs.unlink(self._paths.tmp / base_offset_name(self._prepared))
                    self._prepared = None
            finally:
                self._prepare_lock.release()

    def start_at(self, end: int, *, tail_is_zero: bool) -> None:
        """Declares ``end`` the log's end after recovery: later segments go, the rest of its segment becomes zero.

        ``tail_is_zero`` says that it is already, which keeps its pre-written blocks.

        The caller has flushed the files below: a record that survived a killed process in the page cache is not
        durable before somebody says so. Killed in between: the next recovery finds the same end.
        """
        while self._last_base > max(end, self.begin):
            self._fs.unlink(self._paths.segment(self._last_base))
            self._fs.flush_dir(self._paths.commitlog)
            del self._segments[self._last_base]
            self._last_base -= self.segment_bytes
        if end == self.last_base + self.segment_bytes:
            self.add_segment(end)
        self._activate()
        if not tail_is_zero:
            self._file.zero(end - self.last_base, self.segment_bytes)
        self._file.flush()
        self._hole = self._file.first_hole(end - self.last_base)
        self.end = self.flushed = end

    def put_back(self, position: int, data: ByteArray | bytes, end: int) -> None:
        """Writes bytes that the log has lost, zeros behind them up to ``end``; durable when it returns.

        Only before :meth:`start_at`, in ascending order. Killed in here: the next recovery ends where this one did, or
        further on.
        """
        base = position - position % self.segment_bytes
        if base > self.last_base:
            self.add_segment(base)
        file = self._fs.open(self._paths.segment(base))
        try:
            file.write_at(position - base, data)
            file.zero(position - base + len(data), end - base)
            file.flush()
        finally:
            file.close()

    def check_end(self, end: int, durable: int, published_below: int) -> None:
        """Refuses a log that ends where no crash explains it.

        A torn tail lies above the checkpoint, and a segment is flushed before the next gets its first byte. Raises
        :class:`CorruptionError`, or :class:`StoreMismatchError` for an end below what was archived.
        """
        if end < durable:
            raise CorruptionError(
                "the log is damaged below its checkpoint", path="commitlog", position=end, hint=_PUT_BACK
            )
        if self.goes_on_behind(end):
            raise CorruptionError(
                "the log is damaged, and goes on behind the damage", path="commitlog", position=end, hint=_PUT_BACK
            )
        if end < published_below:
            raise StoreMismatchError(
                f"the log ends at {end}, below {published_below}, up to which it was archived",
                path=str(self._paths.root),
                hint="the volume has lost data that the archive holds: make a new one with --restore, then `tierlog "
                "salvage` this one",
            )

    def goes_on_behind(self, position: int) -> bool:
        """Whether a segment that begins above a position has its first byte: what lies before it was flushed then."""
        for segment in reversed(self.segments()):
            if segment.base_offset <= position:
                return False
            if segment.data[:8].any():
                return True
        return False

    def flush_files(self, start: int) -> None:
        """Flushes every segment from the one that holds ``start`` on, whatever is in it, and their names.

        A process that was killed in a roll may have left the new segment's name to the kernel alone.
        """
        for base in self._segments:
            if base + self.segment_bytes > start:
                flush_file(self._fs, self._paths.segment(base))
        self._fs.flush_dir(self._paths.commitlog)

    def room(self) -> int:
        """Bytes of records that still fit the active segment (a blank record always does)."""
        return self.last_base + self.segment_bytes - self.end - BLANK_BYTES

    def write(self, data: ByteArray | bytes) -> None:
        """Appends encoded records; they must fit :meth:`room`. Not durable before :meth:`flush`."""
        self._file.write_at(self.end - self.last_base, data)
        self.end += len(data)

    def roll(self) -> None:
        """Closes the active segment with a blank record, gives back the rest of its blocks and begins the next.

        The next is there before (:meth:`reserve`), and the old segment is flushed before the next gets a byte. Killed
        after the blank record: recovery goes on at the next segment, which it finds or creates.
        """
        self.reserve(1)
        base = self.last_base
        position = self.end - base
        if position < self.segment_bytes:
            file = self._file
            file.write_at(position, BLANK.pack(self.segment_bytes - position, MAGIC_BLANK))
            hole = -(-(position + BLANK_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
            file.zero(hole, self.segment_bytes)
        with self._group_commit.taken():
            self._flush_file()
            self._activate(self._reserved.popleft())
            self.end = self.flushed = base + self.segment_bytes

    def flush(self, upto: int | None = None) -> int:
        """Makes everything written before the call durable, or what lies below ``upto``; returns the flushed position.

        All who wait while a flush is on its way share the next one, and leave together when it has ended.
        """
        wanted = self.end if upto is None else upto
        if not self._group_commit.take(unless=lambda: self.flushed >= wanted):
            return self.flushed
        try:
            end = self.end
            self._flush_file()
            self.flushed = end
        finally:
            self._group_commit.end()
        return end

    def _flush_file(self) -> None:
        begun_s = self._clock.monotonic_s()
        with self._flush_guard.flushing():
            self._file.flush()
        self.flush_seconds.observe(self._clock.monotonic_s() - begun_s)
        self.flushes += 1

    def remove_first(self) -> None:
        """Unlinks the oldest segment, durably. Its map stays with whoever holds it."""
        base = self.begin
        if base == self.last_base:
            raise StoreError("the last segment never goes")
        self._fs.unlink(self._paths.segment(base))
        self._fs.flush_dir(self._paths.commitlog)
        with self._segments_lock:  # at the end: a failure is made good by another try
            del self._segments[base]

    @property
    def _file(self) -> File:
        assert self._active is not None, "a log is written only after its first segment exists"
        return self._active

    def _activate(self, begun: tuple[Segment, File] | None = None) -> None:
        """Writes to the last segment from now on, or to one that was begun and becomes the last."""
        if begun is None:
            with self._segments_lock:
                segment: Segment = self._segments.peekitem(-1)[1]
            file = self._fs.open(self._paths.segment(segment.base_offset))
        else:
            segment, file = begun
        self._close_active()
        with self._segments_lock:
            self._segments[segment.base_offset] = segment
            self._last_base = segment.base_offset
        self._active = file
        self._hole = file.first_hole(0)

    def close(self) -> None:
        """Closes the active file; nothing is flushed, and no file is made or removed by anybody who comes later."""
        self._is_closed = True
        self._close_active()
        while self._reserved:
            self._reserved.popleft()[1].close()

    def _close_active(self) -> None:
        if self._active is not None:
            self._active.close()
            self._active = None
