"""Writes the unarchived tail of a log into the bucket: what an append acknowledged as ``archived`` waits for.

Group commit: all who wait share the tails that cover them. Nothing is written, and nothing asked, unless somebody
waits. ``docs/formats/tail.md`` has the protocol. This module decides and does one step at a time, in the calling
thread; when to call is up to the service.

Killed anywhere: the tails that exist hold bytes that were flushed before, the mark says how far they may reach, and
the next open goes on behind them (:meth:`TailWriter.begin`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, FencedError, StoreError, StoreMismatchError, UnavailableError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.options import TailOptions
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.tail import TailHead, TailKind, payload_crc32
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.scan import ScanResult, ScanStop, TopicTable, scan
from tierlog.tiering.lifecycle.tail_store import StoredTail, TailMark, TailObjects

_PIECE_BYTES = 1 << 20


class _State(Enum):
    WAITING = 0
    TAKEN = 1
    STORED = 2


@dataclass(eq=False, slots=True)
class PendingTail:
    """A tail on its way; taken by one thread at a time."""

    head: TailHead
    cut: TailCut
    state: _State = _State.TAKEN


class TailWriter:
    """The chain of one open store. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        tails: TailObjects,
        *,
        mark: TailMark,
        randomness: Randomness,
        options: TailOptions,
        grace_ms: int,
        archived_to: Callable[[], int],
        check_owner: Callable[[], None],
        local_step: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """``archived_to`` is the manifest's, as last seen; ``check_owner`` asks the head and raises if it is not ours;
        ``local_step`` guards changes of local files. Tails stay for ``grace_ms`` on the server's clock."""
        self._hot = hot
        self._tails = tails
        self._mark = mark
        self._randomness = randomness
        self._options = options
        self._grace_ms = grace_ms
        self._archived_to = archived_to
        self._check_owner = check_owner
        self._local_step = local_step
        self._cutter = TailCutter(hot)
        self._pieces: deque[PendingTail] = deque()
        self._owner: Head | None = None
        self._chain_end = self._planned = self._wanted = 0
        self._next_start_s = 0.0
        self._seen_ms: int | None = None
        self._fenced: StoreError | None = None
        self._broken: StoreError | None = None
        #: Notified whenever something changes that a waiting thread looks at.
        self.changed = threading.Condition(threading.RLock())
        #: Tails stored since the store was opened, and their bytes of log.
        self.written_count = self.written_bytes = 0

    # for those who wait

    @property
    def has_begun(self) -> bool:
        """Whether :meth:`begin` has found where the chain goes on."""
        return self._owner is not None

    def covered(self) -> int:
        """Everything below survives the loss of the volume."""
        with self.changed:
            self._skip_archived()
            return max(self._chain_end, self._archived_to())

    def is_covered(self, end: int) -> bool:
        """Whether everything below ``end`` survives; raises what ended the writing if it may never be so."""
        with self.changed:
            if self.covered() >= end:
                return True
            error = self._fenced or self._broken
            if error is not None:
                raise error
            return False

    @property
    def reach(self) -> int:
        """No tail of this volume has anything at or above this offset."""
        return self._mark.end

    @property
    def wanted(self) -> int:
        """Offset up to which somebody asked for tails."""
        return self._wanted

    def want(self, end: int) -> None:
        """Asks for everything below ``end``, which is flushed, to be covered as soon as may be."""
        with self.changed:
            self._wanted = max(self._wanted, end)
            self.changed.notify_all()

    def give_up(self, error: StoreError) -> None:
        """Writes no tail any more; those who wait, now or later, get ``error``."""
        with self.changed:
            self._fenced = error
            self.changed.notify_all()

    # for those who work

    def begin(self, head: Head) -> None:
        """Finds where the chain goes on; ``head`` was claimed by this open. Repeatable after an error.

        Tails that an earlier open of this volume left continue the chain, if their bytes are the log's.
        """
        start = max(head.archived_to, min(self._mark.confirmed, self._hot.log.flushed))
        with self.changed:
            self._owner = None
        broken = None
        for found in self._tails.follow(start):
            try:
                with self.changed:
                    self._check_ours(found, head)
            except FencedError as error:
                self.give_up(error)
                raise
            except StoreMismatchError as error:
                broken = error
                break
            start = found.end
        with self.changed:
            self._owner, self._broken = head, broken
            self._chain_end = self._planned = start
            self._pieces.clear()
            self.changed.notify_all()

    def take(self, now_s: float) -> PendingTail | None:
        """Returns the next tail to be stored, or None if there is nothing to do at ``now_s`` (monotonic)."""
        with self.changed:
            if self._owner is None or self._fenced is not None:
                return None
            self._skip_archived()
            for piece in self._pieces:
                if piece.state is _State.WAITING:
                    piece.state = _State.TAKEN
                    return piece
            return self._plan(now_s)

    def idle_s(self, now_s: float) -> float | None:
        """Returns how long :meth:`take` will find nothing unless :attr:`changed` is notified; None is without limit."""
        with self.changed:
            return max(0.0, self._next_start_s - now_s) if self._may_plan() else None

    def store(self, piece: PendingTail) -> None:
        """Stores a tail that was taken. An error leaves it to be taken again, or ends the writing."""
        try:
            with self.changed:
                confirmed = self._chain_end
            self._mark.raise_to(piece.head.end, confirmed, self._local_step())
            found = self._tails.create(piece.head, piece.cut.payload)
            self._make_sure_of_owner(found)
        except FencedError as error:
            self.give_up(error)
            raise
        except BaseException:
            with self.changed:
                piece.state = _State.WAITING
                self.changed.notify_all()
            raise
        with self.changed:
            self.changed.notify_all()
            if piece in self._pieces:  # else the archive went past it meanwhile, or the chain was found to go otherwise
                self._settle(piece, found.head)

    def _make_sure_of_owner(self, found: StoredTail) -> None:
        """Asks for the owner, but not before every acknowledgement.

        Tails stay for the grace period, so what was ours lately cannot be lost.
        """
        seen_ms = self._seen_ms
        if seen_ms is None or found.modified_ms - seen_ms > self._grace_ms // 4:
            self._check_owner()
            with self.changed:
                self._seen_ms = max(found.modified_ms, self._seen_ms or 0)

    # the rest is called with the lock held

    def _settle(self, piece: PendingTail, found: TailHead) -> None:
        if found.nonce == piece.head.nonce:
            piece.state = _State.STORED
            self.written_count += 1
            self.written_bytes += len(piece.cut.payload)
        else:
            self._adopt(piece, found)
        while self._pieces and self._pieces[0].state is _State.STORED:
            self._chain_end = self._pieces.popleft().head.end

    def _adopt(self, piece: PendingTail, found: TailHead) -> None:
        """Adopts a tail of an earlier attempt that has this name, and replans from its end."""
        assert self._owner is not None
        try:
            self._check_ours(found, self._owner)
        except FencedError as error:
            self._fenced = error
            raise
        except StoreMismatchError as error:
            self._broken = error
            raise
        while self._pieces[-1] is not piece:
            self._pieces.pop()
        piece.head, piece.state = found, _State.STORED
        self._planned = found.end

    def _check_ours(self, found: TailHead, owner: Head) -> None:
        """:class:`FencedError` for a fence or another's tail, :class:`StoreMismatchError` for bytes not ours.

        In the log of a broker that is followed offsets are the broker's: whoever wrote a tail, its bytes count. What
        the log does not have yet is waited for, what the broker took back is removed.
        """
        is_followed = self._hot.is_followed
        is_anothers = found.volume_id != owner.volume_id and found.first >= self._hot.followed_below
        if found.kind is TailKind.FENCE or is_anothers or found.epoch > owner.epoch:
            raise FencedError(
                f"volume {found.volume_id} has taken this store over (epoch {found.epoch})", position=found.first
            )
        payload = self._cutter.payload(found.first, found.end) if found.end <= self._hot.log.flushed else None
        if payload is None and is_followed:
            raise UnavailableError("the log has not come as far as its tails in the bucket", position=found.end)
        if payload is None or (len(payload), payload_crc32(payload)) != (found.payload_bytes, found.payload_crc32):
            if is_followed:
                self._tails.remove_from(found.first)
                raise UnavailableError("a tail of what the broker took back was removed", position=found.first)
            raise StoreMismatchError(
                "a tail in the bucket holds other bytes than the log",
                position=found.first,
                hint="appends are acknowledged as archived again once this segment is archived",
            )

    def _skip_archived(self) -> None:
        """Passes over what the archive holds, which needs no tails; all that are on their way lie below it."""
        if self._owner is not None and self._archived_to() > self._chain_end:
            self._pieces.clear()
            self._chain_end = self._planned = self._archived_to()
            self._broken = None
            self.changed.notify_all()

    def _may_plan(self) -> bool:
        if self._owner is None or self._broken is not None or self._planned >= min(self._wanted, self._hot.publishable):
            return False
        on_their_way = sum(piece.state is not _State.STORED for piece in self._pieces)
        begins_segment = self._planned % self._hot.log.segment_bytes == 0
        return on_their_way < self._options.in_flight and not (self._pieces and begins_segment)

    def _plan(self, now_s: float) -> PendingTail | None:
        if not self._may_plan():
            return None
        if now_s < self._next_start_s and self._cutter.available(self._planned) < self._options.max_bytes:
            return None
        assert self._owner is not None
        cut = self._cutter.cut(self._planned, self._options.max_bytes)
        head = TailHead(
            store_id=self._owner.store_id, volume_id=self._owner.volume_id, epoch=self._owner.epoch,
            nonce=self._randomness.token_hex(8), kind=cut.kind, first=cut.first, end=cut.end,
            segment_bytes=self._hot.log.segment_bytes, payload_bytes=len(cut.payload),
            payload_crc32=payload_crc32(cut.payload), topics=cut.topics,
        )  # fmt: skip
        piece = PendingTail(head, cut)
        self._pieces.append(piece)
        self._planned = cut.end
        self._next_start_s = now_s + self._options.interval_ms / 1000
        return piece


