"""Compares the index objects of an archive with the records of its segments, in both directions.

Objects are read page by page and segments one after the other, whatever the size of the archive: what the items of a
segment are is summed up in two numbers, and where the sums of items and of records differ, the objects that point into
the segment are read again to tell which. Memory: one segment's keys, a page, and a few numbers for each object.

Reading an object (:func:`read_object`) and comparing a segment (:class:`IndexedSegment`) need nothing of each other, so
they may be done elsewhere; :class:`IndexCheck` brings together what they tell, in the order of the archive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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
from tiering.errors import CorruptionError, ObjectNotFoundError, StoreError, UnavailableError
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


class ItemSum(NamedTuple):
    """How many items, and the sum of their fingerprints modulo 2^64."""

    items: int = 0
    total: int = 0

    def plus(self, other: ItemSum) -> ItemSum:
        """Both together."""
        return ItemSum(self.items + other.items, (self.total + other.total) & 0xFFFFFFFFFFFFFFFF)


class Kind(Enum):
    """What follows from a finding for later ones."""

    PLAIN = "plain"
    NARROW = "narrow"
    """Bounds in the manifest: told of the first segment that shows it."""
    MISSING = "missing"
    """Keys without items: told of an object of which nothing else is known to be wrong."""


class Told(NamedTuple):
    """A finding on its way to those of the whole archive."""

    kind: Kind
    object: str
    text: str


@dataclass(frozen=True, slots=True)
class IndexRules:
    """What holds for every object and segment of one check."""

    store_id: str
    segment_bytes: int
    indexed_to: int
    topic_ids: Mapping[str, int]
    unsaid: tuple[str, ...]
    """What is compared of no item, because the layout of some object lacks it."""
    lost: tuple[tuple[int, int], ...]
    """Physical ranges whose index objects are not known."""
    layouts: Mapping[int, ItemLayout]

    def keys_of_items(self, items: Items, begin_ms: int) -> _Keys:
        """What items say."""
        keys = np.zeros(len(items), _KEY)
        for name, field in zip(_NAMES, _FIELDS, strict=True):
            if name not in self.unsaid:
                keys[name] = items[field]
        seconds = items["seconds"].astype(np.int64)
        keys["second"] = begin_ms // 1000 + seconds
        keys["second"][(seconds == SECONDS_MIN) | (seconds == SECONDS_MAX)] = _UNKNOWN
        return keys

    def overlaps(self, entry: IndexEntry, base: int) -> bool:
        """Whether the range of an object reaches into a segment."""
        return entry.first < base + self.segment_bytes and base < entry.next


@dataclass(frozen=True, slots=True)
class ObjectRead:
    """What one object holds, by the base of the segment that items point into, and what is wrong with it."""

    sums: Mapping[int, ItemSum]
    told: tuple[str, ...]


def read_object(objects: ObjectStore, rules: IndexRules, entry: IndexEntry) -> ObjectRead:
    """Every page of an object; raises the object store's errors, but for an object that is not there."""
    sums: dict[int, ItemSum] = {}
    told: list[str] = []
    try:
        for items in items_of_object(objects, rules.store_id, entry, told.append, rules.layouts):
            keys = rules.keys_of_items(items, entry.begin_ms)
            bases = keys["offset"] // rules.segment_bytes * rules.segment_bytes
            for base in np.unique(bases).tolist():
                mine = keys[bases == base]
                sums[base] = sums.get(base, ItemSum()).plus(ItemSum(len(mine), _fingerprint(mine)))
    except (CorruptionError, ObjectNotFoundError) as error:
        told.append(error.message)
    return ObjectRead(sums, tuple(told))


