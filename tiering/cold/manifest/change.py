"""The changes that one commit makes in the manifest, and the head that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tierlog.tiering.base.errors import ConflictError
from tierlog.tiering.cold.manifest.tree import Change, Kind, Tree, TreeEdit
from tierlog.tiering.format.manifest import (
    Entry,
    Head,
    IndexEntry,
    LogEntry,
    LostRange,
    ObjectRef,
    PageNode,
    RemovedPage,
    Tombstone,
    TopicExpiry,
    decode_removed,
    encode_removed,
)

_MAX_REMOVED_PAGES = 32
_E = TypeVar("_E", LogEntry, IndexEntry)


@dataclass(frozen=True, slots=True)
class MendedPage:
    """A page that cannot be read, and the entries that it held, each with queue rows of its own."""

    kind: Kind
    lost: PageNode
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """The changes that one commit makes; watermarks and references left None stay as they are."""

    log: tuple[LogEntry, ...] = ()
    index: tuple[IndexEntry, ...] = ()
    remove: tuple[Entry, ...] = ()
    """Named entries that leave. With an added segment of the same base the segment is replaced in its place; queue
    rows then stay unless the new entry brings its own."""
    archived_to: int | None = None
    indexed_to: int | None = None
    cold_min: int | None = None
    """Everything wholly below it leaves."""
    state: ObjectRef | None = None
    gaps: ObjectRef | None = None
    """All declared gaps, those of before included."""
    log_gaps: tuple[tuple[int, int], ...] = ()
    """Physical ranges to be added."""
    lost: tuple[LostRange, ...] = ()
    """Ranges of a followed log that nobody has, to be added."""
    add_tombstones: tuple[Tombstone, ...] = ()
    close_tombstones: tuple[str, ...] = ()
    expired: tuple[TopicExpiry, ...] = ()
    """Topics whose expiry rises."""
    pages: tuple[MendedPage, ...] = ()
    deleted: tuple[RemovedPage, ...] = ()
    """Removed pages all of whose names are deleted."""
    begun_s: float | None = None
    """Monotonic second at which the first upload of what is named here began."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that nobody else ever gives to the manifest; not those of entries that stay, with other queue rows."""
        entries: tuple[Entry, ...] = (*self.log, *self.index)
        known = {entry.key for entry in self.remove}
        return tuple(entry.key for entry in entries if entry.key not in known)


def apply_change(head: Head, change: ManifestChange, edit: TreeEdit) -> Head:
    """Returns the head after the change, but for its version and commit id; what it names is stored.

    Raises :class:`ConflictError` if an entry to be removed is gone.
    """
    log = tuple(replace(entry, added=edit.version) for entry in change.log)
    index = tuple(replace(entry, added=edit.version) for entry in change.index)
    for page in change.pages:
        if page.kind == "log":
            head = replace(head, log_tree=edit.mend(page.kind, head.log_tree, page.lost, page.entries))
        else:
            head = replace(head, index_tree=edit.mend(page.kind, head.index_tree, page.lost, page.entries))
    head, log = _without(head, change.remove, log, edit)
    head = replace(
        head,
        log=tuple(sorted((*head.log, *log), key=lambda entry: entry.base)),
        index=(*head.index, *index),
        archived_to=head.archived_to if change.archived_to is None else change.archived_to,
        indexed_to=head.indexed_to if change.indexed_to is None else change.indexed_to,
        log_gaps=tuple(sorted({*head.log_gaps, *change.log_gaps})),
        lost=tuple(sorted({*head.lost, *change.lost})),
        state=_successor(head.state, change.state, edit),
        gaps=_successor(head.gaps, change.gaps, edit),
        tombstones=_tombstones(head, change, edit.version),
        expired=_expired(head.expired, change.expired),
    )
    if change.cold_min is not None and change.cold_min > head.cold_min:
        head = _without_expired(replace(head, cold_min=change.cold_min), edit)
    head = edit.spill(head)
    return replace(head, removed=_removed(head.removed, change.deleted, edit))


