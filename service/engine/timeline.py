"""The store at a glance: segments and index files of both tiers as blocks along the log, few enough to draw.

What the archive names is a tree. Its upper levels say where their entries begin and end and how many there are, so a
wide view of a large archive is drawn from them, and entries are read only where the view is narrow enough: however
large the archive, a view reads at most :data:`MAX_PAGES` pages of each tree, and those stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tierlog.service.engine.catalogue import FileInfo
from tierlog.tiering.base.errors import CorruptionError, NotFoundError, UnavailableError
from tierlog.tiering.base.types import EVER, Tier, TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, PageNode
from tierlog.tiering.hot.store import HotStore

#: Pages of the manifest that one view reads at most, each of up to 256 entries.
MAX_PAGES = 64
DEFAULT_BLOCKS = 400
MAX_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class Block:
    """A file, or ``count`` of one state that follow each other. Offsets are half-open, times inclusive ms."""

    kind: str
    tier: Tier
    state: str
    level: int | None
    """Number of merges behind an index object; None for other files, and for several of unknown levels."""
    name: str | None
    """None for more than one file."""
    count: int
    first_offset: int
    next_offset: int
    bytes: int | None
    """None where only the upper levels of the manifest were read."""
    min_store_ms: int | None
    max_store_ms: int | None
    min_born_ms: int | None
    max_born_ms: int | None
    """None of a hot segment: its born times are known once it is archived."""
    records: int | None


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The part of the store that is looked at, and the most blocks in a row."""

    times: TimeRange = EVER
    first_offset: int = 0
    next_offset: int = (1 << 63) - 1
    blocks: int = DEFAULT_BLOCKS
    known_version: int | None = None
    """The version of the manifest whose archived blocks the caller has for this very view."""
    axis: TimeAxis = TimeAxis.STORE
    """The time that the range is of."""

    def shows(self, first: int, following: int, times: tuple[int | None, int | None]) -> bool:
        """Whether a file reaches into the view; one without times on the axis does."""
        least, most = times
        if not (first < self.next_offset and self.first_offset < following):
            return False
        return least is None or most is None or self.times.overlaps(least, most)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The blocks of a view, and the whole store's marks."""

    store_id: str
    log_begin: int
    """The border: where the hot tier begins."""
    log_end: int
    archived_to: int | None
    indexed_to: int | None
    cold_min: int | None
    manifest_version: int | None
    time: TimeAxis
    """The time that the next two are of."""
    from_ms: int | None
    """Oldest time of either tier, as far as it is known."""
    to_ms: int | None
    border_ms: int | None
    """Store time of the first hot record; None on the axis of born times, where the border is no moment."""
    hot: list[Block]
    cold: list[Block] | None
    """None: as at the version that is known."""
    cold_error: str | None
    """The reason why archived blocks may be missing."""

    def to_json(self) -> dict[str, Any]:
        """Returns the answer of ``GET /v1/timeline``."""
        return asdict(self)


def timeline_of(
    store_id: str, hot: HotStore, local: Sequence[FileInfo], manifest: ManifestStore | None, view: TimelineView
) -> Timeline:
    """Builds the timeline of a store with these local files; parts the archive cannot answer are left out and named."""
    head = None if manifest is None else manifest.head
    cold: list[Block] | None = []
    error = None
    if manifest is not None and head is not None:
        if view.known_version == head.version:
            cold = None
        else:
            try:
                cold = cold_blocks(manifest, head, view)
            except (UnavailableError, NotFoundError, CorruptionError) as problem:
                error = str(problem)
    from_ms, to_ms = _ends(hot, local, head, view.axis)
    return Timeline(
        store_id=store_id, log_begin=hot.border, log_end=hot.log.end, archived_to=head.archived_to if head else None,
        indexed_to=head.indexed_to if head else None, cold_min=head.cold_min if head else None,
        manifest_version=head.version if head else None, time=view.axis, from_ms=from_ms, to_ms=to_ms,
        border_ms=_border_ms(local) if view.axis is TimeAxis.STORE else None, hot=hot_blocks(local, view),
        cold=cold, cold_error=error,
    )  # fmt: skip


def _border_ms(local: Sequence[FileInfo]) -> int | None:
    return next((file.min_store_ms for file in local if file.kind == "segment"), None)


def _ends(hot: HotStore, local: Sequence[FileInfo], head: Head | None, axis: TimeAxis) -> tuple[int | None, int | None]:
    """Returns the oldest and the newest time of the whole store, as far as its files say."""
    bounds = [part.on(axis) for part in _root_bounds(head)]
    if axis is TimeAxis.STORE:
        border_ms = _border_ms(local)
        oldest = [least for least, _ in bounds] + ([] if border_ms is None else [border_ms])
        return min(oldest, default=None), hot.last_store_ms if oldest else None
    bounds += [
        (file.min_born_ms, file.max_born_ms)
        for file in local
        if file.min_born_ms is not None and file.max_born_ms is not None
    ]
    return min((least for least, _ in bounds), default=None), max((most for _, most in bounds), default=None)


