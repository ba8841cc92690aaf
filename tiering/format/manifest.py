"""The manifest: what the archive holds. ``docs/formats/manifest.md`` has the protocol and every field.

The head is one section ``TLHEAD01``: watermarks and identity in its table, the newest entries and the references to
older ones in one zstd page of JSON. Pages of older entries are sections ``TLMPAGE1``, names that left the manifest
``TLGONE01``, declared gaps ``TLGAPS01``. Unknown keys are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tierlog.tiering.base.errors import ChecksumMismatchError, NotFoundError
from tierlog.tiering.base.types import TimeBounds, TimeRange
from tierlog.tiering.format.section import SectionRef, compress_json, decompress_json, encode_section, whole_section

MAGIC_HEAD = b"TLHEAD01"
MAGIC_PAGE = b"TLMPAGE1"
MAGIC_REMOVED = b"TLGONE01"
MAGIC_GAPS = b"TLGAPS01"
VERSION = 1
#: Commit ids a head remembers, so that a committer whose answer was lost can find out.
REMEMBERED_COMMITS = 32

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A whole small object of the archive."""

    key: str
    size_bytes: int
    crc32: int
    head_length: int
    """Bytes of its section header and table, enough to learn its pages."""

    def to_json(self) -> list[object]:
        return [self.key, self.size_bytes, self.crc32, self.head_length]

    def check(self, data: bytes) -> bytes:
        """The whole object's bytes, or :class:`ChecksumMismatchError`: another object may be sound in itself."""
        if len(data) != self.size_bytes or zlib.crc32(data) != self.crc32:
            raise ChecksumMismatchError("object differs from the manifest", path=self.key)
        return data

    @classmethod
    def from_json(cls, values: Sequence[Any] | None) -> ObjectRef | None:
        """Inverse of :meth:`to_json`; None stays None."""
        return None if values is None else cls(*values)


def _bounds_to_json(bounds: TimeBounds | None) -> list[int] | None:
    if bounds is None:
        return None
    return [bounds.min_store_ms, bounds.max_store_ms, bounds.min_born_ms, bounds.max_born_ms]


def _bounds_from_json(values: Sequence[int] | None) -> TimeBounds | None:
    return None if values is None else TimeBounds(*values)


def _sections_to_json(sections: Mapping[str, SectionRef]) -> Json:
    return {name: ref.to_json() for name, ref in sections.items()}


