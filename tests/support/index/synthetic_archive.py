"""An archive of months or years with few messages in each index file, made by the kernels and not by appending.

Records, segments, index objects and the manifest are real: records come from the encoding kernel, segments from the
archiver, items from the hashing kernel, objects from the builder, and everything is named by commits of the manifest,
many entries at a time. What is not there is a hot tier.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.layout import TIERLOG, ItemLayout, Items
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.objects.builder import IndexMeta, build_index_object
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, ObjectRef
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tierlog.tiering.format.store_state import StoreState, TopicState
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.checksum import CRC_TABLES
from tierlog.tiering.kernels.encode import PROPERTY_NAMES, encode_records
from tierlog.tiering.kernels.scan import TopicTable, scan
from tierlog.tiering.lifecycle.archiver import upload_segment
from tierlog.tiering.message.batch import BytesColumn, MessageBatch
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import put_verified

TOPIC, TOPIC_ID = "orders", 1
STORE = "0123456789abcdef"
DAY_MS = 86_400_000
#: Midnight UTC of 2024-08-01: a year from here ends on the last day of a July.
START_MS = 1_722_470_400_000
_T = TypeVar("_T")
_HOST = np.frombuffer(bytes([10, 0, 0, 1, 0, 0, 0x26, 0x94]), np.uint8)
_STORE_MS_AT = 56
_AT_ONCE = 400


@dataclass(frozen=True)
class Shape:
    """What an archive is to hold: index files of equal time, one after the other."""

    days: int
    file_ms: int = 1_000_000
    """What an index file covers. At 20,000 items a second, one of 20 million items: 2,592 files in 30 days."""
    messages: int = 20
    """Messages an index file."""
    keys_a_message: int = 1
    files_a_segment: int = 1
    slots: int = 5
    """Of an index file: four items a slot, as by default. Merges keep the number."""
    page_bytes: int = 64 << 10
    frame_bytes: int = 16 << 10
    queues: int = 4
    body_bytes: int = 40
    spread: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Keys that one message each of some files has, by the numbers of the files."""
    merged: bool = False
    """Whether objects are those that merges leave: years, months of the last one, days of the last one, and files."""
    seed: int = 1

    @property
    def files(self) -> int:
        """Index files in all."""
        return self.days * DAY_MS // self.file_ms

    @property
    def end_ms(self) -> int:
        """Where the last day ends."""
        return START_MS + self.days * DAY_MS

    def begin_of(self, number: int) -> int:
        """Where a file begins."""
        return START_MS + number * self.file_ms


@dataclass(frozen=True)
class MadeFile:
    """One index file, compacted: what the builder of objects reads, or what is merged into a larger one."""

    first: int
    next: int
    begin_ms: int
    bounds: TimeBounds | None
    items: Items
    store_ms: NDArray[np.int64]
    """Of each item."""
    cold: NDArray[np.int64]
    """Cold offset of each item."""
    slots: int
    layout: ItemLayout = TIERLOG

    def verify(self) -> None:
        """Nothing has come from a disk."""

    def all_items(self) -> Items:
        """All of them, slot by slot."""
        return self.items[np.argsort(self.items["hash"] % self.slots, kind="stable")]

    def to_cold(self, physical: NDArray[np.int64]) -> NDArray[np.int64]:
        """The map of its offsets."""
        order = np.argsort(self.items["offset"], kind="stable")
        known = self.items["offset"][order].astype(np.int64)
        return self.cold[order][np.searchsorted(known, physical)]

    @classmethod
    def merged(cls, files: Sequence[MadeFile]) -> MadeFile:
        """Files that follow each other as one, seconds counted from the first one's begin time."""
        begin_ms = files[0].begin_ms
        items = np.concatenate([file.items for file in files]).astype(TIERLOG.compacted)  # it makes them native
        store_ms = np.concatenate([file.store_ms for file in files])
        items["seconds"] = (store_ms - begin_ms) // 1000
        bounds = reduce(TimeBounds.union, [file.bounds for file in files if file.bounds is not None])
        cold = np.concatenate([file.cold for file in files])
        return cls(files[0].first, files[-1].next, begin_ms, bounds, items, store_ms, cold, files[0].slots)


