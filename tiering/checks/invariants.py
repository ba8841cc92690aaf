"""Verifies what must always hold of a store (I1 to I6 in docs/invariants.md) and reports every exception in one line.

Never edits. Tests, ``tierlog check`` and metrics use these same functions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Entry, Head
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.consume_queue import QueueView, UnitArray
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.queue_places import have_places
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, in_queues, scan_all
from tierlog.tiering.message.tags import tag_codes


def check_store(hot: HotStore) -> list[str]:
    """Log, queues and floors of the hot tier."""
    return list(_check_store(hot))


def segment_rows(hot: HotStore, segment: Segment, end: int) -> ScanRows:
    """Returns every record of a segment below ``end`` with all checks; :class:`CorruptionError` where they fail."""
    topics = TopicTable([topic.name for topic in hot.topics.all()])
    limit = max(0, min(segment.end, end) - segment.base_offset)
    found = scan_all(segment.data, limit, segment.base_offset, topics)
    if found.stop in (ScanStop.INVALID, ScanStop.UNKNOWN_TOPIC):
        raise CorruptionError(
            f"record is {found.stop.name.lower().replace('_', ' ')}",
            path="commitlog",
            position=segment.base_offset + found.position,
        )
    return found.rows


def _check_store(hot: HotStore) -> Iterator[str]:
    if hot.guard.read_only_reason is not None:
        yield f"the store is read-only: {hot.guard.read_only_reason}"
    names = [topic.name for topic in hot.topics.all()]
    with hot.snapshot() as snapshot:
        seen: dict[tuple[int, int], int] = {}
        last_ms = 0
        for base, segment in sorted(snapshot.segments.items()):
            if base < snapshot.border:
                continue  # on its way out, and its queue units perhaps gone before it
            try:
                rows = segment_rows(hot, segment, snapshot.end)
            except CorruptionError as error:
                hot.damage.suspect(base if error.position is None else error.position)
                yield f"I1 log: {error}"
                seen.clear()  # where the queues go on behind it is not known
                continue
            if len(rows) and (int(rows["store_ms"][0]) < last_ms or (np.diff(rows["store_ms"]) < 0).any()):
                yield f"I1 log: store times step back in segment {base}"
            last_ms = int(rows["store_ms"][-1]) if len(rows) else last_ms
            yield from _check_units(hot, names, segment, rows, seen)
        for topic in hot.topics.all():
            for queue_id in range(topic.queues):
                expected = seen.get((topic.topic_id, queue_id))
                reached = _reached(hot, topic, queue_id, snapshot.end)
                if expected is not None and reached != expected:
                    yield f"I3 queue {topic.name}/{queue_id}: ends at {reached}, the log says {expected}"


def _reached(hot: HotStore, topic: Topic, queue_id: int, end: int) -> int:
    """Returns where a queue ended when the log was derived up to ``end``, whatever was appended since."""
    view = hot.queue_views(topic).get(queue_id)
    if view is None or hot.log.end == end:
        return hot.next_offset(topic, queue_id)
    return view.until(end).next


def _check_units(
    hot: HotStore, names: list[str], segment: Segment, rows: ScanRows, seen: dict[tuple[int, int], int]
) -> Iterator[str]:
    rows = rows[in_queues(rows)]
    for number, queue_id in np.unique(rows[["topic_number", "queue_id"]]).tolist():
        topic = hot.topics.of_log(names[number])
        mine = rows[(rows["topic_number"] == number) & (rows["queue_id"] == queue_id)]
        name, key = f"{topic.name}/{queue_id}", (topic.topic_id, queue_id)
        view = hot.queue_views(topic).get(queue_id)
        is_brokers = segment.base_offset < hot.queues.followed_below
        if is_brokers and view is not None:
            mine = mine[have_places(mine["queue_offset"], view.first_at_or_above(segment.base_offset))]
            if not len(mine):
                continue
        first = int(mine["queue_offset"][0])
        if not is_brokers and ((np.diff(mine["queue_offset"]) != 1).any() or seen.get(key, first) != first):
            yield f"I2 queue {name}: offsets are not consecutive near {seen.get(key, first)}"
        seen[key] = int(mine["queue_offset"][-1]) + 1
        units = _units_at(view, mine["queue_offset"]) if view else None
        if units is None or len(units) != len(mine):
            yield f"I3 queue {name}: units are missing from {first} on"
            continue
        tags = tag_codes(topic.record_topic, segment.data, mine)
        for field, expected in (
            ("physical_offset", mine["physical_offset"]),
            ("size", mine["size"]),
            ("tag_hash", tags),
        ):
            wrong = np.flatnonzero(units[field] != expected)
            if len(wrong):
                yield f"I3 queue {name}: {field} of unit {first + int(wrong[0])} differs from the log"


def _units_at(view: QueueView, offsets: NDArray[np.int64]) -> UnitArray:
    """Returns the units of rising queue offsets, as far as there are any."""
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    return np.concatenate([view.units(int(run[0]), int(run[-1]) + 1) for run in runs])


def check_archive(manifest: ManifestStore, hot: HotStore | None) -> list[str]:
    """Checks the manifest, and that every object that it names is there in its size; objects are not read.

    Raises :class:`UnavailableError` if an object store that has an archive does not answer.
    """
    try:
        head = manifest.refresh()
        return list(_check_archive(manifest, hot, head))
    except StoreError as error:
        if manifest.had_head and isinstance(error, UnavailableError):
            raise  # says nothing about the archive
        if not manifest.had_head and hot is not None and hot.border == 0:
            return []  # no archive yet, and nothing that would need one
        return [f"archive: {error}"]


def _check_archive(manifest: ManifestStore, hot: HotStore | None, head: Head) -> Iterator[str]:
    reader = manifest.reader(scan=True)
    if not head.cold_min <= head.indexed_to <= head.archived_to:
        yield f"watermarks out of order: {head.cold_min}, {head.indexed_to}, {head.archived_to}"
    if hot is not None and hot.border > head.archived_to:
        yield f"I6 border {hot.border} lies above archived_to {head.archived_to}"
    expected = head.beyond_gaps(head.cold_min)
    for entry in manifest.log_entries(reader, head):
        if entry.base != expected:
            yield f"I4 archive: segment {expected} is missing before {entry.base}"
        expected = head.beyond_gaps(entry.next)
        yield from _check_object(manifest, entry)
    if expected != head.archived_to:
        yield f"archive: segments reach {expected}, archived_to is {head.archived_to}"
    for item in manifest.all_index_entries(reader, head):
        yield from _check_object(manifest, item)


def _check_object(manifest: ManifestStore, entry: Entry) -> Iterator[str]:
    try:
        if manifest.objects.head(entry.key).size_bytes != entry.size_bytes:
            yield f"I5 archive: {entry.key} has another size than the manifest says"
    except UnavailableError:
        raise
    except StoreError as error:
        yield f"archive: {entry.key}: {error}"
