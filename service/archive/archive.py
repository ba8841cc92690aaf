"""Reads an archive with no service and no store directory: one store's, or all below a prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from tierlog.index.maintenance.repair import ArchiveRepair, RepairReport
from tierlog.index.search.counts import CountedStore, CountQuery, IntervalCounts
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.index.search.store_search import ArchiveSearch
from tierlog.service.access.caller import every_topic
from tierlog.service.archive.archived_stores import ArchiveRoot
from tierlog.service.config.settings import Settings
from tierlog.service.engine.catalogue import FileInfo, TopicInfo
from tierlog.service.engine.checks import check_archive
from tierlog.service.engine.read_path import answer, count, make_searcher, with_hint
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    NotFoundError,
    ObjectNotFoundError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.restoration import restore_segment
from tierlog.tiering.message.stored_message import StoredMessage, offset_in_message_id
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.read.fetcher import Fetcher
from tierlog.tiering.read.pull_batch import Columns, PulledBatch
from tierlog.tiering.read.pull_records import RECORD_BYTES, PulledRecords
from tierlog.tiering.read.pull_result import PullResult


class Archive:
    """The stores of one archive, read only. Thread safe."""

    def __init__(
        self,
        archive: ArchiveRoot,
        store_ids: Sequence[str],
        settings: Settings,
        *,
        clock: Clock,
        fs: FileSystem,
        randomness: Randomness,
    ) -> None:
        """Use :meth:`open`."""
        self._fs, self._randomness = fs, randomness
        self._archive = archive
        self._searcher = make_searcher(settings, clock)
        self._settings, self._clock = settings, clock
        self._stores = {store_id: archive.store(store_id) for store_id in sorted(store_ids)}
        self._manifests = {store_id: store.manifest for store_id, store in self._stores.items()}
        self.cold_url = archive.url

    @classmethod
    def open(
        cls,
        cold_url: str,
        *,
        settings: Settings | None = None,
        store_id: str | None = None,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        randomness: Randomness | None = None,
        objects: ObjectStore | None = None,
    ) -> Archive:
        """Finds the stores below ``cold_url``, or opens the one named.

        Without ``settings`` they are those of the environment, as on the command line (:meth:`Settings.load`). Raises
        :class:`NotFoundError` if there is none, the object store's error if it cannot be asked.
        """
        clock, settings = clock or SystemClock(), settings or Settings.load()
        archive = ArchiveRoot(cold_url, settings, clock, objects)
        store_ids = [store_id] if store_id else archive.discover()
        if not store_ids:
            raise NotFoundError("no archive of any store here", path=archive.url)
        for found in store_ids:
            try:
                archive.store(found).manifest.refresh()
            except ObjectNotFoundError as error:
                if next(iter(archive.objects.list(f"{found}/")), None) is None:
                    raise NotFoundError(f"no archive of store {found!r} here", path=archive.url) from error
                raise  # the store is there, and its head is lost
        return cls(
            archive, store_ids, settings,
            clock=clock, fs=fs or LocalFileSystem(), randomness=randomness or SystemRandomness(),
        )  # fmt: skip

    @property
    def store_ids(self) -> list[str]:
        """The stores found, in order."""
        return list(self._stores)

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Searches every store's archive; what is still hot is not searched and not claimed."""

        def ask(query: Query) -> Answer:
            stores = [ArchiveSearch(store.store_id, store.index) for store in self._stores.values()]
            return answer(self._searcher, stores, query, self._settings, page_bytes)

        return with_hint(ask, query, self._settings, self._clock)

    def counts(self, query: CountQuery) -> IntervalCounts:
        """Counts archived messages of all stores per interval of time."""
        stores = [CountedStore(store.store_id, None, store.manifest) for store in self._stores.values()]
        return count(stores, query, self._searcher, self._settings, self._clock)

    def message(self, message_id: str, store_id: str | None = None) -> StoredMessage:
        """Returns one message by its offset id.

        Raises :class:`InvalidRequestError` if several stores have one with this id, :class:`MessageNotFoundError` only
        if every store was asked, else why one of them cannot be read.
        """
        offset_in_message_id(message_id)
        found: list[StoredMessage] = []
        failed: list[StoreError] = []
        for store in self._stores.values():
            if store_id not in (None, store.store_id):
                continue
            try:
                found.append(store.fetcher.message(message_id))
            except MessageNotFoundError:
                continue
            except StoreError as error:
                failed.append(error)
        if len(found) > 1:
            names = ", ".join(message.store_id for message in found)
            raise InvalidRequestError(f"several stores have a message of this id: {names}", hint="name one by its id")
        if not found:
            raise failed[0] if failed else MessageNotFoundError(f"no message has the id {message_id}")
        return found[0]

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None, *, backward: bool = False
    ) -> PullResult:
        """Reads a queue of the one store that has it, or backwards; several need a store id at :meth:`open`."""
        return self._fetcher().pull(topic, queue_id, offset, limit, tag, backward=backward)

    def pull_batch(self, topic: str, queue_id: int, offset: int, limit: int, columns: Columns = None) -> PulledBatch:
        """Reads a queue as Arrow; see :meth:`Fetcher.pull_batch`."""
        return self._fetcher().pull_batch(topic, queue_id, offset, limit, columns)

    def pull_records(
        self, topic: str, queue_id: int, offset: int, limit: int, *, max_bytes: int = RECORD_BYTES,
        tag_hashes: frozenset[int] | None = None,
    ) -> AbstractContextManager[PulledRecords]:  # fmt: skip
        """Reads a queue without decoding its records; see :meth:`Fetcher.pull_records`."""
        return self._fetcher().pull_records(topic, queue_id, offset, limit, max_bytes=max_bytes, tag_hashes=tag_hashes)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Finds the offset of a store time in a queue of the one store."""
        return self._fetcher().offset_by_time(topic, queue_id, time_ms, boundary)

    def _fetcher(self) -> Fetcher:
        return self._stores[self._only_store("a queue")[0]].fetcher

    def _only_store(self, what: str) -> tuple[str, ManifestStore]:
        if len(self._manifests) > 1:
            raise InvalidRequestError(
                f"{len(self._manifests)} stores lie here and {what} belongs to one", hint="name the store by its id"
            )
        ((store_id, manifest),) = self._manifests.items()
        return store_id, manifest

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns topics of all stores; a name that several have is listed once for each."""
        return [topic for store in self._stores.values() for topic in store.topics(shows)]

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic; raises :class:`TopicNotFoundError`."""
        for store in self._stores.values():
            found = store.topic(name)
            if found is not None:
                return found
        raise TopicNotFoundError(f"no such topic {name!r} in the archive")

    def files(self) -> list[FileInfo]:
        """Returns published segments and index objects of all stores."""
        return [info for store in self._stores.values() for info in store.files()]

    def stats(self) -> dict[str, object]:
        """Returns the watermarks of each store."""
        return {
            "cold_url": self.cold_url,
            "cache": self._archive.cache_stats(),
            "stores": {store_id: store.watermarks() for store_id, store in self._stores.items()},
        }

    def restore_segment(
        self, offset: int, out: Path, *, overwrite: bool, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, object]:
        """Restores the segment with a physical offset to a file; returns a summary.

        Raises :class:`NotFoundError` if it is not in the archive, and what the function of this name in
        ``tiering.cold.segment.restoration`` raises.
        """
        store_id, manifest = self._only_store("a segment")
        head, reader = manifest.refresh(), manifest.reader(scan=True)
        entry = manifest.segment_of(reader, head, offset)
        if entry is None:
            raise NotFoundError(f"no segment with offset {offset} is in the archive", path=self.cold_url)
        done = restore_segment(
            SegmentReader(reader, entry), entry, self._fs, out, self._randomness.token_hex(4),
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
        return {
            "store_id": store_id, "segment": entry.base, "object": entry.key, "out": str(out),
            "size_bytes": done.size_bytes, "records": done.records, "fillers": done.fillers,
        }  # fmt: skip

    def check(self, *, deep: bool = False) -> list[str]:
        """Verifies every store's manifest and objects; one line a finding."""
        return self.check_report(deep=deep).lines()

    def check_report(self, *, deep: bool = False, progress: Progress | None = None) -> Findings:
        """Runs the same checks; names the object of each finding, and adds notes. ``progress`` counts objects."""
        findings = Findings()
        for store_id in self.store_ids:
            check_archive(self._manifests[store_id], None, findings, deep=deep, progress=progress)
        return findings

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
        """Restores what can be derived from the archives themselves."""
        report = RepairReport()
        for store_id in self.store_ids:
            repair = ArchiveRepair(
                self._manifests[store_id], None, renew_state=None, fs=self._fs, randomness=self._randomness
            )
            found = repair.run(dry_run=dry_run, progress=progress or (lambda done, of: None))
            report.done += found.done
            report.left += found.left
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections and the disk cache."""
        self._archive.close()
