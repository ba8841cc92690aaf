"""Reads the messages of one archived segment in bulk, as Arrow batches of the view ``messages``.

What is read is what the engine's own pulls and scans show at the pinned head: no message that is erased, whether its
bytes are still there or a filler, none that has expired by its topic, no segment below ``cold_min``. Records that no
queue leads to (prepared and rolled-back transactions) are in neither view, as no pull and no query by time shows them;
a query by key finds a prepared one through the index, here it is left out whichever way the key is looked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from itertools import chain, groupby

import pyarrow as pa

from pipeline.archive import PinnedStore
from pipeline.predicate import EVERYTHING, Predicate, Span
from pipeline.rows import message_batch
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.segment.reader import SegmentReader, items_in
from tiering.erasing.tombstones import Erasures
from tiering.errors import CorruptionError
from tiering.format.filler import Filler
from tiering.format.manifest import Head, LogEntry
from tiering.message import StoredMessage
from tiering.types import Tier

#: Rows of a batch, unless one frame has more.
BATCH_ROWS = 8192


def read_frames(
    store: PinnedStore,
    entry: LogEntry,
    predicate: Predicate = EVERYTHING,
    *,
    frames: Collection[int] | None = None,
    part: Span | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a segment that fit, in the order of queues, then queue offsets; no batch is empty.

    ``frames`` reads only frames of these numbers (``SeekTable.frame_of`` tells a cold offset's), ``part`` only those
    that begin at these positions of the object. Frames that topic, queue or times rule out are not asked for. In
    memory are 8 MiB of compressed frames and one batch. Raises :class:`CorruptionError` for damage, naming the object,
    and the object store's error if it cannot be read.
    """
    head = store.head
    if entry.next <= head.cold_min:
        return
    reader = store.manifest.reader(scan=True)
    segment = SegmentReader(reader, entry)
    runs = [
        run
        for run in segment.runs()
        if run.first_queue_offset >= 0
        and (frames is None or run.frame in frames)
        and (part is None or part.contains(run.frame_position))
        and predicate.may_match(run)
    ]
    groups = [(place, list(group)) for place, group in groupby(runs, key=lambda run: run.place)]
    shown = _Shown(store, reader, predicate)
    waiting: list[StoredMessage] = []
    with _naming(entry):
        for frame, (_, group) in zip(segment.frames([place for place, _ in groups]), groups, strict=True):
            for item in chain.from_iterable(items_in(frame, run) for run in group):
                if not isinstance(item, Filler):
                    message = StoredMessage(item, store.store_id, Tier.COLD)
                    if shown.includes(message):
                        waiting.append(message)
            if len(waiting) >= BATCH_ROWS:
                yield from _batches(waiting, predicate)
                waiting = []
        yield from _batches(waiting, predicate)


class _Shown:
    """Which messages of a store readers see, of those that a predicate asks for."""

    def __init__(self, store: PinnedStore, reader: ArchiveReader, predicate: Predicate) -> None:
        self._predicate = predicate
        self._erased = Erasures(store.head.tombstones)
        self._expired_ms = expired_by_name(store.manifest, reader, store.head)

    def includes(self, message: StoredMessage) -> bool:
        record = message.record
        return (
            self._predicate.matches(message)
            and record.store_ms >= self._expired_ms.get(record.topic, record.store_ms)
            and not self._erased.hides(record)
        )


def expired_by_name(manifest: ManifestStore, reader: ArchiveReader, head: Head) -> dict[str, int]:
    """By topic, the store time before which its archived messages have expired at a head."""
    if not head.expired:
        return {}
    names = {state.topic_id: state.name for state in manifest.state(reader, head).topics}
    return {names[expiry.topic_id]: expiry.below_ms for expiry in head.expired if expiry.topic_id in names}


def _batches(messages: list[StoredMessage], predicate: Predicate) -> Iterator[pa.RecordBatch]:
    batch = predicate.with_keys(message_batch(messages))
    if batch.num_rows:
        yield batch


@contextlib.contextmanager
def _naming(entry: LogEntry) -> Iterator[None]:
    """Damage inside a frame whose checksum is right names the object too."""
    try:
        yield
    except CorruptionError as error:
        error.path = error.path or entry.key
        raise
