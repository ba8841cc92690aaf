"""Puts rolled segments into the archive, and decides which hot copies may go then.

A segment is sorted, uploaded, verified, and only then named in the manifest. Killed before the commit: objects that
nobody names, which only cost their space; the segment is archived again under new names. Killed after it: the watermark
says so. Nothing is removed here: the border says how far removing may go, which is the hot store's (I6 in
docs/invariants.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.options import RetentionOptions
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.segment.scan import Removal, scan_segment
from tierlog.tiering.cold.segment.writer import SegmentWriter
from tierlog.tiering.format.generation import is_numbered
from tierlog.tiering.format.manifest import Head, LogEntry, ObjectRef, Tombstone
from tierlog.tiering.format.queue_rows import encode_queue_rows
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.snapshot_queue import shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topic_deletion import DeletedTopics
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.queue_places import UNKNOWN, QueuePlaces
from tierlog.tiering.kernels.scan import ScanRows, TopicTable
from tierlog.tiering.lifecycle.state_writer import StateWriter
from tierlog.tiering.lifecycle.takeover import merged_gaps, store_gaps
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.objects.transfer import put_verified, verify_object

_MOST_AT_ONCE = 10


def _removal(
    topics: Sequence[Topic], names: Sequence[str], segment: Segment, tombstones: Sequence[Tombstone]
) -> Removal | None:
    # one that was deleted is no topic, and things may wait for it
    held = {topic.record_topic for topic in topics if topic.hold}
    erased = Erasures(
        tombstone for tombstone in tombstones if tombstone.end > segment.base_offset and tombstone.topic not in held
    )
    return partial(hidden_rows, topic_names=names, erased=erased) if erased else None


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
        """Rolled segments that are not published yet and may be, ascending."""
        last, end = self._hot.log.last_base, self._hot.publish_below
        segments = self._hot.log.segments()
        return [each for each in segments if head.archived_to <= each.base_offset < last and each.end <= end]

    def archive(self, segment: Segment, head: Head) -> Head:
        """Publishes one rolled segment, the first that ``head`` lacks; returns the head that names it.

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
            tombstones = (*head.tombstones, *self._deleted())
            left_out = {tombstone.topic for tombstone in tombstones}
            left_out -= {topic.record_topic for topic in topics if topic.hold}
            places = places_of(self._hot, self._manifest, segment, topics, head)
            try:
                entry = upload_segment(
                    self._manifest,
                    self._randomness,
                    topics=topics,
                    segment=segment,
                    epoch=head.epoch,
                    tombstones=tombstones,
                    places=places,
                )
            except CorruptionError:
                self._hot.damage.suspect(segment.base_offset)
                raise
            with self._state.publishing:
                if any(topic.hold and topic.record_topic in left_out for topic in self._hot.topics.all()):
                    continue
                state = self._state.with_topics(self._manifest.head or head)
                change = ManifestChange(
                    log=(entry,),
                    archived_to=segment.end,
                    state=state,
                    gaps=self._gaps(places, topics, head),
                    begun_s=begun_s,
                )
                return self._manifest.commit(change, head)

    def _gaps(self, places: QueuePlaces | None, topics: Sequence[Topic], head: Head) -> ObjectRef | None:
        """Returns all gaps, if a segment that a broker wrote has more of them."""
        archived = {topic.topic_id for topic in topics if topic.archive}
        found = [gap for gap in places.gaps if gap.topic_id in archived] if places is not None else []
        if not found:
            return None
        before = self._manifest.gaps(self._manifest.reader(), head)
        return store_gaps(self._manifest, head, merged_gaps(before, found), self._randomness)


def places_of(
    hot: HotStore, manifest: ManifestStore, segment: Segment, topics: Sequence[Topic], head: Head
) -> QueuePlaces | None:
    """Returns what follows the queues through a segment that a broker wrote; None for one of our own.

    A queue of which the archive has nothing begins at 0 if everything before it is known: the log from its
    beginning, or that of the generation. Behind a gap of the log it goes on behind what the archive has.
    """
    if segment.base_offset >= hot.queues.followed_below:
        return None
    ends: dict[tuple[int, int], int] = {}
    for topic in topics:
        views = hot.queue_views(topic)
        for queue_id, view in views.items():
            end = view.first_at_or_above(segment.base_offset)
            if end > view.first and not view.is_prefilled(end - 1):
                ends[topic.topic_id, queue_id] = end
        for queue_id, start in topic.starts.items():
            if start and (topic.topic_id, queue_id) not in ends:
                known = views.get(queue_id)
                # files go with the messages that they list, so what the first one has may not be the first message
                may_lack = known is not None and known.first > start and not known.is_prefilled(known.first)
                archived = _archived_end(manifest, head, topic.topic_id, queue_id) if may_lack else 0
                ends[topic.topic_id, queue_id] = max(start, archived)
    is_whole = head.cold_min == 0
    firsts = [0 if is_whole or is_numbered(topic.name) else UNKNOWN for topic in topics]
    ids = np.array([topic.topic_id for topic in topics], np.int32)
    return QueuePlaces(ends, ids, np.array(firsts, np.int64))


