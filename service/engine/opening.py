"""Opens the parts of one store: lock, identity, archive, log and index, recovered and ready."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tierlog.index.format.layout import LAYOUTS, TIERLOG, ItemLayout
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.index.search.searcher import Searcher
from tierlog.service.config.settings import Settings
from tierlog.service.engine.archive_mover import ArchiveMover, owner_of
from tierlog.service.engine.archived_appends import ArchivedAppends, archived_appends
from tierlog.service.engine.bucket_guard import BucketGuard
from tierlog.service.engine.groups import ConsumerGroups
from tierlog.service.engine.maintenance import IndexMaintenance, LocalChanges
from tierlog.service.engine.read_path import make_searcher, open_caches
from tierlog.service.engine.recovery import ArchiveConnection, StoreDirectory, Volume, recover_hot_tier, take_volume
from tierlog.service.engine.removal import Removal, make_removal
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.base.write_guard import DiskSpace
from tierlog.tiering.cold.manifest.catalogue import ArchiveTotals
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.record import encode_host
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.identity import StoreIdentity, plan_identity
from tierlog.tiering.hot.store import HotStore, mark_in_use
from tierlog.tiering.hot.topic_deletion import DeletedTopics
from tierlog.tiering.lifecycle.last_head import LastHead, read_last_head
from tierlog.tiering.lifecycle.state_writer import StateWriter
from tierlog.tiering.lifecycle.tail_store import TailMark
from tierlog.tiering.lifecycle.tombstones import KnownErasures
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_protocol import S3ObjectOptions
from tierlog.tiering.objects.urls import canonical_url, open_object_store
from tierlog.tiering.read.fetcher import Fetcher
from tierlog.tiering.rocketmq.adoption import adopt, is_broker_store, refuse_writing
from tierlog.tiering.rocketmq.check import BrokerStore

# The store host that goes into every record: the setting ``advertise``, else this machine's first own address.


def store_host(settings: Settings) -> bytes:
    """IP and port as a record holds them: 8 bytes with IPv4, 20 with IPv6."""
    if settings.advertise is not None:
        host, _, port = settings.advertise.rpartition(":")
        return encode_host(ipaddress.ip_address(host.strip("[]")).packed, int(port))
    return encode_host(_first_address(), settings.serve.port)


def _first_address() -> bytes:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        found = []
    addresses = [ipaddress.IPv4Address(info[4][0]) for info in found]
    return next(
        (address for address in addresses if not address.is_loopback), ipaddress.IPv4Address("127.0.0.1")
    ).packed


_READ_ONLY_TRIES = 3


@dataclass(frozen=True, slots=True)
class Components:
    """What a store is opened with beside its directory; ``objects`` replaces the store that the cold URL names."""

    settings: Settings
    clock: Clock
    fs: FileSystem
    randomness: Randomness
    objects: ObjectStore | None = None
    #: Of the key index's new files.
    layout: ItemLayout = TIERLOG
    tracer: Tracer = NO_TRACER


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTier:
    """The log with its queues, the indexes over it, and what keeps them in shape."""

    store: HotStore
    index: LocalIndex
    #: RocketMQ's index beside ours, if it is written.
    classic: ClassicIndex | None
    keeping: IndexMaintenance
    #: What bounds the changes made beside requests.
    steps: LocalChanges
    disk: DiskSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParts:
    """The archive as a reader needs it."""

    manifest: ManifestStore
    #: How much the archive holds; known once the background has read it.
    totals: ArchiveTotals
    cold_index: ColdIndex
    filters: ResidentFilters
    #: Why it could not be reached at opening.
    first_contact: str | None


@dataclass(frozen=True, slots=True)
class ArchiveWriters:
    """What brings messages into the archive."""

    mover: ArchiveMover
    appends: ArchivedAppends


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """The parts of one open store; ``resources`` lets go of the lock and the archive."""

    directory: StoreDirectory
    identity: StoreIdentity
    hot: HotTier
    #: None for a store without a cold tier.
    archive: ArchiveParts | None
    #: None too where the store is only read.
    writers: ArchiveWriters | None
    known: KnownErasures
    removal: Removal
    fetcher: Fetcher
    searcher: Searcher
    groups: ConsumerGroups
    meter: Meter
    stopping: threading.Event
    resources: contextlib.ExitStack


def open_parts(
    root: Path, around: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    """Opens or make the store at ``root`` and recover it; see :meth:`service.engine.store.Store.open`."""
    for _ in range(_READ_ONLY_TRIES - 1 if read_only else 0):
        with contextlib.suppress(NotFoundError):  # a writer beside this removed a file between list and look
            return _open_once(root, around, cold_url=cold_url, store_id=store_id, read_only=read_only)
    return _open_once(root, around, cold_url=cold_url, store_id=store_id, read_only=read_only)


def _open_once(
    root: Path, around: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    """Builds the parts in order, each from those before it; a failure lets go of what ``resources`` has by then."""
    directory = _directory(root, around, cold_url=cold_url, store_id=store_id, read_only=read_only)
    meter, stopping = Meter(), threading.Event()
    with contextlib.ExitStack() as resources:
        volume = take_volume(
            directory,
            plan=partial(_plan_identity, directory, around, cold_url=cold_url, store_id=store_id),
            connect=partial(_connect, directory=directory, around=around, meter=meter, resources=resources),
            resources=resources,
        )
        identity, manifest = volume.identity, volume.manifest
        seen = read_last_head(directory.fs, directory.paths)
        hot = _load_hot_tier(directory, around, volume=volume, seen=seen, stopping=stopping)
        recover_hot_tier(
            directory, hot.store, hot.index, classic=hot.classic, lost=volume.lost, tombstones=seen.tombstones
        )
        archive = _archive_parts(directory, around, volume=volume, resources=resources)
        known = KnownErasures(manifest, seen.tombstones, DeletedTopics(hot.store).current)
        offsets = _group_offsets(directory, around, identity=identity, hot=hot, resources=resources)
        writers = _archive_writers(
            directory, around, identity=identity, hot=hot, archive=archive, known=known, offsets=offsets,
            stopping=stopping,
        )  # fmt: skip
        searcher = make_searcher(around.settings, around.clock)
        removal = make_removal(
            identity=identity, hot=hot.store, index=hot.index, cold_index=archive.cold_index if archive else None,
            searcher=searcher, archive_mover=writers.mover if writers else None, known=known, fs=directory.fs,
            clock=around.clock, randomness=around.randomness, options=around.settings.retention_options(),
            root=root, read_only=read_only,
        )  # fmt: skip
        fetcher = Fetcher(identity.store_id, hot.store, manifest, known)
        groups = _groups(around, identity=identity, hot=hot.store, fetcher=fetcher, offsets=offsets)
        return StoreParts(
            directory=directory, identity=identity, hot=hot, archive=archive, writers=writers, known=known,
            removal=removal, fetcher=fetcher, searcher=searcher, groups=groups, meter=meter, stopping=stopping,
            resources=resources.pop_all(),
        )  # fmt: skip


def _directory(
    root: Path, around: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreDirectory:
    """The directory as this opening may use it; a broker's is adopted in memory."""
    fs, paths = around.fs, StorePaths(root)
    if not read_only:
        refuse_writing(fs, paths)
        return StoreDirectory(fs, paths, read_only=False)
    overlay = OverlayFileSystem(fs)
    if fs.exists(paths.store_json):
        return StoreDirectory(overlay, paths, read_only=True)
    if not is_broker_store(fs, paths):
        raise InvalidRequestError("no store here", path=str(root), hint="read-only needs an existing one")
    broker = BrokerStore(fs, paths)
    if cold_url is not None:
        raise InvalidRequestError("a broker's store has no archive of ours", hint="leave --cold out")
    sizes = around.settings.hot
    adopt(
        overlay, paths, store_id=store_id,
        segment_bytes=sizes.segment_bytes, queue_file_units=sizes.queue_file_units,
    )  # fmt: skip
    return StoreDirectory(overlay, paths, read_only=True, broker=broker)


