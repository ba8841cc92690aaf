"""Reads the cold copy that a RocketMQ broker's tiered store keeps in a directory (its Posix provider).

Which segments there are stands in ``config/tieredStoreMetadata.json`` of the broker; their bytes lie in
``<cluster folder>/<broker>/<topic>/<queue id>/<kind>/<8 hex digits><base offset, 20 digits>``, the hex digits being the
start of the MD5 of the decimal offset, the cluster folder ``<8 hex digits of the name's MD5>_<name>``. Each queue has
a commit log of its own, which starts at 0 and whose records carry their offset in it instead of the physical offset,
and a consume queue of 20-byte units that point into it. Old brokers closed a commit-log segment with 16 bytes more;
they lie between records, where no unit points.

The broker reads times of messages with an IPv6 born host at the wrong place, so begin times in its metadata may be
nonsense. Nothing here depends on them: times come from the records.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, NotFoundError
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.rocketmq.fastjson import JsonValue, parse_json

INDEX_TOPIC = "rmq_sys_INDEX"
_TABLES = ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable", "indexFileSegmentTable")
_KINDS = ("COMMIT_LOG", "CONSUME_QUEUE", "INDEX")
_DELETED = 2
#: Where the queue offset lies in a record, and the least bytes that hold it.
_QUEUE_OFFSET_AT, _HEAD_BYTES = 20, 28


def hash8(text: str) -> str:
    """The first 8 hex digits of the MD5 of a text, as they stand in names."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def segment_name(base_offset: int) -> str:
    """Name of a segment file."""
    return f"{hash8(str(base_offset))}{base_offset:020d}"


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """One file of the copy; times are the broker's, in ms, and may be nonsense."""

    path: Path
    base_offset: int
    size: int
    begin_ms: int
    end_ms: int


