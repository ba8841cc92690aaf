"""What searches of one archive share beside its caches: which index objects there are, and what they cannot hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from index.index_catalogue import ENTRY_BYTES, IndexCatalogue
from index.layout import LAYOUTS, ItemLayout
from index.resident_filters import ResidentFilters
from tiering.cold.lost_parts import Lost
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.format.manifest import Head, IndexEntry
from tiering.randomness import Randomness
from tiering.types import Order, TimeAxis, TimeRange

_CATALOGUE_SHARE = 16
"""Of the memory for the archive, what the times of one axis in one order may take beside it before they are dropped."""


class ColdIndex:
    """The key index of one archive. Thread safe; one for each archive that a process reads."""

    def __init__(
        self,
        manifest: ManifestStore,
        randomness: Randomness,
        filters: ResidentFilters | None = None,
        *,
        layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:
        """``filters`` may be shared by the archives of several stores; None keeps none."""
        self.layouts = layouts
        self.manifest = manifest
        self._randomness = randomness
        self._filters = filters
        self._seen: Head | None = None
        self._most_intervals = manifest.options.cache_bytes // _CATALOGUE_SHARE // ENTRY_BYTES
        self._catalogues: dict[tuple[TimeAxis, Order], IndexCatalogue] = {}

    def warm(self) -> None:
        """Take what an earlier process kept on disk into memory, in the background."""
        if self._filters is not None:
            self._filters.warm()

    def overlapping(
        self,
        reader: ArchiveReader,
        head: Head,
        axis: TimeAxis,
        within: TimeRange,
        lost: Lost | None = None,
        order: Order = Order.NEWEST,
    ) -> Iterator[IndexEntry]:
        """Index objects of a head that may hold items of the range; ``lost`` as in :class:`ArchiveCatalogue`.

        By falling greatest time if the order is newest first, else by rising least time. Manifest pages are read, on
        the reader's bill, as far as what is taken of the answer needs them.
        """
        if self._filters is not None and head is not self._seen:
            self._seen = head
            self._filters.see(self.manifest, head)
        load = partial(self.manifest.index_page, reader)
        return self._catalogue(axis, order).overlapping(head, within, load, lost)

    def _catalogue(self, axis: TimeAxis, order: Order) -> IndexCatalogue:
        found = self._catalogues.get((axis, order))
        if found is None or len(found) > self._most_intervals:  # searches that are under way keep the one they have
            found = self._catalogues[axis, order] = IndexCatalogue(axis, order, self._randomness)
        return found

    def rules_out(self, entry: IndexEntry, hash_low: int, hash_high: int) -> bool:
        """Whether what is in memory proves that an index object lacks a key; costs no request."""
        if not entry.slot_from <= hash_low % entry.slots < entry.slot_end:
            return True
        return self._filters is not None and self._filters.rules_out(entry, hash_low, hash_high)

    def has_filter(self, entry: IndexEntry) -> bool:
        """Whether the key filter of an index object is in memory."""
        return self._filters is not None and entry.key in self._filters

    def looked_up(self, entry: IndexEntry, *, found: bool) -> None:
        """Take note that an index object was asked for a key: what is kept in memory is decided by use."""
        if self._filters is not None:
            self._filters.looked_up(entry, found=found)
