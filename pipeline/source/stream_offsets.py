"""Offsets of a stream, as its checkpoint keeps them, and the ranges of a micro-batch.

A stream begins nowhere: its initial offset names no queue. A queue is named from the batch on that meets it, and the
offset at which that batch ends tells where the queue's reading began. So a batch that is run again after a crash reads
what it was planned to read, although Spark does not keep the initial offset and "latest" is elsewhere by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tierlog.tiering.base.errors import InvalidRequestError, UnsupportedFormatError

VERSION = 1
Json = dict[str, Any]

#: Half-open ranges of queue offsets that nobody has or ever will have, ascending.
Gaps = tuple[tuple[int, int], ...]


class QueueKey(NamedTuple):
    """A queue of a topic of a store."""

    store_id: str
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic {self.topic!r} queue {self.queue_id} of store {self.store_id}"


class QueueRange(NamedTuple):
    """Offsets ``[first, next)`` of a queue."""

    key: QueueKey
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of every queue that the stream has met."""

    next: Mapping[QueueKey, int] = field(default_factory=dict)
    met: Mapping[QueueKey, int] = field(default_factory=dict)
    """Where reading began of those queues that the batch which ends here was the first to meet."""
    has_begun: bool = True
    """False only before the first batch was planned."""

    def to_json(self) -> Json:
        """Returns the form that Spark logs; equal offsets have equal text."""
        found: Json = {"version": VERSION, "begun": self.has_begun, "next": _nested(self.next)}
        if self.met:
            found["met"] = _nested(self.met)
        return found

    @classmethod
    def from_json(cls, value: Json) -> StreamOffset:
        """Inverse of :meth:`to_json`.

        Raises :class:`UnsupportedFormatError` for a newer version, :class:`InvalidRequestError` for another source's.
        """
        version = value.get("version")
        if isinstance(version, int) and version > VERSION:
            raise UnsupportedFormatError(f"the checkpoint has offsets of version {version}, not {VERSION}")
        try:
            return cls(_flat(value["next"]), _flat(value.get("met", {})), bool(value["begun"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError(
                "the checkpoint has no offsets of tierlog", hint="one checkpoint belongs to one query"
            ) from error


INITIAL = StreamOffset(has_begun=False)


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Returns the ranges between two offsets, in the order of queues: from both alone, whatever is known by now."""
    found = []
    for key, following in sorted(end.next.items()):
        first = start.next.get(key, end.met.get(key, following))
        if first < following:
            found.append(QueueRange(key, first, following))
    return found


def present(first: int, following: int, gaps: Gaps) -> Iterator[tuple[int, int]]:
    """Yields the parts of ``[first, following)`` that lie in no gap, ascending."""
    for gap_first, gap_next in gaps:
        if gap_next <= first:
            continue
        if gap_first >= following:
            break
        if first < gap_first:
            yield first, gap_first
        first = gap_next
    if first < following:
        yield first, following


def messages_between(first: int, following: int, gaps: Gaps) -> int:
    """Counts the offsets of ``[first, following)`` that a message has or had."""
    return sum(end - begin for begin, end in present(first, following, gaps))


def offset_after(first: int, following: int, gaps: Gaps, count: int) -> int:
    """The offset behind the first ``count`` messages of ``[first, following)``; its end if there are no more."""
    reached = first
    for begin, end in present(first, following, gaps):
        if end - begin > count:
            return begin + count if count else reached
        count, reached = count - (end - begin), end
    return following


def shares(backlogs: Mapping[QueueKey, int], limit: int) -> dict[QueueKey, int]:
    """Returns how many messages of each queue a batch takes: ``limit`` in all, or all, each queue's in proportion.

    Of what rounding leaves, the queues with the least get one more each: a quiet queue does not starve beside busy
    ones, whose proportions grow while they wait.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    found = {key: backlog * limit // total for key, backlog in backlogs.items()}
    by_need = sorted((key for key in backlogs if found[key] < backlogs[key]), key=lambda key: (backlogs[key], key))
    for key in by_need[: limit - sum(found.values())]:
        found[key] += 1
    return found


def pieces_of(ranges: Iterable[QueueRange], messages: int) -> Iterator[list[QueueRange]]:
    """Cuts and joins the ranges to pieces of so many messages, in their order; the last may have fewer."""
    piece: list[QueueRange] = []
    room = messages
    for key, first, following in ranges:
        while first < following:
            cut = min(following, first + room)
            piece.append(QueueRange(key, first, cut))
            room -= cut - first
            first = cut
            if room == 0:
                yield piece
                piece, room = [], messages
    if piece:
        yield piece


def _nested(offsets: Mapping[QueueKey, int]) -> Json:
    found: Json = {}
    for (store_id, topic, queue_id), offset in sorted(offsets.items()):
        found.setdefault(store_id, {}).setdefault(topic, {})[str(queue_id)] = offset
    return found


def _flat(stores: Json) -> dict[QueueKey, int]:
    return {
        QueueKey(store_id, topic, int(queue_id)): int(offset)
        for store_id, topics in stores.items()
        for topic, queues in topics.items()
        for queue_id, offset in queues.items()
    }
