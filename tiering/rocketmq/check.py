"""Compares a broker's own files with its commit log and says every difference in one line. Never edits.

The log is scanned whole, with every checksum. Each queue unit must lead to a record of that queue with the size, tag
code and queue offset that the record says, and each record that belongs in a queue must have a unit, unless its topic
was deleted and made again behind it. The checkpoint must not be ahead of the log. A broker that runs, or that stopped
without its shutdown, may be some records behind with its queues: that is found like the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError, NotFoundError
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.checkpoint import CHECKPOINT_BYTES, Checkpoint
from tierlog.tiering.format.queue_unit import LAST_EXTENSION
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, in_queues, scan, topic_at_stop
from tierlog.tiering.message.tags import tag_codes
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.rocketmq.broker_files import broker_queues, broker_topics, read_consumer_offsets, read_topics

QueueName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerStore:
    """A broker's store directory below the overlay, for what tierlog shows of it beside the messages. Never writes."""

    fs: FileSystem
    paths: StorePaths

    def check(self) -> list[str]:
        """Returns one line for each finding, see :func:`check_broker`."""
        return check_broker(self.fs, self.paths)

    def consumer_offsets(self) -> dict[str, dict[str, int]] | str:
        """``topic@group`` to the next offset of each queue, as the broker names them, or why that cannot be told."""
        try:
            found = read_consumer_offsets(self.fs, self.paths)
        except CorruptionError as error:
            return str(error)
        return {
            f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()}
            for (topic, group), queues in found.items()
        }


def check_broker(fs: FileSystem, paths: StorePaths) -> list[str]:
    """Returns everything that does not fit together; memory grows with 40 bytes a message."""
    return list(_check_broker(fs, paths))


@dataclass(slots=True)
class _Wanted:
    """The units that the log demands of one queue."""

    pieces: list[NDArray[np.void]] = field(default_factory=list)
    #: Where the queue began again at offset 0, for the last time.
    began_at: int = -1


#: What a unit must be.
_UNIT = np.dtype([("physical_offset", "<i8"), ("queue_offset", "<i8"), ("tag_code", "<i8"), ("size", "<i4")])


@dataclass(slots=True)
class _Log:
    """The findings of the scan of the log."""

    begin: int = 0
    end: int = 0
    last_store_ms: int = 0
    queues: dict[QueueName, _Wanted] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    #: Ranges that could not be read; no unit is expected to lead there or missed.
    damaged: list[tuple[int, int]] = field(default_factory=list)


def _check_broker(fs: FileSystem, paths: StorePaths) -> Iterator[str]:
    log = _Log(topics=broker_topics(fs, paths))
    for name in sorted(set(fs.list_dir(paths.consumequeue)) - set(log.topics)):
        yield f"queues: {name!r} is no topic's name"
    yield from _check_log(fs, paths, log)
    yield from _check_queues(fs, paths, log)
    yield from _check_checkpoint(fs, paths, log)
    for read in (read_topics, read_consumer_offsets):
        try:
            read(fs, paths)
        except CorruptionError as error:
            yield f"config: {error}"


def _check_log(fs: FileSystem, paths: StorePaths, log: _Log) -> Iterator[str]:
    found = {base: name for name in fs.list_dir(paths.commitlog) if (base := parse_base_offset(name)) is not None}
    segments: dict[int, ByteArray] = {}
    for base, name in sorted(found.items()):
        try:
            data = fs.map_read(paths.commitlog / name)
        except NotFoundError:  # a running broker has just removed it
            continue
        if len(data) or base != max(found):  # the broker has just created its last file
            segments[base] = data
    log.begin = log.end = min(segments, default=0)
    written = [base for base, data in segments.items() if data[:8].any()]
    expected = log.begin
    for base, data in segments.items():
        if base != expected:
            yield f"log: {base - expected} bytes are missing before segment {base_offset_name(base)}"
        expected = base + len(data)
        if base in written:
            yield from _check_segment(base, data, log, is_last=base == written[-1])


def _check_segment(base: int, data: ByteArray, log: _Log, *, is_last: bool) -> Iterator[str]:
    position = 0
    while True:
        table = TopicTable(log.topics)
        found = scan(data, position, len(data), base, table, check_crc=True, check_torn=True)
        position = found.position
        rows = found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows
        _note(log, data, rows)
        log.end = base + position
        if found.stop is ScanStop.UNKNOWN_TOPIC:
            log.topics.append(topic_at_stop(data, found))
        elif found.stop is not ScanStop.ROWS_FULL:
            break
    if found.stop is not ScanStop.INVALID:
        if found.stop is ScanStop.BLANK:
            log.end = base + len(data)
        return
    rest = np.flatnonzero(data[position:] != 0)
    if is_last and not len(rest):
        return
    if not len(rest):
        yield f"log: segment {base_offset_name(base)} ends at {base + position}, and the log goes on behind it"
    elif is_last:
        upto = base + position + int(rest[-1]) + 1
        yield f"log: bytes from {base + position} to {upto} follow the last whole record and are none"
    else:
        yield f"log: damaged at {base + position}; nothing behind it in segment {base_offset_name(base)} can be read"
    if not is_last:
        log.damaged.append((base + position, base + len(data)))


