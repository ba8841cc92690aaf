"""Turns scanned records of a physical range into chained files whose ranges abut."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from index.batch import KeyBatch
from index.chained_file import ChainedIndexFile
from tiering.errors import InvalidRequestError, ReadOnlyError, StoreError
from tiering.hot.dispatch import LogRange


class IndexFileHost(Protocol):
    """What a writer needs of the index it writes for."""

    def begin_file(self, store_ms: int, first: int, key_count: int) -> ChainedIndexFile:
        """Make a file that holds at least ``key_count`` keys and show it to readers."""
        ...

    def file_sealed(self, file: ChainedIndexFile) -> None:
        """Move a sealed and flushed file on."""
        ...

    def range_without_items(self, first: int, end: int) -> None:
        """Remember that nothing in ``[first, end)`` has a key."""
        ...

    def cut(self) -> int:
        """The physical offset that no file may straddle."""
        ...


class RangeWriter:
    """Writes the items of ``[first, limit)``; records come in ascending order and ranges before are no-ops.

    Not thread-safe: the owner holds a lock. All keys of one message lie in one file. A failed call can be
    repeated, except after a seal failed: what the disk holds is then unknown, and :class:`ReadOnlyError` is
    all there is.
    """

    def __init__(self, host: IndexFileHost, first: int, limit: int | None = None) -> None:
        self._host = host
        self._limit = limit
        self._failure: StoreError | None = None
        self.file: ChainedIndexFile | None = None
        #: Start of the stretch that the current file covers or the next one will.
        self.first = first
        #: First physical offset not yet seen.
        self.next = first

    def go_on(self, file: ChainedIndexFile, next_offset: int) -> None:
        """Take up a file that holds everything below ``next_offset``."""
        self.file, self.first, self.next = file, file.first, next_offset

    @property
    def done(self) -> bool:
        """Whether the whole range was written and sealed."""
        return self._limit is not None and self.first >= self._limit

    def write(self, records: LogRange) -> None:
        """Put the keys of all records not yet seen; sees everything below ``records.end`` afterwards."""
        end = records.end if self._limit is None else min(records.end, self._limit)
        if end <= self.next:
            return
        if records.start > self.next:
            raise InvalidRequestError(f"range starts at {records.start}, but {self.next} was not seen yet")
        self._check_usable()
        while self.next < end:
            cut = self._host.cut()
            self._take(records, cut if self.next < cut < end else end)
            if self.first < cut <= self.next or self.next == self._limit:
                self.finish_stretch()

    def finish_stretch(self) -> None:
        """End the stretch ``[first, next)``: seal its file, or note that it has no items."""
        if self.file is not None:
            self._seal()
        elif self.first < self.next:
            self._host.range_without_items(self.first, self.next)
            self.first = self.next

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ReadOnlyError("an index file could not be sealed") from self._failure

    def _take(self, records: LogRange, stop: int) -> None:
        physical = np.ascontiguousarray(records.rows["physical_offset"])
        low, high = np.searchsorted(physical, [self.next, stop])
        batch = KeyBatch.of(records.data, records.rows[low:high], records.topic_ids)
        at = 0
        while at < len(batch):
            if self.file is None:
                keys = batch.message_end(at) - at
                self.file = self._host.begin_file(batch.store_ms(at), self.first, keys)
            end = batch.fit(at, self.file.room)
            if end == at:
                self.next = batch.physical_offset(at)
                self._seal()
                continue
            self.file.put(batch, at, end)
            at = end
            # Noted at once, so that a full disk at the next file leaves nothing to be put twice.
            self.next = batch.physical_offset(at) if at < len(batch) else stop
        self.next = stop

    def _seal(self) -> None:
        self._check_usable()
        file = self.file
        assert file is not None
        try:
            file.seal(self.next)
            self._host.file_sealed(file)
        except StoreError as error:
            self._failure = error
            raise
        self.file = None
        self.first = self.next
