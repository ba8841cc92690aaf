"""Messages that come one by one and go to the log many at a time: checked as each comes, laid out once for all.

To check a message and keep it takes about half a microsecond, because what is ordinary is seen to be so without a
regular expression or a copy. Whatever is not is left to :class:`MessageBatch`, whose rules are the only ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiering.batch import ANY_QUEUE, BORN_END_MS, MAX_QUEUES, BytesColumn, Message, MessageBatch

#: Text of so many characters fits a record's property text whatever they are: four bytes each at most, and names.
_SURELY_FITS = 8_000
_NO_PROPERTIES: Mapping[str, str] = {}


class PendingMessages:
    """A list of messages that :meth:`take` makes a batch of. Not thread safe."""

    __slots__ = ("_keep", "_max_body_bytes", "_numbers", "_rows", "text_bytes")

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._begin()

    def _begin(self) -> None:
        # topic number, queue, born time or None, body, keys, tag, property text
        self._rows: list[tuple[int, int, int | None, bytes, str, str, str]] = []
        self._keep: Callable[..., None] = self._rows.append
        self._numbers: dict[str, int] = {}
        #: Bytes of bodies, and about those of keys.
        self.text_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        topic: str,
        body: bytes,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] = _NO_PROPERTIES,
        born_ms: int | None = None,
        queue_id: int = ANY_QUEUE,
    ) -> None:
        """Keep a message, or raise what :meth:`MessageBatch.of` raises for it alone and keep nothing of it.

        The body may be any buffer; what is not ``bytes`` is copied.
        """
        text = " ".join(keys)
        if (
            topic in self._numbers
            and type(body) is bytes
            and 0 < len(body) <= self._max_body_bytes
            # no control character, so no separator and no zeros, and no half of a surrogate pair
            and text.isprintable()
            and tag.isprintable()
            and (not keys or (text.count(" ") == len(keys) - 1 and all(keys)))
            and not properties
            and len(text) + len(tag) < _SURELY_FITS
            and ANY_QUEUE <= queue_id < MAX_QUEUES
            and (born_ms is None or 0 <= born_ms < BORN_END_MS)
        ):
            self._keep((self._numbers[topic], queue_id, born_ms, body, text, tag, ""))
            self.text_bytes += len(body) + len(text)
        else:
            self._add_checked(Message(topic, _bytes(body), keys, tag, properties, born_ms, queue_id))

    def _add_checked(self, message: Message) -> None:
        alone = MessageBatch.of([message], now_ms=0, max_body_bytes=self._max_body_bytes)
        keys, tag, properties = (_text(column) for column in (alone.keys, alone.tags, alone.properties))
        number = self._numbers.setdefault(message.topic, len(self._numbers))
        self._keep((number, message.queue_id, message.born_ms, message.body, keys, tag, properties))
        self.text_bytes += len(message.body) + len(keys) + len(properties)

    def take(self, *, now_ms: int) -> MessageBatch:
        """All of them as a batch, in the order in which they came; nothing is pending then.

        What :meth:`MessageBatch.of` makes of the same messages. Those without a born time are born ``now_ms``.
        """
        rows, numbers = self._rows, self._numbers
        self._begin()
        number, queue_id, born_ms, bodies, keys, tags, properties = zip(*rows, strict=True) if rows else ((),) * 7
        return MessageBatch(
            tuple(numbers),
            _numbers(number, np.dtype(np.int32)),
            _numbers(queue_id, np.dtype(np.int32)),
            _numbers(_times(born_ms, now_ms), np.dtype(np.int64)),
            BytesColumn(np.frombuffer(b"".join(bodies) or b"\0", np.uint8), _starts(bodies)),
            _column(keys),
            _column(tags),
            _column(properties),
        )


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else bytes(memoryview(body))


def _text(column: BytesColumn) -> str:
    return column.data[: column.starts[-1]].tobytes().decode()


def _times(given: Sequence[int | None], now_ms: int) -> Sequence[int]:
    if given.count(None) == len(given):
        return (now_ms,) * len(given)
    return [now_ms if each is None else each for each in given]


def _numbers(values: Sequence[int], kind: np.dtype[Any]) -> NDArray[Any]:
    if values and values.count(values[0]) == len(values):  # mostly so, and five times as fast
        return np.full(len(values), values[0], kind)
    return np.fromiter(values, kind, len(values))


def _starts(values: Sequence[bytes] | Sequence[str]) -> NDArray[np.int64]:
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=starts[1:])
    return starts


def _column(texts: Sequence[str]) -> BytesColumn:
    whole = "".join(texts)
    if not whole:
        return BytesColumn(np.zeros(1, np.uint8), np.zeros(len(texts) + 1, np.int64))
    if whole.isascii():
        return BytesColumn(np.frombuffer(whole.encode(), np.uint8), _starts(texts))
    return BytesColumn.of([text.encode() for text in texts])
