"""Every hit of some keys in the index of an archive: for who reads them all, in an order of his own.

A search (``index.search``) goes in the order of its answer and stops when its page is certain. This gives all cold
offsets that the index has for some keys at one head, so that the reading can be shared out. Hashes may collide: topic
and key are to be compared on the records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.cold_index import ColdIndex
from index.hits import may_lie_in
from index.key_run import open_index_object
from index.layout import Items
from tiering.cold.reading import ArchiveReader
from tiering.errors import CorruptionError
from tiering.format.hashing import key_hash, key_hash_high
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.types import EVER, TimeAxis, TimeRange

#: Does the same with each index object: ``map``, or a pool's, as the look-ups may run beside each other.
Each = Callable[[Callable[[IndexEntry], NDArray[np.int64]], Sequence[IndexEntry]], Iterable[NDArray[np.int64]]]
_Hashes = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SegmentHits:
    """Where in one segment the records lie: distinct cold offsets, ascending."""

    entry: LogEntry
    offsets: NDArray[np.int64]


def key_hits(
    cold: ColdIndex,
    head: Head,
    keys: Collection[tuple[str, str]],
    within: TimeRange = EVER,
    axis: TimeAxis = TimeAxis.STORE,
    *,
    each: Each = map,
) -> Iterator[SegmentHits]:
    """The archived records below ``indexed_to`` that may have one of the keys, (topic, key) each, by segment.

    Records outside of ``within`` may be left out. An index object costs its page directory and the pages of its keys,
    neighbours in one request; one whose slots or resident filter rule all keys out costs nothing. Segments below
    ``cold_min`` are passed over. Raises the error of whatever cannot be read: nothing is ever left out for that.
    """
    manifest = cold.manifest
    reader = manifest.reader()
    hashes = [(key_hash(topic, key), key_hash_high(topic, key)) for topic, key in keys]
    wanted: dict[str, _Hashes] = {}
    entries = []
    for entry in cold.overlapping(reader, head, axis, within):
        wanted[entry.key] = [each for each in hashes if not cold.rules_out(entry, *each)]
        if wanted[entry.key]:
            entries.append(entry)

    def look_up(entry: IndexEntry) -> NDArray[np.int64]:
        with _naming(entry):
            items = _items(cold, manifest.reader(), entry, wanted[entry.key])
        cold.looked_up(entry, found=len(items) > 0)
        if axis is TimeAxis.STORE:
            seconds = items["seconds"]
            items = items[may_lie_in(within, entry.begin_ms + seconds.astype(np.int64) * 1000, seconds)]
        return items["offset"].astype(np.int64)

    found = list(each(look_up, entries))
    offsets = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    offsets = offsets[offsets >= head.cold_min]
    while len(offsets):
        segment = manifest.segment_of(reader, head, int(offsets[0]))
        if segment is None:
            raise CorruptionError(
                f"an index object points to offset {offsets[0]}, of which the manifest has no segment"
            )
        count = int(np.searchsorted(offsets, segment.next))
        yield SegmentHits(segment, offsets[:count])
        offsets = offsets[count:]


def _items(cold: ColdIndex, reader: ArchiveReader, entry: IndexEntry, hashes: _Hashes) -> Items:
    """The items of all these keys in one object; every page is read once."""
    opened = open_index_object(reader, entry, cold.layouts)
    directory = opened.page_directory()
    of_page: dict[int, list[tuple[int, int]]] = {}
    for low, high in hashes:
        high = high if directory.layout.has_hash_high else 0
        for number in directory.pages_of(low, high):
            of_page.setdefault(number, []).append((low, high))
    numbers = sorted(of_page)

    def decode(at: int, data: bytes) -> list[Items]:
        page = opened.decode_page(numbers[at], data)
        return [page.lookup(low % directory.slots, low, high) for low, high in of_page[numbers[at]]]

    found = reader.data_of(entry.key, [opened.page_range(number) for number in numbers], "index page", decode)
    items: Items = np.concatenate([np.empty(0, directory.layout.compacted), *(each for page in found for each in page)])
    return items


@contextlib.contextmanager
def _naming(entry: IndexEntry) -> Iterator[None]:
    """Damage names the object."""
    try:
        yield
    except CorruptionError as error:
        error.path = error.path or entry.key
        raise