def _note(log: _Log, data: ByteArray, rows: ScanRows) -> None:
    if len(rows):
        log.last_store_ms = max(log.last_store_ms, int(rows["store_ms"].max()))
    rows = rows[in_queues(rows)]
    order = np.lexsort((rows["queue_id"], rows["topic_number"]))
    rows = rows[order]
    cuts = np.flatnonzero((np.diff(rows["topic_number"]) != 0) | (np.diff(rows["queue_id"]) != 0)) + 1
    for mine in np.split(rows, cuts):
        if not len(mine):
            continue
        topic = log.topics[int(mine["topic_number"][0])]
        wanted = log.queues.setdefault((topic, int(mine["queue_id"][0])), _Wanted())
        piece = np.empty(len(mine), _UNIT)
        for name in ("physical_offset", "queue_offset", "size"):
            piece[name] = mine[name]
        piece["tag_code"] = tag_codes(topic, data, mine)
        wanted.pieces.append(piece)
        beginnings = mine["physical_offset"][mine["queue_offset"] == 0]
        if len(beginnings):
            wanted.began_at = int(beginnings[-1])


def _check_queues(fs: FileSystem, paths: StorePaths, log: _Log) -> Iterator[str]:
    checked = set()
    for queue in broker_queues(fs, paths):
        key = queue.topic, queue.queue_id
        checked.add(key)
        first, units = queue.units(fs)
        have = np.empty(len(units), _UNIT)
        have["physical_offset"], have["size"] = units["physical_offset"], units["size"]
        have["tag_code"], have["queue_offset"] = units["tag_hash"], first + np.arange(len(units))
        yield from _check_queue(f"queue {queue.topic}/{queue.queue_id}", queue.topic, have, log, key)
    for topic, queue_id in sorted(log.queues.keys() - checked):
        count = sum(len(piece) for piece in log.queues[topic, queue_id].pieces)
        yield f"queue {topic}/{queue_id}: has no files, and the log has {count} messages of it"


def _check_queue(name: str, topic: str, have: NDArray[np.void], log: _Log, key: QueueName) -> Iterator[str]:
    wanted = log.queues.get(key, _Wanted())
    want = np.concatenate([np.empty(0, _UNIT), *wanted.pieces])
    offsets = have["physical_offset"]
    back = np.flatnonzero(np.diff(offsets) <= 0)
    if len(back):
        yield f"{name}: unit {int(have['queue_offset'][back[0] + 1])} leads to an earlier record than the one before it"
        return
    behind = have[offsets >= log.end]
    if len(behind):
        yield (
            f"{name}: {len(behind)} units, from {int(behind['queue_offset'][0])} on, lead to {log.end} or later, "
            "where the log has ended"
        )
    have = have[(offsets >= log.begin) & (offsets < log.end) & ~_inside(offsets, log.damaged)]
    places = np.searchsorted(have["physical_offset"], want["physical_offset"])
    there = places < len(have)
    there[there] = have["physical_offset"][places[there]] == want["physical_offset"][there]
    known = np.zeros(len(have), np.bool_)
    known[places[there]] = True
    if not known.all():
        wrong = have[~known]
        yield (
            f"{name}: {len(wrong)} units lead to no message of it, the first is unit {int(wrong['queue_offset'][0])}, "
            f"which says {int(wrong['physical_offset'][0])}"
        )
    missed = want[~there & (want["physical_offset"] >= wanted.began_at)]
    if len(missed):
        yield (
            f"{name}: {len(missed)} messages have no unit, the first is message {int(missed['queue_offset'][0])} "
            f"at {int(missed['physical_offset'][0])}"
        )
    yield from _check_fields(name, topic, have[places[there]], want[there])


def _check_fields(name: str, topic: str, have: NDArray[np.void], want: NDArray[np.void]) -> Iterator[str]:
    fits = {field: have[field] == want[field] for field in ("queue_offset", "size", "tag_code")}
    fits["tag_code"] |= have["tag_code"] <= LAST_EXTENSION
    if topic == SCHEDULE_TOPIC:  # the broker may have delays of its own; no hash is as great as a time
        fits["tag_code"] |= (have["tag_code"] > 1 << 32) & (want["tag_code"] > 1 << 32)
    for field_name, same in fits.items():
        if not same.all():
            at = int(np.argmin(same))
            yield (
                f"{name}: {field_name} of unit {int(have['queue_offset'][at])} is {int(have[field_name][at])}, the log "
                f"says {int(want[field_name][at])}; {int((~same).sum())} units like that"
            )


def _inside(offsets: NDArray[np.int64], ranges: list[tuple[int, int]]) -> NDArray[np.bool_]:
    found = np.zeros(len(offsets), np.bool_)
    for start, end in ranges:
        found |= (offsets >= start) & (offsets < end)
    return found


def _check_checkpoint(fs: FileSystem, paths: StorePaths, log: _Log) -> Iterator[str]:
    try:
        data = fs.read(paths.checkpoint)
    except NotFoundError:
        return
    if len(data) != CHECKPOINT_BYTES:
        yield f"checkpoint: {len(data)} bytes instead of {CHECKPOINT_BYTES}"
    checkpoint = Checkpoint.decode(data)
    for name in ("physic_ms", "logics_ms", "index_ms"):
        if (value := getattr(checkpoint, name)) > log.last_store_ms:
            yield f"checkpoint: {name} {value} is later than the last message of the log, stored at {log.last_store_ms}"
    for name in ("master_flushed", "confirm_offset"):
        if (value := getattr(checkpoint, name)) > log.end:
            yield f"checkpoint: {name} {value} lies behind the end of the log at {log.end}"
