"""The declared gaps of a store's queues: ranges of offsets that a restore left out and nobody will ever get."""

from __future__ import annotations

from collections import defaultdict

from tiering.cold.manifest_store import ManifestStore
from tiering.errors import StoreError
from tiering.format.manifest import Head, QueueGap
from tiering.hot.topics import TopicRegistry

_ByQueue = dict[tuple[int, int], list[QueueGap]]


class DeclaredGaps:
    """What a head declares, in memory: the archive is asked once a change. Thread safe."""

    def __init__(self, manifest: ManifestStore | None) -> None:
        self._manifest = manifest
        self._known: tuple[str | None, _ByQueue] = (None, {})

    def of(self, head: Head, topic_id: int, queue_id: int) -> list[QueueGap]:
        """The gaps of one queue, ascending; the object store's error if they have to be read and cannot be."""
        key = head.gaps.key if head.gaps else None
        known, by_queue = self._known
        if known != key and self._manifest is not None:
            found: _ByQueue = defaultdict(list)
            for gap in sorted(self._manifest.gaps(self._manifest.reader(), head)):
                found[gap.topic_id, gap.queue_id].append(gap)
            by_queue = dict(found)
            self._known = key, by_queue
        return by_queue.get((topic_id, queue_id), [])

    def end_of_gap(self, head: Head | None, topic_id: int, queue_id: int, offset: int) -> int | None:
        """The first offset after the gap that ``offset`` lies in, None if it lies in none."""
        for gap in self.of(head, topic_id, queue_id) if head else ():
            if gap.first_missing <= offset < gap.next_present:
                return gap.next_present
        return None

    def missing(self, topics: TopicRegistry, topic: str, queue_id: int, start: int, end: int) -> int:
        """How many of the offsets ``[start, end)`` lie in gaps; 0 while the archive cannot say."""
        found, head = topics.find(topic), self._manifest.head if self._manifest else None
        if found is None or head is None:
            return 0
        try:
            gaps = self.of(head, found.topic_id, queue_id)
        except StoreError:
            return 0
        overlaps = (min(end, gap.next_present) - max(start, gap.first_missing) for gap in gaps)
        return sum(overlap for overlap in overlaps if overlap > 0)
