"""Look-ups of many keys among what is hot: the library's fast way to messages whose keys are known.

Unlike a search (``index.search``) it knows no times, no pages and no archive: each key is answered with its newest
messages out of one snapshot. What a search compares is compared here too, on every record: checksums, topic, key, and
what is erased.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from index.chained_file import ChainedIndexFile
from index.errors import CorruptIndexError
from index.file_rows import file_row
from index.hot_records import HotRecord, HotRecords, gathered
from index.kernels.points import CORRUPT, DAMAGED, PLACE, WORK_BYTES, find_records
from index.key_column import KeyColumn, Keys, OneKey, topic_prefix
from index.local_index import LocalIndex
from index.snapshot import IndexReader, IndexSnapshot
from tiering.erasing.tombstones import Erasures, ErasureSource
from tiering.errors import CorruptionError, InvalidRequestError, UnavailableError
from tiering.format.manifest import Tombstone
from tiering.hot.snapshot import HotSnapshot
from tiering.hot.store import HotStore
from tiering.kernels.mapped_log import MappedLog

#: Places for results of one call, 8 bytes each.
_MOST_RESULTS = 1 << 27
#: Where erasures hide some of a key's newest messages, so many times as many are looked at next.
_MORE = 4


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
        hot.topics.get(topic)
        erased = known.current()
        snapshot.require_dispatched()
        files, missing = index.searchable(snapshot.border, snapshot.end)
        if missing:
            stretches = ", ".join(f"{first} to {end}" for first, end in missing)
            raise UnavailableError(f"the key index is being derived again from {stretches}")
        try:
            yield HotKeys(store_id, topic, snapshot, files, erased)
        except CorruptIndexError as error:
            index.note_damage(error)
            raise


class HotKeys:
    """Messages of one topic by key, of physical offsets in ``[border, end)``. For one thread at a time.

    ``border`` and ``end`` say what is covered: what lies below is at most in the archive, what lies above was flushed
    after the snapshot was taken.
    """

    def __init__(
        self, store_id: str, topic: str, snapshot: HotSnapshot, files: IndexSnapshot, erased: Erasures
    ) -> None:
        """Use :func:`hot_keys`."""
        self.topic = topic
        self.border, self.end = snapshot.border, snapshot.end
        self._store_id = store_id
        self._snapshot, self._segment_bytes = snapshot, snapshot.segment_bytes
        # the newest first, so that few files are read where few messages are wanted
        self._entries = sorted((*files.files, *files.writing), key=lambda entry: entry.first, reverse=True)
        self._entries = [entry for entry in self._entries if entry.next is None or entry.next > self.border]
        maps = {base: segment.data for base, segment in snapshot.segments.items()}
        self._log = MappedLog(maps, snapshot.segment_bytes)
        stones = [stone for stone in erased.tombstones if stone.topic == topic]
        whole, some = list[Tombstone](), list[Tombstone]()
        for stone in stones:
            (whole if (stone.key_hash, stone.from_ms, stone.to_ms) == (None, None, None) else some).append(stone)
        self._erased = Erasures(some)
        self._erased_below = max((stone.end for stone in some), default=0)
        shown_from = max([self.border, *(stone.end for stone in whole)])
        self._rows = np.concatenate([_row(entry.reader) for entry in self._entries] or [np.empty(0, np.int64)])
        self._prefix, self._work = topic_prefix(topic), np.empty(WORK_BYTES, np.uint8)
        self._place = np.array(
            [(
                self._rows.ctypes.data, len(self._entries), self._log.address, shown_from, self.end,
                self._prefix.ctypes.data, len(self._prefix), self._work.ctypes.data,
            )],
            PLACE,
        )  # fmt: skip
        self._result = np.zeros(3, np.int64)
        self._sizes = self._result.data
        self._views = {base: data.data for base, data in maps.items()}
        # all that a look-up of one key tells the kernel, made once
        found = np.empty(1, np.int64)
        self._key, self._found = OneKey(), found.data
        self._arguments = (
            self._place.ctypes.data, *self._key.arguments, 1, 1, found.ctypes.data, self._result.ctypes.data
        )  # fmt: skip

    def look_up(self, keys: Keys, *, limit: int = 1) -> HotRecords:
        """The newest ``limit`` messages of each key, newest first; a key that nothing is found of has no row.

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
        """The newest message with a key, or None; raises as :meth:`look_up` does."""
        if self._erased_below:
            return self._get_shown(key)
        if not self._key.put(key):
            return None
        status = find_records(*self._arguments)
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
            self._place.ctypes.data, column.data, column.data_bytes, column.ends, len(column), limit,
            found.ctypes.data, self._result.ctypes.data,
        )  # fmt: skip
        if status < 0:
            self._raise(status)
        return found

    def _without_erased(self, column: KeyColumn, limit: int, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is found without what is erased, for which older messages of the same key come in."""
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


def _row(reader: IndexReader) -> NDArray[np.void]:
    if not isinstance(reader, ChainedIndexFile):
        return reader.look_up_row()
    reader.get_ready()
    # in a file being written a chain may lead above the count that was read: there the capacity bounds
    count = reader.items - 1 if reader.next is None else reader.item_count
    return file_row(reader.data, reader.layout, reader.slots, count, is_chained=True)
