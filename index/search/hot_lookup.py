"""Look-ups of many keys among what is hot: the library's fast way to messages whose keys are known.

Unlike a search (``index.search.searcher``) it knows no times, no pages and no archive: each key is answered with its
newest messages out of one snapshot. What a search compares is compared here too, on every record: checksums, topic,
key, and what is erased.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.kernels.point_lookup import (
    CORRUPT,
    DAMAGED,
    LONGEST_KEY,
    LONGEST_PREFIX,
    PLACE,
    SCRATCH_BYTES,
    find_records,
    hash_keys_of_topic,
)
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexSnapshot
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, UnavailableError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.generation import Generation, record_topic
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.format.record import SysFlag, decode_record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.mapped_log import GATHERED, MappedLog, gather_records
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.lifecycle.tombstones import Erasures, ErasureSource, reaching
from tierlog.tiering.message.stored_message import StoredMessage

_READ_AS_THEY_ARE = (pa.string(), pa.binary())
_TOO_LONG = "a key is longer than any message's, or lies outside of its array"
#: Bytes a row of the columns of numbers and ends, by ``GATHERED``.
_WIDTHS = (4, 8, 8, 8, 4, 8, 8)
#: Places for results of one call, 8 bytes each.
_MOST_RESULTS = 1 << 27
#: Where erasures hide some of a key's newest messages, so many times as many are looked at next.
_MORE = 4
#: Keys as text, or as their UTF-8; an Arrow array costs least.
Keys: TypeAlias = Sequence[str] | Sequence[bytes] | pa.Array

#: Of :attr:`HotRecords.batch`. ``key`` is the number of the key asked for, ``properties`` the text that
#: ``tiering.format.properties`` reads.
HOT_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("physical_offset", pa.int64()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("store_ms", pa.int64()),
        ("born_ms", pa.int64()),
        ("body", pa.large_binary()),
        ("properties", pa.large_binary()),
    ]
)

_COMPRESSED = int(SysFlag.COMPRESSED)


class KeyColumn:
    """Some keys as Arrow has them; ``ends`` is the address of one int32 more than there are keys."""

    def __init__(self, keys: Keys) -> None:
        """Raises :class:`InvalidRequestError` for what is no text or has holes."""
        try:
            column = keys if isinstance(keys, pa.Array) else pa.array(keys)
            self._column = column if column.type in _READ_AS_THEY_ARE else column.cast(pa.binary())
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise InvalidRequestError(f"keys are text or bytes: {error}") from error
        if self._column.null_count:
            raise InvalidRequestError("a key is null")
        _, ends, data = self._column.buffers()
        self.ends: int = 0 if ends is None else ends.address + 4 * self._column.offset
        self.data: int = 0 if data is None else data.address
        self.data_bytes: int = 0 if data is None else data.size

    def __len__(self) -> int:
        return len(self._column)

    def of(self, numbers: NDArray[np.int64]) -> KeyColumn:
        """Returns the keys with these numbers, in this order."""
        return KeyColumn(self._column.take(pa.array(numbers)))


def topic_prefix(topic: str) -> NDArray[np.uint8]:
    """Returns the bytes that a key's hashes begin with."""
    prefix = np.frombuffer(f"{topic}#".encode(), np.uint8)
    if len(prefix) > LONGEST_PREFIX:
        raise InvalidRequestError(f"bad topic name {topic[:300]!r}")
    return prefix


def encoded_key(key: str) -> bytes:
    """Returns a key's UTF-8; :class:`InvalidRequestError` for what is no text."""
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"keys are text: {error}") from error


class OneKey:
    """Room for the text of one key, as kernels read a column of it: :attr:`arguments` are bytes, their number, ends."""

    def __init__(self) -> None:
        text, ends = np.empty(LONGEST_KEY, np.uint8), np.zeros(2, np.int32)
        self._arrays, self._text, self._ends = (text, ends), text.data, ends.data
        self.arguments = {"keys": text.ctypes.data, "keys_bytes": len(text), "ends": ends.ctypes.data}

    def put(self, key: str) -> bool:
        """Writes a key there; False if it is longer than any message's."""
        data = encoded_key(key)
        length = len(data)
        if length > LONGEST_KEY:
            return False
        self._text[:length] = data
        self._ends[1] = length
        return True


