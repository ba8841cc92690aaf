"""Reads from whichever tier holds it: a queue in order, the offset of a time, one message by its id."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tierlog.tiering.base.errors import (
    CorruptionError,
    MessageNotFoundError,
    ObjectNotFoundError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.types import Boundary, PullStatus, Tier, count_present
from tierlog.tiering.cold.manifest.store import ManifestStore, despite_deletion
from tierlog.tiering.cold.reading.gate import entering_archive
from tierlog.tiering.format.manifest import Head, QueueGap
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.store_state import TopicState
from tierlog.tiering.hot.snapshot_queue import shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.lifecycle.tombstones import Erasures, KnownErasures
from tierlog.tiering.message.arrow_schema import schema_of
from tierlog.tiering.message.stored_message import StoredMessage, offset_in_message_id
from tierlog.tiering.message.tags import TagFilter
from tierlog.tiering.read.archived_offsets import DeclaredGaps, FirstOffsets, archived_offset_by_time, first_archived
from tierlog.tiering.read.cold_queue import ColdQueue, archived_record, archived_record_offsets
from tierlog.tiering.read.hot_queue import HotQueue, hot_record
from tierlog.tiering.read.pull_batch import BatchCollector, Columns, PulledBatch
from tierlog.tiering.read.pull_records import RECORD_BYTES, PulledRecords, RecordCollector
from tierlog.tiering.read.pull_result import (
    MAX_MESSAGES,
    BackwardCollector,
    Collector,
    MessageCollector,
    PullExtent,
    PullResult,
    edge_of,
)
from tierlog.tiering.read.queue_replay import OpenReplays

_HEAD_AGE_S = 2.0
_MOST_RANGES = 10_000
T = TypeVar("T")


class QueueSpan(NamedTuple):
    """The offsets ``[first, next)`` of a queue over both tiers; ``first`` is the hot tier's while it is not known."""

    first: int
    next: int
    is_first_known: bool


