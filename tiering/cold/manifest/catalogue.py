"""The contents of an archive at one version of its manifest: segments, index objects, queue rows, topics.

Everything takes a head, so that one query sees one version, and a reader, which pays for what it fetches. What takes
``lost`` tells it what cannot be read and goes on without it; without one it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.types import TimeAxis, TimeRange
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.reading.bill import BudgetSpentError
from tierlog.tiering.format.manifest import (
    Entry,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    QueueGap,
    decode_gaps,
    decode_page,
    decode_removed,
)
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows, decode_queue_rows_head, decode_rows_page, pages_of
from tierlog.tiering.format.section import PageRef
from tierlog.tiering.format.store_state import StoreState

T = TypeVar("T")

#: Called with a part of the manifest (an entry or page reference, with its range and bounds) that cannot be read.
Lost = Callable[[LogEntry | PageNode, StoreError], None]
#: Queue rows of that size are fetched whole: one request in place of one for the table and one for each page.
_SMALL_BYTES = 64 << 10


def unless_lost(part: LogEntry | PageNode, lost: Lost | None, read: Callable[[], T]) -> T | None:
    """Returns what ``read`` gives.

    If it fails, ``lost`` is called with the part and the error, and None is returned; without ``lost`` the error is
    raised.
    """
    try:
        return read()
    except BudgetSpentError:
        raise
    except StoreError as error:
        if lost is None:
            raise
        lost(part, error)
        return None


class ArchiveCatalogue:
    """Answers from a head and the immutable objects below it. Thread safe."""

    def log_entries(
        self,
        reader: ArchiveReader,
        head: Head,
        lost: Lost | None = None,
        *,
        stored: TimeRange | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> Iterator[LogEntry]:
        """Every published segment, ascending; with ``stored``, or ``offsets``, those that reach into that range of
        store times, or of physical offsets, and no page of the manifest without one is read.
        """

        def may_hold(part: LogEntry | PageNode) -> bool:
            if offsets is not None and not (part.first < offsets[1] and offsets[0] < part.next):
                return False
            return stored is None or (part.bounds is not None and stored.overlaps(*part.bounds.on(TimeAxis.STORE)))

        for node in filter(may_hold, head.log_tree):
            for leaf in filter(may_hold, unless_lost(node, lost, partial(self._page, reader, node, "log")) or ()):
                yield from filter(may_hold, unless_lost(leaf, lost, partial(self._page, reader, leaf, "log")) or ())
        yield from filter(may_hold, head.log)

    def index_entries(
        self, reader: ArchiveReader, head: Head, axis: TimeAxis, time_range: TimeRange, lost: Lost | None = None
    ) -> Iterator[IndexEntry]:
        """Index objects that may hold items of the range; seconds in items are cut, so bounds count a second more."""
        wide = TimeRange(time_range.from_ms - 1000, time_range.to_ms + 1000)
        for entry in self._entries(reader, head.index_tree, kind="index", axis=axis, time_range=wide, lost=lost):
            if entry.bounds and wide.overlaps(*entry.bounds.on(axis)):
                yield entry
        for entry in head.index:
            if entry.bounds and wide.overlaps(*entry.bounds.on(axis)):
                yield entry

    def all_index_entries(self, reader: ArchiveReader, head: Head, lost: Lost | None = None) -> Iterator[IndexEntry]:
        """Yields every published index object, in the order of publication or of their merges."""
        yield from self._entries(reader, head.index_tree, kind="index", lost=lost)
        yield from head.index

    def index_entries_over(self, reader: ArchiveReader, head: Head, first: int, end: int) -> Iterator[IndexEntry]:
        """Yields every published index object whose range touches the physical range ``[first, end)``."""

        def touching(items: Iterable[PageNode | IndexEntry]) -> Iterator[IndexEntry]:
            for item in items:
                if item.first >= end or first >= item.next:
                    continue
                if isinstance(item, PageNode):
                    yield from touching(self._page(reader, item, "index"))
                else:
                    yield item

        yield from touching((*head.index_tree, *head.index))

    def log_entry(self, reader: ArchiveReader, head: Head, base: int) -> LogEntry | None:
        """Returns the published segment with this base, or None."""
        found = self.segment_of(reader, head, base)
        return found if found is not None and found.base == base else None

    def entry_of_rows(self, reader: ArchiveReader, head: Head, base: int) -> LogEntry:
        """Returns the published segment that queue rows name; :class:`CorruptionError` if there is none."""
        found = self.log_entry(reader, head, base)
        if found is None:
            raise CorruptionError(f"queue rows name segment {base}, which the manifest lacks")
        return found

    def segment_of(self, reader: ArchiveReader, head: Head, offset: int) -> LogEntry | None:
        """Returns the published segment that holds a physical offset, or None."""
        for entry in head.log:
            if entry.first <= offset < entry.next:
                return entry
        for node in head.log_tree:
            if node.first <= offset < node.next:
                for leaf in self._page(reader, node, "log"):
                    if leaf.first <= offset < leaf.next:
                        for entry in self._page(reader, leaf, "log"):
                            if entry.first <= offset < entry.next:
                                found: LogEntry = entry
                                return found
        return None

    def queue_rows(self, reader: ArchiveReader, head: Head, topic_id: int, queue_id: int | None = None) -> QueueRows:
        """Rows of a topic, or of one of its queues, over all published segments, ascending by segment."""
        pieces = list(self.queue_row_pieces(reader, head, topic_id, queue_id))
        if not pieces:
            return np.empty(0, QUEUE_ROW)
        return np.sort(np.concatenate(pieces), order=["segment", "queue_id", "first_queue_offset"])

    def queue_row_pieces(
        self,
        reader: ArchiveReader,
        head: Head,
        topic_id: int,
        queue_id: int | None = None,
        *,
        backwards: bool = False,
        stored: TimeRange | None = None,
        lost: Lost | None = None,
        from_offset: int = 0,
    ) -> Iterator[QueueRows]:
        """Yields the rows of :meth:`queue_rows` piece by piece, earlier segments first, read as far as they are wanted.

        No piece is empty; inside a piece rows ascend by queue, then segment. ``backwards`` gives the last piece first,
        ``stored`` leaves out pieces without a record stored in that time, ``from_offset`` pieces wholly below it.
        """
        turn = reversed if backwards else iter

        def wanted(items: Sequence[Any]) -> Iterator[Any]:
            for item in turn(items):
                if item.next <= from_offset:
                    continue
                if stored is None or (item.bounds and stored.overlaps(*item.bounds.on(TimeAxis.STORE))):
                    yield item

        def leaves() -> Iterator[PageNode]:
            for node in wanted(head.log_tree):
                yield from wanted(unless_lost(node, lost, partial(self._page, reader, node, "log")) or ())

        inline = wanted(head.log)
        for part in chain(inline, leaves()) if backwards else chain(leaves(), inline):
            ref = part.rows
            if ref is not None:
                rows = unless_lost(part, lost, partial(self.rows_of, reader, ref, topic_id, queue_id))
                if rows is not None and len(rows):
                    yield rows

    def state(self, reader: ArchiveReader, head: Head) -> StoreState:
        """Topics as of the last archive commit that changed them."""
        ref = head.state
        if ref is None:
            return StoreState()
        return reader.metadata(
            ref.key, 0, ref.size_bytes, "state", lambda data: StoreState.decode(ref.check(data), path=ref.key)
        )

    def gaps(self, reader: ArchiveReader, head: Head) -> tuple[QueueGap, ...]:
        """Returns all declared gaps of the store's queues."""
        ref = head.gaps
        if ref is None:
            return ()
        return reader.metadata(
            ref.key, 0, ref.size_bytes, "gaps", lambda data: decode_gaps(ref.check(data), path=ref.key)
        )

    def removed_names(self, reader: ArchiveReader, head: Head) -> Iterator[tuple[str, int]]:
        """Names that left the manifest and are not known to be deleted, with the server time they left at."""
        for page in head.removed:
            data = reader.fetch(page.ref.key, 0, page.ref.size_bytes, "removed names")
            for key in decode_removed(page.ref.check(data), path=page.ref.key):
                yield key, page.at_ms

    def leaves(self, reader: ArchiveReader, node: PageNode) -> list[PageNode]:
        """Returns what a level-1 page of segments refers to."""
        return list(self._page(reader, node, "log"))

    def log_page(self, reader: ArchiveReader, node: PageNode) -> Sequence[Any]:
        """Returns what a page of segments holds: entries (level 0), or references to pages."""
        return self._page(reader, node, "log")

    def index_page(self, reader: ArchiveReader, node: PageNode) -> Sequence[Any]:
        """Returns what a page of index objects holds: entries (level 0), or references to pages."""
        return self._page(reader, node, "index")

    def pages(self, reader: ArchiveReader, head: Head) -> Iterator[ObjectRef]:
        """Every object of the manifest itself that the head leads to: pages, companions, rows, state, gaps, removed."""
        yield from (ref for ref in (head.state, head.gaps) if ref is not None)
        yield from (page.ref for page in head.removed)
        yield from (entry.rows for entry in head.log if entry.rows is not None)
        for kind, tree in (("log", head.log_tree), ("index", head.index_tree)):
            for node in tree:
                yield node.ref
                for leaf in self._page(reader, node, kind):
                    yield leaf.ref
                    if leaf.rows is not None:
                        yield leaf.rows

    def page(self, reader: ArchiveReader, node: PageNode, kind: str) -> Sequence[Any]:
        """Returns what a page of the manifest holds, of segments (``log``) or index objects (``index``)."""
        return self._page(reader, node, kind)

    def _entries(
        self,
        reader: ArchiveReader,
        nodes: Iterable[PageNode],
        *,
        kind: str,
        axis: TimeAxis | None = None,
        time_range: TimeRange | None = None,
        lost: Lost | None = None,
    ) -> Iterator[Any]:
        for node in nodes:
            if axis and time_range and not (node.bounds and time_range.overlaps(*node.bounds.on(axis))):
                continue
            items = unless_lost(node, lost, partial(self._page, reader, node, kind)) or ()
            if node.level:
                yield from self._entries(reader, items, kind=kind, axis=axis, time_range=time_range, lost=lost)
            else:
                yield from items

    def _page(self, reader: ArchiveReader, node: PageNode, kind: str) -> Sequence[Any]:
        ref = node.ref
        return reader.metadata(
            ref.key, 0, ref.size_bytes, f"manifest level {node.level}",
            lambda data: decode_page(ref.check(data), kind, node.level, path=ref.key),
        )  # fmt: skip

    def rows_of(self, reader: ArchiveReader, ref: ObjectRef, topic_id: int, queue_id: int | None) -> QueueRows:
        """Rows of a topic, or of one of its queues, in one rows object."""
        if ref.size_bytes <= _SMALL_BYTES:
            reader = reader.together(ref.key, 0, ref.size_bytes)
        head = reader.metadata(
            ref.key, 0, ref.head_length, "queue rows", lambda data: decode_queue_rows_head(data, path=ref.key)
        )

        def page_rows(page: PageRef) -> QueueRows:
            return reader.metadata(
                ref.key, page.position, page.position + page.length, "queue rows page",
                lambda data: decode_rows_page(data, page, path=ref.key),
            )  # fmt: skip

        pieces = [page_rows(page) for page in pages_of(head, topic_id, queue_id)]
        rows = np.concatenate(pieces) if pieces else np.empty(0, QUEUE_ROW)
        rows = rows[rows["topic_id"] == topic_id]
        kept: QueueRows = rows if queue_id is None else rows[rows["queue_id"] == queue_id]
        return kept


