"""Compares the index objects of an archive with the records of its segments, in both directions.

Objects are read page by page and segments one after the other, whatever the size of the archive: what the items of a
segment are is summed up in two numbers, and where the sums of items and of records differ, the objects that point into
the segment are read again to tell which. Memory: one segment's keys, a page, and a few numbers for each object.

Reading an object (:func:`read_object`) and comparing a segment (:class:`IndexedSegment`) need nothing of each other, so
they may be done elsewhere; :class:`IndexCheck` brings together what they tell, in the order of the archive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError, DamagedFilterError
from tierlog.index.format.header import SLOT_BYTES
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import LAYOUTS, SECONDS_MAX, SECONDS_MIN, ItemLayout, Items
from tierlog.index.format.object_sections import DIRECTORY, FILTER, META, PAGES, SECTION_HEAD_BYTES, open_section
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.objects.item_order import TimesFall, highs, keys_of
from tierlog.index.objects.pages import PAGE_HEAD_BYTES, IndexPage, PageDirectory
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import (
    CorruptionError,
    ObjectNotFoundError,
    StoreError,
    UnavailableError,
    UnsupportedFormatError,
)
from tierlog.tiering.checks.archive import ColdCheck
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.whole_segment import WholeSegment
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import ObjectStream

#: Takes what is wrong with an object, in words.
Find = Callable[[str], None]


def items_of_object(
    objects: ObjectStore,
    store_id: str,
    entry: IndexEntry,
    find: Find,
    layouts: Mapping[int, ItemLayout] = LAYOUTS,
) -> Iterator[Items]:
    """Yields the items of each page that can be read, in the object's order.

    Damage inside the object is reported; raises what makes all of it unreadable, and the object store's errors.
    """
    # length and page directory
    size = objects.head(entry.key).size_bytes
    if size != entry.size_bytes:
        raise CorruptIndexError(f"is {size} bytes long, the manifest says {entry.size_bytes}")
    reader = IndexObjectReader(
        lambda start, end: objects.get_range(entry.key, start, end), entry.sections, layouts=layouts
    )
    directory = reader.page_directory()
    if (directory.slots, directory.begin_ms, directory.layout.name) != (entry.slots, entry.begin_ms, entry.layout):
        find("its page directory and the manifest disagree")
    # the pages, one after the other
    against = _FilterCheck(_filter_of(reader, find))
    stream = ObjectStream(objects, entry.key, size)
    head = stream.take(entry.sections[PAGES].position + SECTION_HEAD_BYTES)
    damaged, count, falls = 0, 0, TimesFall()
    try:
        open_section(PAGES, head[entry.sections[PAGES].position :])
    except CorruptionError as error:
        find(f"pages: {error.message}")
        damaged += 1
    for number in range(len(directory)):
        start, end = directory.span(number)
        data = stream.take(end - start)
        try:
            directory.check(number, data)
            page = IndexPage.decode(data, directory.layout, directory.page_bytes)
            _check_page(directory, number, page)
            _check_range(directory, number, page, entry)
        except CorruptionError as error:
            damaged += 1
            find(f"page {number} is damaged ({error.message}); {_slots_of(directory, number)}")
            continue
        count += len(page.items)
        against.add(page.items)
        falls.add(page.items)
        yield page.items
    # the rest of the object, and what only all of it can tell
    stream.take_rest()
    try:
        _check_meta(objects, store_id, entry)
    except CorruptionError as error:
        damaged += 1
        find(error.message)
    if not damaged and count != entry.items:
        find(f"holds {count} items, the manifest says {entry.items}")
    if falls.is_found and not entry.times_fall:
        find("store times of a key fall in it, the manifest says that they rise")
    against.report(find, all_seen=not damaged)
    if not damaged and stream.crc32 != entry.crc32:
        find("its checksum differs from the manifest")


def _filter_of(reader: IndexObjectReader, find: Find) -> KeyFilter | None:
    try:
        return reader.key_filter()
    except (DamagedFilterError, UnsupportedFormatError) as error:
        find(f"{error.message}: every look-up reads a page of it")
        return None


class _FilterCheck:
    """Compares a key filter with the items, which come in the object's order."""

    def __init__(self, given: KeyFilter | None) -> None:
        self._given = given
        self._again = given.empty_like() if given is not None else None
        self._keys = self._ruled_out = 0
        self._last = -1

    def add(self, items: Items) -> None:
        if self._given is None or self._again is None or not len(items):
            return
        low, high, keys = items["hash"].astype(np.int64), highs(items), keys_of(items)
        self._again.add(low, high)
        self._ruled_out += int(np.count_nonzero(~self._given.may_contain_each(low, high)))
        self._keys += int(np.count_nonzero(np.diff(keys))) + (int(keys[0]) != self._last)
        self._last = int(keys[-1])

    def report(self, find: Find, *, all_seen: bool) -> None:
        """Says what is wrong; whether the filter is that of the items, and no more, only if all of them were seen."""
        if self._given is None or self._again is None:
            return
        if self._ruled_out:
            find(f"its key filter rules out {self._ruled_out} items that it holds")
        elif all_seen and not self._given.has_same_bits(self._again):
            find("its key filter has bits of keys that it does not hold")
        if all_seen and self._keys != self._given.keys:
            find(f"its key filter says {self._given.keys} keys, it holds {self._keys}")


