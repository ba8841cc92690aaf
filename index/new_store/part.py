"""One stretch of a new store's log, archived by one task: sorted segments, their queue rows, index objects over them.

Nothing of it is named before the driver commits (``commit``). Killed anywhere: objects below the store's prefix that
nobody names, and local files in a temporary folder.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.derivation import IndexSizes
from tierlog.index.objects.publisher import AssemblyFolder, upload_file
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.opened import open_manifest
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.hot.identity import DEFAULT_SEGMENT_BYTES
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.queue_places import QueuePlaces
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan
from tierlog.tiering.lifecycle.archiver import upload_segment

#: Of a store that is made at once; what takes it over publishes the next.
EPOCH = 1


@dataclass(frozen=True, slots=True)
class NewStore:
    """A store that is to be made: where, and its sizes. Goes with every task."""

    url: str
    store_id: str
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    index: IndexSizes = field(default_factory=IndexSizes)

    def __post_init__(self) -> None:
        HotOptions(segment_bytes=self.segment_bytes)  # its rule for sizes is everybody's

    @property
    def manifest(self) -> ManifestStore:
        """This process's manifest of the store."""
        return open_manifest(self.url, self.store_id)


class PartQueue(NamedTuple):
    """Consecutive queue offsets ``[first, next)`` of one queue, in the order of the log.

    In the log of a broker ``begin`` and ``last`` say where the first and the last of their records begin.
    """

    topic: str
    queue_id: int
    first: int
    next: int
    begin: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """The objects that one task stored of the range ``[first, next)``; small enough to come back to the driver."""

    first: int
    next: int
    log: tuple[LogEntry, ...]
    index: tuple[IndexEntry, ...]
    runs: tuple[PartQueue, ...] = ()

    @property
    def names(self) -> list[str]:
        """Every object of it."""
        rows = [entry.rows.key for entry in self.log if entry.rows is not None]
        return [entry.key for entry in self.log] + rows + [entry.key for entry in self.index]


class PartBuilder:
    """Archives closed segments of one stretch, given in ascending order, and indexes them.

    Memory: that of one segment's archiving and one index file. Disk: the index files that are not published yet, and
    one index object, in a temporary folder.
    """

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: NewStore, begin: int, randomness: Randomness) -> Iterator[PartBuilder]:
        """A builder for the log from ``begin`` on; its folder is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="tierlog-") as folder:
            yield cls(store, begin, Path(folder), randomness)

    def __init__(self, store: NewStore, begin: int, folder: Path, randomness: Randomness) -> None:
        """Use :meth:`open`."""
        self.folder = folder
        self._store = store
        self._manifest = store.manifest
        self._randomness = randomness
        self._begin = self._next = begin
        self._topic_names: dict[int, str] = {}
        self._log: list[LogEntry] = []
        self._objects: list[IndexEntry] = []
        fs, paths = LocalFileSystem(), StorePaths(folder)
        for place in (paths.tmp, paths.tierlog):
            fs.make_dirs(place)
        self._index = LocalIndex.open(
            fs, paths, slots=store.index.slots, items=store.index.items, layout=TIERLOG,
            border=begin, indexed_to=begin, log_start=begin,
        )  # fmt: skip
        self._assembly = AssemblyFolder(fs, paths.tmp, contextlib.nullcontext)

    def add(self, segment: Segment, topics: Sequence[Topic], places: QueuePlaces | None = None) -> None:
        """Stores the next segment; ``topics`` are at least those of its records. ``places`` are of a broker's log."""
        self._log.append(
            upload_segment(self._manifest, self._randomness, topics=topics, segment=segment, epoch=EPOCH, places=places)
        )
        self._next = segment.end
        self._topic_names |= {topic.topic_id: topic.name for topic in topics}
        for records in _ranges(segment, topics):
            self._index.on_records(records)
        self._publish()

    def finish(self, runs: Sequence[PartQueue] = ()) -> BuiltPart:
        """Ends the part and returns everything that was stored; ``runs`` are the queues of all segments."""
        self._index.seal()
        self._publish()
        return BuiltPart(self._begin, self._next, tuple(self._log), tuple(self._objects), tuple(runs))

    def _publish(self) -> None:
        self._index.maintain()
        for entry in self._index.pending():
            assert entry.next is not None
            if entry.next > self._next:
                break
            self._objects.append(
                upload_file(
                    self._manifest,
                    self._randomness,
                    entry,
                    head=self._head(),
                    topic_names=self._topic_names,
                    assembly=self._assembly,
                ),
            )
            self._index.set_indexed_to(entry.next)
            self._index.remove_below(entry.next)
        self._index.maintain()

    def _head(self) -> Head:
        """Returns what the head will say of this stretch: enough to find segments by."""
        return Head(
            store_id=self._store.store_id, volume_id="", open_id="", epoch=EPOCH, version=1, commit_id="",
            commit_ids=(), archived_to=self._next, indexed_to=self._begin, cold_min=self._begin, log=tuple(self._log),
        )  # fmt: skip


def _ranges(segment: Segment, topics: Sequence[Topic]) -> Iterator[LogRange]:
    """Yields all records of a closed segment as the dispatcher hands them out."""
    table = TopicTable([topic.name for topic in topics])
    ids = np.array([topic.topic_id for topic in topics], np.int32)
    position = 0
    while True:
        found = scan(segment.data, position, len(segment.data), segment.base_offset, table, check_crc=False)
        start, end = segment.base_offset + position, segment.base_offset + found.position
        if found.stop is ScanStop.BLANK:
            end = segment.end
        elif found.stop is not ScanStop.ROWS_FULL:
            raise CorruptionError("the segment changed while it was archived", path="commitlog", position=end)
        yield LogRange(
            data=segment.data, base_offset=segment.base_offset, start=start, end=end, rows=found.rows, topic_ids=ids
        )
        if end == segment.end:
            return
        position = found.position
