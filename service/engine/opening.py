"""Opens the parts of one store: lock, identity, archive, log and index, recovered and ready."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tierlog.index.format.layout import LAYOUTS
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.index.search.searcher import Searcher
from tierlog.service.config.settings import Settings
from tierlog.service.engine.archive_mover import ArchiveMover, owner_of
from tierlog.service.engine.archived_appends import ArchivedAppends, archived_appends
from tierlog.service.engine.bucket_guard import BucketGuard
from tierlog.service.engine.groups import ConsumerGroups
from tierlog.service.engine.maintenance import IndexMaintenance, LocalChanges
from tierlog.service.engine.parts import ArchiveParts, Components, HotTier, StoreDirectory
from tierlog.service.engine.read_path import make_searcher, open_caches
from tierlog.service.engine.recovery import ArchiveConnection, Volume, check_room, recover_hot_tier, take_volume
from tierlog.service.engine.removal import Removal, make_removal
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreMismatchError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.base.write_guard import DiskSpace
from tierlog.tiering.cold.manifest.catalogue import ArchiveTotals
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.record import encode_host
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.delivery_states import DeliveryStates
from tierlog.tiering.hot.identity import StoreIdentity, is_made, plan_identity
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

# The store host that goes into every record: the setting ``advertise``, else where RocketMQ's clients find the store,
# as they look for a message where its id says, else this machine's first own address.

_EVERY_ADDRESS = ("", "0.0.0.0", "::")


def store_host(settings: Settings) -> bytes:
    """Returns IP and port as a record holds them: 8 bytes with IPv4, 20 with IPv6."""
    if settings.advertise is not None:
        host, _, port = settings.advertise.rpartition(":")
        return encode_host(ipaddress.ip_address(host.strip("[]")).packed, int(port))
    if settings.rocketmq.listen is not None:
        host, port_number = door_address(settings, settings.rocketmq.listen)
        return encode_host(_resolved(host), port_number)
    return encode_host(_first_address().packed, settings.serve.port)


def door_address(settings: Settings, listen: str) -> tuple[str, int]:
    """Returns host and port at which clients of RocketMQ are told to reach the door that listens there."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if settings.rocketmq.advertise is not None:
        host = settings.rocketmq.advertise
    elif host in _EVERY_ADDRESS:
        host = str(_first_address())
    return host, int(port)


def door_addresses(settings: Settings) -> dict[str, str]:
    """Returns ``host:port`` of the doors that are set, by protocol, as clients of RocketMQ are told."""
    doors = {"remoting": settings.rocketmq.listen, "grpc": settings.rocketmq.grpc_listen}
    return {name: host_and_port(door_address(settings, listen)) for name, listen in doors.items() if listen is not None}


def host_and_port(address: tuple[str, int]) -> str:
    """Returns an address as one text; an IPv6 address stands in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolved(host: str) -> bytes:
    """Returns the address of a host; this machine's first one for a name that cannot be looked up."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).packed
    with contextlib.suppress(OSError):
        return ipaddress.ip_address(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]).packed
    return _first_address().packed


def _first_address() -> ipaddress.IPv4Address:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        found = []
    addresses = [ipaddress.IPv4Address(info[4][0]) for info in found]
    return next((address for address in addresses if not address.is_loopback), ipaddress.IPv4Address("127.0.0.1"))


_READ_ONLY_TRIES = 3


@dataclass(frozen=True, slots=True)
class ArchiveWriters:
    """The writers that bring messages into the archive."""

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
    deliveries: DeliveryStates
    meter: Meter
    stopping: threading.Event
    resources: contextlib.ExitStack


