"""The stores below one prefix as a process reads them that has none of them itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tierlog.index.objects.catalogue import ColdIndex
from tierlog.service.access.caller import every_topic
from tierlog.service.config.settings import Settings
from tierlog.service.engine.catalogue import FileInfo, QueueInfo, TopicInfo, cold_files
from tierlog.service.engine.opening import open_archive
from tierlog.service.engine.read_path import cache_stats, open_caches
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ObjectNotFoundError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import count_present
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import canonical_url, stores_below
from tierlog.tiering.read.fetcher import Fetcher


@dataclass(frozen=True, slots=True)
class ArchivedStore:
    """One store's archive, and what reads it."""

    store_id: str
    manifest: ManifestStore
    index: ColdIndex
    fetcher: Fetcher

    def head(self, max_age_s: float = 0.0) -> Head:
        """Returns a head that was looked for at most so long ago."""
        return (self.manifest.recent(max_age_s) if max_age_s else None) or self.manifest.refresh()

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns topics as far as they are archived; those that ``shows`` denies cost nothing."""
        return self._topics(shows, None)

    def named_topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns the same topics with the store's id at each queue; none while nothing is archived yet."""
        try:
            return self._topics(shows, self.store_id)
        except ObjectNotFoundError:
            return []

    def topic(self, name: str) -> TopicInfo | None:
        """Returns a topic as far as it is archived, or a generation of it; None if there is none."""
        return next(iter(self._topics(every_topic, None, only=name)), None)

    def named_topic(self, name: str) -> list[TopicInfo]:
        """Returns the same with the store's id at each queue, if there is one."""
        try:
            return self._topics(every_topic, self.store_id, only=name)
        except ObjectNotFoundError:
            return []

    def _topics(
        self, shows: Callable[[str], bool], store_id: str | None, *, only: str | None = None
    ) -> list[TopicInfo]:  # fmt: skip
        head, fetcher, found = self.manifest.refresh(), self.fetcher, []
        known = self.manifest.state(self.manifest.reader(), head)
        wanted = None if only is None else known.find(only)
        for state in known.listed:
            if not shows(record_topic(state.name)) or (only is not None and state != wanted):
                continue
            name = known.shown_name(state)
            queues = []
            for queue in range(state.queues):
                first, end = fetcher.offsets(name, queue)
                gaps = fetcher.declared_gaps(name, queue)
                queues.append(
                    QueueInfo(
                        queue, first, end, gaps, count_present(first, end, gaps), store_id, known.number_of(state)
                    )
                )
            found.append(
                TopicInfo(
                    name=name,
                    topic_id=state.topic_id,
                    queues=queues,
                    archive=state.archive,
                    cold_retention_ms=state.cold_retention_ms,
                    hold=state.hold,
                )
            )
        return found

    def has_topic(self, name: str, max_age_s: float) -> bool:
        """Whether the archive knows a topic; False too where there is no archive yet."""
        try:
            head = self.head(max_age_s)
        except ObjectNotFoundError:
            return False
        return self.manifest.state(self.manifest.reader(), head).find(name) is not None

    def files(self, max_age_s: float = 0.0) -> list[FileInfo]:
        """Returns published segments and index objects."""
        return cold_files(self.manifest, self.head(max_age_s))

    def watermarks(self, max_age_s: float = 0.0) -> dict[str, object]:
        """Returns the watermarks, the version of the manifest and its epoch."""
        head = self.head(max_age_s)
        return {
            "archived_to": head.archived_to,
            "indexed_to": head.indexed_to,
            "manifest_version": head.version,
            "epoch": head.epoch,
        }


class ArchiveRoot:
    """One prefix. Thread safe. What was read of any of its stores shares one cache."""

    def __init__(self, cold_url: str, settings: Settings, clock: Clock, objects: ObjectStore | None = None) -> None:
        """Asks for nothing yet; ``objects`` replaces the object store that the URL names."""
        self.url = canonical_url(cold_url)
        self.objects = objects or open_archive(self.url, settings, clock, make=False)
        self._options = settings.cold_options()
        self._clock = clock
        self._cache = ArchiveCache(settings.cold.cache_bytes)
        self._filters = open_caches(
            self._cache,
            self.objects,
            clock=clock,
            fs=LocalFileSystem(),
            settings=settings.cold,
            cold_url=self.url,
            default=None,
        )
        self._lock = threading.Lock()
        self._stores: dict[str, ArchivedStore] = {}
        self._listed: frozenset[str] = frozenset()

    def store(self, store_id: str) -> ArchivedStore:
        """Returns a store, whether it has an archive here or not."""
        found = self._stores.get(store_id)
        if found is not None:
            return found
        with self._lock:
            if store_id not in self._stores:
                manifest = ManifestStore(
                    self.objects,
                    ColdKeys(store_id),
                    randomness=SystemRandomness(),
                    options=self._options,
                    cache=self._cache,
                    clock=self._clock,
                )
                self._stores[store_id] = ArchivedStore(
                    store_id, manifest, ColdIndex(manifest, SystemRandomness(), self._filters),
                    Fetcher(store_id, None, manifest),
                )  # fmt: skip
            return self._stores[store_id]

    @property
    def listed(self) -> frozenset[str]:
        """Stores that had a head when :meth:`discover` looked last."""
        return self._listed

    def discover(self) -> list[str]:
        """Finds the stores, with two LIST requests a store; returns their ids in order."""
        self._listed = frozenset(stores_below(self.objects))
        return sorted(self._listed)

    def cache_stats(self) -> dict[str, dict[str, int]]:
        """Returns counters of the cache's layers."""
        return cache_stats(self._cache)

    def close(self) -> None:
        """Closes connections and the disk cache."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.objects.close)
            stack.callback(self._cache.close)
