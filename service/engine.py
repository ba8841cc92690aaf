"""Composition root and library facade: one open store, with its hot tier, its index and its archive."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from index.layout import TIERLOG
from index.local_index import LocalIndex
from index.query import Answer, Query
from index.search import search
from index.store_search import TieredStoreSearch
from service.archiving import ArchiveReport, ColdWay, Progress, owner_of, remove_due, saved_watermarks
from service.background import Background
from service.catalogue import FileInfo, QueueInfo, TopicInfo, cold_files, local_files
from service.checking import check_archive, check_index, check_store
from service.settings import Settings
from service.store_host import store_host
from tiering.batch import MAX_QUEUES, Message, MessageBatch
from tiering.clock import Clock, SystemClock
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.metered import Meter, MeteredObjectStore
from tiering.cold.object_store import ObjectStore
from tiering.cold.urls import canonical_url, open_object_store
from tiering.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    ReadOnlyError,
    StoreMismatchError,
    UnavailableError,
)
from tiering.fetch import Fetcher, PullResult
from tiering.fs import FileSystem, LocalFileSystem
from tiering.hot.identity import StoreIdentity, plan_identity
from tiering.hot.store import HotStore
from tiering.hot.topics import Topic
from tiering.overlay import OverlayFileSystem
from tiering.paths import ColdKeys, StorePaths
from tiering.randomness import Randomness, SystemRandomness
from tiering.types import Durability

_FIRST_LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one message went."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int


class Engine:
    """One open store. Thread safe; :meth:`close` must be called, or the next open recovers as after a crash."""

    def __init__(
        self,
        identity: StoreIdentity,
        hot: HotStore,
        index: LocalIndex,
        manifest: ManifestStore | None,
        cold_way: ColdWay | None,
        background: Background,
        meter: Meter,
        settings: Settings,
        clock: Clock,
        resources: contextlib.ExitStack,
        *,
        read_only: bool,
    ) -> None:
        """Use :meth:`open`."""
        self.store_id = identity.store_id
        self.cold_url = identity.cold_url
        self._hot = hot
        self._index = index
        self._manifest = manifest
        self._cold_way = cold_way
        self._background = background
        self._meter = meter
        self._settings = settings
        self._clock = clock
        self._resources = resources
        self._read_only = read_only
        self._fetcher = Fetcher(identity.store_id, hot, manifest)
        self._store_host = store_host(settings)

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        settings: Settings,
        cold_url: str | None = None,
        store_id: str | None = None,
        read_only: bool = False,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        randomness: Randomness | None = None,
        objects: ObjectStore | None = None,
    ) -> Engine:
        """Open or make the store at ``root`` and recover it.

        ``read_only`` takes no lock and writes nothing: recovery happens in memory. ``objects`` replaces the object
        store that ``cold_url`` names. Raises :class:`StoreLockedError` if another process holds the store,
        :class:`StoreMismatchError` for other sizes, another cold URL, or an archive of another volume.
        """
        clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
        fs = fs or LocalFileSystem()
        root = Path(root).absolute()
        paths = StorePaths(root)
        if read_only:
            if not fs.exists(paths.store_json):
                raise InvalidRequestError("no store here", path=str(root), hint="read-only needs an existing one")
            fs = OverlayFileSystem(fs)
        meter = Meter()

        def plan() -> tuple[StoreIdentity, ManifestStore | None, str | None]:
            identity = plan_identity(
                fs, paths, randomness, store_id=store_id,
                cold_url=cold_url and canonical_url(cold_url),
                segment_bytes=settings.hot.segment_bytes, queue_file_units=settings.hot.queue_file_units,
            )  # fmt: skip
            if identity.cold_url is None:
                return identity, None, None
            archive = MeteredObjectStore(objects or open_archive(identity.cold_url, settings, clock), meter)
            resources.callback(archive.close)
            manifest = ManifestStore(archive, ColdKeys(identity.store_id), randomness, settings.cold_options())
            return identity, manifest, _look_at_archive(manifest, identity, refuse=not read_only)

        with contextlib.ExitStack() as resources:
            planned = None if fs.exists(paths.store_json) else plan()  # a new store that is refused leaves no trace
            fs.make_dirs(root)
            resources.enter_context(fs.lock(paths.lock))
            for folder in (paths.tmp, paths.tierlog):
                fs.make_dirs(folder)
            if planned is None or fs.exists(paths.store_json):
                planned = plan()
            identity, manifest, first_contact = planned
            identity.save(fs, paths)
            archived_to, indexed_to = saved_watermarks(fs, paths)
            if manifest is not None and manifest.head is not None:
                archived_to, indexed_to = manifest.head.archived_to, manifest.head.indexed_to
            options = settings.hot_options(identity.segment_bytes, identity.queue_file_units)
            published_below = 0 if read_only else archived_to  # a reader may look at a volume that fell behind
            hot = HotStore(fs, paths, clock, options, store_host(settings), published_below=published_below)
            index = LocalIndex.open(
                fs, paths, slots=settings.index.slots, items=settings.index.items, layout=TIERLOG,
                border=hot.log.begin, indexed_to=indexed_to, log_start=hot.log.begin,
            )  # fmt: skip
            _recover(hot, index)
            stopping = threading.Event()
            cold_way = None
            if manifest is not None and not read_only:
                cold_way = ColdWay(
                    hot, index, manifest, identity, fs, paths, clock, randomness,
                    settings.retention_options(), stopping,
                )  # fmt: skip
                if manifest.head is not None:
                    manifest.check_owner(owner_of(identity), log_end=hot.log.end)
            retention = settings.retention_options()
            tiers_round = cold_way.round if cold_way else lambda: remove_due(hot, index, retention, clock.now_ms())
            background = Background(hot, index, tiers_round, settings, clock, stopping, first_contact)
            return cls(
                identity, hot, index, manifest, cold_way, background, meter, settings, clock, resources.pop_all(),
                read_only=read_only,
            )  # fmt: skip

    def start(self) -> None:
        """Run flushing, dispatching, checkpoints, archiving and removal in the background."""
        if not self._read_only:
            self._background.start()

    # writing

    def append(self, messages: Sequence[Message], durability: Durability = Durability.FLUSHED) -> list[Appended]:
        """Append a batch, all of it or, if one message is wrong, nothing; see :class:`Durability` for the promise."""
        self._check_writable()
        if not self._settings.create_topics:
            for name in {message.topic for message in messages}:
                self._hot.topics.get(name)
        batch = MessageBatch.of(messages, now_ms=self._clock.now_ms(), max_body_bytes=self._settings.hot.max_body_bytes)
        result = self._hot.append(batch, durability)
        self._background.appended()
        return [
            Appended(
                (self._store_host + int(offset).to_bytes(8)).hex().upper(), queue_id, queue_offset, result.store_ms
            )
            for offset, queue_id, queue_offset in zip(
                result.physical_offset.tolist(), result.queue_id.tolist(), result.queue_offset.tolist(), strict=True
            )
        ]

    def create_topic(self, name: str, queues: int) -> None:
        """Make a topic, or give an existing one more queues; fewer is refused."""
        self._check_writable()
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidRequestError(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
        topic = self._hot.topics.create(name, queues)
        if topic.queues > queues:
            raise ConflictError(f"topic {name!r} has {topic.queues} queues already", hint="queues are never taken away")
        self._hot.topics.ensure_queues(topic, queues)

    def flush(self) -> None:
        """Make everything appended so far durable, with the queues and the recovery point."""
        self._check_writable()
        self._hot.flush()
        self._hot.dispatch()
        self._hot.checkpoint()

    def archive(
        self,
        *,
        until_ms: int | None = None,
        everything: bool = False,
        drop_hot: bool = False,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Publish now what is rolled, or everything; see :meth:`ColdWay.archive`."""
        self._check_writable()
        if self._cold_way is None:
            raise InvalidRequestError("this store has no cold tier", hint="open it once with --cold URL")
        return self._cold_way.archive(until_ms=until_ms, everything=everything, drop_hot=drop_hot, progress=progress)

    def tiers_round(self) -> None:
        """One turn of archiving and removal as :meth:`start` runs it, for a caller with a loop of its own."""
        self._check_writable()
        self._background.tiers_round()

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the store was opened read-only")

    # reading

    def query(self, query: Query) -> Answer:
        """Find messages by key or time over both tiers."""
        return search([TieredStoreSearch(self.store_id, self._hot, self._index, self._manifest)], query)

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
        """Read a queue in order; see :meth:`Fetcher.pull`."""
        return self._fetcher.pull(topic, queue_id, offset, limit, tag)

    def watch(
        self, topic: str, queue_id: int, offset: int, tell: Callable[[], object]
    ) -> contextlib.AbstractContextManager[None]:
        """Inside the context, call ``tell`` once, on another thread, when something may be readable at ``offset``."""
        found = self._hot.topics.get(topic)
        return self._background.arrivals.watch(lambda: self._hot.next_offset(found, queue_id) > offset, tell)

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> None:
        """Return when something may be readable at ``offset``, or after ``timeout_s``."""
        arrived = threading.Event()
        with self.watch(topic, queue_id, offset, arrived.set):
            self._clock.wait(arrived, timeout_s)

    def topics(self) -> list[TopicInfo]:
        """Topics with their queues and offsets, both tiers counted."""
        return [
            TopicInfo(
                topic.name,
                topic.topic_id,
                [QueueInfo(queue_id, *self._fetcher.offsets(topic.name, queue_id)) for queue_id in range(topic.queues)],
            )
            for topic in self._hot.topics.all()
        ]

    def topic(self, name: str) -> TopicInfo:
        """One topic; :class:`TopicNotFoundError`."""
        return self._describe(self._hot.topics.get(name))

    def _describe(self, topic: Topic) -> TopicInfo:
        queues = [QueueInfo(queue_id, *self._fetcher.offsets(topic.name, queue_id)) for queue_id in range(topic.queues)]
        return TopicInfo(topic.name, topic.topic_id, queues)

    def files(self) -> list[FileInfo]:
        """Every segment and index file of both tiers; the cold ones only if the archive can be read."""
        found = local_files(self._hot, self._index, self._manifest)
        if self._manifest is not None and self._manifest.head is not None:
            found += cold_files(self._manifest, self._manifest.head)
        return found

    def stats(self) -> dict[str, object]:
        """Sizes and lags in bytes, times in ms, and what was asked of the archive since the store was opened."""
        hot, head = self._hot, self._manifest.head if self._manifest else None
        asked = self._meter.reading()
        return {
            "store_id": self.store_id,
            "cold_url": self.cold_url,
            "topics": len(hot.topics.all()),
            "log_begin": hot.border,
            "log_end": hot.log.end,
            "flushed_to": hot.log.flushed,
            "archived_to": head.archived_to if head else None,
            "indexed_to": head.indexed_to if head else None,
            "manifest_version": head.version if head else None,
            "hot_bytes": hot.log.end - hot.border,
            "unflushed_bytes": hot.log.end - hot.log.flushed,
            "unarchived_bytes": hot.log.end - head.archived_to if head else None,
            "last_store_ms": hot.last_store_ms,
            "archive_requests": asked.requests,
            "archive_failures": asked.failures,
            "archive_bytes_read": asked.bytes_read,
            "archive_bytes_written": asked.bytes_written,
            "read_only_reason": self.read_only_reason,
            "cold_error": self.cold_error,
        }

    def check(self, *, deep: bool = False) -> list[str]:
        """Verify the invariants; one line a finding. ``deep`` reads every archived byte."""
        findings = check_store(self._hot) + check_index(self._hot, self._index)
        if self._manifest is not None:
            findings += check_archive(self._manifest, self._hot, deep=deep)
        return findings

    @property
    def read_only_reason(self) -> str | None:
        """Why nothing can be written, or None."""
        return "opened read-only" if self._read_only else self._hot.read_only_reason

    @property
    def cold_error(self) -> str | None:
        """The last failure to reach or write the archive, None once it went well again."""
        return self._background.cold_error

    def close(self) -> None:
        """Flush and close within 10 s, whatever the object store does. Idempotent."""
        self._background.stop()
        if self._cold_way is not None:
            self._cold_way.stop()
        try:
            if not self._read_only:
                self._hot.close()
        finally:  # the lock goes whatever the disk says
            self._resources.close()


