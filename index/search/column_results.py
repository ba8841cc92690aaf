"""The best results of a query by columns: what :mod:`index.search.results` does, without an object for each message."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.index.search.query import Query
from tierlog.index.search.results import PAGE_BYTES, range_behind_cursor
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import Place, StoredMessage

#: The end of the page is looked for again after each such part of a page.
_SLACK = 8
_Mask = NDArray[np.bool_]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Verified messages of one store as rows of :data:`FOUND_SCHEMA`, in any order."""

    store_id: str
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the rows found, with what decides whether they are on the page."""

    store_id: str
    rows: pa.RecordBatch
    times: _Numbers
    offsets: _Numbers
    sizes: _Numbers
    """What rows count for in the page's bytes: an inflated body may be larger than its record."""

    @classmethod
    def of(cls, found: FoundRows, axis: TimeAxis) -> _Part:
        import pyarrow.compute as pc  # late: loading it takes 20 ms, and a start calls nothing of it

        columns = found.rows
        times = columns.column(f"{axis.value}_ms").to_numpy()
        bodies = pc.binary_length(columns.column("body")).to_numpy()
        sizes = np.maximum(columns.column("size_bytes").to_numpy(), bodies)
        return cls(found.store_id, columns, times, columns.column("physical_offset").to_numpy(), sizes)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def below(self, place: Place) -> _Mask:
        """Returns which rows have a smaller place in the total order."""
        time_ms, store_id, offset = place
        tied = self.offsets < offset if self.store_id == store_id else np.full(len(self), self.store_id < store_id)
        found: _Mask = (self.times < time_ms) | ((self.times == time_ms) & tied)
        return found

    def at(self, place: Place) -> _Mask:
        """Returns which row has this place."""
        time_ms, store_id, offset = place
        found: _Mask = (self.times == time_ms) & (self.offsets == offset) & (self.store_id == store_id)
        return found

    def only(self, kept: _Mask) -> _Part:
        """Returns some of the rows; the memory of the others is let go if it is more than that of these."""
        chosen = np.flatnonzero(kept)
        first, end = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)
        if end - first == len(chosen) and 2 * len(chosen) >= len(kept):
            rows = self.rows.slice(first, end - first)
        else:
            rows = self.rows.take(pa.array(chosen))
        return _Part(self.store_id, rows, self.times[chosen], self.offsets[chosen], self.sizes[chosen])