class KeyHasher:
    """Hashes keys of one topic as look-ups in compacted index files take them. For one thread at a time."""

    def __init__(self, topic: str) -> None:
        prefix, scratch, pair = topic_prefix(topic), np.empty(SCRATCH_BYTES, np.uint8), np.empty(2, np.int64)
        self._arrays, self._pair, self._scratch = (prefix, scratch, pair), pair.data, scratch.ctypes.data
        self._prefix = {"prefix": prefix.ctypes.data, "prefix_bytes": len(prefix)}
        self._key = OneKey()
        self._job = hash_keys_of_topic.pack(
            **self._prefix, **self._key.arguments, count=1, scratch=self._scratch, out=pair.ctypes.data
        )
        self._one_key = address_of(self._job)

    def one(self, key: str) -> tuple[int, int]:
        """Returns both hashes of one key."""
        if not self._key.put(key):
            raise InvalidRequestError(_TOO_LONG)
        hash_keys_of_topic.at(self._one_key)
        return self._pair[0], self._pair[1]

    def many(self, keys: Keys) -> NDArray[np.int64]:
        """Returns the hashes of each key, a row a key."""
        column = KeyColumn(keys)
        hashes = np.empty((len(column), 2), np.int64)
        status = hash_keys_of_topic(
            **self._prefix, keys=column.data, keys_bytes=column.data_bytes, ends=column.ends, count=len(column),
            scratch=self._scratch, out=hashes.ctypes.data,
        )  # fmt: skip
        if status < 0:
            raise InvalidRequestError(_TOO_LONG)
        return hashes


@dataclass(frozen=True, slots=True)
class HotRecords:
    """Messages found, by key and then newest first, of physical offsets in ``[border, end)`` of one store.

    What lies below the border is at most in the archive, and was not looked at.
    """

    store_id: str
    border: int
    end: int
    #: A row a message, see ``HOT_SCHEMA``.
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.batch.num_rows)


@dataclass(slots=True)
class HotRecord:
    """One message as the log has it: checked, and decoded only on request."""

    store_id: str
    physical_offset: int
    data: bytes

    def message(self) -> StoredMessage:
        """Returns the message with all its fields."""
        record = decode_record(self.data, physical_offset=self.physical_offset, verify=False)
        return StoredMessage(record, self.store_id, Tier.HOT)

    @property
    def body(self) -> bytes:
        """The body, inflated if it is compressed."""
        return self.message().readable_body()[0]


def gathered(
    log: MappedLog, snapshot: HotSnapshot, keys: NDArray[np.int64], offsets: NDArray[np.int64], sizes: tuple[int, int]
) -> pa.RecordBatch:
    """The records at some physical offsets, which were checked before; ``sizes`` of all bodies and property texts."""
    rows = len(offsets)
    lengths = np.array([*(width * (rows + 1) for width in _WIDTHS), *sizes], np.int64)
    places = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1] + 7 & -8, out=places[1:])
    memory = pa.allocate_buffer(int(places[-1] + lengths[-1]))  # Arrow's own, which comes from its pool without faults
    addresses = places + memory.address
    body_bytes, text_bytes = sizes
    done = gather_records(
        log.address, offsets=offsets.ctypes.data, count=rows, out=addresses.ctypes.data, body_bytes=body_bytes,
        text_bytes=text_bytes,
    )  # fmt: skip
    if done != rows:
        snapshot.suspect(int(offsets[done]))
        raise CorruptionError("record is damaged", position=int(offsets[done]))
    buffers = dict(zip(GATHERED, map(memory.slice, places.tolist(), lengths.tolist()), strict=True))
    bodies = pa.Array.from_buffers(pa.large_binary(), rows, [None, buffers["body_ends"], buffers["body"]])
    packed = np.flatnonzero(np.frombuffer(buffers["sys_flag"], np.int32, rows) & _COMPRESSED)
    if len(packed):
        texts = bodies.to_pylist()
        for row in packed.tolist():
            texts[row] = StoredMessage(snapshot.record(int(offsets[row])), "", Tier.HOT).readable_body()[0]
        bodies = pa.array(texts, pa.large_binary())
    numbers = [pa.Array.from_buffers(HOT_SCHEMA.field(name).type, rows, [None, buffers[name]]) for name in GATHERED[:4]]
    properties = pa.Array.from_buffers(pa.large_binary(), rows, [None, buffers["text_ends"], buffers["text"]])
    return pa.record_batch([pa.array(keys), pa.array(offsets), *numbers, bodies, properties], schema=HOT_SCHEMA)


