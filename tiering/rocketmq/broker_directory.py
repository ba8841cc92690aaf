"""A running broker's commit log, read from its store directory. Nothing is ever written there.

What may be relied on:

=================== ================================================================================================
a segment           is made ahead with zeros, and never changes below where the broker writes, except that an
                    abnormal restart ends the log at its last valid record; what lies behind that stays
a closed segment    one whose next segment has a record: all of it is the log
the open segment    a record is whole once another follows it, as they are written one after the other; the last one
                    if it is valid and sums itself, or has not changed for a moment where zeros were before, and for a
                    second where anything may have been
an older record     behind one of after the restart, one of before it is a leftover, unless the broker says that its log
                    goes on there
``abort``           is written at every start: another stamp is a restart, after which all has to be compared again
``checkpoint``      tells the confirmed offset of a broker in controller mode, which takes back what is above it; 0 is
                    that none is known. It is a minute old, and stands still while a master is alone, so that the master
                    is asked as well. With any other broker it is of the last start, and says nothing
``epochFileCheckpoint`` is there in controller mode only; its last line says which master's log this one is
=================== ================================================================================================

The broker removes segments at its own time. The next ones are kept open, as an open file stays readable without its
name; to outlast a restart of ours as well, closed ones may get a second name in a folder of ours on the same volume
until they are durable here. Both are bounded.
"""

from __future__ import annotations

import logging
import math
import struct
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    CorruptionError,
    DiskFailedError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from tierlog.tiering.base.fs import File, FileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.record import (
    BLANK,
    FIXED_BYTES_V1,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SysFlag,
    decode_record,
    has_checksum,
)
from tierlog.tiering.rocketmq.adoption import segment_bytes_of
from tierlog.tiering.rocketmq.broker_files import BrokerState, read_state
from tierlog.tiering.rocketmq.log_source import (
    HEAD_BYTES,
    LogBounds,
    NoLogYetError,
    OffsetGoneError,
    SourceLostError,
    begins_record,
)
from tierlog.tiering.rocketmq.remoting import (
    BOOT_TIMESTAMP,
    BrokerClient,
    SyncStateSet,
    bounds_in,
    last_epoch,
    runtime_info,
    sync_state_set,
)

_LOG = logging.getLogger("tierlog")
#: Size, magic, place, flags and, behind an IPv4 host, the store time of a record.
_HEAD = struct.Struct(">ii20xqi16xq")
_STORE_MS = struct.Struct(">q")
_STORE_MS_V6_AT = 68
_BORN_HOST_V6 = int(SysFlag.BORN_HOST_V6)
_PIECE_BYTES = 1 << 20
_POLL_S = 0.05
#: What clocks here tell apart.
_LEAST_WAIT_S = 0.001
_LOOK_EVERY_S = 1.0
#: How long a last record has to stay as it is: over bytes that may be left of an older one, and over zeros.
_STILL_S, _STILL_OVER_ZEROS_S = 1.0, 0.05
_ZEROS = bytes(_PIECE_BYTES)
#: Behind the last record it is looked for zeros once less than this is known to be zero.
_LEAST_ZEROS = _PIECE_BYTES // 4
#: How often the open segment is flushed for what was read of it.
_FLUSH_EVERY_S = 5.0
_TRIES = 5
#: How long a master has to be alone until all that it had then is confirmed: the controller may know of a slave before.
_ALONE_S = 10.0
#: Of a broker in controller mode, in its directory.
EPOCH_FILE = "epochFileCheckpoint"
DEFAULT_MAX_HELD_BYTES = 16 << 30
_LEAST_OPEN, _MOST_OPEN = 2, 256
#: How far the clock of a volume may be behind the broker's.
_CLOCKS_APART_MS = 10_000


