"""Lists of topics, segments and index files of both tiers, as commands and requests show them."""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.index.local.local_index import LocalIndex
from tierlog.index.rocketmq.classic_format import file_bytes
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.tiering.base.paths import base_offset_name
from tierlog.tiering.base.types import EVER, Tier, TimeAxis, TimeBounds
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.store import HotStore

_TIMES = ("min_store_ms", "max_store_ms", "min_born_ms", "max_born_ms")


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue; ``min_offset`` counts both tiers, ``max_offset`` is the next message's."""

    queue_id: int
    min_offset: int
    max_offset: int
    gaps: list[tuple[int, int]] | None
    """Half-open ranges that a restore left out; None while the archive, which knows them, does not answer."""
    messages: int | None
    """The messages that are there in both tiers; None while the archive does not tell where it begins, or the gaps.

    Erased ones count, as their offsets stay theirs and nothing says how many of them a range has.
    """
    store_id: str | None = None
    """The queue's store, in an answer about several stores."""
    generation: int | None = None
    """The number of the topic's generation, of a topic that was made again in the queue's store."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic with its queues."""

    name: str
    topic_id: int
    queues: list[QueueInfo]
    archive: bool = True
    cold_retention_ms: int | None = None
    hold: bool = False

    @property
    def messages(self) -> int | None:
        """The messages of all queues; None if that of one is not known."""
        known = [queue.messages for queue in self.queues if queue.messages is not None]
        return sum(known) if len(known) == len(self.queues) else None


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
    min_born_ms: int | None = None
    max_born_ms: int | None = None
    """None too for a hot segment: its born times are known once it is archived."""


def local_files(hot: HotStore, index: LocalIndex, manifest: ManifestStore | None) -> list[FileInfo]:
    """Lists segments from the border up and index files in their states."""
    archived_to = manifest.head.archived_to if manifest and manifest.head else 0
    segments = [segment for segment in hot.log.segments() if segment.base_offset >= hot.border]
    found = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        state = "archived" if segment.base_offset < archived_to else "rolled"
        next_ms = hot.first_store_ms(following) if following else None
        first_ms = hot.first_store_ms(segment)
        found.append(
            FileInfo(
                kind="segment",
                name=base_offset_name(segment.base_offset),
                tier=Tier.HOT,
                state=state if following else "active",
                first_offset=segment.base_offset,
                next_offset=min(segment.end, hot.log.end),
                bytes=len(segment.data),
                min_store_ms=first_ms,
                max_store_ms=None if first_ms is None else next_ms or hot.last_store_ms,
                records=None,
            )
        )
    found += [
        FileInfo(
            kind="index",
            name=entry.name,
            tier=Tier.HOT,
            state=entry.state.value,
            first_offset=entry.first,
            next_offset=index.next_offset() if entry.next is None else entry.next,
            bytes=entry.bytes,
            records=entry.items,
            **_times(entry.bounds),
        )
        for entry in index.files()
    ]
    return found


def classic_files(classic: ClassicIndex) -> list[FileInfo]:
    """Lists files of RocketMQ's own index, which record where their last record begins, not where it ends."""
    found = []
    for file in classic.files():
        header, state = file.header, "full" if file.is_full else "writing"
        found.append(
            FileInfo(
                kind="classic index",
                name=file.path.name,
                tier=Tier.HOT,
                state=state,
                first_offset=header.begin_offset,
                next_offset=header.end_offset + 1,
                bytes=file_bytes(file.slots, file.items),
                min_store_ms=header.begin_ms,
                max_store_ms=header.end_ms,
                records=file.item_count,
            )
        )
    return found


def cold_files(manifest: ManifestStore, head: Head) -> list[FileInfo]:
    """Lists sorted segments and index objects of the archive."""
    reader = manifest.reader(scan=True)
    segments = [
        FileInfo(
            kind="segment",
            name=entry.key,
            tier=Tier.COLD,
            state="published",
            first_offset=entry.first,
            next_offset=entry.next,
            bytes=entry.size_bytes,
            records=entry.records,
            **_times(entry.bounds),
        )
        for entry in manifest.log_entries(reader, head)
    ]
    objects = [
        FileInfo(
            kind="index",
            name=item.key,
            tier=Tier.COLD,
            state="published",
            first_offset=item.first,
            next_offset=item.next,
            bytes=item.size_bytes,
            records=item.items,
            **_times(item.bounds),
        )
        for item in manifest.index_entries(reader, head, TimeAxis.STORE, EVER)
    ]
    return segments + objects


def _times(bounds: TimeBounds | None) -> dict[str, int | None]:
    """Returns the times of a file, by their names."""
    return dict.fromkeys(_TIMES) if bounds is None else {name: getattr(bounds, name) for name in _TIMES}