class ColumnResults:
    """As :class:`Results`, of rows: each message once, the best ones known so far, about two pages at most."""

    def __init__(self, query: Query, page_bytes: int = PAGE_BYTES) -> None:
        self._query = query
        #: The times that may be on the page: the range asked for behind the cursor.
        self.within = range_behind_cursor(query)
        self._page_bytes = page_bytes
        self._after = query.after
        self._newest = query.order is Order.NEWEST
        self._parts: list[_Part] = []
        self._messages: list[StoredMessage] = []
        self._count = self._bytes = 0
        self._certain: int | None = None
        self._end: Place | None = None
        self._fresh = False

    def add(self, found: FoundRows | StoredMessage) -> None:
        """Takes rows, or a message, that are on the page if nothing better is found."""
        if isinstance(found, StoredMessage):  # what another service sent comes one by one
            self._messages.append(found)
            return
        part = _Part.of(found, self._query.axis)
        wanted = (part.times >= self.within.from_ms) & (part.times <= self.within.to_ms - 1)
        if self._after is not None:
            wanted &= self._is_behind_place(part, self._after)
        if self._end is not None:
            wanted &= ~self._is_behind_place(part, self._end)
        if self._certain is not None:
            wanted &= part.times >= self._certain if self._newest else part.times <= self._certain
        if not wanted.all():
            part = part.only(wanted)
        if not len(part):
            return
        self._parts.append(part)
        self._count += len(part)
        self._bytes += part.bytes
        self._fresh = True
        if self._bytes > 2 * self._page_bytes:
            self._keep_the_best()

    def end_at(self, place: Place) -> None:
        """As :meth:`Results.end_at`."""
        if self._end is None or (place > self._end if self._newest else place < self._end):
            self._end = place

    def page(self) -> tuple[pa.RecordBatch, Place | None]:
        """Returns the page in order, and the place of its last row; None if there is no message behind it."""
        self._take_messages()
        if not self._parts:
            return message_batch((), FOUND_SCHEMA), None
        order = self._order()
        fitting = self._fitting(order)
        table = pa.Table.from_batches([part.rows for part in self._parts]).combine_chunks()
        page = table.take(pa.array(order[:fitting])).combine_chunks().to_batches()[0]
        has_more = fitting < len(order) or self._end is not None
        return page, _last_place(page, self._query.axis) if has_more else None

    def is_certain_before(self, time_ms: int) -> bool:
        """As :meth:`Results.is_certain_before`."""
        self._take_messages()
        if self._fresh and self._is_well_over():
            self.settle()
        if self._end is not None and self._is_behind(time_ms, self._end[0]):
            return True
        return self._certain is not None and self._is_behind(time_ms, self._certain)

    def settle(self) -> None:
        """Has :meth:`is_certain_before` tell as much as the rows so far allow: until then it may tell less."""
        self._take_messages()
        if self._fresh and (self._count > self._query.limit or self._bytes > self._page_bytes):
            self._keep_the_best()
        self._fresh = False

    def _is_well_over(self) -> bool:
        """Whether looking for the end of the page again is worth it."""
        limit, most = self._query.limit, self._page_bytes
        if self._certain is None:
            return self._count > limit or self._bytes > most
        return self._count > limit + limit // _SLACK or self._bytes > most + most // _SLACK

    def before(self, time_ms: int) -> int:
        """Returns how many results come before this time in the order."""
        self._take_messages()
        if self._newest:
            return sum(int((part.times > time_ms).sum()) for part in self._parts)
        return sum(int((part.times < time_ms).sum()) for part in self._parts)

    def _take_messages(self) -> None:
        messages, self._messages = self._messages, []
        for store_id, group in groupby(messages, key=lambda message: message.store_id):
            self.add(FoundRows(store_id, message_batch(list(group), FOUND_SCHEMA)))

    def _is_behind(self, time_ms: int, other_ms: int) -> bool:
        return time_ms < other_ms if self._newest else time_ms > other_ms

    def _is_behind_place(self, part: _Part, place: Place) -> _Mask:
        below = part.below(place)
        return below if self._newest else ~(below | part.at(place))

    def _keep_the_best(self) -> None:
        """Forgets what lies behind the page by more than the one row that tells whether there is another page."""
        order = self._order()
        wanted = self._fitting(order) + 1
        if len(order) >= wanted:
            last = order[wanted - 1]
            self._certain = int(np.concatenate([part.times for part in self._parts])[last])
        if wanted >= self._count:
            return
        kept = np.zeros(self._count, np.bool_)
        kept[order[:wanted]] = True
        cuts = np.cumsum([len(part) for part in self._parts])[:-1]
        pairs = zip(self._parts, np.split(kept, cuts), strict=True)
        self._parts = [part if mine.all() else part.only(mine) for part, mine in pairs if mine.any()]
        self._count, self._bytes = sum(map(len, self._parts)), sum(part.bytes for part in self._parts)

    def _order(self) -> _Numbers:
        """Returns the numbers of rows in the order asked for; of rows of one place the first that came."""
        times = np.concatenate([part.times for part in self._parts])
        offsets = np.concatenate([part.offsets for part in self._parts])
        names = sorted({part.store_id for part in self._parts})
        keys = [offsets, times]
        if len(names) > 1:
            ranks = np.repeat([names.index(part.store_id) for part in self._parts], [len(part) for part in self._parts])
            keys.insert(1, ranks)
        order = np.lexsort(keys)
        again = np.concatenate(([False], np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])))
        if again.any():
            order = order[~again]
        return order[::-1] if self._newest else order

    def _fitting(self, order: _Numbers) -> int:
        """Returns how many of the rows a page takes, at least one if there is one."""
        sizes = np.concatenate([part.sizes for part in self._parts])[order[: self._query.limit]]
        return max(1, int(np.searchsorted(np.cumsum(sizes), self._page_bytes, side="right")))


def _last_place(page: pa.RecordBatch, axis: TimeAxis) -> Place:
    last = page.slice(page.num_rows - 1)
    time_ms, store_id, offset = (
        last.column(name)[0].as_py() for name in (f"{axis.value}_ms", "store_id", "physical_offset")
    )
    return time_ms, store_id, offset
