"""The manifest: what the archive holds. ``docs/formats/manifest.md`` has the protocol and every field.

The head is one section ``TLHEAD01``: watermarks and identity in its table, the newest entries and the references to
older ones in one zstd page of JSON. Pages of older entries are sections ``TLMPAGE1``. Unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tiering.format.section import SectionRef, compress_json, decompress_json, encode_section, whole_section
from tiering.types import TimeBounds

MAGIC_HEAD = b"TLHEAD01"
MAGIC_PAGE = b"TLMPAGE1"
MAGIC_STATE = b"TLSTATE1"
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
        """Compact form."""
        return [self.key, self.size_bytes, self.crc32, self.head_length]

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
        """JSON form."""
        return {
            "key": self.key, "base": self.base, "segment_bytes": self.segment_bytes, "bytes": self.size_bytes,
            "crc32": self.crc32, "raw_bytes": self.raw_bytes, "records": self.records,
            "bounds": _bounds_to_json(self.bounds), "sections": _sections_to_json(self.sections),
            "rows": self.rows.to_json() if self.rows else None, "added": self.added,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> LogEntry:
        """Inverse of :meth:`to_json`."""
        return cls(
            value["key"], value["base"], value["segment_bytes"], value["bytes"], value["crc32"],
            value["raw_bytes"], value["records"], _bounds_from_json(value["bounds"]),
            _sections_from_json(value["sections"]), ObjectRef.from_json(value["rows"]), value["added"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A published index object covering items of records in ``[first, next)``."""

    key: str
    level: int
    first: int
    next: int
    begin_ms: int
    size_bytes: int
    crc32: int
    items: int
    slots: int
    layout: str
    bounds: TimeBounds | None
    sections: dict[str, SectionRef]
    added: int = 0

    def to_json(self) -> Json:
        """JSON form."""
        return {
            "key": self.key, "level": self.level, "first": self.first, "next": self.next,
            "begin_ms": self.begin_ms, "bytes": self.size_bytes, "crc32": self.crc32, "items": self.items,
            "slots": self.slots, "layout": self.layout, "bounds": _bounds_to_json(self.bounds),
            "sections": _sections_to_json(self.sections), "added": self.added,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> IndexEntry:
        """Inverse of :meth:`to_json`."""
        return cls(
            value["key"], value["level"], value["first"], value["next"], value["begin_ms"], value["bytes"],
            value["crc32"], value["items"], value["slots"], value["layout"], _bounds_from_json(value["bounds"]),
            _sections_from_json(value["sections"]), value["added"],
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
        """JSON form."""
        return {
            "ref": self.ref.to_json(), "level": self.level, "count": self.count, "first": self.first,
            "next": self.next, "bounds": _bounds_to_json(self.bounds),
            "rows": self.rows.to_json() if self.rows else None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> PageNode:
        """Inverse of :meth:`to_json`."""
        ref = ObjectRef.from_json(value["ref"])
        assert ref is not None
        return cls(
            ref, value["level"], value["count"], value["first"], value["next"],
            _bounds_from_json(value["bounds"]), ObjectRef.from_json(value["rows"]),
        )  # fmt: skip


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
    gaps: tuple[tuple[int, int, int, int], ...] = ()
    """Declared gaps: (topic id, queue id, first missing queue offset, next present one)."""
    log: tuple[LogEntry, ...] = ()
    index: tuple[IndexEntry, ...] = ()
    log_tree: tuple[PageNode, ...] = ()
    """References to level-1 pages, ascending."""
    index_tree: tuple[PageNode, ...] = ()
    removed: tuple[tuple[str, int], ...] = ()
    """Objects that left the manifest, with the server time they left at."""

    def encode(self) -> bytes:
        """The head object."""
        body = {
            "log": [entry.to_json() for entry in self.log],
            "index": [entry.to_json() for entry in self.index],
            "log_tree": [node.to_json() for node in self.log_tree],
            "index_tree": [node.to_json() for node in self.index_tree],
            "gaps": self.gaps,
            "removed": self.removed,
        }
        table = {
            "store_id": self.store_id, "volume_id": self.volume_id, "open_id": self.open_id,
            "epoch": self.epoch, "version": self.version, "commit_id": self.commit_id,
            "commit_ids": self.commit_ids, "archived_to": self.archived_to, "indexed_to": self.indexed_to,
            "cold_min": self.cold_min, "state": self.state.to_json() if self.state else None,
        }  # fmt: skip
        return encode_section(MAGIC_HEAD, VERSION, table, [(compress_json(body), {})])[0]

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> Head:
        """Inverse of :meth:`encode`; raises the errors of a section."""
        table, pages = whole_section(data, MAGIC_HEAD, VERSION, path=path)
        body = decompress_json(pages[0])
        return cls(
            table["store_id"], table["volume_id"], table["open_id"], table["epoch"], table["version"],
            table["commit_id"], tuple(table["commit_ids"]), table["archived_to"], table["indexed_to"],
            table["cold_min"], ObjectRef.from_json(table["state"]), tuple(tuple(gap) for gap in body["gaps"]),
            tuple(LogEntry.from_json(entry) for entry in body["log"]),
            tuple(IndexEntry.from_json(entry) for entry in body["index"]),
            tuple(PageNode.from_json(node) for node in body["log_tree"]),
            tuple(PageNode.from_json(node) for node in body["index_tree"]),
            tuple((key, at) for key, at in body["removed"]),
        )  # fmt: skip


def encode_page(kind: str, level: int, items: Sequence[Entry | PageNode]) -> bytes:
    """A manifest page: entries of one kind (level 0) or references (level 1)."""
    table = {"kind": kind, "level": level, "count": len(items)}
    return encode_section(MAGIC_PAGE, VERSION, table, [(compress_json([item.to_json() for item in items]), {})])[0]


def decode_page(data: bytes, kind: str, level: int, *, path: str) -> list[Any]:
    """The entries or references of a page."""
    _, pages = whole_section(data, MAGIC_PAGE, VERSION, path=path)
    decode = PageNode.from_json if level else {"log": LogEntry.from_json, "index": IndexEntry.from_json}[kind]
    return [decode(value) for value in decompress_json(pages[0])]


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the archive remembers of one topic."""

    topic_id: int
    name: str
    queues: int


@dataclass(frozen=True, slots=True)
class StoreState:
    """The ``state`` object: what a new volume, or a reader without one, must know beyond the records."""

    topics: tuple[TopicState, ...] = field(default=())

    def encode(self) -> bytes:
        """The state object."""
        return encode_section(MAGIC_STATE, VERSION, {"topics": [asdict(topic) for topic in self.topics]})[0]

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> StoreState:
        """Inverse of :meth:`encode`."""
        table, _ = whole_section(data, MAGIC_STATE, VERSION, path=path)
        return cls(tuple(TopicState(topic["topic_id"], topic["name"], topic["queues"]) for topic in table["topics"]))
