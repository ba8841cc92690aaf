"""A RocketMQ broker's commit log on its way into an archive: what is there, found by tasks, and each segment archived.

The log decides, as for every reader of a broker's directory (``tiering.rocketmq.adoption``): it ends before the first
record that is not whole or does not stand where it says, and one that goes on behind damage is refused. Segments keep
their bytes and physical offsets; the last is closed with a blank record, as rolling it would.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from tierlog.index.new_store.commit import NewTopics
from tierlog.index.new_store.part import BuiltPart, NewStore, PartBuilder, PartQueue
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.format.generation import begin_of, entry_name, is_numbered, record_topic
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK, decode_record
from tierlog.tiering.format.store_state import CommittedOffset, GroupRecord
from tierlog.tiering.hot.commit_log import CommitLog, Segment
from tierlog.tiering.hot.consume_queue import MOST_QUEUES
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.topics import Topic, TopicRegistry, validate_foreign_topic
from tierlog.tiering.kernels.queue_places import UNKNOWN, QueuePlaces
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, in_queues, scan, topic_at_stop
from tierlog.tiering.rocketmq.adoption import adopt, is_broker_store
from tierlog.tiering.rocketmq.broker_files import broker_queues, read_consumer_offsets

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BrokerSegment:
    """One file of the log."""

    path: str
    base: int


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """The contents of one file."""

    segment: BrokerSegment
    end: int
    """Bytes of whole records."""
    is_closed: bool
    """Whether a blank record follows them."""
    is_begun: bool
    """Whether anything stands at its beginning, whole or not."""
    records: int
    newest_ms: int
    """The greatest store time of a record; 0 without one."""
    checksum: int
    """CRC-32 of the records."""
    topics: tuple[str, ...]
    runs: tuple[PartQueue, ...]


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """The files of a broker's directory, and what only its other files tell."""

    root: str
    segment_bytes: int
    segments: tuple[BrokerSegment, ...]
    topics: tuple[Topic, ...]
    """Those with a folder or a configuration; ids and queue counts may grow with the log."""
    groups: dict[str, dict[tuple[str, int], int]]

    @classmethod
    def find(cls, root: Path) -> BrokerLog:
        """Looks at a directory, of which nothing changes.

        Raises :class:`NotFoundError` if no broker's log is there, :class:`InvalidRequestError` for a store of
        tierlog's own, :class:`CorruptionError` if a segment is missing or of another size.
        """
        paths = StorePaths(root)
        disk = LocalFileSystem()
        if disk.exists(paths.store_json):
            raise InvalidRequestError(
                "this is a store of tierlog", path=str(root), hint="it archives itself: tierlog archive"
            )
        if not is_broker_store(disk, paths):
            raise NotFoundError("no store of a RocketMQ broker here", path=str(root), hint="it has a folder commitlog")
        fs = OverlayFileSystem(disk)
        adopt(fs, paths, store_id=None, segment_bytes=None, queue_file_units=None)
        identity = StoreIdentity.read(fs, paths)
        assert identity is not None
        size = identity.segment_bytes
        bases = CommitLog(fs, paths, size).bases()
        for base in bases:
            if base % size or fs.size(paths.segment(base)) != size:
                raise CorruptionError(f"a segment of a log of {size}-byte ones", path=str(paths.segment(base)))
        for lower, upper in pairwise(bases):
            if upper != lower + size:
                raise CorruptionError("a segment is missing after this one", path=str(paths.segment(lower)))
        segments = tuple(BrokerSegment(str(paths.segment(base).absolute()), base) for base in bases)
        topics = TopicRegistry(fs, paths, 1, read_only=True, foreign=True).all()
        return cls(str(root), size, segments, tuple(topics), _groups(disk, paths))

    def cut_off(self, end: int, newest_ms: int) -> int:
        """Counts whole records that queues lead to behind the ``end`` of a log whose newest is of ``newest_ms``.

        What an earlier recovery of the broker cut off lies there too, with units that lead to it; it is older than what
        the broker has appended since.
        """
        disk = LocalFileSystem()
        reached = [segment for segment in self.segments if segment.base + self.segment_bytes > end]
        data = {segment.base: disk.map_read(Path(segment.path)) for segment in reached}
        found = 0
        for queue in broker_queues(disk, StorePaths(Path(self.root))):
            for _, units in queue.files(disk):
                for at, size in units[units["physical_offset"] >= end][["physical_offset", "size"]].tolist():
                    base = at - at % self.segment_bytes
                    with contextlib.suppress(CorruptionError):
                        if base in data:
                            record = decode_record(data[base].data, at - base, physical_offset=at)
                            is_led_to = (record.topic, record.queue_id, record.size) == (
                                queue.topic,
                                queue.queue_id,
                                size,
                            )
                            found += is_led_to and record.store_ms >= newest_ms
        return found