class Fetcher:
    """Pulls from one store, whose hot tier, cold tier or neither may be missing."""

    def __init__(
        self,
        store_id: str,
        hot: HotStore | None,
        manifest: ManifestStore | None,
        known: KnownErasures | None = None,
    ) -> None:
        """``known``: what a store with a hot tier has to hide; for an archive alone its head says so."""
        self._store_id = store_id
        self._known = known or KnownErasures(manifest)
        self._hot = hot
        self._manifest = manifest
        self._firsts = FirstOffsets(manifest) if manifest else None
        self._replays = OpenReplays(manifest.options.read_ahead_bytes if manifest else 0)
        #: First and next offsets of queues, as versions of the head say: pulls that follow each other ask alike.
        self._ranges: dict[tuple[int, int, int], tuple[int, int]] = {}
        #: What the archive declares that no queue has.
        self.gaps = DeclaredGaps(manifest)

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None, *, backward: bool = False
    ) -> PullResult:
        """Returns up to ``limit`` messages in order from ``offset`` on, 4 MiB or so at most; ``tag`` is an expression.

        One answer comes from one tier and from at most 10,000 messages or 16 MiB that were looked at, whether or not
        they have the tag. Raises :class:`TopicNotFoundError` for an unknown topic or queue, the object store's error
        if the cold tier is needed and does not answer, :class:`ReadOnlyError` at the end of a queue that may go on in
        records which dispatching failed to reach. A damaged message ends the answer before it; a pull that begins there
        raises :class:`CorruptionError`, which names it and says how to go on.

        ``backward`` gives the messages below ``offset``, the last one first, and the same promises; an offset beyond
        the end of the queue is its end. To go on, ask below ``next_offset``; at or below ``min_offset`` there is
        nothing left, and OFFSET_TOO_SMALL says so.
        """
        wanted = TagFilter.parse(tag)
        if backward:
            return self._pull_below(topic, queue_id, offset, limit, wanted)
        return self._pull(topic, queue_id, offset, MessageCollector(self._store_id, limit, wanted))

    def pull_batch(self, topic: str, queue_id: int, offset: int, limit: int, columns: Columns = None) -> PulledBatch:
        """As :meth:`pull`, with the messages as one record batch of these columns; None stands for all of them.

        Columns are those of :data:`~tiering.message.arrow_schema.MESSAGE_SCHEMA`, and what is not asked for costs
        nothing. Raises also :class:`InvalidRequestError` for an unknown column.
        """
        return self._pull(topic, queue_id, offset, BatchCollector(self._store_id, limit, schema_of(columns)))

    @contextlib.contextmanager
    def pull_records(
        self, topic: str, queue_id: int, offset: int, limit: int, *, max_bytes: int = RECORD_BYTES,
        tag_hashes: frozenset[int] | None = None,
    ) -> Iterator[PulledRecords]:  # fmt: skip
        """As :meth:`pull`, with the records as they lie in the log; they may be read inside the context only.

        Its records have ``max_bytes`` together at most, unless one alone has more. With ``tag_hashes``, the hash of a
        record's tag, which is 0 without one, has to be among them: two tags may have one hash, so whoever reads the
        records compares the tag. Removals wait for the end of the context, unless everything was archived.
        """
        collector = RecordCollector(limit, max_bytes, tag_hashes)
        if self._hot is None:
            with entering_archive():
                pulled = self._pull_cold_only(topic, queue_id, offset, collector)
            yield pulled
            return
        with contextlib.ExitStack() as pinned:
            queue = pinned.enter_context(HotQueue.opened(self._hot, topic, queue_id))
            pulled = self._pull_both(queue, offset, collector)
            if not collector.is_pinned:
                pinned.close()
            yield pulled

    def _pull(self, topic: str, queue_id: int, offset: int, collector: Collector[T]) -> T:
        if self._hot is None:
            with entering_archive():
                return self._pull_cold_only(topic, queue_id, offset, collector)
        with HotQueue.opened(self._hot, topic, queue_id) as queue:
            return self._pull_both(queue, offset, collector)

    def _pull_both(self, queue: HotQueue, offset: int, collector: Collector[T]) -> T:
        """Pulls from the tier that has the offset."""
        topic, queue_id = queue.name, queue.queue_id
        if offset < queue.begin:  # of a topic that was deleted and made again
            return collector.nothing(PullStatus.OFFSET_TOO_SMALL, queue.begin, queue.begin, queue.end)
        is_hot = offset >= queue.first
        with contextlib.nullcontext() if is_hot else entering_archive():
            first = self._first_without_waiting(queue) if is_hot else _or_zero(lambda: self._first(queue))
            if offset >= queue.end:
                queue.snapshot.require_dispatched()
            head = None if is_hot else self._head_below(queue.snapshot.border)
            gap_end = self.gaps.end_of_gap(head, queue.topic_id, queue_id, offset)
            edge = edge_of(offset, first, queue.end, gap_end)
            if edge is not None:
                return collector.nothing(*edge)
            if is_hot:
                behind = queue.behind_gap(offset)
                if behind > offset:
                    return collector.nothing(PullStatus.NO_MATCHED_MESSAGE, behind, first, queue.end)
                with _naming(topic, queue_id, offset):
                    return collector.from_hot(
                        queue.until_gap(offset, MAX_MESSAGES),
                        self._known.current(),
                        PullExtent(offset, first, queue.end, queue.end),
                    )
            assert self._manifest is not None
            border = queue.snapshot.border
            head = self._manifest.covering(border)
            archived = self._cold_queue(head, border, queue.topic_id, topic, queue_id)
            with _naming(topic, queue_id, offset):
                return collector.from_cold(archived, head, PullExtent(offset, first, queue.end, queue.first))

    def _pull_below(
        self, topic: str, queue_id: int, below: int, limit: int, wanted: TagFilter | None
    ) -> PullResult:  # fmt: skip
        """Pulls backwards from the tier that has the offset before ``below``."""
        if self._hot is None:
            with entering_archive():
                return self._pull_archived_below(topic, queue_id, below, limit, wanted)
        with HotQueue.opened(self._hot, topic, queue_id) as queue:
            if below >= queue.end:
                queue.snapshot.require_dispatched()
                below = queue.end
            is_hot = below > queue.first
            with contextlib.nullcontext() if is_hot else entering_archive():
                # readers end there, so an archive that has not answered yet must not make it the hot tier's
                first = self._least_known(queue, lambda: True) if is_hot else _or_zero(lambda: self._first(queue))
                if below <= max(first, queue.begin):
                    return MessageCollector(self._store_id, limit, wanted).nothing(
                        PullStatus.OFFSET_TOO_SMALL, below, first, queue.end
                    )
                collector = BackwardCollector(self._store_id, limit, wanted, max(first, queue.begin))
                with _naming(queue.name, queue_id, below - 1, backward=True):
                    if is_hot:
                        extent = PullExtent(below, first, queue.end, queue.first)
                        return collector.from_hot(queue, self._known.current(), extent)
                    assert self._manifest is not None
                    border = queue.snapshot.border
                    head = self._manifest.covering(border)
                    archived = self._cold_queue(head, border, queue.topic_id, queue.name, queue_id)
                    return collector.from_cold(archived, head, PullExtent(below, first, queue.end, first))

    def _pull_archived_below(
        self, topic: str, queue_id: int, below: int, limit: int, wanted: TagFilter | None
    ) -> PullResult:  # fmt: skip
        head, state = self._archived_topic(topic, queue_id)
        first, end = self._pulled_range(head, state, queue_id, below)
        below, least = min(below, end), state.begin(queue_id)
        collector = BackwardCollector(self._store_id, limit, wanted, max(first, least))
        if below <= max(first, least):
            return collector.nothing(PullStatus.OFFSET_TOO_SMALL, below, first, end)
        queue = self._cold_queue(head, head.archived_to, state.topic_id, state.name, queue_id)
        with _naming(topic, queue_id, below - 1, backward=True):
            return collector.from_cold(queue, head, PullExtent(below, first, end, first))

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(least, next) offset of a queue over both tiers; the hot tier's least until the archive has answered."""
        if self._hot is None:
            head, state = self._archived_topic(topic, queue_id)
            return self._archived_range(head, state, queue_id)
        with HotQueue.opened(self._hot, topic, queue_id) as queue:
            return self._first_without_waiting(queue), queue.end

    def ranges(self, topics: Sequence[Topic]) -> list[list[QueueSpan]]:
        """Returns what :meth:`offsets` tells of every queue of some topics of the hot tier, all in one snapshot.

        A queue that nothing was ever put in costs no look anywhere.
        """
        assert self._hot is not None
        floors = [[topic.floor(queue_id) for queue_id in range(topic.queues)] for topic in topics]
        found = []
        with self._hot.snapshot() as snapshot:
            for topic, known in zip(topics, floors, strict=True):
                shown = shown_queues(self._hot, snapshot, topic)
                queues = (
                    HotQueue.seen(topic, queue_id, snapshot, shown.get(queue_id), floor)
                    for queue_id, floor in enumerate(known)
                )
                found.append([self._range(queue) for queue in queues])
        return found

    def _range(self, queue: HotQueue) -> QueueSpan:
        first = self._first_without_waiting(queue)
        return QueueSpan(first, queue.end, self._is_first_known(queue))

    def declared_gaps(self, topic: str, queue_id: int) -> list[tuple[int, int]] | None:
        """Ranges of a queue's offsets that a restore left out, ascending; None while the archive cannot tell.

        With a hot tier nobody waits for the archive, which is asked once, for all queues, after each restore.
        """
        gaps: list[QueueGap] | None
        if self._manifest is None:
            return self._hot.queues.gaps(self._hot.topics.get(topic), queue_id) if self._hot is not None else []
        if self._hot is None:
            head, state = self._archived_topic(topic, queue_id)
            try:
                gaps = self.gaps.of(head, state.topic_id, queue_id)
            except StoreError:
                gaps = None
        elif self._hot.queues.followed_below == self._hot.topics.first_offset == 0:
            return []  # no restore has ever made this store, and no broker wrote its log, so nothing was left out
        elif self._manifest.head is None:
            return None if self._manifest.had_head else self._hot.queues.gaps(self._hot.topics.get(topic), queue_id)
        else:
            found = self._hot.topics.get(topic)
            gaps = self.gaps.of_without_waiting(self._manifest.head, found.topic_id, queue_id)
            hot_gaps = self._hot.queues.gaps(found, queue_id)
            if gaps is not None and hot_gaps:
                return sorted({*hot_gaps, *((gap.first_missing, gap.next_present) for gap in gaps)})
        return None if gaps is None else [(gap.first_missing, gap.next_present) for gap in gaps]

    def present(self, topic: str, queue_id: int, start: int, end: int) -> int | None:
        """Counts the offsets of ``[start, end)`` of a queue that are in no gap; None while the archive cannot tell."""
        return count_present(start, end, self.declared_gaps(topic, queue_id))

    def lag(self, topic: str, queue_id: int, offset: int, may_ask: Callable[[], bool] = lambda: True) -> int | None:
        """Counts the messages of a queue from ``offset`` on over both tiers; for a store with a hot tier.

        None while the archive cannot tell which offsets a restore left out. Where ``offset`` lies below everything hot,
        the archive tells where the queue begins now, and is asked once if ``may_ask``; until then, what has expired
        counts. Nobody waits for it.
        """
        assert self._hot is not None
        with HotQueue.opened(self._hot, topic, queue_id) as queue:
            start, end = max(offset, queue.begin), queue.end
            if start < queue.first:
                start = max(start, self._least_known(queue, may_ask))
        return self.present(topic, queue_id, start, end)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Returns the queue offset that belongs to a store time, as if both tiers were one.

        ``LOWER``: the first message stored at or after the time; the queue's end if there is none. ``UPPER``: the last
        message stored at or before it; 0 if there is none, as RocketMQ answers, even where the queue begins later.
        Raises what :meth:`pull` raises; the archive is asked only if the hot messages do not decide.
        """
        # an archive alone
        if self._hot is None:
            head, state = self._archived_topic(topic, queue_id)
            found = self._archived_by_time(
                head,
                head.archived_to,
                topic_id=state.topic_id,
                topic=state.name,
                queue_id=queue_id,
                time_ms=time_ms,
                boundary=boundary,
            )
            if found is None:
                is_lower = boundary is Boundary.LOWER
                found = self._archived_end(head, state, queue_id, 0) if is_lower else 0
            return _not_deleted(found, state.begin(queue_id), boundary)
        # both tiers: the archive is asked only where a message below the hot ones may be nearer
        with HotQueue.opened(self._hot, topic, queue_id) as queue:
            found = queue.decided_by_time(time_ms, boundary)
            if found is None:
                border = queue.snapshot.border
                with entering_archive():
                    head_below = self._head_below(border)
                    if head_below is not None:
                        found = self._archived_by_time(
                            head_below,
                            border,
                            topic_id=queue.topic_id,
                            topic=queue.name,
                            queue_id=queue_id,
                            time_ms=time_ms,
                            boundary=boundary,
                        )
            if found is None:
                found = queue.by_time(time_ms, boundary)
            # the answer must not lie in what is not dispatched
            if found >= queue.end - (boundary is Boundary.UPPER):
                queue.snapshot.require_dispatched()  # what cannot be read may be the answer
            return _not_deleted(found, queue.begin, boundary)

    def message(self, message_id: str) -> StoredMessage:
        """Returns the message with an offset id; :class:`InvalidRequestError` if it is none.

        Raises :class:`MessageNotFoundError` if no message of a queue has this id (prepared transactions are in none,
        found by key only), the object store's error if it lies in a cold tier that does not answer.
        """
        found = self.message_at(offset_in_message_id(message_id))
        if found is None or found.record.message_id != message_id.upper():
            raise MessageNotFoundError(f"no message has the id {message_id}")
        return found

    def message_at(self, offset: int) -> StoredMessage | None:
        """The message of a queue whose record begins at a physical offset, None if there is none or it is erased."""
        record, tier, head = None, Tier.HOT, None
        if self._hot is None:
            assert self._manifest is not None
            head = self._manifest.refresh()
            record, tier = self._archived_record(head, offset), Tier.COLD
        else:
            with self._hot.snapshot() as snapshot:
                if offset >= snapshot.end:
                    snapshot.require_dispatched()
                elif offset >= snapshot.border:
                    record = hot_record(self._hot, snapshot, offset)
                else:
                    with entering_archive():
                        head = self._head_below(snapshot.border)
                        record, tier = self._archived_record(head, offset) if head else None, Tier.COLD
        if record is not None and self._erased(head).hides(record):
            record = None
        if record is None or not record.has_queue_unit:
            return None
        return StoredMessage(record, self._store_id, tier)

    def record_offsets(self, first: int, end: int) -> list[int]:
        """Returns where the records begin that fill ``[first, end)`` of a log segment, hidden and removed ones too.

        For a store with a hot tier. Empty if the segment is gone from both tiers.
        """
        assert self._hot is not None
        with self._hot.snapshot() as snapshot:
            if end > snapshot.end:
                snapshot.require_dispatched()
            if first >= snapshot.border:
                return snapshot.record_offsets(first, end)
            with entering_archive():
                head = self._head_below(snapshot.border)
                if head is None:
                    return []
                assert self._manifest is not None
                return archived_record_offsets(self._manifest, head, first, end)

    def _erased(self, head: Head | None) -> Erasures:
        """Returns what is hidden now, and what the head hides that is read with: its objects may still hold that."""
        return self._known.current().joined(head.tombstones if head else ())

    # the archive below it

    def _head_below(self, border: int) -> Head | None:
        """Returns the head that covers what is no longer hot; None if nothing of it was ever archived."""
        if self._manifest is None or border == 0:
            return None
        try:
            return self._manifest.covering(border)
        except ObjectNotFoundError:
            if self._manifest.had_head:
                raise
            return None  # the border rose before this store had an archive

    def _archived_by_time(
        self, head: Head, border: int, *, topic_id: int, topic: str, queue_id: int, time_ms: int, boundary: Boundary
    ) -> int | None:
        assert self._manifest is not None
        manifest = self._manifest
        return despite_deletion(
            manifest,
            head,
            lambda newest: archived_offset_by_time(
                manifest,
                newest,
                border=border,
                topic_id=topic_id,
                topic=topic,
                queue_id=queue_id,
                time_ms=time_ms,
                boundary=boundary,
            ),
        )

    def _archived_record(self, head: Head, offset: int) -> Record | None:
        assert self._manifest is not None
        return archived_record(self._manifest, head, offset)

    def _first(self, queue: HotQueue) -> int:
        """Returns the least offset of both tiers; the object store's error if it cannot be learnt."""
        border = queue.snapshot.border
        if self._manifest is None or self._firsts is None or border == 0 or queue.first == queue.begin:
            return queue.first
        try:
            found = self._firsts.find(queue.name, queue.topic_id, queue.queue_id, border, queue.first)
            return max(found, queue.begin)
        except ObjectNotFoundError:
            if self._manifest.had_head:
                raise
            return queue.first  # the border rose before this store had an archive

    def _first_without_waiting(self, queue: HotQueue) -> int:
        border = queue.snapshot.border
        if self._firsts is None or border == 0 or queue.first == queue.begin:
            return queue.first
        found = self._firsts.find_without_waiting(queue.name, queue.topic_id, queue.queue_id, border, queue.first)
        return max(found, queue.begin)

    def _least_known(self, queue: HotQueue, may_ask: Callable[[], bool]) -> int:
        """Returns the least offset of both tiers; what was known before, or 0, where the archive has not told it."""
        if self._is_first_known(queue) or may_ask():
            first = self._first_without_waiting(queue)
            if self._is_first_known(queue):
                return first
        assert self._firsts is not None
        return self._firsts.last_known(queue.topic_id, queue.queue_id) or 0

    def _is_first_known(self, queue: HotQueue) -> bool:
        """Whether the archive has told where a queue begins, or nothing of it can lie there."""
        if self._manifest is None or self._firsts is None or queue.snapshot.border == 0 or queue.first == queue.begin:
            return True
        if self._manifest.head is None and not self._manifest.had_head:
            return True  # the border rose before this store had an archive
        return self._firsts.is_known(queue.topic_id, queue.queue_id)

    # the archive alone

    def _pull_cold_only(self, topic: str, queue_id: int, offset: int, collector: Collector[T]) -> T:
        head, state = self._archived_topic(topic, queue_id, offset)
        first, end = self._pulled_range(head, state, queue_id, offset)
        edge = edge_of(offset, first, end, self.gaps.end_of_gap(head, state.topic_id, queue_id, offset))
        if edge is not None:
            return collector.nothing(*edge)
        queue = self._cold_queue(head, head.archived_to, state.topic_id, state.name, queue_id)
        with _naming(topic, queue_id, offset):
            return collector.from_cold(queue, head, PullExtent(offset, first, end, end))

    def _archived_topic(self, topic: str, queue_id: int, offset: int | None = None) -> tuple[Head, TopicState]:
        """The newest head and a topic there; a replay that goes on at ``offset`` takes one that was just seen."""
        assert self._manifest is not None
        head = None if offset is None else self._manifest.recent(_HEAD_AGE_S)
        if head is not None and offset is not None:
            state = self._state_of(head, topic, queue_id)
            if state is not None and self._replays.has(head.version, (state.topic_id, queue_id, offset)):
                return head, state
        head = self._manifest.refresh()
        state = self._state_of(head, topic, queue_id)
        if state is None:
            raise TopicNotFoundError(f"no such topic or queue {topic!r}/{queue_id} in the archive")
        return head, state

    def _state_of(self, head: Head, topic: str, queue_id: int) -> TopicState | None:
        assert self._manifest is not None
        state = self._manifest.state(self._manifest.reader(), head).find(topic)
        return state if state is not None and 0 <= queue_id < state.queues else None

    def _archived_end(self, head: Head, state: TopicState, queue_id: int, offset: int | None = None) -> int:
        """Behind the last archived message of a queue; where none is left, behind those that were dropped.

        The state object tells the latter, but may count messages that are not archived yet: then a pull's ``offset``
        up to there stays where it is.
        """
        assert self._manifest is not None
        reader = self._manifest.reader()
        gaps = self.gaps.of(head, state.topic_id, queue_id)
        gap_end = max(gaps[-1].next_present if gaps else 0, state.begin(queue_id))
        for late in self._manifest.queue_row_pieces(reader, head, state.topic_id, queue_id, backwards=True):
            return max(gap_end, int(late["first_queue_offset"][-1] + late["count"][-1]))
        end = state.ends[queue_id] if queue_id < len(state.ends) else 0
        if offset is not None and self._manifest.state(reader, head).log_end > head.archived_to:
            end = min(offset, end)
        return max(gap_end, end)

    def _archived_first(self, head: Head, state: TopicState, queue_id: int, end: int) -> int:
        assert self._manifest is not None
        first = first_archived(
            self._manifest, head, border=head.archived_to, topic_id=state.topic_id, topic=state.name, queue_id=queue_id
        )
        return end if first is None else max(first, state.begin(queue_id))

    def _pulled_range(self, head: Head, state: TopicState, queue_id: int, offset: int) -> tuple[int, int]:
        """First and next offset for a pull from ``offset``, the first 0 if it cannot be learnt."""
        key = head.version, state.topic_id, queue_id
        known = self._ranges.get(key)
        if known is not None:
            return known
        end = self._archived_end(head, state, queue_id, offset)
        try:
            first = self._archived_first(head, state, queue_id, end)
        except StoreError:
            return 0, end  # what can be read of the queue is pulled all the same
        if first < end:  # of a queue without messages, the end depends on who asks
            if len(self._ranges) >= _MOST_RANGES:
                self._ranges.clear()
            self._ranges[key] = first, end
        return first, end

    def _archived_range(self, head: Head, state: TopicState, queue_id: int) -> tuple[int, int]:
        end = self._archived_end(head, state, queue_id)
        return self._archived_first(head, state, queue_id, end), end

    def _cold_queue(self, head: Head, border: int, topic_id: int, topic: str, queue_id: int) -> ColdQueue:
        assert self._manifest is not None
        erased = self._erased(head)
        return ColdQueue(
            manifest=self._manifest,
            replays=self._replays,
            store_id=self._store_id,
            border=border,
            erased=erased,
            topic_id=topic_id,
            name=topic,
            queue_id=queue_id,
        )


def _not_deleted(found: int, begin: int, boundary: Boundary) -> int:
    """Returns what an offset by time is in a queue of which nothing below ``begin`` is left."""
    if found >= begin:
        return found
    return begin if boundary is Boundary.LOWER else 0


def _or_zero(find: Callable[[], int]) -> int:
    """A queue's first offset, 0 if it cannot be learnt: what can be read of the queue is pulled all the same."""
    try:
        return find()
    except StoreError:
        return 0


@contextlib.contextmanager
def _naming(topic: str, queue_id: int, offset: int, *, backward: bool = False) -> Iterator[None]:
    """Has damage say which message of a pull cannot be read, and what to do."""
    try:
        yield
    except CorruptionError as error:
        raise type(error)(
            f"message {offset} of queue {topic}/{queue_id} cannot be read: {error.message}",
            path=error.path,
            position=error.position,
            hint=f"`tierlog check --deep` says what else is damaged, and `tierlog repair` what can be put back; "
            f"a pull {f'backward below {offset}' if backward else f'from {offset + 1} on'} passes over this message",
        ) from error