class SyntheticArchive:
    """A published archive. ``files`` are its index files before any merge; messages of file n are ``key_of(n, m)``."""

    def __init__(
        self, shape: Shape, objects: ObjectStore, on_segment: Callable[[int, NDArray[np.uint8]], None] | None = None
    ) -> None:
        """``on_segment`` sees base and bytes of every log segment."""
        self.shape = shape
        self.objects = objects
        self.files: list[MadeFile] = []
        self._on_segment = on_segment
        self._randomness = SeededRandomness(shape.seed)
        self._random = np.random.default_rng(shape.seed)
        self._spread: dict[int, list[str]] = {}
        for key, numbers in shape.spread.items():
            for number in numbers:
                self._spread.setdefault(number, []).append(key)
        self.segment_bytes = self._room_of_a_segment()
        self.manifest = self.fresh(ColdOptions(frame_bytes=shape.frame_bytes))
        owner = Ownership("v" * 16, "o" * 16, ("o" * 16,))
        self._head = self.manifest.claim(owner, log_begin=0, log_end=1 << 62)
        self._publish_log()
        self._publish_index()

    def fresh(self, options: ColdOptions | None = None) -> ManifestStore:
        """The manifest as a process sees it that was just started."""
        return ManifestStore(
            self.objects, ColdKeys(STORE), randomness=SeededRandomness(self.shape.seed + 1),
            options=options or ColdOptions(), clock=ManualClock(self.shape.end_ms),
        )  # fmt: skip

    @property
    def head(self) -> Head:
        """The head of the manifest."""
        return self._head

    def key_of(self, file: int, message: int, which: int = 0) -> str:
        """A key that one message of all has, unless a spread key took its place."""
        return f"{self.shape.seed:x}-{file}-{message}-{which}"

    # the log

    def _keys(self, file: int) -> list[str]:
        """The KEYS property of each message of a file; spread keys are the last of the first messages."""
        shape = self.shape
        keys = [[self.key_of(file, message, which) for which in range(shape.keys_a_message)]
                for message in range(shape.messages)]  # fmt: skip
        for message, key in enumerate(self._spread.get(file, ())):
            keys[message % shape.messages][-1] = key
        return [" ".join(mine) for mine in keys]

    def _room_of_a_segment(self) -> int:
        longest = max([len(self.key_of(self.shape.files, self.shape.messages)), *map(len, self.shape.spread)])
        record = 91 + len(TOPIC) + self.shape.body_bytes + 8 + (longest + 1) * self.shape.keys_a_message
        needed = record * self.shape.messages * self.shape.files_a_segment + BLANK_BYTES
        return max(4096, 1 << (needed - 1).bit_length())

    def _publish_log(self) -> None:
        state = StoreState((TopicState(TOPIC_ID, TOPIC, self.shape.queues),), segment_bytes=self.segment_bytes).encode()
        key = self.manifest.keys.state(self._randomness.token_hex(8))
        ref: ObjectRef | None = ObjectRef(key, len(state), put_verified(self.objects, key, state), len(state))
        for entries in _in_groups(self._segments(), _AT_ONCE):
            archived_to = entries[-1].next
            change = ManifestChange(log=tuple(entries), archived_to=archived_to, state=ref)
            self._head, ref = self.manifest.commit(change, self._head), None

    def _segments(self) -> Iterator[LogEntry]:
        per, topic = self.shape.files_a_segment, Topic(TOPIC_ID, TOPIC, self.shape.queues)
        for number, first in enumerate(range(0, self.shape.files, per)):
            files = range(first, min(first + per, self.shape.files))
            base = number * self.segment_bytes
            data = self._segment(base, files)
            if self._on_segment is not None:
                self._on_segment(base, data)
            entry = upload_segment(
                self.manifest, self._randomness, topics=[topic], segment=Segment(base, data), epoch=self._head.epoch
            )
            self.files += self._files_of(entry, data, files)
            yield entry

    def _segment(self, base: int, files: range) -> NDArray[np.uint8]:
        """Records of some files, and the blank record behind them."""
        shape = self.shape
        count = len(files) * shape.messages
        step = shape.file_ms // shape.messages
        inside = np.arange(shape.messages) * step + self._random.integers(0, max(1, step), (len(files), shape.messages))
        inside[:, 0] = 0
        store_ms = (inside + np.array([shape.begin_of(file) for file in files])[:, None]).ravel()
        place = np.arange(files.start * shape.messages, files.stop * shape.messages)
        bodies = self._random.integers(97, 123, count * shape.body_bytes, np.uint8)
        none = BytesColumn(np.zeros(1, np.uint8), np.zeros(count + 1, np.int64))
        batch = MessageBatch(
            (TOPIC,), np.zeros(count, np.int32), (place % shape.queues).astype(np.int32),
            store_ms - self._random.integers(1, 2_000, count),
            BytesColumn(bodies, np.arange(count + 1) * shape.body_bytes),
            BytesColumn.of([keys.encode() for file in files for keys in self._keys(file)]), none, none,
        )  # fmt: skip
        return _encoded(batch, base, store_ms, place // shape.queues, self.segment_bytes)

    def _files_of(self, entry: LogEntry, data: NDArray[np.uint8], files: range) -> Iterator[MadeFile]:
        rows = scan(data, 0, len(data), entry.base, TopicTable([TOPIC]), check_crc=False).rows
        assert len(rows) == len(files) * self.shape.messages
        keys = KeyBatch.of(data, rows, np.array([TOPIC_ID], np.int32)).keys
        known, cold_of = SegmentReader(self.manifest.reader(), entry).offset_map()
        mine = rows[keys["row"]]
        ends = np.searchsorted(keys["row"], np.arange(0, len(rows) + 1, self.shape.messages))
        for number, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            part, hashes = mine[low:high], keys[low:high]
            messages = rows[number * self.shape.messages : (number + 1) * self.shape.messages]
            begin_ms = int(messages["store_ms"][0]) // 1000 * 1000
            items = np.zeros(len(part), TIERLOG.compacted)
            items["hash"], items["hash_high"] = hashes["hash"], hashes["hash_high"]
            items["topic_id"], items["queue_id"] = TOPIC_ID, part["queue_id"]
            items["offset"], items["size"] = part["physical_offset"], part["size"]
            items["seconds"] = (part["store_ms"] - begin_ms) // 1000
            last = number + 1 == len(files)
            following = rows[(number + 1) * self.shape.messages]["physical_offset"] if not last else entry.next
            born = messages["born_ms"]
            bounds = TimeBounds(
                int(messages["store_ms"][0]), int(messages["store_ms"][-1]), int(born.min()), int(born.max())
            )
            first = entry.base if number == 0 else int(messages["physical_offset"][0])
            cold = cold_of[np.searchsorted(known, part["physical_offset"])]
            yield MadeFile(
                first, int(following), begin_ms, bounds, items, part["store_ms"].copy(), cold, self.shape.slots
            )

    # the index

    def _publish_index(self) -> None:
        for entries in _in_groups(self._objects(), _AT_ONCE):
            change = ManifestChange(index=tuple(entries), indexed_to=max(entry.next for entry in entries))
            self._head = self.manifest.commit(change, self._head)

    def _objects(self) -> Iterator[IndexEntry]:
        if not self.shape.merged:
            yield from (self._object(0, file) for file in self.files)
            return
        ends = np.array([file.begin_ms for file in self.files]).astype("datetime64[ms]")
        days, months, years = (ends.astype(f"datetime64[{unit}]") for unit in "DMY")
        level = np.where(years < years[-1], 3, np.where(months < months[-1], 2, np.where(days < days[-1], 1, 0)))
        unit = np.select(
            [level == 3, level == 2, level == 1],
            [years.astype(np.int64), months.astype(np.int64), days.astype(np.int64)],
            np.arange(len(ends)),
        )
        cuts = np.flatnonzero((np.diff(level) != 0) | (np.diff(unit) != 0)) + 1
        starts = [0, *cuts.tolist()]
        for first, end in zip(starts, [*starts[1:], len(ends)], strict=True):
            yield self._object(int(level[first]), MadeFile.merged(self.files[first:end]))

    def _object(self, level: int, source: MadeFile) -> IndexEntry:
        meta = IndexMeta(STORE, self.segment_bytes, {TOPIC_ID: TOPIC})
        built = build_index_object(source, source.to_cold, meta, self.shape.page_bytes)
        keys, token = self.manifest.keys, self._randomness.token_hex(4)
        key = keys.index(
            level, begin_ms=source.begin_ms, first_physical=source.first, epoch=self._head.epoch, nonce=token
        )
        self.objects.put(key, built.data)
        return IndexEntry(
            key, level, source.first, source.next, source.begin_ms, len(built.data), zlib.crc32(built.data),
            len(source.items), source.slots, 0, source.slots, source.layout.name, source.bounds, dict(built.sections),
            times_fall=built.meta.get("times_fall", False),
        )  # fmt: skip


def _encoded(
    batch: MessageBatch, base: int, store_ms: NDArray[np.int64], queue_offset: NDArray[np.int64], segment_bytes: int
) -> NDArray[np.uint8]:
    """A whole segment with the records of a batch; each has a store time of its own."""
    sizes = batch.record_sizes(16)
    starts = np.cumsum(sizes) - sizes
    end = int(sizes.sum())
    data = np.zeros(segment_bytes, np.uint8)
    assert end + BLANK_BYTES <= segment_bytes
    topics = BytesColumn.of([topic.encode() for topic in batch.topics])
    written = encode_records(
        tables=CRC_TABLES, out=data.ctypes.data, physical=base, store_ms=0,
        born_host=_HOST.ctypes.data, born_host_length=len(_HOST),
        store_host=_HOST.ctypes.data, store_host_length=len(_HOST),
        names=PROPERTY_NAMES.ctypes.data, first=0, last=len(batch), size=sizes.ctypes.data,
        topic_index=batch.topic_index.ctypes.data,
        topics=topics.data.ctypes.data, topic_starts=topics.starts.ctypes.data,
        queue_id=batch.queue_id.ctypes.data, queue_offset=queue_offset.ctypes.data, born_ms=batch.born_ms.ctypes.data,
        body=batch.body.data.ctypes.data, body_starts=batch.body.starts.ctypes.data,
        keys=batch.keys.data.ctypes.data, keys_starts=batch.keys.starts.ctypes.data,
        tags=batch.tags.data.ctypes.data, tags_starts=batch.tags.starts.ctypes.data,
        properties=batch.properties.data.ctypes.data, properties_starts=batch.properties.starts.ctypes.data,
        checksum=0, client=0,
    )  # fmt: skip
    assert written == end
    times = store_ms.astype(">i8").view(np.uint8).reshape(-1, 8)
    data[starts[:, None] + np.arange(_STORE_MS_AT, _STORE_MS_AT + 8)] = times
    data[end : end + BLANK_BYTES] = np.frombuffer(BLANK.pack(segment_bytes - end, MAGIC_BLANK), np.uint8)
    return data


def _in_groups(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    group: list[_T] = []
    for value in values:
        group.append(value)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