@dataclass(frozen=True, slots=True)
class Total:
    """Objects of one kind."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of what one head leads to."""

    segments: Total
    index_objects: Total


class ArchiveTotals:
    """The amount that an archive holds, by kind, without listing it: sums of manifest pages, each read once.

    Pages are immutable and their names are used once, so a sum that was taken holds as long as the page is named.
    :meth:`of` is thread safe, :meth:`learn` for one thread.
    """

    def __init__(self, catalogue: ArchiveCatalogue) -> None:
        self._catalogue = catalogue
        #: Of each page that a head names: the sums of the pages below it, by their names.
        self._pages: dict[str, dict[str, Total]] = {}
        self._learned: Head | None = None

    def of(self, head: Head) -> Totals | None:
        """Returns the sums of a head, without a request; None while pages of it were not read."""
        segments, objects = self._known(head.log_tree), self._known(head.index_tree)
        if segments is None or objects is None:
            return None
        return Totals(segments + _sum(head.log), objects + _sum(head.index))

    def learn(self, reader: ArchiveReader, head: Head) -> None:
        """Reads what is not known of a head yet: every page of a new process, else what the last commits wrote."""
        if head is self._learned:
            return
        leaves = {key: total for sums in self._pages.values() for key, total in sums.items()}
        pages: dict[str, dict[str, Total]] = {}
        for kind, tree in (("log", head.log_tree), ("index", head.index_tree)):
            for node in tree:
                known = self._pages.get(node.ref.key)
                pages[node.ref.key] = known if known is not None else self._sums(reader, kind, node, leaves)
        self._pages, self._learned = pages, head

    def _sums(self, reader: ArchiveReader, kind: str, node: PageNode, leaves: dict[str, Total]) -> dict[str, Total]:
        found: dict[str, Total] = {}
        for leaf in self._catalogue.page(reader, node, kind):
            total = leaves.get(leaf.ref.key)
            found[leaf.ref.key] = total or _sum(self._catalogue.page(reader, leaf, kind))
        return found

    def _known(self, tree: tuple[PageNode, ...]) -> Total | None:
        pages, total = self._pages, Total()
        for node in tree:
            sums = pages.get(node.ref.key)
            if sums is None:
                return None
            for each in sums.values():
                total += each
        return total


def _sum(entries: Sequence[Entry]) -> Total:
    return Total(len(entries), sum(entry.size_bytes for entry in entries))