class TailSource(Protocol):
    """A log that tails are cut from, as a store has it."""

    log: CommitLog

    @property
    def topics(self) -> TopicSource:
        """Returns the topics of its records."""
        ...

    @property
    def publishable(self) -> int:
        """Returns the physical offset below which tails may have it; a record ends there."""
        ...


class TopicSource(Protocol):
    """The topics of a store, as its registry has them."""

    @property
    def version(self) -> int:
        """Rises whenever a topic is added."""
        ...

    def all(self) -> list[Topic]:
        """Returns all of them."""
        ...


@dataclass(frozen=True, slots=True)
class TailCut:
    """A piece of the log; ``payload`` is a view of the segment's map, which outlives the file."""

    first: int
    end: int
    kind: TailKind
    payload: ByteArray
    topics: Mapping[str, int]


class TailCutter:
    """Cuts what may be published into pieces for tails: whole records, each verified, never across a segment's end.

    Used by one thread at a time.
    """

    def __init__(self, source: TailSource) -> None:
        self._source = source
        self._log = source.log
        self._topics = source.topics
        self._table = TopicTable([])
        self._known = -1
        self._closed: tuple[int, int] = -1, 0

    def available(self, position: int) -> int:
        """Bytes that may be published behind ``position`` in its segment, a closed segment's zeros not counted."""
        return self._data_end(position, self._source.publishable) - position

    def cut(self, position: int, max_bytes: int) -> TailCut:
        """The next piece from ``position``, where there is one; :class:`CorruptionError` if that is damaged.

        At most ``max_bytes`` long unless a single record is longer.
        """
        segment = self._log.segment_of(position)
        end = self._source.publishable
        is_closed = end >= segment.end
        start, data_end = position - segment.base_offset, self._data_end(position, end) - segment.base_offset
        limit = min(data_end, start + max_bytes)
        found, used = self._scan(segment.data, start, limit, segment.base_offset)
        if found.position == start and limit < data_end and found.stop is ScanStop.INVALID:
            limit = min(data_end, max(limit, start + int.from_bytes(bytes(segment.data[start : start + 4]))))
            found, used = self._scan(segment.data, start, limit, segment.base_offset)
        is_last = found.stop is ScanStop.BLANK or (is_closed and found.position == data_end)
        if (found.position == start and not is_last) or (limit == data_end and found.stop is ScanStop.INVALID):
            raise CorruptionError(
                "the log is damaged below its flushed position", path="commitlog",
                position=segment.base_offset + found.position,
            )  # fmt: skip
        if is_last and is_closed:
            return TailCut(position, segment.end, TailKind.ROLL, segment.data[start:data_end], used)
        end = segment.base_offset + found.position
        return TailCut(position, end, TailKind.DATA, segment.data[start : found.position], used)

    def payload(self, first: int, end: int) -> ByteArray:
        """Returns the log's bytes of a range as a tail has them: fewer than the range where a segment was closed."""
        segment = self._log.segment_of(first)
        data_end = min(end, self._data_end(first, self._log.flushed)) - segment.base_offset
        return segment.data[first - segment.base_offset : max(data_end, first - segment.base_offset)]

    def _data_end(self, position: int, end: int) -> int:
        """Returns the end in a segment of a log that ends at ``end``; in a closed one where its zeros begin."""
        segment = self._log.segment_of(position)
        if end < segment.end:
            return max(position, end)
        if self._closed[0] != segment.base_offset:
            self._closed = segment.base_offset, segment.base_offset + _without_zeros(segment.data)
        return max(position, self._closed[1])

    def _scan(self, data: ByteArray, start: int, limit: int, base: int) -> tuple[ScanResult, dict[str, int]]:
        if self._known != self._topics.version:
            self._known = self._topics.version
            self._table = TopicTable([topic.name for topic in self._topics.all()])
        numbers: set[int] = set()
        found = scan(data, start, limit, base, self._table, check_crc=True)
        numbers.update(np.unique(found.rows["topic_number"]).tolist())
        while found.stop is ScanStop.ROWS_FULL:
            found = scan(data, found.position, limit, base, self._table, check_crc=True)
            numbers.update(np.unique(found.rows["topic_number"]).tolist())
        names = self._table.names
        queues = {topic.name: topic.queues for topic in self._topics.all()}
        return found, {names[number]: queues[names[number]] for number in sorted(numbers)}


def _without_zeros(data: ByteArray) -> int:
    """Length without the zeros at the end; looked at in pieces, because they may be a hole of up to 1 GiB."""
    end = len(data)
    while end:
        start = max(0, end - _PIECE_BYTES)
        found = np.flatnonzero(data[start:end])
        if len(found):
            return start + int(found[-1]) + 1
        end = start
    return 0