def offset_of_time(first: int, next: int, store_ms: Callable[[int], int], time_ms: int, boundary: Boundary) -> int:
    """The queue offset in ``[first, next)`` that belongs to a store time, by the rule of RocketMQ's cold store.

    The first message stored at or after the time; with ``UPPER`` the last of several stored at just that time. ``next``
    if all are older.
    """
    if first >= next or store_ms(first) > time_ms:
        return first
    if store_ms(next - 1) < time_ms:
        return next
    low, high = first, next - 1
    while low < high:
        middle = (low + high) // 2
        if store_ms(middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.UPPER:
        while low + 1 < next and store_ms(low + 1) == time_ms:
            low += 1
    return low


class _FlatFile:
    """Segments of one kind, read as one run of bytes."""

    def __init__(self, fs: FileSystem, segments: list[ColdSegment]) -> None:
        self._fs = fs
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._maps: dict[int, ByteArray] = {}
        self.begin = self._bases[0] if segments else 0
        self.end = segments[-1].base_offset + segments[-1].size if segments else 0

    def read(self, position: int, length: int) -> bytes:
        """Returns exactly these bytes; :class:`CorruptionError` where there are none."""
        found = b""
        while len(found) < length:
            at = position + len(found)
            number = bisect_right(self._bases, at) - 1
            segment = self.segments[number] if number >= 0 else None
            if length < 0 or segment is None or at >= segment.base_offset + segment.size:
                raise CorruptionError("the cold copy has no such bytes", path=self._where(), position=position)
            start = at - segment.base_offset
            found += bytes(self._map(number)[start : min(segment.size, start + length - len(found))])
        return found

    def _map(self, number: int) -> ByteArray:
        if number not in self._maps:
            self._maps[number] = self._fs.map_read(self.segments[number].path)
        return self._maps[number]

    def _where(self) -> str | None:
        return str(self.segments[0].path.parent) if self.segments else None


class TieredQueue:
    """One queue of the copy: half-open ranges of its log and of its queue offsets."""

    def __init__(self, topic: str, topic_id: int, queue_id: int, log: _FlatFile, queue: _FlatFile) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.queue_id = queue_id
        self._log = log
        self._queue = queue
        self.log_begin, self.log_end = log.begin, log.end
        self.next = queue.end // UNIT_BYTES
        #: The first offset whose message is there: after expiry the log may begin later than the queue.
        self.first = max(queue.begin // UNIT_BYTES, self._first_in_log())

    def _first_in_log(self) -> int:
        if self._log.end - self._log.begin < _HEAD_BYTES:
            return -1
        return int.from_bytes(self._log.read(self._log.begin + _QUEUE_OFFSET_AT, 8), "big", signed=True)

    def units(self, start: int, end: int) -> UnitArray:
        """Units of queue offsets ``[start, end)``, cut to what exists; their offsets are those in the queue's log."""
        start, end = max(start, self.first), min(end, self.next)
        if start >= end:
            return np.empty(0, UNIT_DTYPE)
        return np.frombuffer(self._queue.read(start * UNIT_BYTES, (end - start) * UNIT_BYTES), UNIT_DTYPE)

    def record_at(self, offset: int, size: int) -> Record:
        """The record at an offset of this queue's log; raises as :func:`decode_record`."""
        return decode_record(self.bytes_at(offset, size), physical_offset=offset, is_moved=True)

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Bytes of this queue's log; :class:`CorruptionError` where there are none."""
        return self._log.read(offset, size)

    def bytes_of(self, queue_offset: int) -> bytes:
        """The record's bytes as they lie in the copy; :class:`NotFoundError` outside ``[first, next)``."""
        if not self.first <= queue_offset < self.next:
            raise NotFoundError(f"queue {self.queue_id} of {self.topic!r} has no message {queue_offset}")
        (unit,) = self.units(queue_offset, queue_offset + 1)
        return self.bytes_at(int(unit["physical_offset"]), int(unit["size"]))

    def record(self, queue_offset: int) -> Record:
        """The message of a queue offset; its physical offset is the one in this queue's log."""
        return decode_record(self.bytes_of(queue_offset), is_moved=True)

    def offset_by_time(self, time_ms: int, boundary: Boundary) -> int:
        """See :func:`offset_of_time`; times are those of the records."""
        return offset_of_time(self.first, self.next, lambda offset: self.record(offset).store_ms, time_ms, boundary)


class TieredCopy:
    """A whole cold copy, read-only."""

    def __init__(self, queues: dict[tuple[str, int], TieredQueue], index: list[ColdSegment]) -> None:
        """Use :meth:`open`."""
        self.queues = queues
        #: Uploaded index files by their base offset, oldest first (``tests.support.oracles.tiered_index``).
        self.index_segments = index

    @classmethod
    def open(cls, fs: FileSystem, metadata: Path, folder: Path) -> TieredCopy:
        """Opens the copy below ``folder`` (a cluster's folder, or the one around it) that ``metadata`` describes.

        Raises :class:`CorruptionError` for metadata that cannot be read or files that are not there.
        """
        document = _Metadata(parse_json(fs.read(metadata), path=str(metadata)), str(metadata))
        clusters = [folder / name for name in fs.list_dir(folder) if name == f"{hash8(name[9:])}_{name[9:]}"]
        if len(clusters) > 1:
            raise CorruptionError("the folder holds copies of several clusters", path=str(folder), hint="name one")
        root = clusters[0] if clusters else folder
        queues = {}
        for topic, queue_id, broker in document.queues():
            flat = [_FlatFile(fs, document.segments(fs, root, kind, f"{broker}/{topic}/{queue_id}")) for kind in (0, 1)]
            if flat[1].segments:
                queues[topic, queue_id] = TieredQueue(topic, document.topic_id(topic), queue_id, *flat)
        brokers = {broker for _, _, broker in document.queues()}
        index = [
            segment
            for broker in sorted(brokers)
            for segment in document.segments(fs, root, 2, f"{broker}/{INDEX_TOPIC}/0")
        ]
        return cls(queues, index)

    def topic_ids(self) -> dict[str, int]:
        """Ids by topic, as items of the index name topics."""
        return {queue.topic: queue.topic_id for queue in self.queues.values()}


class _Metadata:
    """``tieredStoreMetadata.json`` with every type checked."""

    def __init__(self, document: JsonValue, path: str) -> None:
        self._path = path
        self._document = self._object(document)

    def _object(self, value: JsonValue) -> dict[str, JsonValue]:
        if not isinstance(value, dict):
            raise CorruptionError("an object is missing in the metadata of a cold copy", path=self._path)
        return value

    def _number(self, entry: dict[str, JsonValue], name: str) -> int:
        value = entry.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise CorruptionError(f"{name} is no number in the metadata of a cold copy", path=self._path)
        return value

    def _text(self, entry: dict[str, JsonValue], name: str) -> str:
        value = entry.get(name)
        if not isinstance(value, str) or not value or "/" in value or value in (".", ".."):
            raise CorruptionError(f"{name} is no name in the metadata of a cold copy", path=self._path)
        return value

    def _table(self, name: str) -> dict[str, JsonValue]:
        return self._object(self._document.get(name, {}))

    def queues(self) -> list[tuple[str, int, str]]:
        """(topic, queue id, broker) of every queue, sorted."""
        found = []
        for queues in self._table("queueMetadataTable").values():
            for value in self._object(queues).values():
                queue = self._object(self._object(value).get("queue"))
                found.append(
                    (self._text(queue, "topic"), self._number(queue, "queueId"), self._text(queue, "brokerName"))
                )
        return sorted(found)

    def topic_id(self, topic: str) -> int:
        """The id that the broker gave a topic."""
        return self._number(self._object(self._table("topicMetadataTable").get(topic)), "topicId")

    def segments(self, fs: FileSystem, root: Path, kind: int, path: str) -> list[ColdSegment]:
        """Segments that hold bytes, by base offset. The last one of a log or queue is as long as its file."""
        entries = [self._object(value) for value in self._object(self._table(_TABLES[kind]).get(path, {})).values()]
        entries.sort(key=lambda entry: self._number(entry, "baseOffset"))
        found = []
        for entry in entries:
            base, size = self._number(entry, "baseOffset"), self._number(entry, "size")
            file = root / path / _KINDS[kind] / segment_name(base)
            if self._number(entry, "status") == _DELETED or not fs.exists(file):
                if size and self._number(entry, "status") != _DELETED:
                    raise CorruptionError("a segment of the cold copy is missing", path=str(file))
                continue
            real = fs.size(file)
            if entry is entries[-1] and kind < 2:
                size = real
            if base < 0 or not 0 <= size <= real:
                raise CorruptionError(f"a segment of the cold copy has {real} bytes, not {size}", path=str(file))
            if size:
                begin, end = self._number(entry, "beginTimestamp"), self._number(entry, "endTimestamp")
                found.append(ColdSegment(file, base, size, begin, end))
        return found
