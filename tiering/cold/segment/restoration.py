"""Puts an archived segment back into a file: the commit-log segment that it was made of, byte for byte.

The file gets its name when all of it is on the disk. Killed before that: a file named ``.NAME.…`` beside it, which
nothing reads. Killed after it: the whole segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TornRecordError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A segment put back. It equals the original if ``fillers`` is 0; else so many removed records are missing."""

    size_bytes: int
    records: int
    fillers: int


def restore_segment(
    segment: SegmentReader,
    entry: LogEntry,
    fs: FileSystem,
    out: Path,
    nonce: str,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RestoredFile:
    """Writes the segment of ``entry`` to ``out``, with every checksum compared, of frames and of records.

    ``progress`` is called with the bytes done and in all. Memory: a few frames, and the file's pages. Raises
    :class:`InvalidRequestError` if the file is there and must not be replaced, :class:`CorruptionError` if the object
    is damaged: then there is no file.
    """
    _refuse(fs, out, overwrite)
    temporary = out.parent / f".{out.name}.{nonce}"
    fs.create(temporary, entry.segment_bytes, prewrite=False)
    try:
        restored = _write(segment, entry, fs, temporary, progress or (lambda done, of: None))
        _refuse(fs, out, overwrite)  # it may have come meanwhile
        fs.rename(temporary, out)
        fs.flush_dir(out.parent)
    except BaseException:
        with contextlib.suppress(StoreError):
            fs.unlink(temporary)
        raise
    return restored


def _refuse(fs: FileSystem, out: Path, overwrite: bool) -> None:
    if fs.exists(out) and not overwrite:
        raise InvalidRequestError("the file is there already", path=str(out), hint="--overwrite replaces it")


def _write(
    segment: SegmentReader, entry: LogEntry, fs: FileSystem, path: Path, progress: Callable[[int, int], None]
) -> RestoredFile:
    blank_position, ending = segment.ending()
    data = fs.map_write(path)
    records = fillers = done = 0
    for items in segment.put_together(data):
        records, fillers = records + len(items), fillers + int(items["filler"].sum())
        done += int(items["size"].sum())
        progress(done, blank_position)
    if (records, done) != (entry.records, blank_position):
        raise TornRecordError("records do not fill the segment up to its blank record", path=entry.key)
    _scan(data, entry, blank_position, TopicTable(segment.topics()), records - fillers)
    data[blank_position : blank_position + len(ending)] = np.frombuffer(ending, np.uint8)
    flush_file(fs, path)
    return RestoredFile(entry.segment_bytes, records, fillers)


def _scan(data: ByteArray, entry: LogEntry, end: int, topics: TopicTable, records: int) -> None:
    """Every record below ``end``, with its checksums; raises :class:`TornRecordError` at the first that is damaged."""
    position = 0
    while position < end:
        found = scan(data, position, end, entry.base, topics, check_crc=True, pass_fillers=True)
        position, records = found.position, records - len(found.rows)
        if found.stop not in (ScanStop.ROWS_FULL, ScanStop.END):
            reason = found.stop.name.lower().replace("_", " ")
            raise TornRecordError(
                f"archived record is damaged ({reason})", path=entry.key, position=entry.base + position
            )
    if records:
        raise TornRecordError("records overlap each other in the log", path=entry.key)