def _groups(fs: LocalFileSystem, paths: StorePaths) -> dict[str, dict[tuple[str, int], int]]:
    found: dict[str, dict[tuple[str, int], int]] = {}
    with contextlib.suppress(CorruptionError):  # the log is what matters
        for (topic, group), queues in read_consumer_offsets(fs, paths).items():
            with contextlib.suppress(InvalidRequestError):
                offsets = found.setdefault(validate_group(group), {})
                offsets |= {(topic, queue): offset for queue, offset in queues.items()}
    return found


def survey_segment(segment: BrokerSegment, known: Sequence[str] = ()) -> SegmentSurvey:
    """Reads one file with every checksum. Memory: one run for each queue, and for each jump of its offsets.

    ``known`` are entries of topics, those of all generations among them, if they are known by then.
    """
    data = LocalFileSystem().map_read(Path(segment.path))
    names = list(known)
    runs: dict[tuple[str, int], list[PartQueue]] = {}
    table, position, records, newest_ms, stop = TopicTable(names), 0, 0, 0, ScanStop.ROWS_FULL
    while stop in (ScanStop.ROWS_FULL, ScanStop.UNKNOWN_TOPIC):
        found = scan(data, position, len(data), segment.base, table, check_crc=True, check_torn=True)
        rows, position, stop = found.rows, found.position, found.stop
        if stop is ScanStop.UNKNOWN_TOPIC:
            rows = rows[:-1]
            try:
                names.append(validate_foreign_topic(topic_at_stop(data, found)))
            except InvalidRequestError:  # no checksum covers the name
                stop = ScanStop.INVALID
            table = TopicTable(names)
        records += len(rows)
        newest_ms = max(newest_ms, int(rows["store_ms"].max(initial=0)))
        _follow(runs, names, rows[in_queues(rows)], segment)
    return SegmentSurvey(
        segment=segment, end=position, is_closed=stop is ScanStop.BLANK, is_begun=bool(data[:BLANK_BYTES].any()),
        records=records, newest_ms=newest_ms, checksum=zlib.crc32(data[:position].data), topics=tuple(names),
        runs=tuple(run for queue in runs.values() for run in queue),
    )  # fmt: skip


