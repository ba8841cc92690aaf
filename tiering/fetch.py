"""Reads a queue in order from whichever tier holds the offset asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.segment_reader import SegmentReader
from tiering.errors import CorruptionError, ObjectNotFoundError, TopicNotFoundError
from tiering.first_offsets import FirstOffsets
from tiering.format.hashing import tag_hash
from tiering.format.manifest import Head
from tiering.hot.consume_queue import QueueView
from tiering.hot.snapshot import HotSnapshot
from tiering.hot.store import HotStore
from tiering.message import StoredMessage
from tiering.types import PullStatus, Tier

# What one pull looks at is bounded, so that a tag which nobody has does not read a whole queue.
_MAX_MESSAGES = 10_000
_MAX_FOUND_BYTES = 4 << 20
_MAX_READ_BYTES = 16 << 20
_HOT_STEP = 256

#: Offsets in order with the message there, None where the tag's hash alone rules it out.
_Messages = Iterator[tuple[int, StoredMessage | None]]


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
    queue_id: int
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
        self._firsts = FirstOffsets(manifest) if manifest else None

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
        """Up to ``limit`` messages from ``offset`` on, in order, about 4 MiB at most.

        One answer comes from one tier and from at most 10,000 messages or 16 MiB that were looked at, whether or not
        they have the tag. Raises :class:`TopicNotFoundError` for an unknown topic or queue, the object store's error
        if the cold tier is needed and does not answer, :class:`ReadOnlyError` at the end of a queue that may go on in
        records which dispatching failed to reach.
        """
        if self._hot is None:
            return self._pull_cold_only(topic, queue_id, offset, limit, tag)
        with self._hot_queue(self._hot, topic, queue_id) as queue:
            is_hot = offset >= queue.first
            first = self._first_without_waiting(queue) if is_hot else self._first(queue)
            if offset >= queue.end:
                queue.snapshot.require_dispatched()
            edge = _edge(offset, first, queue.end)
            if edge is not None:
                return edge
            if is_hot:
                messages, tier_end = self._hot_messages(queue, offset, tag), queue.end
            else:
                messages, tier_end = self._archived_messages(queue, topic, offset), queue.first
            return _collect(messages, offset, limit, tag, first, queue.end, tier_end)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(least, next) offset of a queue over both tiers; the hot tier's least until the archive has answered."""
        if self._hot is None:
            answer = self._pull_cold_only(topic, queue_id, -1, 0, None)
            return answer.min_offset, answer.max_offset
        with self._hot_queue(self._hot, topic, queue_id) as queue:
            return self._first_without_waiting(queue), queue.end

    # the hot tier

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
                yield _HotQueue(found.topic_id, queue_id, snapshot, None, floor, floor)
            else:
                view = view.until(snapshot.end)
                first = view.first_at_or_above(snapshot.border)
                yield _HotQueue(found.topic_id, queue_id, snapshot, view, first, max(view.next, floor))

    def _hot_messages(self, queue: _HotQueue, offset: int, tag: str | None) -> _Messages:
        wanted = None if tag is None else tag_hash(tag)
        while queue.view is not None and offset < queue.view.next:
            for unit in queue.view.units(offset, offset + _HOT_STEP):
                if wanted is not None and unit["tag_hash"] != wanted:
                    yield offset, None
                else:
                    record = queue.snapshot.record(int(unit["physical_offset"]))
                    yield offset, StoredMessage(record, self._store_id, Tier.HOT)
                offset += 1

    # the archive below it

    def _first(self, queue: _HotQueue) -> int:
        """The least offset of both tiers; the object store's error if it cannot be learnt."""
        border = queue.snapshot.border
        if self._manifest is None or self._firsts is None or border == 0:
            return queue.first
        try:
            return self._firsts.find(queue.topic_id, queue.queue_id, border, queue.first)
        except ObjectNotFoundError:
            if self._manifest.head is not None:
                raise
            return queue.first  # the border rose before this store had an archive

    def _first_without_waiting(self, queue: _HotQueue) -> int:
        border = queue.snapshot.border
        if self._firsts is None or border == 0:
            return queue.first
        return self._firsts.find_without_waiting(queue.topic_id, queue.queue_id, border, queue.first)

    def _archived_messages(self, queue: _HotQueue, topic: str, offset: int) -> _Messages:
        assert self._manifest is not None
        border = queue.snapshot.border
        head = self._manifest.covering(border)
        return self._cold_messages(head, border, queue.topic_id, topic, queue.queue_id, offset)

    # the archive alone

    def _pull_cold_only(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None) -> PullResult:
        assert self._manifest is not None
        head = self._manifest.refresh()
        reader = self._manifest.reader()
        for state in self._manifest.state(reader, head).topics:
            if state.name == topic and 0 <= queue_id < state.queues:
                first, end = self._archived_range(reader, head, state.topic_id, queue_id)
                messages = self._cold_messages(head, head.archived_to, state.topic_id, topic, queue_id, offset)
                return _edge(offset, first, end) or _collect(messages, offset, limit, tag, first, end, end)
        raise TopicNotFoundError(f"no such topic or queue {topic!r}/{queue_id} in the archive")

    def _archived_range(self, reader: ArchiveReader, head: Head, topic_id: int, queue_id: int) -> tuple[int, int]:
        assert self._manifest is not None
        for early in self._manifest.queue_row_pieces(reader, head, topic_id, queue_id):
            late = next(self._manifest.queue_row_pieces(reader, head, topic_id, queue_id, backwards=True))[-1]
            return int(early["first_queue_offset"][0]), int(late["first_queue_offset"] + late["count"])
        return 0, 0

    def _cold_messages(
        self, head: Head, border: int, topic_id: int, topic: str, queue_id: int, offset: int
    ) -> _Messages:
        assert self._manifest is not None
        reader = self._manifest.reader()
        for rows in self._manifest.queue_row_pieces(reader, head, topic_id, queue_id):
            wanted = (rows["first_queue_offset"] + rows["count"] > offset) & (rows["segment"] < border)
            for base in np.unique(rows["segment"][wanted]).tolist():
                entry = self._manifest.log_entry(reader, head, base)
                if entry is None:
                    raise CorruptionError(f"queue rows name segment {base}, which the manifest lacks")
                segment = SegmentReader(reader, entry)
                runs = segment.directory_rows(topic, queue_id)
                runs = [run for run in runs if run.first_queue_offset + run.records > offset]
                for record in segment.records_of(runs):
                    if record.queue_offset >= offset:
                        yield record.queue_offset, StoredMessage(record, self._store_id, Tier.COLD)


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
    messages: _Messages, offset: int, limit: int, tag: str | None, first: int, end: int, tier_end: int
) -> PullResult:
    result = PullResult(PullStatus.NO_MATCHED_MESSAGE, offset, first, end)
    found_bytes = read_bytes = 0
    for looked_at, (at, message) in enumerate(messages):
        if len(result.messages) == limit or looked_at == _MAX_MESSAGES:
            return result
        if found_bytes > _MAX_FOUND_BYTES or read_bytes > _MAX_READ_BYTES:
            return result
        result.next_offset = at + 1
        if message is None:
            continue
        read_bytes += message.record.size
        if tag is None or message.tag == tag:
            result.messages.append(message)
            result.status = PullStatus.FOUND
            found_bytes += message.record.size
    if result.next_offset == offset:
        # nothing lies between here and the next tier: a gap, whose end is where to go on
        result.next_offset = max(offset, tier_end)
    return result
