"""A store whose log is written by a follower of a RocketMQ broker: what the follower does with it.

The bytes of the broker's log lie at the same physical offsets in the log of the store (:class:`FollowedLog`). Queues,
key index, archive, tails, removal and every reader are those of any other store, :attr:`FollowedStore.store`, which
refuses appends of anybody else. ``docs/decisions/0055-a-follower-writes-the-log.md`` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.changes import finish_gap, gap_declared_ms
from tierlog.service.engine.opening import StoreParts, open_parts
from tierlog.service.engine.parts import Components
from tierlog.service.engine.restore import restore_volume
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.format.generation import is_numbered
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.followed_log import FollowedLog
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.lifecycle.last_head import read_last_head
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.objects.object_store import ObjectStore

#: What is in no published segment is in a tail after so long at most.
TAIL_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """A topic of the broker's configuration."""

    name: str
    queues: int
    archive: bool = True
    """Whether its messages outlive the hot tier, decided when the topic is new here."""


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A consumer group of the broker: the next offset to consume of each (topic, queue id)."""

    name: str
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)


class FollowedStore:
    """One open store that follows a broker. For the follower's thread; :attr:`store` is for any."""

    def __init__(self, store: Store, parts: StoreParts, clock: Clock, *, tail_interval_ms: int) -> None:
        """Use :meth:`open`."""
        #: The store as everybody reads it.
        self.store = store
        self._parts = parts
        self._hot = parts.hot.store
        self._identity = parts.identity
        self._broker = parts.identity.broker
        self._clock = clock
        self._log = FollowedLog(self._hot, self._note_times_fall)
        self._limit = 0
        self._hot.publish_below = min(self.published, self._log.end)
        self._tail_every_s = tail_interval_ms / 2000
        self._tails_at_s = clock.monotonic_s() + self._tail_every_s
        #: Where the log ended when tails were due last: what is not archived yet when they are due again is old.
        self._old_below = 0
        store.after_flush = self._ask_for_tails

    @classmethod
    def open(
        cls,
        root: Path | str,
        *,
        cold_url: str | None,
        store_id: str,
        segment_bytes: int | None,
        begin: int,
        settings: Settings | None = None,
        tail_interval_ms: int = TAIL_INTERVAL_MS,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        fs: FileSystem | None = None,
        objects: ObjectStore | None = None,
        tracer: Tracer = NO_TRACER,
        restore: bool = False,
    ) -> Self:
        """Opens the store at ``root`` and recovers it, or makes it: its log then begins at ``begin``, a segment's base.

        ``begin`` is not looked at where there is a store. ``restore`` makes it from its archive first, in an empty
        directory: the log goes on where the archive ends, and ``segment_bytes`` may be None: as the archive has them.
        Raises :class:`StoreMismatchError` for a store with other segments than the broker's, or for one that takes
        messages itself, and what :meth:`Store.open` does.
        """
        clock, settings = clock or SystemClock(), settings or Settings.load()
        components = Components(
            settings.with_segments_of(segment_bytes), clock, fs or LocalFileSystem(), randomness or SystemRandomness(),
            objects, tracer=tracer, follow_from=begin,
        )  # fmt: skip
        root = Path(root).absolute()
        if restore:
            restore_volume(root, components, cold_url=cold_url, store_id=store_id)
        finish_gap(root, components)
        parts = open_parts(root, components, cold_url=cold_url, store_id=store_id, read_only=False)
        store = Store(parts, components.settings, clock, components.randomness, read_only=False, tracer=tracer)
        return cls(store, parts, clock, tail_interval_ms=tail_interval_ms)

    # following

    @property
    def end(self) -> int:
        """Physical offset of the next byte that is wanted: behind the last whole record, or the next segment."""
        return self._log.end

    def append(self, position: int, data: bytes | memoryview) -> None:
        """Takes the next bytes of the broker's log; see :meth:`FollowedLog.append`."""
        if not self._hot.is_followed:
            raise InvalidRequestError("the store follows no broker any more: it was made one that takes messages")
        self._log.append(position, data)
        self.store.note_appended()

    @property
    def last_store_ms(self) -> int:
        """The store time of the last record; 0 if there is none."""
        return max(0, self._hot.last_store_ms)

    @property
    def gap_bytes(self) -> int | None:
        """Bytes of the broker's log that are declared to be nowhere, as the archive says; None while it is not known.

        A 0 in its place would have a restart look as if all of them were lost again.
        """
        archive = self._parts.archive
        if archive is None:
            return 0
        head = archive.manifest.head
        return None if head is None else sum(lost.next - lost.first for lost in head.lost)

    @property
    def gap_declared_ms(self) -> int | None:
        """When the newest of them were; None if there are none, and while it is not known."""
        archive = self._parts.archive
        head = None if archive is None else archive.manifest.head
        return None if head is None else gap_declared_ms(head)

    def flush(self) -> int:
        """Makes all whole records durable; returns :attr:`end`."""
        end = self._log.flush()
        self._raise_limit()
        return end

    def tail(self, most: int, below: int | None = None) -> tuple[int, bytes]:
        """Returns the last whole records and where they begin, to be compared; see :meth:`FollowedLog.tail`."""
        return self._log.tail(most, below)

    @property
    def begin(self) -> int:
        """Physical offset of the first byte that is here."""
        return self._hot.log.begin

    @property
    def archived_to(self) -> int:
        """Physical offset below which everything is in segments of the archive, for all that is known here."""
        head = None if self._parts.writers is None else self._parts.writers.mover.own_head()
        seen = read_last_head(self._parts.directory.fs, self._parts.directory.paths)
        return max(self._hot.log.begin, seen.archived_to, 0 if head is None else head.archived_to)

    # publishing

    @property
    def published(self) -> int:
        """Physical offset at or above which nothing is in the archive, in segments or in tails."""
        writers = self._parts.writers
        if writers is None:
            return self._hot.log.begin
        return max(self.archived_to, writers.appends.writer.reach)

    @property
    def publish_below(self) -> int:
        """Physical offset at or above which nothing may come into the archive: the broker may take it back.

        It only rises. What is published follows at the end of a record at or below it.
        """
        return self._limit

    @publish_below.setter
    def publish_below(self, limit: int) -> None:
        self._limit = max(self._limit, limit)
        self._raise_limit()

    def _raise_limit(self) -> None:
        hot = self._hot
        if hot.is_followed:
            hot.publish_below = max(hot.publish_below, self._log.end_below(self._limit))

    def archive_all(self) -> None:
        """Publishes everything up to :attr:`end`: closed segments with their index, and the rest in tails.

        Raises the object store's error if the bucket does not take it.
        """
        if self._parts.writers is None:
            raise InvalidRequestError("this store has no cold tier", hint="open it once with --cold URL")
        self.publish_below = self.flush()
        self.store.archive()
        self._parts.writers.appends.wait_for(self._hot.publishable)

    def _ask_for_tails(self) -> None:
        """Asks for tails of what is old and in no segment of the archive; called after each flush, on any thread.

        Closed segments go first: while one waits, no tails are asked for.
        """
        writers, now_s = self._parts.writers, self._clock.monotonic_s()
        if writers is None or not self._hot.is_followed or now_s < self._tails_at_s:
            return
        self._tails_at_s = now_s + self._tail_every_s
        head = writers.mover.own_head()
        if (
            head is None
            or head.archived_to >= self._hot.publishable - self._hot.publishable % self._hot.log.segment_bytes
        ):
            writers.appends.ask(self._old_below)
        self._old_below = self._hot.publishable

    # what no record says

    def copy_topics(self, topics: Sequence[CopiedTopic]) -> None:
        """Makes topics as the broker has them, durably; those that are there get no fewer queues."""
        self._hot.copy_topics([(each.name, each.queues, each.archive) for each in topics])

    def copy_groups(
        self, groups: Sequence[CopiedGroup], delay_offsets: Mapping[int, int] = MappingProxyType({})
    ) -> Mapping[str, StoreError]:
        """Sets groups, and what of each level of delay was sent on, to where they are at the broker, in one durable
        write; none where nothing has changed. Returns the groups that cannot be kept, and why.
        """
        copied = {each.name: each.offsets for each in groups}
        return self.store.groups.copy(copied, delay_offsets, made_again=self._is_made_again)

    def keep_delayed(self, border: int, newest_ms: int) -> int:
        """Returns the border below which the log may go, at most ``border``, if it is to be promoted later.

        What the broker had not sent on of its levels of delay stays: the archive has fillers in its place.
        """
        groups, least = self.store.groups, border
        for level, offset in groups.delay_offsets.items():
            queues = range(self.store.find_queues(SCHEDULE_TOPIC) or 0)
            if level - 1 in queues and offset >= self.store.hot_offset(SCHEDULE_TOPIC, level - 1):
                with self.store.pull_records(SCHEDULE_TOPIC, level - 1, offset, 1) as found:
                    places = (decode_record(part, verify=False).physical_offset for part in found.parts)
                    least = min([least, *places])
        return least

    def note_broker(self, cluster: str, address: str) -> None:
        """Makes durable where the broker was reached, for a process that begins while it is not."""
        if self._broker != (cluster, address):
            self._broker = broker = (cluster, address)
            self._save_identity(lambda identity: replace(identity, broker=broker))

    def _is_made_again(self, topic: str) -> bool:
        """Whether a name stands for another generation of a topic now than for its oldest."""
        return not is_numbered(topic) and len(self._hot.topics.generations(topic)) > 1

    # ends

    def promote(self) -> None:
        """Makes it an ordinary store, which takes messages: the broker has stopped, and all of its log is here.

        Killed before ``store.json`` says so: it still follows. After it: an ordinary store is opened from now on.
        """
        self.flush()
        self.store.flush()
        end = self.end
        self._save_identity(lambda identity: replace(identity, followed=False, followed_below=end))
        self._hot.take_producers()

    def close(self) -> None:
        """Flushes and closes within 10 s; what was given and is no whole record is forgotten."""
        self.store.close()

    def _note_times_fall(self, below: int) -> None:
        self._save_identity(lambda identity: replace(identity, times_fall_below=max(identity.times_fall_below, below)))

    def _save_identity(self, change: Callable[[StoreIdentity], StoreIdentity]) -> None:
        if self._parts.writers is not None:
            self._parts.writers.mover.change_identity(change)
            return
        directory = self._parts.directory
        self._identity = change(self._identity)
        self._identity.save(directory.fs, directory.paths)
