"""Heads of a manifest that name index objects of any times, through the code that writes real ones, without commits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.tiering.cold.manifest.test_manifest_store import KEYS, SEGMENT, index_entry
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ObjectNotFoundError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.manifest.catalogue import ArchiveCatalogue
from tierlog.tiering.cold.manifest.change import ManifestChange, MendedPage, apply_change
from tierlog.tiering.cold.manifest.tree import TreeEdit
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.format.manifest import Head, IndexEntry, PageNode, decode_page
from tierlog.tiering.objects.memory import MemoryObjectStore

EVER = TimeRange(-(1 << 52), 1 << 52)


class IndexTrees:
    """One archive; every method makes its next head."""

    def __init__(self, seed: int = 1, *, page_entries: int = 3, max_inline_entries: int = 4) -> None:
        self.chosen = random.Random(seed)
        self.objects = MemoryObjectStore(ManualClock())
        self.head = Head("store", "v", "o", 1, 1, f"commit-{seed}", (), 0, 0, 0)
        #: Pages that were loaded, in order.
        self.loaded: list[PageNode] = []
        self.lost: set[str] = set()
        self._randomness = SeededRandomness(seed)
        self._options = ColdOptions(page_entries=page_entries, max_inline_entries=max_inline_entries)
        self._reader = ArchiveReader(self.objects, ArchiveCache(64 << 20))

    def load(self, node: PageNode) -> Sequence[Any]:
        """What a page holds."""
        if node.ref.key in self.lost:
            raise ObjectNotFoundError("lost by the test", path=node.ref.key)
        self.loaded.append(node)
        return decode_page(self.objects.get(node.ref.key)[0], "index", node.level, path=node.ref.key)

    def entries(self, axis: TimeAxis = TimeAxis.STORE, within: TimeRange = EVER, head: Head | None = None) -> set[str]:
        """Names of the index objects of a head that overlap a range, by a walk over all pages."""
        found = [
            entry.key
            for entry in ArchiveCatalogue().index_entries(self._reader, head or self.head, axis, within)
        ]  # fmt: skip
        assert len(found) == len(set(found))
        return set(found)

    def all(self) -> list[IndexEntry]:
        """Every index object of the newest head."""
        return list(ArchiveCatalogue().all_index_entries(self._reader, self.head))

    def publish(self, *times: TimeBounds | None) -> Head:
        """One more index object for each of these bounds."""
        entries = []
        for number, bounds in enumerate(times):
            first = self.head.indexed_to + number * SEGMENT
            entry = index_entry(first, first + SEGMENT)
            name = f"store/index/{first}-{self._randomness.token_hex(8)}"
            entries.append(replace(entry, key=name, bounds=bounds))
        to = self.head.indexed_to + len(times) * SEGMENT
        return self._change(ManifestChange(index=tuple(entries), archived_to=to, indexed_to=to))

    def merge(self, inputs: Sequence[IndexEntry]) -> Head:
        """One index object in the place of several."""
        known = [entry.bounds for entry in inputs if entry.bounds]
        bounds = known[0] if known else None
        for each in known[1:]:
            bounds = each.union(bounds) if bounds else each
        merged = replace(
            inputs[0], key=f"store/index/merged-{self._randomness.token_hex(8)}", level=1, bounds=bounds,
            first=min(each.first for each in inputs), next=max(each.next for each in inputs),
        )  # fmt: skip
        return self._change(ManifestChange(index=(merged,), remove=tuple(inputs)))

    def expire(self, cold_min: int) -> Head:
        """Everything below a border leaves."""
        return self._change(ManifestChange(cold_min=cold_min))

    def mend(self) -> Head:
        """Some page is written again, as if it could not be read; its entries are what they were."""
        node = self.chosen.choice(list(self.pages()))
        return self._change(ManifestChange(pages=(MendedPage("index", node, tuple(self._below(node))),)))

    def raise_epoch(self) -> Head:
        """Another volume takes the archive over."""
        self.head = replace(self.head, epoch=self.head.epoch + 1, version=self.head.version + 1)
        return self.head

    def pages(self) -> Iterator[PageNode]:
        """Every page of the newest head, each before what it leads to."""
        for node in self.head.index_tree:
            yield node
            yield from decode_page(self.objects.get(node.ref.key)[0], "index", node.level, path=node.ref.key)

    def _below(self, node: PageNode) -> Iterator[IndexEntry]:
        for item in decode_page(self.objects.get(node.ref.key)[0], "index", node.level, path=node.ref.key):
            if isinstance(item, PageNode):
                yield from self._below(item)
            else:
                yield item

    def _change(self, change: ManifestChange) -> Head:
        edit = TreeEdit(self.objects, KEYS, self._randomness, self._options, self.head.version + 1)
        self.head = replace(apply_change(self.head, change, edit), version=edit.version)
        # as a reader gets it: decoded, so that nothing is known by being the same object
        self.head = Head.decode(self.head.encode(), path="head")
        return self.head

    # by chance

    def any_bounds(self) -> TimeBounds | None:
        """Times of one index object: mostly near those before, sometimes far off, long or equal."""
        chosen = self.chosen
        if chosen.random() < 0.05:
            return None
        begin = self.head.version * 1_000 + chosen.randrange(-2_000, 2_000)
        begin = chosen.choice([begin, begin, begin, 7_000, chosen.randrange(-50_000, 50_000)])
        length = chosen.choice([0, 1, 900, 1_000, 2_500, 2_500, 40_000])
        born = begin + chosen.choice([0, 0, -300, chosen.randrange(-30_000, 30_000)])
        return TimeBounds(begin, begin + length, born, born + chosen.choice([0, length, 10_000]))

    def any_range(self) -> TimeRange:
        """A range that overlaps something, or everything, or nothing."""
        if self.chosen.random() < 0.2:
            return EVER
        begin = self.chosen.choice([7_000, self.head.version * 1_000, self.chosen.randrange(-60_000, 60_000)])
        return TimeRange(begin, begin + self.chosen.choice([1, 1_000, 5_000, 30_000]))

    def any_change(self) -> Head:
        """One step of an archive's life."""
        entries = self.all()
        action = self.chosen.randrange(8)
        if action < 4 or len(entries) < 3:
            return self.publish(*(self.any_bounds() for _ in range(self.chosen.choice([1, 1, 2, 6]))))
        if action == 4:
            start = self.chosen.randrange(len(entries) - 1)
            return self.merge(entries[start : start + self.chosen.randrange(2, 6)])
        if action == 5:
            below = sorted(entry.next for entry in entries)[len(entries) // 4]
            return self.expire(max(below, self.head.cold_min))
        if action == 6 and self.head.index_tree:
            return self.mend()
        return self.raise_epoch()