def _follow(
    runs: dict[tuple[str, int], list[PartQueue]], names: Sequence[str], rows: ScanRows, segment: BrokerSegment
) -> None:
    """Notes which offsets of which queues come, in the order of the log."""
    if not len(rows):
        return
    if not ((rows["queue_id"] >= 0) & (rows["queue_id"] < MOST_QUEUES) & (rows["queue_offset"] >= 0)).all():
        raise CorruptionError("a queue id or offset that no queue has", path=segment.path)
    rows = rows[np.lexsort((rows["physical_offset"], rows["queue_id"], rows["topic_number"]))]
    breaks = np.diff(rows["queue_offset"]) != 1
    for name in ("topic_number", "queue_id"):
        breaks |= np.diff(rows[name]) != 0
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.concatenate((starts[1:], [len(rows)]))
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        row = rows[first]
        run = PartQueue(
            names[row["topic_number"]], int(row["queue_id"]), int(row["queue_offset"]),
            int(row["queue_offset"]) + last - first, int(row["physical_offset"]),
            int(rows[last - 1]["physical_offset"]),
        )  # fmt: skip
        queue = runs.setdefault((run.topic, run.queue_id), [])
        if queue and queue[-1].next == run.first:
            queue[-1] = queue[-1]._replace(next=run.next, last=run.last)
        else:
            queue.append(run)


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The part of a surveyed log that is archived."""

    surveys: tuple[SegmentSurvey, ...]
    """Of files with records, ascending; all but the last are closed."""
    begin: int
    topics: tuple[Topic, ...]
    groups: tuple[GroupRecord, ...]
    end: int
    """Physical offset of the log's end."""
    cut_off: int
    """Whole messages behind the end that the broker's queues lead to: damage has cut them off."""
    fingerprint: str
    """Equal for equal logs: by it an archive is known to be of this one."""

    @classmethod
    def of(cls, log: BrokerLog, surveys: Sequence[SegmentSurvey]) -> LogPlan:
        """Finds the end of the log; :class:`CorruptionError` if it goes on behind damage."""
        # whole files, and the one in which the log ends
        kept: list[SegmentSurvey] = []
        end: SegmentSurvey | None = None
        for each in surveys:
            if end is not None and each.is_begun:
                raise CorruptionError(
                    "the log is damaged, and goes on behind the damage", path=end.segment.path, position=end.end,
                    hint="tierlog check --read-only says more",
                )  # fmt: skip
            if end is None and each.end + BLANK_BYTES > log.segment_bytes:
                raise CorruptionError("no room for the record that ends a segment", path=each.segment.path)
            if end is None and (each.end or each.is_closed):
                kept.append(each)
            if end is None and not each.is_closed:
                end = each
        # topics that were made again have an entry for each generation
        kept = _with_generations(kept)
        # topics are numbered by name, with the queues and floors that the broker knows
        known = {topic.name: topic for topic in log.topics}
        names = sorted({*known, *(name for each in kept for name in each.topics)})
        current = {record_topic(name): name for name in sorted(names, key=begin_of)}
        topics = [
            Topic(number, name, found.queues, found.floors)
            if (found := known.get(record_topic(name))) and current[record_topic(name)] == name
            else Topic(number, name, 1)
            for number, name in enumerate(names, 1)
        ]
        # the fingerprint tells this input from any other
        digest = hashlib.blake2b(digest_size=8)
        for each in kept:
            digest.update(f"{each.segment.base} {each.end} {each.records} {each.checksum}\n".encode())
        begin = log.segments[0].base if log.segments else 0
        groups = tuple(
            GroupRecord(name, 0, tuple(CommittedOffset(*queue, offset) for queue, offset in sorted(offsets.items())))
            for name, offsets in sorted(log.groups.items())
        )
        # how much lies behind the end
        log_end = begin if end is None else end.segment.base + end.end
        lost = log.cut_off(log_end, max((each.newest_ms for each in kept), default=0)) if end is not None else 0
        return cls(
            surveys=tuple(kept),
            begin=begin,
            topics=tuple(topics),
            groups=groups,
            end=log_end,
            cut_off=lost,
            fingerprint=f"rocketmq-{digest.hexdigest()}",
        )

    @property
    def records(self) -> int:
        """Messages, those without a queue unit counted."""
        return sum(each.records for each in self.surveys)

    def new_topics(self) -> NewTopics:
        """Ids, ends and gaps."""
        runs = [run for each in self.surveys for run in each.runs]
        return NewTopics.of(self.topics, runs, whole_log=self.begin == 0, is_brokers=True)

    def tasks(self, store: NewStore) -> list[ArchiveTask]:
        """Returns a task for each segment."""
        ids = {topic.name: topic.topic_id for topic in self.topics}
        ends: dict[tuple[int, int], int] = {}
        found = []
        for each in self.surveys:
            topics = tuple((ids[name], name) for name in each.topics)
            here = {(ids[run.topic], run.queue_id) for run in each.runs}
            known = tuple((queue, ends[queue]) for queue in sorted(here & ends.keys()))
            found.append(ArchiveTask(store, each, topics, known, is_whole=self.begin == 0))
            for run in each.runs:
                queue = ids[run.topic], run.queue_id
                ends[queue] = max(run.next, ends.get(queue, 0))
        return found


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """One segment to be archived; travels."""

    store: NewStore
    survey: SegmentSurvey
    topics: tuple[tuple[int, str], ...]
    ends: tuple[tuple[tuple[int, int], int], ...]
    """Where queues go on that were seen in segments before, by topic id and queue id."""
    is_whole: bool
    """Whether the log has everything from physical offset 0 on."""

    def run(self) -> BuiltPart:
        """Archives and indexes the segment. Killed: objects that nobody names; another try stores its own."""
        found = self.survey
        data = LocalFileSystem().map_private(Path(found.segment.path))
        if zlib.crc32(data[: found.end].data) != found.checksum:
            raise CorruptionError("the file changed since it was looked at", path=found.segment.path)
        if not found.is_closed:
            _close(data, found.end)
        topics = [Topic(number, name, 1) for number, name in self.topics]
        with PartBuilder.open(self.store, found.segment.base, SystemRandomness()) as builder:
            builder.add(Segment(found.segment.base, data), topics, self._places())
            return builder.finish()

    def _places(self) -> QueuePlaces:
        firsts = [0 if self.is_whole or is_numbered(name) else UNKNOWN for _, name in self.topics]
        ids = np.array([number for number, _ in self.topics], np.int32)
        return QueuePlaces(dict(self.ends), ids, np.array(firsts, np.int64))


