"""Queues of archives and of a running service, for the streaming read: their bounds and their messages.

Where both are given, the service is asked how far its store's queues go, and the archive gives what lies in it, so that
a long backlog does not burden the service. Queue offsets are the same in both tiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tierlog.pipeline.base.archive import ArchiveSnapshot, open_manifest, say_lost
from tierlog.pipeline.base.client import ServedQueueEnds, ServiceClient, lost_in
from tierlog.pipeline.source.options import SourceOptions
from tierlog.pipeline.source.stream_offsets import Gaps, QueueKey, QueueRange
from tierlog.tiering.base.errors import StoreMismatchError, UnavailableError
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.cold.manifest.store import despite_deletion
from tierlog.tiering.format.generation import asked_name, lasting_name, record_topic
from tierlog.tiering.format.manifest import Head, LostRange
from tierlog.tiering.format.store_state import TopicState
from tierlog.tiering.lifecycle.takeover import QUEUE_STEP
from tierlog.tiering.read.archived_offsets import DeclaredGaps, FirstOffsets, queue_rows_from
from tierlog.tiering.read.fetcher import Fetcher


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The bounds of a queue."""

    end: int
    """Everything below it can be read, has expired, or was erased."""
    gaps: Gaps = ()
    is_certain: bool = True
    """False: no message of it is archived, and how many have been is not known yet."""


class StreamQueues(Protocol):
    """Queues of one or more stores. Raises the errors of the archive or the service where it has to ask."""

    def bounds(self) -> Mapping[QueueKey, QueueBounds]:
        """Returns the bounds of every queue, as far as it goes now."""

    def least(self, key: QueueKey, offset: int) -> int:
        """``offset``, or the queue's first offset if that is greater: messages before it have expired."""

    def at_time(self, key: QueueKey, time_ms: int) -> int:
        """The first message stored at or after a time; the queue's end if there is none."""

    def reach(self, wanted: QueueRange) -> int:
        """Returns up to which offset of a range the archive gives its messages; a running service gives the rest."""


class _ToldOnce:
    """Says once of each range of a followed log that nobody has."""

    def __init__(self, store_id: str) -> None:
        self._store_id = store_id
        self._told: set[LostRange] = set()

    def say(self, lost: Iterable[LostRange]) -> None:
        """Says those that were not said."""
        for each in lost:
            if each not in self._told:
                say_lost(self._store_id, each)
                self._told.add(each)


class ArchivedQueues:
    """The archive of one store."""

    def __init__(self, url: str, store_id: str) -> None:
        """``url`` is canonical; nothing is asked yet."""
        self._store_id = store_id
        self._manifest = open_manifest(url, store_id)
        self._gaps = DeclaredGaps(self._manifest)
        self._firsts = FirstOffsets(self._manifest)
        self._fetcher = Fetcher(store_id, None, self._manifest)
        #: By their lasting names.
        self._topics: Mapping[str, TopicState] = {}
        self._told = _ToldOnce(store_id)
        self._seen: tuple[int, dict[QueueKey, QueueBounds]] = (-1, {})

    def bounds(self) -> Mapping[QueueKey, QueueBounds]:
        """Queues as far as they are archived."""
        head = self._manifest.refresh()
        if head.version != self._seen[0]:
            self._told.say(head.lost)
            self._seen = head.version, despite_deletion(self._manifest, head, self._bounds)
        return self._seen[1]

    def _bounds(self, head: Head) -> dict[QueueKey, QueueBounds]:
        state = self._manifest.state(self._manifest.reader(), head)
        self._topics = {lasting_name(record_topic(topic.name), state.number_of(topic)): topic for topic in state.listed}
        found = {}
        for name, topic in self._topics.items():
            for queue_id in range(topic.queues):
                gaps = tuple(gap[2:] for gap in self._gaps.of(head, topic.topic_id, queue_id))
                end = self._end(head, topic, queue_id, gaps, is_state_archived=state.log_end <= head.archived_to)
                key = QueueKey(self._store_id, name, queue_id)
                found[key] = QueueBounds(end or 0, gaps, is_certain=end is not None)
        return found

    def _end(self, head: Head, topic: TopicState, queue_id: int, gaps: Gaps, *, is_state_archived: bool) -> int | None:
        """Returns the offset behind the last archived message, expired or not; None if it is not known."""
        manifest, gap_end = self._manifest, gaps[-1][1] if gaps else 0
        pieces = manifest.queue_row_pieces(manifest.reader(), head, topic.topic_id, queue_id, backwards=True)
        for rows in pieces:
            return max(gap_end, int(rows["first_queue_offset"][-1] + rows["count"][-1]))
        if is_state_archived and queue_id < len(topic.ends):
            return max(gap_end, topic.ends[queue_id])
        return None

    def least(self, key: QueueKey, offset: int) -> int:
        """See :class:`StreamQueues`; of a queue that :meth:`bounds` has returned."""
        topic, end = self._topics[key.topic], self._seen[1][key].end
        head = self._manifest.head
        assert head is not None
        return max(offset, self._firsts.find(topic.name, topic.topic_id, key.queue_id, head.archived_to, end))

    def at_time(self, key: QueueKey, time_ms: int) -> int:
        """See :class:`StreamQueues`."""
        return self._fetcher.offset_by_time(asked_name(key.topic), key.queue_id, time_ms, Boundary.LOWER)

    def reach(self, wanted: QueueRange) -> int:
        """Returns the end of what the archive has of a range without a hole; its first offset if it has nothing of it.

        A topic that was not archived for a while has holes whose messages may still be hot.
        """
        manifest, topic = self._manifest, self._topics.get(wanted.key.topic)
        head, reached = manifest.head, wanted.first
        if topic is None or head is None:
            return reached
        for rows in queue_rows_from(
            manifest,
            manifest.reader(),
            head,
            topic_id=topic.topic_id,
            queue_id=wanted.key.queue_id,
            offset=wanted.first,
        ):
            for first, count in zip(rows["first_queue_offset"].tolist(), rows["count"].tolist(), strict=True):
                if first > reached:
                    return reached
                reached = max(reached, min(first + count, wanted.next))
            if reached == wanted.next:
                break
        return reached


