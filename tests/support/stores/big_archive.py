"""An archive of as many published segments as wanted, made through commits of the real manifest, many at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.support.objects.priced_store import PricedStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, ObjectRef
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows, encode_queue_rows
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.read.archived_offsets import queue_rows_from

SEGMENT = 1 << 30
KEYS = ColdKeys("0123456789abcdef")
#: Pairs of commits whose cost is counted.
COMMITS = 100
_AT_ONCE = 400
_TOPICS = 4
_A_QUEUE = 1_000
_SEGMENT_MS = 360_000


@dataclass(frozen=True)
class Asked:
    """What an action asked of the bucket."""

    requests: int
    bytes_read: int
    bytes_written: int


class BigArchive:
    """``count`` segments with an index object each; times and sizes as at 10,000 messages a second."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.randomness = SeededRandomness(1)
        self.priced = PricedStore(MemoryObjectStore(self.clock))
        self.manifest = self.fresh()
        self.head = self.manifest.claim(Ownership("v" * 16, "o" * 16, ("o" * 16,)), log_begin=0, log_end=1 << 62)
        while count > 0:
            self.publish(min(count, _AT_ONCE))
            count -= _AT_ONCE

    def fresh(self) -> ManifestStore:
        """The manifest as a process sees it that was just started."""
        return ManifestStore(
            self.priced,
            KEYS,
            randomness=SeededRandomness(2),
            options=ColdOptions(cache_bytes=64 << 20),
            clock=self.clock,
        )

    def publish(self, count: int) -> None:
        """One commit of segments and one of their index objects."""
        first = self.head.archived_to
        bases = range(first, first + count * SEGMENT, SEGMENT)
        log = tuple(self._segment(base) for base in bases)
        self.head = self.manifest.commit(ManifestChange(log=log, archived_to=bases[-1] + SEGMENT), self.head)
        index = tuple(self._index(base) for base in bases)
        self.head = self.manifest.commit(ManifestChange(index=index, indexed_to=bases[-1] + SEGMENT), self.head)

    def ask(self, action: Callable[[], object]) -> Asked:
        """What an action costs."""
        requests, read, written = self.priced.requests.total(), self.priced.bytes_read, self.priced.bytes_written
        action()
        return Asked(
            self.priced.requests.total() - requests, self.priced.bytes_read - read, self.priced.bytes_written - written
        )

    def _segment(self, base: int) -> LogEntry:
        key = KEYS.queue_rows(base, 3, self.randomness.token_hex(4))
        data, section = encode_queue_rows(rows_of(base), key)
        self.priced.inner.put(key, data)
        rows = ObjectRef(key, len(data), zlib.crc32(data), section.head_length)
        random = int(self.randomness.token_hex(4), 16)
        sections = {
            name: SectionRef(random // 7 + place, random // 900, 80, random ^ place)
            for place, name in enumerate(("offset_map", "directory", "seek_table"))
        }
        return LogEntry(
            KEYS.segment(base, 3, self.randomness.token_hex(4)), base, SEGMENT, random, random // 3, 1 << 30,
            3_400_000, _bounds(base), sections, rows,
        )  # fmt: skip

    def _index(self, base: int) -> IndexEntry:
        random = int(self.randomness.token_hex(4), 16)
        begin_ms = _bounds(base).min_store_ms
        sections = {
            name: SectionRef(random // 5, random // 700, 80, random) for name in ("directory", "filter", "meta")
        }
        return IndexEntry(
            KEYS.index(0, begin_ms=begin_ms, first_physical=base, epoch=3, nonce=self.randomness.token_hex(4)), 0, base,
            base + SEGMENT, begin_ms, random, random // 3, 6_800_000, 5_000_000, 0, 5_000_000, "tierlog", _bounds(base),
            sections,
        )  # fmt: skip


def _bounds(base: int) -> TimeBounds:
    begin_ms = 1_700_000_000_000 + base // SEGMENT * _SEGMENT_MS
    return TimeBounds(begin_ms, begin_ms + _SEGMENT_MS - 1, begin_ms - 700, begin_ms + _SEGMENT_MS - 9)


def rows_of(base: int) -> QueueRows:
    """Every topic has one queue with as many messages in every segment."""
    number, times = base // SEGMENT, _bounds(base)
    rows = [
        (topic, 0, base, number * _A_QUEUE, _A_QUEUE, times.min_store_ms, times.max_store_ms, times.min_born_ms,
         times.max_born_ms)
        for topic in range(1, _TOPICS + 1)
    ]  # fmt: skip
    return np.array(rows, QUEUE_ROW)


def offset_in_the_middle(archive: BigArchive) -> int:
    """A queue offset half way through every queue."""
    return archive.head.archived_to // SEGMENT // 2 * _A_QUEUE + 7


class Costs:
    """What the usual actions ask of an archive."""

    def __init__(self, archive: BigArchive) -> None:
        count = archive.head.archived_to // SEGMENT
        self.refresh_without_change = archive.ask(archive.manifest.refresh)
        self.largest_head = 0
        self.commits = archive.ask(lambda: self._publish(archive))
        fresh = archive.fresh()
        self.first_refresh = archive.ask(fresh.refresh)
        head = fresh.refresh()
        self.look_up = archive.ask(lambda: fresh.log_entry(fresh.reader(), head, count // 2 * SEGMENT))
        self.pull = archive.ask(lambda: self._pull(archive, head))
        self.kept_bytes = fresh.cache.metadata.counters().bytes

    def _publish(self, archive: BigArchive) -> None:
        for _ in range(COMMITS):
            archive.publish(1)
            self.largest_head = max(self.largest_head, len(archive.head.encode()))

    @staticmethod
    def _pull(archive: BigArchive, head: Head) -> None:
        fresh, offset = archive.fresh(), offset_in_the_middle(archive)
        rows = next(queue_rows_from(fresh, fresh.reader(), head, topic_id=2, queue_id=0, offset=offset))
        reached = rows["first_queue_offset"] + rows["count"]
        assert int(rows["first_queue_offset"][0]) <= offset < int(reached[-1])