class IndexCheck:
    """The index objects of one archive: :meth:`take` each of them as it was read, then :meth:`tell` of each segment."""

    def __init__(
        self, store_id: str, log: Sequence[LogEntry], index: Sequence[IndexEntry],
        head: Head, lost_log: Sequence[tuple[int, int]], lost_index: Sequence[tuple[int, int]],
        topic_ids: dict[str, int], findings: Findings, layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:  # fmt: skip
        """``lost_log`` and ``lost_index`` are physical ranges whose segments, or index objects, are not known.

        What the items of one object lack, because their layout does, is compared of none.
        """
        used = {entry.layout for entry in index}
        unsaid = tuple(
            name for name, field in zip(_NAMES, _FIELDS, strict=True)
            if any(field not in layout.fields for layout in layouts.values() if layout.name in used)
        )  # fmt: skip
        segment_bytes = log[0].segment_bytes if log else 1
        self.rules = IndexRules(
            store_id, segment_bytes, head.indexed_to, topic_ids, unsaid, tuple(lost_index), dict(layouts)
        )  # fmt: skip
        self._bases = sorted(entry.base for entry in log)
        self._over: dict[int, list[IndexEntry]] = {}
        for entry in index:
            low = bisect_right(self._bases, entry.first - segment_bytes)
            for base in self._bases[low : bisect_left(self._bases, entry.next)]:
                self._over.setdefault(base, []).append(entry)
        self._cold_min = head.cold_min
        self._lost_log = lost_log
        self._findings = findings
        self._sums: dict[int, ItemSum] = {}
        self._strays: dict[int, list[IndexEntry]] = {}
        self._narrow: set[str] = set()

    def take(self, entry: IndexEntry, read: ObjectRead) -> None:
        """The next object."""
        for text in read.told:
            self._findings.add(entry.key, text)
        nowhere = []
        for base, found in read.sums.items():
            self._sums[base] = self._sums.get(base, ItemSum()).plus(found)
            if not self.rules.overlaps(entry, base):
                self._strays.setdefault(base, []).append(entry)
            at = bisect_left(self._bases, base)
            is_known = at < len(self._bases) and self._bases[at] == base
            if not is_known and base >= self._cold_min and not any(low <= base < high for low, high in self._lost_log):
                nowhere.append(base)
        if nowhere:
            self._findings.add(entry.key, f"points into segment {min(nowhere)}, which the manifest lacks")

    def segment(self, base: int) -> IndexedSegment:
        """What the objects have of a segment, once all of them were taken."""
        return IndexedSegment(
            self._sums.get(base, ItemSum()), tuple(self._over.get(base, ())), tuple(self._strays.get(base, ()))
        )  # fmt: skip

    def tell(self, told: Iterable[Told]) -> None:
        """What was found of the next segment."""
        narrow: set[str] = set()
        for kind, about, text in told:
            if kind is Kind.NARROW:
                narrow.add(about)
            if kind is Kind.NARROW and about in self._narrow:
                continue
            if kind is Kind.MISSING and self._findings.count_of(about):
                continue
            self._findings.add(about, text)
        self._narrow |= narrow


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """What the index objects have of one segment."""

    sum: ItemSum
    over: tuple[IndexEntry, ...]
    """Objects whose range reaches into it."""
    strays: tuple[IndexEntry, ...]
    """Objects whose range does not, while items of theirs point into it."""

    def compare(self, objects: ObjectStore, rules: IndexRules, whole: WholeSegment) -> list[Told]:
        """The keys of the segment's records against the items that point into it."""
        comparison = _Comparison(objects, rules, self)
        comparison.compare(whole)
        return comparison.told


class _Comparison:
    """One segment against what the index has of it."""

    def __init__(self, objects: ObjectStore, rules: IndexRules, indexed: IndexedSegment) -> None:
        self._objects = objects
        self._rules = rules
        self._indexed = indexed
        self.told: list[Told] = []

    def compare(self, whole: WholeSegment) -> None:
        wanted, physical = self._keys_of_records(whole)
        if self._indexed.sum != ItemSum(len(wanted), _fingerprint(wanted)):
            self._tell(whole, wanted, physical)

    def _add(self, about: str, text: str, kind: Kind = Kind.PLAIN) -> None:
        self.told.append(Told(kind, about, text))

    def _keys_of_records(self, whole: WholeSegment) -> tuple[_Keys, NDArray[np.int64]]:
        """The keys that must be indexed, and the physical offset of the record of each."""
        ids = np.array([self._rules.topic_ids.get(name, _NO_TOPIC) for name in whole.names], np.int32)
        batch = KeyBatch.of(whole.data, whole.rows, ids)
        is_indexed = whole.rows["physical_offset"][batch.keys["row"]] < self._rules.indexed_to
        found = batch.keys[is_indexed]
        rows = whole.rows[found["row"]]
        keys = np.empty(len(found), _KEY)
        keys["offset"] = whole.cold_offsets()[found["row"]]
        keys["hash"], keys["high"] = found["hash"], found["hash_high"]
        keys["topic_id"], keys["queue_id"] = ids[rows["topic_number"]], rows["queue_id"]
        keys["size"], keys["second"] = rows["size"], rows["store_ms"] // 1000
        for name in self._rules.unsaid:
            keys[name] = 0
        self._check_bounds(rows)
        return keys, rows["physical_offset"].astype(np.int64)

    def _check_bounds(self, rows: NDArray[np.void]) -> None:
        for entry in self._indexed.over:
            if entry.bounds is None or entry.level:
                continue
            mine = rows[(rows["physical_offset"] >= entry.first) & (rows["physical_offset"] < entry.next)]
            for name in ("store_ms", "born_ms"):
                low, high = getattr(entry.bounds, f"min_{name}"), getattr(entry.bounds, f"max_{name}")
                if len(mine) and (mine[name].min() < low or mine[name].max() > high):
                    text = f"its bounds of {name} in the manifest are narrower than its records"
                    self._add(entry.key, text, Kind.NARROW)

    def _tell(self, whole: WholeSegment, wanted: _Keys, physical: NDArray[np.int64]) -> None:
        """Which keys have no item, and which items belong to no key."""
        base = whole.entry.base
        passed_over = np.concatenate((whole.filler_offsets(), whole.lost_offsets()))
        missing = np.ones(len(wanted), bool)
        order = np.argsort(wanted, order=_NAMES[:3])
        seen = np.zeros(len(wanted), np.int64)
        for entry in (*self._indexed.over, *self._indexed.strays):
            extra: list[_Keys] = []
            wrong: list[_Keys] = []
            try:
                for items in items_of_object(
                    self._objects, self._rules.store_id, entry, lambda _: None, self._rules.layouts
                ):
                    keys = self._rules.keys_of_items(items, entry.begin_ms)
                    keys = keys[(keys["offset"] >= base) & (keys["offset"] < base + self._rules.segment_bytes)]
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
            self._add(whole.entry.key, f"keys of the record at {offset} are in the index twice")
        self._say_missing(whole, physical[missing])

    def _say(self, entry: IndexEntry, what: str, pieces: list[_Keys]) -> None:
        count = sum(map(len, pieces))
        if count:
            offset = min(int(piece["offset"].min()) for piece in pieces if len(piece))
            self._add(entry.key, f"{count} items {what}, the first at cold offset {offset}")

    def _say_missing(self, whole: WholeSegment, physical: NDArray[np.int64]) -> None:
        for entry in self._indexed.over:
            mine = (physical >= entry.first) & (physical < entry.next)
            if mine.any():
                first = f"the first of the record at {physical[mine].min()}"
                self._add(entry.key, f"{int(mine.sum())} keys are not found, {first}", Kind.MISSING)
                physical = physical[~mine]
        for low, high in self._rules.lost:
            physical = physical[(physical < low) | (physical >= high)]
        if len(physical):
            first = f"the first of the record at {physical.min()}"
            self._add(whole.entry.key, f"{len(physical)} keys are in no index object, {first}")


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
        if hot is not None and manifest.had_head and isinstance(error, UnavailableError):
            raise  # says nothing about the archive; the caller tells that it was not checked
        if manifest.had_head or hot is None or hot.border > 0:
            findings.add(manifest.keys.head, error.message)
        return
    cold = ColdCheck(manifest, head, findings)
    cold.check_manifest()
    if hot is not None and hot.border > head.archived_to:
        findings.add(None, f"I6 border {hot.border} lies above archived_to {head.archived_to}")
    index = index_check(cold, findings, layouts)
    total = len(cold.index) + len(cold.log)
    for number, entry in enumerate(cold.index):
        index.take(entry, read_object(manifest.objects, index.rules, entry))
        progress(number + 1, total)

    def compare(whole: WholeSegment) -> None:
        index.tell(index.segment(whole.entry.base).compare(manifest.objects, index.rules, whole))

    cold.check_segments(hot, compare, lambda done, _: progress(len(cold.index) + done, total))
    cold.check_bucket()


def index_check(cold: ColdCheck, findings: Findings, layouts: Mapping[int, ItemLayout] = LAYOUTS) -> IndexCheck:
    """The check of the index of an archive whose manifest was checked."""
    return IndexCheck(
        cold.manifest.keys.store_id, cold.log, cold.index, cold.head, cold.lost_ranges, cold.lost_index,
        cold.topic_ids, findings, layouts,
    )  # fmt: skip
