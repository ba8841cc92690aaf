"""Merges index objects of one archive into objects of a higher level, as a job beside the store does it.

Items are read page by page from the objects themselves, their offsets turned back into physical ones through the
segments' maps, their seconds counted from the earliest begin time, and the result is built and committed by the same
code as every index object. In memory, for small archives.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from index.index_object import IndexObjectReader
from index.key_filter import DEFAULT_BITS_PER_KEY
from index.layout import LAYOUTS, SECONDS_MAX, SECONDS_MIN, Items
from index.object_builder import DEFAULT_PAGE_BYTES, IndexMeta, build_index_object
from tests.support.given_items import GivenItems
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.cold.segment.reader import SegmentReader
from tiering.format.manifest import Head, IndexEntry
from tiering.randomness import Randomness
from tiering.types import TimeBounds


class _Maps:
    """Offset maps of the segments that are still in the archive."""

    def __init__(self, manifest: ManifestStore, head: Head) -> None:
        reader = manifest.reader()
        physical, cold = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        self.segment_bytes = 0
        for entry in manifest.log_entries(reader, head):
            self.segment_bytes = entry.segment_bytes
            known, cold_of = SegmentReader(reader, entry).offset_map()
            physical.append(known)
            cold.append(cold_of)
        self._physical, self._cold = np.concatenate(physical), np.concatenate(cold)
        self._by_cold = np.argsort(self._cold)

    def to_cold(self, physical: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cold offsets of records."""
        place = np.searchsorted(self._physical, physical)
        assert (self._physical[place] == physical).all()
        return self._cold[place]

    def to_physical(self, cold: NDArray[np.int64]) -> NDArray[np.int64]:
        """Physical offsets; every cold offset is one of an archived record."""
        ordered = self._cold[self._by_cold]
        place = np.searchsorted(ordered, cold)
        assert (ordered[place] == cold).all()
        return self._physical[self._by_cold[place]]


def mergeable(manifest: ManifestStore, head: Head) -> list[list[IndexEntry]]:
    """Runs of objects of one number of slots that follow each other in the log; parts by slot range count as one."""
    runs: list[list[list[IndexEntry]]] = []
    entries = sorted(manifest.all_index_entries(manifest.reader(), head), key=lambda each: (each.first, each.slot_from))
    for _, group in groupby(entries, key=lambda each: (each.first, each.next)):
        parts = list(group)
        if runs and runs[-1][-1][0].slots == parts[0].slots:
            runs[-1].append(parts)
        else:
            runs.append([parts])
    return [[part for parts in run for part in parts] for run in runs]


def neighbours(run: Sequence[IndexEntry], first: int, count: int) -> list[IndexEntry]:
    """``count`` neighbours of a run from the one numbered ``first``, with all their parts."""
    ranges = list(dict.fromkeys((each.first, each.next) for each in run))
    chosen = ranges[first % len(ranges) :][:count]
    return [each for each in run if (each.first, each.next) in chosen]


@dataclass(frozen=True)
class Shape:
    """How the results of a merge are built."""

    parts: int = 1
    """Ranges of slots, an object each; one without items has none."""
    page_bytes: int = DEFAULT_PAGE_BYTES
    filter_bits: int = DEFAULT_BITS_PER_KEY


def merge(
    manifest: ManifestStore, chosen: Sequence[IndexEntry], randomness: Randomness, shape: Shape, *, commit: bool = True
) -> list[IndexEntry]:
    """Replace objects by those of the next level; without ``commit`` they are uploaded and nobody names them."""
    head = manifest.refresh()
    begun_s = manifest.begin_upload()
    maps = _Maps(manifest, head)
    source = _read(manifest, head, chosen, maps)
    topics = {state.topic_id: state.name for state in manifest.state(manifest.reader(), head).topics}
    meta = IndexMeta(head.store_id, maps.segment_bytes, topics)
    level = 1 + max(entry.level for entry in chosen)
    cuts = sorted({source.slots * part // shape.parts for part in range(shape.parts + 1)})
    slots = source.items["hash"].astype(np.int64) % source.slots
    merged = []
    for slot_from, slot_end in pairwise(cuts):
        if not ((slots >= slot_from) & (slots < slot_end)).any():
            continue
        built = build_index_object(
            source, maps.to_cold, meta, shape.page_bytes, filter_bits=shape.filter_bits,
            slot_range=(slot_from, slot_end),
        )  # fmt: skip
        key = manifest.keys.index(level, source.begin_ms, source.first, head.epoch, randomness.token_hex(4))
        manifest.objects.put(key, built.data)
        items = int(((slots >= slot_from) & (slots < slot_end)).sum())
        merged.append(
            IndexEntry(
                key, level, source.first, source.next, source.begin_ms, len(built.data), zlib.crc32(built.data), items,
                source.slots, slot_from, slot_end, source.layout.name, source.bounds, dict(built.sections),
            )
        )  # fmt: skip
    if commit and merged:
        manifest.commit_other(ManifestChange(index=tuple(merged), remove=tuple(chosen), begun_s=begun_s))
    return merged


def _read(manifest: ManifestStore, head: Head, chosen: Sequence[IndexEntry], maps: _Maps) -> GivenItems:
    layout = next(layout for layout in LAYOUTS.values() if layout.name == chosen[0].layout)
    begin_ms = min(entry.begin_ms for entry in chosen)
    pieces = []
    for entry in chosen:
        items = items_of(manifest, entry)
        items = items[items["offset"] >= head.cold_min]
        items["seconds"] = _counted_from(begin_ms, entry.begin_ms, items["seconds"].astype(np.int64))
        items["offset"] = maps.to_physical(items["offset"].astype(np.int64))
        pieces.append(items)
    items = np.concatenate(pieces).astype(layout.compacted)  # joining alone would leave the machine's byte order
    items = items[np.lexsort((items["hash"], items["hash"].astype(np.int64) % chosen[0].slots))]
    bounds = reduce(TimeBounds.union, (entry.bounds for entry in chosen if entry.bounds is not None))
    first, end = min(entry.first for entry in chosen), max(entry.next for entry in chosen)
    return GivenItems(items, chosen[0].slots, layout, begin_ms, first, end, bounds)


def items_of(manifest: ManifestStore, entry: IndexEntry) -> Items:
    """All items of one object, with cold offsets."""
    reader = IndexObjectReader(lambda start, end: manifest.objects.get_range(entry.key, start, end), entry.sections)
    pages = [reader.page(number).items for number in range(len(reader.page_directory()))]
    return np.concatenate(pages)


def _counted_from(begin_ms: int, was_ms: int, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Begin times are whole seconds, so this is exact; what was saturated stands for any time beyond."""
    assert (was_ms - begin_ms) % 1000 == 0
    moved = np.clip(seconds + (was_ms - begin_ms) // 1000, SECONDS_MIN, SECONDS_MAX)
    return np.where((seconds == SECONDS_MIN) | (seconds == SECONDS_MAX), seconds, moved)
