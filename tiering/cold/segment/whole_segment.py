"""Reads one sorted segment from its first to its last byte and puts its records together in the order of the log.

Damage does not end the reading: what can be read is read, and every exception is reported. Memory: the records of one
segment and a few numbers for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.sorted_segment import SKIPPABLE, SeekTable, decompress_frame, is_frame_of
from tierlog.tiering.kernels.placement import ITEM, place_items
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, ScanStop, TopicTable, scan
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import ObjectStream

Find = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class WholeSegment:
    """The content of one segment."""

    entry: LogEntry
    data: ByteArray
    """The log segment without its blank record: fillers where records were removed, zero where one is lost."""
    items: NDArray[np.void]
    """``ITEM``, in cold order; ``row`` is -1 for fillers and for records that are damaged."""
    rows: ScanRows
    """The records, in the order of the log."""
    runs: list[DirectoryRow]
    """The directory; empty if it cannot be read."""
    names: list[str]
    """Topic names by the numbers of the rows."""
    damaged_frames: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Cold positions ``[start, end)`` by frame."""

    @property
    def is_whole(self) -> bool:
        return not self.damaged_frames and bool(((self.items["row"] >= 0) | self.items["filler"]).all())

    def cold_offsets(self) -> NDArray[np.int64]:
        """Returns the cold offset of each row."""
        cold = np.empty(len(self.rows), np.int64)
        known = self.items["row"] >= 0
        cold[self.items["row"][known]] = self.items["cold"][known] + self.entry.base
        return cold

    def lost_offsets(self) -> NDArray[np.int64]:
        """Cold offsets of records that are damaged inside a sound frame."""
        lost = (self.items["row"] < 0) & ~self.items["filler"]
        found: NDArray[np.int64] = self.items["cold"][lost] + self.entry.base
        return found

    def is_lost(self, cold_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether cold offsets lie in frames that cannot be read."""
        found = np.zeros(len(cold_offsets), bool)
        for start, end in self.damaged_frames.values():
            found |= (cold_offsets >= self.entry.base + start) & (cold_offsets < self.entry.base + end)
        return found

    def filler_offsets(self) -> NDArray[np.int64]:
        """Cold offsets of removed records."""
        found: NDArray[np.int64] = self.items["cold"][self.items["filler"]] + self.entry.base
        return found


def read_whole(
    objects: ObjectStore, segment: SegmentReader, entry: LogEntry, topics: list[str], find: Find
) -> WholeSegment | None:
    """Everything that can be read; None if that is nothing. Raises the object store's errors."""
    size = objects.head(entry.key).size_bytes
    if size != entry.size_bytes:
        find(f"is {size} bytes long, the manifest says {entry.size_bytes}")
        return None
    seek = _or_find(segment.seek_table, find)
    runs = _or_find(lambda: list(segment.runs()), find) or []
    stream = ObjectStream(objects, entry.key, entry.size_bytes)
    if seek is None or int(seek.compressed[-1]) > size:
        return None
    names = [*topics, *sorted({run.topic for run in runs} - set(topics))]
    nothing = np.empty(0, ITEM), np.empty(0, SCAN_ROW)
    whole = WholeSegment(entry, np.zeros(entry.segment_bytes, np.uint8), *nothing, runs, names)
    pieces = [np.empty(0, ITEM), *_frames(stream, seek, whole, find)]
    if int(seek.compressed[-1]) + SKIPPABLE.size != entry.sections["offset_map"].position:
        find("its seek table and the manifest disagree about where the frames end")
    stream.take_rest()
    whole.items = np.concatenate(pieces)
    whole.rows = _scan(whole, find)
    if stream.crc32 != entry.crc32 and not whole.damaged_frames:
        find("its checksum differs from the manifest")
    return whole


def _or_find(read: Callable[[], T], find: Find) -> T | None:
    try:
        return read()
    except CorruptionError as error:
        find(error.message)
        return None


def _frames(stream: ObjectStream, seek: SeekTable, whole: WholeSegment, find: Find) -> Iterator[NDArray[np.void]]:
    for number in range(len(seek.compressed) - 1):
        start, end = int(seek.compressed[number]), int(seek.compressed[number + 1])
        cold = int(seek.decompressed[number])
        length = int(seek.decompressed[number + 1]) - cold
        data = stream.take(end - start)
        try:
            frame = decompress_frame(data, length, path=whole.entry.key, position=start)
            items = _items(frame, is_frame_of(data, int(seek.checksums[number])), whole)
        except CorruptionError as error:
            whole.damaged_frames[number] = cold, cold + length
            find(f"frame {number} is damaged ({error.message}); {_lost(whole.runs, number)}")
            continue
        items["cold"] += cold
        items["frame"] = number
        yield items


def _items(frame: bytes, is_named: bool, whole: WholeSegment) -> NDArray[np.void]:
    """Returns the items of a frame, which are put where they lay in the log."""
    if not is_named:
        raise CorruptionError("it is not the one that the seek table names")
    return place_items(frame, whole.entry.base, whole.data)


def _lost(runs: list[DirectoryRow], frame: int) -> str:
    lost = [run for run in runs if run.frame == frame]
    if not lost:
        return "its directory does not tell what is lost"
    parts = [
        f"{run.topic}/{run.queue_id} queue offsets [{run.first_queue_offset}, {run.first_queue_offset + run.records})"
        if run.first_queue_offset >= 0
        else f"{run.records} records of {run.topic}/{run.queue_id} in no queue"
        for run in lost
    ]
    more = f" and {len(parts) - 5} runs more" if len(parts) > 5 else ""
    return "lost unless there is a hot copy: " + ", ".join(parts[:5]) + more


def _scan(whole: WholeSegment, find: Find) -> ScanRows:
    """Returns every record with its checksums, in the order of the log; the items learn their rows."""
    items, base = whole.items, whole.entry.base
    order = np.argsort(items["position"], kind="stable")
    position, size = items["position"][order], items["size"][order]
    if (position[1:] < position[:-1] + size[:-1]).any():
        find("records overlap each other in the log")
        return np.empty(0, SCAN_ROW)
    table = TopicTable(whole.names)
    pieces: list[ScanRows] = [np.empty(0, SCAN_ROW)]
    for first, last in _stretches(position, size):
        at, end = int(position[first]), int(position[last - 1] + size[last - 1])
        while at < end:
            scanned = scan(whole.data, at, end, base, table, check_crc=True, pass_fillers=True)
            if scanned.stop in (ScanStop.INVALID, ScanStop.UNKNOWN_TOPIC, ScanStop.BLANK):
                reason = scanned.stop.name.lower().replace("_", " ")
                find(f"the record at {base + scanned.position} is damaged ({reason})")
                number = int(np.searchsorted(position, scanned.position))
                at = int(position[number] + size[number])
                # the last row of a scan that met an unknown topic tells that topic and nothing else
                is_known = scanned.stop is not ScanStop.UNKNOWN_TOPIC
                pieces.append(scanned.rows if is_known else scanned.rows[:-1])
            else:
                at = scanned.position
                pieces.append(scanned.rows)
    rows = np.concatenate(pieces)
    places = np.searchsorted(position, rows["position"])
    items["row"][order[places]] = np.arange(len(rows))
    return rows


def _stretches(position: NDArray[np.int64], size: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the numbers ``[first, last)`` of items that follow each other without a hole."""
    first = 0
    breaks = np.flatnonzero(position[1:] != position[:-1] + size[:-1]) + 1
    for last in [*breaks.tolist(), len(position)]:
        if last > first:
            yield first, last
        first = last
