"""Reads a sorted segment by cold offset, by queue, by time, or back into the original log segment."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError, TornRecordError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.reading.archive_reader import JOIN_BYTES, ArchiveReader
from tierlog.tiering.format.compression import decompress
from tierlog.tiering.format.filler import Filler, decode_filler, is_filler
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, Record, decode_record
from tierlog.tiering.format.section import JsonObject, PageRef, SectionHead, decode_head, read_page
from tierlog.tiering.format.sorted_segment import (
    MAGIC_DIRECTORY,
    MAGIC_OFFSET_MAP,
    VERSION,
    FramePlace,
    SeekTable,
    decode_directory_page,
    decode_map_page,
    decode_seek_table,
    decompress_frame,
    is_frame_of,
)
from tierlog.tiering.kernels.placement import place_items
from tierlog.tiering.kernels.record_slices import tagged_places

_SIZE_AND_OFFSET = struct.Struct(">i24xq")


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """A run of consecutive records of one queue inside one frame; ``first_queue_offset`` is -1 without units."""

    frame: int
    frame_position: int
    frame_length: int
    frame_bytes: int
    frame_checksum: int
    topic: str
    queue_id: int
    first_queue_offset: int
    records: int
    position: int
    bytes: int
    min_store_ms: int
    max_store_ms: int
    min_born_ms: int
    max_born_ms: int

    @property
    def place(self) -> FramePlace:
        return FramePlace(self.frame_position, self.frame_length, self.frame_bytes, self.frame_checksum)

    @property
    def bounds(self) -> TimeBounds:
        return TimeBounds(self.min_store_ms, self.max_store_ms, self.min_born_ms, self.max_born_ms)

    def overlaps(self, axis: TimeAxis, time_range: TimeRange) -> bool:
        """Whether the run may hold a time of the range."""
        return time_range.overlaps(*self.bounds.on(axis))


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """A log segment rebuilt: byte for byte if ``fillers`` is 0, else with that many removed records as fillers."""

    data: bytes
    fillers: int


FRAME_COLUMNS = ("frame_position", "frame_length", "frame_bytes", "frame_checksum")
QUEUE_RUN = np.dtype(
    [(name, np.int64) for name in (*FRAME_COLUMNS, "first_queue_offset", "records", "position", "bytes")]
)
#: Rows of a directory of one queue, as far as reading it in order needs them.
QueueRuns = NDArray[np.void]
_TIMES = ("min_store_ms", "max_store_ms", "min_born_ms", "max_born_ms")
TOPIC_RUN = np.dtype([*QUEUE_RUN.descr, *((name, np.int64) for name in ("queue_id", *_TIMES))])
#: Rows of a directory of one topic, with what a search by time compares.
TopicRuns = NDArray[np.void]


class SegmentReader:
    """One sorted segment, read through one query's :class:`ArchiveReader`."""

    def __init__(self, reader: ArchiveReader, entry: LogEntry) -> None:
        self._reader = reader
        self._entry = entry

    def seek_table(self) -> SeekTable:
        """Returns where frames begin."""
        ref, path = self._entry.sections["seek_table"], self._entry.key

        def decode(data: bytes) -> SeekTable:
            return decode_seek_table(ref.check(data, path=path), path=path)

        return self._reader.metadata(path, ref.position, ref.position + ref.length, "seek table", decode)

    def frame(self, place: FramePlace) -> bytes:
        """One decompressed frame: whole records."""
        return next(self.frames([place]))

    def frames(self, places: Sequence[FramePlace]) -> Iterator[bytes]:
        """Decompressed frames, ascending; those that lie close to each other come in one request."""
        ranges = [(place.position, place.position + place.length) for place in places]
        return self._reader.data_of(
            self._entry.key, ranges, "frame", lambda at, data: self.decode_frame(places[at], data)
        )

    def decode_frame(self, place: FramePlace, data: bytes) -> bytes:
        """Returns a frame checked and decompressed."""
        path = self._entry.key
        if not is_frame_of(data, place.checksum):
            raise ChecksumMismatchError("frame differs from its checksum", path=path, position=place.position)
        return decompress_frame(data, place.raw_bytes, path=path, position=place.position)

    def records_at(self, cold_offsets: Iterable[int]) -> Iterator[tuple[int, Record | None]]:
        """(cold offset, record) for each offset, neighbours fetched together; None where the record was removed."""
        table = self.seek_table()
        base = self._entry.base
        wanted = sorted((table.frame_of(offset - base), offset) for offset in set(cold_offsets))
        groups = [(number, list(group)) for number, group in groupby(wanted, key=lambda item: item[0])]
        frames = self.frames([table.place(number) for number, _ in groups])
        for frame, (number, group) in zip(frames, groups, strict=True):
            for _, offset in group:
                item = item_at(frame, offset - base - int(table.decompressed[number]))
                yield offset, None if isinstance(item, Filler) else item

    # directory

    def _head(self, section: str, magic: bytes) -> SectionHead:
        ref = self._entry.sections[section]
        return self._reader.metadata(
            self._entry.key, ref.position, ref.position + ref.head_length, section,
            lambda data: decode_head(ref.check(data, path=self._entry.key), magic, VERSION, path=self._entry.key),
        )  # fmt: skip

    def directory_rows(self, topic: str, queue_id: int | None = None) -> list[DirectoryRow]:
        """Rows of records in queues, of one topic or one queue, in queue order."""
        return [row for table in self.directory_tables(topic, queue_id) for row in _rows(table)]

    def queue_runs(self, topic: str, queue_id: int) -> QueueRuns:
        """Returns what :meth:`directory_rows` gives for one queue, as columns: a big segment has thousands of them."""
        return _runs_in(list(self.directory_tables(topic, queue_id)), QUEUE_RUN)

    def topic_runs(self, topic: str, *, in_queues: bool = True) -> TopicRuns:
        """Returns what :meth:`directory_rows` gives for one topic, as columns; those of a frame follow each other.

        Without ``in_queues`` also the rows of records in no queue, whose ``first_queue_offset`` is -1.
        """
        return _runs_in(list(self.directory_tables(topic, in_queues=in_queues)), TOPIC_RUN)

    def directory_tables(
        self, topic: str, queue_id: int | None = None, *, in_queues: bool = True
    ) -> Iterator[pa.Table]:
        """Yields the rows of :meth:`directory_rows` as columns, a page at a time.

        Pages that are not kept come together, up to 8 MiB a request.
        """
        import pyarrow.compute as pc  # late: loading it takes 20 ms, and a start calls nothing of it

        head = self._head("directory", MAGIC_DIRECTORY)
        name = topic.encode()
        low = (name, -1 if queue_id is None else queue_id)
        high = (name, 1 << 31 if queue_id is None else queue_id)
        pages = [page for page in head.pages if low <= _page_place(page, "last") and _page_place(page, "first") <= high]
        for page, reader in self._joined(pages):
            table = self._directory_page(page, reader)
            wanted = pc.equal(table["topic"], topic)
            if in_queues:
                wanted = pc.and_(wanted, pc.greater_equal(table["first_queue_offset"], 0))
            if queue_id is not None:
                wanted = pc.and_(wanted, pc.equal(table["queue_id"], queue_id))
            yield table.filter(wanted)

    def _joined(self, pages: Sequence[PageRef]) -> Iterator[tuple[PageRef, ArchiveReader]]:
        """Yields each page of the directory with the reader that fetches it, along with missing neighbours."""
        at, key = self._entry.sections["directory"].position, self._entry.key
        pieces: list[list[PageRef]] = []
        for page in pages:
            end = page.position + page.length
            if self._reader.holds_metadata(key, at + page.position, at + end):
                continue
            if pieces and end - pieces[-1][0].position <= JOIN_BYTES:
                pieces[-1].append(page)
            else:
                pieces.append([page])
        readers: dict[int, ArchiveReader] = {}
        for piece in pieces:
            start, end = piece[0].position, piece[-1].position + piece[-1].length
            readers |= dict.fromkeys(
                (page.position for page in piece), self._reader.together(key, at + start, at + end)
            )
        for page in pages:
            yield page, readers.pop(page.position, self._reader)

    def _directory_page(self, page: PageRef, reader: ArchiveReader | None = None) -> pa.Table:
        start = self._entry.sections["directory"].position + page.position

        def decode(data: bytes) -> pa.Table:
            return decode_directory_page(read_page(lambda *_: data, page, path=self._entry.key))

        reader = reader or self._reader
        return reader.metadata(self._entry.key, start, start + page.length, "directory page", decode)

    def runs(self) -> Iterator[DirectoryRow]:
        """Yields every row of the directory, those of records in no queue included, in the order of the records."""
        for _, rows in self.directory_pages():
            yield from rows

    def chosen_runs(
        self, topics: Collection[str] | None, choose: Callable[[pa.Table], NDArray[np.bool_]]
    ) -> Iterator[DirectoryRow]:
        """Rows of records in queues, of these topics (None: of all), that ``choose`` marks, in the order of records."""
        import pyarrow.compute as pc  # late: loading it takes 20 ms, and a start calls nothing of it

        for page in self._head("directory", MAGIC_DIRECTORY).pages:
            first, last = page.info["first"][0].encode(), page.info["last"][0].encode()
            # a topic's generations follow each other, see tiering.format.generation
            if topics is not None and not any(
                first <= f"{topic}@:".encode() and topic.encode() <= last for topic in topics
            ):
                continue
            wanted, rows = pc.field("first_queue_offset") >= 0, self._directory_page(page)
            if topics is not None:
                names = rows["topic"].unique().to_pylist()
                wanted &= pc.field("topic").isin([name for name in names if record_topic(name) in topics])
            table = rows.filter(wanted)
            yield from _rows(table.filter(pa.array(choose(table))))

    def directory_pages(self) -> Iterator[tuple[PageRef, list[DirectoryRow]]]:
        """Yields the pages of the directory and their rows."""
        for page in self._head("directory", MAGIC_DIRECTORY).pages:
            yield page, list(_rows(self._directory_page(page)))

    def topics(self) -> list[str]:
        """Names of all topics that its directory leads to, sorted."""
        found: set[str] = set()
        for page in self._head("directory", MAGIC_DIRECTORY).pages:
            found.update(self._directory_page(page)["topic"].unique().to_pylist())
        return sorted(found)

    def directory_table(self) -> JsonObject:
        """Returns what the directory says of the segment as a whole."""
        return self._head("directory", MAGIC_DIRECTORY).table

    def items_of(self, rows: Iterable[DirectoryRow]) -> Iterator[Record | Filler]:
        """Yields the records of directory rows in their order, and the fillers between them, one fetch a frame."""
        for place, group in groupby(rows, key=lambda row: row.place):
            frame = self.frame(place)
            for row in group:
                yield from items_in(frame, row)

    def records_of(self, rows: Iterable[DirectoryRow]) -> Iterator[Record]:
        """Returns the records of directory rows in their order, without those that were removed."""
        return (item for item in self.items_of(rows) if not isinstance(item, Filler))

    # offset map

    def offset_map(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Physical offsets, ascending, and the cold offset of each."""
        physical, cold = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for page in self._head("offset_map", MAGIC_OFFSET_MAP).pages:
            piece = self._map_page(page)
            physical.append(piece[0] + self._entry.base)
            cold.append(piece[1] + self._entry.base)
        return np.concatenate(physical), np.concatenate(cold)

    def _map_page(self, page: PageRef) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Physical and cold positions of a page's records, both from the segment's start."""
        start, info = self._entry.sections["offset_map"].position + page.position, page.info

        def decode(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            checked = read_page(lambda *_: data, page, path=self._entry.key)
            return decode_map_page(checked, info["records"], info["first_physical"], info["first_cold"])

        return self._reader.data(self._entry.key, start, start + page.length, "offset map page", decode)

    def cold_offset(self, physical_offset: int) -> int | None:
        """Returns the cold offset of the record that begins at a physical offset, None if none does; reads one page."""
        head = self._head("offset_map", MAGIC_OFFSET_MAP)
        position = physical_offset - self._entry.base
        pages = [page for page in head.pages if page.info["records"] and page.info["first_physical"] <= position]
        if not pages:
            return None
        physical, cold = self._map_page(pages[-1])
        at = int(np.searchsorted(physical, position))
        if at == len(physical) or physical[at] != position:
            return None
        return int(cold[at]) + self._entry.base

    def physical_offsets(self, first: int, end: int) -> NDArray[np.int64]:
        """Returns where records of the physical range ``[first, end)`` begin, removed ones too.

        Reads their pages alone.
        """
        found = [np.empty(0, np.int64)]
        pages = [page for page in self._head("offset_map", MAGIC_OFFSET_MAP).pages if page.info["records"]]
        for page, following in zip(pages, [*pages[1:], None], strict=True):
            ends_before = following is not None and self._entry.base + following.info["first_physical"] <= first
            if not ends_before and self._entry.base + page.info["first_physical"] < end:
                found.append(self._map_page(page)[0] + self._entry.base)
        offsets = np.concatenate(found)
        return offsets[(offsets >= first) & (offsets < end)]

    # the whole

    def raw_items(self) -> Iterator[tuple[int, memoryview]]:
        """Yields every record and filler as it is stored, in cold order, with its position in the log segment."""
        segment_bytes = self._entry.segment_bytes
        for frame in self.frames(self.seek_table().places()):
            at = 0
            while at < len(frame):
                size, offset = _SIZE_AND_OFFSET.unpack_from(frame, at)
                position = offset - self._entry.base
                if size <= 0 or at + size > len(frame) or not 0 <= position <= segment_bytes - size:
                    raise TornRecordError("record in frame does not fit", path=self._entry.key, position=at)
                yield position, memoryview(frame)[at : at + size]
                at += size

    def put_together(self, out: ByteArray) -> Iterator[NDArray[np.void]]:
        """Puts every record and filler to where it lay in the log segment ``out``, a frame with each step.

        Yields an ``ITEM`` for each of them. Raises :class:`TornRecordError` for what does not fit the segment.
        """
        for frame in self.frames(self.seek_table().places()):
            try:
                yield place_items(frame, self._entry.base, out)
            except TornRecordError as error:
                raise TornRecordError(error.message, path=self._entry.key, position=error.position) from error

    @property
    def blank_position(self) -> int:
        """Position in the original segment at which its records end."""
        return int(self._head("directory", MAGIC_DIRECTORY).table["blank_position"])

    def ending(self) -> tuple[int, bytes]:
        """Returns where the records of the original end, and what followed up to its last byte that is not zero."""
        table = self._head("directory", MAGIC_DIRECTORY).table
        room = self._entry.segment_bytes - table["blank_position"] - BLANK.size
        tail = decompress(bytes.fromhex(table["tail"]), room, "tail") if table["tail"] else b""
        return table["blank_position"], BLANK.pack(table["blank_length"], MAGIC_BLANK) + tail

    def restore(self) -> RestoredSegment:
        segment = np.zeros(self._entry.segment_bytes, np.uint8)
        fillers = sum(int(items["filler"].sum()) for items in self.put_together(segment))
        blank_position, ending = self.ending()
        segment[blank_position : blank_position + len(ending)] = np.frombuffer(ending, np.uint8)
        return RestoredSegment(segment.tobytes(), fillers)


def _runs_in(tables: list[pa.Table], kind: np.dtype[np.void]) -> NDArray[np.void]:
    runs = np.empty(sum(map(len, tables)), kind)
    for name in kind.names or ():
        runs[name] = np.concatenate([table[name].to_numpy() for table in tables]) if tables else 0
    return runs


def _rows(table: pa.Table) -> list[DirectoryRow]:
    return [DirectoryRow(**row) for row in table.to_pylist()]


def items_in(frame: bytes, row: DirectoryRow) -> Iterator[Record | Filler]:
    """Returns the records of a directory row, and the fillers between them, from its decompressed frame."""
    return items_between(frame, row.position, row.position + row.bytes)


def tagged_items_in(frame: bytes, row: DirectoryRow, hashes: Collection[int]) -> Iterator[Record | Filler]:
    """Returns of :func:`items_in` what may have a tag of these hashes; other records are not decoded."""
    end = row.position + row.bytes
    places, stopped_at = tagged_places(frame, row.position, end, hashes)
    yield from (item_at(frame, place) for place in places)
    yield from items_between(frame, stopped_at, end)


def items_between(frame: bytes, position: int, end: int) -> Iterator[Record | Filler]:
    """Yields the records and fillers of a part of a decompressed frame."""
    while position < end:
        item = item_at(frame, position)
        yield item
        position += item.size


def item_at(frame: bytes, position: int) -> Record | Filler:
    """Returns the record or filler at a position of a decompressed frame."""
    return decode_filler(frame, position) if is_filler(frame, position) else decode_record(frame, position)


def _page_place(page: PageRef, end: str) -> tuple[bytes, int]:
    topic, queue_id, _ = page.info[end]
    return topic.encode(), queue_id