def _slots_of(directory: PageDirectory, number: int) -> str:
    first = int(directory.rows["slot"][number])
    last = int(directory.rows["slot"][number + 1]) if number + 1 < len(directory) else directory.slots - 1
    return f"keys in slots {first} to {last} are not found"


def _check_page(directory: PageDirectory, number: int, page: IndexPage) -> None:
    """Checks slot entries, item order and the directory's rows around a page; raises :class:`CorruptIndexError`."""
    items, entries = page.items, page.entries
    width, slots = items.dtype.itemsize, directory.slots
    if page.first_slot != int(directory.rows["slot"][number]) or page.first_slot + len(entries) > slots:
        raise CorruptIndexError("it starts with another slot than its directory says")
    lengths = entries["length"].astype(np.int64)
    positions = PAGE_HEAD_BYTES + SLOT_BYTES * len(entries) + np.cumsum(lengths) - lengths
    if (entries["position"] != positions).any() or int(lengths.sum()) != width * len(items) or (lengths % width).any():
        raise CorruptIndexError("its slots do not make up its items")
    hashes, high = items["hash"].astype(np.int64), highs(items)
    slot = np.repeat(page.first_slot + np.arange(len(entries)), lengths // width)
    if (hashes < 0).any() or (hashes % slots != slot).any():
        raise CorruptIndexError("an item lies in another slot than its hash says")
    place = slot << 31 | hashes
    step = np.diff(place)
    if ((step < 0) | (step == 0) & (np.diff(high) < 0)).any():
        raise CorruptIndexError("its items are out of order")
    row, following = _row(directory, number), _row(directory, number + 1)
    first = (int(slot[0]), int(hashes[0]), int(high[0])) if len(items) else (page.first_slot, 0, 0)
    last = (int(slot[-1]), int(hashes[-1]), int(high[-1])) if len(items) else first
    if row is None or (first[0] == row[0] and first != row and row[1:] != (0, 0)) or first < row:
        raise CorruptIndexError("its directory names another first key")
    if following is not None and (last > following or (last == following and first != last)):
        raise CorruptIndexError("its last key belongs to the next page")


def _check_range(directory: PageDirectory, number: int, page: IndexPage, entry: IndexEntry) -> None:
    """Checks that pages follow each other from the first slot of the object to the last."""
    end = page.first_slot + len(page.entries)
    following = _row(directory, number + 1)
    if number == 0 and page.first_slot != entry.slot_from:
        raise CorruptIndexError(f"it starts with slot {page.first_slot}, the object with {entry.slot_from}")
    if following is None and end != entry.slot_end:
        raise CorruptIndexError(f"it ends with slot {end - 1}, the object with {entry.slot_end - 1}")
    if following is not None and following[0] not in (end, end - 1):
        raise CorruptIndexError(f"slots between it and slot {following[0]} are missing")


def _row(directory: PageDirectory, number: int) -> tuple[int, int, int] | None:
    if number >= len(directory):
        return None
    row = directory.rows[number]
    return int(row["slot"]), int(row["hash"]), int(row["hash_high"])


def _check_meta(objects: ObjectStore, store_id: str, entry: IndexEntry) -> None:
    found, meta = IndexObjectReader.from_tail(
        lambda start, end: objects.get_range(entry.key, start, end), entry.size_bytes
    )
    for name in (PAGES, DIRECTORY, FILTER, META):
        if found.sections.get(name) != entry.sections.get(name):
            raise CorruptIndexError(f"its meta and the manifest have different places for the {name} section")
    known = {
        "store_id": store_id, "layout": entry.layout, "slots": entry.slots, "items": entry.items,
        "begin_ms": entry.begin_ms, "first": entry.first, "next": entry.next,
        "slot_range": [entry.slot_from, entry.slot_end], "times_fall": entry.times_fall or None,
    }  # fmt: skip
    for name, value in known.items():
        if meta.get(name) != value:
            raise CorruptIndexError(f"its meta says {name} is {meta.get(name)}, the manifest {value}")


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
#: The id of a topic that the state object lacks, which is reported by itself.
_NO_TOPIC = -1
_Keys = NDArray[np.void]


class ItemSum(NamedTuple):
    """A count of items, and the sum of their fingerprints modulo 2^64."""

    items: int = 0
    total: int = 0

    def plus(self, other: ItemSum) -> ItemSum:
        """Returns the sum of both."""
        return ItemSum(self.items + other.items, (self.total + other.total) & 0xFFFFFFFFFFFFFFFF)


class FindingKind(Enum):
    """Kinds of findings, by what follows from one for later ones."""

    PLAIN = "plain"
    NARROW = "narrow"
    """Bounds in the manifest are too narrow: reported of the first segment that shows it."""
    MISSING = "missing"
    """Keys without items: reported of an object of which nothing else is known to be wrong."""


class PendingFinding(NamedTuple):
    """A finding on its way to those of the whole archive."""

    kind: FindingKind
    object: str
    text: str


@dataclass(frozen=True, slots=True)
class IndexRules:
    """The rules that every object and segment of one check is compared by."""

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
        """Returns what items say of their records."""
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
    """The contents of one object by the base of the segment that items point into, and what is wrong with it."""

    sums: Mapping[int, ItemSum]
    problems: tuple[str, ...]


def read_object(objects: ObjectStore, rules: IndexRules, entry: IndexEntry) -> ObjectRead:
    """Reads every page of an object; raises the object store's errors, but for an object that is not there."""
    sums: dict[int, ItemSum] = {}
    problems: list[str] = []
    try:
        for items in items_of_object(objects, rules.store_id, entry, problems.append, rules.layouts):
            keys = rules.keys_of_items(items, entry.begin_ms)
            bases = keys["offset"] // rules.segment_bytes * rules.segment_bytes
            for base in np.unique(bases).tolist():
                mine = keys[bases == base]
                sums[base] = sums.get(base, ItemSum()).plus(ItemSum(len(mine), _fingerprint(mine)))
    except (CorruptionError, ObjectNotFoundError) as error:
        problems.append(error.message)
    return ObjectRead(sums, tuple(problems))


class IndexCheck:
    """The index objects of one archive: :meth:`take` each as it was read, then :meth:`report` findings of segments."""

    def __init__(
        self, *, store_id: str, log: Sequence[LogEntry], index: Sequence[IndexEntry],
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
            store_id=store_id, segment_bytes=segment_bytes, indexed_to=head.indexed_to, topic_ids=topic_ids,
            unsaid=unsaid, lost=tuple(lost_index), layouts=dict(layouts),
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
        """Takes in the next object."""
        for text in read.problems:
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
        """Returns what the objects have of a segment, once all of them were taken in."""
        return IndexedSegment(
            self._sums.get(base, ItemSum()), tuple(self._over.get(base, ())), tuple(self._strays.get(base, ()))
        )  # fmt: skip

    def report(self, found: Iterable[PendingFinding]) -> None:
        """Reports what was found of the next segment."""
        narrow: set[str] = set()
        for kind, about, text in found:
            if kind is FindingKind.NARROW:
                narrow.add(about)
            if kind is FindingKind.NARROW and about in self._narrow:
                continue
            if kind is FindingKind.MISSING and self._findings.count_of(about):
                continue
            self._findings.add(about, text)
        self._narrow |= narrow


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """The items that the index objects have of one segment."""

    sum: ItemSum
    over: tuple[IndexEntry, ...]
    """Objects whose range reaches into it."""
    strays: tuple[IndexEntry, ...]
    """Objects whose range does not, while items of theirs point into it."""

    def compare(self, objects: ObjectStore, rules: IndexRules, whole: WholeSegment) -> list[PendingFinding]:
        """Compares the keys of the segment's records with the items that point into it."""
        comparison = _Comparison(objects, rules, self)
        comparison.compare(whole)
        return comparison.found


class _Comparison:
    """A comparison of one segment with what the index has of it."""

    def __init__(self, objects: ObjectStore, rules: IndexRules, indexed: IndexedSegment) -> None:
        self._objects = objects
        self._rules = rules
        self._indexed = indexed
        self.found: list[PendingFinding] = []

    def compare(self, whole: WholeSegment) -> None:
        wanted, physical = self._keys_of_records(whole)
        if self._indexed.sum != ItemSum(len(wanted), _fingerprint(wanted)):
            self._report(whole, wanted, physical)

    def _add(self, about: str, text: str, kind: FindingKind = FindingKind.PLAIN) -> None:
        self.found.append(PendingFinding(kind, about, text))

    def _keys_of_records(self, whole: WholeSegment) -> tuple[_Keys, NDArray[np.int64]]:
        """Returns the keys that must be indexed, and the physical offset of the record of each."""
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
                    self._add(entry.key, text, FindingKind.NARROW)

    def _report(self, whole: WholeSegment, wanted: _Keys, physical: NDArray[np.int64]) -> None:
        """Reports which keys have no item, and which items belong to no key."""
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
                pass  # reported when the objects were read
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
                self._add(entry.key, f"{int(mine.sum())} keys are not found, {first}", FindingKind.MISSING)
                physical = physical[~mine]
        for low, high in self._rules.lost:
            physical = physical[(physical < low) | (physical >= high)]
        if len(physical):
            first = f"the first of the record at {physical.min()}"
            self._add(whole.entry.key, f"{len(physical)} keys are in no index object, {first}")


def _fingerprint(keys: _Keys) -> int:
    """Returns an order-independent fingerprint of the keys: the sum of one number per key."""
    mixed = np.zeros(len(keys), np.uint64)
    for name, factor in zip(_NAMES, _FACTORS, strict=True):
        mixed ^= keys[name].astype(np.uint64)
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum(dtype=np.uint64))


def _places(ordered: _Keys, keys: _Keys) -> NDArray[np.int64]:
    """Returns where each key stands among those in order, by record and hashes; -1 for nowhere."""
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
    """Checks every byte of every object of an archive, and what they say of each other; see ``docs/checking.md``."""
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
        index.report(index.segment(whole.entry.base).compare(manifest.objects, index.rules, whole))

    cold.check_segments(hot, compare, lambda done, _: progress(len(cold.index) + done, total))
    cold.check_bucket()


def index_check(cold: ColdCheck, findings: Findings, layouts: Mapping[int, ItemLayout] = LAYOUTS) -> IndexCheck:
    """Returns the check of the index of an archive whose manifest was checked."""
    return IndexCheck(
        store_id=cold.manifest.keys.store_id, log=cold.log, index=cold.index, head=cold.head, lost_log=cold.lost_ranges,
        lost_index=cold.lost_index, topic_ids=cold.topic_ids, findings=findings, layouts=layouts,
    )  # fmt: skip
