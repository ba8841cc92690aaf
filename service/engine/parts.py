"""The parts of an open store that others are built from: its seams, its directory, its hot tier and its archive."""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.index.format.layout import TIERLOG, ItemLayout
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.service.config.settings import Settings
from tierlog.service.engine.maintenance import IndexMaintenance, LocalChanges
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.base.write_guard import DiskSpace
from tierlog.tiering.cold.manifest.catalogue import ArchiveTotals
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.rocketmq.check import BrokerStore


@dataclass(frozen=True, slots=True)
class Components:
    """The settings and seams that a store is opened with; ``objects`` replaces the store that the cold URL names."""

    settings: Settings
    clock: Clock
    fs: FileSystem
    randomness: Randomness
    objects: ObjectStore | None = None
    #: Of the key index's new files.
    layout: ItemLayout = TIERLOG
    tracer: Tracer = NO_TRACER
    #: Where the log of a new store begins that follows a broker; None for whoever opens a store that takes messages.
    follow_from: int | None = None


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A store's directory, and what may be done there."""

    fs: FileSystem
    """The way to its files; where nothing may be written, an overlay that keeps writes in memory."""
    paths: StorePaths
    read_only: bool
    broker: BrokerStore | None = None
    """The broker whose directory it is, if it is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTier:
    """The log with its queues, the indexes over it, and what keeps them in shape."""

    store: HotStore
    index: LocalIndex
    #: RocketMQ's index beside ours, if it is written.
    classic: ClassicIndex | None
    index_maintenance: IndexMaintenance
    #: Stops changes of local files once the store closes.
    changes: LocalChanges
    disk: DiskSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParts:
    """The archive as a reader needs it."""

    manifest: ManifestStore
    #: The archive's size; known once the background has read it.
    totals: ArchiveTotals
    cold_index: ColdIndex
    filters: ResidentFilters
    #: The reason why it could not be reached at opening.
    first_contact: str | None
