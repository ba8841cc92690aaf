"""Copies of a stored message in another queue: a delayed message at its time, a half message that was committed.

A batch of copies is one append: a **note** that says which messages are about to be copied, and behind it the copies.
What survives of a log is a prefix of it, so where a copy is, its note is too; only the copies of the last note can be
missing, and :func:`copied_at` looks which of them are there. Each copy has the physical offset of its original in the
record's ``prepared_offset``, as RocketMQ has it in a transaction's message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError, TopicNotFoundError, UnavailableError
from tierlog.tiering.base.types import END_OF_TIME_MS, Boundary, PullStatus
from tierlog.tiering.format.properties import NAME_END, RECORD_CHECKSUM, VALUE_END
from tierlog.tiering.format.record import Record, SysFlag, decode_record
from tierlog.tiering.message.batch import MessageBatch
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.waiting import REAL_QUEUE, REAL_TOPIC

_ANY_SIZE = 1 << 31
_PULLED = 256
#: The born host of what the store writes itself: none.
NO_HOST = bytes(8)
_HOST_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


def changed_text(text: bytes, remove: Collection[str] = (), add: Mapping[str, str] | None = None) -> bytes:
    """Returns property text without some properties and with others at its end; what is left stays as it is."""
    gone = {name.encode() for name in remove}
    pieces = [
        piece for piece in text.split(VALUE_END.encode()) if piece and piece.partition(NAME_END.encode())[0] not in gone
    ]
    pieces += [f"{name}{NAME_END}{value}".encode() for name, value in (add or {}).items()]
    return b"".join(piece + VALUE_END.encode() for piece in pieces)


class CopiedMessages(ClientMessages):
    """A note and its copies, let in at any size: what is copied was let in once, whatever the limit is now."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_ANY_SIZE)

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        return super().to_batch(now_ms=now_ms, max_body_bytes=_ANY_SIZE)


def add_copy(
    batch: CopiedMessages, original: Record, target: tuple[str, int], text: bytes, *, sys_flag: int | None = None
) -> None:
    """Adds a copy for a topic and queue, with this property text; all else is the original's."""
    topic, queue_id = target
    flags = original.sys_flag if sys_flag is None else sys_flag
    batch.add(
        topic, queue_id, original.body, changed_text(text, (RECORD_CHECKSUM,)), flag=original.flag,
        sys_flag=flags & ~_HOST_FLAGS, born_ms=original.born_ms, born_host=original.born_host,
        reconsume_times=original.reconsume_times, prepared_offset=original.physical_offset,
    )  # fmt: skip


def real_target(store: Store, properties: Mapping[str, str], number: int) -> tuple[str, int] | None:
    """Returns the topic and queue that a message is really for; None where it does not say.

    Where it names no queue of the topic, ``number`` decides.
    """
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE, "")
    if not topic:
        return None
    queues = store.queues_of(topic)
    queue_id = int(queue) if queue.isascii() and queue.isdigit() else queues
    return topic, queue_id if queue_id < queues else number % queues


def copied_at(store: Store, topic: str, store_ms: int) -> set[int]:
    """Returns the originals, by their physical offsets, of the copies that a topic got in the appends of one time."""
    found: set[int] = set()
    try:
        queues = store.queues_of(topic)
        for queue_id in range(queues):
            start = store.offset_by_time(topic, queue_id, store_ms, Boundary.LOWER)
            for message in messages_from(store, topic, queue_id, start):
                if message.record.store_ms > store_ms:
                    break
                found.add(message.record.prepared_offset)
    except TopicNotFoundError:
        return found
    return found


def messages_from(store: Store, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
    """Yields the messages of a queue from an offset on, over both tiers, as far as there are any now."""
    while True:
        found = store.pull(topic, queue_id, offset, _PULLED)
        yield from found.messages
        if found.next_offset <= offset or found.next_offset >= found.max_offset:
            return
        offset = found.next_offset


class Reading(NamedTuple):
    """Messages by their offsets, those that cannot be read, and why; what is neither is erased or gone."""

    found: dict[int, StoredMessage]
    unread: set[int]
    error: StoreError | None


def read_at(store: Store, topic: str, queue_id: int, offsets: Sequence[int]) -> Reading:
    """Reads the messages at these offsets, which ascend, the newest first.

    What is damaged is left out. Where the archive does not answer, it is not asked for what lies before either.
    """
    found: dict[int, StoredMessage] = {}
    unread: set[int] = set()
    error: StoreError | None = None
    for run in reversed(_runs(offsets, store.hot_offset(topic, queue_id))):
        at, end = run[0], run[-1] + 1
        while at < end:
            try:
                pulled = store.pull(topic, queue_id, at, end - at)
            except UnavailableError as failure:
                unread.update(offset for offset in offsets if offset < end and offset not in found)
                return Reading(found, unread, failure)
            except TopicNotFoundError:
                return Reading(found, unread, error)
            except StoreError as failure:
                unread.add(at)
                error, at = failure, at + 1
                continue
            found |= {message.record.queue_offset: message for message in pulled.messages}
            at = max(pulled.next_offset, at + 1)
    return Reading({offset: found[offset] for offset in offsets if offset in found}, unread, error)


def _runs(offsets: Sequence[int], hot_from: int) -> list[list[int]]:
    """Returns offsets in runs that follow each other, each of one tier."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][-1] + 1 and offset != hot_from and len(runs[-1]) < _PULLED:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    return runs


def records_of(part: memoryview | bytes) -> Iterator[Record]:
    """Yields the records that lie one behind the other in a part of pulled records; no checksum is compared."""
    at = 0
    while at < len(part):
        record = decode_record(part, at, verify=False)
        yield record
        at += record.size


def last_messages(store: Store, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    """Yields the messages of a queue from its last one back, over both tiers; nothing if there is no such topic."""
    try:
        offset = store.offset_by_time(topic, queue_id, END_OF_TIME_MS, Boundary.UPPER)
        while offset >= 0:
            found = store.pull(topic, queue_id, offset, 1)
            if found.status is PullStatus.OFFSET_TOO_SMALL:
                return
            yield from (message for message in found.messages if message.record.queue_offset == offset)
            offset -= 1
    except TopicNotFoundError:
        return
