"""Reads the messages of one archived segment in bulk, as Arrow batches of the view ``messages``.

What is read is what the engine's own pulls and scans show at the pinned head: no message that is erased, whether its
bytes are still there or a filler, none that has expired by its topic, no segment below ``cold_min``. Records that no
queue leads to (prepared and rolled-back transactions) are in neither view, as no pull and no query by time shows them;
a query by key finds a prepared one through the index, here it is left out whichever way the key is looked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tierlog.pipeline.base.archive import PinnedStore
from tierlog.pipeline.read.predicate import EVERYTHING, Predicate, ValueRange
from tierlog.pipeline.read.views import FIRST_SHOWN_MS, LAST_SHOWN_MS, MESSAGES, message_batch
from tierlog.tiering.base.errors import CorruptionError, TornRecordError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader, item_at
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.generation import ByGeneration
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.lifecycle.hidden_rows import hidden_rows
from tierlog.tiering.lifecycle.tombstones import NOTHING_ERASED, Erasures
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA, schema_of
from tierlog.tiering.message.record_columns import Bounds, RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
#: A batch ends with the frame that gives it so many rows, or before the one that would make it larger than this.
BATCH_ROWS, BATCH_BYTES = 8192, 4 << 20
#: What rows are made of.
SHOWN = schema_of(name for name in MESSAGE_SCHEMA.names if name != "size_bytes")
_BOUNDS = ("min_store_ms", "max_store_ms")


def bounds_of(predicate: Predicate, from_ms: int | None = None) -> Bounds:
    """Returns a predicate as the compiled decoder takes it: bounds that records of a topic must lie in.

    Everything stored before ``from_ms`` has expired. Times that no row shows (``pipeline.read.views``) are compared as
    they are shown.
    """
    stored = predicate.stored
    if from_ms is not None:
        stored = ValueRange(max(from_ms, _LEAST if stored.first is None else stored.first), stored.end)
    anywhere = (_LEAST, _MOST)  # of queue offsets, and of born times
    return np.array((anywhere, _ends(predicate.physical_offsets), _times(stored), anywhere), np.int64)


def _ends(span: ValueRange) -> tuple[int, int]:
    """Returns the least and the greatest 64-bit number inside; the first is the greater if there is none."""
    least = _LEAST if span.first is None else max(span.first, _LEAST)
    greatest = _MOST if span.end is None else min(span.end - 1, _MOST)
    return (least, greatest) if least <= greatest else (0, -1)


def _times(span: ValueRange) -> tuple[int, int]:
    least, greatest = _ends(span)
    if least > LAST_SHOWN_MS or greatest < FIRST_SHOWN_MS:
        return 0, -1
    return _LEAST if least <= FIRST_SHOWN_MS else least, _MOST if greatest >= LAST_SHOWN_MS else greatest


def rows_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages as Arrow, with their columns as the view ``messages`` shows them."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for axis in ("born", "store"):
        shown = np.clip(columns[f"{axis}_ms"].to_numpy(), FIRST_SHOWN_MS, LAST_SHOWN_MS)
        columns[f"{axis}_time"] = pa.array(1000 * shown).view(MESSAGES.field(f"{axis}_time").type)
    arrays = [columns[field.name].cast(field.type) for field in MESSAGES]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def without_erased(batch: pa.RecordBatch, erased: Erasures) -> pa.RecordBatch:
    """Returns the rows of a batch of the view ``messages`` that the tombstones of a head do not hide.

    They hide rows as ``tiering.lifecycle.tombstones`` hides records; a time that no row shows (``pipeline.read.views``)
    counts as it is shown.
    """
    hidden = np.zeros(batch.num_rows, bool)
    for topic in pc.unique(batch.column("topic")).to_pylist() if erased else ():
        if erased.concerns(topic):
            mine = pc.equal(batch.column("topic"), topic)
            chosen = batch.filter(mine)
            store_ms = chosen.column("store_time").cast(pa.int64()).to_numpy() // 1000
            rows = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            hidden[rows] = hidden_rows(chosen, topic, store_ms, erased)
    return batch.filter(pa.array(~hidden)) if hidden.any() else batch


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``count`` parts of some frames, about equal in bytes before compression; ``number`` counts from 0.

    A segment that is rewritten after an erasure keeps its frames and their runs, so each share stays what it was.
    """

    number: int
    count: int

    def of(self, runs: list[DirectoryRow]) -> list[DirectoryRow]:
        """Returns the runs of this part's frames; every frame is in one part, and the order stays."""
        if self.count == 1:
            return runs
        groups = [list(group) for _, group in groupby(runs, key=lambda run: run.frame)]
        sizes = np.array([sum(run.bytes for run in group) for group in groups])
        middles = np.cumsum(sizes) - sizes / 2
        parts = (middles * self.count / max(sizes.sum(), 1)).astype(np.int64)
        return [run for group, part in zip(groups, parts.tolist(), strict=True) if part == self.number for run in group]


WHOLE = Share(0, 1)


