"""Puts an archived segment back into a file: the commit-log segment that it was made of, byte for byte.

The file gets its name when all of it is on the disk. Killed before that: a file named ``.NAME.…`` beside it, which
nothing reads. Killed after it: the whole segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiering.cold.segment.reader import SegmentReader
from tiering.errors import InvalidRequestError, StoreError, TornRecordError
from tiering.format.filler import decode_filler, is_filler
from tiering.format.manifest import LogEntry
from tiering.format.record import decode_record
from tiering.fs import FileSystem

_STEP_RECORDS = 4_096


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
    """Write the segment of ``entry`` to ``out``, with every checksum compared, of frames and of records.

    ``progress`` is told bytes done and in all. Memory: a few frames. Raises :class:`InvalidRequestError` if the file is
    there and must not be replaced, :class:`CorruptionError` if the object is damaged: then there is no file.
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
    records = fillers = done = 0
    file = fs.open(path)
    try:
        for position, item in segment.raw_items():
            if is_filler(item):
                decode_filler(item)
                fillers += 1
            else:
                decode_record(item, physical_offset=entry.base + position)
            file.write_at(position, item)
            records, done = records + 1, done + len(item)
            if records % _STEP_RECORDS == 0:
                progress(done, blank_position)
        if (records, done) != (entry.records, blank_position):
            raise TornRecordError("records do not fill the segment up to its blank record", path=entry.key)
        file.write_at(blank_position, ending)
        file.flush()
    finally:
        file.close()
    progress(done, blank_position)
    return RestoredFile(entry.segment_bytes, records, fillers)
