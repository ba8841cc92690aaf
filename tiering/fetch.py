"""Reads a queue in order from whichever tier holds the offset asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.segment_reader import SegmentReader
from tiering.errors import CorruptionError, ObjectNotFoundError, TopicNotFoundError, UnavailableError
from tiering.format.hashing import tag_hash
from tiering.format.manifest import Head
from tiering.format.queue_rows import QueueRows
from tiering.hot.consume_queue import QueueView
from tiering.hot.store import HotSnapshot, HotStore
from tiering.message import StoredMessage
from tiering.types import PullStatus, Tier

_ColdRows = tuple[tuple[ArchiveReader, Head], QueueRows]
_MAX_BYTES = 4 << 20
_HOT_STEP = 256


@dataclass(slots=True)
class PullResult:
    """Answer of a pull. ``min_offset`` counts both tiers; ``next_offset`` is where to go on."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _HotQueue:
    """The hot part of a queue as one snapshot shows it: messages in ``[first, end)``."""

    topic_id: int
    snapshot: HotSnapshot
    view: QueueView | None
    first: int
    end: int


class Fetcher:
    """Pulls from one store, whose hot tier, cold tier or neither may be missing."""

    def __init__(self, store_id: str, hot: HotStore | None, manifest: ManifestStore | None) -> None:
        self._store_id = store_id
        self._hot = hot
        self._manifest = manifest

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
        """Up to ``limit`` messages from ``offset`` on, in order, about 4 MiB at most.

        One answer comes from one tier. Raises :class:`TopicNotFoundError` for an unknown topic or queue, the object
        store's error if the cold tier is needed and does not answer, :class:`ReadOnlyError` at the end of a queue
        that may go on in records which dispatching failed to reach.
        """
        if self._hot is None:
            return self._pull_cold_only(topic, queue_id, offset, limit, tag)
        with self._hot_queue(self._hot, topic, queue_id) as queue:
            rows = self._rows_below(queue, queue_id, needed=offset < queue.first)
            first = _first(rows, queue.first)
            edge = _edge(offset, first, queue.end)
            if edge is not None:
                if offset >= queue.end:
                    queue.snapshot.require_dispatched()
                return edge
            if offset >= queue.first:
                messages, tier_end = self._hot_messages(queue, offset, tag), queue.end
            else:
                assert rows is not None
                messages, tier_end = self._cold_messages(rows[0], rows[1], topic, queue_id, offset), queue.first
            return _collect(messages, offset, min(limit, 10_000), tag, first, queue.end, tier_end)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(least, next) offset of a queue over both tiers; the hot tier's least where the archive cannot be read."""
        if self._hot is None:
            answer = self._pull_cold_only(topic, queue_id, -1, 0, None)
            return answer.min_offset, answer.max_offset
        with self._hot_queue(self._hot, topic, queue_id) as queue:
            return _first(self._rows_below(queue, queue_id, needed=False), queue.first), queue.end

    @staticmethod
    @contextlib.contextmanager
    def _hot_queue(hot: HotStore, topic: str, queue_id: int) -> Iterator[_HotQueue]:
        found = hot.topics.get(topic)
        if not 0 <= queue_id < found.queues:
            raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}")
        floor = found.floors.get(queue_id, 0)  # read first: it then counts no message that the snapshot lacks
        with hot.snapshot() as snapshot:
            view = hot.queues.view(found.topic_id, queue_id)
            if view is None:
                yield _HotQueue(found.topic_id, snapshot, None, floor, floor)
            else:
                view = view.until(snapshot.end)
                first = view.first_at_or_above(snapshot.border)
                yield _HotQueue(found.topic_id, snapshot, view, first, max(view.next, floor))

    def _pull_cold_only(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None) -> PullResult:
        assert self._manifest is not None
        head = self._manifest.refresh()
        reader = self._manifest.reader()
        for state in self._manifest.state(reader, head).topics:
            if state.name == topic and 0 <= queue_id < state.queues:
                rows = self._manifest.queue_rows(reader, head, state.topic_id, queue_id)
                first = int(rows["first_queue_offset"][0]) if len(rows) else 0
                end = int((rows["first_queue_offset"] + rows["count"])[-1]) if len(rows) else 0
                messages = self._cold_messages((reader, head), rows, topic, queue_id, offset)
                return _edge(offset, first, end) or _collect(messages, offset, limit, tag, first, end, end)
        raise TopicNotFoundError(f"no such topic or queue {topic!r}/{queue_id} in the archive")

    def _rows_below(self, queue: _HotQueue, queue_id: int, *, needed: bool) -> _ColdRows | None:
        """Queue rows of segments below the border; only a pull that needs them fails if they cannot be read."""
        border = queue.snapshot.border
        if self._manifest is None or border == 0:
            return None
        if self._manifest.head is None and not needed:
            return None
        reader = self._manifest.reader()
        try:
            head = self._manifest.covering(border)
            rows = self._manifest.queue_rows(reader, head, queue.topic_id, queue_id)
        except ObjectNotFoundError:
            if self._manifest.head is not None:
                raise
            return None  # the border rose before this store had an archive
        except UnavailableError:
            if needed:
                raise
            return None
        return (reader, head), rows[rows["segment"] < border]

    def _hot_messages(
        self, queue: _HotQueue, offset: int, tag: str | None
    ) -> Iterator[tuple[int, StoredMessage | None]]:
        wanted = None if tag is None else tag_hash(tag)
        while queue.view is not None and offset < queue.view.next:
            for unit in queue.view.units(offset, offset + _HOT_STEP):
                if wanted is not None and unit["tag_hash"] != wanted:
                    yield offset, None
                else:
                    record = queue.snapshot.record(int(unit["physical_offset"]))
                    yield offset, StoredMessage(record, self._store_id, Tier.HOT)
                offset += 1

    def _cold_messages(
        self, source: tuple[ArchiveReader, Head], rows: QueueRows, topic: str, queue_id: int, offset: int
    ) -> Iterator[tuple[int, StoredMessage | None]]:
        assert self._manifest is not None
        reader, head = source
        for base in dict.fromkeys(int(row["segment"]) for row in rows if _end(row) > offset):
            entry = self._manifest.log_entry(reader, head, base)
            if entry is None:
                raise CorruptionError(f"queue rows name segment {base}, which the manifest lacks")
            segment = SegmentReader(reader, entry)
            runs = [
                run for run in segment.directory_rows(topic, queue_id) if run.first_queue_offset + run.records > offset
            ]
            for record in segment.records_of(runs):
                if record.queue_offset >= offset:
                    yield record.queue_offset, StoredMessage(record, self._store_id, Tier.COLD)


