"""Compares the index objects of an archive with the records of its segments, in both directions.

Objects are read page by page and segments one after the other, whatever the size of the archive: what the items of a
segment are is summed up in two numbers, and where the sums of items and of records differ, the objects that point into
the segment are read again to tell which. Memory: one segment's keys, a page, and a few numbers for each object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from index.batch import KeyBatch
from index.layout import LAYOUTS, SECONDS_MAX, SECONDS_MIN, ItemLayout, Items
from index.object_check import items_of_object
from tiering.checks.archive import ColdCheck
from tiering.checks.findings import Findings
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.object_store import ObjectStore
from tiering.cold.segment.whole import WholeSegment
from tiering.errors import CorruptionError, ObjectNotFoundError, StoreError
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.hot.store import HotStore

#: One item, or one key of one record, which ``offset`` says by its cold offset; ``second`` is of the store time.
_NAMES = ("offset", "hash", "high", "topic_id", "queue_id", "size", "second")
_FIELDS = ("offset", "hash", "hash_high", "topic_id", "queue_id", "size", "seconds")
_KEY = np.dtype([(name, "<i8") for name in _NAMES])
#: A second of an item that was cut to 32 bits, so that it says nothing.
_UNKNOWN = -(1 << 62)
#: Odd numbers without a pattern: fingerprints are compared with others of the same run only.
_FACTORS = (
    0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F,
    0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3,
)  # fmt: skip
#: The id of a topic that the state object lacks, which is told by itself.
_NO_TOPIC = -1
_Keys = NDArray[np.void]


@dataclass(slots=True)
class _Sum:
    """How many items, and the sum of their fingerprints modulo 2^64."""

    count: int = 0
    total: int = 0


class IndexCheck:
    """The index objects of one archive. :meth:`read_objects` first, then :meth:`compare` for each segment."""

    def __init__(
        self, objects: ObjectStore, store_id: str, log: Sequence[LogEntry], index: Sequence[IndexEntry],
        head: Head, lost_log: Sequence[tuple[int, int]], lost_index: Sequence[tuple[int, int]],
        topic_ids: dict[str, int], findings: Findings, layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:  # fmt: skip
        """``lost_log`` and ``lost_index`` are physical ranges whose segments, or index objects, are not known.

        What the items of one object lack, because their layout does, is compared of none.
        """
        self._layouts = layouts
        used = {entry.layout for entry in index}
        self._unsaid = [
            name for name, field in zip(_NAMES, _FIELDS, strict=True)
            if any(field not in layout.fields for layout in layouts.values() if layout.name in used)
        ]  # fmt: skip
        self._objects = objects
        self._store_id = store_id
        self._bases = {entry.base for entry in log}
        self._segment_bytes = log[0].segment_bytes if log else 1
        self._index = list(index)
        self._indexed_to = head.indexed_to
        self._cold_min = head.cold_min
        self._lost_log, self._lost = lost_log, lost_index
        self._topic_ids = topic_ids
        self._findings = findings
        self._sums: dict[int, _Sum] = {}
        self._strays: dict[int, list[IndexEntry]] = {}
        self._narrow: set[str] = set()

    # objects

    def read_objects(self, progress: Callable[[int, int], None]) -> None:
        """Every page of every object; sums up the items of each segment."""
        for number, entry in enumerate(self._index):
            find = partial(self._findings.add, entry.key)
            nowhere: set[int] = set()
            try:
                for items in items_of_object(self._objects, self._store_id, entry, find, self._layouts):
                    nowhere |= self._sum_up(entry, self._keys_of_items(items, entry.begin_ms))
            except (CorruptionError, ObjectNotFoundError) as error:
                find(error.message)
            if nowhere:
                find(f"points into segment {min(nowhere)}, which the manifest lacks")
            progress(number + 1, len(self._index))

    def _sum_up(self, entry: IndexEntry, keys: _Keys) -> set[int]:
        """Add to the sums; returns the segments that do not exist."""
        bases = keys["offset"] // self._segment_bytes * self._segment_bytes
        for base in np.unique(bases).tolist():
            mine = keys[bases == base]
            found = self._sums.setdefault(base, _Sum())
            found.count += len(mine)
            found.total = (found.total + _fingerprint(mine)) & 0xFFFFFFFFFFFFFFFF
            if not self._overlaps(entry, base):
                self._strays.setdefault(base, []).append(entry)
        unknown = {base for base in np.unique(bases).tolist() if base not in self._bases and base >= self._cold_min}
        return {base for base in unknown if not any(low <= base < high for low, high in self._lost_log)}

    def _overlaps(self, entry: IndexEntry, base: int) -> bool:
        return entry.first < base + self._segment_bytes and base < entry.next

    # segments

    def compare(self, whole: WholeSegment) -> None:
        """The keys of a segment's records against the items that point into it."""
        wanted, physical = self._keys_of_records(whole)
        found = self._sums.get(whole.entry.base, _Sum())
        if (found.count, found.total) != (len(wanted), _fingerprint(wanted)):
            self._tell(whole, wanted, physical)

    def _keys_of_records(self, whole: WholeSegment) -> tuple[_Keys, NDArray[np.int64]]:
        """The keys that must be indexed, and the physical offset of the record of each."""
        ids = np.array([self._topic_ids.get(name, _NO_TOPIC) for name in whole.names], np.int32)
        batch = KeyBatch.of(whole.data, whole.rows, ids)
        is_indexed = whole.rows["physical_offset"][batch.keys["row"]] < self._indexed_to
        found = batch.keys[is_indexed]
        rows = whole.rows[found["row"]]
        keys = np.empty(len(found), _KEY)
        keys["offset"] = whole.cold_offsets()[found["row"]]
        keys["hash"], keys["high"] = found["hash"], found["hash_high"]
        keys["topic_id"], keys["queue_id"] = ids[rows["topic_number"]], rows["queue_id"]
        keys["size"], keys["second"] = rows["size"], rows["store_ms"] // 1000
        for name in self._unsaid:
            keys[name] = 0
        self._check_bounds(whole.entry.base, rows)
        return keys, rows["physical_offset"].astype(np.int64)

    def _check_bounds(self, base: int, rows: NDArray[np.void]) -> None:
        for entry in self._index:
            if entry.bounds is None or not self._overlaps(entry, base) or entry.key in self._narrow or entry.level:
                continue
            mine = rows[(rows["physical_offset"] >= entry.first) & (rows["physical_offset"] < entry.next)]
            for name in ("store_ms", "born_ms"):
                low, high = getattr(entry.bounds, f"min_{name}"), getattr(entry.bounds, f"max_{name}")
                if len(mine) and (mine[name].min() < low or mine[name].max() > high):
                    self._narrow.add(entry.key)
                    self._findings.add(entry.key, f"its bounds of {name} in the manifest are narrower than its records")

    def _tell(self, whole: WholeSegment, wanted: _Keys, physical: NDArray[np.int64]) -> None:
        """Which keys have no item, and which items belong to no key."""
        base = whole.entry.base
        passed_over = np.concatenate((whole.filler_offsets(), whole.lost_offsets()))
        missing = np.ones(len(wanted), bool)
        order = np.argsort(wanted, order=_NAMES[:3])
        seen = np.zeros(len(wanted), np.int64)
        for entry in (*(each for each in self._index if self._overlaps(each, base)), *self._strays.get(base, ())):
            extra: list[_Keys] = []
            wrong: list[_Keys] = []
            try:
                for items in items_of_object(self._objects, self._store_id, entry, lambda _: None, self._layouts):
                    keys = self._keys_of_items(items, entry.begin_ms)
                    keys = keys[(keys["offset"] >= base) & (keys["offset"] < base + self._segment_bytes)]
                    keys = keys[~np.isin(keys["offset"], passed_over) & ~whole.is_lost(keys["offset"])]
                    at = _places(wanted[order], keys)
                    extra.append(keys[at < 0])
                    at, keys = order[at[at >= 0]], keys[at >= 0]
                    wrong.append(keys[_differ(wanted[at], keys)])
                    missing[at] = False
                    np.add.at(seen, at, 1)
            except (CorruptionError, ObjectNotFoundError):
                pass  # told when the objects were read
            self._say(entry, "belong to no key of the record that they point to", extra)
            self._say(entry, "say something else of their record than the record", wrong)
        if (seen > 1).any():
            offset = int(physical[seen > 1][0])
            self._findings.add(whole.entry.key, f"keys of the record at {offset} are in the index twice")
        self._say_missing(whole, physical[missing])

    def _say(self, entry: IndexEntry, what: str, pieces: list[_Keys]) -> None:
        count = sum(map(len, pieces))
        if count:
            offset = min(int(piece["offset"].min()) for piece in pieces if len(piece))
            self._findings.add(entry.key, f"{count} items {what}, the first at cold offset {offset}")

    def _say_missing(self, whole: WholeSegment, physical: NDArray[np.int64]) -> None:
        for entry in self._index:
            mine = (physical >= entry.first) & (physical < entry.next)
            if mine.any():
                if not self._findings.count_of(entry.key):
                    first = f"the first of the record at {physical[mine].min()}"
                    self._findings.add(entry.key, f"{int(mine.sum())} keys are not found, {first}")
                physical = physical[~mine]
        for low, high in self._lost:
            physical = physical[(physical < low) | (physical >= high)]
        if len(physical):
            first = f"the first of the record at {physical.min()}"
            self._findings.add(whole.entry.key, f"{len(physical)} keys are in no index object, {first}")

    def _keys_of_items(self, items: Items, begin_ms: int) -> _Keys:
        keys = np.zeros(len(items), _KEY)
        for name, field in zip(_NAMES, _FIELDS, strict=True):
            if name not in self._unsaid:
                keys[name] = items[field]
        seconds = items["seconds"].astype(np.int64)
        keys["second"] = begin_ms // 1000 + seconds
        keys["second"][(seconds == SECONDS_MIN) | (seconds == SECONDS_MAX)] = _UNKNOWN
        return keys