def _sections_from_json(values: Mapping[str, Sequence[int]]) -> dict[str, SectionRef]:
    return {name: SectionRef.from_json(ref) for name, ref in values.items()}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A published sorted segment."""

    key: str
    base: int
    segment_bytes: int
    size_bytes: int
    crc32: int
    raw_bytes: int
    records: int
    bounds: TimeBounds | None
    sections: dict[str, SectionRef]
    rows: ObjectRef | None
    added: int = 0
    """Manifest version that added it."""

    @property
    def first(self) -> int:
        """First physical offset covered."""
        return self.base

    @property
    def next(self) -> int:
        """Physical offset after the last covered."""
        return self.base + self.segment_bytes

    def to_json(self) -> Json:
        return {
            "key": self.key, "base": self.base, "segment_bytes": self.segment_bytes, "bytes": self.size_bytes,
            "crc32": self.crc32, "raw_bytes": self.raw_bytes, "records": self.records,
            "bounds": _bounds_to_json(self.bounds), "sections": _sections_to_json(self.sections),
            "rows": self.rows.to_json() if self.rows else None, "added": self.added,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> LogEntry:
        return cls(
            key=value["key"], base=value["base"], segment_bytes=value["segment_bytes"], size_bytes=value["bytes"],
            crc32=value["crc32"], raw_bytes=value["raw_bytes"], records=value["records"],
            bounds=_bounds_from_json(value["bounds"]), sections=_sections_from_json(value["sections"]),
            rows=ObjectRef.from_json(value["rows"]), added=value["added"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A published index object: items of records in ``[first, next)`` whose slots are in ``[slot_from, slot_end)``."""

    key: str
    level: int
    first: int
    next: int
    begin_ms: int
    size_bytes: int
    crc32: int
    items: int
    slots: int
    slot_from: int
    slot_end: int
    """``0`` and ``slots`` unless the object is a part of a merge that was cut by slot range."""
    layout: str
    bounds: TimeBounds | None
    sections: dict[str, SectionRef]
    added: int = 0
    times_fall: bool = False
    """Whether of some key a later item has an earlier second, as after a broker's clock stepped back."""

    def to_json(self) -> Json:
        falls = {"times_fall": True} if self.times_fall else {}
        return {
            "key": self.key, "level": self.level, "first": self.first, "next": self.next,
            "begin_ms": self.begin_ms, "bytes": self.size_bytes, "crc32": self.crc32, "items": self.items,
            "slots": self.slots, "slot_from": self.slot_from, "slot_end": self.slot_end, "layout": self.layout,
            "bounds": _bounds_to_json(self.bounds), "sections": _sections_to_json(self.sections), "added": self.added,
            **falls,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> IndexEntry:
        return cls(
            key=value["key"], level=value["level"], first=value["first"], next=value["next"],
            begin_ms=value["begin_ms"], size_bytes=value["bytes"], crc32=value["crc32"], items=value["items"],
            slots=value["slots"], slot_from=value["slot_from"], slot_end=value["slot_end"], layout=value["layout"],
            bounds=_bounds_from_json(value["bounds"]), sections=_sections_from_json(value["sections"]),
            added=value["added"], times_fall=value.get("times_fall", False),
        )  # fmt: skip


Entry = LogEntry | IndexEntry


@dataclass(frozen=True, slots=True)
class PageNode:
    """Reference to a manifest page: level 0 holds entries, level 1 holds references to level-0 pages."""

    ref: ObjectRef
    level: int
    count: int
    """Entries or references in the page itself."""
    first: int
    next: int
    bounds: TimeBounds | None
    rows: ObjectRef | None
    """Companion with the queue rows of all entries of a level-0 log page."""

    def to_json(self) -> Json:
        return {
            "ref": self.ref.to_json(), "level": self.level, "count": self.count, "first": self.first,
            "next": self.next, "bounds": _bounds_to_json(self.bounds),
            "rows": self.rows.to_json() if self.rows else None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> PageNode:
        ref = ObjectRef.from_json(value["ref"])
        assert ref is not None
        return cls(
            ref=ref, level=value["level"], count=value["count"], first=value["first"], next=value["next"],
            bounds=_bounds_from_json(value["bounds"]), rows=ObjectRef.from_json(value["rows"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemovedPage:
    """Reference to a page of names that left the manifest together."""

    ref: ObjectRef
    at_ms: int
    """When they left, on the server's clock."""
    count: int

    def to_json(self) -> list[object]:
        return [self.ref.to_json(), self.at_ms, self.count]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> RemovedPage:
        ref = ObjectRef.from_json(values[0])
        assert ref is not None
        return cls(ref, values[1], values[2])


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An erasure that is under way: hides records of a topic until all of them are fillers."""

    tombstone_id: str
    topic: str
    key_hash: str | None
    """Keyed hash of the key, hex, or of the first of several; None: every message of the topic."""
    salt: str
    """The key of that hash, hex."""
    from_ms: int | None
    to_ms: int | None
    """Store times ``[from_ms, to_ms)``; None: no bound."""
    end: int
    """Only records below this physical offset."""
    added: int = 0
    """Manifest version that added it."""
    other_hashes: tuple[str, ...] = ()
    """Keyed hashes of further keys, with the same salt."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """Keyed hashes of all its keys; empty: every message of the topic."""
        return () if self.key_hash is None else (self.key_hash, *self.other_hashes)


class TopicExpiry(NamedTuple):
    """Archived messages of the topic that were stored before ``below_ms`` count as expired."""

    topic_id: int
    below_ms: int


class LostRange(NamedTuple):
    """A range ``[first, next)`` of a broker's log that the broker had deleted before its follower came there."""

    first: int
    next: int
    from_ms: int
    to_ms: int
    """Its messages were stored in ``[from_ms, to_ms)``, by clocks that may be a minute wrong."""

    def __str__(self) -> str:
        return f"log [{self.first}, {self.next})"

    def may_be_in(self, stored: TimeRange) -> bool:
        """Whether messages of it may have been stored within a range."""
        return self.from_ms < stored.to_ms and stored.from_ms < self.to_ms

    def error(self) -> NotFoundError:
        """Returns why what lies there is not in an answer."""
        return NotFoundError(f"the broker had deleted its {self} before the follower came there")


class QueueGap(NamedTuple):
    """A declared gap: queue offsets ``[first_missing, next_present)`` were never given out and never will be."""

    topic_id: int
    queue_id: int
    first_missing: int
    next_present: int


@dataclass(frozen=True, slots=True)
class Head:
    """The root of the manifest at one version."""

    store_id: str
    volume_id: str
    open_id: str
    epoch: int
    version: int
    commit_id: str
    commit_ids: tuple[str, ...]
    archived_to: int
    indexed_to: int
    cold_min: int
    state: ObjectRef | None = None
    gaps: ObjectRef | None = None
    """The object with all declared gaps of queues."""
    log_gaps: tuple[tuple[int, int], ...] = ()
    """Physical ranges ``[first, next)`` in which no segment ever was, ascending."""
    log: tuple[LogEntry, ...] = ()
    index: tuple[IndexEntry, ...] = ()
    log_tree: tuple[PageNode, ...] = ()
    """References to level-1 pages, ascending."""
    index_tree: tuple[PageNode, ...] = ()
    removed: tuple[RemovedPage, ...] = ()
    """Names that left the manifest and are deleted after grace, oldest first."""
    tombstones: tuple[Tombstone, ...] = ()
    expired: tuple[TopicExpiry, ...] = ()
    lost: tuple[LostRange, ...] = ()
    """Ranges of a followed log that nobody has, ascending."""

    def beyond_gaps(self, offset: int) -> int:
        """Returns the physical offset at which the log goes on from ``offset``: where it lies in no gap of the log."""
        for first, following in self.log_gaps:
            if first <= offset < following:
                offset = following
        return offset

    def lost_in(self, stored: TimeRange | None) -> list[LostRange]:
        """Returns the lost ranges of which messages may have been stored within a range; None: whenever."""
        if stored is None:
            return list(self.lost)
        return [each for each in self.lost if each.may_be_in(stored)]

    def archived_of(self, log_end: int) -> int:
        """Below which offset a log that ends at ``log_end`` is archived: one that was taken over ends in a gap."""
        first = next((first for first, following in self.log_gaps if first <= log_end < following), self.archived_to)
        return min(first, log_end)

    @property
    def newest_ms(self) -> int:
        """Store time of the newest archived message, -1 if there is none."""
        parts = [node.bounds for node in self.log_tree] + [entry.bounds for entry in self.log]
        return max((bounds.max_store_ms for bounds in parts if bounds is not None), default=-1)

    def encode(self) -> bytes:
        body = {
            "log": [entry.to_json() for entry in self.log],
            "index": [entry.to_json() for entry in self.index],
            "log_tree": [node.to_json() for node in self.log_tree],
            "index_tree": [node.to_json() for node in self.index_tree],
            "log_gaps": self.log_gaps,
            "removed": [page.to_json() for page in self.removed],
            "tombstones": [asdict(tombstone) for tombstone in self.tombstones],
            "expired": self.expired,
            "lost": self.lost,
        }
        table = {
            "store_id": self.store_id, "volume_id": self.volume_id, "open_id": self.open_id,
            "epoch": self.epoch, "version": self.version, "commit_id": self.commit_id,
            "commit_ids": self.commit_ids, "archived_to": self.archived_to, "indexed_to": self.indexed_to,
            "cold_min": self.cold_min, "state": self.state.to_json() if self.state else None,
            "gaps": self.gaps.to_json() if self.gaps else None,
        }  # fmt: skip
        return encode_section(MAGIC_HEAD, VERSION, table, [(compress_json(body), {})])[0]

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> Head:
        """Inverse of :meth:`encode`; raises the errors of a section."""
        table, pages = whole_section(data, MAGIC_HEAD, VERSION, path=path)
        body = decompress_json(pages[0])
        return cls(
            store_id=table["store_id"], volume_id=table["volume_id"], open_id=table["open_id"], epoch=table["epoch"],
            version=table["version"], commit_id=table["commit_id"], commit_ids=tuple(table["commit_ids"]),
            archived_to=table["archived_to"], indexed_to=table["indexed_to"], cold_min=table["cold_min"],
            state=ObjectRef.from_json(table["state"]), gaps=ObjectRef.from_json(table["gaps"]),
            log_gaps=tuple((first, following) for first, following in body["log_gaps"]),
            log=tuple(LogEntry.from_json(entry) for entry in body["log"]),
            index=tuple(IndexEntry.from_json(entry) for entry in body["index"]),
            log_tree=tuple(PageNode.from_json(node) for node in body["log_tree"]),
            index_tree=tuple(PageNode.from_json(node) for node in body["index_tree"]),
            removed=tuple(RemovedPage.from_json(page) for page in body["removed"]),
            tombstones=tuple(tombstone_from_json(tombstone) for tombstone in body["tombstones"]),
            expired=tuple(TopicExpiry(*expiry) for expiry in body["expired"]),
            lost=tuple(LostRange(*each) for each in body.get("lost", ())),
        )  # fmt: skip


def tombstone_from_json(value: Json) -> Tombstone:
    """Inverse of ``dataclasses.asdict``; unknown keys are ignored."""
    return Tombstone(
        tombstone_id=value["tombstone_id"], topic=value["topic"], key_hash=value["key_hash"], salt=value["salt"],
        from_ms=value["from_ms"], to_ms=value["to_ms"], end=value["end"], added=value["added"],
        other_hashes=tuple(value.get("other_hashes", ())),
    )  # fmt: skip


def encode_page(kind: str, level: int, items: Sequence[Entry | PageNode]) -> bytes:
    """Returns a manifest page: entries of one kind (level 0) or references (level 1)."""
    table = {"kind": kind, "level": level, "count": len(items)}
    return encode_section(MAGIC_PAGE, VERSION, table, [(compress_json([item.to_json() for item in items]), {})])[0]


def decode_page(data: bytes, kind: str, level: int, *, path: str) -> list[Any]:
    """Returns the entries or references of a page."""
    _, pages = whole_section(data, MAGIC_PAGE, VERSION, path=path)
    decode = PageNode.from_json if level else {"log": LogEntry.from_json, "index": IndexEntry.from_json}[kind]
    return [decode(value) for value in decompress_json(pages[0])]


def encode_removed(keys: Sequence[str]) -> bytes:
    """Returns a page of names that left the manifest."""
    return encode_section(MAGIC_REMOVED, VERSION, {"count": len(keys)}, [(compress_json(list(keys)), {})])[0]


def decode_removed(data: bytes, *, path: str) -> list[str]:
    """Returns the names of a page."""
    _, pages = whole_section(data, MAGIC_REMOVED, VERSION, path=path)
    names: list[str] = decompress_json(pages[0])
    return names


def encode_gaps(gaps: Sequence[QueueGap]) -> bytes:
    """Returns the object with all declared gaps of a store's queues."""
    return encode_section(MAGIC_GAPS, VERSION, {"count": len(gaps)}, [(compress_json(gaps), {})])[0]


def decode_gaps(data: bytes, *, path: str) -> tuple[QueueGap, ...]:
    """Inverse of :func:`encode_gaps`."""
    _, pages = whole_section(data, MAGIC_GAPS, VERSION, path=path)
    return tuple(QueueGap(*gap) for gap in decompress_json(pages[0]))
