"""Costs of search tasks that were not run: bounds from what the manifest says, without a request of their own.

The upper bounds hold while nothing fails and the caches keep what the query brings. They do not guess how often a key
occurs: where no page says it, every item of an object may be the key's, and lie in a frame of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tierlog.index.format.object_sections import DIRECTORY, PAGES
from tierlog.index.objects.pages import PAGE_ROW
from tierlog.tiering.cold.reading.archive_reader import JOIN_BYTES, ArchiveReader
from tierlog.tiering.format.manifest import IndexEntry, LogEntry
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.format.sorted_segment import SEEK_ROW


class CostKind(Enum):
    """Kinds of tasks, by what they would have requested first."""

    OBJECT = "object"
    SEGMENT_OF_HITS = "segment of hits"
    SEGMENT_BY_TIME = "segment by time"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class TaskCost:
    """The requests that a task, and all that it leads to, may send beside those for the manifest."""

    kind: CostKind
    likely: int
    most: int
    bytes: int
    depth: int
    results: int
    """Messages that it may be expected to give."""
    has_filter: bool = False
    has_directory: bool = False


def cost_of_object(
    entry: IndexEntry,
    segments: Iterable[LogEntry],
    reader: ArchiveReader,
    *,
    pages: list[tuple[int, int]] | None,
    items_a_page: int | None,
    has_filter: bool,
    enough: int,
) -> TaskCost:
    """Returns the cost of a look-up in an index object whose hits lie in ``segments``; ``enough`` make a page certain.

    ``pages`` are the places of those that may hold the key, None if the directory is not at hand. With a filter that
    does not rule the key out it is expected there once, without one it is expected to be absent.
    """
    # what is known of the object, its pages and its segments
    directory, in_pages = entry.sections[DIRECTORY], entry.sections[PAGES]
    known = list(segments)
    tables = [ref for ref in (_missing_table(segment, reader) for segment in known) if ref is not None]
    count, missing, items, ask = max(1, directory.length // PAGE_ROW.itemsize), 0, entry.items, 1
    page_bytes = -(-in_pages.length // count)
    if pages is None:
        missing = count
    else:
        count, ask = len(pages), 0
        missing = sum(not reader.holds_data(entry.key, *place) for place in pages)
        items = min(entry.items, count * (items_a_page or entry.items))
    first = min(1, missing)
    # likely: one page, and one record where a filter lets the key through; most: every item is the key's
    likely, size = ask + first, ask * directory.length + first * page_bytes
    if has_filter:
        likely += min(1, len(tables)) + 1
        size += (tables[0].length if tables else 0) + max(map(_frame_bytes, known), default=0)
    most = ask + missing + min(len(tables), items) + min(items, count * sum(map(_frames, known)))
    if items > enough:  # then the directories of the segments may be asked
        most += sum(map(most_of_directory, known))
    return TaskCost(
        kind=CostKind.OBJECT,
        likely=likely,
        most=most,
        bytes=size,
        depth=likely,
        results=int(has_filter),
        has_filter=has_filter,
        has_directory=pages is not None,
    )


def cost_of_hits(segment: LogEntry, hits: int, enough: int) -> TaskCost:
    """Returns the cost of reading ``hits`` records of a segment whose seek table is not cached."""
    table, frames = segment.sections["seek_table"], _frames(segment)
    likely = min(hits, frames, enough)
    directory = most_of_directory(segment) if hits > enough else 0
    return TaskCost(
        kind=CostKind.SEGMENT_OF_HITS, likely=1 + likely, most=1 + hits + directory,
        bytes=table.length + likely * _frame_bytes(segment), depth=4 if directory else 2, results=hits,
    )  # fmt: skip


def cost_of_segment(segment: LogEntry, queues: int, records: int, enough: int, *, expects: bool) -> TaskCost:
    """Returns the cost of reading a topic's records of a segment by time: so many in so many queues."""
    directory, frames = segment.sections["directory"], _frames(segment)
    in_a_frame = max(1, segment.records // max(1, frames))
    likely = min(frames, max(min(queues, records), -(-min(records, enough) // in_a_frame)))
    return TaskCost(
        kind=CostKind.SEGMENT_BY_TIME, likely=2 + likely, most=most_of_directory(segment) + min(records, frames),
        bytes=directory.length + likely * _frame_bytes(segment), depth=3, results=records if expects else 0,
    )  # fmt: skip


def cost_of_frames(missing: list[int], expects: int) -> TaskCost:
    """Returns the cost of frames at known places, of these sizes, that are read together."""
    return TaskCost(
        kind=CostKind.FRAMES, likely=1, most=max(1, len(missing)), bytes=sum(missing), depth=1, results=expects
    )


def most_of_directory(segment: LogEntry) -> int:
    """Returns how many requests a topic's rows of a segment's directory take: its head, and two pieces for each 8 MiB.

    A piece ends before the page that does not fit, so that two neighbours together are larger than 8 MiB.
    """
    return 2 + 2 * segment.sections["directory"].length // JOIN_BYTES


def _missing_table(segment: LogEntry, reader: ArchiveReader) -> SectionRef | None:
    ref = segment.sections["seek_table"]
    return None if reader.holds_metadata(segment.key, ref.position, ref.position + ref.length) else ref


def _frames(segment: LogEntry) -> int:
    return max(1, segment.sections["seek_table"].length // SEEK_ROW.itemsize)


def _frame_bytes(segment: LogEntry) -> int:
    return -(-segment.size_bytes // _frames(segment))
