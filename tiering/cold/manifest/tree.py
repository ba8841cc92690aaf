"""Keeps old manifest entries in a two-level tree of immutable pages below the head.

Level-0 pages hold entries, level-1 pages hold references to them, the head holds references to level-1 pages. New
entries fill the last page; entries that leave or are replaced cause the pages on their way to be written again, under
new names, and a page that is less than half full joins its neighbour. A log page has a companion with the queue rows
of all its entries; rows of a segment are folded into it when its entry moves in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np

from tierlog.tiering.base.errors import ConflictError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.manifest import (
    Entry,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    decode_page,
    encode_page,
)
from tierlog.tiering.format.queue_rows import (
    QUEUE_ROW,
    QueueRows,
    decode_queue_rows_head,
    decode_rows_page,
    encode_queue_rows,
)
from tierlog.tiering.objects.object_store import ObjectStore

Kind = Literal["log", "index"]
Tree = tuple[PageNode, ...]
#: The entry as it shall be from now on, or None if it leaves.
Change = Callable[[Entry], Entry | None]


@dataclass(slots=True)
class _Page:
    """A page while a commit is prepared: as it is stored, or its new items."""

    node: PageNode | None
    items: Sequence[Any] = ()
    rows_from: tuple[ObjectRef, ...] = ()
    """Companions that hold rows of its entries so far."""

    @property
    def count(self) -> int:
        return self.node.count if self.node is not None else len(self.items)


class TreeEdit:
    """The pages that one try of one commit writes; ``left`` collects the names that its head no longer needs."""

    def __init__(
        self, objects: ObjectStore, keys: ColdKeys, randomness: Randomness, options: ColdOptions, version: int
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._randomness = randomness
        self._options = options
        self.version = version
        self.left: list[str] = []

    def spill(self, head: Head) -> Head:
        """Returns the head with at most the allowed entries inline, older ones in pages that are already stored.

        Half of the allowance is kept, so that a spill happens once in many commits.
        """
        limit = self._options.max_inline_entries
        excess = len(head.log) + len(head.index) - limit
        if excess <= 0:
            return head
        entries: list[Entry] = [*head.log, *head.index]
        by_age = sorted(entries, key=lambda entry: (entry.added, entry.first))[: excess + limit // 2]
        oldest = {entry.key for entry in by_age if isinstance(entry, IndexEntry)}
        # one that was replaced lately is young, but the tree's segments stay in order
        oldest |= {entry.key for entry in head.log[: len(by_age) - len(oldest)]}
        return replace(
            head,
            log=tuple(entry for entry in head.log if entry.key not in oldest),
            index=tuple(entry for entry in head.index if entry.key not in oldest),
            log_tree=self._append("log", head.log_tree, [entry for entry in head.log if entry.key in oldest]),
            index_tree=self._append("index", head.index_tree, [entry for entry in head.index if entry.key in oldest]),
        )

    def change(self, kind: Kind, tree: Tree, may_hold: Callable[[PageNode], bool], change: Change) -> Tree:
        """Returns the tree with ``change`` applied to every entry below the nodes for which ``may_hold`` is true."""

        def edit_leaf(leaf: PageNode) -> list[Any] | None:
            items = self._load(kind, leaf)
            found = [change(item) for item in items]
            return None if found == items else [item for item in found if item is not None]

        def edit_node(node: PageNode) -> list[Any] | None:
            leaves = self._load(kind, node)
            found = self._rewrite(kind, 0, leaves, may_hold, edit_leaf)
            return None if found == leaves else found

        return tuple(self._rewrite(kind, 1, tree, may_hold, edit_node))

    def mend(self, kind: Kind, tree: Tree, lost: PageNode, entries: Sequence[Entry]) -> Tree:
        """Returns the tree with ``entries`` in the place of a page that cannot be read; each brings its own queue rows.

        Raises :class:`ConflictError` if the page has left the tree.
        """
        leaves = [self._store(kind, 0, _Page(None, piece)) for piece in _split(entries, self._options.page_entries)]
        for number, node in enumerate(tree):
            if node.ref.key == lost.ref.key:
                items = leaves
            elif lost.level == 0 and node.first <= lost.first and lost.next <= node.next:
                items = self._load(kind, node)
                at = next((place for place, leaf in enumerate(items) if leaf.ref.key == lost.ref.key), None)
                if at is None:
                    continue
                self._leave(lost)
                items[at : at + 1] = leaves
            else:
                continue
            self._leave(node)
            upper = [self._store(kind, 1, _Page(None, piece)) for piece in _split(items, self._options.page_entries)]
            return (*tree[:number], *upper, *tree[number + 1 :])
        raise ConflictError("the page has left the manifest", path=lost.ref.key)

    def put(self, kind: str, data: bytes) -> tuple[ObjectRef, int]:
        """Stores a manifest object under a name of this try; its reference and the server's time."""
        return self._put(self._name(kind), data, 0)

    def _name(self, kind: str) -> str:
        return self._keys.page(kind, self.version, self._randomness.token_hex(4))

    def _put(self, key: str, data: bytes, head_length: int) -> tuple[ObjectRef, int]:
        info = self._objects.put(key, data)  # the name is this attempt's own, so repeating it is harmless
        return ObjectRef(key, len(data), zlib.crc32(data), head_length), info.modified_ms

    def read(self, ref: ObjectRef) -> bytes:
        """Returns a manifest object, checked against its reference."""
        data, _ = self._objects.get(ref.key)
        return ref.check(data)

    def _append(self, kind: Kind, tree: Tree, entries: Sequence[Entry]) -> Tree:
        if not entries:
            return tree
        limit = self._options.page_entries
        leaves: list[PageNode] = self._load(kind, tree[-1]) if tree else []
        pages: list[_Page] = []
        items: list[Any] = list(entries)
        rows_from: tuple[ObjectRef, ...] = ()
        if leaves and leaves[-1].count < limit:
            last = leaves.pop()
            items = [*self._load(kind, last), *items]
            rows_from = self._leave(last)
        pages = [_Page(None, piece, rows_from) for piece in _split(items, limit)]
        nodes = [*leaves, *(self._store(kind, 0, page) for page in pages)]
        if tree:
            self._leave(tree[-1])
        upper = [self._store(kind, 1, _Page(None, piece)) for piece in _split(nodes, limit)]
        return (*tree[:-1], *upper)

    def _rewrite(
        self,
        kind: Kind,
        level: int,
        nodes: Sequence[PageNode],
        may_hold: Callable[[PageNode], bool],
        edit: Callable[[PageNode], list[Any] | None],
    ) -> list[PageNode]:
        """Returns the nodes after ``edit`` gave some of them new items; small ones join a neighbour, empty ones go."""
        pages: list[_Page] = []
        for node in nodes:
            items = edit(node) if may_hold(node) else None
            pages.append(_Page(node) if items is None else _Page(None, items, self._leave(node)))
        pages = self._join_small(kind, [page for page in pages if page.count])
        return [page.node if page.node is not None else self._store(kind, level, page) for page in pages]

    def _join_small(self, kind: Kind, pages: list[_Page]) -> list[_Page]:
        limit = self._options.page_entries
        joined: list[_Page] = []
        for page in pages:
            before = joined[-1] if joined else None
            # two pages that nobody changed stay as they are, however small
            if (
                before is not None
                and (page.node is None or before.node is None)
                and min(before.count, page.count) < limit // 2
                and before.count + page.count <= limit
            ):
                first, second = self._open(kind, before), self._open(kind, page)
                joined[-1] = _Page(None, [*first.items, *second.items], first.rows_from + second.rows_from)
            else:
                joined.append(page)
        return joined

    def _open(self, kind: Kind, page: _Page) -> _Page:
        if page.node is None:
            return page
        return _Page(None, self._load(kind, page.node), self._leave(page.node))

    def _leave(self, node: PageNode) -> tuple[ObjectRef, ...]:
        """Notes that nothing will name the node's objects, and where the rows of its entries are until then."""
        self.left.append(node.ref.key)
        if node.rows is None:
            return ()
        self.left.append(node.rows.key)
        return (node.rows,)

    def _load(self, kind: Kind, node: PageNode) -> list[Any]:
        return decode_page(self.read(node.ref), kind, node.level, path=node.ref.key)

    def _store(self, kind: Kind, level: int, page: _Page) -> PageNode:
        items, companion = page.items, None
        if kind == "log" and level == 0:
            companion = self._companion(items, page.rows_from)
            items = [self._fold(entry) for entry in items]
        ref, _ = self.put(f"{kind}{level}", encode_page(kind, level, items))
        bounds = [item.bounds for item in items if item.bounds is not None]
        return PageNode(
            ref=ref, level=level, count=len(items), first=min(item.first for item in items),
            next=max(item.next for item in items), bounds=reduce(TimeBounds.union, bounds) if bounds else None,
            rows=companion,
        )  # fmt: skip

    def _fold(self, entry: LogEntry) -> LogEntry:
        if entry.rows is None:
            return entry
        self.left.append(entry.rows.key)
        return replace(entry, rows=None)

    def _companion(self, entries: Sequence[LogEntry], rows_from: Iterable[ObjectRef]) -> ObjectRef | None:
        """The queue rows of all entries: each entry's own if it brings some, else from the companions so far."""
        own = [self._rows(entry.rows) for entry in entries if entry.rows is not None]
        folded = np.array([entry.base for entry in entries if entry.rows is None], np.int64)
        # where every entry brings its own, the companions so far need not even be readable
        pieces = [rows[np.isin(rows["segment"], folded)] for rows in map(self._rows, rows_from if len(folded) else ())]
        rows = np.concatenate([np.empty(0, QUEUE_ROW), *own, *pieces])
        if not len(rows):
            return None
        key = self._name("rows")
        data, section = encode_queue_rows(rows, key)
        return self._put(key, data, section.head_length)[0]

    def _rows(self, ref: ObjectRef) -> QueueRows:
        data = self.read(ref)
        head = decode_queue_rows_head(data, path=ref.key)
        return np.concatenate(
            [
                decode_rows_page(data[page.position : page.position + page.length], page, path=ref.key)
                for page in head.pages
            ]
        )


def _split(items: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