def open_parts(
    root: Path, components: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    """Opens the store at ``root``, or creates it, and recovers it; see :meth:`service.engine.store.Store.open`."""
    for _ in range(_READ_ONLY_TRIES - 1 if read_only else 0):
        with contextlib.suppress(NotFoundError):  # a writer beside this removed a file between list and look
            return _open_once(root, components, cold_url=cold_url, store_id=store_id, read_only=read_only)
    return _open_once(root, components, cold_url=cold_url, store_id=store_id, read_only=read_only)


def _open_once(
    root: Path, components: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreParts:
    """Builds the parts in order, each from those before it; a failure lets go of what ``resources`` has by then."""
    directory = _directory(root, components, cold_url=cold_url, store_id=store_id, read_only=read_only)
    meter, stopping = Meter(), threading.Event()
    with contextlib.ExitStack() as resources:
        volume = take_volume(
            directory,
            plan=partial(_plan_identity, directory, components, cold_url=cold_url, store_id=store_id),
            connect=partial(_connect, directory=directory, components=components, meter=meter, resources=resources),
            is_named=store_id is not None,
            resources=resources,
        )
        identity, manifest = volume.identity, volume.manifest
        seen = read_last_head(directory.fs, directory.paths)
        hot = _load_hot_tier(directory, components, volume=volume, seen=seen, stopping=stopping)
        recover_hot_tier(
            directory, hot.store, hot.index, classic=hot.classic, lost=volume.lost, tombstones=seen.tombstones
        )
        archive = _archive_parts(directory, components, volume=volume, resources=resources)
        known = KnownErasures(manifest, seen.tombstones, DeletedTopics(hot.store).current)
        offsets = _group_offsets(directory, components, identity=identity, hot=hot, resources=resources)
        deliveries = _delivery_states(directory, hot=hot, resources=resources)
        writers = _archive_writers(
            directory, components, identity=identity, hot=hot, archive=archive, known=known, offsets=offsets,
            deliveries=deliveries, stopping=stopping,
        )  # fmt: skip
        searcher = make_searcher(components.settings, components.clock)
        removal = make_removal(
            hot, archive, directory=directory, components=components, identity=identity, searcher=searcher,
            archive_mover=writers.mover if writers else None, known=known,
        )  # fmt: skip
        fetcher = Fetcher(identity.store_id, hot.store, manifest, known)
        groups = _groups(
            components, identity=identity, hot=hot.store, fetcher=fetcher, offsets=offsets, deliveries=deliveries
        )
        volume.is_open()
        return StoreParts(
            directory=directory, identity=identity, hot=hot, archive=archive, writers=writers, known=known,
            removal=removal, fetcher=fetcher, searcher=searcher, groups=groups, deliveries=deliveries,
            meter=meter, stopping=stopping, resources=resources.pop_all(),
        )  # fmt: skip


def _directory(
    root: Path, components: Components, *, cold_url: str | None, store_id: str | None, read_only: bool
) -> StoreDirectory:
    """Returns the directory as this opening may use it; a broker's is adopted in memory."""
    fs, paths = components.fs, StorePaths(root)
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
    sizes = components.settings.hot
    adopt(
        overlay, paths, store_id=store_id,
        segment_bytes=sizes.segment_bytes, queue_file_units=sizes.queue_file_units,
    )  # fmt: skip
    return StoreDirectory(overlay, paths, read_only=True, broker=broker)


def _plan_identity(
    directory: StoreDirectory, components: Components, *, cold_url: str | None, store_id: str | None
) -> StoreIdentity:
    sizes = components.settings.hot
    if not directory.read_only:
        _check_writer(directory.fs, directory.paths, components)
    identity = plan_identity(
        directory.fs, directory.paths, components.randomness, store_id=store_id,
        cold_url=cold_url and canonical_url(cold_url),
        segment_bytes=sizes.segment_bytes, queue_file_units=sizes.queue_file_units,
        followed=components.follow_from is not None,
    )  # fmt: skip
    if not directory.read_only and not is_made(directory.fs, directory.paths):
        check_room(directory.fs, directory.paths.root, components.settings, identity.segment_bytes)
    return identity


def _check_writer(fs: FileSystem, paths: StorePaths, components: Components) -> None:
    """Lets only a follower write what follows a broker, and nothing else: offsets there are the broker's."""
    identity = StoreIdentity.read(fs, paths) if is_made(fs, paths) else None
    if identity is None or identity.followed == (components.follow_from is not None):
        return
    if identity.followed:
        raise StoreMismatchError(
            f"store {identity.store_id} follows a RocketMQ broker, which alone appends to it",
            path=str(paths.root),
            hint="`tierlog follow` goes on with it, and with --promote makes it a store that takes messages; commands "
            "that only read take it with --read-only",
        )
    raise StoreMismatchError(
        f"store {identity.store_id} takes messages itself, and follows no broker",
        path=str(paths.root),
        hint="give the follower a directory of its own",
    )


def _connect(
    identity: StoreIdentity,
    *,
    directory: StoreDirectory,
    components: Components,
    meter: Meter,
    resources: contextlib.ExitStack,
) -> ArchiveConnection | None:
    """Returns the store's archive behind its meter and its guard; None if it has none."""
    if identity.cold_url is None:
        return None
    fs, paths, may_write = directory.fs, directory.paths, not directory.read_only
    settings, clock = components.settings, components.clock
    archive = components.objects or open_archive(identity.cold_url, settings, clock, make=may_write)
    metered = MeteredObjectStore(archive, meter, clock, components.tracer)
    resources.callback(metered.close)
    guard = guard_bucket(metered, identity, fs, paths, components) if may_write else None
    manifest = open_manifest(guard.guarded if guard else metered, identity.store_id, components)
    manifest.had_head = fs.exists(paths.head_json)
    return ArchiveConnection(manifest, guard)


def guard_bucket(
    objects: ObjectStore, identity: StoreIdentity, fs: FileSystem, paths: StorePaths, components: Components
) -> BucketGuard | None:
    """Returns the guard through which a store writes to its archive; None for an archive that needs none."""
    if identity.cold_url is None or not identity.cold_url.startswith("s3://"):
        return None
    return BucketGuard(
        objects, identity, fs=fs, paths=paths, clock=components.clock, randomness=components.randomness,
        single_writer=components.settings.cold.single_writer,
    )  # fmt: skip


def open_manifest(objects: ObjectStore, store_id: str, components: Components) -> ManifestStore:
    """Returns the manifest of one store of an archive; nothing is asked yet."""
    options = components.settings.cold_options()
    return ManifestStore(
        objects, ColdKeys(store_id), randomness=components.randomness, options=options, clock=components.clock
    )


def open_archive(cold_url: str, settings: Settings, clock: Clock, *, make: bool = True) -> ObjectStore:
    """Returns the object store behind a cold URL; ``make`` makes a directory that is missing."""
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
    directory: StoreDirectory, components: Components, *, volume: Volume, seen: LastHead, stopping: threading.Event
) -> HotTier:
    """Loads log and indexes from the disk, not recovered yet."""
    fs, paths, settings, clock = directory.fs, directory.paths, components.settings, components.clock
    identity, manifest = volume.identity, volume.manifest
    archived_to, indexed_to = seen.archived_to, seen.indexed_to
    if manifest is not None and manifest.head is not None:
        archived_to, indexed_to = manifest.head.archived_to, manifest.head.indexed_to
    foreign = directory.broker is not None
    options = settings.hot_options(identity.segment_bytes, identity.queue_file_units, foreign=foreign)
    options = replace(
        options, followed=identity.followed, followed_below=identity.followed_below, begin=components.follow_from or 0
    )
    store = HotStore(
        fs, paths, clock, options, store_host(settings), tracer=components.tracer,
        published_below=0 if directory.read_only else archived_to,  # a reader may look at a volume that fell behind
    )  # fmt: skip
    store.times_fall_below = identity.times_fall_below
    changes = LocalChanges(stopping, lambda: store.guard.read_only_reason)
    index = LocalIndex.open(
        fs, paths, slots=settings.index.slots, items=settings.index.items, layout=components.layout,
        border=store.log.begin, indexed_to=indexed_to, log_start=store.log.begin, step=changes.step,
        flush_log=store.flush_seen,
    )  # fmt: skip
    classic = None
    if settings.index.classic and not directory.read_only:
        classic = ClassicIndex.open(
            fs, paths, clock, slots=settings.index.classic_slots, items=settings.index.classic_items,
            log_begin=store.log.begin, before_change=partial(mark_in_use, fs, paths), flush_log=store.flush_seen,
        )  # fmt: skip
    index_maintenance = IndexMaintenance(store, index, clock, settings.index.seal_age_ms, changes)
    disk = DiskSpace(
        fs, paths.root, clock, max_used_percent=settings.hot.disk_max_used_percent,
        full_percent=settings.hot.disk_full_percent,
    )  # fmt: skip
    return HotTier(
        store=store, index=index, classic=classic, index_maintenance=index_maintenance, changes=changes, disk=disk
    )


def _archive_parts(
    directory: StoreDirectory, components: Components, *, volume: Volume, resources: contextlib.ExitStack
) -> ArchiveParts | None:
    """Returns the archive with its caches and its key index; none of them lie on the disk of a store that is only
    read."""
    manifest, cold_url, settings = volume.manifest, volume.identity.cold_url, components.settings
    if manifest is None:
        return None
    assert cold_url is not None
    resources.callback(manifest.cache.close)
    filters = open_caches(
        manifest.cache, manifest.objects, clock=components.clock, fs=directory.fs, cold_url=cold_url,
        settings=settings.cold.model_copy(update={"disk_cache_bytes": 0}) if directory.read_only else settings.cold,
        default=directory.paths.cache, max_used_percent=settings.hot.disk_max_used_percent,
    )  # fmt: skip
    layouts = {**LAYOUTS, components.layout.number: components.layout}
    return ArchiveParts(
        manifest=manifest, totals=ArchiveTotals(manifest), filters=filters, first_contact=volume.first_contact,
        cold_index=ColdIndex(manifest, components.randomness, filters, layouts=layouts),
    )  # fmt: skip


def _group_offsets(
    directory: StoreDirectory,
    components: Components,
    *,
    identity: StoreIdentity,
    hot: HotTier,
    resources: contextlib.ExitStack,
) -> GroupOffsets:
    """Opens the committed offsets of groups; closed before the lock goes."""

    offsets = GroupOffsets(
        directory.fs, directory.paths, identity.store_id, partial(_read_only_reason, directory, hot),
        components.settings.max_groups,
    )  # fmt: skip
    resources.callback(offsets.close)
    return offsets


def _delivery_states(directory: StoreDirectory, *, hot: HotTier, resources: contextlib.ExitStack) -> DeliveryStates:
    """Opens what groups have above their committed offsets; closed before the lock goes."""
    states = DeliveryStates(
        directory.fs, directory.paths, partial(_read_only_reason, directory, hot), hot.store.flush_seen
    )  # fmt: skip
    resources.callback(states.close)
    return states


def _read_only_reason(directory: StoreDirectory, hot: HotTier) -> str | None:
    return "opened read-only" if directory.read_only else hot.store.guard.read_only_reason


def _archive_writers(
    directory: StoreDirectory,
    components: Components,
    *,
    identity: StoreIdentity,
    hot: HotTier,
    archive: ArchiveParts | None,
    known: KnownErasures,
    offsets: GroupOffsets,
    deliveries: DeliveryStates,
    stopping: threading.Event,
) -> ArchiveWriters | None:
    """Builds what brings messages into the archive, which must not be another volume's; None where nothing does."""
    if archive is None or directory.read_only:
        return None
    manifest, clock, randomness = archive.manifest, components.clock, components.randomness
    state = StateWriter(
        hot.store, offsets, deliveries, volume_id=identity.volume_id, manifest=manifest, clock=clock,
        randomness=randomness,
    )  # fmt: skip
    mover = ArchiveMover(
        hot, archive, directory=directory, components=components, identity=identity, known=known, state=state
    )
    manifest.check_owner_seen(owner_of(identity), log_end=hot.store.log.end)
    appends = archived_appends(
        hot.store, mover, manifest=manifest, mark=TailMark(directory.fs, directory.paths), settings=components.settings,
        clock=clock, randomness=randomness, stopping=stopping,
    )  # fmt: skip
    return ArchiveWriters(mover, appends)


def _groups(
    components: Components,
    *,
    identity: StoreIdentity,
    hot: HotStore,
    fetcher: Fetcher,
    offsets: GroupOffsets,
    deliveries: DeliveryStates,
) -> ConsumerGroups:
    return ConsumerGroups(
        identity.store_id, offsets=offsets, topics=hot.topics, offset_range=fetcher.offsets,
        offset_since=partial(fetcher.offset_by_time, boundary=Boundary.LOWER), clock=components.clock,
        randomness=components.randomness, lag=fetcher.lag, flush=hot.flush_seen,
        forget=deliveries.forget,
    )  # fmt: skip
