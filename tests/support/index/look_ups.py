"""Look-ups by key in an archive alone, with just those parts of it in memory that a test or a benchmark wants there.

Pages and frames are not kept unless told: with few messages in each file one page is all of an object's, and no look-up
after the first one would cost anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from tests.support.index.synthetic_archive import STORE
from tierlog.index.format.object_sections import DIRECTORY, FILTER
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import Searcher
from tierlog.index.search.store_search import ArchiveSearch
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.reading.memory_cache import MemoryCache, Range
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import IndexEntry, LogEntry
from tierlog.tiering.objects.object_store import ObjectStore

_T = TypeVar("_T")
_ENOUGH = 4 << 30


class LookUps:
    """One process's view of the archive below ``objects``, its manifest loaded."""

    def __init__(
        self, objects: ObjectStore, *, has_filters: bool = True, concurrency: int = 32, data_bytes: int = 0
    ) -> None:
        """Without ``has_filters`` none is ever in memory; with, those that are loaded, and no more come by use.

        ``data_bytes`` are for pages and frames.
        """
        self._searcher = Searcher(WorkerPool(concurrency, "look-ups"), concurrency)
        self.cache = ArchiveCache(_ENOUGH)
        self.cache.data = MemoryCache(data_bytes)
        clock = ManualClock()
        self.manifest = ManifestStore(
            objects,
            ColdKeys(STORE),
            randomness=SeededRandomness(7),
            options=ColdOptions(),
            cache=self.cache,
            clock=clock,
        )
        self.filters = ResidentFilters(objects, _ENOUGH if has_filters else 0, clock, submit=_never)
        self.index = ColdIndex(self.manifest, SeededRandomness(8), self.filters)
        head, reader = self.manifest.refresh(), self.manifest.reader()
        self.manifest.state(reader, head)
        self.objects: list[IndexEntry] = list(self.manifest.all_index_entries(reader, head))
        self.segments: list[LogEntry] = list(self.manifest.log_entries(reader, head))
        self._manifest_ranges = set(self._kept())

    def ask(self, query: Query) -> Answer:
        """One page of answers."""
        return self._searcher.search([ArchiveSearch(STORE, self.index)], query)

    def load_directories(self, entries: Iterable[IndexEntry] | None = None) -> None:
        """Have page directories in memory, all of them by default."""
        reader = self.manifest.reader()
        for entry in self.objects if entries is None else entries:
            _opened(reader, entry).page_directory()

    def load_seek_tables(self) -> None:
        """Have the seek tables of all segments in memory."""
        reader = self.manifest.reader()
        for entry in self.segments:
            SegmentReader(reader, entry).seek_table()

    def load_filters(self, objects: ObjectStore, entries: Iterable[IndexEntry] | None = None) -> None:
        """Have key filters in memory, read through ``objects``, all of them by default."""
        for entry in self.objects if entries is None else entries:
            ref = entry.sections[FILTER]
            read = partial(objects.get_range, entry.key, ref.position, ref.position + ref.length)
            self.filters.offer(entry.key, ref, read)

    def forget_all_but_the_manifest(self) -> None:
        """Let directories and seek tables go; filters stay."""
        self.cache.metadata.drop([place for place in self._kept() if place not in self._manifest_ranges])

    def _kept(self) -> list[Range]:
        return [*self.cache.metadata._main, *self.cache.metadata._scanned]


def _never(work: Callable[[], None]) -> None:
    """What would be fetched beside the look-ups is not."""


def _opened(reader: ArchiveReader, entry: IndexEntry) -> IndexObjectReader:
    def read(start: int, end: int, decode: Callable[[bytes], _T]) -> _T:
        assert start == entry.sections[DIRECTORY].position
        return reader.metadata(entry.key, start, end, "page directory", decode)

    return IndexObjectReader(reader.fetcher(entry.key, "index"), entry.sections, read=read)
