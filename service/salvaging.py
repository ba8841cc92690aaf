"""Appends again, to the volume that took a store over, what the fenced one had acknowledged but never archived.

The old directory is only read. Where its log and the archive part is found by comparing bytes: at the first record
that the archive lacks or has differently. What follows is appended in the order of the log, each message with the
property ``TL_SALVAGED``: the old volume and the physical offset there.

Run again, it appends nothing twice: before the first message of a queue is appended, the end of that queue on the new
volume is committed as the offset of a consumer group of its own, and every run looks through the queue from there for
what earlier ones have appended. Cut off anywhere, the next run goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from service.opening import Surroundings, open_parts
from tiering.batch import Message
from tiering.checks.store import segment_rows
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.segment.reader import SegmentReader
from tiering.erasing.known import KnownErasures
from tiering.erasing.tombstones import Erasures
from tiering.errors import InvalidRequestError, NotFoundError, StoreLockedError, StoreMismatchError
from tiering.format.filler import is_filler
from tiering.format.manifest import Head, Tombstone
from tiering.format.record import decode_record
from tiering.format.store_state import StoreState
from tiering.hot.commit_log import Segment
from tiering.hot.identity import StoreIdentity
from tiering.hot.store import HotStore
from tiering.message import StoredMessage
from tiering.paths import StorePaths
from tiering.types import Durability, PullStatus, Tier

if TYPE_CHECKING:
    from service.cli.targets import Writer

PROPERTY = "TL_SALVAGED"
_BATCH_MESSAGES = 500
_BATCH_BYTES = 1 << 20
_PAGE = 1_000
#: The largest offset that a service can be asked for, which no queue ever reaches: asking there reads nothing.
_BEYOND = (1 << 53) - 1

#: Topic and queue id; all queues are the store's own.
_Queue = tuple[str, int]

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class SalvageReport:
    """What a run found in the old log and did; ``skipped`` were there already, are erased, or are in no queue."""

    store_id: str
    volume_id: str
    from_offset: int
    read: int = 0
    appended: int = 0
    skipped: int = 0


def salvage(old_root: Path, around: Surroundings, target: Writer, progress: Progress) -> SalvageReport:
    """Append what only the fenced volume at ``old_root`` holds; ``progress`` is told bytes of its log.

    Raises :class:`InvalidRequestError` for a directory without a store of ours or one that still owns the archive,
    :class:`StoreLockedError` for one in use, :class:`StoreMismatchError` if ``target`` is another store or not the
    volume that may write, the object store's error if the archive cannot be asked.
    """
    paths = StorePaths(old_root)
    if around.fs.is_locked(paths.lock):
        raise StoreLockedError("the old store is in use", path=str(old_root), hint="stop its service first")
    parts = open_parts(old_root, around, cold_url=None, store_id=None, read_only=True)
    try:
        if parts.manifest is None:
            raise InvalidRequestError("the old store never had an archive", path=str(old_root))
        head = parts.manifest.refresh()
        _check(parts.identity, head, target, old_root)
        target.only_store(parts.identity.store_id)
        if head.volume_id == parts.identity.volume_id:  # a copy: what its twin has not archived yet may be common
            target.archive(until_ms=None, everything=True, drop_hot=False, progress=None)
            head = parts.manifest.refresh()
        state = parts.manifest.state(parts.manifest.reader(), head)
        fenced = [takeover.volume_id for takeover in state.takeovers]  # none if the state was lost and written anew
        is_last = parts.identity.volume_id in (head.volume_id, *fenced[-1:])
        start = first_not_archived(parts.hot, parts.manifest, head)
        report = SalvageReport(parts.identity.store_id, parts.identity.volume_id, start)
        queues = {topic.name: topic.queues for topic in parts.hot.topics.all()}
        run = _Run(target, report, queues, _erased(parts.known, state), look_everywhere=not is_last)
        end = parts.hot.log.end
        for batch in _batches(_messages(parts.hot, parts.identity.store_id, start)):
            run.append(batch)
            progress(batch[-1].record.physical_offset + batch[-1].record.size - start, end - start)
        return report
    finally:
        parts.resources.close()


def _erased(known: KnownErasures, state: StoreState) -> Erasures:
    """What must not come back: erasures still open, and topics that were deleted here or after the takeover."""
    deleted = (
        Tombstone("", topic.name, None, "", None, None, topic.deleted_below)
        for topic in state.topics
        if topic.deleted_below
    )
    return Erasures((*known.current().tombstones, *deleted))


def _check(identity: StoreIdentity, head: Head, target: Writer, old_root: Path) -> None:
    if head.volume_id == identity.volume_id and head.open_id in identity.head_open_ids:
        raise InvalidRequestError(
            "this volume may still write to the archive, so nothing of it has to be salvaged",
            path=str(old_root),
            hint="open it and archive",
        )
    stats = target.stats()
    if stats["store_id"] != identity.store_id:
        raise StoreMismatchError(
            f"the directory is of store {identity.store_id}, the new volume of {stats['store_id']}", path=str(old_root)
        )
    if stats["volume_id"] != head.volume_id:
        raise StoreMismatchError(
            f"volume {head.volume_id} has taken the store over, not {stats['volume_id']}",
            path=str(old_root),
            hint="salvage into the volume that owns the archive",
        )


def first_not_archived(hot: HotStore, manifest: ManifestStore, head: Head) -> int:
    """Where an old log and the archive part: below, both hold the same bytes, above, they differ or one has none.

    A removed record counts as archived: what was erased must not come back. Logs that have parted never meet again,
    so only a few segments are compared.
    """
    segments = hot.log.segments()
    low, high = 0, len(segments)
    parted: int | None = None
    while low < high:
        middle = (low + high) // 2
        found = _parts_in(hot, manifest, head, segments[middle])
        if found is None:
            low = middle + 1
        else:
            parted, high = found, middle
    return hot.log.end if parted is None else parted


def _parts_in(hot: HotStore, manifest: ManifestStore, head: Head, segment: Segment) -> int | None:
    """The first physical offset of a segment's records that the archive lacks, None if it has, or had, them all."""
    if segment.end <= head.cold_min:
        return None
    rows = segment_rows(hot, segment, hot.log.end)
    end = int(rows[-1]["physical_offset"] + rows[-1]["size"]) if len(rows) else segment.base_offset
    reader = manifest.reader()
    entry = manifest.log_entry(reader, head, segment.base_offset)
    if entry is None:
        return segment.base_offset if len(rows) else None
    archived = SegmentReader(reader, entry)
    differs = (
        position
        for position, item in archived.raw_items()
        if not is_filler(item) and bytes(item) != bytes(segment.data[position : position + len(item)])
    )
    parted = segment.base_offset + min([archived.blank_position, *differs])
    return parted if parted < end else None


