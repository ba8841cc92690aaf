"""Index file whose items are chained: the one being written, and sealed ones until they are compacted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tierlog.index.format.checkpoint import WritingFile
from tierlog.index.format.errors import CorruptIndexError, OtherIndexFileError
from tierlog.index.format.header import (
    BEGIN_MAGIC,
    END_MAGIC,
    HEADER_BYTES,
    FileHeader,
    chained_bytes,
    check_capacity,
    items_position,
)
from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.format.trailer import COVER_BYTES, TRAILER_BYTES, CoverRecord, Trailer, crc_of
from tierlog.index.kernels.chains import FULL, PENDING_BYTES, link_again, put_items
from tierlog.index.kernels.point_lookup import find_slot, walk_items
from tierlog.index.local.compacted_file import FileRow, file_row
from tierlog.index.local.key_batch import KeyBatch
from tierlog.tiering.base.errors import CapacityError, ClosedError, InvalidRequestError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file, populate
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.base.write_guard import FlushGuard
from tierlog.tiering.kernels.checksum import joined_crc32
from tierlog.tiering.kernels.primitives import is_sooner_without

#: Least and most bytes whose pages are made ready at a time: as many as there are already.
FIRST_WINDOW_BYTES, WINDOW_BYTES = 1 << 20, 8 << 20

#: One for all files; a thread ends with its window, which is long beside its start.
_BESIDE = WorkerPool(1, "tierlog-index-pages")
_AT_ONCE = 64
_LOOK_US = 0.02
"""For comparing the hashes of one item among many."""


class ChainedIndexFile:
    """A chained file, mapped. One thread puts; any number of threads look up beside it without locks.

    Every check of a chain is made during the walk, so a damaged file gives :class:`CorruptIndexError`, never
    a crash. The map stays usable after the file was renamed or unlinked.

    A file found sealed is read whole before its first look-up. Of one that this process writes the CRC of all items is
    kept as they are put: taking the file up again and compaction compare it with what is there, look-ups do not. What
    the disk gives back differently of such a file may be missed by look-ups until then.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        data: ByteArray,
        *,
        layout: ItemLayout,
        slots: int,
        items: int,
        first: int,
        generation: int = 0,
    ) -> None:
        self._fs = fs
        self._data = data
        self._pending = np.empty(PENDING_BYTES, np.uint8)
        self._offsets = layout.kernel_offsets
        self._trailer: Trailer | None = None
        self._is_sealed = False
        self._is_ready = True
        self._is_linked = True
        self._is_retired = False
        self._linking = threading.Lock()
        #: How many items were put, and the CRC of their bytes: replaced together.
        self._put = (0, 0)
        self._flushed_items = 0
        self._pages = PagesAhead(fs, path, data, items_position(slots) + layout.chained_bytes)
        self._flush_guard = FlushGuard(str(path))
        self.path = path
        self.layout = layout
        self.slots = slots
        self.items = items
        self.first = first
        #: Tells this file from another of the same name while it is written (``index.format.checkpoint``).
        self.generation = generation
        #: End of the covered range; None while the file takes keys.
        self.next: int | None = None
        self.bounds: TimeBounds | None = None
        self.begin_ms = self.header.begin_ms
        self.item_count = self.header.item_count

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: Path,
        layout: ItemLayout,
        *,
        slots: int,
        items: int,
        begin_ms: int,
        first_physical: int,
        generation: int = 0,
    ) -> ChainedIndexFile:
        """Makes an empty file; ``items`` counts the unused item 0.

        Header, slots and trailer have their disk blocks, items get them as they come. Raises
        :class:`InvalidRequestError` for an impossible capacity, :class:`DiskFullError` without room.
        """
        check_capacity(layout, slots, items)
        at = items_position(slots)
        trailer_at = chained_bytes(layout, slots, items)
        size = trailer_at + (TRAILER_BYTES if layout.covered else 0)
        fs.create(path, size, prewrite=False, first_bytes=at + layout.chained_bytes)
        fs.allocate(path, trailer_at, size)
        data = fs.map_write(path)
        _submit(partial(populate, data, 0, at))  # the first keys reach most of the slots' pages
        data[:HEADER_BYTES] = np.frombuffer(FileHeader(BEGIN_MAGIC, begin_ms).encode(), np.uint8)
        data[at : at + 8] = np.frombuffer(generation.to_bytes(8), np.uint8)
        return cls(fs, path, data, layout=layout, slots=slots, items=items, first=first_physical, generation=generation)

    @classmethod
    def open_writing(
        cls,
        fs: FileSystem,
        path: Path,
        state: WritingFile,
        *,
        is_full: bool = False,
        layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> ChainedIndexFile:
        """Goes on with a file of which ``state`` is known to be durable; everything after its items is forgotten.

        One that ``is_full`` takes no more keys and waits to be sealed; that may have begun. Raises
        :class:`OtherIndexFileError` if this is not that file, or an older version wrote ``state``, and
        :class:`CorruptIndexError` if it is and its items are not what they were.
        """
        # is it the file that the checkpoint names?
        layout = layouts.get(state.layout)
        name = str(path)
        data = fs.map_write(path)
        at = items_position(state.slots)
        if (
            layout is None
            or not layout.covered
            or len(data) != chained_bytes(layout, state.slots, state.items) + TRAILER_BYTES
            or not _is_named_by(state, bytes(data[at : at + COVER_BYTES]), is_full=is_full)
            or not 1 <= state.item_count < state.items
            or state.items_crc is None
        ):
            raise OtherIndexFileError("not the index file that was being written", path=name)
        # are its items what was put?
        width = layout.chained_bytes
        if crc_of(data[at + width : at + width * (state.item_count + 1)]) != state.items_crc:
            raise CorruptIndexError("checksum of the items of an unfinished index file differs", path=name)
        items = data[at:-TRAILER_BYTES].view(layout.chained)[1 : state.item_count + 1]
        offsets = items["offset"]
        if (
            (items["hash"] < 0).any()
            or offsets[0] < state.first
            or offsets[-1] >= state.next
            or (np.diff(offsets) < 0).any()
        ):
            raise CorruptIndexError("items of the index file that was being written are damaged", path=name)
        # header, slots and chains are made again of the items; a copy of the file may have lost blocks of zeros
        fs.allocate(path, 0, at + width * (state.item_count + 1))
        fs.allocate(path, len(data) - TRAILER_BYTES, len(data))
        magic = END_MAGIC if state.item_count + 1 == state.items else BEGIN_MAGIC
        header = FileHeader(magic, state.begin_ms, state.bounds.max_store_ms, 0, state.item_count)
        data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
        file = cls(
            fs,
            path,
            data,
            layout=layout,
            slots=state.slots,
            items=state.items,
            first=state.first,
            generation=state.generation,
        )
        # what it held when it was flushed
        file.bounds, file._flushed_items = state.bounds, state.item_count
        file._put = state.item_count, state.items_crc
        file._is_linked = False
        if is_full:
            file.finish(state.next)
        return file

    def written(self, next_physical: int) -> WritingFile:
        """Returns the file's entry in a checkpoint once its items are flushed; all below ``next_physical`` is in it."""
        assert self.bounds is not None
        item_count, items_crc = self._put
        return WritingFile(
            begin_ms=self.begin_ms, generation=self.generation, first=self.first, next=next_physical, slots=self.slots,
            items=self.items, layout=self.layout.number, item_count=item_count, items_crc=items_crc,
            bounds=self.bounds,
        )  # fmt: skip

    def flush_items(self, fs: FileSystem, count: int) -> None:
        """Makes the file's name and its items up to number ``count`` durable; slots can be made again from items.

        Through ``fs``: the last checkpoint comes when nothing else may change the disk any more.
        """
        if count <= self._flushed_items:
            return
        at, width = items_position(self.slots), self.layout.chained_bytes
        start = at + width * (self._flushed_items + 1) if self._flushed_items else at  # item 0 goes with the first
        with self._flush_guard.flushing():
            fs.flush_mapped(self.path, self._data, start, at + width * (count + 1))
            if not self._flushed_items:
                fs.flush_dir(self.path.parent)
        self._flushed_items = count

    @classmethod
    def open_sealed(
        cls, fs: FileSystem, path: Path, *, layouts: Mapping[int, ItemLayout] = LAYOUTS, verify: bool = True
    ) -> ChainedIndexFile:
        """Opens a sealed file of a covered layout; ``verify`` reads all of it and compares its CRC.

        Raises :class:`CorruptIndexError` unless trailer, cover record, header and length agree.
        """
        data = fs.map_read(path)
        name = str(path)
        trailer = Trailer.decode(data[-TRAILER_BYTES:] if len(data) >= TRAILER_BYTES else data, name)
        cover = trailer.cover
        layout = layouts.get(cover.layout_number)
        if layout is None or not layout.covered:
            raise CorruptIndexError(f"index file of an unknown layout {cover.layout_number}", path=name)
        if len(data) != chained_bytes(layout, cover.slots, cover.items) + TRAILER_BYTES:
            raise CorruptIndexError("length of a sealed index file is not its capacity's", path=name)
        at = items_position(cover.slots)
        header = FileHeader.decode(data, name)
        if (
            bytes(data[at : at + COVER_BYTES]) != cover.encode()
            or header.magic != END_MAGIC
            or not 1 <= header.item_count < cover.items
            or not 1 <= header.used_slots <= cover.slots
        ):
            raise CorruptIndexError("header of a sealed index file contradicts its cover record", path=name)
        file = cls(fs, path, data, layout=layout, slots=cover.slots, items=cover.items, first=cover.first)
        file._trailer, file.next, file.bounds, file._is_sealed = trailer, cover.next, trailer.bounds, True
        file._is_ready = False
        if verify:
            file.get_ready()
        return file

    @property
    def header(self) -> FileHeader:
        """The header as it lies in the file."""
        return FileHeader.decode(self._data, str(self.path))

    @property
    def is_sealed(self) -> bool:
        """Whether the contents are complete and durable."""
        return self._is_sealed

    @property
    def is_doubtful(self) -> bool:
        """Whether a flush failed, after which nobody knows what the disk holds."""
        return self._flush_guard.has_failed

    @property
    def room(self) -> int:
        """Keys that still fit."""
        return 0 if self.next is not None else self.items - 1 - self.item_count

    @property
    def data(self) -> ByteArray:
        """The file's bytes, trailer included."""
        return self._data

    @property
    def trailer(self) -> Trailer | None:
        """The trailer of a sealed file of a covered layout."""
        return self._trailer

    def verify(self) -> None:
        """Compares all bytes of a sealed file with its CRC, or the items of one that is not with what was put.

        Raises :class:`CorruptIndexError` if they differ; of a layout without cover nothing is known.
        """
        if not self.layout.covered:
            return
        if self._trailer is not None:
            is_sound = crc_of(self._data[:-TRAILER_BYTES]) == self._trailer.body_crc
        else:
            count, crc = self._put
            is_sound = crc_of(self._bytes_of_items(1, count + 1)) == crc
        if not is_sound:
            raise CorruptIndexError("checksum of an index file differs", path=str(self.path))

    def get_ready(self) -> None:
        """Reads all of a file that was found sealed, once; :class:`CorruptIndexError` if it is damaged."""
        if not self._is_ready:
            self.verify()
            self._is_ready = True

    def _link(self) -> None:
        """Makes slots and chains of a file that was taken up, once: before the first put, look-up or seal.

        A command that only opens its store needs neither them nor the kernel.
        """
        if self._is_linked:
            return
        with self._linking:
            if self._is_linked:
                return
            if self._is_retired:  # the file may be the next owner's by now
                raise ClosedError("the store was closed before its index was asked", path=str(self.path))
            data, offsets = self._data, self._offsets.ctypes.data
            data[HEADER_BYTES : items_position(self.slots)] = 0
            used = link_again(data.ctypes.data, len(data), self.slots, self.item_count, offsets)
            if used < 0:
                raise CorruptIndexError(
                    "items of the index file that was being written are damaged", path=str(self.path)
                )
            header = replace(self.header, used_slots=int(used))
            data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
            self._is_linked = True

    def retire(self) -> None:
        """Sees to it that no late look-up writes into a file whose store was closed; it raises :class:`ClosedError`."""
        with self._linking:
            self._is_retired = True

    def _bytes_of_items(self, start: int, end: int) -> ByteArray:
        at, width = items_position(self.slots), self.layout.chained_bytes
        return self._data[at + width * start : at + width * end]

    def put(self, batch: KeyBatch, start: int, end: int) -> None:
        """Puts the keys ``[start, end)`` of a batch, all or none.

        An item can be found once this returns, and not before it is complete. Raises :class:`CapacityError`
        if they do not fit, :class:`InvalidRequestError` on a finished file, :class:`DiskFullError` without room.
        """
        if self.next is not None:
            raise InvalidRequestError("index file takes no more keys", path=str(self.path))
        if not 0 <= start <= end <= len(batch):
            raise InvalidRequestError(f"keys {start} to {end} of {len(batch)}")
        if end - start > self.room:
            raise CapacityError(f"{end - start} keys do not fit {self.room} free items", path=str(self.path))
        if start == end:
            return
        self._link()
        self._pages.reach(items_position(self.slots) + self.layout.chained_bytes * (self.item_count + end - start + 1))
        added = batch.bounds(start, end)
        # Before the items: a reader that finds one must not have skipped the file by its times.
        self.bounds = added if self.bounds is None else self.bounds.union(added)
        count = put_items(
            file=self._data.ctypes.data, file_bytes=len(self._data), slots=self.slots, items=self.items,
            begin_ms=self.begin_ms, offsets=self._offsets.ctypes.data, rows=batch.rows.ctypes.data,
            topic_ids=batch.topic_ids.ctypes.data, keys=batch.keys.ctypes.data, start=start, end=end,
            pending=self._pending.ctypes.data,
        )  # fmt: skip
        if count < 0:
            what = "item count is out of bounds" if count == FULL else "batch and file do not fit each other"
            raise CorruptIndexError(f"index file refused a put: {what}", path=str(self.path))
        crc = crc_of(self._bytes_of_items(self.item_count + 1, int(count) + 1), self._put[1])
        self._put = int(count), crc
        self.item_count = int(count)

    def look_up_row(self) -> FileRow:
        """Returns the file's row for kernels; :class:`CorruptIndexError` if a file that was found sealed is damaged."""
        self.get_ready()
        self._link()
        # In a file being written a chain may lead above the count that was read: there the capacity bounds.
        count = self.items - 1 if self.next is None else self.item_count
        return file_row(self._data, self.layout, self.slots, count, is_chained=True)

    def unlinked_items(self, low: int, high: int) -> Items | None:
        """All items with both hashes of a file that was taken up and is not linked yet, the newest first.

        They are looked for among all; None for a file that is linked, or is to be linked as that takes less time.
        ``high`` below 0 matches any.
        """
        count = self.item_count
        if self._is_linked or not is_sooner_without(_LOOK_US * count):
            return None
        items = self.all_items()[1 : count + 1]
        is_wanted = items["hash"] == low
        if high >= 0 and self.layout.has_hash_high:
            is_wanted &= items["hash_high"] == high
        found: Items = items[is_wanted][::-1]
        return found

    def lookup(self, hash_low: int, hash_high: int | None = None) -> Items:
        """All compacted-form items with these hashes, newest first; ``hash_high`` None matches any."""
        row, last = self.look_up_row(), np.zeros(1, np.int64)
        address = row.ctypes.data
        first = find_slot(address, hash_low, last.ctypes.data) if hash_low >= 0 else 0
        state, taken = np.array([first, 1, 0], np.int64), []
        while first >= 0 and state[0]:
            items = np.empty(_AT_ONCE, self.layout.chained)
            found = walk_items(
                file=address, low=hash_low, high=-1 if hash_high is None else hash_high, state=state.ctypes.data,
                steps=_AT_ONCE, out=items.ctypes.data, capacity=_AT_ONCE,
            )  # fmt: skip
            if found < 0:
                first = found
            taken.append(items[: max(0, found)])
        if first < 0:
            raise CorruptIndexError("slot or chain of an index file is damaged", path=str(self.path))
        return self.compacted_form(np.concatenate([np.empty(0, self.layout.chained), *taken]))

    def all_items(self) -> Items:
        """Returns the chained items by number, item 0 included, as a view of the map."""
        at = items_position(self.slots)
        end = at + self.layout.chained_bytes * self.items
        return self._data[at:end].view(self.layout.chained)

    def compacted_form(self, items: Items) -> Items:
        """Returns a copy of chained items without ``previous``."""
        compacted = np.empty(len(items), self.layout.compacted)
        for name in self.layout.compacted_fields:
            compacted[name] = items[name]
        return compacted

    def finish(self, next_physical: int) -> None:
        """Takes no more keys: the file covers ``[first, next_physical)``. In memory only; idempotent.

        Raises :class:`InvalidRequestError` for a file without items: an empty file is never sealed.
        """
        if self.bounds is None or next_physical <= self.first:
            raise InvalidRequestError("an index file is sealed with items and a range only", path=str(self.path))
        if self.next is None:
            self.next = next_physical

    def seal(self, next_physical: int | None = None) -> None:
        """Makes the file and what it covers durable, name excepted; finishes it if need be. Idempotent.

        One thread seals; looking up goes on beside it. After a failure the file is :attr:`is_doubtful` for good.
        """
        if next_physical is not None:
            self.finish(next_physical)
        if self.next is None or self.bounds is None:
            raise InvalidRequestError("an index file is finished before it is sealed", path=str(self.path))
        if self._is_sealed:
            return
        self._flush_guard.check()
        self._link()
        data = self._data
        header = self.header
        sealed = FileHeader(END_MAGIC, header.begin_ms, header.end_ms, header.used_slots, header.item_count)
        data[:HEADER_BYTES] = np.frombuffer(sealed.encode(), np.uint8)
        if self.layout.covered:
            cover = CoverRecord(self.first, self.next, self.slots, self.items, self.layout.number)
            at = items_position(self.slots)
            data[at : at + COVER_BYTES] = np.frombuffer(cover.encode(), np.uint8)
            self._trailer = Trailer(cover, self.bounds, self._body_crc())
            data[-TRAILER_BYTES:] = np.frombuffer(self._trailer.encode(), np.uint8)
        with self._flush_guard.flushing():
            flush_file(self._fs, self.path)
        self._is_sealed = True

    def _body_crc(self) -> int:
        """Returns the CRC of header, slots and items as they were put; it shows items that changed since."""
        count, items_crc = self._put
        before = self._data[: items_position(self.slots) + self.layout.chained_bytes]
        items = self._bytes_of_items(1, count + 1)
        crc = int(joined_crc32(crc_of(before), items_crc, len(items)))
        return crc_of(self._data[len(before) + len(items) : -TRAILER_BYTES], crc)


def _is_named_by(state: WritingFile, item_0: bytes, *, is_full: bool) -> bool:
    """Whether item 0 is that of the file that a checkpoint names; sealing, which begins after that, writes over it."""
    cover = CoverRecord(state.first, state.next, state.slots, state.items, state.layout)
    return item_0[:8] == state.generation.to_bytes(8) or (is_full and item_0 == cover.encode())


def _submit(work: Callable[[], None]) -> Future[None] | None:
    """Makes pages ready beside the writer; None if no thread is to be had: each is found when it is written."""
    try:
        return _BESIDE.submit(work)
    except RuntimeError:
        return None


class PagesAhead:
    """Gives a writable map its disk blocks and makes its pages ready, for the one thread that writes there.

    A page without a block, on a full disk, ends the process that writes to it: the block comes before the first byte,
    or :class:`DiskFullError` does. Who writes into one window finds the next one ready: a page that the kernel still
    has to find, clear and note takes as long as putting some 30 to 500 items, the latter where a virtual machine gets
    its memory only then.
    """

    def __init__(self, fs: FileSystem, path: Path, data: ByteArray, start: int) -> None:
        self._fs = fs
        self._path = path
        self._data = data
        self._start = self._there = self._asked = start
        self._coming: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Makes the pages below ``end`` ready, and begins with those behind them."""
        if end <= self._there:
            return
        if self._coming is not None:
            coming, self._coming = self._coming, None
            coming.result()
        self._there = self._asked
        if end > self._there:  # the first time, or further than a window
            there = self._window_behind(end)
            self._fs.allocate(self._path, self._there, there)
            populate(self._data, self._there, there)
            self._there = self._asked = there
        ahead = self._window_behind(self._there)
        with contextlib.suppress(StoreError):  # it is asked for again by who needs it
            self._fs.allocate(self._path, self._there, ahead)
            self._asked = ahead
            self._coming = _submit(partial(populate, self._data, self._there, ahead))

    def _window_behind(self, end: int) -> int:
        window = min(max(end - self._start, FIRST_WINDOW_BYTES), WINDOW_BYTES)
        return min(end + window, len(self._data))
