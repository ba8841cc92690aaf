"""Consume queues: per topic and queue a file of 20-byte units in the order of queue offsets, derived from the log.

Writing happens by one thread (the dispatcher); reading maps the files and needs no lock. A queue's units are durable
up to the checkpoint; what lies above is written again from the log when the store opens.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError, StoreMismatchError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.queue_unit import PREFILL, UNIT_BYTES, UNIT_DTYPE, is_gap, is_prefill
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.hot.topics import Topic, TopicRegistry
from tierlog.tiering.kernels.queue_places import NO_OFFSET, end_of_gap, have_places, with_gaps
from tierlog.tiering.kernels.queue_units import QueueRun, SortedUnits, UnitComparison, sort_into_queues
from tierlog.tiering.kernels.scan import ScanRows, in_queues
from tierlog.tiering.message.tags import tag_codes
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC

#: Of a gap, so many units are written with those of the messages around it; of a wider one, whole files are left out.
_NARROW = 1 << 16
QueueKey = tuple[int, int]
UnitArray = NDArray[np.void]
#: More queues than any log has: a record that names a later one is damaged.
MOST_QUEUES = 1 << 16
#: So many files in succession have to say that they are still needed: one may be damaged.
_FILES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue at one moment: units ``[first, next)`` exist on disk."""

    files: dict[int, UnitArray]
    file_units: int
    first: int
    next: int
    #: By border: the first offset of a record at or above it, once somebody has found and compared it.
    firsts: dict[int, int] = field(default_factory=dict)

    def units(self, start: int, end: int) -> UnitArray:
        """Units of queue offsets ``[start, end)``, cut to what exists; a copy, with the bytes of the file."""
        pieces = []
        start, end = max(start, self.first), min(end, self.next)
        while start < end:
            base = start - start % self.file_units
            stop = min(end, base + self.file_units)
            file = self.files.get(base)
            pieces.append(self._gap(base, stop - start) if file is None else file[start - base : stop - base])
            start = stop
        if len(pieces) == 1:  # the usual case; copied as bytes, as numpy would copy field by field
            return pieces[0].view(f"V{UNIT_BYTES}").copy().view(UNIT_DTYPE)
        return np.concatenate(pieces, dtype=UNIT_DTYPE) if pieces else np.empty(0, UNIT_DTYPE)

    def _gap(self, base: int, count: int) -> UnitArray:
        """Units of a file that is not there, as it lies in a gap: the one behind it begins with such a unit."""
        following = self.files[min(other for other in self.files if other > base)]
        return np.repeat(following[:1].view(f"V{UNIT_BYTES}"), count).view(UNIT_DTYPE)

    def behind_gap(self, queue_offset: int) -> int:
        """Returns the first queue offset from ``queue_offset`` on that no gap has; ``next`` if there is none."""
        step = 1
        while self.first <= queue_offset < self.next:
            base = queue_offset - queue_offset % self.file_units
            end = min(self.next, base + self.file_units)
            if base in self.files:
                end = min(end, queue_offset + step)
                gap = end_of_gap(self.files[base][queue_offset - base : end - base])
                if queue_offset + gap < end:
                    return queue_offset + gap
            else:  # inside a wide gap, which has no files
                end = min((other for other in self.files if other > base), default=self.next)
            queue_offset, step = end, _NARROW
        return queue_offset

    def next_gap(self, queue_offset: int) -> int:
        """Returns where the next gap begins from a queue offset on, which is none's; ``next`` if there is no more."""
        while queue_offset < self.next:
            base = queue_offset - queue_offset % self.file_units
            end = min(self.next, base + self.file_units)
            if base not in self.files:
                return queue_offset
            gaps = np.flatnonzero(is_gap(self.files[base][queue_offset - base : end - base]))
            if len(gaps):
                return queue_offset + int(gaps[0])
            queue_offset = end
        return queue_offset

    @property
    def behind_prefill(self) -> int:
        """The first queue offset that a message has, or a gap."""
        file = next(iter(self.files.values()))
        return self.first + int(is_prefill(file).argmin()) if is_prefill(file[0]) else self.first

    def is_prefilled(self, queue_offset: int) -> bool:
        """Whether the unit only fills the place of a message that was never in its file."""
        return bool(is_prefill(self.units(queue_offset, queue_offset + 1))[0])

    def first_at_or_above(self, physical_offset: int) -> int:
        """Returns the first queue offset whose record lies at or above a physical offset; ``next`` if there is none.

        If a gap is before that record, the gap's first.
        """
        low, high = self.first, self.next
        if low < high and not self.is_below(low, physical_offset):  # what is usual: the border lies below the queue,
            return low
        if low < high and self.is_below(high - 1, physical_offset):  # or all of the queue lies below it
            return high
        while low < high:
            middle = (low + high) // 2
            if self.is_below(middle, physical_offset):
                low = middle + 1
            else:
                high = middle
        return low

    def is_below(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether a unit says that its record begins below a physical offset."""
        base = queue_offset - queue_offset % self.file_units
        unit = self.files[base][queue_offset - base] if base in self.files else self._gap(base, 1)[0]
        return bool(is_prefill(unit) or unit["physical_offset"] < physical_offset)

    def until(self, physical_offset: int) -> QueueView:
        """Returns the queue without the units of records at or above a physical offset."""
        return replace(self, next=self.first_at_or_above(physical_offset))


class _Queue:
    """Files of one queue and how far they are written."""

    def __init__(self, files: dict[int, UnitArray], next_offset: int) -> None:
        self.files = files
        self.next = next_offset
        self.dirty: set[int] = set()
        self.firsts: dict[int, int] = {}


class ConsumeQueues:
    """All consume queues of a store; a subscriber of the dispatcher."""

    def __init__(
        self, fs: FileSystem, paths: StorePaths, file_units: int, topics: TopicRegistry, *, foreign: bool = False
    ) -> None:
        """``foreign``: queue offsets in the log may jump and repeat, see :func:`place_foreign`."""
        self.is_foreign = foreign
        #: Below this physical offset the log is one that a broker wrote: offsets of queues may jump and come again.
        self.followed_below = 0
        self._fs = fs
        self._paths = paths
        self._file_units = file_units
        self._topics = topics
        self._queues: dict[QueueKey, _Queue] = {}
        self._lock = threading.Lock()
        self._position = 0
        self._is_uncertain = False
        #: By queue: up to where its units were looked at for gaps, and those found.
        self._gaps: dict[QueueKey, tuple[int, list[tuple[int, int]]]] = {}
        #: Store time of the last record taken in; 0 before the first.
        self.last_store_ms = 0
        #: Whether no store time of a foreign log stepped back; in ours none does.
        self.times_rise = True

    # opening

    def load(self, durable_offset: int, log: CommitLog) -> None:
        """Takes units of records below ``durable_offset`` as they are; everything above is derived again.

        Where a queue ends is told by its last unit that leads to its record, or by its floor. What is damaged before
        that is derived again when it is read.
        """
        for topic in self._topics.all():
            folder = self._paths.consumequeue / topic.name
            for name in self._fs.list_dir(folder):
                if name.isdigit() and int(name) < MOST_QUEUES:
                    self._queues[topic.topic_id, int(name)] = self._load_queue(topic, int(name), durable_offset, log)
                    self._topics.ensure_queues(topic, int(name) + 1)
        self._position = durable_offset

    def forget(self, log_begin: int) -> None:
        """Discards everything loaded from disk, so that all units are derived again from the log's beginning."""
        self._queues.clear()
        self._position = log_begin

    def _load_queue(self, topic: Topic, queue_id: int, durable_offset: int, log: CommitLog) -> _Queue:
        folder = self._paths.queue(topic.name, queue_id)
        files: dict[int, UnitArray] = {}
        damaged: list[int] = []
        for name in self._fs.list_dir(folder):
            byte_offset = parse_base_offset(name)
            if byte_offset is None:
                continue
            size = self._fs.size(folder / name)
            if size % UNIT_BYTES or not size:  # cut short, or never given its length; its records are in the log
                damaged.append(byte_offset // UNIT_BYTES)
                continue
            if size != self._file_units * UNIT_BYTES:
                raise StoreMismatchError(f"queue file of {size} bytes", path=str(folder / name))
            files[byte_offset // UNIT_BYTES] = self._fs.map_read(folder / name).view(UNIT_DTYPE)
        bases = sorted(files)
        is_whole = all(
            upper - lower == self._file_units or self._may_follow_hole(files[upper]) for lower, upper in pairwise(bases)
        )
        if not is_whole or (damaged and bases and min(damaged) < bases[-1]):
            return _Queue({}, 0)  # only the end may be missing
        if not bases:
            return _Queue({}, 0)
        last, is_certain = self._last_durable(topic, queue_id, files, durable_offset, log)
        floor = min(topic.floors.get(queue_id, 0), bases[-1] + self._file_units)
        self._is_uncertain |= not is_certain and last >= floor
        end = max(last + 1 if is_certain else 0, floor)
        kept = {at: files[at] for at in bases if at < end}
        return _Queue(kept, end) if kept else _Queue({}, 0)

    @staticmethod
    def _may_follow_hole(units: UnitArray) -> bool:
        """Whether files before this one are not there because they lie in a gap."""
        return bool(is_gap(units[0]) and not is_prefill(units[0]))

    def _last_durable(
        self, topic: Topic, queue_id: int, files: dict[int, UnitArray], durable_offset: int, log: CommitLog
    ) -> tuple[int, bool]:
        """Offset of the last unit that is of a record below ``durable_offset``, -1 if none is, and whether it is sure.

        Units of which the log has no record any more have to be believed. Where none is sure, the last that says so.
        """
        comparison = UnitComparison.of_queue(topic.record_topic, queue_id, with_offsets=not self.is_foreign)
        claimed = -1
        for base in sorted(files, reverse=True):
            units = files[base]
            positions = units["physical_offset"]
            said = (units["size"] > 0) & (positions >= 0) & (positions < durable_offset) & ~is_gap(units)
            for place in reversed(np.flatnonzero(said).tolist()):
                claimed = max(claimed, base + place)
                segment = log.segment_at(int(positions[place]))
                unit = units[place : place + 1]
                if int(positions[place]) < log.begin or (
                    segment is not None and comparison.of(unit, base + place, segment.data, segment.base_offset).all()
                ):
                    return base + place, True
        return claimed, claimed < 0

    def has_end_at(self, position: int) -> bool:
        """Whether the last record of some queue ends at a physical offset, as its unit says."""
        with self._lock:
            lasts = [(queue.files, queue.next - 1) for queue in self._queues.values() if queue.files]
        for files, last in lasts:
            base = last - last % self._file_units
            unit = files[base][last - base]
            if int(unit["physical_offset"]) + int(unit["size"]) == position:
                return True
        return False

    def is_below_floors(self) -> bool:
        """Whether a queue has, or may have, fewer units than were durable once: files were lost."""
        next_offsets = self.next_offsets()
        return self._is_uncertain or any(
            next_offsets.get((topic.topic_id, queue_id), 0) < floor
            for topic in self._topics.all()
            for queue_id, floor in topic.floors.items()
        )

    def discard_tails(self) -> None:
        """Zeroes what follows each queue's last unit and unlinks files after it, so that nothing stale is ever read."""
        for topic in self._topics.all():
            for queue_id in range(topic.queues):
                queue = self._queues.get((topic.topic_id, queue_id))
                folder = self._paths.queue(topic.name, queue_id)
                kept = {base_offset_name(base * UNIT_BYTES) for base in queue.files} if queue else set()
                stale = [name for name in self._fs.list_dir(folder) if name not in kept]
                for name in stale:
                    self._fs.unlink(folder / name)
                if stale:
                    self._fs.flush_dir(folder)
                if queue and queue.files:
                    base = max(queue.files)
                    file = self._fs.open(folder / base_offset_name(base * UNIT_BYTES))
                    try:
                        file.zero((queue.next - base) * UNIT_BYTES, self._file_units * UNIT_BYTES)
                        file.flush()
                    finally:
                        file.close()

    # the subscriber

    def next_offset(self) -> int:
        """First physical offset whose unit may be missing."""
        return self._position

    def on_records(self, records: LogRange) -> None:
        """Writes the units of all records that are in a queue."""
        rows = records.rows
        if self.is_foreign and len(rows):
            times = rows["store_ms"]
            self.times_rise &= int(times[0]) >= self.last_store_ms and bool((np.diff(times) >= 0).all())
        if len(rows):
            self.last_store_ms = max(self.last_store_ms, int(rows[-1]["store_ms"]))
            found = sort_into_queues(rows, self._position)
            topics = {topic.topic_id: topic for topic in self._topics.all()}
            for run in found.runs:
                self._append(topics[int(records.topic_ids[run.topic_number])], records, found, run)
        self._position = records.end

    def second_beginning(self, rows: ScanRows, topic_ids: NDArray[np.int32]) -> int | None:
        """Returns the first of some rows with which a topic of a broker begins again, None if none does.

        It has offset 0 of a queue that had a message before. Behind a gap of the log nobody may have seen that message,
        and the first one tells whose offset is below the queue's end.
        """
        physical = rows["physical_offset"]
        new = np.flatnonzero(in_queues(rows) & (physical >= self._position) & (physical < self.followed_below))
        beginnings = new[rows["queue_offset"][new] == 0]
        topics = {topic.topic_id: topic for topic in self._topics.all()}
        is_behind_gap = self._topics.begun_anew
        if not len(beginnings) and not is_behind_gap:
            return None
        firsts = new[np.unique(rows[["topic_number", "queue_id"]][new], return_index=True)[1]]
        for at in sorted({*beginnings.tolist(), *firsts.tolist()}):
            number, queue_id, offset = rows[["topic_number", "queue_id", "queue_offset"]][at].tolist()
            topic = topics[int(topic_ids[number])]
            queue = self._queues.get((topic.topic_id, queue_id))
            is_seen = (queue is not None and bool(queue.files)) or at not in firsts
            start = topic.start(queue_id)
            if (offset == 0 and (is_seen or start > 0)) or (is_behind_gap and not is_seen and offset < start):
                return int(at)
        return None

    def _append(self, topic: Topic, records: LogRange, found: SortedUnits, run: QueueRun) -> None:
        queue_id = run.queue_id
        key = topic.topic_id, queue_id
        queue = self._queues.get(key)
        mine = slice(run.start, run.start + run.records)
        if queue is None:
            if not 0 <= queue_id < MOST_QUEUES:
                position = int(records.rows[found.order[run.start]]["physical_offset"])
                raise CorruptionError(f"record with queue id {queue_id}", position=position)
            self._topics.ensure_queues(topic, queue_id + 1)
            queue = _Queue({}, 0)
        known = min(queue.next - run.first, run.records) if queue.files else 0  # those are there: the log is read again
        is_brokers = records.start < self.followed_below and not self.is_foreign
        if is_brokers and not queue.files and topic.start(queue_id):  # a gap may be before the first one
            self._append_with_gaps(topic, queue_id, queue, records, records.rows[found.order[mine]])
            return
        if run.is_consecutive and known >= 0 and not self.is_foreign and topic.name != SCHEDULE_TOPIC:
            at, units = run.first + known, found.units[mine][known:]
        elif is_brokers:
            self._append_with_gaps(topic, queue_id, queue, records, records.rows[found.order[mine]])
            return
        else:
            rows = records.rows[found.order[mine]]
            if self.is_foreign:
                rows, at, begins_again = place_foreign(rows, queue.next if queue.files else None)
                if begins_again:
                    queue = _Queue({}, 0)
            else:
                rows, at = _consecutive(f"{topic.name}/{queue_id}", queue, rows)
            units = units_of(topic.name, records.data, rows)
        if not len(units):
            return
        self._append_units(topic, queue_id, queue, at, units)

    def _append_units(self, topic: Topic, queue_id: int, queue: _Queue, at: int, units: UnitArray) -> None:
        for start in range(at - at % self._file_units, at + len(units), self._file_units):
            piece = units[max(start - at, 0) : start + self._file_units - at]
            self._write(topic.name, queue_id, queue, max(start, at), piece)
        with self._lock:
            queue.next = at + len(units)
            self._queues[topic.topic_id, queue_id] = queue

    def _append_with_gaps(self, topic: Topic, queue_id: int, queue: _Queue, records: LogRange, rows: ScanRows) -> None:
        """Gives those of a broker's records a place that have one; what their offsets jump over becomes a gap."""
        start = topic.start(queue_id)
        rows = rows[have_places(rows["queue_offset"], queue.next if queue.files else start)]
        if not len(rows):
            return
        offsets, units = rows["queue_offset"], units_of(topic.record_topic, records.data, rows)
        at = queue.next if queue.files else start or int(offsets[0])
        wide = np.flatnonzero(np.diff(offsets, prepend=at - 1) > _NARROW)
        for low, high in pairwise([0, *wide.tolist(), len(rows)]):
            if low < high:
                if int(offsets[low]) - at >= _NARROW:
                    behind = int(offsets[low])
                    at = self._skip(topic, queue_id, queue, first=at, end=behind, following=units[low : low + 1])
                self._append_units(topic, queue_id, queue, at, with_gaps(units[low:high], offsets[low:high], at))
                at = queue.next

    def _skip(
        self, topic: Topic, queue_id: int, queue: _Queue, *, first: int, end: int, following: UnitArray
    ) -> int:  # fmt: skip
        """Writes a wide gap ``[first, end)`` of a queue without the files that lie inside it; returns ``end``.

        The last of those is there if the gap ends with it: the file behind a hole begins with a unit of the gap.
        """
        for base in sorted({at - at % self._file_units for at in (first, end - 1)}):
            low, high = max(first, base), min(end, base + self._file_units)
            if high - low < self._file_units or high == end:
                self._write(topic.name, queue_id, queue, low, with_gaps(following, np.array([high]), low)[:-1])
        return end

    def _write(self, topic: str, queue_id: int, queue: _Queue, at: int, units: UnitArray) -> None:
        base = at - at % self._file_units
        path = self._paths.queue(topic, queue_id) / base_offset_name(base * UNIT_BYTES)
        data = units.tobytes()
        position = (at - base) * UNIT_BYTES
        new = base not in queue.files
        if new:
            if not queue.files and at > base:
                data = PREFILL * (at - base) + data
                position = 0
            self._make_file(path)
        file = self._fs.open(path)
        try:
            file.write_at(position, data)
        finally:
            file.close()
        if new:
            mapped = self._fs.map_read(path).view(UNIT_DTYPE)
            with self._lock:  # a new mapping instead of a changed one: views hold on to the old
                queue.files = {**queue.files, base: mapped}
        queue.dirty.add(base)

    def _make_file(self, path: Path) -> None:
        """A file of full length, with blocks only where something is written: most queues stay small.

        Writes are positional, so a full disk is an error of the write that finds no block, and deriving tries again.
        Renamed into place, so that a file that exists has its size: a kill while it is made leaves no stump.
        """
        temporary = self._paths.tmp / f"queue-{path.name}"
        self._fs.make_dirs(path.parent)
        self._fs.unlink(temporary)  # of an attempt that found no room
        file = self._fs.open(temporary)
        try:
            file.write_at(self._file_units * UNIT_BYTES - 1, b"\0")
            file.flush()
        finally:
            file.close()
        self._fs.rename(temporary, path)
        self._fs.flush_dir(path.parent)

    def put_again(self, topic: Topic, queue_id: int, at: int, units: UnitArray) -> None:
        """Replaces damaged units from offset ``at`` on by those that the log implies; nothing is put behind the end.

        They are written in their place: cut off anywhere, some are still damaged, and who reads them next derives
        them again. Durable with the next flush.
        """
        queue = self._queues.get((topic.topic_id, queue_id))
        if queue is None:
            return
        for start in range(at - at % self._file_units, min(at + len(units), queue.next), self._file_units):
            first, end = max(start, at), min(start + self._file_units, at + len(units), queue.next)
            if start in queue.files and first < end:
                self._write(topic.name, queue_id, queue, first, units[first - at : end - at])

    def place_of(self, topic: Topic, queue_id: int, offset: int) -> tuple[Path, int]:
        """Returns the file of a queue's unit, and its position there."""
        base = offset - offset % self._file_units
        name = base_offset_name(base * UNIT_BYTES)
        return self._paths.queue(topic.name, queue_id) / name, (offset - base) * UNIT_BYTES

    # durability and removal

    def flush(self) -> int:
        """Makes every unit written so far durable; returns the physical offset they reach."""
        position = self._position
        names = {topic.topic_id: topic.name for topic in self._topics.all()}
        for (topic_id, queue_id), queue in list(self._queues.items()):
            for base in sorted(queue.dirty):
                path = self._paths.queue(names[topic_id], queue_id) / base_offset_name(base * UNIT_BYTES)
                flush_file(self._fs, path)
            queue.dirty.clear()
        return position

    def remove_below(self, border: int) -> None:
        """Unlinks queue files whose records all lie below ``border``; a queue's last file never goes.

        A file in which anything is damaged tells nothing; it goes with a later one.
        """
        names = {topic.topic_id: topic.name for topic in self._topics.all()}
        for (topic_id, queue_id), queue in list(self._queues.items()):
            folder = self._paths.queue(names[topic_id], queue_id)
            for base in _below(queue.files, border):
                queue.dirty.discard(base)
                self._fs.unlink(folder / base_offset_name(base * UNIT_BYTES))
                self._fs.flush_dir(folder)
                with self._lock:  # at the end: a failure is made good by another try
                    queue.files = {at: units for at, units in queue.files.items() if at != base}

    # reading

    def view(self, topic_id: int, queue_id: int) -> QueueView | None:
        """Returns the queue as it is now, or None if nothing was ever put in it."""
        with self._lock:
            return self._view(topic_id, queue_id)

    def views(self, topic: Topic) -> dict[int, QueueView]:
        """Returns all queues of a topic that something was ever put in, at one moment."""
        with self._lock:
            views = ((queue_id, self._view(topic.topic_id, queue_id)) for queue_id in range(topic.queues))
            return {queue_id: view for queue_id, view in views if view is not None}

    def gaps(self, topic: Topic, queue_id: int) -> list[tuple[int, int]]:
        """Returns the gaps between hot messages of a queue of a broker's log; its units are looked at once."""
        view = self.view(topic.topic_id, queue_id) if self.followed_below else None
        if view is None:
            return []
        key = topic.topic_id, queue_id
        reached, found = self._gaps.get(key, (view.behind_prefill, []))
        while reached < view.next:
            behind = view.behind_gap(reached)
            if behind > reached:
                found, reached = [*found, (reached, behind)], behind
            reached = view.next_gap(reached)
        self._gaps[key] = view.next, found
        return [gap for gap in found if gap[0] >= view.first]

    def _view(self, topic_id: int, queue_id: int) -> QueueView | None:
        queue = self._queues.get((topic_id, queue_id))
        if queue is None or not queue.files:
            return None
        return QueueView(queue.files, self._file_units, next(iter(queue.files)), queue.next, queue.firsts)

    def next_offsets(self) -> dict[QueueKey, int]:
        """Next offset of every queue that has units."""
        with self._lock:
            return {key: queue.next for key, queue in self._queues.items()}


def place_foreign(rows: ScanRows, next_offset: int | None) -> tuple[ScanRows, int, bool]:
    """Returns which records of a broker's queue get a unit, the first one's place, and whether the queue begins again.

    Queue offsets in a RocketMQ broker's log may jump or begin again; ours never do. A broker counts on from the end of
    its queue file, not from the log. So a topic that was deleted and made again begins again at 0 while its old
    messages are still in the log, and after a restart with queue files that were behind the log, or behind a batch
    counted as one, offsets may leave some out or repeat some. What RocketMQ makes of that in a queue is made of it
    here: a repeated offset gets no unit, a jump is closed, and offset 0 begins the queue again.

    ``rows`` are in the order of the log; ``next_offset`` is None for a queue without units.
    """
    rows = rows[(rows["queue_offset"] >= 0) & (rows["queue_offset"] < NO_OFFSET)]
    beginnings = np.flatnonzero(rows["queue_offset"] == 0)
    begins_again = len(beginnings) > 0 and (next_offset is not None or int(beginnings[-1]) > 0)
    if begins_again:
        rows, next_offset = rows[beginnings[-1] :], 0
    if not len(rows):
        return rows, 0, False
    offsets = rows["queue_offset"]
    first = int(offsets[0]) if next_offset is None else next_offset
    if int(offsets[0]) == first and bool((np.diff(offsets) == 1).all()):
        return rows, first, begins_again
    kept = np.zeros(len(rows), np.bool_)
    expected = first
    for at, offset in enumerate(offsets.tolist()):
        if offset >= expected:
            kept[at] = True
            expected += 1
    return rows[kept], first, begins_again


def units_of(topic: str, data: ByteArray, rows: ScanRows) -> UnitArray:
    """Returns the units of scanned records of one topic; the rows' positions count from ``data``."""
    units = np.empty(len(rows), UNIT_DTYPE)
    units["physical_offset"], units["size"] = rows["physical_offset"], rows["size"]
    units["tag_hash"] = tag_codes(topic, data, rows)
    return units


def _consecutive(name: str, queue: _Queue, rows: ScanRows) -> tuple[ScanRows, int]:
    """Returns the records that the queue does not have yet, and the first one's offset."""
    if queue.files:
        rows = rows[rows["queue_offset"] >= queue.next]  # already there: the log is read again from an earlier point
    if not len(rows):
        return rows, queue.next
    offsets = rows["queue_offset"]
    expected = queue.next if queue.files else int(offsets[0])
    if offsets[0] != expected or (np.diff(offsets) != 1).any():
        raise CorruptionError(
            f"queue offsets of {name} are not consecutive: {expected} expected",
            position=int(rows[0]["physical_offset"]),
        )
    return rows, expected


def _below(files: dict[int, UnitArray], border: int) -> list[int]:
    """The first files of a queue, up to the last one whose units all say that their records lie below ``border``."""
    bases = list(files)[:-1]
    said = [bool(files[base][-1]["physical_offset"] < border) for base in bases[:_FILES_AHEAD]]
    while said and len(said) < len(bases) and any(said[-_FILES_AHEAD:]):
        said.append(bool(files[bases[len(said)]][-1]["physical_offset"] < border))
    for count in range(len(said), 0, -1):
        if said[count - 1] and _all_below(files[bases[count - 1]], border):
            return bases[:count]
    return []


def _all_below(units: UnitArray, border: int) -> bool:
    """Whether the records of units follow each other, and the last one ends below ``border``."""
    real = units[~is_gap(units)]
    if not len(real) and not is_prefill(units).any():
        return True  # all of it is a gap, which ends at a record below
    begins, sizes = real["physical_offset"].astype(np.int64), real["size"].astype(np.int64)
    ends = begins + sizes
    return bool(len(real) and begins[0] >= 0 and (sizes > 0).all() and (ends[:-1] <= begins[1:]).all()) and bool(
        ends[-1] <= border
    )