def _plan_identity(
    directory: StoreDirectory, around: Components, *, cold_url: str | None, store_id: str | None
) -> StoreIdentity:
    sizes = around.settings.hot
    return plan_identity(
        directory.fs, directory.paths, around.randomness, store_id=store_id,
        cold_url=cold_url and canonical_url(cold_url),
        segment_bytes=sizes.segment_bytes, queue_file_units=sizes.queue_file_units,
    )  # fmt: skip


def _connect(
    identity: StoreIdentity,
    *,
    directory: StoreDirectory,
    around: Components,
    meter: Meter,
    resources: contextlib.ExitStack,
) -> ArchiveConnection | None:
    """The store's archive behind its meter and its guard; None if it has none."""
    if identity.cold_url is None:
        return None
    fs, paths, may_write = directory.fs, directory.paths, not directory.read_only
    archive = around.objects or open_archive(identity.cold_url, around.settings, around.clock, make=may_write)
    metered = MeteredObjectStore(archive, meter, around.clock, around.tracer)
    resources.callback(metered.close)
    guard = guard_bucket(metered, identity, fs, paths, around) if may_write else None
    manifest = open_manifest(guard.guarded if guard else metered, identity.store_id, around)
    manifest.had_head = fs.exists(paths.head_json)
    return ArchiveConnection(manifest, guard)


