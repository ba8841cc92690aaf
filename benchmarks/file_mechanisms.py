"""Models of what files hold: states in a chunk's header, a length at both ends, positions instead of queue units.

:mod:`benchmarks.mechanisms` measures them. They are what EQueue, a message queue in C#, does where RocketMQ and so
tierlog have no header, a length in front alone, and units of 20 bytes.
"""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.append import opened
from benchmarks.flush_mechanisms import counted_log, record_of
from benchmarks.harness import drained
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.queue_unit import UNIT_DTYPE
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.kernels.scan import ScanRows, TopicTable, scan_all
from tierlog.tiering.message.batch import Message

#: EQueue's header and footer, of fixed length.
CHUNK_HEADER_BYTES = CHUNK_FOOTER_BYTES = 128
_SEGMENT_BYTES = 1 << 16
_SEGMENTS = 64
_ROLLS = 16
_LENGTH = struct.Struct(">i")
_NEWEST = 32
_LOOK_UPS = 2_000
_QUEUED = 50_000
_TAGS = 16


# chunk headers with stored states


def rolls(folder: Path, *, with_states: bool) -> float:
    """Ms that a roll takes whose next segment is there, ``with_states``: the old one is marked."""
    seconds = []
    with counted_log(folder, _SEGMENT_BYTES) as counted:
        log = counted.log
        log.reserve(_ROLLS)
        record = record_of(385)
        for number in range(_ROLLS):
            while log.room() >= len(record):
                log.write(record)
            log.flush()
            path = counted.path.with_name(f"{number * _SEGMENT_BYTES:020}")
            begun = time.perf_counter()
            log.roll()
            if with_states:
                file = os.open(path, os.O_WRONLY)
                os.pwrite(file, bytes(CHUNK_FOOTER_BYTES), _SEGMENT_BYTES - CHUNK_FOOTER_BYTES)
                os.pwrite(file, record[:CHUNK_HEADER_BYTES], 0)
                os.fdatasync(file)
                os.close(file)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e3


def make_segments(folder: Path) -> StorePaths:
    """Makes files of the names and lengths of segments, all but the last of them full."""
    paths = StorePaths(folder)
    for each in (paths.commitlog, paths.tmp):
        each.mkdir(parents=True)
    for number in range(_SEGMENTS):
        paths.segment(number * _SEGMENT_BYTES).write_bytes(os.urandom(_SEGMENT_BYTES))
    return paths


def loads(paths: StorePaths, *, with_states: bool) -> float:
    """Ms in which it is known which segments are complete; ``with_states``: as header and footer of each say."""
    begun = time.perf_counter()
    log = CommitLog(LocalFileSystem(), paths, _SEGMENT_BYTES)
    log.load()
    complete = _SEGMENTS - 1
    if with_states:
        complete = 0
        for base in log.bases():
            with paths.segment(base).open("rb") as file:
                header = file.read(CHUNK_HEADER_BYTES)
                file.seek(-CHUNK_FOOTER_BYTES, os.SEEK_END)
                complete += len(file.read()) == len(header)
    seconds = time.perf_counter() - begun
    log.close()
    assert complete
    return seconds * 1e3


# a length at both ends


class TwoLogs(NamedTuple):
    """The same records without and with a length behind each, and the queue units of the first."""

    plain: bytes
    units: NDArray[np.void]
    both_ends: bytes


def two_logs(body_bytes: int, count: int = 2_000) -> TwoLogs:
    """So many records of one queue."""
    record = record_of(body_bytes)
    size = len(record)
    units = np.zeros(count, UNIT_DTYPE)
    units["physical_offset"], units["size"] = np.arange(count) * size, size
    both = b"".join(record + _LENGTH.pack(size) for _ in range(count))
    return TwoLogs(record * count, units, both)


def newest_by_units(logs: TwoLogs) -> float:
    """Look-ups a second of the newest 32 records by a queue's units."""
    begun = time.perf_counter()
    data = logs.plain
    for _ in range(_LOOK_UPS):
        last = logs.units[-_NEWEST:]
        found = [
            data[at : at + size]
            for at, size in zip(last["physical_offset"].tolist(), last["size"].tolist(), strict=True)
        ]
    assert len(found) == _NEWEST
    return _LOOK_UPS / (time.perf_counter() - begun)