def _first(rows: _ColdRows | None, hot_first: int) -> int:
    """The least offset of both tiers."""
    return int(rows[1]["first_queue_offset"][0]) if rows and len(rows[1]) else hot_first


def _end(row: QueueRows) -> int:
    return int(row["first_queue_offset"] + row["count"])


def _edge(offset: int, first: int, end: int) -> PullResult | None:
    """The answer for an offset that holds nothing, or None."""
    if offset < first:
        return PullResult(PullStatus.OFFSET_TOO_SMALL, first, first, end)
    if offset > end:
        return PullResult(PullStatus.OFFSET_TOO_LARGE, end, first, end)
    if offset == end:
        return PullResult(PullStatus.NO_NEW_MESSAGE, end, first, end)
    return None


def _collect(
    messages: Iterator[tuple[int, StoredMessage | None]],
    offset: int,
    limit: int,
    tag: str | None,
    first: int,
    end: int,
    tier_end: int,
) -> PullResult:
    result = PullResult(PullStatus.NO_MATCHED_MESSAGE, offset, first, end)
    size = 0
    for at, message in messages:
        if len(result.messages) == limit or size > _MAX_BYTES:
            return result
        result.next_offset = at + 1
        if message is not None and (tag is None or message.tag == tag):
            result.messages.append(message)
            result.status = PullStatus.FOUND
            size += message.record.size
    if result.next_offset == offset:
        # nothing lies between here and the next tier: a gap, whose end is where to go on
        result.next_offset = max(offset, tier_end)
    return result