@contextlib.contextmanager
def hot_keys(
    store_id: str, hot: HotStore, index: LocalIndex, known: ErasureSource, topic: str
) -> Iterator[HotKeys]:  # fmt: skip
    """The keys of one topic in a snapshot of the hot tier, which is pinned inside the context.

    A damaged index file that a look-up meets is put aside soon after and derived again.
    Everything flushed before is in it. Raises :class:`TopicNotFoundError`, and :class:`UnavailableError` or
    :class:`ReadOnlyError` while queues or index do not follow the log, or a part of the index is derived again: a
    look-up never passes over what it should have found. :class:`CorruptIndexError` for a damaged index file.
    """
    with hot.snapshot() as snapshot:
        generations = hot.topics.ranges(topic)
        erased = known.current()
        snapshot.require_dispatched()
        files, missing = index.searchable(snapshot.border, snapshot.end)
        if missing:
            stretches = ", ".join(f"{first} to {end}" for first, end in missing)
            raise UnavailableError(f"the key index is being derived again from {stretches}")
        try:
            yield HotKeys(store_id, generations, snapshot, files, erased)
        except CorruptIndexError as error:
            index.note_damage(error)
            raise


class HotKeys:
    """Messages of one topic by key, of physical offsets in ``[border, end)``. For one thread at a time.

    ``border`` and ``end`` say what is covered: what lies below is at most in the archive, what lies above was flushed
    after the snapshot was taken.
    """

    def __init__(
        self, store_id: str, generations: Sequence[Generation], snapshot: HotSnapshot, files: IndexSnapshot,
        erased: Erasures,
    ) -> None:  # fmt: skip
        """Use :func:`hot_keys`."""
        self.topic = topic = record_topic(generations[0].name)
        self.border, self.end = snapshot.border, snapshot.end
        self._store_id = store_id
        self._snapshot, self._segment_bytes = snapshot, snapshot.segment_bytes
        # the newest first, so that few files are read where few messages are wanted
        self._entries = sorted((*files.files, *files.writing), key=lambda entry: entry.first, reverse=True)
        self._entries = [entry for entry in self._entries if entry.next is None or entry.next > self.border]
        maps = {base: segment.data for base, segment in snapshot.segments.items()}
        self._log = MappedLog(maps, snapshot.segment_bytes)
        whole, some = list[Tombstone](), list[Tombstone]()
        for tombstone in reaching(erased.tombstones, topic):
            is_whole = (tombstone.key_hash, tombstone.from_ms, tombstone.to_ms) == (None, None, None)
            (whole if is_whole and tombstone.topic == topic else some).append(tombstone)
        self._erased = Erasures(some)
        self._erased_below = max((tombstone.end for tombstone in some), default=0)
        shown_from = max([self.border, generations[0].begin, *(tombstone.end for tombstone in whole)])
        shown_to = min(self.end, generations[-1].end)
        self._rows = np.concatenate([entry.reader.look_up_row() for entry in self._entries] or [np.empty(0, np.int64)])
        self._prefix, self._scratch = topic_prefix(topic), np.empty(SCRATCH_BYTES, np.uint8)
        self._place = np.array(
            [(
                self._rows.ctypes.data, len(self._entries), self._log.address, shown_from, shown_to,
                self._prefix.ctypes.data, len(self._prefix), self._scratch.ctypes.data,
            )],
            PLACE,
        )  # fmt: skip
        self._result = np.zeros(3, np.int64)
        self._sizes = self._result.data
        self._views = {base: data.data for base, data in maps.items()}
        # all that a look-up of one key tells the kernel, made once
        found = np.empty(1, np.int64)
        self._key, self._found = OneKey(), found.data
        self._job = find_records.pack(
            place=self._place.ctypes.data, **self._key.arguments, count=1, limit=1, found=found.ctypes.data,
            result=self._result.ctypes.data,
        )  # fmt: skip
        self._one_key = address_of(self._job)

    def look_up(self, keys: Keys, *, limit: int = 1) -> HotRecords:
        """Returns the newest ``limit`` messages of each key, newest first; a key that nothing is found of has no row.

        A key is found as a search finds it: it is the UNIQ_KEY of a message or one of its KEYS. Raises
        :class:`CorruptIndexError` for a damaged index file and :class:`CorruptionError` for a damaged record.
        """
        column = KeyColumn(keys)
        if limit < 1 or len(column) * limit > _MOST_RESULTS:
            raise InvalidRequestError(f"{limit} messages of {len(column)} keys", hint="at least one, and fewer at once")
        found = self._find(column, limit)
        sizes = self._sizes[1], self._sizes[2]
        if self._erased_below:
            found = self._without_erased(column, limit, found)
            records = [self._snapshot.record(offset) for offset in found[found >= 0].tolist()]
            sizes = sum(len(one.body) for one in records), sum(len(one.properties_text) for one in records)
        places = np.flatnonzero(found.ravel() >= 0)
        batch = gathered(self._log, self._snapshot, places // limit, found.ravel()[places], sizes)
        return HotRecords(self._store_id, self.border, self.end, batch)

    def get(self, key: str) -> HotRecord | None:
        """Returns the newest message with a key, or None; raises as :meth:`look_up` does."""
        if self._erased_below:
            return self._get_shown(key)
        if not self._key.put(key):
            return None
        status = find_records.at(self._one_key)
        if status == 1:
            return self._record(self._found[0], self._sizes[0])
        if status < 0:
            self._raise(status)
        return None

    def _record(self, offset: int, size: int) -> HotRecord:
        position = offset % self._segment_bytes
        return HotRecord(self._store_id, offset, bytes(self._views[offset - position][position : position + size]))

    def _get_shown(self, key: str) -> HotRecord | None:
        column = KeyColumn([key])
        offset = int(self._without_erased(column, 1, self._find(column, 1))[0, 0])
        return None if offset < 0 else self._record(offset, self._snapshot.record(offset).size)

    def _find(self, column: KeyColumn, limit: int) -> NDArray[np.int64]:
        """Physical offsets of the newest messages, a row of ``limit`` a key."""
        found = np.empty((len(column), limit), np.int64)
        status = find_records(
            place=self._place.ctypes.data, keys=column.data, keys_bytes=column.data_bytes, ends=column.ends,
            count=len(column), limit=limit, found=found.ctypes.data, result=self._result.ctypes.data,
        )  # fmt: skip
        if status < 0:
            self._raise(status)
        return found

    def _without_erased(self, column: KeyColumn, limit: int, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns what is found without erased messages, in whose place older ones of the same key come."""
        hidden = np.zeros(found.shape, bool)
        for place in np.argwhere((found >= 0) & (found < self._erased_below)).tolist():
            hidden[*place] = self._erased.hides(self._snapshot.record(int(found[*place])))
        shown = np.full((len(found), limit), -1, np.int64)
        for number, (offsets, is_hidden) in enumerate(zip(found, hidden, strict=True)):
            kept = offsets[(offsets >= 0) & ~is_hidden][:limit]
            shown[number, : len(kept)] = kept
        short = np.flatnonzero(hidden.any(axis=1) & (found[:, -1] >= 0) & (shown[:, -1] < 0))
        if len(short):
            again = column.of(short)
            older = self._find(again, found.shape[1] * _MORE)
            shown[short] = self._without_erased(again, limit, older)
        return shown

    def _raise(self, status: int) -> None:
        detail = self._sizes[0]
        if status == CORRUPT:
            raise CorruptIndexError(
                "slot, chain or page of an index file is damaged", path=str(self._entries[detail].path)
            )
        if status == DAMAGED:
            self._snapshot.record(detail)  # says what is wrong with it
            raise CorruptionError("record is damaged", position=detail)
        raise InvalidRequestError("a key lies outside of the array given")