def _fingerprint(keys: _Keys) -> int:
    """The same for the same keys in any order; a number for each key, added up."""
    mixed = np.zeros(len(keys), np.uint64)
    for name, factor in zip(_NAMES, _FACTORS, strict=True):
        mixed ^= keys[name].astype(np.uint64)
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum(dtype=np.uint64))


def _places(ordered: _Keys, keys: _Keys) -> NDArray[np.int64]:
    """Where each key stands among those in order, by record and hashes; -1 for nowhere."""
    names = list(_NAMES[:3])
    if not len(ordered) or not len(keys):
        return np.full(len(keys), -1)
    both = np.concatenate((ordered[names], keys[names]))
    _, number = np.unique(both, return_inverse=True)
    known = np.full(int(number.max()) + 1, -1)
    known[number[: len(ordered)]] = np.arange(len(ordered))
    found: NDArray[np.int64] = known[number[len(ordered) :]]
    return found


def _differ(wanted: _Keys, keys: _Keys) -> NDArray[np.bool_]:
    """Whether items say something wrong of their records; seconds are cut toward the begin of their file."""
    wrong = np.zeros(len(keys), bool)
    for name in ("topic_id", "queue_id", "size"):
        wrong |= (wanted[name] != keys[name]) & (wanted[name] != _NO_TOPIC)
    off = keys["second"] - wanted["second"]
    wrong |= (keys["second"] != _UNKNOWN) & (off != 0) & (off != 1)
    return wrong


def check_archive_deep(
    manifest: ManifestStore,
    hot: HotStore | None,
    findings: Findings,
    progress: Callable[[int, int], None],
    layouts: Mapping[int, ItemLayout] = LAYOUTS,
) -> None:
    """Every object of an archive, every byte of it, and what they say of each other; see ``docs/checking.md``."""
    try:
        head = manifest.refresh()
    except StoreError as error:
        if manifest.had_head or hot is None or hot.border > 0:
            findings.add(manifest.keys.head, error.message)
        return
    cold = ColdCheck(manifest, head, findings)
    cold.check_manifest()
    if hot is not None and hot.border > head.archived_to:
        findings.add(None, f"I6 border {hot.border} lies above archived_to {head.archived_to}")
    topic_ids = {topic.name: topic.topic_id for topic in cold.state.topics}
    index = IndexCheck(
        manifest.objects, manifest.keys.store_id, cold.log, cold.index, head, cold.lost_ranges, cold.lost_index,
        topic_ids, findings, layouts,
    )  # fmt: skip
    total = len(cold.index) + len(cold.log)
    index.read_objects(lambda done, _: progress(done, total))
    cold.check_segments(hot, index.compare, lambda done, _: progress(len(cold.index) + done, total))
    cold.check_bucket()
