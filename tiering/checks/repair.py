"""Restores objects of an archive from others that say the same: queue rows from directories, segments from hot copies.

Killed before a commit, or between: objects that nobody names, or some repairs done and the rest not. Queue rows that
come out byte for byte as they were are stored under their old name: whoever reads it gets what the manifest names.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import uncached_reader
from tierlog.tiering.cold.segment.derivation import rows_of_directory
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, LogEntry, ObjectRef, Tombstone
from tierlog.tiering.format.queue_rows import QueueRows, encode_queue_rows
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.lifecycle.archiver import places_of, upload_segment
from tierlog.tiering.lifecycle.erasure_receipts import ReceiptStore
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.objects.transfer import put_verified


class ColdRepair:
    """Repairs one archive; for anybody, not only the store's owner."""

    def __init__(self, manifest: ManifestStore, randomness: Randomness) -> None:
        self._manifest = manifest
        self._randomness = randomness

    def rows(self, ref: ObjectRef, entries: Sequence[LogEntry], topic_ids: Mapping[str, int]) -> str:
        """Restores the queue rows of ``entries``, which ``ref`` ought to hold; returns what was done, in words.

        Raises :class:`CorruptionError` or :class:`ObjectNotFoundError` if a segment's directory cannot be read.
        """
        derived = {entry.key: self._derive(entry, topic_ids) for entry in entries}
        data, _ = encode_queue_rows(np.concatenate(list(derived.values())), ref.key)
        if len(data) == ref.size_bytes and zlib.crc32(data) == ref.crc32:
            put_verified(self._manifest.objects, ref.key, data)
            return "stored again as it was, from the directories of its segments"
        begun_s = self._manifest.begin_upload()
        new = tuple(replace(entry, rows=self._store(entry, derived[entry.key])) for entry in entries)
        self._manifest.commit_other(ManifestChange(log=new, remove=tuple(entries), begun_s=begun_s))
        return "made again under another name, from the directories of its segments"

    def with_rows(self, entries: Sequence[LogEntry], topic_ids: Mapping[str, int]) -> list[LogEntry]:
        """Returns the entries, each with an object of queue rows of its own; raises as :meth:`rows`."""
        derived = [self._derive(entry, topic_ids) for entry in entries]
        return [replace(entry, rows=self._store(entry, rows)) for entry, rows in zip(entries, derived, strict=True)]

    def _derive(self, entry: LogEntry, topic_ids: Mapping[str, int]) -> QueueRows:
        runs = list(SegmentReader(uncached_reader(self._manifest.objects), entry).runs())
        if not {run.topic for run in runs} <= topic_ids.keys():
            raise CorruptionError("the state object lacks a topic of this segment", path=entry.key)
        return rows_of_directory(runs, entry.base, topic_ids)

    def _store(self, entry: LogEntry, rows: QueueRows) -> ObjectRef | None:
        if not len(rows):
            return None
        key = self._manifest.keys.queue_rows(entry.base, 0, self._randomness.token_hex(4))
        data, section = encode_queue_rows(rows, key)
        return ObjectRef(key, len(data), put_verified(self._manifest.objects, key, data), section.head_length)

    def segment(self, head: Head, entry: LogEntry, hot: HotStore, erased: Erasures) -> str:
        """Archives the hot copy of a segment again and puts it in the place of ``entry``.

        Topics that were not archived are not archived now, as far as the old directory or its queue rows tell; what
        ``erased`` hides or has expired stays away. Raises :class:`CorruptionError` if there is no hot copy, or it is
        damaged as well.
        """
        closed = [each for each in hot.log.segments() if each.base_offset == entry.base < hot.log.last_base]
        if not closed or entry.base < hot.border:
            raise CorruptionError("there is no hot copy, and no other", path=entry.key)
        begun_s = self._manifest.begin_upload()
        topics = self._as_archived(head, entry, hot.topics.all())
        gone = self._removals(head, topics, erased, entry)
        topics = [replace(topic, hold=False) for topic in topics]  # ``gone`` is without what a hold protects
        new = upload_segment(
            self._manifest,
            self._randomness,
            topics=topics,
            segment=closed[0],
            epoch=head.epoch,
            tombstones=gone,
            places=places_of(hot, self._manifest, closed[0], topics, head),
        )
        self._manifest.commit_other(ManifestChange(log=(new,), remove=(entry,), begun_s=begun_s))
        return f"archived again from the hot copy, as {new.key}"

    def _as_archived(self, head: Head, entry: LogEntry, topics: Sequence[Topic]) -> list[Topic]:
        try:
            held = {run.topic for run in SegmentReader(uncached_reader(self._manifest.objects), entry).runs()}
        except (CorruptionError, ObjectNotFoundError):
            try:
                held = {topic.name for topic in topics if self._has_rows(head, entry, topic)}
            except (CorruptionError, ObjectNotFoundError):
                return list(topics)
        return [replace(topic, archive=topic.name in held) for topic in topics]

    def _has_rows(self, head: Head, entry: LogEntry, topic: Topic) -> bool:
        reader = uncached_reader(self._manifest.objects)
        pieces = self._manifest.queue_row_pieces(reader, head, topic.topic_id, from_offset=entry.base)
        return any((rows["segment"] == entry.base).any() for rows in pieces)

    def _removals(self, head: Head, topics: Sequence[Topic], erased: Erasures, entry: LogEntry) -> list[Tombstone]:
        """Returns what the archive may not get back: erased, or expired.

        A hold protects what an erasure had not come to; one that is no longer in the head was carried out before.
        """
        held, expired = {topic.record_topic for topic in topics if topic.hold}, dict(head.expired)
        waiting = {tombstone.tombstone_id for tombstone in head.tombstones}
        gone = [
            tombstone
            for tombstone in erased.tombstones
            if tombstone.topic not in held
            or tombstone.tombstone_id not in waiting
            or self._was_carried_out(tombstone, entry)
        ]
        return gone + [
            Tombstone(
                tombstone_id="",
                topic=topic.name,
                key_hash=None,
                salt="",
                from_ms=None,
                to_ms=expired[topic.topic_id],
                end=entry.next,
            )
            for topic in topics
            if topic.topic_id in expired and not topic.hold
        ]

    def _was_carried_out(self, tombstone: Tombstone, entry: LogEntry) -> bool:
        try:
            receipt = ReceiptStore(self._manifest.objects, self._manifest.keys).find(tombstone.tombstone_id)
        except CorruptionError:
            return False  # it is begun anew, and all segments are looked at once more
        return receipt is not None and receipt.done_to >= entry.next