def _archived_end(manifest: ManifestStore, head: Head, topic_id: int, queue_id: int) -> int:
    """Returns the offset behind the last message of a queue that is archived behind the log's last gap; 0 for none."""
    begin = head.lost[-1].next if head.lost else 0
    for rows in manifest.queue_row_pieces(manifest.reader(), head, topic_id, backwards=True, from_offset=begin):
        mine = rows[rows["queue_id"] == queue_id]
        if len(mine):
            return int((mine["first_queue_offset"] + mine["count"]).max())
    return 0


def upload_segment(
    manifest: ManifestStore,
    randomness: Randomness,
    *,
    topics: Sequence[Topic],
    segment: Segment,
    epoch: int,
    tombstones: Sequence[Tombstone] = (),
    places: QueuePlaces | None = None,
) -> LogEntry:
    """Stores one closed segment under names of this attempt, verified; whoever commits the entry names it.

    Every topic in it must be among ``topics``; of those that are not to be archived, fillers are stored, likewise in
    the place of records that the tombstones hide, unless their topic is on hold. ``places`` are of a broker's log.
    """
    keys, objects = manifest.keys, manifest.objects
    ids = np.array([topic.topic_id for topic in topics], np.int32)
    left_out = {topic.topic_id for topic in topics if not topic.archive}
    names = [topic.name for topic in topics]
    scanned = scan_segment(
        segment.data,
        segment.base_offset,
        TopicTable(names),
        _removal(topics, names, segment, tombstones),
        None if places is None else places.take,
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
        key=key, base=segment.base_offset, segment_bytes=len(segment.data), size_bytes=summary.size_bytes,
        crc32=summary.crc32, raw_bytes=summary.raw_bytes, records=summary.records, bounds=summary.bounds,
        sections=summary.sections, rows=rows,
    )  # fmt: skip


def hidden_rows(data: ByteArray, rows: ScanRows, topic_names: Sequence[str], erased: Erasures) -> NDArray[np.bool_]:
    """True for each row that ``erased`` hides; ``topic_names`` is indexed by the rows' topic numbers.

    Topic, offset and time are compared on all rows at once; a record is decoded only where keys decide, and once.
    """
    hidden = np.zeros(len(rows), bool)
    for number in np.unique(rows["topic_number"]).tolist():
        topic = topic_names[number]
        if erased.concerns(topic):
            mine = np.flatnonzero(rows["topic_number"] == number)
            hidden[mine], by_key = erased.hidden_rows(topic, rows["physical_offset"][mine], rows["store_ms"][mine])
            for row in mine[by_key].tolist():
                hidden[row] = erased.hides(decode_record(data.data, int(rows["position"][row]), verify=False))
    return hidden


def safe_border(hot: HotStore, head: Head | None) -> int:
    """The highest border at which nothing would be lost: published, indexed, not held, and not the active segment.

    ``head`` None means a store with a cold tier that was never reached: nothing may go.
    """
    if head is None:
        return hot.border
    indexed_segment = head.indexed_to - head.indexed_to % hot.log.segment_bytes
    return min(head.archived_to, indexed_segment, hot.log.last_base, held_border(hot, has_archive=True))


def held_border(hot: HotStore, *, has_archive: bool) -> int:
    """Returns the border that must not be passed because of topics on hold whose hot copies are the only ones.

    Raises :class:`CorruptionError` where a queue does not tell: nothing is removed then.
    """
    border = hot.log.last_base
    for topic in hot.topics.all():
        only_copies_below = topic.archived_from if has_archive and topic.archive else border
        if not topic.hold or only_copies_below <= hot.border:
            continue
        with hot.snapshot() as snapshot:
            for queue_id, queue in shown_queues(hot, snapshot, topic).items():
                first = max(queue.first, topic.begin(queue_id))  # what was deleted is not kept
                for unit in queue.units(first, first + 1):
                    offset = int(unit["physical_offset"])
                    if offset < only_copies_below:
                        border = min(border, offset - offset % hot.log.segment_bytes)
    return border


def due_border(hot: HotStore, options: RetentionOptions, now_ms: int, excess_bytes: int = 0) -> int:
    """Returns the border that age, size and a disk with ``excess_bytes`` too much ask for, whatever is safe.

    A segment's newest record is no newer than the first of the next one, which is what age looks at. At most 10
    segments go at a time, and never the last one: what frees enough is measured again in between.
    """
    segments = hot.log.segments()
    border = hot.border
    over = len(segments) * hot.log.segment_bytes - options.hot_max_bytes if options.hot_max_bytes else 0
    over = max(over, excess_bytes)
    for segment, following in islice(pairwise(segments), _MOST_AT_ONCE):
        newest_ms = hot.first_store_ms(following)
        if newest_ms is None:
            newest_ms = hot.last_store_ms
        if over <= 0 and now_ms - newest_ms < options.hot_retention_ms:
            break
        border = segment.end
        over -= hot.log.segment_bytes
    return border
