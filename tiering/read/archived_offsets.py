"""A queue's offsets in the archive: the first one, declared gaps, and where an offset or a store time lies.

A pull tells the least offset over both tiers although it reads only one. A gap is a range of offsets that a restore
left out and nobody will ever get.

Offsets rise with segments, so an offset is found by bisection over the queue rows: reading a queue from its middle
costs a few requests however many segments are published. A time is found in queue rows, then in a directory, then in
one run of records.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

import numpy as np

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import EVER, Boundary, TimeRange
from tierlog.tiering.cold.manifest.catalogue import ArchiveCatalogue, Lost, unless_lost
from tierlog.tiering.cold.manifest.store import ManifestStore, despite_deletion
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.reading.bill import BudgetSpentError
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, LogEntry, PageNode, QueueGap
from tierlog.tiering.format.queue_rows import QueueRows

_PATIENCE_S = 0.2
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
#: What an answer depends on: ``cold_min`` and the topic's expiry.
_Expired = tuple[int, int | None]
_ByQueue = dict[tuple[int, int], list[QueueGap]]


class _Asker:
    """Asks the archive beside a caller, who waits a moment only. Thread safe.

    One question at a time, and less and less often while it fails: a bucket that does not answer delays nobody and is
    not stormed by those who read what is hot.
    """

    def __init__(self, manifest: ManifestStore) -> None:
        self._asking = threading.Lock()
        self._pause = manifest.backoff(first_s=_PAUSE_S, most_s=_LONGEST_PAUSE_S)

    def ask(self, question: Callable[[], object]) -> None:
        """Returns when ``question`` has ended, or after a moment; at once while another one is asked or failed."""
        if self._pause.is_over and self._asking.acquire(blocking=False):
            thread = threading.Thread(target=self._run, args=(question,), name="tierlog-offsets", daemon=True)
            thread.start()
            thread.join(_PATIENCE_S)

    def _run(self, question: Callable[[], object]) -> None:
        try:
            question()
            self._pause.succeeded()
        except StoreError:
            self._pause.failed()
        finally:
            self._asking.release()


class FirstOffsets:
    """The least offset of each queue over both tiers. Thread safe.

    The archive is asked once a queue, and again after something of it has expired; what is archived later lies behind.
    """

    def __init__(self, manifest: ManifestStore) -> None:
        self._manifest = manifest
        self._known: dict[tuple[int, int], tuple[_Expired, int]] = {}
        self._asker = _Asker(manifest)

    def find(self, topic: str, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """Returns the least offset of a queue whose first offset at or above ``border`` is ``hot_first``.

        Raises the object store's error if it has to be asked and does not answer.
        """
        head = self._manifest.covering(border)
        expired = _expired(head, topic_id)
        found = self._known.get((topic_id, queue_id))
        if found is None or found[0] != expired:
            manifest = self._manifest
            first = despite_deletion(
                manifest,
                head,
                lambda newest: first_archived(
                    manifest, newest, border=border, topic_id=topic_id, topic=topic, queue_id=queue_id
                ),
            )
            found = self._known[topic_id, queue_id] = expired, hot_first if first is None else min(hot_first, first)
        return found[1]

    def find_without_waiting(self, topic: str, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """Returns the offset of :meth:`find`; what was known before, or ``hot_first``, until the archive has answered.

        It is asked beside the caller; an archive that was not even there when the store was opened is not asked.
        """
        if self._manifest.head is not None and not self.is_known(topic_id, queue_id):
            self._asker.ask(lambda: self.find(topic, topic_id, queue_id, border, hot_first))
        found = self.last_known(topic_id, queue_id)
        return hot_first if found is None else found

    def is_known(self, topic_id: int, queue_id: int) -> bool:
        """Whether nothing has expired since the archive was asked about a queue."""
        found, head = self._known.get((topic_id, queue_id)), self._manifest.head
        return found is not None and head is not None and found[0] == _expired(head, topic_id)

    def last_known(self, topic_id: int, queue_id: int) -> int | None:
        """Returns the offset as it was when the archive was asked last, None if it never answered."""
        found = self._known.get((topic_id, queue_id))
        return None if found is None else found[1]


def first_archived(
    manifest: ManifestStore, head: Head, *, border: int, topic_id: int, topic: str, queue_id: int
) -> int | None:
    """Returns the offset of a queue's first archived message that has not expired, None if there is none."""
    present_from_ms = dict(head.expired).get(topic_id)
    if present_from_ms is not None:
        return archived_offset_by_time(
            manifest,
            head,
            border=border,
            topic_id=topic_id,
            topic=topic,
            queue_id=queue_id,
            time_ms=present_from_ms,
            boundary=Boundary.LOWER,
        )
    for rows in itertools.islice(manifest.queue_row_pieces(manifest.reader(), head, topic_id, queue_id), 1):
        return int(rows["first_queue_offset"][0])
    return None


def _expired(head: Head, topic_id: int) -> _Expired:
    return head.cold_min, dict(head.expired).get(topic_id)