def told_by_its_broker(fs: FileSystem, paths: StorePaths, client: BrokerClient) -> Mapping[str, str] | None:
    """Asks a broker how it is (:func:`runtime_info`); None where it does not write this directory.

    After a failover the name's master writes another one, with other bytes at the same offsets perhaps. The broker of
    this one was booted before it left its mark here, the bounds that it tells are those of the files, and so is, in
    controller mode, its epoch. Raises as :func:`runtime_info`.
    """
    before = _bases_in(fs, paths.commitlog)
    info = runtime_info(client)
    marker, after = fs.stamp(paths.abort), _bases_in(fs, paths.commitlog)
    booted_ms = info.get(BOOT_TIMESTAMP, "")
    if marker is None or (booted_ms.isdigit() and int(booted_ms) > marker[1] // 1_000_000 + _CLOCKS_APART_MS):
        return None
    if before and after:
        bounds, size = bounds_in(info), segment_bytes_of(fs, paths) or 0
        # a file that is about to be removed is not counted any more
        if not (before[0] <= bounds.min_offset <= after[0] + size and bounds.max_offset <= after[-1] + size):
            return None
    epoch = _last_epoch(fs, paths)
    if epoch is not None:
        with suppress(UnavailableError):  # one that left controller mode has the file still, and tells none
            return info if last_epoch(client) == epoch else None
    return info


def _last_epoch(fs: FileSystem, paths: StorePaths) -> str | None:
    with suppress(NotFoundError, UnicodeDecodeError):
        lines = fs.read(paths.root / EPOCH_FILE).decode("ascii").splitlines()
        return lines[-1] if lines else None
    return None


class BrokerDirectory:
    """The log in a broker's store directory; a :class:`LogSource`.

    ``client`` asks the broker where its log ends, if it can be reached; all else is in the files. An answer of one that
    does not write them counts as none. ``held_folder``, on the broker's volume, is where closed segments get a second
    name. Of what the broker removes, at most ``max_held_bytes`` are kept. ``is_controller_mode`` makes reads end at the
    confirmed offset, and at 0 where none is known. An offset that is begun at has to be the first byte of a record.
    """

    def __init__(
        self,
        root: Path,
        *,
        fs: FileSystem,
        clock: Clock,
        client: BrokerClient | None = None,
        held_folder: Path | None = None,
        max_held_bytes: int = DEFAULT_MAX_HELD_BYTES,
        is_controller_mode: bool = False,
    ) -> None:
        self._paths = StorePaths(root)
        self._fs = fs
        self._clock = clock
        self._client = client
        self._held_folder = held_folder
        self._is_controller_mode = is_controller_mode
        found = segment_bytes_of(fs, self._paths)
        if found is None and fs.is_dir(root):
            raise NoLogYetError(
                "a broker has no log here yet", path=str(self._paths.commitlog),
                hint="it is waited for; a broker makes its log when the first message comes",
            )  # fmt: skip
        if found is None:
            raise NotFoundError("there is no directory of a broker", path=str(root))
        self.segment_bytes = found
        self._most_held = max_held_bytes // found
        self._most_open = min(max(_LEAST_OPEN, self._most_held), _MOST_OPEN)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        #: Open segments by base, and which of them are known to be closed by the broker.
        self._files: dict[int, File] = {}
        self._full: set[int] = set()
        self._position = self._next = self._durable = self._flushed = self._end = 0
        self._last: _Written | None = None
        self._doubt: _Doubt | None = None
        #: Where nothing but zeros was seen behind the last record.
        self._zeros = range(0)
        self._marker: tuple[int, int] | None = None
        self._look_again_s = self._flush_again_s = self._ask_again_s = self._pass_again_s = clock.monotonic_s()
        self._heard_s = -math.inf
        self._is_begun = False
        #: In controller mode: below which the master has said that its log stays, and since when it is alone.
        self._confirmed = 0
        self._alone: deque[_Alone] = deque()
        #: Whether closed segments are left to the broker's removal, as there are too many of them already.
        self.is_hold_full = False

    # the protocol of sources

    def bounds(self) -> LogBounds:
        """Returns where what can be read begins, held segments included, and where the broker's log ends."""
        with self._lock:
            return self._bounds()

    def begin(self, offset: int) -> None:
        with self._lock:
            self._check_open()
            self._is_begun = False
            self._marker = self._fs.stamp(self._paths.abort)
            self._forget_files()
            if self._last is None or self._last.end != offset:
                self._last = None
            self._doubt = None
            self._zeros = range(0)
            self._next = self._position = self._durable = offset
            # what was read before, by another process perhaps, the broker may not have flushed itself
            self._flushed = max(0, offset - offset % self.segment_bytes - self.segment_bytes)
            self._flush_again_s = self._clock.monotonic_s()
            self._look()
            bounds = self._bounds()
            if not bounds.min_offset <= offset <= bounds.max_offset:
                raise OffsetGoneError.of(offset, bounds, path=str(self._paths.commitlog))
            self._is_begun = True

    def read(self, wait_s: float) -> memoryview | bytes:
        """Returns the next whole records of the open segment, or bytes of a closed one cut anywhere; a megabyte."""
        deadline = self._clock.monotonic_s() + wait_s
        while True:
            with self._lock:
                self._check_open()
                if not self._is_begun:
                    raise SourceLostError("not begun", path=str(self._paths.root))
                self._look_if_due()
                self._position = self._next
                data = self._next_bytes()
                # behind the read: what a restarted broker writes, it writes after its mark
                self._check_restart()
            if data:
                self._heard_s = self._clock.monotonic_s()
                return data
            left_s = deadline - self._clock.monotonic_s()
            if left_s < _LEAST_WAIT_S:
                return b""
            # without the lock: who asks for the bounds beside it has its turn
            self._clock.wait(self._closed, max(_LEAST_WAIT_S, min(left_s, _POLL_S)))

    def position(self) -> int:
        return self._position

    def heard_s(self) -> float:
        return self._heard_s

    def report(self, durable: int) -> None:
        """Lets go of what is kept from the broker's removal and durable here, or was taken back by the broker."""
        with self._lock:
            self._durable = max(self._durable, durable)
            self._release()

    def settled(self) -> int:
        """Returns below which offset the broker's files are flushed, by us.

        A closed segment is flushed at once when all of it was read, the open one every few seconds.
        """
        with self._lock:
            self._check_open()
            now_s = self._clock.monotonic_s()
            while self._flushed < self._next:
                base = self._base_of(self._flushed)
                is_read = base + self.segment_bytes <= self._next
                if not is_read and now_s < self._flush_again_s:
                    break
                reached = min(self._next, base + self.segment_bytes)
                self._flush(base)
                self._flushed = reached
                if not is_read:
                    self._flush_again_s = now_s + _FLUSH_EVERY_S
            self._release()
            return min(self._flushed, self._limit())

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    # beside the log

    def told(self) -> Mapping[str, str] | None:
        """Asks the broker how it is; None where none is known, or another one answers than the one of these files.

        Raises as :func:`runtime_info`. On any thread.
        """
        return None if self._client is None else told_by_its_broker(self._fs, self._paths, self._client)

    def _told_end(self) -> int | None:
        """Returns where the broker says that its log ends; None while it does not."""
        with suppress(UnavailableError):
            info = self.told()
            return None if info is None else bounds_in(info).max_offset
        return None

    def state(self) -> BrokerState:
        """Returns what the broker's configuration says, read again while the broker replaces it.

        Raises :class:`UnavailableError` if no file could be read in some tries.
        """
        for _ in range(_TRIES):
            with suppress(CorruptionError):
                return read_state(self._fs, self._paths)
            self._clock.wait(self._closed, _POLL_S)
        raise UnavailableError("the broker's configuration could not be read", path=str(self._paths.config))

    @property
    def held_bytes(self) -> int:
        """Bytes of segments that the broker has removed, and that have a name in our folder still."""
        if self._held_folder is None:
            return 0
        there = set(self._fs.list_dir(self._paths.commitlog))
        return sum(name not in there for name in self._fs.list_dir(self._held_folder)) * self.segment_bytes

    # segments

    def _base_of(self, offset: int) -> int:
        return offset - offset % self.segment_bytes

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the source was closed")

    def _check_restart(self) -> None:
        marker = self._fs.stamp(self._paths.abort)
        if marker == self._marker:
            return
        self._marker = marker
        if marker is not None:
            self._is_begun = False
            raise SourceLostError("the broker was started again", path=str(self._paths.abort))

    def _bases(self) -> list[int]:
        """Returns the segments that the broker has, ascending."""
        return _bases_in(self._fs, self._paths.commitlog)

    def _held(self, bases: list[int]) -> list[int]:
        """Returns the segments that only we have still, beside those of the broker.

        The broker removes by age from the front. What has a name with us alone and lies behind its first segment, it
        took back: that is no part of its log.
        """
        held = [] if self._held_folder is None else _bases_in(self._fs, self._held_folder)
        return [base for base in held if not bases or base < bases[0]]

    def _wanted(self, folder: Path) -> dict[int, bool]:
        """Returns the segments that have a name in our folder, and whether any of it is wanted still.

        It is not once all of it is durable here, nor if the broker took it back.
        """
        bases = self._bases()
        # the first one goes first: if it is there behind the listing, none that is missing there went by its age
        is_sure = bool(bases) and self._fs.stamp(self._paths.segment(bases[0])) is not None
        durable = min(self._next, self._flushed, self._durable)
        return {
            base: base + self.segment_bytes > durable and not (is_sure and bases[0] < base and base not in bases)
            for base in _bases_in(self._fs, folder)
        }

    def _forget_files(self) -> None:
        """Closes all segments but those that the broker has removed by their age, which only we have still."""
        first = min(self._bases(), default=0)
        for base in [base for base in self._files if base >= first]:
            self._files.pop(base).close()
        self._full.intersection_update(self._files)
        self._end = 0

    def _look_if_due(self) -> None:
        if self._clock.monotonic_s() >= self._look_again_s:
            self._look()

    def _look(self) -> None:
        """Opens the segments that come next, and gives closed ones their second name."""
        self._look_again_s = self._clock.monotonic_s() + _LOOK_EVERY_S
        bases = self._bases()
        least = self._base_of(min(self._next, self._flushed))
        wanted = [base for base in sorted({*bases, *self._held(bases)}) if base >= least][: self._most_open]
        for base in wanted:
            if base not in self._files:
                self._open(base)
        if self._held_folder is not None:
            self._hold(self._held_folder, [base for base in bases if base in self._files])
        if self._is_controller_mode:
            self._ask_what_is_confirmed()

    def _open(self, base: int) -> None:
        with suppress(NotFoundError):
            self._files[base] = self._fs.open_read(self._paths.segment(base))
            return
        if self._held_folder is not None and base in self._held(self._bases()):  # it was removed
            with suppress(NotFoundError):
                self._files[base] = self._fs.open_read(self._held_folder / base_offset_name(base))

    def _hold(self, folder: Path, bases: list[int]) -> None:
        self._fs.make_dirs(folder)
        held = sum(self._wanted(folder).values())
        is_full = False
        for base in bases:
            if base + self.segment_bytes <= self._durable or not self._is_closed(base):
                continue
            source, target = self._paths.segment(base), folder / base_offset_name(base)
            stamp, known = self._fs.stamp(source), self._fs.stamp(target)
            if stamp is None or (known is not None and known[0] == stamp[0]):
                continue
            if known is not None:  # of another log that was here
                self._fs.unlink(target)
                held -= 1
            is_full = held >= self._most_held
            if is_full:
                break
            try:
                with suppress(NotFoundError):
                    self._fs.link(source, target)
                    held += 1
            except DiskFailedError as error:
                hint = "choose a folder on the volume of the broker's log, where this process may write"
                raise InvalidRequestError("a segment got no second name", path=str(folder), hint=hint) from error
        if is_full and not self.is_hold_full:
            _LOG.warning("%s holds all the segments it may; further ones are left to the broker's removal", folder)
        self.is_hold_full = is_full

    def _release(self) -> None:
        done = min(self._next, self._flushed)
        for base in [base for base in self._files if base + self.segment_bytes <= done]:
            self._files.pop(base).close()
            self._full.discard(base)
        if self._held_folder is not None:
            # Killed in here: the next one that begins lets go of the rest.
            for base, is_wanted in self._wanted(self._held_folder).items():
                if not is_wanted:
                    self._fs.unlink(self._held_folder / base_offset_name(base))

    def _flush(self, base: int) -> None:
        file = self._file(base)
        if file is None:  # removed: the broker has flushed it long ago
            return
        try:
            file.flush()
        except DiskFailedError as error:
            self._is_begun = False
            raise SourceLostError(f"a segment cannot be flushed: {error.message}", path=error.path) from error

    def _file(self, base: int) -> File | None:
        if base not in self._files:
            self._open(base)
        return self._files.get(base)

    def _is_closed(self, base: int) -> bool:
        if base not in self._full:
            following = self._file(base + self.segment_bytes)
            if following is None or not _begins_with_record(following, base + self.segment_bytes):
                return False
            self._full.add(base)
        return True

    # the log's end

    def _bounds(self) -> LogBounds:
        bases = self._bases()
        first = min((*bases, *self._held(bases), *self._files), default=0)
        told = self._told_end()  # of a broker that is stopped its files tell
        return LogBounds(first, max(first, self._find_end(bases) if told is None else told))

    def _find_end(self, bases: list[int]) -> int:
        """Walks from what was known last over the heads of records."""
        for base in reversed(bases):
            file = self._file(base)
            if file is None or not _begins_with_record(file, base):
                continue
            limit = base + self.segment_bytes
            at = max(base, self._end)
            if at >= limit:
                return at
            last: _Written | None = None
            size = _PIECE_BYTES
            while at < limit:
                data = file.read_at(at - base, min(size, limit - at))
                walk = _walk(data, at, limit, _Known(last, self._restart_ms))
                at, last = at + walk.end, walk.written or last
                if walk.stop is _Stop.BLANK:
                    at = limit
                elif walk.end == 0 and walk.stop is _Stop.CUT and size < limit - at:
                    size *= 2
                elif walk.stop is not _Stop.CUT or walk.end == 0:
                    break
                else:
                    size = _PIECE_BYTES
            self._end = at
            return at
        return min(bases, default=0)

    @property
    def _restart_ms(self) -> int | None:
        return None if self._marker is None else self._marker[1] // 1_000_000

    def _limit(self) -> int:
        """Returns the confirmed offset in controller mode; 0 if none is known."""
        if not self._is_controller_mode:
            return 1 << 63
        before = None
        for _ in range(_TRIES):
            with suppress(NotFoundError):
                confirmed = Checkpoint.decode(self._fs.read(self._paths.checkpoint)).confirm_offset
                if confirmed == before:  # it may be read while it is written
                    return max(0, confirmed, self._confirmed)
                before = confirmed
        return self._confirmed

    def _ask_what_is_confirmed(self) -> None:
        """Asks the master which part of its log each broker has that may become master next.

        It counts only where this directory has the master's log: a broker that was master before may have other bytes
        at the same offsets until it has met the new one.
        """
        if self._client is None:
            return
        found: SyncStateSet | None = None
        with suppress(StoreError):
            found = sync_state_set(self._client)
        if found is None or found.epoch != _last_epoch(self._fs, self._paths):
            self._alone.clear()
        elif found.slaves:
            self._alone.clear()
            self._confirmed = max(self._confirmed, found.acknowledged)
        else:
            now_s = self._clock.monotonic_s()
            if self._alone and self._alone[0].epoch != found.epoch:
                self._alone.clear()
            self._alone.append(_Alone(found.epoch, found.end, now_s))
            while now_s - self._alone[0].since_s >= _ALONE_S:
                # a slave that joined since began with all of it
                self._confirmed = max(self._confirmed, self._alone.popleft().end)

    # bytes

    def _next_bytes(self) -> bytes:
        """Returns what comes next and moves on behind it, over the end of a segment too."""
        base = self._base_of(self._next)
        file = self._file(base)
        if file is None:
            bases = self._bases()
            after = [other for other in bases if other > base]
            if not after:
                return b""  # it is not made yet
            self._is_begun = False
            raise OffsetGoneError.of(self._next, LogBounds(min(after), max(after)), path=str(self._paths.commitlog))
        room = min(base + self.segment_bytes, self._limit()) - self._next
        if room <= 0:
            return b""
        data = b"" if self._is_closed(base) else self._whole_records(file, base, room)
        if not data and (base in self._full or self._is_passed(base)):
            data = file.read_at(self._next - base, min(_PIECE_BYTES, room))
            self._next += len(data)
            self._last = None  # nobody looked at its records
        return data

    def _is_passed(self, base: int) -> bool:
        """Whether the broker, asked once a second, says that its log goes on in a later segment, which has a record.

        It lost what lies between, and nothing more comes there. Its files alone do not tell: until it has recovered,
        they are those of before the crash, and it may still take back what lies behind the first hole.
        """
        now_s = self._clock.monotonic_s()
        if self._client is None or now_s < self._pass_again_s:
            return False
        self._pass_again_s = now_s + _LOOK_EVERY_S
        for later in self._bases():
            if later <= base + self.segment_bytes:
                continue
            file = self._file(later)
            if file is not None and _begins_with_record(file, later):
                if (self._told_end() or 0) > later:
                    self._full.add(base)
                return base in self._full
        return False

    def _whole_records(self, file: File, base: int, room: int) -> bytes:
        limit = base + self.segment_bytes
        is_limited = room < limit - self._next
        size = _PIECE_BYTES
        known = _Known(self._last, self._restart_ms)
        while True:
            data = file.read_at(self._next - base, min(size, room))
            walk = _walk(data, self._next, limit, known)
            end = walk.end if walk.is_followed or (is_limited and len(data) == room) else walk.last
            if walk.stop is _Stop.LEFTOVER and end == 0 and walk.end == 0 and self._goes_on():
                known = _Known(None, None)
            elif end == 0 and walk.stop is _Stop.CUT and size < room:
                size *= 2
            else:
                break
        if end == 0 and walk.end and not walk.is_followed and self._is_whole(data[: walk.end]):
            end = walk.end
        if walk.stop is _Stop.NO_RECORD:
            self._look_for_zeros(data, walk.end)
        if end:
            self._doubt = None
            self._last = walk.written if end == walk.end else walk.before
        is_at_blank = walk.stop is _Stop.BLANK and end == walk.end
        self._next = limit if is_at_blank else self._next + end
        if is_at_blank and self._last is not None:
            self._last = self._last._replace(end=limit)
        self._end = max(self._end, self._next)
        return data[: end + BLANK.size] if is_at_blank else data[:end]

    def _look_for_zeros(self, data: bytes, end: int) -> None:
        """Notes how far nothing was written behind the last record of ``data``, which begins at the next byte."""
        behind, count = self._next + end, len(data) - end
        if self._zeros.stop < behind + min(count, _LEAST_ZEROS) and data[end:] == _ZEROS[:count]:
            self._zeros = range(self._zeros.start if behind <= self._zeros.stop else behind, behind + count)

    def _is_whole(self, record: bytes) -> bool:
        """Whether the last record of the log is whole, for all that its bytes tell.

        A broker copies a record in one go, upwards or downwards. Over zeros what is not there yet is zero: in topic and
        properties, unless the head lacks and it is no record yet. The body has a checksum.
        """
        try:
            found = decode_record(record, physical_offset=self._next)
        except CorruptionError:
            self._doubt = None
            return False
        if found.properties_text.endswith(b"\0"):  # no text ends so
            return False
        if has_checksum(record, len(found.properties_text)):
            return True
        now_s = self._clock.monotonic_s()
        if self._doubt is None or self._doubt.record != record:
            is_over_zeros = self._zeros.start <= self._next <= self._zeros.stop - len(record)
            has_zeros = b"\0" in found.properties_text or "\0" in found.topic
            self._doubt = _Doubt(record, now_s, _STILL_OVER_ZEROS_S if is_over_zeros and not has_zeros else _STILL_S)
        return now_s - self._doubt.since_s >= self._doubt.still_s

    def _goes_on(self) -> bool:
        """Whether the broker says that its log goes on behind the next byte, asked once a second."""
        now_s = self._clock.monotonic_s()
        if self._client is None or now_s < self._ask_again_s:
            return False
        self._ask_again_s = now_s + _LOOK_EVERY_S
        return (self._told_end() or 0) > self._next


def _bases_in(fs: FileSystem, folder: Path) -> list[int]:
    return [base for name in fs.list_dir(folder) if (base := parse_base_offset(name)) is not None]


def _begins_with_record(file: File, base: int) -> bool:
    return begins_record(file.read_at(0, HEAD_BYTES), base)


def _is_head(size: int, magic: int) -> bool:
    return magic in (MAGIC_V1, MAGIC_V2) and size >= FIXED_BYTES_V1


class _Written(NamedTuple):
    """A record that was passed: the offset behind it, and when the broker stored it."""

    end: int
    store_ms: int


class _Alone(NamedTuple):
    """A master without slaves in step: in which epoch, where its log ended, and when that was seen."""

    epoch: str
    end: int
    since_s: float


class _Doubt(NamedTuple):
    """A last record that may not be whole, when it was seen first, and for how long it is doubted."""

    record: bytes
    since_s: float
    still_s: float


class _Known(NamedTuple):
    """What decides whether a record is a leftover: the one before it, and when the broker was started."""

    last: _Written | None
    restart_ms: int | None


class _Stop(Enum):
    """Why a walk ended."""

    CUT = 1
    """A record goes on behind the bytes, or its head does."""
    BLANK = 2
    LEFTOVER = 3
    NO_RECORD = 4


class _Walk(NamedTuple):
    """Records from head to head: where the last one begins and ends, and whether another follows it."""

    last: int
    end: int
    stop: _Stop
    is_followed: bool
    written: _Written | None
    before: _Written | None


def _walk(data: bytes, start: int, limit: int, known: _Known) -> _Walk:
    """Walks over ``data``, which lies at offset ``start`` of a segment that ends at ``limit``."""
    last = at = 0
    length = len(data)
    before = written = known.last
    last_ms = written.store_ms if written is not None else None
    restart_ms = known.restart_ms
    before_ms = last_ms
    stop, is_followed = _Stop.CUT, False
    while True:
        if length - at < _HEAD.size:
            if length - at >= BLANK.size:
                size, magic = BLANK.unpack_from(data, at)
                if magic == MAGIC_BLANK and size == limit - start - at:
                    stop, is_followed = _Stop.BLANK, True
            break
        size, magic, place, flags, store_ms = _HEAD.unpack_from(data, at)
        if magic == MAGIC_BLANK and size == limit - start - at:
            stop, is_followed = _Stop.BLANK, True
            break
        if not _is_head(size, magic) or place != start + at or size > limit - place:
            stop = _Stop.NO_RECORD
            break
        if flags & _BORN_HOST_V6:
            if length - at < _STORE_MS_V6_AT + _STORE_MS.size:
                break
            (store_ms,) = _STORE_MS.unpack_from(data, at + _STORE_MS_V6_AT)
        if restart_ms is not None and last_ms is not None and store_ms < restart_ms <= last_ms:
            stop = _Stop.LEFTOVER
            break
        if at + size > length:
            is_followed = True
            break
        last, at = at, at + size
        before_ms, last_ms = last_ms, store_ms
    if at:
        written = _Written(start + at, last_ms or 0)
        if last:
            before = _Written(start + last, before_ms or 0)
    return _Walk(last, at, stop, is_followed, written, before)