class ServedQueues:
    """The store of a running service, both tiers of it."""

    def __init__(self, client: ServiceClient, store_id: str, *, says_lost: bool) -> None:
        """The client is used in one thread, that which uses this object.

        ``says_lost``: what the store lacks of a broker's log is asked for and said, as no archive here tells it.
        """
        self._client = client
        self._store_id = store_id
        self._ends: dict[QueueKey, ServedQueueEnds] = {}
        self._told = _ToldOnce(store_id)
        self._may_lose = says_lost

    def bounds(self) -> Mapping[QueueKey, QueueBounds]:
        """Returns all queues as far as the service shows them."""
        if self._may_lose:
            lost = lost_in(self._client.stats())
            self._may_lose = lost is not None
            self._told.say(lost or ())
        self._ends = {
            QueueKey(self._store_id, topic.lasting_name, queue.queue_id): queue
            for topic in self._client.topics()
            for queue in topic.queues
        }
        return {key: QueueBounds(queue.max_offset, self._gaps(key, queue)) for key, queue in self._ends.items()}

    @staticmethod
    def _gaps(key: QueueKey, queue: ServedQueueEnds) -> Gaps:
        if queue.gaps is not None:
            return tuple((first, following) for first, following in queue.gaps)
        if queue.max_offset < QUEUE_STEP:
            return ()
        raise UnavailableError(f"which offsets of {key} were left out is in the archive, and that does not answer")

    def least(self, key: QueueKey, offset: int) -> int:
        """See :class:`StreamQueues`."""
        known = self._ends.get(key)
        if known is not None and known.min_offset <= offset:
            return offset
        page = self._client.pull(asked_name(key.topic), key.queue_id, offset, 1)
        return page.next_offset if page.status is PullStatus.OFFSET_TOO_SMALL else offset

    def at_time(self, key: QueueKey, time_ms: int) -> int:
        """See :class:`StreamQueues`."""
        return self._client.offset_by_time(asked_name(key.topic), key.queue_id, time_ms)

    def close(self) -> None:
        """Closes the client."""
        self._client.close()


class AllQueues:
    """The queues that the options of a query name: those of an archive's stores, of a service's store, or of both."""

    def __init__(self, archives: Mapping[str, ArchivedQueues], served: Mapping[str, ServedQueues]) -> None:
        """By store id; of a store in both the service tells how far its queues go."""
        self._archives = archives
        self._sources: dict[str, ArchivedQueues | ServedQueues] = {**archives, **served}
        self._served = served

    @classmethod
    def open(cls, options: SourceOptions) -> AllQueues:
        """Opens the queues; asks which stores are there.

        Raises :class:`StoreMismatchError` if the service's store is another than the one that is named, or has no
        archive where ``cold`` says; otherwise what archive and service raise.
        """
        archives: dict[str, ArchivedQueues] = {}
        if options.cold is not None:
            snapshot = ArchiveSnapshot.take(options.cold, () if options.store is None else (options.store,))
            archives = {store_id: ArchivedQueues(snapshot.url, store_id) for store_id in snapshot.stores}
        served: dict[str, ServedQueues] = {}
        if options.url is not None:
            with ServiceClient(options.url) as client:  # which opens a connection again when it is used again
                store_id = str(client.stats()["store_id"])
            if options.store not in (None, store_id):
                raise StoreMismatchError(f"the service serves store {store_id!r}, not {options.store!r}")
            if archives and store_id not in archives:
                raise StoreMismatchError(
                    f"the service's store {store_id!r} has no archive here, but {', '.join(sorted(archives))} has",
                    path=options.cold, hint="give both of one cluster, or the service alone",
                )  # fmt: skip
            served = {store_id: ServedQueues(client, store_id, says_lost=not archives)}
        return cls(archives, served)

    def bounds(self) -> Mapping[QueueKey, QueueBounds]:
        """See :class:`StreamQueues`."""
        for store_id in self._served.keys() & self._archives.keys():
            self._archives[store_id].bounds()  # not how far queues go, but what :meth:`reach` looks at
        return {key: bounds for source in self._sources.values() for key, bounds in source.bounds().items()}

    def least(self, key: QueueKey, offset: int) -> int:
        """See :class:`StreamQueues`."""
        return self._sources[key.store_id].least(key, offset)

    def at_time(self, key: QueueKey, time_ms: int) -> int:
        """See :class:`StreamQueues`."""
        return self._sources[key.store_id].at_time(key, time_ms)

    def close(self) -> None:
        """Gives connections back. Idempotent."""
        for served in self._served.values():
            served.close()

    def reach(self, wanted: QueueRange) -> int:
        """Returns up to which offset of a range it is read from the archive; the service gives the rest."""
        archive = self._archives.get(wanted.key.store_id)
        if archive is None:
            return wanted.first
        return archive.reach(wanted) if wanted.key.store_id in self._served else wanted.next