class DeclaredGaps:
    """The gaps that a head declares, in memory: the archive is asked once a change. Thread safe."""

    def __init__(self, manifest: ManifestStore | None) -> None:
        self._manifest = manifest
        self._asker = _Asker(manifest) if manifest else None
        self._known: tuple[str | None, _ByQueue] = (None, {})

    def of_without_waiting(self, head: Head, topic_id: int, queue_id: int) -> list[QueueGap] | None:
        """Returns the gaps of :meth:`of`, None until the archive has told them, which is asked beside the caller."""
        key = head.gaps.key if head.gaps else None
        if self._known[0] != key and self._asker is not None:
            self._asker.ask(lambda: self.of(head, topic_id, queue_id))
        known, by_queue = self._known
        return by_queue.get((topic_id, queue_id), []) if known == key else None

    def of(self, head: Head, topic_id: int, queue_id: int) -> list[QueueGap]:
        """Returns the gaps of one queue, ascending; the object store's error if they have to be read and cannot be."""
        key = head.gaps.key if head.gaps else None
        known, by_queue = self._known
        if known != key and self._manifest is not None:
            found: _ByQueue = defaultdict(list)
            for gap in sorted(self._manifest.gaps(self._manifest.reader(), head)):
                found[gap.topic_id, gap.queue_id].append(gap)
            by_queue = dict(found)
            self._known = key, by_queue
        return by_queue.get((topic_id, queue_id), [])

    def end_of_gap(self, head: Head | None, topic_id: int, queue_id: int, offset: int) -> int | None:
        """Returns the first offset after the gap that ``offset`` lies in, None if it lies in none."""
        for gap in self.of(head, topic_id, queue_id) if head else ():
            if gap.first_missing <= offset < gap.next_present:
                return gap.next_present
        return None


def queue_rows_from(
    catalogue: ArchiveCatalogue,
    reader: ArchiveReader,
    head: Head,
    *,
    topic_id: int,
    queue_id: int,
    offset: int,
    backwards: bool = False,
    lost: Lost | None = None,
) -> Iterator[QueueRows]:
    """Yields the rows of a queue from the piece on that may hold ``offset``, earlier segments first.

    ``backwards``: that piece, and then what precedes it, later segments first. No piece is empty. What cannot be read
    from there on is reported to ``lost``.
    """
    parts = _Parts(catalogue, reader, head)

    def rows_at(place: int, lost: Lost | None) -> QueueRows | None:
        part = parts.at(place, lost)
        if part is None or part.rows is None:
            return None
        rows = unless_lost(part, lost, partial(catalogue.rows_of, reader, part.rows, topic_id, queue_id))
        return rows if rows is not None and len(rows) else None

    # bisect for the last part that begins at or below the offset; parts without rows of the queue are stepped over
    low, high = 0, len(parts)
    try:
        while high - low > 1:
            middle = probe = (low + high) // 2
            while probe < high and (rows := rows_at(probe, None)) is None:
                probe += 1
            if probe == high or rows is None or rows["first_queue_offset"][0] > offset:
                high = middle
            else:
                low = probe
    except BudgetSpentError:
        raise
    except StoreError:
        if backwards:
            raise
        # what cannot be read is met again on the way from here, if it matters
    # its rows, and those of all later parts, or of all earlier ones
    for place in range(low, -1, -1) if backwards else range(low, len(parts)):
        found = rows_at(place, lost)
        if found is not None:
            yield found


class _Parts:
    """The manifest's leaves and the entries inside the head, as one sequence that is read where it is looked at."""

    def __init__(self, catalogue: ArchiveCatalogue, reader: ArchiveReader, head: Head) -> None:
        self._catalogue, self._reader, self._head = catalogue, reader, head
        self._ends = list(accumulate(node.count for node in head.log_tree))
        self._leaves = self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self._leaves + len(self._head.log)

    def at(self, place: int, lost: Lost | None) -> LogEntry | PageNode | None:
        """Returns the part at a place; None where the page that names it cannot be read."""
        if place >= self._leaves:
            return self._head.log[place - self._leaves]
        number = bisect_right(self._ends, place)
        node = self._head.log_tree[number]
        leaves = unless_lost(node, lost, partial(self._catalogue.leaves, self._reader, node))
        return None if leaves is None else leaves[place - self._ends[number]]


def archived_offset_by_time(
    manifest: ManifestStore,
    head: Head,
    *,
    border: int,
    topic_id: int,
    topic: str,
    queue_id: int,
    time_ms: int,
    boundary: Boundary,
) -> int | None:
    """Returns the queue offset of a store time among the archived messages below ``border``; None if none has one.

    ``LOWER``: the first message stored at or after the time. ``UPPER``: the last one stored at or before it. Messages
    that have expired do not count.
    """
    reader, is_upper = manifest.reader(), boundary is Boundary.UPPER
    present_from_ms = dict(head.expired).get(topic_id, EVER.from_ms)
    stored = (
        TimeRange(present_from_ms, time_ms + 1) if is_upper else TimeRange(max(time_ms, present_from_ms), EVER.to_ms)
    )
    for base in _segments(
        manifest, head, border=border, topic_id=topic_id, queue_id=queue_id, stored=stored, backwards=is_upper
    ):
        segment = SegmentReader(reader, manifest.entry_of_rows(reader, head, base))
        runs = segment.directory_rows(topic, queue_id)
        runs = [run for run in runs if stored.overlaps(run.min_store_ms, run.max_store_ms)]
        for run in reversed(runs) if is_upper else runs:  # the nearest decides, unless all of it was removed
            records = segment.records_of([run])
            offsets = [record.queue_offset for record in records if stored.contains(record.store_ms)]
            if offsets:
                return offsets[-1] if is_upper else offsets[0]
    return None


def _segments(
    manifest: ManifestStore,
    head: Head,
    *,
    border: int,
    topic_id: int,
    queue_id: int,
    stored: TimeRange,
    backwards: bool,
) -> Iterator[int]:
    """Segments with a message of the queue stored in that time, the nearest first."""
    pieces = manifest.queue_row_pieces(manifest.reader(), head, topic_id, queue_id, backwards=backwards, stored=stored)
    for rows in pieces:
        fits = (rows["min_store_ms"] < stored.to_ms) & (rows["max_store_ms"] >= stored.from_ms)
        bases = np.unique(rows["segment"][fits & (rows["segment"] < border)]).tolist()
        yield from reversed(bases) if backwards else bases