def guard_bucket(
    objects: ObjectStore, identity: StoreIdentity, fs: FileSystem, paths: StorePaths, around: Components
) -> BucketGuard | None:
    """Returns the guard through which a store writes to its archive; None for an archive that needs none."""
    if identity.cold_url is None or not identity.cold_url.startswith("s3://"):
        return None
    return BucketGuard(
        objects, identity, fs=fs, paths=paths, clock=around.clock, randomness=around.randomness,
        single_writer=around.settings.cold.single_writer,
    )  # fmt: skip


def open_manifest(objects: ObjectStore, store_id: str, around: Components) -> ManifestStore:
    """The manifest of one store of an archive; nothing is asked yet."""
    options = around.settings.cold_options()
    return ManifestStore(objects, ColdKeys(store_id), randomness=around.randomness, options=options, clock=around.clock)


def open_archive(cold_url: str, settings: Settings, clock: Clock, *, make: bool = True) -> ObjectStore:
    """The object store behind a cold URL; ``make`` makes a directory that is missing."""
    cold = settings.cold
    return open_object_store(
        cold_url, clock=clock, endpoint_url=cold.s3_endpoint,
        limits=S3Limits(
            cold.connections, cold.connect_timeout_s, cold.read_timeout_s, cold.min_bytes_per_s,
            1 if cold.single_writer else cold.max_attempts,
        ),
        keeping=S3ObjectOptions(cold.storage_class, cold.sse, cold.sse_kms_key_id), make=make,
    )  # fmt: skip


def _load_hot_tier(
    directory: StoreDirectory, around: Components, *, volume: Volume, seen: LastHead, stopping: threading.Event
) -> HotTier:
    """Log and indexes as they lie on the disk, not recovered yet."""
    fs, paths, settings, clock = directory.fs, directory.paths, around.settings, around.clock
    identity, manifest = volume.identity, volume.manifest
    archived_to, indexed_to = seen.archived_to, seen.indexed_to
    if manifest is not None and manifest.head is not None:
        archived_to, indexed_to = manifest.head.archived_to, manifest.head.indexed_to
    foreign = directory.broker is not None
    store = HotStore(
        fs, paths, clock, settings.hot_options(identity.segment_bytes, identity.queue_file_units, foreign=foreign),
        store_host(settings), tracer=around.tracer,
        published_below=0 if directory.read_only else archived_to,  # a reader may look at a volume that fell behind
    )  # fmt: skip
    steps = LocalChanges(stopping, lambda: store.guard.read_only_reason)
    index = LocalIndex.open(
        fs, paths, slots=settings.index.slots, items=settings.index.items, layout=around.layout,
        border=store.log.begin, indexed_to=indexed_to, log_start=store.log.begin, step=steps.step,
        flush_log=store.flush_seen,
    )  # fmt: skip
    classic = None
    if settings.index.classic and not directory.read_only:
        classic = ClassicIndex.open(
            fs, paths, clock, slots=settings.index.classic_slots, items=settings.index.classic_items,
            log_begin=store.log.begin, before_change=partial(mark_in_use, fs, paths), flush_log=store.flush_seen,
        )  # fmt: skip
    keeping = IndexMaintenance(store, index, clock, settings.index.seal_age_ms, steps)
    disk = DiskSpace(
        fs, paths.root, clock, max_used_percent=settings.hot.disk_max_used_percent,
        full_percent=settings.hot.disk_full_percent,
    )  # fmt: skip
    return HotTier(store=store, index=index, classic=classic, keeping=keeping, steps=steps, disk=disk)