def open_archive(cold_url: str, settings: Settings, clock: Clock) -> ObjectStore:
    """The object store behind a cold URL."""
    cold = settings.cold
    return open_object_store(
        cold_url, clock=clock, endpoint_url=cold.s3_endpoint,
        connect_timeout_s=cold.connect_timeout_s, read_timeout_s=cold.read_timeout_s,
    )  # fmt: skip


def _look_at_archive(manifest: ManifestStore | None, identity: StoreIdentity, *, refuse: bool) -> str | None:
    """Refuse an archive of another volume before anything is written; returns why it could not be reached.

    Without ``refuse``, for reading, the reason is returned too.

    A dead bucket delays the opening by seconds only: the volume that owns the archive opens without asking, and
    every commit checks again.
    """
    if manifest is None:
        return None
    outcome: list[Exception | None] = []

    def look() -> None:
        try:
            manifest.check_owner(owner_of(identity))
            outcome.append(None)
        except Exception as error:  # raised again by the opener below, or told as the reason
            outcome.append(error)

    thread = threading.Thread(target=look, name="tierlog-first-look", daemon=True)
    thread.start()
    thread.join(_FIRST_LOOK_S)
    if not outcome:
        return f"the archive did not answer within {_FIRST_LOOK_S} s"
    error = outcome[0]
    if error is None:
        return None
    if isinstance(error, UnavailableError) or (not refuse and isinstance(error, FencedError | StoreMismatchError)):
        return str(error)
    raise error


def _recover(hot: HotStore, index: LocalIndex) -> None:
    """Recover the log and everything derived from it."""
    hot.recover([index])
    if index.next_offset() > hot.log.end:  # the disk forgot flushed records that an index file had seen
        index.discard_above(hot.log.end)
    hot.dispatch()
    for first, end in index.gaps(hot.border, hot.log.end):
        hot.derive(index.derive(first, end), first, end)