def read_frames(
    store: PinnedStore,
    entry: LogEntry,
    predicate: Predicate = EVERYTHING,
    *,
    frames: Collection[int] | None = None,
    share: Share = WHOLE,
) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a segment that fit, in the order of queues, then queue offsets; no batch is empty.

    ``frames`` reads only frames of these numbers (``SeekTable.frame_of`` tells a cold offset's), ``share`` a part of
    those that are read. Frames that topic or times rule out are not asked for. In memory are 8 MiB of compressed
    frames and one batch. Raises :class:`CorruptionError` for damage, naming the object, and the object store's error if
    it cannot be read.
    """
    head = store.head
    if entry.next <= head.cold_min:
        return
    reader = store.manifest.reader(scan=True)
    segment = SegmentReader(reader, entry)

    def choose(runs: pa.Table) -> NDArray[np.bool_]:
        found = predicate.may_match({name: runs[name].to_numpy() for name in _BOUNDS})
        if predicate.generations is not None:
            names = pa.array([each.name for each in predicate.generations], pa.string())
            found &= pc.is_in(runs["topic"].cast(pa.string()), value_set=names).to_numpy(zero_copy_only=False)
        return found if frames is None else found & np.isin(runs["frame"].to_numpy(), list(frames))

    runs = share.of(list(segment.chosen_runs(predicate.topics, choose)))
    groups = [(place, list(group)) for place, group in groupby(runs, key=lambda run: run.place)]
    visible = VisibleMessages(store, reader, predicate)
    erased = visible.erased if any(map(visible.erased.may_hide, runs)) else NOTHING_ERASED
    filling = _Filling(store.store_id, visible)
    with naming(entry):
        for frame, (_, group) in zip(segment.frames([place for place, _ in groups]), groups, strict=True):
            for batch in filling.add(frame, group):
                yield from _shown(batch, erased, predicate)
        yield from _shown(filling.finish(), erased, predicate)


def _shown(batch: pa.RecordBatch, erased: Erasures, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a batch that were requested by key or tag and are not erased, unless there are none."""
    batch = predicate.chosen(without_erased(batch, erased))
    if batch.num_rows:
        yield batch


class VisibleMessages:
    """The messages of a store that readers see, of those that a predicate asks for."""

    def __init__(self, store: PinnedStore, reader: ArchiveReader, predicate: Predicate) -> None:
        self._predicate = predicate
        #: What the head hides.
        self.erased = Erasures(store.head.tombstones)
        self._expired_ms = expired_by_name(store.manifest, reader, store.head)
        self._expired_of = ByGeneration(self._expired_ms)
        self._bounds: dict[str, Bounds] = {}

    def includes(self, message: StoredMessage) -> bool:
        """Whether a message of a queue is shown; keys and tags are looked at in whole batches."""
        record = message.record
        return (
            self._predicate.matches(record)
            and record.store_ms >= self._expired_of.of(record.topic, record.physical_offset, record.store_ms)
            and not self.erased.hides(record)
        )

    def bounds(self, topic: str) -> Bounds:
        """Returns what :meth:`includes` asks of a topic's offsets and times, for a kernel; erasures are left out."""
        if topic not in self._bounds:
            self._bounds[topic] = bounds_of(self._predicate, self._expired_ms.get(topic))
        return self._bounds[topic]


class _Filling:
    """Fills one batch after another with the records of runs."""

    def __init__(self, store_id: str, visible: VisibleMessages) -> None:
        self._store_id = store_id
        self._visible = visible
        self._columns = RecordBatchBuilder(store_id, Tier.COLD, BATCH_BYTES, schema=SHOWN)

    def add(self, frame: bytes, runs: Iterable[DirectoryRow]) -> Iterator[pa.RecordBatch]:
        """Adds the runs of a frame; yields every batch that is full."""
        data = np.frombuffer(frame, np.uint8)
        if self._columns.room_bytes < len(frame):
            yield self.finish(len(frame))
        for run in runs:
            at, end = run.position, run.position + run.bytes
            if end > len(frame):
                raise TornRecordError("the directory leads beyond the end of a frame", position=run.frame_position)
            while (at := self._columns.add(data, at, end, run.topic, self._visible.bounds(run.topic))) < end:
                item = item_at(frame, at)
                at += item.size
                if isinstance(item, Filler):
                    continue
                message = StoredMessage(item, self._store_id, Tier.COLD)
                if self._visible.includes(message):
                    self._columns.add_plain(message)
                    if self._columns.is_full:
                        yield self.finish(len(frame))
        if self._columns.rows >= BATCH_ROWS:
            yield self.finish()

    def finish(self, room_bytes: int = 0) -> pa.RecordBatch:
        """Returns the batch so far, and begins another one, with room for so much at least."""
        batch = rows_of(self._columns.finish())
        self._columns = RecordBatchBuilder(self._store_id, Tier.COLD, max(BATCH_BYTES, room_bytes), schema=SHOWN)
        return batch


def expired_by_name(manifest: ManifestStore, reader: ArchiveReader, head: Head) -> dict[str, int]:
    """Returns, by topic, the store time before which its archived messages have expired at a head."""
    if not head.expired:
        return {}
    names = {state.topic_id: state.name for state in manifest.state(reader, head).topics}
    return {names[expiry.topic_id]: expiry.below_ms for expiry in head.expired if expiry.topic_id in names}


def batches_of(messages: list[StoredMessage], predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Yields the messages that fit keys and tags, as one batch or none."""
    batch = predicate.chosen(message_batch(messages))
    if batch.num_rows:
        yield batch


@contextlib.contextmanager
def naming(entry: LogEntry) -> Iterator[None]:
    """Adds the object's name to errors of damage inside a frame whose checksum is right."""
    try:
        yield
    except CorruptionError as error:
        error.path = error.path or entry.key
        raise