def _archive_parts(
    directory: StoreDirectory, around: Components, *, volume: Volume, resources: contextlib.ExitStack
) -> ArchiveParts | None:
    """The archive with its caches and its key index; none of them lie on the disk of a store that is only read."""
    manifest, cold_url, settings = volume.manifest, volume.identity.cold_url, around.settings
    if manifest is None:
        return None
    assert cold_url is not None
    resources.callback(manifest.cache.close)
    filters = open_caches(
        manifest.cache, manifest.objects, clock=around.clock, fs=directory.fs, cold_url=cold_url,
        settings=settings.cold.model_copy(update={"disk_cache_bytes": 0}) if directory.read_only else settings.cold,
        default=directory.paths.cache, max_used_percent=settings.hot.disk_max_used_percent,
    )  # fmt: skip
    layouts = {**LAYOUTS, around.layout.number: around.layout}
    return ArchiveParts(
        manifest=manifest, totals=ArchiveTotals(manifest), filters=filters, first_contact=volume.first_contact,
        cold_index=ColdIndex(manifest, around.randomness, filters, layouts=layouts),
    )  # fmt: skip


def _group_offsets(
    directory: StoreDirectory,
    around: Components,
    *,
    identity: StoreIdentity,
    hot: HotTier,
    resources: contextlib.ExitStack,
) -> GroupOffsets:
    """Opens the committed offsets of groups; closed before the lock goes."""

    def read_only_reason() -> str | None:
        return "opened read-only" if directory.read_only else hot.store.guard.read_only_reason

    offsets = GroupOffsets(
        directory.fs, directory.paths, identity.store_id, read_only_reason, around.settings.max_groups
    )  # fmt: skip
    resources.callback(offsets.close)
    return offsets


def _archive_writers(
    directory: StoreDirectory,
    around: Components,
    *,
    identity: StoreIdentity,
    hot: HotTier,
    archive: ArchiveParts | None,
    known: KnownErasures,
    offsets: GroupOffsets,
    stopping: threading.Event,
) -> ArchiveWriters | None:
    """Builds what brings messages into the archive, which must not be another volume's; None where nothing does."""
    if archive is None or directory.read_only:
        return None
    manifest, clock, randomness = archive.manifest, around.clock, around.randomness
    state = StateWriter(
        hot.store, offsets, volume_id=identity.volume_id, manifest=manifest, clock=clock, randomness=randomness
    )
    mover = ArchiveMover(
        hot=hot.store, index=hot.index, keeping=hot.keeping, manifest=manifest, identity=identity, fs=directory.fs,
        paths=directory.paths, clock=clock, randomness=randomness, retention=around.settings.retention_options(),
        disk=hot.disk, steps=hot.steps, known=known, state=state, filters=archive.filters,
    )  # fmt: skip
    manifest.check_owner_seen(owner_of(identity), log_end=hot.store.log.end)
    appends = archived_appends(
        hot.store, mover, manifest=manifest, mark=TailMark(directory.fs, directory.paths), settings=around.settings,
        clock=clock, randomness=randomness, stopping=stopping,
    )  # fmt: skip
    return ArchiveWriters(mover, appends)


def _groups(
    around: Components, *, identity: StoreIdentity, hot: HotStore, fetcher: Fetcher, offsets: GroupOffsets
) -> ConsumerGroups:
    return ConsumerGroups(
        identity.store_id, offsets=offsets, topics=hot.topics, offset_range=fetcher.offsets, clock=around.clock,
        randomness=around.randomness, missing=partial(fetcher.gaps.missing, hot.topics), flush=hot.flush_seen,
    )  # fmt: skip
