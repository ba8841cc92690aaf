"""Moves old manifest entries out of the head into a two-level tree of immutable pages.

Level-0 pages hold entries, level-1 pages hold references to them, the head holds references to level-1 pages. Pages
fill in order; only the last of each level is ever written again, under a new name. A log page has a companion with
the queue rows of all its entries. What a new page replaces is no longer named by anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from tiering.cold.object_store import ObjectStore
from tiering.errors import ChecksumMismatchError
from tiering.format.manifest import Entry, Head, LogEntry, ObjectRef, PageNode, decode_page, encode_page
from tiering.format.queue_rows import QueueRows, decode_queue_rows_head, decode_rows_page, encode_queue_rows
from tiering.options import ColdOptions
from tiering.paths import ColdKeys
from tiering.randomness import Randomness
from tiering.types import TimeBounds


class ManifestTree:
    """Writes pages for one committer."""

    def __init__(self, objects: ObjectStore, keys: ColdKeys, randomness: Randomness, options: ColdOptions) -> None:
        self._objects = objects
        self._keys = keys
        self._randomness = randomness
        self._options = options

    def spill(self, head: Head, version: int) -> Head:
        """The head with at most the allowed entries inline, older ones in pages that are already stored.

        Half of the allowance is kept, so that a spill happens once in many commits.
        """
        limit = self._options.max_inline_entries
        excess = len(head.log) + len(head.index) - limit
        if excess <= 0:
            return head
        count = excess + limit // 2
        entries: list[Entry] = [*head.log, *head.index]
        by_age = sorted(entries, key=lambda entry: (entry.added, entry.first))
        oldest = {entry.key for entry in by_age[:count]}
        old_log = [entry for entry in head.log if entry.key in oldest]
        old_index = [entry for entry in head.index if entry.key in oldest]
        return replace(
            head,
            log=tuple(entry for entry in head.log if entry.key not in oldest),
            index=tuple(entry for entry in head.index if entry.key not in oldest),
            log_tree=self._append("log", head.log_tree, old_log, version),
            index_tree=self._append("index", head.index_tree, old_index, version),
        )

    def _append(
        self, kind: str, tree: tuple[PageNode, ...], entries: Sequence[Entry], version: int
    ) -> tuple[PageNode, ...]:
        if not entries:
            return tree
        leaves: list[PageNode] = self._load(kind, tree[-1]) if tree else []
        items: list[Entry] = self._load(kind, leaves[-1]) if leaves else []
        if leaves and leaves[-1].count < self._options.page_entries:
            leaves.pop()
        else:
            items = []
        items += entries
        leaves += [self._store(kind, 0, page, version) for page in _split(items, self._options.page_entries)]
        pages = [self._store(kind, 1, page, version) for page in _split(leaves, self._options.page_entries)]
        return (*tree[:-1], *pages)

    def _load(self, kind: str, node: PageNode) -> list[Any]:
        data = self._get(node.ref)
        return decode_page(data, kind, node.level, path=node.ref.key)

    def _get(self, ref: ObjectRef) -> bytes:
        data, _ = self._objects.get(ref.key)
        if len(data) != ref.size_bytes or zlib.crc32(data) != ref.crc32:
            raise ChecksumMismatchError("manifest object differs from its reference", path=ref.key)
        return data

    def _store(self, kind: str, level: int, items: Sequence[Any], version: int) -> PageNode:
        ref = self._put(f"{kind}{level}", version, encode_page(kind, level, items), 0)
        bounds = [item.bounds for item in items if item.bounds is not None]
        rows = self._companion(items, version) if kind == "log" and level == 0 else None
        return PageNode(
            ref, level, len(items), items[0].first, items[-1].next,
            reduce(TimeBounds.union, bounds) if bounds else None, rows,
        )  # fmt: skip

    def _companion(self, entries: Sequence[LogEntry], version: int) -> ObjectRef | None:
        pieces = [self._rows(entry.rows) for entry in entries if entry.rows is not None]
        if not pieces:
            return None
        data, section = encode_queue_rows(np.concatenate(pieces))
        return self._put("rows", version, data, section.head_length)

    def _rows(self, ref: ObjectRef) -> QueueRows:
        data = self._get(ref)
        head = decode_queue_rows_head(data, path=ref.key)
        return np.concatenate(
            [
                decode_rows_page(data[page.position : page.position + page.length], page, path=ref.key)
                for page in head.pages
            ]
        )

    def _put(self, kind: str, version: int, data: bytes, head_length: int) -> ObjectRef:
        key = self._keys.page(kind, version, self._randomness.token_hex(4))
        self._objects.put(key, data)  # the name is this attempt's own, so repeating it is harmless
        return ObjectRef(key, len(data), zlib.crc32(data), head_length)


def _split(items: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
