"""The index objects of an archive as its searches share them: which overlap a range of time, and what they cannot hold.

:class:`IndexCatalogue` answers the first for every head that searches hold. A head is an immutable tree: it names pages
and objects, and names are used once. So the catalogue knows what it has seen by its reference, and takes every head for
what it names: it does not matter whether a head is newer or older than the one before, of another epoch, or of an
archive that was put back.

The objects of all heads in use are in one interval skip list. A page that was not read yet stands in it itself, with
the bounds of its reference. The first search that comes to it reads it, at its own cost, and puts what it holds in its
place; later ones pass by. Only times and numbers are kept here: the entries themselves are in the metadata cache, once,
within its limit, and a search reads a page again that has left it.

:class:`ColdIndex` has a catalogue for each axis and order, and the resident key filters.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tierlog.index.format.layout import LAYOUTS, ItemLayout
from tierlog.index.objects.interval_skip_list import Node, Tenure, VersionedIntervals
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import Order, TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.manifest.catalogue import Lost, unless_lost
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import Head, IndexEntry, PageNode

#: Measured per entry, ``benchmarks/index_catalogue.py``.
ENTRY_BYTES = 260
_WIDEN_MS = 1000
_RECENT = 4
"""Heads kept without a reader: searches that began at about the same time use theirs in any order."""
_LEAF_RANK, _ENTRY_RANK = 1, 2
_CATALOGUE_SHARE = 16
"""Of the memory for the archive, what the times of one axis in one order may take beside it before they are dropped."""

LoadPage = Callable[[PageNode], Sequence[Any]]
_Root = PageNode | IndexEntry


class _Page:
    """A page of the manifest, in the list as itself until it is open, then as what it holds."""

    __slots__ = ("is_open", "marker", "node", "nodes", "parents")

    def __init__(self, node: PageNode) -> None:
        self.node = node
        self.parents: tuple[Tenure | _Page, ...] = ()
        self.marker: Node[_Item] | None = None
        self.nodes: list[Node[_Item]] = []
        self.is_open = False

    def holds(self, version: int) -> bool:
        """Whether a head of this version leads to the page, as far as that is known."""
        for parent in self.parents:  # noqa: SIM110 - asked for every answer
            if parent.holds(version):
                return True
        return False


_Item = _Page | IndexEntry | int
"""What stands in the list: a page that is not open, an entry of a head, or the number of an entry in its page."""


class IndexCatalogue:
    """The index objects of one archive on one axis in one order. Thread safe; searches take a lock to begin and end.

    **Why a search misses nothing while others open pages.** It comes to a page before anything that the page holds:
    those bounds lie inside the page's, and among equal times pages come first, the upper level before the lower. It
    goes on only when everything the page holds is linked, and that stays as long as the search's version is pinned. If
    it jumped over the page, then nothing the page holds is an answer.
    """

    def __init__(self, axis: TimeAxis, order: Order, randomness: Randomness) -> None:
        self._axis = axis
        self._order = order
        self._lock = threading.Lock()
        self._intervals: VersionedIntervals[_Item] = VersionedIntervals(randomness)
        self._pages: dict[PageNode, _Page] = {}
        self._head: Head | None = None
        self._roots: Mapping[str, _Root] = {}
        self._named: dict[str, Node[_Item] | tuple[_Page, Tenure]] = {}
        self._recent: deque[tuple[Mapping[str, _Root], int]] = deque()
        self._has_left = False

    def __len__(self) -> int:
        """Intervals in memory."""
        return len(self._intervals)

    def overlapping(
        self, head: Head, within: TimeRange, load: LoadPage, lost: Lost | None = None
    ) -> Iterator[IndexEntry]:
        """Index objects of ``head`` that may hold items of the range.

        By falling greatest time if the order is newest first, else by rising least time. Seconds in items are cut, so
        bounds count a second more. ``load`` reads a page; what it raises is reported to ``lost``, as in
        :class:`ArchiveCatalogue`.
        """
        wide = self._directed(within.from_ms - _WIDEN_MS, within.to_ms + _WIDEN_MS - 1)
        loaded: dict[_Page, Sequence[Any] | None] = {}

        def read(page: _Page) -> Sequence[Any] | None:
            if page not in loaded:
                loaded[page] = unless_lost(page.node, lost, partial(self._read, page, load))
            return loaded[page]

        with self._pinned(head) as version:
            for node in self._intervals.overlapping(version, wide[0], wide[1] + 1):
                item = node.value
                if isinstance(item, IndexEntry):
                    yield item
                elif isinstance(item, _Page):
                    read(item)
                else:
                    assert isinstance(node.tenure, _Page)
                    entries = read(node.tenure)
                    if entries is not None:
                        yield entries[item]

    def _directed(self, low: int, high: int) -> tuple[int, int]:
        """An inclusive interval as the list has it, whose order is by rising least time: mirrored for newest first."""
        return (-high, -low) if self._order is Order.NEWEST else (low, high)

    def _interval(self, bounds: TimeBounds) -> tuple[int, int]:
        return self._directed(*bounds.on(self._axis))

    # ------------------------------------------------------------------------------------------------- pages

    def _read(self, page: _Page, load: LoadPage) -> Sequence[Any]:
        """Reads what a page holds, which is in the list from then on."""
        items = load(page.node)
        if not page.is_open:
            found = [
                (number, item, self._interval(item.bounds))
                for number, item in enumerate(items)
                if item.bounds is not None
            ]
            assert page.node.bounds is not None
            around = self._interval(page.node.bounds)
            if not all(around[0] <= low and high <= around[1] for _, _, (low, high) in found):
                raise CorruptionError("the page holds times outside its bounds", path=page.node.ref.key)
            with self._lock:
                self._open(page, found)
        return items

    def _open(self, page: _Page, found: Sequence[tuple[int, Any, tuple[int, int]]]) -> None:
        if page.is_open:  # by another search meanwhile
            return
        for number, item, (low, high) in found:
            if isinstance(item, PageNode):
                child = self._page(item)
                child.parents = (*child.parents, page)
            else:
                page.nodes.append(self._intervals.insert(low, high, number, page, _ENTRY_RANK))
        page.is_open = True
        assert page.marker is not None
        self._intervals.unlink(page.marker)
        page.marker = None
        self._forget_pages()

    def _page(self, node: PageNode) -> _Page:
        page = self._pages.get(node)
        if page is None:
            assert node.bounds is not None
            page = self._pages[node] = _Page(node)
            rank = 0 if node.level else _LEAF_RANK
            page.marker = self._intervals.insert(*self._interval(node.bounds), page, page, rank)
        return page

    # ------------------------------------------------------------------------------------------------- heads

    @contextmanager
    def _pinned(self, head: Head) -> Iterator[int]:
        """The version of a head, which stays as long as the block runs."""
        with self._lock:
            version = self._intervals.pin(self._version_of(head))
        try:
            yield version
        finally:
            with self._lock:
                self._unpin(version)

    def _unpin(self, version: int) -> None:
        if self._intervals.unpin(version):
            self._forget_pages()

    def _version_of(self, head: Head) -> int:
        if head is self._head:
            return self._recent[-1][1]
        roots: dict[str, _Root] = {node.ref.key: node for node in head.index_tree if node.bounds is not None}
        roots.update((entry.key, entry) for entry in head.index if entry.bounds is not None)
        for known, version in self._recent:
            if known == roots:
                if version == self._intervals.newest:
                    self._head = head
                return version
        self._see(roots)
        self._head = head
        return self._intervals.newest

    def _see(self, roots: Mapping[str, _Root]) -> None:
        """Makes a version of what a head names."""
        intervals, before = self._intervals, self._roots
        number = intervals.begin()
        for key, root in before.items():
            if roots.get(key) != root:
                named = self._named.pop(key)
                if isinstance(named, tuple):
                    named[1].removed, self._has_left = number, True
                else:
                    intervals.remove(named)
        for key, root in roots.items():
            if before.get(key) == root:
                continue
            if isinstance(root, PageNode):
                page, tenure = self._page(root), Tenure(number)
                page.parents = (*page.parents, tenure)
                self._named[key] = page, tenure
            else:
                assert root.bounds is not None
                self._named[key] = intervals.add(*self._interval(root.bounds), root, _ENTRY_RANK)
        self._roots = roots
        intervals.publish()
        self._recent.append((roots, intervals.pin(number)))
        if len(self._recent) > _RECENT:
            self._unpin(self._recent.popleft()[1])

    def _forget_pages(self) -> None:
        """Drops pages held only by versions that nobody reads.

        Not while the newest head names pages that were not read: a page that was written again holds mostly what the
        one before it held.
        """
        roots = (named[0] for named in self._named.values() if isinstance(named, tuple))
        if not self._has_left or not all(root.is_open for root in roots):
            return
        self._has_left = False
        for page in sorted(self._pages.values(), key=lambda page: -page.node.level):
            page.parents = tuple(parent for parent in page.parents if self._leads_somewhere(parent))
            if not page.parents:
                for node in (page.marker, *page.nodes):
                    if node is not None:
                        self._intervals.unlink(node)
                del self._pages[page.node]

    def _leads_somewhere(self, parent: Tenure | _Page) -> bool:
        if isinstance(parent, _Page):
            return bool(parent.parents)
        self._has_left = self._has_left or parent.removed <= self._intervals.newest
        return self._intervals.is_needed(parent)

    def problems(self) -> list[str]:
        """Returns what is wrong with the list while nobody searches."""
        with self._lock:
            return self._intervals.problems()


class ColdIndex:
    """The key index of one archive, beside its caches. Thread safe; one for each archive that a process reads."""

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
        """Takes what an earlier process kept on disk into memory, in the background."""
        if self._filters is not None:
            self._filters.warm()

    def overlapping(
        self,
        reader: ArchiveReader,
        head: Head,
        *,
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
        """Takes note that an index object was asked for a key: what is kept in memory is decided by use."""
        if self._filters is not None:
            self._filters.looked_up(entry, found=found)
