"""The archived messages of one queue in order: queue rows lead to segments, a replay reads those."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tierlog.tiering.base.errors import ObjectNotFoundError, StoreError
from tierlog.tiering.base.types import EVER, Tier
from tierlog.tiering.cold.manifest.store import ManifestStore, despite_deletion, items_despite_deletion
from tierlog.tiering.cold.segment.queue_frames import QueuePiece
from tierlog.tiering.cold.segment.reader import FRAME_COLUMNS, QueueRuns, SegmentReader, items_between
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.generation import ByGeneration, record_topic
from tierlog.tiering.format.manifest import Head, LogEntry, PageNode
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.sorted_segment import FramePlace
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.stored_message import Messages, StoredMessage
from tierlog.tiering.read.archived_offsets import queue_rows_from
from tierlog.tiering.read.queue_replay import OpenReplays, QueueReplay

#: Of what a pull backwards decompresses at once.
_FIRST_WINDOW_BYTES, _MAX_WINDOW_BYTES = 256 << 10, 8 << 20


class _Lost:
    """Parts of the manifest below the border that cannot be read."""

    def __init__(self, border: int) -> None:
        self._border = border
        self._parts: list[tuple[int, StoreError]] = []

    def note(self, part: LogEntry | PageNode, error: StoreError) -> None:
        if part.first < self._border:
            self._parts.append((part.first, error))

    def raise_behind(self, base: int) -> None:
        """Raises if what cannot be read may follow the segment at ``base``: it would look like a gap, or the end."""
        for first, error in self._parts:
            if first > base:
                raise error


def archived_record(manifest: ManifestStore, head: Head, offset: int) -> Record | None:
    """Returns the archived record at a physical offset; None if none begins there, or if it has expired."""
    return despite_deletion(manifest, head, lambda newest: _record(manifest, newest, offset))


def _record(manifest: ManifestStore, head: Head, offset: int) -> Record | None:
    reader = manifest.reader()
    entry = manifest.segment_of(reader, head, offset)
    if entry is None:
        return None
    segment = SegmentReader(reader, entry)
    cold_offset = segment.cold_offset(offset)
    record = None if cold_offset is None else next(segment.records_at([cold_offset]))[1]
    if record is not None and head.expired:
        names = {state.topic_id: state.name for state in manifest.state(reader, head).topics}
        expired = ByGeneration({names[topic_id]: ms for topic_id, ms in head.expired if topic_id in names})
        if record.store_ms < expired.of(record.topic, offset, EVER.from_ms):
            return None
    return record


def archived_record_offsets(manifest: ManifestStore, head: Head, first: int, end: int) -> list[int]:
    """Returns where records of the physical range ``[first, end)`` of one segment begin, removed ones too.

    [] if it is gone.
    """

    def offsets(newest: Head) -> list[int]:
        reader = manifest.reader()
        entry = manifest.segment_of(reader, newest, first)
        return [] if entry is None else SegmentReader(reader, entry).physical_offsets(first, end).tolist()

    return despite_deletion(manifest, head, offsets)


@dataclass(frozen=True, slots=True)
class ColdQueue:
    """One queue of an archive, below ``border``."""

    manifest: ManifestStore
    replays: OpenReplays
    store_id: str
    border: int
    erased: Erasures
    topic_id: int
    name: str
    """Of the topic's entry."""
    queue_id: int

    @property
    def topic(self) -> str:
        """The topic that its records have."""
        return record_topic(self.name)

    def messages(self, head: Head, offset: int) -> Messages:
        """Offsets from ``offset`` on with the message there; None for one that is gone.

        Damage elsewhere in the queue is passed over; where the next offset may lie in what cannot be read, the error is
        raised. Closed before its end, it leaves a replay to go on with.
        """
        with contextlib.closing(self.pieces(head, offset)) as pieces:
            for piece in pieces:
                yield from self.messages_in(piece, head, offset)

    def messages_in(self, piece: QueuePiece, head: Head, offset: int) -> Messages:
        """Returns what of :meth:`messages` is left in a piece, of which each is passed once the next is asked for."""
        present_from_ms = self.present_from_ms(head)
        while not piece.is_read:
            item = piece.item()
            if item.queue_offset >= offset:
                yield item.queue_offset, self.shown(item, present_from_ms)
            piece.go_behind(item, offset)

    def messages_below(self, head: Head, below: int, least: int, expects: int) -> Messages:
        """Offsets of ``[least, below)``, the last first, with the message there; None for one that is gone.

        Frames are read together, as many as have ``expects`` records, and twice as many bytes each time beyond that.
        What cannot be read raises where it comes up: something between two messages might lie there.
        """
        present_from_ms, window_bytes = self.present_from_ms(head), _FIRST_WINDOW_BYTES
        for segment, runs in self._runs_below(head, below, least):
            end = len(runs)
            while end:
                begin = _window(runs, end, window_bytes, expects)
                window_bytes = min(2 * window_bytes, _MAX_WINDOW_BYTES)
                places = {run.position: run for run in map(_place, runs[begin:end])}
                frames = self._frames(segment, places)
                for run in runs[begin:end][::-1]:
                    start = int(run["position"])
                    position = int(run["frame_position"])
                    frame = frames[position] if position in frames else segment.frame(places[position])
                    items = list(items_between(frame, start, start + int(run["bytes"])))
                    for item in reversed(items):
                        if least <= item.queue_offset < below:
                            yield item.queue_offset, self.shown(item, present_from_ms)
                expects -= int(runs["records"][begin:end].sum())
                end = begin

    @staticmethod
    def _frames(segment: SegmentReader, places: dict[int, FramePlace]) -> dict[int, bytes]:
        """Returns frames by their positions; none if one of them cannot be read: then they are read as they come up."""
        try:
            return dict(zip(places, segment.frames(list(places.values())), strict=True))
        except ObjectNotFoundError:
            raise
        except StoreError:
            return {}

    def _runs_below(self, head: Head, below: int, least: int) -> Iterator[tuple[SegmentReader, QueueRuns]]:
        """Yields the segments that hold the queue below an offset, the last first, with what they have of that."""
        reader = self.manifest.reader()
        for rows in queue_rows_from(
            self.manifest,
            reader,
            head,
            topic_id=self.topic_id,
            queue_id=self.queue_id,
            offset=below - 1,
            backwards=True,
        ):
            first, end = rows["first_queue_offset"], rows["first_queue_offset"] + rows["count"]
            bases = rows["segment"][(first < below) & (end > least) & (rows["segment"] < self.border)]
            for base in np.unique(bases)[::-1].tolist():
                segment = SegmentReader(reader, self.manifest.entry_of_rows(reader, head, base))
                runs = segment.queue_runs(self.name, self.queue_id)
                first = runs["first_queue_offset"]
                yield segment, runs[(first < below) & (first + runs["records"] > least)]
            if int(rows["first_queue_offset"].min()) <= least:
                return

    def shown(self, item: Record | Filler, present_from_ms: int) -> StoredMessage | None:
        """Returns the message, unless it is gone."""
        if isinstance(item, Filler) or self.erased.hides(item) or item.store_ms < present_from_ms:
            return None
        return StoredMessage(item, self.store_id, Tier.COLD)

    def present_from_ms(self, head: Head) -> int:
        """Returns the store time before which everything of the topic has expired."""
        return dict(head.expired).get(self.topic_id, EVER.from_ms)

    def pieces(self, head: Head, offset: int) -> Generator[QueuePiece]:
        """The records from ``offset`` on, some before them, and fillers, in pieces, each of which is read to its end.

        Closed before that, it leaves a replay to go on with at the piece's ``next_offset``.
        """
        numbered = items_despite_deletion(self.manifest, head, self._pieces, offset)
        with contextlib.closing(numbered):
            for _, piece in numbered:
                yield piece

    def _pieces(self, head: Head, offset: int) -> Generator[tuple[int, QueuePiece]]:
        begin = partial(self._begin, head, offset)
        left_at = offset
        replay, was_left = self.replays.take(head.version, (self.topic_id, self.queue_id, offset), begin)
        while True:
            is_empty = True
            try:
                for piece in replay.pieces():
                    is_empty = False
                    piece.next_offset = left_at
                    try:
                        yield piece.last_offset, piece
                    except GeneratorExit:
                        if piece.is_damaged:
                            replay.drop()
                        else:
                            key = self.topic_id, self.queue_id, piece.next_offset
                            self.replays.leave(head.version, key, replay)
                        raise
                    left_at = piece.next_offset
            except GeneratorExit:
                raise
            except BaseException:
                replay.drop()
                raise
            replay.drop()
            if not (is_empty and was_left):
                return
            replay, was_left = begin(), False  # it went as far as the border was then

    def _begin(self, head: Head, offset: int) -> QueueReplay:
        return QueueReplay(
            lambda scan: self.manifest.reader(scan=scan), self._segments(head, offset), topic=self.name,
            queue_id=self.queue_id, offset=offset, budget=self.replays.budget, pool=self.replays.pool,
        )  # fmt: skip

    def _segments(self, head: Head, offset: int) -> Iterator[LogEntry]:
        """Yields the segments that hold the queue from an offset on, ascending."""
        reader, lost = self.manifest.reader(), _Lost(self.border)
        next_offset, base = offset, -1
        for rows in queue_rows_from(
            self.manifest, reader, head, topic_id=self.topic_id, queue_id=self.queue_id, offset=offset, lost=lost.note
        ):
            rows = rows[(rows["first_queue_offset"] + rows["count"] > offset) & (rows["segment"] < self.border)]
            for row in rows:
                first = int(row["first_queue_offset"])
                if first > next_offset:
                    lost.raise_behind(base)
                next_offset = first + int(row["count"])
                if row["segment"] != base:
                    base = int(row["segment"])
                    yield self.manifest.entry_of_rows(reader, head, base)
        lost.raise_behind(base)


def _place(run: np.void) -> FramePlace:
    return FramePlace(*(int(run[name]) for name in FRAME_COLUMNS))


def _window(runs: QueueRuns, end: int, window_bytes: int, expects: int) -> int:
    """Returns the first run of a window that ends before ``end``; a frame is never in two windows."""
    begin, raw_bytes, records = end, 0, 0
    while begin:
        is_new = begin == end or runs["frame_position"][begin - 1] != runs["frame_position"][begin]
        raw_bytes += int(runs["frame_bytes"][begin - 1]) if is_new else 0
        is_enough = records >= expects and raw_bytes > window_bytes
        if is_new and begin < end and (is_enough or raw_bytes > _MAX_WINDOW_BYTES):
            return begin
        records += int(runs["records"][begin - 1])
        begin -= 1
    return begin
