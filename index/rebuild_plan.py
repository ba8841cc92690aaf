"""What of an archive's index is to be made again, and in which steps.

The log is cut into **blocks**: ranges that no index object reaches out of, so that the objects of a block can be
replaced without a look at any other. A block is a run of objects that overlap each other (one object, the parts of a
merge), or a range without any. Neighbouring blocks that are to be made again make a **stretch**, which is replaced in
one commit; a stretch that is more work than one task may have is shared by several, cut where segments begin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from index.layout import ItemLayout
from index.ranges import uncovered
from tiering.format.manifest import Head, IndexEntry, LogEntry

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IndexShape:
    """How index objects are made: capacity of the file that each is made of, and layout of its items."""

    slots: int
    items: int
    layout: ItemLayout


@dataclass(frozen=True, slots=True)
class Stretch:
    """A physical range whose index objects are replaced in one commit."""

    first: int
    next: int
    old: tuple[IndexEntry, ...]
    """Every object that touches the range; none reaches out of it, but for below ``cold_min``."""
    pieces: tuple[Range, ...]
    """The range in order without declared gaps, a task each."""


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Steps in ascending order, and how many objects stay as they are."""

    stretches: tuple[Stretch, ...]
    kept: int


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    next: int
    entries: tuple[IndexEntry, ...]


def plan_rebuild(
    head: Head,
    log: Sequence[LogEntry],
    index: Iterable[IndexEntry],
    is_right: Callable[[IndexEntry], bool],
    *,
    within: Sequence[Range],
    most_bytes: int,
) -> RebuildPlan:
    """What in the ranges ``within`` has no index, or one that is not right, from ``cold_min`` to ``indexed_to``.

    ``log`` ascends. A block counts that touches one of the ranges. A block without objects counts always: whether its
    records have keys only reading tells. So does a merge of which a range of slots is missing. A task gets about
    ``most_bytes`` of records, but one segment at least.
    """
    chosen: list[_Block] = []
    kept = 0
    for block in _blocks(head, index):
        if any(block.first < end and first < block.next for first, end in within) and not (
            block.entries and _has_all_slots(block.entries) and all(map(is_right, block.entries))
        ):
            chosen.append(block)
        else:
            kept += len(block.entries)
    segments = _Log(log)
    groups = _grouped(chosen, segments, most_bytes)
    return RebuildPlan(tuple(_stretch(group, head, segments, most_bytes) for group in groups), kept)


def _blocks(head: Head, index: Iterable[IndexEntry]) -> Iterator[_Block]:
    """From ``cold_min`` to ``indexed_to`` without a hole."""
    reached, end = head.cold_min, head.indexed_to
    entries: list[IndexEntry] = []
    first = reached
    for entry in sorted(index, key=lambda each: (each.first, each.next)):
        if entry.next <= head.cold_min:
            continue
        if entries and entry.first >= reached:
            yield _Block(first, reached, tuple(entries))
            entries = []
        if not entries:
            if entry.first > reached:
                yield _Block(reached, entry.first, ())
            first = max(reached, entry.first)
        entries.append(entry)
        reached = max(reached, entry.next)
    if entries:
        yield _Block(first, reached, tuple(entries))
    if reached < end:
        yield _Block(reached, end, ())


def _has_all_slots(entries: Sequence[IndexEntry]) -> bool:
    """Whether everywhere in a block the parts of a merge, which may be cut by slots and by time, make up all slots."""
    if all(entry.slot_from == 0 and entry.slot_end == entry.slots for entry in entries):
        return True
    edges = sorted({edge for entry in entries for edge in (entry.first, entry.next)})
    for first, end in pairwise(edges):
        here = [entry for entry in entries if entry.first <= first and end <= entry.next]
        for slots in {entry.slots for entry in here}:
            parts = [(entry.slot_from, entry.slot_end) for entry in here if entry.slots == slots]
            if uncovered(parts, 0, slots):
                return False
    return True


class _Log:
    """Which segments a range has, and about how many bytes of records of each."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        self._entries = entries

    def over(self, first: int, end: int) -> Iterator[tuple[LogEntry, int]]:
        """Ascending."""
        for at in range(bisect_right(self._entries, first, key=lambda each: each.next), len(self._entries)):
            entry = self._entries[at]
            if entry.first >= end:
                return
            yield entry, entry.raw_bytes * (min(end, entry.next) - max(first, entry.first)) // entry.segment_bytes


def _grouped(blocks: Sequence[_Block], log: _Log, most_bytes: int) -> Iterator[list[_Block]]:
    """Neighbours together, as long as they are one task's work."""
    group: list[_Block] = []
    filled = 0
    for block in blocks:
        size = sum(size for _, size in log.over(block.first, block.next))
        if group and (group[-1].next != block.first or filled + size > most_bytes):
            yield group
            group, filled = [], 0
        group.append(block)
        filled += size
    if group:
        yield group


def _stretch(group: Sequence[_Block], head: Head, log: _Log, most_bytes: int) -> Stretch:
    first, end = group[0].first, group[-1].next
    pieces = [
        piece for start, stop in uncovered(head.log_gaps, first, end) for piece in _pieces(start, stop, log, most_bytes)
    ]
    return Stretch(first, end, tuple(entry for block in group for entry in block.entries), tuple(pieces))


def _pieces(first: int, end: int, log: _Log, most_bytes: int) -> Iterator[Range]:
    """A range cut where segments begin."""
    filled = 0
    for entry, size in log.over(first, end):
        if entry.first > first and filled + size > most_bytes:
            yield first, entry.first
            first, filled = entry.first, 0
        filled += size
    yield first, end