def newest_by_lengths(logs: TwoLogs) -> float:
    """The same by going back from the log's end, from length to length."""
    begun = time.perf_counter()
    data = logs.both_ends
    for _ in range(_LOOK_UPS):
        found, end = list[bytes](), len(data)
        while len(found) < _NEWEST:
            end -= _LENGTH.size
            (size,) = _LENGTH.unpack_from(data, end)
            end -= size
            found.append(data[end : end + size])
    assert len(found) == _NEWEST
    return _LOOK_UPS / (time.perf_counter() - begun)


# positions instead of queue units


class Queued(NamedTuple):
    """A log of one queue whose messages have one of 16 tags, with what either kind of queue file holds of it."""

    data: ByteArray
    rows: ScanRows
    units: NDArray[np.void]
    positions: NDArray[np.int64]


def queued(folder: Path, body_bytes: int) -> Queued:
    """Appends the messages to a store and scans what it wrote."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store", prewritten=False, start=False, default_queues=1)
        body = os.urandom(body_bytes)
        for first in range(0, _QUEUED, 1_000):
            batch = [Message("orders", body, tag=f"Tag{number % _TAGS}") for number in range(first, first + 1_000)]
            engine.append(batch, Durability.ASYNC)
        log = engine._hot.log
        data = np.array(log.segments()[0].data[: log.end])
        engine.close()
    rows = scan_all(data, len(data), 0, TopicTable(["orders"])).rows
    units = np.zeros(len(rows), UNIT_DTYPE)
    units["physical_offset"], units["size"] = rows["physical_offset"], rows["size"]
    units["tag_hash"] = rows["tag_hash"]
    return Queued(data, rows, units, rows["physical_offset"].astype(">i8"))


def write_items(folder: Path, items: NDArray[np.generic]) -> float:
    """Items a second into a new queue file, until they are on the disk."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        drained()
        file = os.open(Path(inside) / "queue", os.O_CREAT | os.O_WRONLY)
        begun = time.perf_counter()
        os.pwrite(file, items.tobytes(), 0)
        os.fdatasync(file)
        seconds = time.perf_counter() - begun
        os.close(file)
    return len(items) / seconds


def filter_by_units(of: Queued) -> float:
    """Messages a second that are gone through for one of 16 tags, by what the units say."""
    begun = time.process_time()
    wanted = of.units[of.units["tag_hash"] == tag_hash("Tag3")]
    data = of.data.data
    found = [
        bytes(data[at : at + size])
        for at, size in zip(wanted["physical_offset"].tolist(), wanted["size"].tolist(), strict=True)
    ]
    assert len(found) == _QUEUED // _TAGS
    return _QUEUED / (time.process_time() - begun)


def filter_by_records(of: Queued) -> float:
    """The same by what the records themselves say, which positions alone lead to; tierlog's scan reads them."""
    begun = time.process_time()
    rows = scan_all(of.data, len(of.data), 0, TopicTable(["orders"])).rows
    wanted = rows[rows["tag_hash"] == tag_hash("Tag3")]
    data = of.data.data
    found = [
        bytes(data[at : at + size])
        for at, size in zip(wanted["position"].tolist(), wanted["size"].tolist(), strict=True)
    ]
    assert len(found) == _QUEUED // _TAGS
    return _QUEUED / (time.process_time() - begun)


def pages_of_filter(of: Queued) -> tuple[int, int]:
    """Pages of the log that a reader of one tag touches by units, and by records."""
    wanted = of.rows[of.rows["tag_hash"] == tag_hash("Tag3")]
    first, last = wanted["position"] // 4096, (wanted["position"] + wanted["size"] - 1) // 4096
    touched = {page for one, other in zip(first.tolist(), last.tolist(), strict=True) for page in range(one, other + 1)}
    return len(touched), -(-len(of.data) // 4096)
