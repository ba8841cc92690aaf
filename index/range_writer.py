"""Turns scanned records of a physical range into chained files whose ranges abut, without waiting for what follows."""

from __future__ import annotations

import contextlib

import numpy as np

from index.batch import KeyBatch
from index.chained_file import ChainedIndexFile
from index.file_set import IndexFileSet
from tiering.errors import InvalidRequestError
from tiering.fs import FileSystem
from tiering.gated_fs import Gate
from tiering.hot.dispatch import LogRange

#: Most keys put while the lock is held, unless one message has more: about 2 ms.
_PIECE_KEYS = 1 << 14


class RangeWriter:
    """Writes the items of ``[first, limit)``; records come in ascending order and ranges before are no-ops.

    One thread writes. Any thread may end the current stretch: what is written is changed under the lock of the file
    set only, for the time of one piece, and a new file is made outside of it. A full file is put aside and the next
    one begins at once. All keys of one message lie in one file. A failed call can be repeated, and puts nothing twice.
    """

    def __init__(
        self,
        files: IndexFileSet,
        fs: FileSystem,
        first: int,
        limit: int | None = None,
        step: Gate = contextlib.nullcontext,
    ) -> None:
        """New files are made with ``fs``, inside ``step()``."""
        self._files = files
        self._fs = fs
        self._step = step
        self._limit = limit
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
        """Whether the whole range was written; its last file is full by then."""
        return self._limit is not None and self.first >= self._limit

    def write(self, records: LogRange) -> None:
        """Put the keys of all records not yet seen; sees everything below ``records.end`` afterwards."""
        end = records.end if self._limit is None else min(records.end, self._limit)
        if end <= self.next:
            return
        if records.start > self.next:
            raise InvalidRequestError(f"range starts at {records.start}, but {self.next} was not seen yet")
        physical = np.ascontiguousarray(records.rows["physical_offset"])
        low, high = np.searchsorted(physical, [self.next, end])
        batch = KeyBatch.of(records.data, records.rows[low:high], records.topic_ids)
        at = 0
        while self.next < end:
            with self._files.lock:
                at, needs_file = self._put_piece(batch, at, end)
            if needs_file:
                with self._step():
                    made = self._files.make_file(
                        self._fs, batch.store_ms(at), self.first, batch.message_end(at) - at
                    )  # fmt: skip
                with self._files.lock:
                    made.first = self.first  # somebody may have ended a stretch without items meanwhile
                    self.file = made
                    self._files.show_writing(made)

    def _put_piece(self, batch: KeyBatch, at: int, end: int) -> tuple[int, bool]:
        """Put some keys from ``at`` on; the first key not put, and whether a file has to be made before it is."""
        cut = self._files.indexed_to
        stop = cut if self.next < cut < end else end
        last = len(batch) if stop == end else batch.first_key_from(stop)
        if at < last:
            if self.file is None:
                return at, True
            upto = min(batch.fit(at, min(self.file.room, max(_PIECE_KEYS, batch.message_end(at) - at))), last)
            if upto == at:
                self.next = max(self.next, batch.physical_offset(at))
                self.finish_stretch()
                return at, False
            self.file.put(batch, at, upto)
            at = upto
        # Noted at once, so that a full disk at the next file leaves nothing to be put twice.
        self.next = batch.physical_offset(at) if at < last else stop
        if self.first < cut <= self.next or self.next == self._limit:
            self.finish_stretch()
        return at, False

    def finish_stretch(self) -> None:
        """End the stretch ``[first, next)``: put its file aside to be sealed, or note that there are no items.

        In memory only. The caller holds the file set's lock.
        """
        file = self.file
        if file is not None and file.bounds is not None:
            self.file = None
            file.finish(self.next)
            self._files.show_again(file)
            self._files.hide_straddling()  # the watermark may have risen into it while a gap was derived
        elif self.first < self.next:
            self._files.range_without_items(self.first, self.next)
            if file is not None:  # it was just made, and goes on empty
                file.first = self.next
                self._files.show_again(file)
        self.first = self.next  # last: a reader without the lock has seen all below it

    def give_up(self) -> None:
        """Throw the current file away, whose stretch becomes a gap. The caller holds the file set's lock."""
        file, self.file = self.file, None
        self.first = self.next  # before readers lose sight of the file
        if file is not None:
            self._files.discard_writing(file)