def _without(
    head: Head, remove: Sequence[Entry], added: tuple[LogEntry, ...], edit: TreeEdit
) -> tuple[Head, tuple[LogEntry, ...]]:
    """The head without some entries, those that are replaced in place put there; and what is left to be added."""
    if not remove:
        return head, added
    by_base = {entry.base: entry for entry in added}
    successors: dict[str, LogEntry | None] = {
        entry.key: by_base.pop(entry.base, None) if isinstance(entry, LogEntry) else None for entry in remove
    }
    waiting = set(successors)

    def change(entry: Entry) -> Entry | None:
        if entry.key not in waiting:
            return entry
        waiting.discard(entry.key)
        successor = successors[entry.key]
        if successor is None or successor.key != entry.key:
            edit.left.append(entry.key)
        if isinstance(entry, LogEntry) and entry.rows is not None:
            if successor is not None and successor.rows is None:
                return replace(successor, rows=entry.rows)
            if successor is None or successor.rows != entry.rows:
                edit.left.append(entry.rows.key)
        return successor

    log, index = _changed(head.log, change), _changed(head.index, change)
    head = replace(
        head, log=log, index=index,
        log_tree=_tree("log", head.log_tree, [entry for entry in remove if isinstance(entry, LogEntry)], change, edit),
        index_tree=_tree(
            "index", head.index_tree, [entry for entry in remove if isinstance(entry, IndexEntry)], change, edit
        ),
    )  # fmt: skip
    if waiting:
        raise ConflictError(f"{min(waiting)} left the manifest since the commit was planned", path=min(waiting))
    return head, tuple(by_base.values())


def _changed(entries: tuple[_E, ...], change: Change) -> tuple[_E, ...]:
    return tuple(found for found in map(change, entries) if found is not None)  # type: ignore[misc]


def _tree(kind: Kind, tree: Tree, remove: Sequence[Entry], change: Change, edit: TreeEdit) -> Tree:
    inline = set(edit.left)  # those that were found inline need no page
    wanted = [(entry.first, entry.next) for entry in remove if entry.key not in inline]

    def may_hold(node: PageNode) -> bool:
        return any(node.first <= first and following <= node.next for first, following in wanted)

    return edit.change(kind, tree, may_hold, change) if wanted else tree


def _without_expired(head: Head, edit: TreeEdit) -> Head:
    def change(entry: Entry) -> Entry | None:
        if entry.next > head.cold_min:
            return entry
        edit.left.append(entry.key)
        if isinstance(entry, LogEntry) and entry.rows is not None:
            edit.left.append(entry.rows.key)
        return None

    def may_hold(node: PageNode) -> bool:
        return node.first < head.cold_min

    return replace(
        head,
        log=_changed(head.log, change),
        index=_changed(head.index, change),
        log_tree=edit.change("log", head.log_tree, may_hold, change),
        index_tree=edit.change("index", head.index_tree, may_hold, change),
    )


def _successor(old: ObjectRef | None, new: ObjectRef | None, edit: TreeEdit) -> ObjectRef | None:
    if new is None:
        return old
    if old is not None and old.key != new.key:
        edit.left.append(old.key)
    return new


def _tombstones(head: Head, change: ManifestChange, version: int) -> tuple[Tombstone, ...]:
    kept = [tombstone for tombstone in head.tombstones if tombstone.tombstone_id not in change.close_tombstones]
    return (*kept, *(replace(tombstone, added=version) for tombstone in change.add_tombstones))


def _expired(before: Sequence[TopicExpiry], raised: Sequence[TopicExpiry]) -> tuple[TopicExpiry, ...]:
    below = dict(before)
    for topic_id, below_ms in raised:
        below[topic_id] = max(below_ms, below.get(topic_id, below_ms))
    return tuple(TopicExpiry(*pair) for pair in sorted(below.items()))


def _removed(
    before: tuple[RemovedPage, ...], deleted: Sequence[RemovedPage], edit: TreeEdit
) -> tuple[RemovedPage, ...]:
    """The list of names that left, with those of this try. Pages that become many are joined, at the latest time."""
    gone = {page.ref.key for page in deleted}
    pages = tuple(page for page in before if page.ref.key not in gone)
    edit.left += sorted(gone)
    if len(pages) >= _MAX_REMOVED_PAGES:
        half = len(pages) // 2
        names = [key for page in pages[:half] for key in decode_removed(edit.read(page.ref), path=page.ref.key)]
        edit.left += [page.ref.key for page in pages[:half]]
        ref, _ = edit.put("removed", encode_removed(names))
        pages = (RemovedPage(ref, pages[half - 1].at_ms, len(names)), *pages[half:])
    if not edit.left:
        return pages
    ref, at_ms = edit.put("removed", encode_removed(edit.left))
    return (*pages, RemovedPage(ref, at_ms, len(edit.left)))
