"""Reads and commits the manifest of one store: one head, replaced by compare-and-swap, and immutable pages.

A commit keeps one id over all its tries. Whatever answer a try got, the committer reads the head and looks for its
id before it concludes anything: a lost 200, a 409 or a 412 may all hide a commit that landed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tiering.cold.manifest_tree import ManifestTree
from tiering.cold.object_store import ObjectStore
from tiering.cold.reading import ArchiveReader, MetadataCache, ReadBill
from tiering.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreMismatchError,
    UnavailableError,
)
from tiering.format.manifest import (
    REMEMBERED_COMMITS,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    StoreState,
    decode_page,
)
from tiering.format.queue_rows import QUEUE_ROW, QueueRows, decode_queue_rows_head, decode_rows_page, pages_of
from tiering.format.section import PageRef
from tiering.options import ColdOptions
from tiering.paths import ColdKeys
from tiering.randomness import Randomness
from tiering.types import TimeAxis, TimeRange

_COMMIT_TRIES = 5


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """What one commit of the store's own changes; watermarks left None stay as they are."""

    log: tuple[LogEntry, ...] = ()
    index: tuple[IndexEntry, ...] = ()
    archived_to: int | None = None
    indexed_to: int | None = None
    state: ObjectRef | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who wants to write: a volume, its open, and the open ids that the head may still hold from before."""

    volume_id: str
    open_id: str
    head_open_ids: tuple[str, ...]


class ManifestStore:
    """The manifest of one store. Thread safe; one commit at a time."""

    def __init__(
        self,
        objects: ObjectStore,
        keys: ColdKeys,
        randomness: Randomness,
        options: ColdOptions,
        cache: MetadataCache | None = None,
    ) -> None:
        self.objects = objects
        self.keys = keys
        self.options = options
        self.cache = cache or MetadataCache(options.cache_bytes)
        self._randomness = randomness
        self._tree = ManifestTree(objects, keys, randomness, options)
        self._lock = threading.Lock()
        self._head: Head | None = None
        self._etag: str | None = None
        self._epoch: int | None = None

    def reader(self, bill: ReadBill | None = None) -> ArchiveReader:
        """A reader of this archive's objects on a bill of its own."""
        return ArchiveReader(self.objects, self.cache, bill)

    # the head

    @property
    def head(self) -> Head | None:
        """The head last seen, or None before the first contact."""
        return self._head

    def refresh(self, bill: ReadBill | None = None) -> Head:
        """The newest head; :class:`ObjectNotFoundError` if this store has no archive yet."""
        if bill is not None:
            bill.charge(self.keys.head)
        with self._lock:
            return self._refresh()

    def _refresh(self) -> Head:
        if self._etag is None:
            data, info = self.objects.get(self.keys.head)
        else:
            found = self.objects.get_if_changed(self.keys.head, self._etag)
            if found is None:
                assert self._head is not None
                return self._head
            data, info = found
        self._head, self._etag = Head.decode(data, path=self.keys.head), info.etag
        return self._head

    def covering(self, border: int, bill: ReadBill | None = None) -> Head:
        """The head last seen, or the newest if that one does not cover everything below ``border``.

        Another process may have archived and raised the border since. Raises :class:`StoreMismatchError` if the newest
        head does not cover it either, :class:`ObjectNotFoundError` if this store has no archive yet.
        """
        head = self._head
        if head is None or head.archived_to < border:
            head = self.refresh(bill)
        if head.archived_to < border:
            raise StoreMismatchError(
                f"the archive ends at {head.archived_to}, below {border}, up to which hot copies are gone",
                path=self.keys.head,
                hint="the archive is not the one that this store wrote, or was set back",
            )
        return head

    # writing

    def claim(self, owner: Ownership, *, log_begin: int, log_end: int) -> Head:
        """Make the head, or raise its epoch, so that ``owner`` may commit; repeatable after any failure.

        ``log_begin`` is where a new archive starts, ``log_end`` the recovered end of the log. Raises
        :class:`StoreMismatchError` if another volume owns the head or the log ends below what is archived,
        :class:`FencedError` if a copy of this volume has written since.
        """
        with self._lock:
            try:
                head = self._refresh()
            except ObjectNotFoundError:
                return self._create(owner, log_begin)
            self._check_owner(head, owner, log_end)
            if head.open_id != owner.open_id:
                head = self._swap(
                    lambda seen: replace(seen, epoch=seen.epoch + 1, open_id=owner.open_id),
                    lambda seen: self._check_owner(seen, owner, log_end),
                )
            self._epoch = head.epoch
            return head

    def check_owner(self, owner: Ownership, *, log_end: int | None = None) -> None:
        """Look whether ``owner`` may write, without writing; no archive yet is fine."""
        with self._lock:
            try:
                head = self._refresh()
            except ObjectNotFoundError:
                return
            self._check_owner(head, owner, log_end)

    def _check_owner(self, head: Head, owner: Ownership, log_end: int | None) -> None:
        if head.volume_id != owner.volume_id:
            raise StoreMismatchError(
                f"the archive of store {head.store_id} belongs to volume {head.volume_id}, not to {owner.volume_id}",
                path=self.keys.head,
                hint="use another store id or prefix",
            )
        if head.open_id not in owner.head_open_ids:
            raise FencedError("a copy of this volume has written to the archive since", path=self.keys.head)
        if log_end is not None and log_end < head.archived_to:
            raise StoreMismatchError(
                f"the log ends at {log_end}, below {head.archived_to}, up to which it was archived",
                path=self.keys.head,
                hint="the volume has lost data that the archive holds",
            )

    def _create(self, owner: Ownership, log_begin: int) -> Head:
        commit_id = self._randomness.token_hex(8)
        head = Head(
            self.keys.store_id, owner.volume_id, owner.open_id, 1, 1, commit_id, (commit_id,),
            log_begin, log_begin, log_begin,
        )  # fmt: skip
        try:
            self._etag = self.objects.put(self.keys.head, head.encode(), if_absent=True).etag
            self._head = head
        except (PreconditionFailedError, UnavailableError) as error:
            self._etag = None
            try:
                found = self._refresh()
            except ObjectNotFoundError:
                raise error from None
            if found.commit_id != commit_id:
                raise StoreMismatchError("another volume has just made this archive", path=self.keys.head) from error
        self._epoch = 1
        return head

    def commit(self, change: ManifestChange, expected: Head) -> Head:
        """Publish what ``change`` names, planned on the watermarks of ``expected``.

        Raises :class:`FencedError` if somebody raised the epoch, :class:`ConflictError` if a watermark has moved
        (plan again), and the object store's error if the outcome could not be learnt (look again later: the
        watermarks say whether it landed).
        """

        def check(head: Head) -> None:
            if self._epoch is None or head.epoch != self._epoch:
                raise FencedError("another open has taken the archive over", path=self.keys.head)
            if (head.archived_to, head.indexed_to) != (expected.archived_to, expected.indexed_to):
                raise ConflictError("the watermarks have moved since the commit was planned", path=self.keys.head)

        with self._lock:
            return self._swap(lambda head: self._apply(head, change), check)

    def _apply(self, head: Head, change: ManifestChange) -> Head:
        version = head.version + 1
        log = head.log + tuple(replace(entry, added=version) for entry in change.log)
        index = head.index + tuple(replace(entry, added=version) for entry in change.index)
        head = replace(
            head, log=log, index=index, state=change.state or head.state,
            archived_to=head.archived_to if change.archived_to is None else change.archived_to,
            indexed_to=head.indexed_to if change.indexed_to is None else change.indexed_to,
        )  # fmt: skip
        return self._tree.spill(head, version)

    def _swap(self, apply: Callable[[Head], Head], check: Callable[[Head], None]) -> Head:
        commit_id = self._randomness.token_hex(8)
        for _ in range(_COMMIT_TRIES):
            seen = self._refresh()
            if commit_id in seen.commit_ids:
                return seen
            check(seen)
            head = replace(
                apply(seen),
                version=seen.version + 1,
                commit_id=commit_id,
                commit_ids=(*seen.commit_ids, commit_id)[-REMEMBERED_COMMITS:],
            )
            try:
                info = self.objects.put(self.keys.head, head.encode(), if_match=self._etag)
            except (PreconditionFailedError, UnavailableError):
                found = self._refresh()  # a dead bucket raises here: the outcome stays unknown
                if commit_id in found.commit_ids:
                    return found
                continue
            self._head, self._etag = head, info.etag
            return head
        raise ConflictError(f"the head kept changing over {_COMMIT_TRIES} tries", path=self.keys.head)

    # reading; all take a head, so that one query sees one version

    def log_entries(self, reader: ArchiveReader, head: Head) -> Iterator[LogEntry]:
        """Every published segment, ascending."""
        yield from self._entries(reader, head.log_tree, "log")
        yield from head.log

    def index_entries(
        self, reader: ArchiveReader, head: Head, axis: TimeAxis, time_range: TimeRange
    ) -> Iterator[IndexEntry]:
        """Index objects that may hold items of the range; seconds in items are cut, so bounds count a second more."""
        wide = TimeRange(time_range.from_ms - 1000, time_range.to_ms + 1000)
        for entry in self._entries(reader, head.index_tree, "index", axis, wide):
            if entry.bounds and wide.overlaps(*entry.bounds.on(axis)):
                yield entry
        for entry in head.index:
            if entry.bounds and wide.overlaps(*entry.bounds.on(axis)):
                yield entry

    def log_entry(self, reader: ArchiveReader, head: Head, base: int) -> LogEntry | None:
        """The published segment with this base, or None."""
        found = self.segment_of(reader, head, base)
        return found if found is not None and found.base == base else None

    def entry_of_rows(self, reader: ArchiveReader, head: Head, base: int) -> LogEntry:
        """The published segment that queue rows name; :class:`CorruptionError` if there is none."""
        found = self.log_entry(reader, head, base)
        if found is None:
            raise CorruptionError(f"queue rows name segment {base}, which the manifest lacks")
        return found

    def segment_of(self, reader: ArchiveReader, head: Head, offset: int) -> LogEntry | None:
        """The published segment that holds a physical offset, or None."""
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
    ) -> Iterator[QueueRows]:
        """The same rows, read as far as they are wanted: a piece of later segments follows one of earlier ones.

        No piece is empty; inside a piece rows ascend by queue, then segment. ``backwards`` gives the last piece first,
        ``stored`` leaves out pieces without a record stored in that time.
        """
        turn = reversed if backwards else iter

        def wanted(items: Sequence[Any]) -> Iterator[Any]:
            for item in turn(items):
                if stored is None or (item.bounds and stored.overlaps(*item.bounds.on(TimeAxis.STORE))):
                    yield item

        leaves = (leaf.rows for node in wanted(head.log_tree) for leaf in wanted(self._page(reader, node, "log")))
        inline = (entry.rows for entry in wanted(head.log))
        for ref in chain(inline, leaves) if backwards else chain(leaves, inline):
            if ref is not None:
                rows = self._rows_of(reader, ref, topic_id, queue_id)
                if len(rows):
                    yield rows

    def state(self, reader: ArchiveReader, head: Head) -> StoreState:
        """Topics as of the last archive commit that changed them."""
        ref = head.state
        if ref is None:
            return StoreState()
        return reader.metadata(ref.key, 0, ref.size_bytes, "state", lambda data: StoreState.decode(data, path=ref.key))

    def _entries(
        self,
        reader: ArchiveReader,
        nodes: Iterable[PageNode],
        kind: str,
        axis: TimeAxis | None = None,
        time_range: TimeRange | None = None,
    ) -> Iterator[Any]:
        for node in nodes:
            if axis and time_range and not (node.bounds and time_range.overlaps(*node.bounds.on(axis))):
                continue
            items = self._page(reader, node, kind)
            if node.level:
                yield from self._entries(reader, items, kind, axis, time_range)
            else:
                yield from items

    def _page(self, reader: ArchiveReader, node: PageNode, kind: str) -> Sequence[Any]:
        ref = node.ref
        return reader.metadata(
            ref.key, 0, ref.size_bytes, f"manifest level {node.level}",
            lambda data: decode_page(data, kind, node.level, path=ref.key),
        )  # fmt: skip

    def _rows_of(self, reader: ArchiveReader, ref: ObjectRef, topic_id: int, queue_id: int | None) -> QueueRows:
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
