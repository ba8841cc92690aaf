"""Plans which index objects of an archive are merged, and into objects of which level.

Level 1 is a day, level 2 a month, level 3 a year, all in UTC; an object belongs to that of its first record. A plan is
a function of the manifest, the time and the options: whoever plans again after a kill finds what is left.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tierlog.index.format.layout import TIERLOG
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.manifest import Head, IndexEntry


class Level(enum.IntEnum):
    """Levels of merged objects."""

    DAY = 1
    MONTH = 2
    YEAR = 3

    def name_of(self, ms: int) -> str:
        """Returns the day, month or year that holds a time: ``2026-03-01``, ``2026-03``, ``2026``."""
        return str(self._unit(ms))

    def end_of(self, ms: int) -> int:
        """Returns the end of the day, month or year that holds a time, in ms."""
        return int((self._unit(ms) + 1).astype("datetime64[ms]").astype(np.int64))

    def _unit(self, ms: int) -> np.datetime64:
        unit: np.datetime64 = np.datetime64(ms, "ms").astype(f"datetime64[{'DMY'[self - 1]}]")
        return unit


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Options of merging."""

    max_part_bytes: int = 600_000_000
    """No object grows larger; a group that would is cut by slot range, then by time."""
    late_ms: int = 6 * 3_600_000
    """So long after its end a day, month or year may still get objects of its records: they were rolled, sealed,
    archived late."""
    until_ms: int | None = None
    """Only days, months and years that end by then; None: all that are over."""
    most_inputs: int = 256
    """Objects that one task reads side by side, which bounds its memory; more are merged in steps."""

    def __post_init__(self) -> None:
        if self.max_part_bytes < 1 or self.late_ms < 0 or self.most_inputs < 2:
            raise InvalidRequestError("a part has at least one byte, a merge at least two inputs")


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Objects that one commit replaces by those of one level, or, as a step on the way there, of the level below."""

    name: str
    """The day, month or year, and where it begins in the log."""
    level: int
    inputs: tuple[IndexEntry, ...]
    """The oldest first."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(entry.size_bytes for entry in self.inputs)

    def slot_ranges(self, max_part_bytes: int) -> list[tuple[int, int]]:
        """Returns the slots of each task: hashes are spread evenly, so that each has about its share of the bytes."""
        slots = self.inputs[0].slots
        wanted = -(-self.size_bytes * 8 // (7 * max_part_bytes))  # an eighth of room, for what merging adds
        count = max(1, min(slots, wanted))
        cuts = [slots * number // count for number in range(count + 1)]
        return list(pairwise(cuts))


@dataclass(slots=True)
class _Cluster:
    """Objects that share physical ranges: one alone, or the parts of a merge."""

    entries: list[IndexEntry]
    next: int

    @property
    def kind(self) -> tuple[str, int] | None:
        """Layout and slots, which objects of a group have in common; None if these can be merged with none."""
        kinds = {(entry.layout, entry.slots) for entry in self.entries}
        if len(kinds) > 1 or not _are_disjoint(self.entries):
            return None
        (kind,) = kinds
        return kind if kind[0] == TIERLOG.name else None

    @property
    def level(self) -> int:
        return max(entry.level for entry in self.entries)

    @property
    def begin_ms(self) -> int:
        return self.entries[0].begin_ms


def due(
    head: Head, entries: Iterable[IndexEntry], level: Level, now_ms: int, options: MergeOptions
) -> list[MergeGroup]:
    """Returns the groups of a head's index objects to merge into objects of a level, ascending in the log.

    A group are neighbours in the log of one layout and number of slots, all of a lower level, that begin in one day,
    month or year that is over and wholly indexed: a later object is there, or all that is archived is indexed. Months
    wait for their days, years for their months.
    """
    clusters = list(_clusters(entries))
    over_ms = now_ms - options.late_ms
    if head.indexed_to < head.archived_to and clusters:
        over_ms = min(over_ms, max(cluster.begin_ms for cluster in clusters))
    if options.until_ms is not None:
        over_ms = min(over_ms, options.until_ms)
    taken = {
        entry.key
        for lower in Level
        if lower < level
        for group in _groups(clusters, lower, over_ms, options)
        for entry in group.inputs
    }
    groups = _groups(clusters, level, over_ms, options)
    return [group for group in groups if taken.isdisjoint(entry.key for entry in group.inputs)]


def _groups(clusters: Sequence[_Cluster], level: Level, over_ms: int, options: MergeOptions) -> list[MergeGroup]:
    found = []
    for run in _runs(clusters, level):
        if len(run) < 2 or level.end_of(run[0].begin_ms) > over_ms:
            continue
        steps = -(-len(run) // options.most_inputs)
        into = int(level) if steps == 1 else level - 1
        cuts = [len(run) * number // steps for number in range(steps + 1)]
        for first, end in pairwise(cuts):
            inputs = tuple(entry for cluster in run[first:end] for entry in cluster.entries)
            name = f"{level.name_of(run[0].begin_ms)} from {inputs[0].first}"
            found.append(MergeGroup(name, into, inputs))
    return found


def _runs(clusters: Sequence[_Cluster], level: Level) -> Iterator[list[_Cluster]]:
    """Neighbours of one kind and one day, month or year that are not merged yet."""
    run: list[_Cluster] = []
    last: object = None
    for cluster in clusters:
        kind = cluster.kind if cluster.level < level else None
        key = None if kind is None else (kind, level.name_of(cluster.begin_ms))
        if run and (key is None or key != last):
            yield run
            run = []
        if key is not None:
            run.append(cluster)
        last = key
    if run:
        yield run


def _clusters(entries: Iterable[IndexEntry]) -> Iterator[_Cluster]:
    cluster: _Cluster | None = None
    for entry in sorted(entries, key=lambda each: (each.first, each.slot_from, each.next, each.key)):
        if cluster is not None and entry.first < cluster.next:
            cluster.entries.append(entry)
            cluster.next = max(cluster.next, entry.next)
            continue
        if cluster is not None:
            yield cluster
        cluster = _Cluster([entry], entry.next)
    if cluster is not None:
        yield cluster


def _are_disjoint(entries: Sequence[IndexEntry]) -> bool:
    """Whether no two objects may have items of the same records and slots."""
    open_: list[IndexEntry] = []
    for entry in sorted(entries, key=lambda each: each.slot_from):
        open_ = [each for each in open_ if each.slot_end > entry.slot_from]
        if any(each.first < entry.next and entry.first < each.next for each in open_):
            return False
        open_.append(entry)
    return True