def _with_generations(surveys: Sequence[SegmentSurvey]) -> list[SegmentSurvey]:
    """Finds where topics begin again, and returns the surveys with the entries of their generations.

    That is where a queue has offset 0 though it had a message before. Segments in which a topic begins again are read
    once more: queues that did not begin again there go on in both generations.
    """
    begins: dict[str, list[int]] = {}
    for topic, runs in _by_topic(surveys).items():
        found = [0]
        last: dict[int, int] = {}
        for run in runs:
            if run.first == 0 and last.get(run.queue_id, -1) >= found[-1]:
                found.append(run.begin)
            last[run.queue_id] = max(run.last, last.get(run.queue_id, 0))
        if len(found) > 1:
            begins[topic] = found
    return [_of_generations(each, begins) for each in surveys] if begins else list(surveys)


def _by_topic(surveys: Sequence[SegmentSurvey]) -> dict[str, list[PartQueue]]:
    """Returns the runs of each topic, in the order in which they begin in the log."""
    found: dict[str, list[PartQueue]] = {}
    for each in surveys:
        for run in sorted(each.runs, key=lambda run: run.begin):
            found.setdefault(run.topic, []).append(run)
    return found


def _of_generations(survey: SegmentSurvey, begins: Mapping[str, Sequence[int]]) -> SegmentSurvey:
    base, end = survey.segment.base, survey.segment.base + survey.end
    entries = [
        entry_name(topic, begin) if begin else topic
        for topic in survey.topics
        for begin, following in pairwise([*begins.get(topic, [0]), end + 1])
        if begin < end and following > base
    ]
    if len(entries) > len(survey.topics):
        again = survey_segment(survey.segment, entries)
        return replace(survey, topics=again.topics, runs=again.runs)
    names = dict(zip(survey.topics, entries, strict=True))
    return replace(
        survey, topics=tuple(entries), runs=tuple(run._replace(topic=names[run.topic]) for run in survey.runs)
    )


def _close(data: ByteArray, position: int) -> None:
    """Puts a blank record over the rest, of which nothing stays; pages of zeros remain the file's."""
    for start in range(position, len(data), _PIECE_BYTES):
        piece = data[start : start + _PIECE_BYTES]
        if piece.any():
            piece[:] = 0
    blank = BLANK.pack(len(data) - position, MAGIC_BLANK)
    data[position : position + BLANK_BYTES] = np.frombuffer(blank, np.uint8)
