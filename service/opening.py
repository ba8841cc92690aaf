"""Opens the parts of one store: lock, identity, archive, log and index, recovered and ready."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from index.classic.index import ClassicIndex
from index.cold_index import ColdIndex
from index.layout import LAYOUTS, TIERLOG, ItemLayout
from index.local_index import LocalIndex
from index.recovering import Recovering
from index.resident_filters import ResidentFilters
from index.search import Searcher
from service.archived_appends import ArchivedAppends, archived_appends
from service.archiving import ColdWay, owner_of
from service.bucket_guard import BucketGuard
from service.caching import open_caches
from service.groups import ConsumerGroups
from service.index_keeping import IndexKeeping
from service.local_steps import LocalSteps
from service.querying import make_searcher
from service.removal import Removal, make_removal
from service.seen_head import SeenHead, read_seen_head
from service.settings import Settings
from service.store_host import store_host
from tiering.clock import Clock
from tiering.cold.archive_totals import ArchiveTotals
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.metered import Meter, MeteredObjectStore
from tiering.cold.object_store import ObjectStore
from tiering.cold.s3.client import S3Limits
from tiering.cold.s3.keeping import S3Keeping
from tiering.cold.tail_objects import TailObjects
from tiering.cold.urls import canonical_url, open_object_store
from tiering.disk_space import DiskSpace
from tiering.erasing.known import KnownErasures
from tiering.errors import (
    CorruptionError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    StoreMismatchError,
    UnavailableError,
)
from tiering.fetch import Fetcher
from tiering.format.manifest import Head
from tiering.format.tail import TailHead
from tiering.fs import FileSystem
from tiering.group_offsets import GroupOffsets
from tiering.hot.clean_stop import mark_in_use
from tiering.hot.deleting import DeletedTopics, leave_hidden
from tiering.hot.identity import StoreIdentity, plan_identity
from tiering.hot.store import HotStore
from tiering.overlay import OverlayFileSystem
from tiering.paths import ColdKeys, StorePaths
from tiering.randomness import Randomness
from tiering.rocketmq.adopt import adopt, is_broker_store, refuse_writing
from tiering.rocketmq.broker import BrokerStore
from tiering.store_state import StateWriter
from tiering.tails.mark import TailMark
from tiering.tails.returning import LostTail
from tiering.tracer import NO_TRACER, Tracer

_FIRST_LOOK_S = 3.0
_READ_ONLY_TRIES = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a store is opened with beside its directory; ``objects`` replaces the store that the cold URL names."""

    settings: Settings
    clock: Clock
    fs: FileSystem
    randomness: Randomness
    objects: ObjectStore | None = None
    #: Of the key index's new files.
    layout: ItemLayout = TIERLOG
    tracer: Tracer = NO_TRACER


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one open store; ``resources`` lets go of the lock and the archive."""

    identity: StoreIdentity
    hot: HotStore
    index: LocalIndex
    #: RocketMQ's index beside ours, if it is written.
    classic: ClassicIndex | None
    manifest: ManifestStore | None
    #: How much the archive holds; known once the background has read it.
    totals: ArchiveTotals | None
    cold_index: ColdIndex | None
    searcher: Searcher
    keeping: IndexKeeping
    steps: LocalSteps
    cold_way: ColdWay | None
    archived: ArchivedAppends | None
    known: KnownErasures
    removal: Removal
    fetcher: Fetcher
    groups: ConsumerGroups
    disk: DiskSpace
    meter: Meter
    stopping: threading.Event
    #: Why the archive could not be reached at opening.
    first_contact: str | None
    resources: contextlib.ExitStack
    #: Whose directory it is, if it is not ours.
    broker: BrokerStore | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who the store is, and its archive."""

    identity: StoreIdentity
    lost: LostTail
    manifest: ManifestStore | None = None
    first_contact: str | None = None
    guard: BucketGuard | None = None


