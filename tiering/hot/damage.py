"""``tierlog/damage.json``: the ranges of the log in which nothing could be read when somebody looked.

::

    {"format": 1, "found": [{"first": 4096, "next": 4388, "found_ms": 1795265870019,
     "messages": [{"topic": "orders", "queue_id": 0, "first": 12, "next": 14}]}]}

Opening reads the log from the recovery point on only, so it cannot find what lies below. What any reader, the archiver
or a check meets is suspected here, then verified once, away from the reader: the whole segment is scanned with its
checksums. What is damaged is remembered, so that the next open says so at once, and verified again after it. Gone is
what a repair, or the removal of the segment, has put right.

The file is derived: lost, it is found again by whoever meets the damage. One that cannot be read means that nobody
knows, so all of the log is suspected.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.log_files import read_segment
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.kernels.scan import TopicTable

_LOG = logging.getLogger("tierlog")
#: A segment that was found to be sound is not scanned again for this long, whoever suspects it.
_AGAIN_S = 60.0
#: Queues of which a reason names what is lost.
_MOST_NAMED = 5
_HINT = "`tierlog repair --root DIR`, with the service stopped, says what is lost and what to do"


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Queue offsets ``[first, next)`` whose records lie in a damaged range."""

    topic: str
    queue_id: int
    first: int
    next: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} queue offsets [{self.first}, {self.next})"


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Physical offsets ``[first, next)`` of one segment that hold no readable record."""

    first: int
    next: int
    found_ms: int
    messages: tuple[LostMessages, ...] = ()

    def __str__(self) -> str:
        where = f"the log cannot be read in [{self.first}, {self.next})"
        if not self.messages:
            return where
        more = f" and of {len(self.messages) - _MOST_NAMED} queues more" if len(self.messages) > _MOST_NAMED else ""
        return f"{where}: {', '.join(map(str, self.messages[:_MOST_NAMED]))}{more}"


def _decode(document: Any) -> tuple[LogDamage, ...]:
    return tuple(
        LogDamage(
            int(each["first"]), int(each["next"]), int(each["found_ms"]),
            tuple(
                LostMessages(str(lost["topic"]), int(lost["queue_id"]), int(lost["first"]), int(lost["next"]))
                for lost in each["messages"]
            ),
        )
        for each in document["found"]
    )  # fmt: skip


def _encode(found: Sequence[LogDamage]) -> dict[str, object]:
    return {"found": [asdict(each) for each in found]}


DAMAGE_FILE: JsonFile[Sequence[LogDamage]] = JsonFile(_decode, _encode)


class KnownDamage:
    """What is known to be damaged in a log. Thread safe."""

    def __init__(self, fs: FileSystem, paths: StorePaths, clock: Clock, begin: int) -> None:
        """Reads what was found before in the log from ``begin`` on; all of it is suspected again."""
        self._fs, self._paths, self._clock = fs, paths, clock
        self._lock = threading.Lock()
        #: Held while segments are scanned: who holds it knows that nothing is between suspected and found.
        self.verifying = threading.RLock()
        self._suspected: set[int] = set()
        self._sound_s: dict[int, float] = {}
        self._found: tuple[LogDamage, ...] = ()
        self._unread: str | None = None
        self._is_closed = False
        #: Set when something is suspected that nobody has looked at.
        self.news = threading.Event()
        try:
            known = DAMAGE_FILE.read(fs, paths.damage_json) or ()
            self._found = tuple(each for each in known if each.first >= begin)
        except CorruptionError as error:
            self._unread = f"what was found damaged in the log is not known: {error}"
        self._suspected.update(each.first for each in self._found)
        if self.reason is not None:
            self.news.set()
            _LOG.warning("%s", self.reason)

    @property
    def found(self) -> tuple[LogDamage, ...]:
        """What is damaged, ascending."""
        return self._found

    @property
    def reason(self) -> str | None:
        """Says in words what is damaged and what to do; None if nothing is known to be."""
        if self._unread is not None:
            return self._unread
        if not self._found:
            return None
        more = f", and in {len(self._found) - 1} more ranges" if len(self._found) > 1 else ""
        return f"{self._found[0]}{more}; {_HINT}"

    def suspect(self, offset: int) -> None:
        """Remembers that a record at a physical offset could not be read; costs next to nothing."""
        with self._lock:
            self._suspected.add(offset)
        self.news.set()

    def is_due(self, segment_bytes: int) -> bool:
        """Whether a segment is to be scanned now; one that was sound a moment ago waits for its time, without news."""
        self.news.clear()
        if self._unread is not None:
            return True
        now_s = self._clock.monotonic_s()
        with self._lock:
            return any(self._may_scan(offset - offset % segment_bytes, now_s) for offset in self._suspected)

    def verify(
        self, snapshot: HotSnapshot, topics: Sequence[str], lost: Callable[[int, int], tuple[LostMessages, ...]]
    ) -> None:
        """Scans each segment that is suspected, and makes what is found durable where that can be written.

        ``topics`` are all of the log, ``lost`` names the messages of a range. One that is suspected again and again for
        another reason, such as a damaged unit that leads there, is scanned once a minute. What is not scanned, because
        of that or of an exception, stays suspected.
        """
        with self.verifying:
            self.news.clear()
            size = snapshot.segment_bytes
            with self._lock:
                left, self._suspected = {offset - offset % size for offset in self._suspected}, set()
            bases = left | (set(snapshot.segments) if self._unread is not None else set())
            table = TopicTable(list(topics))
            try:
                for base in sorted(bases):
                    if self._is_closed:
                        return
                    if self._scanned(base, snapshot, table, lost):
                        left.discard(base)
            finally:
                with self._lock:
                    self._suspected |= left
            if self._unread is not None:
                self._unread = None
                self._save()

    def look_at(
        self,
        base: int,
        snapshot: HotSnapshot,
        topics: Sequence[str],
        lost: Callable[[int, int], tuple[LostMessages, ...]],
    ) -> None:
        """Scans one segment that nobody suspects; who suspects it afterwards does not wait for that."""
        with self.verifying:
            segment = snapshot.segments.get(base)
            if segment is not None and base >= snapshot.border and not self._is_closed:
                self._is_sound(segment, snapshot, TopicTable(list(topics)), lost)

    def _scanned(
        self,
        base: int,
        snapshot: HotSnapshot,
        table: TopicTable,
        lost: Callable[[int, int], tuple[LostMessages, ...]],
    ) -> bool:
        """Scans one segment; False if it is not its time."""
        segment, size, now_s = snapshot.segments.get(base), snapshot.segment_bytes, self._clock.monotonic_s()
        if segment is None or base < snapshot.border:
            self._replace(base, base + size, ())
            return True
        if not self._may_scan(base, now_s):
            return False
        if self._is_sound(segment, snapshot, table, lost):
            self._sound_s[base] = now_s
        return True

    def _is_sound(
        self,
        segment: Segment,
        snapshot: HotSnapshot,
        table: TopicTable,
        lost: Callable[[int, int], tuple[LostMessages, ...]],
    ) -> bool:
        """Scans a segment; what is damaged in it is known afterwards."""
        base, size = segment.base_offset, snapshot.segment_bytes
        ranges = _damaged(segment, max(snapshot.end, snapshot.visible), size, table)
        self._replace(base, base + size, [self._found_now(*each, lost(*each)) for each in ranges])
        return not ranges

    def _may_scan(self, base: int, now_s: float) -> bool:
        return now_s - self._sound_s.get(base, -_AGAIN_S) >= _AGAIN_S

    def close(self) -> None:
        """Ends a verification after the segment that it is at; nothing is written from now on."""
        with self._lock:
            self._is_closed = True

    def forget_below(self, border: int) -> None:
        """Forgets what was damaged in segments that are gone."""
        if any(each.first < border for each in self._found):
            self._replace(0, border, ())

    def _found_now(self, first: int, following: int, messages: tuple[LostMessages, ...]) -> LogDamage:
        known = [each.found_ms for each in self._found if each.first < following and first < each.next]
        return LogDamage(first, following, min(known, default=self._clock.now_ms()), messages)

    def _replace(self, start: int, end: int, found: Iterable[LogDamage]) -> None:
        with self._lock:
            others = [each for each in self._found if not start <= each.first < end]
            before, self._found = self._found, tuple(sorted([*others, *found], key=lambda each: each.first))
            if self._found == before:
                return
            for each in self._found:
                if not any(each.first < old.next and old.first < each.next for old in before):
                    _LOG.warning("%s; %s", each, _HINT)
            if len(self._found) < len(before):
                _LOG.info("of %d damaged ranges of the log, %d are left", len(before), len(self._found))
        self._save()

    def _save(self) -> None:
        """Killed before it, or refused by the disk: it is found again."""
        with self._lock, contextlib.suppress(StoreError, OSError):
            if self._is_closed:
                return
            if self._found or self._fs.exists(self._paths.damage_json):
                DAMAGE_FILE.replace(self._fs, self._paths.damage_json, self._found, self._paths.tmp)


def _damaged(segment: Segment, end: int, segment_bytes: int, table: TopicTable) -> list[tuple[int, int]]:
    """Returns the physical ranges ``[first, next)`` below ``end`` of one segment that hold no readable record."""
    base, limit = segment.base_offset, min(segment.end, end) - segment.base_offset
    found = read_segment(segment, segment_bytes, table, limit=limit, keeps_rows=False)
    return [(base + first, base + min(following, limit)) for first, following in found.damaged if first < limit]
