"""What is there: topics, segments and index files of both tiers, as commands and requests list them."""

from __future__ import annotations

from dataclasses import dataclass

from index.classic.format import file_bytes
from index.classic.index import ClassicIndex
from index.local_index import LocalIndex
from tiering.cold.manifest_store import ManifestStore
from tiering.format.manifest import Head
from tiering.hot.store import HotStore
from tiering.paths import base_offset_name
from tiering.types import EVER, Tier, TimeAxis, TimeBounds


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue; ``min_offset`` counts both tiers, ``max_offset`` is the next message's."""

    queue_id: int
    min_offset: int
    max_offset: int
    gaps: list[tuple[int, int]] | None
    """Half-open ranges that a restore left out; None while the archive, which knows them, does not answer."""
    store_id: str | None = None
    """Where it is told of the queues of several stores."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic with its queues."""

    name: str
    topic_id: int
    queues: list[QueueInfo]
    archive: bool = True
    cold_retention_ms: int | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A segment or an index file in one tier. Physical offsets are half-open; times are inclusive ms."""

    kind: str
    name: str
    tier: Tier
    state: str
    first_offset: int
    next_offset: int
    bytes: int
    min_store_ms: int | None
    max_store_ms: int | None
    records: int | None
    """Records of a segment, items of an index file."""


def local_files(hot: HotStore, index: LocalIndex, manifest: ManifestStore | None) -> list[FileInfo]:
    """Segments from the border up and index files in their states."""
    archived_to = manifest.head.archived_to if manifest and manifest.head else 0
    segments = [segment for segment in hot.log.segments() if segment.base_offset >= hot.border]
    found = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        state = "archived" if segment.base_offset < archived_to else "rolled"
        next_ms = hot.first_store_ms(following) if following else None
        first_ms = hot.first_store_ms(segment)
        found.append(
            FileInfo(
                "segment", base_offset_name(segment.base_offset), Tier.HOT, state if following else "active",
                segment.base_offset, min(segment.end, hot.log.end), len(segment.data), first_ms,
                None if first_ms is None else next_ms or hot.last_store_ms, None,
            )
        )  # fmt: skip
    for entry in index.files():
        minimum, maximum = _store_bounds(entry.bounds)
        found.append(
            FileInfo(
                "index", entry.name, Tier.HOT, entry.state.value, entry.first,
                index.next_offset() if entry.next is None else entry.next, entry.bytes, minimum, maximum, entry.items,
            )
        )  # fmt: skip
    return found


def classic_files(classic: ClassicIndex) -> list[FileInfo]:
    """Files of RocketMQ's own index; they tell where their last record begins, not where it ends."""
    found = []
    for file in classic.files():
        header, state = file.header, "full" if file.is_full else "writing"
        found.append(
            FileInfo(
                "classic index", file.path.name, Tier.HOT, state, header.begin_offset, header.end_offset + 1,
                file_bytes(file.slots, file.items), header.begin_ms, header.end_ms, file.item_count,
            )
        )  # fmt: skip
    return found


def cold_files(manifest: ManifestStore, head: Head) -> list[FileInfo]:
    """Sorted segments and index objects of the archive."""
    reader = manifest.reader(scan=True)
    found = []
    for entry in manifest.log_entries(reader, head):
        minimum, maximum = _store_bounds(entry.bounds)
        found.append(
            FileInfo(
                "segment", entry.key, Tier.COLD, "published", entry.first, entry.next, entry.size_bytes,
                minimum, maximum, entry.records,
            )
        )  # fmt: skip
    for item in manifest.index_entries(reader, head, TimeAxis.STORE, EVER):
        minimum, maximum = _store_bounds(item.bounds)
        found.append(
            FileInfo(
                "index", item.key, Tier.COLD, "published", item.first, item.next, item.size_bytes,
                minimum, maximum, item.items,
            )
        )  # fmt: skip
    return found


def _store_bounds(bounds: TimeBounds | None) -> tuple[int | None, int | None]:
    return (None, None) if bounds is None else bounds.on(TimeAxis.STORE)
