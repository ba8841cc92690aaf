"""Reads an archive with no service and no store directory: one store's, or all below a prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from index.archive_repair import ArchiveRepair, RepairReport
from index.cold_index import ColdIndex
from index.query import Answer, Query
from index.resident_filters import ResidentFilters
from index.search import Searcher
from index.store_search import ArchiveSearch
from service.archiving import Progress
from service.caching import cache_stats, open_caches
from service.catalogue import FileInfo, QueueInfo, TopicInfo, cold_files
from service.checking import check_archive
from service.opening import open_archive
from service.querying import answer, make_searcher
from service.settings import Settings
from tiering.checks.findings import Findings
from tiering.clock import Clock, SystemClock
from tiering.cold.listing import stores_below
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.object_store import ObjectStore
from tiering.cold.reading import ArchiveCache
from tiering.cold.segment.reader import SegmentReader
from tiering.cold.segment.restoring import restore_segment
from tiering.cold.urls import canonical_url
from tiering.errors import InvalidRequestError, NotFoundError, ObjectNotFoundError, TopicNotFoundError
from tiering.fetch import Fetcher
from tiering.fs import LocalFileSystem
from tiering.paths import ColdKeys
from tiering.pull_result import PullResult
from tiering.randomness import SystemRandomness
from tiering.types import Boundary


class ColdEngine:
    """The stores of one archive, read only. Thread safe."""

    def __init__(
        self,
        objects: ObjectStore,
        manifests: dict[str, ManifestStore],
        filters: ResidentFilters,
        cold_url: str,
        searcher: Searcher,
        settings: Settings,
    ) -> None:
        """Use :meth:`open`."""
        self._objects = objects
        self._searcher = searcher
        self._settings = settings
        self._manifests = manifests
        self._indexes = {
            store_id: ColdIndex(manifest, SystemRandomness(), filters) for store_id, manifest in manifests.items()
        }
        self._fetchers = {store_id: Fetcher(store_id, None, manifest) for store_id, manifest in manifests.items()}
        self.cold_url = cold_url

    @classmethod
    def open(
        cls,
        cold_url: str,
        *,
        settings: Settings,
        store_id: str | None = None,
        clock: Clock | None = None,
        objects: ObjectStore | None = None,
    ) -> ColdEngine:
        """Find the stores below ``cold_url``, or take the one named.

        Raises :class:`NotFoundError` if there is none, the object store's error if it cannot be asked.
        """
        url = canonical_url(cold_url)
        clock = clock or SystemClock()
        objects = objects or open_archive(url, settings, clock, make=False)
        store_ids = [store_id] if store_id else list(stores_below(objects))
        if not store_ids:
            raise NotFoundError("no archive of any store here", path=url)
        cache = ArchiveCache(settings.cold.cache_bytes)
        filters = open_caches(cache, objects, clock, LocalFileSystem(), settings.cold, url, None)
        manifests = {
            found: ManifestStore(objects, ColdKeys(found), SystemRandomness(), settings.cold_options(), cache, clock)
            for found in store_ids
        }
        for found, manifest in manifests.items():
            try:
                manifest.refresh()
            except ObjectNotFoundError as error:
                if next(iter(objects.list(f"{found}/")), None) is None:
                    raise NotFoundError(f"no archive of store {found!r} here", path=url) from error
                raise  # the head of a store that is there is lost
        return cls(objects, manifests, filters, url, make_searcher(settings, clock), settings)

    @property
    def store_ids(self) -> list[str]:
        """The stores found, in order."""
        return sorted(self._manifests)

    def query(self, query: Query) -> Answer:
        """Search every store's archive; what is still hot is not searched and not claimed."""
        stores = [ArchiveSearch(store_id, self._indexes[store_id]) for store_id in self.store_ids]
        return answer(self._searcher, stores, query, self._settings)

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
        """Read a queue of the one store that has it; several need a store id at :meth:`open`."""
        return self._fetcher().pull(topic, queue_id, offset, limit, tag)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Where in a queue of the one store a store time lies."""
        return self._fetcher().offset_by_time(topic, queue_id, time_ms, boundary)

    def _fetcher(self) -> Fetcher:
        return self._fetchers[self._only_store("a queue")[0]]

    def _only_store(self, what: str) -> tuple[str, ManifestStore]:
        if len(self._manifests) > 1:
            raise InvalidRequestError(
                f"{len(self._manifests)} stores lie here and {what} belongs to one", hint="name the store by its id"
            )
        ((store_id, manifest),) = self._manifests.items()
        return store_id, manifest

    def topics(self) -> list[TopicInfo]:
        """Topics of all stores; a name that several have is listed once for each."""
        found = []
        for store_id in self.store_ids:
            manifest = self._manifests[store_id]
            head, reader, fetcher = manifest.refresh(), manifest.reader(), self._fetchers[store_id]
            for state in manifest.state(reader, head).listed:
                queues = [
                    QueueInfo(queue, *fetcher.offsets(state.name, queue), fetcher.declared_gaps(state.name, queue))
                    for queue in range(state.queues)
                ]
                found.append(
                    TopicInfo(
                        state.name, state.topic_id, queues, state.archive, state.cold_retention_ms, state.hold
                    )
                )  # fmt: skip
        return found

    def topic(self, name: str) -> TopicInfo:
        """One topic; :class:`TopicNotFoundError`."""
        for info in self.topics():
            if info.name == name:
                return info
        raise TopicNotFoundError(f"no such topic {name!r} in the archive")

    def files(self) -> list[FileInfo]:
        """Published segments and index objects of all stores."""
        return [
            info
            for store_id in self.store_ids
            for info in cold_files(self._manifests[store_id], self._manifests[store_id].refresh())
        ]

    def stats(self) -> dict[str, object]:
        """Watermarks of each store."""
        heads = {store_id: self._manifests[store_id].refresh() for store_id in self.store_ids}
        return {
            "cold_url": self.cold_url,
            "cache": next(cache_stats(manifest.cache) for manifest in self._manifests.values()),
            "stores": {
                store_id: {
                    "archived_to": head.archived_to,
                    "indexed_to": head.indexed_to,
                    "manifest_version": head.version,
                    "epoch": head.epoch,
                }
                for store_id, head in heads.items()
            },
        }

    def restore_segment(
        self, offset: int, out: Path, *, overwrite: bool, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, object]:
        """Put the segment that holds a physical offset back into a file; what was done.

        Raises :class:`NotFoundError` if it is not in the archive, and what the function of this name in
        ``tiering.cold.segment.restoring`` raises.
        """
        store_id, manifest = self._only_store("a segment")
        head, reader = manifest.refresh(), manifest.reader(scan=True)
        entry = manifest.segment_of(reader, head, offset)
        if entry is None:
            raise NotFoundError(f"no segment with offset {offset} is in the archive", path=self.cold_url)
        done = restore_segment(
            SegmentReader(reader, entry), entry, LocalFileSystem(), out, SystemRandomness().token_hex(4),
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
        return {
            "store_id": store_id, "segment": entry.base, "object": entry.key, "out": str(out),
            "size_bytes": done.size_bytes, "records": done.records, "fillers": done.fillers,
        }  # fmt: skip

    def check(self, *, deep: bool = False) -> list[str]:
        """Verify every store's manifest and objects; one line a finding."""
        return self.check_report(deep=deep).lines()

    def check_report(self, *, deep: bool = False, progress: Progress | None = None) -> Findings:
        """The same with the object that each finding is about, and with notes; ``progress`` counts objects."""
        findings = Findings()
        for store_id in self.store_ids:
            check_archive(self._manifests[store_id], None, findings, deep=deep, progress=progress)
        return findings

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
        """Restore what can be derived from the archives themselves."""
        report = RepairReport()
        for store_id in self.store_ids:
            repair = ArchiveRepair(self._manifests[store_id], None, None, LocalFileSystem(), SystemRandomness())
            found = repair.run(dry_run=dry_run, progress=progress or (lambda done, of: None))
            report.done += found.done
            report.left += found.left
        return report

    def close(self) -> None:
        """Give connections back and end the disk cache."""
        for manifest in self._manifests.values():
            manifest.cache.close()
        self._objects.close()