def hot_blocks(files: Sequence[FileInfo], view: TimelineView) -> list[Block]:
    """Returns local files, each kind as a row."""
    blocks = [_local_block(file) for file in files]
    blocks = [
        block for block in blocks if view.shows(block.first_offset, block.next_offset, _times_of(block, view.axis))
    ]
    kinds = dict.fromkeys(block.kind for block in blocks)
    return [found for kind in kinds for found in _joined([b for b in blocks if b.kind == kind], view.blocks)]


def cold_blocks(manifest: ManifestStore, head: Head, view: TimelineView) -> list[Block]:
    """Returns archived segments and index objects. Raises the errors of reading the manifest's pages."""
    reader = manifest.reader()
    segments = _deep_enough(reader, (*head.log_tree, *head.log), view, manifest.log_page)
    objects = _deep_enough(reader, (*head.index_tree, *head.index), view, manifest.index_page)
    return [
        *_joined([_cold_block(part, "segment") for part in segments], view.blocks),
        *_joined(sorted((_cold_block(part, "index") for part in objects), key=_place), view.blocks),
    ]


_Part = PageNode | LogEntry | IndexEntry
_Read = Callable[[ArchiveReader, PageNode], Sequence[Any]]


def _deep_enough(reader: ArchiveReader, parts: Iterable[_Part], view: TimelineView, read: _Read) -> Sequence[_Part]:
    """Returns what the view shows of a tree, level by level as long as the next takes few enough pages."""

    def shown(items: Iterable[_Part]) -> Iterator[_Part]:
        for item in items:
            if view.shows(item.first, item.next, _on(item.bounds, view.axis)):
                yield item

    found, left = list(shown(parts)), MAX_PAGES
    while nodes := [item for item in found if isinstance(item, PageNode)]:
        if len(nodes) > left:
            break
        left -= len(nodes)
        deeper: list[_Part] = []
        for item in found:
            if isinstance(item, PageNode):
                deeper += shown(read(reader, item))
            else:
                deeper.append(item)
        found = deeper
    return found


def _local_block(file: FileInfo) -> Block:
    return Block(
        kind=file.kind, tier=file.tier, state=file.state, level=None, name=file.name, count=1,
        first_offset=file.first_offset, next_offset=file.next_offset, bytes=file.bytes, min_store_ms=file.min_store_ms,
        max_store_ms=file.max_store_ms, min_born_ms=file.min_born_ms, max_born_ms=file.max_born_ms,
        records=file.records,
    )  # fmt: skip


def _cold_block(part: _Part, kind: str) -> Block:
    """Makes the block of an entry, or of a page of entries that are not read: how they are in detail is not known."""
    least, most = _on(part.bounds, TimeAxis.STORE)
    first_born, last_born = _on(part.bounds, TimeAxis.BORN)
    block = Block(
        kind=kind, tier=Tier.COLD, state="published", level=None, name=None, count=1, first_offset=part.first,
        next_offset=part.next, bytes=None, min_store_ms=least, max_store_ms=most, min_born_ms=first_born,
        max_born_ms=last_born, records=None,
    )  # fmt: skip
    if isinstance(part, PageNode):
        return replace(block, count=part.count * (256 if part.level else 1))  # an upper page counts pages, mostly full
    if isinstance(part, IndexEntry):
        return replace(block, level=part.level, name=part.key, bytes=part.size_bytes, records=part.items)
    return replace(block, name=part.key, bytes=part.size_bytes, records=part.records)


def _joined(blocks: list[Block], most: int) -> list[Block]:
    """Joins neighbours of one state to one block, so many together that about ``most`` are left."""
    if len(blocks) <= most:
        return blocks
    together = -(-len(blocks) // most)
    found: list[Block] = []
    held = 0
    for block in blocks:
        last = found[-1] if found else None
        if last is not None and held < together and (last.state, last.level) == (block.state, block.level):
            found[-1] = _both(last, block)
            held += 1
        else:
            found.append(block)
            held = 1
    return found


def _both(one: Block, other: Block) -> Block:
    return replace(
        one, name=None, count=one.count + other.count, next_offset=max(one.next_offset, other.next_offset),
        bytes=_sum(one.bytes, other.bytes), records=_sum(one.records, other.records),
        min_store_ms=_least(one.min_store_ms, other.min_store_ms),
        max_store_ms=_most(one.max_store_ms, other.max_store_ms),
        min_born_ms=_least(one.min_born_ms, other.min_born_ms),
        max_born_ms=_most(one.max_born_ms, other.max_born_ms),
    )  # fmt: skip


def _least(*times: int | None) -> int | None:
    return min((ms for ms in times if ms is not None), default=None)


def _most(*times: int | None) -> int | None:
    return max((ms for ms in times if ms is not None), default=None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _place(block: Block) -> tuple[int, int]:
    return block.first_offset, block.next_offset


def _times_of(block: Block, axis: TimeAxis) -> tuple[int | None, int | None]:
    if axis is TimeAxis.STORE:
        return block.min_store_ms, block.max_store_ms
    return block.min_born_ms, block.max_born_ms


def _on(bounds: TimeBounds | None, axis: TimeAxis) -> tuple[int | None, int | None]:
    return (None, None) if bounds is None else bounds.on(axis)


def _root_bounds(head: Head | None) -> list[TimeBounds]:
    if head is None:
        return []
    parts: Sequence[PageNode | LogEntry] = (*head.log_tree, *head.log)
    return [part.bounds for part in parts if part.bounds is not None]
