"""Puts rolled segments into the archive: sort, upload, verify, and only then name them in the manifest.

Killed before the commit: objects that nobody names, which only cost their space; the segment is archived again under
new names. Killed after it: the watermark says so. Nothing is removed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.cold.publishing import put_verified, verify_object
from tiering.cold.segment.scan import Removal, scan_segment
from tiering.cold.segment.writer import SegmentWriter
from tiering.erasing.mask import hidden_rows
from tiering.erasing.tombstones import Erasures
from tiering.errors import StoreError, UnavailableError
from tiering.format.manifest import Head, LogEntry, ObjectRef, Tombstone
from tiering.format.queue_rows import encode_queue_rows
from tiering.hot.commit_log import Segment
from tiering.hot.deleting import DeletedTopics
from tiering.hot.store import HotStore
from tiering.hot.topics import Topic
from tiering.kernels.scan import TopicTable
from tiering.randomness import Randomness
from tiering.store_state import StateWriter


class Archiver:
    """Archives one store's segments in ascending order; used by one thread at a time, after a claim."""

    def __init__(
        self, hot: HotStore, manifest: ManifestStore, randomness: Randomness, state: StateWriter
    ) -> None:  # fmt: skip
        self._deleted = DeletedTopics(hot).current
        self._hot = hot
        self._manifest = manifest
        self._randomness = randomness
        self._state = state

    def waiting(self, head: Head) -> list[Segment]:
        """Rolled segments that are not published yet, ascending."""
        last = self._hot.log.last_base
        return [segment for segment in self._hot.log.segments() if head.archived_to <= segment.base_offset < last]

    def archive(self, segment: Segment, head: Head) -> Head:
        """Publish one rolled segment, the first that ``head`` lacks; returns the head that names it.

        Nothing that a hold forbids is published once the hold is in force: if one began meanwhile, on a topic of which
        messages were left out, the segment is stored anew.
        """
        if segment.base_offset != head.archived_to:
            raise StoreError(f"segment {segment.base_offset} is not the next to archive ({head.archived_to})")
        if self._hot.dispatch() < segment.end:
            raise UnavailableError(f"segment {segment.base_offset} is not dispatched yet")
        while True:
            begun_s = self._manifest.begin_upload()
            topics = self._hot.topics.all()
            stones = (*head.tombstones, *self._deleted())
            left_out = {stone.topic for stone in stones} - {topic.name for topic in topics if topic.hold}
            entry = upload_segment(self._manifest, self._randomness, topics, segment, head.epoch, stones)
            with self._state.publishing:
                if any(topic.hold and topic.name in left_out for topic in self._hot.topics.all()):
                    continue
                state = self._state.with_topics(self._manifest.head or head)
                change = ManifestChange(log=(entry,), archived_to=segment.end, state=state, begun_s=begun_s)
                return self._manifest.commit(change, head)


def upload_segment(
    manifest: ManifestStore,
    randomness: Randomness,
    topics: Sequence[Topic],
    segment: Segment,
    epoch: int,
    tombstones: Sequence[Tombstone] = (),
) -> LogEntry:
    """Store one closed segment under names of this attempt, verified; whoever commits the entry names it.

    Every topic in it must be among ``topics``; of those that are not to be archived, fillers are stored, likewise in
    the place of records that the tombstones hide, unless their topic is on hold.
    """
    keys, objects = manifest.keys, manifest.objects
    ids = np.array([topic.topic_id for topic in topics], np.int32)
    left_out = {topic.topic_id for topic in topics if not topic.archive}
    names = [topic.name for topic in topics]
    scanned = scan_segment(
        segment.data, segment.base_offset, TopicTable(names), _removal(topics, names, segment, tombstones)
    )
    writer = SegmentWriter(scanned, ids, manifest.options, left_out=left_out)
    key = keys.segment(segment.base_offset, epoch, randomness.token_hex(4))
    objects.upload(key, writer.pieces())
    summary = writer.summary()
    verify_object(objects, key, summary.size_bytes, summary.crc32)
    rows = None
    if len(summary.queue_rows):
        rows_key = keys.queue_rows(segment.base_offset, epoch, randomness.token_hex(4))
        data, section = encode_queue_rows(summary.queue_rows, rows_key)
        rows = ObjectRef(rows_key, len(data), put_verified(objects, rows_key, data), section.head_length)
    return LogEntry(
        key, segment.base_offset, len(segment.data), summary.size_bytes, summary.crc32, summary.raw_bytes,
        summary.records, summary.bounds, summary.sections, rows,
    )  # fmt: skip


def _removal(
    topics: Sequence[Topic], names: Sequence[str], segment: Segment, tombstones: Sequence[Tombstone]
) -> Removal | None:
    shown = {topic.name for topic in topics if not topic.hold}
    erased = Erasures(stone for stone in tombstones if stone.end > segment.base_offset and stone.topic in shown)
    return partial(hidden_rows, topic_names=names, erased=erased) if erased else None