def open_parts(
    root: Path, around: Surroundings, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    """Open or make the store at ``root`` and recover it; see :meth:`service.engine.Engine.open`."""
    for _ in range(_READ_ONLY_TRIES - 1 if read_only else 0):
        with contextlib.suppress(NotFoundError):  # a writer beside this removed a file between list and look
            return _open_once(root, around, cold_url=cold_url, store_id=store_id, read_only=read_only)
    return _open_once(root, around, cold_url=cold_url, store_id=store_id, read_only=read_only)


def _open_once(
    root: Path, around: Surroundings, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    fs, settings = around.fs, around.settings
    paths = StorePaths(root)
    broker: BrokerStore | None = None
    if not read_only:
        refuse_writing(fs, paths)
    elif fs.exists(paths.store_json):
        fs = OverlayFileSystem(fs)
    elif is_broker_store(fs, paths):
        broker = BrokerStore(fs, paths)
        fs = OverlayFileSystem(fs)
        _adopt(fs, paths, settings, cold_url=cold_url, store_id=store_id)
    else:
        raise InvalidRequestError("no store here", path=str(root), hint="read-only needs an existing one")
    meter = Meter()
    with contextlib.ExitStack() as resources:

        def plan() -> _Plan:
            identity = plan_identity(
                fs, paths, around.randomness, store_id=store_id,
                cold_url=cold_url and canonical_url(cold_url),
                segment_bytes=settings.hot.segment_bytes, queue_file_units=settings.hot.queue_file_units,
            )  # fmt: skip
            lost = LostTail(TailMark(fs, paths), identity.volume_id)
            if identity.cold_url is None:
                return _Plan(identity, lost)
            archive = around.objects or open_archive(identity.cold_url, settings, around.clock, make=not read_only)
            metered = MeteredObjectStore(archive, meter, around.clock, around.tracer)
            resources.callback(metered.close)
            keys = ColdKeys(identity.store_id)
            objects: ObjectStore = metered
            guard = None
            if identity.cold_url.startswith("s3://") and not read_only:
                guard = BucketGuard(
                    metered, identity, fs, paths, around.clock, around.randomness,
                    single_writer=settings.cold.single_writer,
                )  # fmt: skip
                objects = guard.guarded
            manifest = ManifestStore(
                objects, keys, around.randomness, settings.cold_options(), clock=around.clock
            )  # fmt: skip
            manifest.had_head = fs.exists(paths.head_json)
            first_contact = _look_at_archive(manifest, identity, lost, refuse=not read_only)
            if guard is not None and first_contact is None:
                guard.ask()
            return _Plan(identity, lost, manifest, first_contact, guard)

        planned = None if fs.exists(paths.store_json) else plan()  # a new store that is refused leaves no trace
        fs.make_dirs(root)
        resources.enter_context(fs.lock(paths.lock))
        for folder in (paths.tmp, paths.tierlog):
            fs.make_dirs(folder)
        if planned is None or fs.exists(paths.store_json):
            planned = plan()
        identity, manifest = planned.identity, planned.manifest
        identity.save(fs, paths)
        if planned.guard is not None:
            planned.guard.remember()
        seen = read_seen_head(fs, paths)
        stopping = threading.Event()
        hot, index, classic, steps = _open_local(
            fs, paths, around, planned, seen, stopping, read_only=read_only, foreign=broker is not None
        )
        keeping = IndexKeeping(hot, index, around.clock, settings.index.seal_age_ms, steps)
        hot_settings = settings.hot
        cold_index: ColdIndex | None = None
        filters: ResidentFilters | None = None
        if manifest is not None:
            assert identity.cold_url is not None
            cold = settings.cold.model_copy(update={"disk_cache_bytes": 0}) if read_only else settings.cold
            resources.callback(manifest.cache.close)
            filters = open_caches(
                manifest.cache, manifest.objects, around.clock, fs, cold, identity.cold_url, paths.cache,
                max_used_percent=settings.hot.disk_max_used_percent,
            )  # fmt: skip
            layouts = {**LAYOUTS, around.layout.number: around.layout}
            cold_index = ColdIndex(manifest, around.randomness, filters, layouts=layouts)
        disk = DiskSpace(
            fs, root, around.clock, max_used_percent=hot_settings.disk_max_used_percent,
            full_percent=hot_settings.disk_full_percent,
        )  # fmt: skip
        known = KnownErasures(manifest, seen.tombstones, DeletedTopics(hot).current)
        offsets = GroupOffsets(
            fs,
            paths,
            identity.store_id,
            lambda: "opened read-only" if read_only else hot.guard.read_only_reason,
            settings.max_groups,
        )
        resources.callback(offsets.close)  # before the lock goes
        cold_way, archived = None, None
        if manifest is not None and not read_only:
            cold_way = ColdWay(
                hot, index, keeping, manifest, identity, fs, paths, around.clock, around.randomness,
                settings.retention_options(), disk, steps, known,
                StateWriter(hot, offsets, identity.volume_id, manifest, around.clock, around.randomness),
                filters,
            )  # fmt: skip
            if manifest.head is not None:
                manifest.check_owner(owner_of(identity), log_end=hot.log.end)
            archived = archived_appends(
                hot, cold_way, manifest, TailMark(fs, paths), settings, around.clock, around.randomness, stopping
            )  # fmt: skip
        totals = None if manifest is None else ArchiveTotals(manifest)
        searcher = make_searcher(settings, around.clock)
        removal = make_removal(
            identity, hot, index, cold_index, searcher, cold_way, known, fs, around.clock, around.randomness,
            settings.retention_options(), root=root, read_only=read_only,
        )  # fmt: skip
        fetcher = Fetcher(identity.store_id, hot, manifest, known)
        missing = partial(fetcher.gaps.missing, hot.topics)
        groups = ConsumerGroups(
            identity.store_id, offsets, hot.topics, fetcher.offsets, around.clock, around.randomness, missing,
            hot.flush_seen,
        )  # fmt: skip
        return StoreParts(
            identity, hot, index, classic, manifest, totals, cold_index, searcher, keeping, steps, cold_way, archived,
            known, removal, fetcher, groups, disk, meter, stopping, planned.first_contact, resources.pop_all(), broker,
        )  # fmt: skip


def _adopt(
    fs: OverlayFileSystem, paths: StorePaths, settings: Settings, *, cold_url: str | None, store_id: str | None
) -> None:
    if cold_url is not None:
        raise InvalidRequestError("a broker's store has no archive of ours", hint="leave --cold out")
    adopt(
        fs, paths, store_id=store_id,
        segment_bytes=settings.hot.segment_bytes, queue_file_units=settings.hot.queue_file_units,
    )  # fmt: skip


def _open_local(
    fs: FileSystem,
    paths: StorePaths,
    around: Surroundings,
    planned: _Plan,
    seen: SeenHead,
    stopping: threading.Event,
    *,
    read_only: bool,
    foreign: bool,
) -> tuple[HotStore, LocalIndex, ClassicIndex | None, LocalSteps]:
    """Log and indexes, recovered, and what bounds the changes made beside requests."""
    settings, identity, manifest = around.settings, planned.identity, planned.manifest
    archived_to, indexed_to = seen.archived_to, seen.indexed_to
    if manifest is not None and manifest.head is not None:
        archived_to, indexed_to = manifest.head.archived_to, manifest.head.indexed_to
    options = settings.hot_options(identity.segment_bytes, identity.queue_file_units, foreign=foreign)
    published_below = 0 if read_only else archived_to  # a reader may look at a volume that fell behind
    hot = HotStore(
        fs, paths, around.clock, options, store_host(settings), published_below=published_below, tracer=around.tracer
    )  # fmt: skip
    steps = LocalSteps(stopping, lambda: hot.guard.read_only_reason)
    index = LocalIndex.open(
        fs, paths, slots=settings.index.slots, items=settings.index.items, layout=around.layout,
        border=hot.log.begin, indexed_to=indexed_to, log_start=hot.log.begin, step=steps.step,
        flush_log=hot.flush_seen,
    )  # fmt: skip
    classic = None
    if settings.index.classic and not read_only:
        classic = ClassicIndex.open(
            fs, paths, around.clock, slots=settings.index.classic_slots, items=settings.index.classic_items,
            log_begin=hot.log.begin, before_change=partial(mark_in_use, fs, paths), flush_log=hot.flush_seen,
        )  # fmt: skip
    # what is recovered in memory only is not kept
    seal_full = (lambda: None) if read_only else index.seal_full
    hidden_below = None if read_only else max((stone.end for stone in seen.tombstones), default=0)
    _recover(hot, index, classic, planned.lost, seal_full, hidden_below)
    return hot, index, classic, steps


def open_archive(cold_url: str, settings: Settings, clock: Clock, *, make: bool = True) -> ObjectStore:
    """The object store behind a cold URL; ``make`` makes a directory that is missing."""
    cold = settings.cold
    return open_object_store(
        cold_url, clock=clock, endpoint_url=cold.s3_endpoint,
        limits=S3Limits(
            cold.connections, cold.connect_timeout_s, cold.read_timeout_s, cold.min_bytes_per_s,
            1 if cold.single_writer else cold.max_attempts,
        ),
        keeping=S3Keeping(cold.storage_class, cold.sse, cold.sse_kms_key_id), make=make,
    )  # fmt: skip


def _look_at_archive(manifest: ManifestStore, identity: StoreIdentity, lost: LostTail, *, refuse: bool) -> str | None:
    """Refuse an archive of another volume before anything is written; returns why it could not be reached.

    Without ``refuse``, for reading, the reason is returned too.

    A dead bucket delays the opening by seconds only: the volume that owns the archive opens without asking, and
    every commit checks again.
    """
    outcome: list[Exception | None] = []
    found: list[tuple[Head, list[TailHead]]] = []
    tails = TailObjects(manifest.objects, manifest.keys)

    def look() -> None:
        try:
            manifest.check_owner(owner_of(identity))
            if manifest.head is not None and refuse:
                found.append((manifest.head, lost.look(tails, manifest.head)))
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
        for head, chain in found:
            lost.saw(tails, head, chain)
        return None
    # a head that is lost or damaged takes nothing from the hot tier, and no commit goes past it
    if isinstance(error, UnavailableError | ObjectNotFoundError | CorruptionError):
        return str(error)
    if not refuse and isinstance(error, FencedError | StoreMismatchError):
        return str(error)
    raise error


def _recover(
    hot: HotStore,
    index: LocalIndex,
    classic: ClassicIndex | None,
    lost: LostTail,
    seal_full: Callable[[], object],
    hidden_below: int | None,
) -> None:
    """Recover the log and everything derived from it; index files that are full meanwhile are sealed at once.

    ``hidden_below`` is the greatest end of an erasure, None where nothing will be appended.
    """
    following = Recovering(index, seal_full)
    hot.recover([following], classic, put_back=lost.put_back)
    if index.next_offset() > hot.log.end:  # the disk forgot flushed records that an index file had seen
        index.discard_above(hot.log.end)
    if classic is not None and classic.next_offset() > hot.log.end:
        classic.restart(hot.log.begin)
    lost.settle(hot)
    if hidden_below is not None:
        leave_hidden(hot, hidden_below)
    hot.dispatch()
    for first, end in index.gaps(hot.border, hot.log.end):
        hot.derive(Recovering(index.derive(first, end), seal_full), first, end)
    following.end()