def _messages(hot: HotStore, store_id: str, start: int) -> Iterator[StoredMessage]:
    for segment in hot.log.segments():
        if segment.end <= start:
            continue
        for row in segment_rows(hot, segment, hot.log.end):
            if row["physical_offset"] >= start:
                record = decode_record(segment.data.data, int(row["position"]))
                yield StoredMessage(record, store_id, Tier.HOT)


def _batches(messages: Iterable[StoredMessage]) -> Iterator[list[StoredMessage]]:
    batch: list[StoredMessage] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == _BATCH_MESSAGES or size + message.shown_bytes > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.shown_bytes
    if batch:
        yield batch


class _Run:
    """One run's view of the new volume."""

    def __init__(
        self,
        target: Writer,
        report: SalvageReport,
        queues: Mapping[str, int],
        erased: Erasures,
        *,
        look_everywhere: bool,
    ) -> None:
        """``queues``: how many each of the old volume's topics has.

        ``look_everywhere``: marks may be lost with a volume in between, though what they mark was archived.
        """
        self._target = target
        self._report = report
        self._look_everywhere = look_everywhere
        self._group = f"{PROPERTY}-{report.volume_id}"
        self._marks: dict[_Queue, int] = {}
        self._there: dict[_Queue, set[int]] = {}
        self._queues = queues
        self._erased = erased
        with contextlib.suppress(NotFoundError):
            marks = target.committed_offsets(self._group)
            self._marks = {
                (topic, queue_id): offset
                for (topic, store_id, queue_id), offset in marks.items()
                if store_id == report.store_id
            }

    def append(self, batch: list[StoredMessage]) -> None:
        """Append those of a batch that are not there yet, topic by topic, each queue in its order."""
        self._report.read += len(batch)
        in_queues = [
            message for message in batch if message.record.has_queue_unit and not self._erased.hides(message.record)
        ]
        self._look({(message.record.topic, message.record.queue_id) for message in in_queues})
        wanted = [
            message
            for message in in_queues
            if message.record.physical_offset not in self._there[message.record.topic, message.record.queue_id]
        ]
        wanted.sort(key=lambda message: message.record.topic)  # stable
        for _, group in groupby(wanted, key=lambda message: message.record.topic):
            self._target.append([self._again(message) for message in group], Durability.FLUSHED)
        self._report.appended += len(wanted)
        self._report.skipped += len(batch) - len(wanted)

    def _look(self, queues: set[_Queue]) -> None:
        """Learn what earlier runs appended to queues met for the first time, and mark where this one begins."""
        new = sorted(queues - self._there.keys())
        for topic in sorted({topic for topic, _ in new}):
            there = self._target.queues_of(topic)
            if there is None or there < self._queues[topic]:
                self._target.create_topic(topic, self._queues[topic])
        for queue in new:
            start = 0 if self._look_everywhere else self._marks.get(queue)
            self._there[queue] = set() if start is None else set(self._salvaged(queue, start))
        unmarked = {queue: self._end(queue) for queue in new if queue not in self._marks}
        if unmarked:
            store_id = self._report.store_id
            marks = {(topic, store_id, queue_id): end for (topic, queue_id), end in unmarked.items()}
            self._target.commit_offsets(self._group, marks)
            self._marks.update(unmarked)

    def _end(self, queue: _Queue) -> int:
        end: int = self._target.pull(*queue, _BEYOND, 1)["max_offset"]
        return end

    def _salvaged(self, queue: _Queue, offset: int) -> Iterator[int]:
        """Old physical offsets of the messages in a queue that earlier runs appended."""
        while True:
            page = self._target.pull(*queue, offset, _PAGE)
            for message in page["messages"]:
                for mark in message["properties"].get(PROPERTY, "").split():
                    volume_id, _, old = mark.partition(":")
                    if volume_id == self._report.volume_id:
                        yield int(old)
            if page["status"] in (PullStatus.NO_NEW_MESSAGE.value, PullStatus.OFFSET_TOO_LARGE.value):
                return
            offset = page["next_offset"]

    def _again(self, message: StoredMessage) -> Message:
        """The message as its client sent it, with where it comes from; that of an earlier salvage stays."""
        record = message.record
        origin = f"{self._report.volume_id}:{record.physical_offset}"
        properties = message.properties
        properties[PROPERTY] = f"{properties[PROPERTY]} {origin}" if PROPERTY in properties else origin
        body, _ = message.readable_body()
        return Message(record.topic, body, message.keys, message.tag, properties, record.born_ms, record.queue_id)
