"""Library facade: one open store, with its hot tier, its index and its archive."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tierlog.index.format.layout import LAYOUTS
from tierlog.index.search.counts import CountedStore, CountQuery, IntervalCounts
from tierlog.index.search.hot_lookup import HotKeys, hot_keys
from tierlog.index.search.hot_search import HotPage, HotTierSearch, hot_page
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.index.search.store_search import TieredStoreSearch
from tierlog.service.access.caller import every_topic
from tierlog.service.config.settings import Settings
from tierlog.service.engine.append_results import AppendedColumns
from tierlog.service.engine.appends import AppendedMessages, Appends, IdempotencyKey
from tierlog.service.engine.archive_mover import ArchiveReport
from tierlog.service.engine.background import make_background
from tierlog.service.engine.catalogue import FileInfo, QueueInfo, TopicInfo, classic_files, cold_files, local_files
from tierlog.service.engine.opening import StoreParts, open_parts
from tierlog.service.engine.parts import Components
from tierlog.service.engine.read_path import answer, count, with_hint
from tierlog.service.engine.removal import remove_due
from tierlog.service.engine.restore import restore_volume
from tierlog.service.engine.stats import DelayNumbers, FileState, ReadinessProblem, count_files, group_lags, stats_of
from tierlog.service.engine.timeline import Timeline, TimelineView, timeline_of
from tierlog.service.observing.counts import StoreCounts, facts_of
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import (
    ConflictError,
    FollowedError,
    InvalidRequestError,
    MessageNotFoundError,
    ReadOnlyError,
    TopicNotFoundError,
)
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import base_offset_name
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.base.types import Boundary, Durability, count_present
from tierlog.tiering.checks.findings import Finding, Findings
from tierlog.tiering.cold.manifest.catalogue import Total
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.damage import LogDamage
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.checksum import crc32_of
from tierlog.tiering.message.batch import MAX_QUEUES
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.read.fetcher import QueueSpan
from tierlog.tiering.read.hot_queue import HotQueue
from tierlog.tiering.read.pull_batch import Columns, PulledBatch
from tierlog.tiering.read.pull_records import RECORD_BYTES, PulledRecords
from tierlog.tiering.read.pull_result import PullResult

if TYPE_CHECKING:
    from tierlog.index.maintenance.repair import RepairReport


class Store:
    """One open store. Thread safe; :meth:`close` must be called, or the next open recovers as after a crash."""

    def __init__(
        self,
        parts: StoreParts,
        settings: Settings,
        clock: Clock,
        randomness: Randomness,
        *,
        read_only: bool,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Use :meth:`open`."""
        self._parts = parts
        self.store_id = parts.identity.store_id
        self.cold_url = parts.identity.cold_url
        self.volume_id = parts.identity.volume_id
        hot, archive, writers = parts.hot, parts.archive, parts.writers
        self._hot, self._index, self._classic = hot.store, hot.index, hot.classic
        self._index_maintenance, self._local_changes, self._disk = hot.index_maintenance, hot.changes, hot.disk
        self._manifest = archive.manifest if archive else None
        self._totals = archive.totals if archive else None
        self._cold_index = archive.cold_index if archive else None
        self._archive_mover = writers.mover if writers else None
        self._archived = writers.appends if writers else None
        self._known, self._searcher, self._fetcher = parts.known, parts.searcher, parts.fetcher
        #: Counts since it was opened.
        self.counted = StoreCounts(parts.meter, hot.store.log.flush_seconds)
        #: Asks whoever fires delayed messages.
        self.delay_numbers: Callable[[], DelayNumbers] = DelayNumbers
        #: Traces single requests.
        self.tracer = tracer
        self._broker = parts.directory.broker
        self._resources = parts.resources
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._read_only = read_only
        #: Called after each flush in the background.
        self.after_flush: Callable[[], None] = lambda: None
        #: Consumer groups with their members and committed offsets.
        self.groups = parts.groups
        #: What groups have above their committed offsets, for who delivers to them.
        self.delivery_states = parts.deliveries
        #: Erasures and their receipts, and the retention options of topics.
        self.removal = parts.removal
        self._background = make_background(
            parts,
            checkpoint=self._checkpoint,
            remove_due=self._remove_due,
            settings=settings,
            clock=clock,
            randomness=randomness,
            after_flush=lambda: self.after_flush(),
        )
        self._appends = Appends(parts, settings, clock, self._background.appended)
        #: An empty list of messages that come one by one, for :meth:`append`.
        self.pending_messages = self._appends.pending_messages
        self.client_messages = self._appends.client_messages

    @classmethod
    def open(
        cls,
        root: Path | str,
        *,
        settings: Settings | None = None,
        cold_url: str | None = None,
        store_id: str | None = None,
        read_only: bool = False,
        restore: bool = False,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        randomness: Randomness | None = None,
        objects: ObjectStore | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> Store:
        """Opens the store at ``root``, or creates it, and recovers it.

        Without ``settings`` they are those of the environment, as on the command line (:meth:`Settings.load`).
        ``read_only`` takes no lock and writes nothing: recovery happens in memory. ``restore`` makes the store from its
        archive first, in an empty directory, and fences whoever wrote there; see :func:`restore_volume` for what it
        raises. ``objects`` replaces the object store that ``cold_url`` names. Raises :class:`StoreLockedError` if
        another process holds the store, :class:`StoreMismatchError` for other sizes, another cold URL, or an archive
        of another volume.
        """
        clock, settings = clock or SystemClock(), settings or Settings.load()
        components = Components(
            settings, clock, fs or LocalFileSystem(), randomness or SystemRandomness(), objects, tracer=tracer
        )
        root = Path(root).absolute()
        if restore:
            if read_only:
                raise InvalidRequestError("a restore writes", hint="leave --read-only out")
            components = restore_volume(root, components, cold_url=cold_url, store_id=store_id)
        parts = open_parts(root, components, cold_url=cold_url, store_id=store_id, read_only=read_only)
        return cls(parts, settings, clock, components.randomness, read_only=read_only, tracer=tracer)

    def start(self) -> None:
        """Runs flushing, dispatching, checkpoints, archiving and removal in the background.

        The compiler is loaded first, and the index linked, as appends and look-ups are sure to come: none waits for it.
        """
        crc32_of(b"")
        self._index.link()
        if self._cold_index is not None:
            self._cold_index.warm()
        if not self._read_only:
            self._background.start()
            if self._archived is not None:
                self._archived.start()

    # writing

    def append(
        self,
        messages: AppendedMessages,
        durability: Durability = Durability.FLUSHED,
        key: IdempotencyKey | None = None,
    ) -> AppendedColumns:
        """Appends a batch, all of it or, if one message is wrong, nothing; see :class:`Durability` for the promise.

        With a ``key`` it may be done again: what is in the log already is answered as it was, see :class:`Appends`.
        Raises :class:`DiskFullError` before anything is written while the disk is fuller than the settings allow.
        """
        self._check_takes_messages()
        begun_s = self._clock.monotonic_s()
        with self.tracer.span("append", messages=len(messages), durability=durability.value):
            found = self._appends.append(messages, durability, key)
        self.counted.acknowledged(durability, len(found), self._clock.monotonic_s() - begun_s)
        return found

    def append_unless_known(self, message: ClientMessages, topic: str, key: IdempotencyKey) -> bool:
        """Appends one message to its topic unless the log has one with that number; see the method of
        :class:`Appends`."""
        self._check_takes_messages()
        return self._appends.append_unless_known(message, topic, key)

    def create_topic(self, name: str, queues: int) -> None:
        """Creates a topic, or adds queues to an existing one; fewer queues are refused."""
        self._check_takes_messages()
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidRequestError(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
        is_new = self._hot.topics.find(name) is None  # a topic that is made again after a deletion keeps its queues
        topic = self._hot.create_topic(name, queues)
        if topic.queues > queues and not is_new:
            raise ConflictError(f"topic {name!r} has {topic.queues} queues already", hint="queues are never taken away")

    def make_topic(self, name: str, queues: int, *, may_make: bool | None = None) -> None:
        """Makes a topic as its first message would, if it is not there; an existing one stays as it is.

        ``may_make`` None: as ``create_topics`` says. Raises :class:`TopicNotFoundError` for one that may not be made,
        and :class:`ConflictError` where there are ``max_topics``.
        """
        self._check_takes_messages()
        self._hot.make_topic(name, queues, may_make=self._settings.create_topics if may_make is None else may_make)

    def flush(self) -> None:
        """Makes everything appended so far durable, with the queues and the recovery point."""
        self._check_writable()
        self._hot.flush()
        self._hot.dispatch()
        self._checkpoint()

    def _checkpoint(self) -> None:
        """Moves both recovery points: the log's with its queues, and the key index's."""
        self._hot.checkpoint()
        with self._hot.guard.writing("checkpoint of the index"):
            self._index.checkpoint()

    def archive(
        self,
        *,
        until_ms: int | None = None,
        everything: bool = False,
        drop_hot: bool = False,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Publishes now what is rolled, or everything; see :meth:`ArchiveMover.archive`."""
        self._check_writable()
        if self._archive_mover is None:
            raise InvalidRequestError("this store has no cold tier", hint="open it once with --cold URL")
        return self._archive_mover.archive(
            until_ms=until_ms, everything=everything, drop_hot=drop_hot, progress=progress
        )

    def run_tiers(self) -> None:
        """Runs one round of archiving and removal as :meth:`start` does, for a caller with a loop of its own."""
        self._check_writable()
        self._hot.verify_damage()
        if self._archive_mover is None:
            self._remove_due()
            self._index_maintenance.run_once()
        else:
            self._archive_mover.roll_and_remove()
            self._index_maintenance.run_once()
            self._archive_mover.archive_due()
            self.removal.run_once()

    def _remove_due(self) -> None:
        remove_due(self._hot, self._index, self._settings.retention_options(), self._disk, self._clock.now_ms())

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the store was opened read-only")

    def _check_takes_messages(self) -> None:
        self._check_writable()
        if self._hot.is_followed:
            raise FollowedError(
                f"store {self.store_id} follows a RocketMQ broker, which alone appends to it",
                hint="send to the broker; `tierlog follow --promote` makes this a store that takes messages",
            )

    @property
    def followed_below(self) -> int:
        """Physical offset below which the log is that of a RocketMQ broker; 0 if nothing of it is."""
        return self._hot.followed_below

    @property
    def is_followed(self) -> bool:
        """Whether a follower of a broker writes the log, and nobody else."""
        return self._hot.is_followed

    def note_appended(self) -> None:
        """Tells who waits for messages, and wakes threads that have work, after an append by a follower."""
        self._background.appended()

    # reading

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Finds messages by key or time over both tiers; a page is about ``page_bytes`` at most."""

        def ask(query: Query) -> Answer:
            store = TieredStoreSearch(self.store_id, self._hot, self._index, self._cold_index, self._known)
            return answer(self._searcher, [store], query, self._settings, page_bytes)

        begun_s = self._clock.monotonic_s()
        with self.tracer.span("query", by="time" if query.key is None else "key", limit=query.limit) as span:
            found = with_hint(ask, query, self._settings, self._clock)
            span.annotate(**facts_of(found))
        self.counted.answered(query, found, self._clock.monotonic_s() - begun_s)
        return found

    def counts(self, query: CountQuery) -> IntervalCounts:
        """Counts a topic's messages per interval of time, without reading them; see :class:`IntervalCounts`."""
        store = CountedStore(self.store_id, self._hot, self._manifest)
        return count([store], query, self._searcher, self._settings, self._clock)

    def hot_page(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> HotPage:
        """Finds what is hot of a query, for a caller who reads the archive itself; see :class:`HotPage`."""
        tier = HotTierSearch(self.store_id, self._hot, self._index, self._known)
        return hot_page(tier, self._manifest, self.cold_url, query, page_bytes=page_bytes, clock=self._clock)

    def hot_keys(self, topic: str) -> contextlib.AbstractContextManager[HotKeys]:
        """Looks up many keys of a topic among what is hot now; see :class:`HotKeys`."""
        return hot_keys(self.store_id, self._hot, self._index, self._known, topic)

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None, *, backward: bool = False
    ) -> PullResult:
        """Reads a queue in order, or backwards from below an offset; see :meth:`Fetcher.pull`."""
        return self._fetcher.pull(topic, queue_id, offset, limit, tag, backward=backward)

    def pull_batch(self, topic: str, queue_id: int, offset: int, limit: int, columns: Columns = None) -> PulledBatch:
        """Reads a queue in order as Arrow; see :meth:`Fetcher.pull_batch`."""
        return self._fetcher.pull_batch(topic, queue_id, offset, limit, columns)

    def pull_records(
        self, topic: str, queue_id: int, offset: int, limit: int, *, max_bytes: int = RECORD_BYTES,
        tag_hashes: frozenset[int] | None = None,
    ) -> contextlib.AbstractContextManager[PulledRecords]:  # fmt: skip
        """Reads a queue in order, without decoding its records; see :meth:`Fetcher.pull_records`."""
        return self._fetcher.pull_records(topic, queue_id, offset, limit, max_bytes=max_bytes, tag_hashes=tag_hashes)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns (least, next) offset of a queue; see :meth:`Fetcher.offsets`."""
        return self._fetcher.offsets(topic, queue_id)

    def hot_offset(self, topic: str, queue_id: int) -> int:
        """Returns the first offset of a queue that is read without the archive; 0 if there is no such queue."""
        try:
            with HotQueue.opened(self._hot, topic, queue_id) as queue:
                return queue.first
        except TopicNotFoundError:
            return 0

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Finds the offset of a store time in a queue over both tiers; see :meth:`Fetcher.offset_by_time`."""
        return self._fetcher.offset_by_time(topic, queue_id, time_ms, boundary)

    def message(self, message_id: str, store_id: str | None = None) -> StoredMessage:
        """Returns one message by its offset id, whichever tier; see :meth:`Fetcher.message`."""
        if store_id not in (None, self.store_id):
            raise MessageNotFoundError(f"this is store {self.store_id}, not {store_id!r}")
        return self._fetcher.message(message_id)

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record, 0 before the first."""
        return self._hot.last_store_ms

    def now_ms(self) -> int:
        """Returns what the store's clock says."""
        return self._clock.now_ms()

    def kept_ms(self, topic: str) -> int | None:
        """Returns for how long a message of a topic is kept by its age; None: for ever."""
        found, retention = self._hot.topics.find(topic), self._settings.retention_options()
        if self._manifest is None or (found is not None and not found.archive):
            return retention.hot_retention_ms
        if found is not None and found.cold_retention_ms is not None:
            return found.cold_retention_ms
        return retention.cold_retention_ms or None

    def keep_log(self, keeper: Callable[[int, int], int]) -> None:
        """Asks ``keeper`` before hot segments go that are their messages' only copies.

        It is told the border below which they would go, and the time of the records there, and returns the border
        below which they may.
        """
        self._hot.keepers.append(keeper)

    @contextlib.contextmanager
    def copying(self) -> Iterator[Callable[[Record], bool]]:
        """Copies of messages that wait are appended inside; gives what tells which are erased, and get none.

        Nothing is erased meanwhile: a copy would lie behind the erasure, which would not hide it.
        """
        with self._hot.copying:
            yield self._known.current().hides

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Returns the message of a queue whose record begins there, whichever tier; None if there is none."""
        return self._fetcher.message_at(physical_offset) if physical_offset >= 0 else None

    def shown_message(
        self, message_id: str, show: Callable[[StoredMessage], dict[str, Any]], store_id: str | None = None
    ) -> dict[str, Any]:
        """Returns what ``show`` makes of one message; see :meth:`message`."""
        return show(self.message(message_id, store_id))

    def watch(
        self, topic: str, queue_id: int, offset: int, notify: Callable[[], object]
    ) -> contextlib.AbstractContextManager[None]:
        """Calls ``notify`` once inside the context, on another thread, when ``offset`` may be readable."""
        found = self._hot.topics.get(topic)
        return self._background.pull_waiters.watch(lambda: self._hot.next_offset(found, queue_id) > offset, notify)

    def watch_until(
        self, arrived: Callable[[], bool], notify: Callable[[], object], due_ms: Callable[[], int | None]
    ) -> contextlib.AbstractContextManager[None]:
        """Calls ``notify`` once inside the context, on another thread, when ``arrived()`` holds.

        It is asked, and must be quick, when something was appended, at each flush, after :meth:`wake`, and at the time
        that ``due_ms()`` told after it was asked last.
        """
        return self._background.pull_waiters.watch(arrived, notify, due_ms)

    def wake(self, by_ms: int = 0) -> None:
        """Has what is watched looked at again, at once or at a time."""
        self._background.pull_waiters.look_by(by_ms)

    def next_offset(self, topic: str, queue_id: int, *, catch_up: bool = False) -> int:
        """Returns the end of a queue, as far as the log is dispatched or, with ``catch_up``, can be seen.

        Raises :class:`TopicNotFoundError`.
        """
        if catch_up:
            self._hot.dispatch()
        return self._hot.next_offset(self._hot.topics.get(topic), queue_id)

    def start_of(self, topic: str, queue_id: int) -> int:
        """Returns the first offset that this volume gave out in a queue: above 0 only in one that was restored."""
        return self._hot.topics.get(topic).start(queue_id)

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> None:
        """Returns when something may be readable at ``offset``, or after ``timeout_s``."""
        arrived = threading.Event()
        with self.watch(topic, queue_id, offset, arrived.set):
            self._clock.wait(arrived, timeout_s)

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns topics with their queues and offsets, both tiers counted; those that ``shows`` denies cost
        nothing."""
        return self._described([topic for topic in self._hot.topics.listed() if shows(topic.record_topic)])

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic; raises :class:`TopicNotFoundError`."""
        (found,) = self._described([self._hot.topics.get(name)])
        return found

    def queues_of(self, topic: str) -> int:
        """Returns how many queues a message to the topic finds; the first message makes those of a new one."""
        return self._hot.topics.queues_of(topic)

    def find_queues(self, topic: str) -> int | None:
        """Returns how many queues a topic has; None for one that is not there."""
        found = self._hot.topics.find(topic)
        return None if found is None else found.queues

    def queue_counts(self) -> dict[str, int]:
        """Returns every topic's number of queues, by name."""
        return {topic.record_topic: topic.queues for topic in self._hot.topics.listed()}

    def generation_counts(self) -> dict[str, list[int]]:
        """Returns the number of queues of each generation of every topic, by name, the oldest first; 0 if deleted."""
        names = {topic.record_topic for topic in self._hot.topics.listed()}
        return {
            name: [0 if topic.is_deleted else topic.queues for topic in self._hot.topics.generations(name)]
            for name in names
        }

    def _described(self, topics: Sequence[Topic]) -> list[TopicInfo]:
        registry = self._hot.topics
        return [
            TopicInfo(
                name=registry.shown_name(topic),
                topic_id=topic.topic_id,
                queues=[self._queue(topic, queue_id, found) for queue_id, found in enumerate(ranges)],
                archive=topic.archive,
                cold_retention_ms=topic.cold_retention_ms,
                hold=topic.hold,
            )
            for topic, ranges in zip(topics, self._fetcher.ranges(topics), strict=True)
        ]

    def _queue(self, topic: Topic, queue_id: int, found: QueueSpan) -> QueueInfo:
        gaps = self._fetcher.declared_gaps(self._hot.topics.shown_name(topic), queue_id)
        messages = count_present(found.first, found.next, gaps) if found.is_first_known else None
        generation = self._hot.topics.number_of(topic)
        return QueueInfo(queue_id, found.first, found.next, gaps, messages, generation=generation)

    def files(self) -> list[FileInfo]:
        """Returns every segment and index file of both tiers; the cold ones only if the archive can be read."""
        found = self._local_files()
        if self._manifest is not None and self._manifest.head is not None:
            found += cold_files(self._manifest, self._manifest.head)
        return found

    def timeline(self, view: TimelineView) -> Timeline:
        """Returns the files as blocks along the log, few enough to draw however large the archive is."""
        return timeline_of(self.store_id, self._hot, self._local_files(), self._manifest, view)

    def _local_files(self) -> list[FileInfo]:
        found = local_files(self._hot, self._index, self._manifest)
        if self._classic is not None:
            found += classic_files(self._classic)
        if self._broker is not None:  # the index over a broker's log is in memory only
            found = [file for file in found if file.kind == "segment"]
        return found

    def stats(self) -> dict[str, object]:
        """Returns sizes and lags in bytes, times in ms, and requests to the archive since the store was opened."""
        found = stats_of(self._parts, self._clock)
        found |= self.delay_numbers()._asdict()
        found |= {name: getattr(self, name) for name in ("read_only_reason", "cold_error", "index_error", "damage")}
        if self._broker is not None:
            found["consumer_offsets"] = self._broker.consumer_offsets()
        return found

    def group_lags(self, most: int) -> dict[str, int]:
        """Returns the messages that each of ``most`` groups has not committed yet; see the function of this name."""
        return group_lags(self._parts, most)

    def file_counts(self) -> dict[FileState, Total]:
        """Returns number and bytes of files by kind, tier and state; of the archive once the background has read it."""
        totals, head = self._totals, self._manifest.head if self._manifest else None
        held = None if totals is None or head is None else totals.of(head)
        return count_files(self._hot, self._index, self._classic, head, held)

    def check(self, *, deep: bool = False) -> list[str]:
        """Verifies the invariants, or a broker's files; one line a finding. ``deep`` reads every archived byte."""
        report = self.check_report(deep=deep)
        return report.lines() + report.unasked

    def check_report(self, *, deep: bool = False, progress: Progress | None = None) -> Findings:
        """Runs the same checks; names the object of each finding, and adds notes. ``progress`` counts objects."""
        # late: few processes check, and it takes a dozen modules
        from tierlog.service.engine.checks import check_archive, check_classic, check_index, check_store

        findings = Findings()
        if self._broker is not None:
            return findings.extend(self._broker.check())
        findings.extend(check_store(self._hot) + check_index(self._hot, self._index))
        self._hot.verify_damage()
        for damage in self._hot.damage.found:
            findings.note(base_offset_name(damage.first - damage.first % self._hot.log.segment_bytes), str(damage))
        if self._classic is not None:
            findings.extend(check_classic(self._hot, self._classic))
        if self._manifest is not None:
            layouts = self._cold_index.layouts if self._cold_index is not None else LAYOUTS
            check_archive(self._manifest, self._hot, findings, deep=deep, progress=progress, layouts=layouts)
        return findings

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
        """Restores what can be derived in the archive; local files are rebuilt by ``repair_local`` and at open."""
        from tierlog.index.maintenance.repair import ArchiveRepair, RepairReport  # late: as for checks

        if not dry_run:
            self._check_writable()
        if self._manifest is None:
            return RepairReport()
        owner = self._archive_mover
        renew = None if owner is None else owner.renew_state
        repair = ArchiveRepair(
            self._manifest,
            self._hot,
            renew_state=renew,
            fs=self._parts.directory.fs,
            randomness=self._randomness,
            known=self._known,
        )
        return repair.run(dry_run=dry_run, progress=progress or (lambda done, of: None))

    @property
    def read_only_reason(self) -> str | None:
        """The reason why nothing can be written, or None."""
        return "opened read-only" if self._read_only else self._hot.guard.read_only_reason

    @property
    def readiness_problem(self) -> ReadinessProblem | None:
        """The reason why nothing can be appended at the moment; None if it can."""
        if (reason := self.read_only_reason) is not None:
            return ReadinessProblem(
                f"read-only: {reason}", "the store is read-only", "see to what the reason names, then restart"
            )
        if (reason := self.disk_full_reason) is not None:
            return ReadinessProblem(reason, "the disk is full", "free space; appends go on by themselves")
        return None

    @property
    def own_store(self) -> Self:
        """The store, for what serves either a store or a querier."""
        return self

    #: A store knows its own topics alone, and asks no other.
    finder: None = None
    fan_out: None = None

    def reader_of(self, store_id: str) -> Self:
        """Returns the store: a request for another one never comes here."""
        return self

    @property
    def archive_objects(self) -> ObjectStore | None:
        """The object store of the archive, as this store writes to it; None without a cold tier."""
        return self._manifest.objects if self._manifest is not None else None

    def own_epoch(self) -> int | None:
        """Returns the epoch of the archive's head as this open has claimed it; see :meth:`ArchiveMover.own_epoch`."""
        if self._archive_mover is None:
            raise InvalidRequestError("this store has no cold tier", hint="open it once with --cold URL")
        return self._archive_mover.own_epoch()

    @property
    def is_fenced(self) -> bool:
        """Whether the archive was seen to be another's: of the volume that took over, or of a copy of this one."""
        seen = self._manifest is not None and self._manifest.head is not None
        return seen and self._archive_mover is not None and self._archive_mover.own_head() is None

    @property
    def disk_full_reason(self) -> str | None:
        """The reason why appends are refused until there is room on the disk again, or None."""
        return self._disk.full_reason

    @property
    def cold_error(self) -> str | None:
        """The last failure to reach or write the archive, None once it went well again."""
        return self._background.cold_error or (self._archived.error if self._archived else None)

    @property
    def index_error(self) -> str | None:
        """The reason why index or queues do not follow the log, or index files cannot be maintained; else None."""
        return self._hot.dispatch_error or self._background.index_error

    @property
    def damage(self) -> str | None:
        """What of the log is known to be damaged, and what to do; all else is served. None if nothing is."""
        return self._hot.damage.reason

    @property
    def damaged_ranges(self) -> tuple[LogDamage, ...]:
        """The ranges of the log that are known to be damaged."""
        return self._hot.damage.found

    def damage_left(self, *, tried: bool) -> list[Finding]:
        """Says of each damaged range of the log what is lost and what to do next; ``tried``: the archive was used."""
        from tierlog.service.engine.checks import damage_left  # late: as for checks

        return damage_left(self._hot.damage.found, self._manifest, tried=tried)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Flushes and closes within 10 s, whatever the object store does. Idempotent."""
        self._background.stop()
        if self._archived is not None:
            self._archived.stop()
        self._local_changes.stop()
        try:
            if not self._read_only:
                self._hot.close()
                if self._hot.guard.read_only_reason is None:
                    self._index.checkpoint()
        finally:  # the lock goes whatever the disk says
            self._index.close()
            self._resources.close()
