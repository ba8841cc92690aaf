"""The places of the messages of one append: columns, of which one message's part is made only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.format.record import encode_message_id
from tierlog.tiering.hot.batch_writer import AppendResult

if TYPE_CHECKING:
    import pyarrow as pa

#: Physical offset, queue id, queue offset, store time and store host of one message.
Row = tuple[int, int, int, int, bytes]
#: The two upper-case hex digits of every byte, as one number each.
_HEX_PAIRS = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


class Appended(NamedTuple):
    """The place of one message, and when it was stored."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int


#: Makes one from a tuple of its four values, in two thirds of the time.
_NEW_APPENDED = cast(Callable[[Iterable[Any]], Appended], partial(tuple.__new__, Appended))


@dataclass(slots=True, eq=False)
class AppendedColumns(Sequence[Appended]):
    """The place of each message, in the order of the append; all columns are of one length.

    Equal to any sequence of the same :class:`Appended`. Not frozen, which would make each cost twice as much.
    """

    physical_offset: NDArray[np.int64]
    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    store_ms: NDArray[np.int64]
    #: The host in the record: a store that was opened again may have another one.
    store_host: Sequence[bytes]

    @classmethod
    def of(cls, result: AppendResult, store_host: bytes) -> AppendedColumns:
        """Takes what one append of a store with this host answered."""
        physical_offset, queue_id, queue_offset, store_ms = result
        count = len(physical_offset)
        times = np.empty(count, np.int64)
        times.fill(store_ms)
        return cls(physical_offset, queue_id, queue_offset, times, [store_host] * count)

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> AppendedColumns:
        """Makes the columns of what :meth:`rows` yields; at least one row."""
        physical_offset, queue_id, queue_offset, store_ms, store_host = zip(*rows, strict=True)
        return cls(
            np.array(physical_offset, np.int64), np.array(queue_id, np.int32), np.array(queue_offset, np.int64),
            np.array(store_ms, np.int64), store_host,
        )  # fmt: skip

    def rows(self) -> Iterator[Row]:
        """Yields what the columns hold, message by message."""
        columns = (self.physical_offset, self.queue_id, self.queue_offset, self.store_ms)
        return zip(*(column.tolist() for column in columns), self.store_host, strict=True)

    def __len__(self) -> int:
        return len(self.physical_offset)

    @overload
    def __getitem__(self, index: int) -> Appended: ...
    @overload
    def __getitem__(self, index: slice) -> AppendedColumns: ...
    def __getitem__(self, index: int | slice) -> Appended | AppendedColumns:
        """Returns one message's part, or the columns of a slice."""
        if isinstance(index, int):
            return Appended(
                encode_message_id(self.store_host[index], int(self.physical_offset[index])),
                int(self.queue_id[index]), int(self.queue_offset[index]), int(self.store_ms[index]),
            )  # fmt: skip
        return AppendedColumns(
            self.physical_offset[index], self.queue_id[index], self.queue_offset[index], self.store_ms[index],
            self.store_host[index],
        )  # fmt: skip

    def __iter__(self) -> Iterator[Appended]:
        if len(self) == 1:  # as a lone message has it, in a third of the time
            return iter((self[0],))
        columns = (self.queue_id, self.queue_offset, self.store_ms)
        rows = zip(self._ids(), *(column.tolist() for column in columns), strict=True)
        return map(_NEW_APPENDED, rows)  # with many waiting senders, this is most of the time of their answers

    def _ids(self) -> Iterable[str]:
        if len(set(self.store_host)) > 1:
            return map(encode_message_id, self.store_host, self.physical_offset.tolist())
        start = encode_message_id(self.store_host[0], 0)[:-16] if self.store_host else ""
        digits = self.physical_offset.astype(">i8").tobytes().hex(" ", 8).upper()
        return [start + sixteen for sixteen in digits.split()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # its columns can change

    def message_ids(self) -> pa.StringArray:
        """Returns the message ids as one Arrow column; no Python object per message."""
        import pyarrow as pa  # most who append never ask

        hosts = set(self.store_host)
        if len(hosts) != 1:
            return pa.array([one.message_id for one in self], pa.string())
        host = np.frombuffer(hosts.pop(), np.uint8)
        ids = np.empty((len(self), len(host) + 8), np.uint8)
        ids[:, : len(host)] = host
        ids[:, len(host) :] = self.physical_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
        text = _HEX_PAIRS[ids]
        ends = np.arange(len(self) + 1, dtype=np.int32) * (2 * ids.shape[1])
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(text))
