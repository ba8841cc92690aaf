"""Appends again, to the volume that took a store over, what the fenced one had acknowledged but the archive lacks.

The old directory is only read. What the archive lacks of its log is found by comparing the two
(:mod:`tiering.lifecycle.fenced_log`): all from where they part, and below that what was not to be archived, which a
volume that was made from the archive never had. It is appended in the order of the log, each message with the property
``TL_SALVAGED``: the old volume and the physical offset there. A born time that is not taken any more, before 1970 or
after 9999, becomes the nearest that is, and ``TL_BORN_MS`` says what it was.

Run again, it appends nothing twice: before the first message of a queue is appended, the end of that queue on the new
volume is committed as the offset of a consumer group of its own, and every run looks through the queue from there for
what earlier ones have appended. Cut off anywhere, the next run goes on. Of two copies of a volume both may have a
message at an offset, so what a mark leads to is compared as well; and a message that left no room for its mark is known
by what it holds alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.service.engine.opening import open_archive
from tierlog.service.engine.parts import Components
from tierlog.service.wire.documents import Json, body_bytes
from tierlog.tiering.base.errors import (
    CorruptionError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    StoreLockedError,
    StoreMismatchError,
)
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.types import Durability, PullStatus, Tier
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, Tombstone
from tierlog.tiering.format.record import BLANK_BYTES, MAX_PROPERTIES_BYTES, Record, host_text
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.log_files import LogFiles
from tierlog.tiering.lifecycle.erasure_receipts import ReceiptStore
from tierlog.tiering.lifecycle.fenced_log import Divergence, FencedLog
from tierlog.tiering.lifecycle.last_head import read_last_head
from tierlog.tiering.lifecycle.tombstones import Erasures, KnownErasures
from tierlog.tiering.message.batch import BORN_END_MS, Message
from tierlog.tiering.message.stored_message import StoredMessage

if TYPE_CHECKING:
    from tierlog.service.cli.targets import Writer

PROPERTY = "TL_SALVAGED"
BORN_PROPERTY = "TL_BORN_MS"
_BATCH_MESSAGES = 500
_BATCH_BYTES = 1 << 20
_PAGE = 1_000
#: The largest offset that a service can be asked for, which no queue ever reaches: asking there reads nothing.
_BEYOND = (1 << 53) - 1
#: A mark, a record checksum and longer hosts together take less: a message with so much room gets its mark.
_ADDED_BYTES = 128

#: Topic and queue id; all queues are the store's own.
_Queue = tuple[str, int]
#: A volume, a physical offset there, and the digest of the message.
_Mark = tuple[str, int, bytes]


@dataclass(frozen=True, slots=True)
class NotSaved:
    """A range ``[offset, next)`` of the old log that could not be appended, and why."""

    offset: int
    next: int
    topic: str | None
    """None where nothing could be read."""
    reason: str


@dataclass(slots=True)
class SalvageReport:
    """The counts of what a run found in the old log and did.

    ``from_offset`` is where the log and the archive part, ``read`` counts messages that the archive lacks, from there
    on and below; of these, ``skipped`` were there already, are erased, or are in no queue.
    """

    store_id: str
    volume_id: str
    from_offset: int
    read: int = 0
    appended: int = 0
    skipped: int = 0
    not_saved: list[NotSaved] = field(default_factory=list)


def salvage(old_root: Path, components: Components, target: Writer, progress: Progress) -> SalvageReport:
    """Appends what only the fenced volume at ``old_root`` holds; ``progress`` is told bytes of its log.

    One message that cannot be appended does not keep the others: the report names it. Raises
    :class:`InvalidRequestError` for a directory without a store of ours or one that still owns the archive,
    :class:`StoreLockedError` for one in use, :class:`StoreMismatchError` if ``target`` is another store or not the
    volume that may write, the object store's error if the archive cannot be asked.
    """
    paths = StorePaths(old_root)
    if components.fs.is_locked(paths.lock):
        raise StoreLockedError("the old store is in use", path=str(old_root), hint="stop its service first")
    with contextlib.ExitStack() as resources:
        # the old volume and the new one are of one store
        old = _open_old(old_root, components, resources)
        head = old.manifest.refresh()
        _check(old.identity, head, target, old_root)
        target.only_store(old.identity.store_id)
        is_copy = head.volume_id == old.identity.volume_id
        if is_copy:  # what its twin has not archived yet may be common
            target.archive(until_ms=None, everything=True, drop_hot=False, progress=None)
            head = old.manifest.refresh()
        state = old.manifest.state(old.manifest.reader(), head)
        if state.segment_bytes not in (0, old.identity.segment_bytes):
            raise StoreMismatchError(
                f"the archive has segments of {state.segment_bytes} bytes, "
                f"the directory those of {old.identity.segment_bytes}",
                path=str(paths.store_json),
            )
        # where the log and the archive part, and what must not come back
        erased = _Erased(old.manifest, old.known, state)
        log = FencedLog(old.files, old.manifest, head, _Removed(erased, head, state))
        parting = log.parting()
        report = SalvageReport(old.identity.store_id, old.identity.volume_id, parting.parted_from)
        fenced = [takeover.volume_id for takeover in state.takeovers]  # none if the state was lost and written anew
        is_last = is_copy or old.identity.volume_id in fenced[-1:]
        # the run itself, a batch at a time
        run = _Run(target, report, old.files, erased, parting, is_copy=is_copy, look_everywhere=not is_last)
        # a twin has all that is common in its own log
        begin, end = parting.common_to if is_copy else old.files.begin, old.files.end
        for batch in _batches(_messages(log.lacking(parting, from_offset=begin), old.identity.store_id)):
            run.append(batch)
            progress(batch[-1].record.physical_offset + batch[-1].record.size - begin, end - begin)
        report.not_saved += [
            NotSaved(damaged.first, damaged.next, None, "the old log is damaged here") for damaged in log.damaged
        ]
        return report


@dataclass(frozen=True, slots=True)
class _Old:
    """The parts of the old volume that are needed."""

    identity: StoreIdentity
    manifest: ManifestStore
    known: KnownErasures
    files: LogFiles


def _open_old(root: Path, components: Components, resources: contextlib.ExitStack) -> _Old:
    """Reads the directory without recovery, which refuses a damaged log; queues and indexes do not matter here."""
    fs, paths = components.fs, StorePaths(root)
    identity = StoreIdentity.read(fs, paths)
    if identity is None:
        raise InvalidRequestError("no store of ours here", path=str(root))
    if identity.restoring_from is not None:
        raise StoreMismatchError("the restore of this store was cut off, nothing was acknowledged", path=str(root))
    if identity.cold_url is None:
        raise InvalidRequestError("the old store never had an archive", path=str(root))
    objects = components.objects or open_archive(identity.cold_url, components.settings, components.clock, make=False)
    resources.callback(objects.close)
    manifest = ManifestStore(
        objects,
        ColdKeys(identity.store_id),
        randomness=components.randomness,
        options=components.settings.cold_options(),
        clock=components.clock,
    )
    resources.callback(manifest.cache.close)
    files = LogFiles(fs, paths, identity.segment_bytes)
    deleted = tuple(each.tombstone(name) for name, each in files.topics.deletions)
    return _Old(
        identity, manifest, KnownErasures(manifest, read_last_head(fs, paths).tombstones, lambda: deleted), files
    )


class _Erased:
    """The messages that must not come back: of known erasures, and of topics deleted here or after the takeover."""

    def __init__(self, manifest: ManifestStore, known: KnownErasures, state: StoreState) -> None:
        deleted = (
            Tombstone(
                tombstone_id="",
                topic=topic.name,
                key_hash=None,
                salt="",
                from_ms=None,
                to_ms=None,
                end=topic.deleted_below,
            )
            for topic in state.topics
            if topic.deleted_below
        )
        self._manifest = manifest
        self._open = Erasures((*known.current().tombstones, *deleted))
        self._ever: Erasures | None = None

    def hides(self, record: Record) -> bool:
        """Whether a deletion, or an erasure that is still open, is for the record."""
        return self._open.hides(record)

    def ever_hid(self, record: Record) -> bool:
        """Whether any erasure that ever was is for the record: receipts tell of those long done, and are all read."""
        if self._open.hides(record):
            return True
        if self._ever is None:
            self._ever = Erasures(self._receipts())
        return self._ever.hides(record)

    def _receipts(self) -> Iterator[Tombstone]:
        receipts = ReceiptStore(self._manifest.objects, self._manifest.keys)
        for name in list(receipts.ids()):
            with contextlib.suppress(CorruptionError):  # what nobody can prove to be erased comes back
                yield receipts.load(name).tombstone


class _Removed:
    """Whether a record that was archived may have become a filler since."""

    def __init__(self, erased: _Erased, head: Head, state: StoreState) -> None:
        names = {topic.topic_id: topic.name for topic in state.topics}
        self._expired = {names.get(topic_id): below_ms for topic_id, below_ms in head.expired}
        self._erased = erased

    def __call__(self, record: Record) -> bool:
        """Whether any erasure, deletion or expiry is for the record."""
        return record.store_ms < self._expired.get(record.topic, -1) or self._erased.ever_hid(record)


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


def _messages(records: Iterable[Record], store_id: str) -> Iterator[StoredMessage]:
    return (StoredMessage(record, store_id, Tier.HOT) for record in records)


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


def _digest(body: bytes, born_ms: int, keys: list[str], tag: str, properties: Mapping[str, str]) -> bytes:
    """Digests what a message is known by, whichever volume it lies on."""
    own = sorted((name, value) for name, value in properties.items() if name not in (PROPERTY, BORN_PROPERTY))
    born = properties.get(BORN_PROPERTY, str(born_ms))
    found = hashlib.blake2b(json.dumps([born, keys, tag, own]).encode(), digest_size=16)
    found.update(body)
    return found.digest()


def _digest_here(message: StoredMessage) -> bytes:
    body, _ = message.readable_body()
    return _digest(body, message.record.born_ms, message.keys, message.tag, message.properties)


def _digest_there(message: Json) -> bytes:
    return _digest(
        body_bytes(message), message["born_ms"], message["keys"], message["tag"], message["properties"]
    )  # fmt: skip


def _marks(properties: Mapping[str, str]) -> list[tuple[str, int]]:
    """Yields volumes that a message was salvaged from, and where it lay; what is no mark is passed over."""
    parts = [mark.partition(":") for mark in properties.get(PROPERTY, "").split()]
    return [(volume_id, int(offset)) for volume_id, _, offset in parts if offset.isdecimal()]


@dataclass(slots=True)
class _There:
    """The messages of earlier salvages that a queue of the new volume holds."""

    start: int
    """The queue was looked through from here on."""
    marked: set[_Mark] = field(default_factory=set)
    unmarked: Counter[bytes] = field(default_factory=Counter)
    """Messages without a mark, by digest: any of them may be one that had no room for it."""


class _Run:
    """One run's view of the new volume."""

    def __init__(
        self,
        target: Writer,
        report: SalvageReport,
        files: LogFiles,
        erased: _Erased,
        parting: Divergence,
        *,
        is_copy: bool,
        look_everywhere: bool,
    ) -> None:
        """``is_copy``: the new volume went on from the same beginning, so it may hold a message in its own place.

        ``look_everywhere``: marks may be lost with a volume in between, though what they mark was archived.
        """
        self._target = target
        self._report = report
        self._files = files
        self._erased = erased
        self._parting = parting
        self._is_copy = is_copy
        self._look_everywhere = look_everywhere
        self._group = f"{PROPERTY}-{report.volume_id}"
        self._begins: dict[_Queue, int] = {}
        self._there: dict[_Queue, _There] = {}
        #: Of messages without room for a mark: how many were found or appended.
        self._settled: Counter[tuple[_Queue, bytes]] = Counter()
        #: Why topics of the old volume cannot be on the new one; None where they can.
        self._topics: dict[str, str | None] = {}
        with contextlib.suppress(NotFoundError):
            begins = target.committed_offsets(self._group)
            self._begins = {
                (topic, queue_id): offset
                for (topic, store_id, queue_id), offset in begins.items()
                if store_id == report.store_id
            }
        #: There may have been an earlier run.
        self._is_again = look_everywhere or bool(self._begins)

    def append(self, batch: list[StoredMessage]) -> None:
        """Appends those of a batch that are not there yet, topic by topic, each queue in its order."""
        report = self._report
        before = report.appended + len(report.not_saved)
        report.read += len(batch)
        in_queues = [
            message for message in batch if message.record.has_queue_unit and not self._erased.hides(message.record)
        ]
        possible = [message for message in in_queues if self._has_topic(message)]
        self._look(possible)
        in_place = self._in_place(possible)
        wanted = [
            message
            for message in possible
            if not (
                message.record.physical_offset in in_place or self._is_there(message) or self._was_erased_here(message)
            )
        ]
        wanted.sort(key=lambda message: message.record.topic)  # stable
        for _, group in groupby(wanted, key=lambda message: message.record.topic):
            self._append(list(group))
        report.skipped += len(batch) - (report.appended + len(report.not_saved) - before)

    # what is there

    def _has_topic(self, message: StoredMessage) -> bool:
        """Whether the new volume has the topic with all its queues; made if it lacks it."""
        topic = message.record.topic
        if topic not in self._topics:
            queues = self._files.topics.of_log(topic).queues
            there = self._target.queues_of(topic)
            self._topics[topic] = None
            if there is None or there < queues:
                try:
                    self._target.create_topic(topic, queues)
                except InvalidRequestError as error:
                    self._topics[topic] = error.message
        reason = self._topics[topic]
        if reason is not None:
            self._not_saved(message, reason)
        return reason is None

    def _look(self, messages: list[StoredMessage]) -> None:
        """Learns what earlier runs appended to the queues of these, and marks where this one begins.

        A message that was salvaged before to the volume that is salvaged now may have come here from the first one.
        """
        starts: dict[_Queue, int] = {}
        for message in messages:
            queue = _queue_of(message)
            starts[queue] = min(self._start(message), starts.get(queue, _BEYOND))
        for queue, start in sorted(starts.items()):
            known = self._there.get(queue)
            if known is None or start < known.start:
                self._there[queue] = self._looked(queue, start)
        unmarked = {queue: self._end(queue) for queue in sorted(starts) if queue not in self._begins}
        if unmarked:
            store_id = self._report.store_id
            begins = {(topic, store_id, queue_id): end for (topic, queue_id), end in unmarked.items()}
            self._target.commit_offsets(self._group, begins)
            self._begins.update(unmarked)

    def _end(self, queue: _Queue) -> int:
        end: int = self._target.pull(*queue, _BEYOND, 1)["max_offset"]
        return end

    def _start(self, message: StoredMessage) -> int:
        """Returns the offset in its queue from which on a message may be there already."""
        queue = _queue_of(message)
        if self._look_everywhere or _marks(message.properties):
            return 0
        begin = self._begins.get(queue, _BEYOND)
        return min(begin, self._unmarked_from(queue)) if self._is_tight(message.record) else begin

    def _unmarked_from(self, queue: _Queue) -> int:
        """Returns the offset in a queue from which on a message without a mark may be a salvaged one."""
        if self._is_copy:
            return self._begins.get(queue, _BEYOND)
        topic, queue_id = queue
        return self._files.next_offset(topic, queue_id)

    def _looked(self, queue: _Queue, start: int) -> _There:
        """Reads what a queue holds from ``start`` on."""
        found, unmarked_from = _There(start), self._unmarked_from(queue)
        for message in self._pulled(queue, start):
            marks = _marks(message["properties"])
            if marks or message["queue_offset"] >= unmarked_from:
                digest = _digest_there(message)
                found.marked.update((*mark, digest) for mark in marks)
                if not marks:
                    found.unmarked[digest] += 1
        return found

    def _pulled(self, queue: _Queue, offset: int, end: int = _BEYOND) -> Iterator[Json]:
        """Yields messages of the new volume's queue with offsets ``[offset, end)``."""
        while offset < end:
            page = self._target.pull(*queue, offset, min(_PAGE, end - offset))
            yield from (message for message in page["messages"] if message["queue_offset"] < end)
            if page["status"] in (PullStatus.NO_NEW_MESSAGE.value, PullStatus.OFFSET_TOO_LARGE.value):
                return
            offset = page["next_offset"]

    def _is_there(self, message: StoredMessage) -> bool:
        """Whether an earlier run has appended a message, or salvaged it from another volume."""
        queue, digest = _queue_of(message), _digest_here(message)
        there = self._there[queue]
        origins = [*_marks(message.properties), (self._report.volume_id, message.record.physical_offset)]
        if any((*origin, digest) in there.marked for origin in origins):
            return True
        settled = queue, digest
        if not self._is_tight(message.record) or there.unmarked[digest] <= self._settled[settled]:
            return False
        self._settled[settled] += 1
        return True

    def _was_erased_here(self, message: StoredMessage) -> bool:
        """Whether a message may have been salvaged before, and is erased since with the mark that it had."""
        may_be = self._is_again or _marks(message.properties)
        return bool(may_be) and self._erased.ever_hid(message.record)

    def _is_tight(self, record: Record) -> bool:
        """Whether a record may have no room for a mark."""
        room = self._files.segment_bytes - BLANK_BYTES - record.size
        return min(room, MAX_PROPERTIES_BYTES - len(record.properties_text)) < _ADDED_BYTES

    def _in_place(self, messages: list[StoredMessage]) -> set[int]:
        """Finds physical offsets of messages that a twin may have too, and has, where they are here."""
        if not self._is_copy:
            return set()
        unsure = [each for each in messages if each.record.physical_offset < self._parting.parted_from]
        unsure.sort(key=_queue_of)
        found: set[int] = set()
        for queue, group in groupby(unsure, key=_queue_of):
            mine = {each.record.physical_offset: each for each in group}
            offsets = [each.record.queue_offset for each in mine.values()]
            for there in self._pulled(queue, min(offsets), max(offsets) + 1):
                here = mine.get(there["physical_offset"])
                if here is not None and _digest_here(here) == _digest_there(there):
                    found.add(there["physical_offset"])
        return found

    # appending

    def _append(self, messages: list[StoredMessage]) -> None:
        """Appends messages of one topic; where the new volume refuses them, as few at a time as it takes."""
        try:
            self._target.append([self._marked(message) for message in messages], Durability.FLUSHED)
        except InvalidRequestError as error:
            if len(messages) == 1:
                self._append_refused(messages[0], error)
                return
            half = len(messages) // 2
            self._append(messages[:half])
            self._append(messages[half:])
        else:
            self._report.appended += len(messages)

    def _append_refused(self, message: StoredMessage, refused: InvalidRequestError) -> None:
        """Appends a message without its mark if that was too much; it is known by what it holds then."""
        if not (isinstance(refused, MessageTooLargeError) and self._is_tight(message.record)):
            self._not_saved(message, refused.message)
            return
        try:
            self._target.append([self._plain(message)], Durability.FLUSHED)
        except InvalidRequestError as error:
            self._not_saved(message, error.message)
            return
        queue, digest = _queue_of(message), _digest_here(message)
        self._there[queue].unmarked[digest] += 1
        self._settled[queue, digest] += 1
        self._report.appended += 1

    def _not_saved(self, message: StoredMessage, reason: str) -> None:
        record = message.record
        end = record.physical_offset + record.size
        self._report.not_saved.append(NotSaved(record.physical_offset, end, record.topic, reason))

    def _marked(self, message: StoredMessage) -> Message:
        """Makes the message as its client sent it, with where it comes from; that of an earlier salvage stays."""
        plain = self._plain(message)
        marks = [plain.properties[PROPERTY]] if PROPERTY in plain.properties else []
        marks.append(f"{self._report.volume_id}:{message.record.physical_offset}")
        return replace(plain, properties={**plain.properties, PROPERTY: " ".join(marks)})

    def _plain(self, message: StoredMessage) -> Message:
        record = message.record
        body, _ = message.readable_body()
        born_ms = min(max(record.born_ms, 0), BORN_END_MS - 1)
        properties = message.properties
        if born_ms != record.born_ms:
            properties[BORN_PROPERTY] = str(record.born_ms)
        return Message(
            topic=record.topic,
            body=body,
            keys=message.keys,
            tag=message.tag,
            properties=properties,
            born_ms=born_ms,
            queue_id=record.queue_id,
            born_host=_born_host(record),
        )


def _born_host(record: Record) -> str:
    port = int.from_bytes(record.born_host[-4:])
    return host_text(record.born_host) if any(record.born_host) and port < 1 << 16 else ""


def _queue_of(message: StoredMessage) -> _Queue:
    return message.record.topic, message.record.queue_id
