"""Transactions: messages that wait, half sent, for their producer's word, as RocketMQ's brokers keep them.

A half message is an ordinary one of ``RMQ_SYS_TRANS_HALF_TOPIC`` with the topic and queue that it is for in properties,
so no consumer of that topic sees it. Its end is one append: an op message in ``RMQ_SYS_TRANS_OP_HALF_TOPIC``, with tag
``d`` and the half's queue offset as its body, and behind it the copy for the real topic, if it is committed. An op has
two properties of ours: ``COPIED_TO``, the topic of its copy, and ``OPS``, three numbers ``at,half,op``: its own offset
(what says another one was appended again, by a salvage), the half below which all have ended, and the op from which on
ops tell of later ones.

*Killed in the append*: the op is there without its copy, which only the last op can lack
(:mod:`~service.delivery.copies`); the next start appends it. *Killed before it*: the half has no end, and its producer
is asked again.

Unlike a broker, which appends a half again whenever it asks, the store leaves it where it is: its offsets never change,
so whatever answer comes first counts, and a later one finds that it has ended. How often a producer was asked is in
memory only, and begins anew when the store is opened.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from tierlog.service.delivery.copies import (
    NO_HOST,
    CopiedMessages,
    add_copy,
    changed_text,
    copied_at,
    last_messages,
    messages_from,
    read_at,
    real_target,
)
from tierlog.service.delivery.timers import MAX_DELAY_MS, scheduled
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    StoreError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.base.shared_writes import SharedChange, SharedWrites
from tierlog.tiering.format.properties import TAGS, UNIQ_KEY, decode_properties, encode_properties
from tierlog.tiering.format.record import TRANSACTION_MASK, Record, SysFlag
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, REAL_QUEUE, REAL_TOPIC

_LOG = logging.getLogger("tierlog")

#: Where half messages go whose producer was asked too often.
DROPPED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: RocketMQ's mark of a half message on its way to the broker, its name of a transaction, and who sends it.
_PREPARED, _TRANSACTION_ID, PRODUCER_GROUP = "TRAN_MSG", "__transactionId__", "PGROUP"
_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_OP_TAG = "d"
_COPIED_TO, _OPS = "COPIED_TO", "OPS"
#: RocketMQ's defaults: how long a producer has before it is asked, how often it is, and how often at most.
TIMEOUT_MS, CHECK_EVERY_MS, MAX_CHECKS = 6_000, 30_000, 15
_MOST_CHECKS = 1_000
_OP_TRIES = 10_000


class HalfMessage(NamedTuple):
    """A message for the half topic: where it goes, its property text, and its flags."""

    topic: str
    queue_id: int
    properties: bytes
    sys_flag: int


def half_message(
    topic: str, queue_id: int, properties: bytes, now_ms: int, *, sys_flag: int = 0, max_delay_ms: int = MAX_DELAY_MS
) -> HalfMessage:
    """Returns what is to be stored of a message that is prepared; raises what :func:`scheduled` raises."""
    scheduled(topic, queue_id, properties, now_ms, max_delay_ms=max_delay_ms)  # a delay begins with the commit
    added = {REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    unique = decode_properties(properties).get(UNIQ_KEY)
    if unique is not None:
        added[_TRANSACTION_ID] = unique
    return HalfMessage(HALF_TOPIC, 0, changed_text(properties, added, added), sys_flag & ~TRANSACTION_MASK)


class TransactionOutcome(StrEnum):
    """What a producer says of its transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Half:
    """One that has no end yet."""

    check_ms: int
    """When its producer is asked next."""
    checks: int = 0


@dataclass(slots=True, eq=False)
class _End(SharedChange):
    """The end of a half message."""

    half: Record
    is_commit: bool = False
    is_dropped: bool = False


class _Copy(NamedTuple):
    """Where the copy of a half message goes, its property text, and its flags; no target: there is none."""

    target: tuple[str, int] | None
    text: bytes
    sys_flag: int


class _State(NamedTuple):
    """What an op says beside its half: all halves below ``half`` have ended, and ops from ``op`` on tell of others."""

    at: int
    half: int
    op: int


@dataclass(slots=True)
class _Known:
    """What is known of the two topics, read up to ``half_end`` and ``op_end``."""

    half_end: int = 0
    op_end: int = 0
    #: Halves without an end, by queue offset.
    open: dict[int, _Half] = field(default_factory=dict)
    #: The last half that each op tells of, and all halves that ops tell of, from the first open one on.
    ops: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def note(self, op: int, halves: list[int]) -> None:
        """Learns from an op that halves have ended."""
        self.ended.update(halves)
        self.ops[op] = max(halves, default=-1)
        for half in halves:
            self.open.pop(half, None)

    def forget(self) -> None:
        """Forgets what the next op will say of all halves below the first open one."""
        first = min(self.open, default=self.half_end)
        self.ops = {op: half for op, half in self.ops.items() if half >= first}
        self.ended = {half for half in self.ended if half >= first}

    def state(self, at: int) -> _State:
        """Returns what an op says that is appended at this offset."""
        return _State(at, min(self.open, default=self.half_end), min(self.ops, default=self.op_end))


class Transactions:
    """The transactions of one open store. Thread safe; only one may be made of a store that is open."""

    def __init__(
        self, store: Store, clock: Clock, *, timeout_ms: int = TIMEOUT_MS, check_every_ms: int = CHECK_EVERY_MS,
        max_checks: int = MAX_CHECKS, max_delay_ms: int = MAX_DELAY_MS,
    ) -> None:  # fmt: skip
        self._store, self._clock = store, clock
        self._timeout_ms, self._check_every_ms, self._max_checks = timeout_ms, check_every_ms, max_checks
        self._max_delay_ms = max_delay_ms
        self._lock = threading.Lock()
        self._ends = SharedWrites(self._write, self._lock)
        self._known: _Known | None = None

    def end(
        self, physical_offset: int, queue_offset: int, outcome: TransactionOutcome, *, group: str | None = None
    ) -> None:
        """Ends a transaction, durably; ``UNKNOWN`` ends nothing, and what has ended stays as it is.

        ``group`` is the producer's, if it must be the one that prepared. Raises :class:`MessageNotFoundError` if no
        half message lies at these offsets, :class:`InvalidRequestError` if it is another group's. Ends that come while
        one is being appended share the next append.
        """
        found = self._store.message_at(physical_offset)
        if found is None or found.record.topic != HALF_TOPIC or found.record.queue_offset != queue_offset:
            raise MessageNotFoundError(f"no half message {queue_offset} lies at {physical_offset}")
        half = found.record
        if group is not None and half.properties.get(PRODUCER_GROUP) != group:
            raise InvalidRequestError("the producer group wrong", hint="the one that prepared it ends it")
        if outcome is not TransactionOutcome.UNKNOWN:
            self._ends.make(_End(half, is_commit=outcome is TransactionOutcome.COMMIT))

    def due_checks(self) -> list[StoredMessage]:
        """Returns the half messages whose producers are to be asked now, each of them counted as asked.

        One whose producer was asked too often is dropped, which ends it.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            known = self._load()
            due = sorted(offset for offset, half in known.open.items() if half.check_ms <= now_ms)[:_MOST_CHECKS]
            reading = read_at(self._store, HALF_TOPIC, 0, due)
            asked, dropped = [], []
            for offset in due:
                half = known.open[offset]
                message = reading.found.get(offset)
                if message is None and offset not in reading.unread:
                    del known.open[offset]  # erased or expired: nobody can commit it
                elif message is not None and half.checks >= self._max_checks:
                    dropped.append(message.record)
                else:
                    half.check_ms = now_ms + self._check_every_ms
                    if message is not None:
                        half.checks += 1
                        asked.append(message)
        for record in dropped:
            _LOG.warning("the producer of half message %d was asked too often; it is dropped", record.queue_offset)
            self._ends.make(_End(record, is_dropped=True))
        return asked

    def open_count(self) -> int:
        """Returns how many half messages have no end yet."""
        with self._lock:
            return len(self._load().open)

    # loading

    def _load(self) -> _Known:
        """Reads both topics to their ends; the first time from where the last op says, after what it began is done."""
        known = self._known or self._first_load()
        for record in self._records(OP_TOPIC, known.op_end):
            known.note(record.queue_offset, _halves_of(record))
            known.op_end = record.queue_offset + 1
        for record in self._records(HALF_TOPIC, known.half_end):
            if record.queue_offset not in known.ended:
                known.open[record.queue_offset] = _Half(record.store_ms + self._immune_ms(record))
            known.half_end = record.queue_offset + 1
        known.forget()
        self._known = known
        return known

    def _first_load(self) -> _Known:
        known = _Known()
        last: Record | None = None
        for message in islice(last_messages(self._store, OP_TOPIC, 0), _OP_TRIES):
            last = last or message.record
            state = _state_of(message.record)
            if state is not None and state.at == message.record.queue_offset:
                known = _Known(half_end=state.half, op_end=state.op)
                break
        if last is not None:
            self._complete(last, known)
        return known

    def _complete(self, op: Record, known: _Known) -> None:
        """Appends the copy that an op announces, behind another op, if it is not there."""
        topic = op.properties.get(_COPIED_TO)
        if topic is None:
            return
        reading = read_at(self._store, HALF_TOPIC, 0, _halves_of(op))
        if isinstance(reading.error, UnavailableError):
            raise reading.error
        there = copied_at(self._store, topic, op.store_ms)
        ends = [
            _End(message.record, is_commit=topic != DROPPED_TOPIC, is_dropped=topic == DROPPED_TOPIC)
            for message in reading.found.values()
            if message.record.physical_offset not in there
        ]
        self._append(ends, known)
        for end in ends:
            if end.error is not None:
                raise end.error

    def _records(self, topic: str, offset: int) -> Iterator[Record]:
        with contextlib.suppress(TopicNotFoundError):
            for message in messages_from(self._store, topic, 0, offset):
                yield message.record

    def _immune_ms(self, half: Record) -> int:
        """Returns how long the producer of a half message has before it is asked."""
        asked = half.properties.get(_IMMUNITY_S, "")
        return max(self._timeout_ms, int(asked) * 1000 if asked.isascii() and asked.isdigit() else 0)

    # ending

    def _write(self, batch: list[_End]) -> None:
        """Ends halves that are open, each once; what is wrong with one of them is noted in it."""
        known = self._load()
        fresh = {end.half.queue_offset: end for end in reversed(batch) if end.half.queue_offset in known.open}
        self._append(list(fresh.values()), known)
        known.forget()

    def _append(self, ends: list[_End], known: _Known) -> None:
        """Appends an op for each end, with its copy behind it, and learns of their ends; none for what is erased."""
        with self._store.copying() as is_erased:
            left = []
            for end in ends:
                if is_erased(end.half):
                    known.open.pop(end.half.queue_offset, None)
                else:
                    left.append(end)
            self._append_copies(left, known)

    def _append_copies(self, ends: list[_End], known: _Known) -> None:
        parts = [(end, copy) for end in ends if (copy := self._copy_of(end)) is not None]
        if not parts:
            return
        now_ms = self._clock.now_ms()
        self._store.make_topic(OP_TOPIC, 1, may_make=True)
        _, at = self._store.offsets(OP_TOPIC, 0)
        batch = CopiedMessages()
        for number, (end, copy) in enumerate(parts):
            properties = {TAGS: _OP_TAG, _OPS: ",".join(map(str, known.state(at + number)))}
            if copy.target is not None:
                properties[_COPIED_TO] = copy.target[0]
            body = b"%d," % end.half.queue_offset
            batch.add(OP_TOPIC, 0, body, encode_properties(properties), born_ms=now_ms, born_host=NO_HOST)
            if copy.target is not None:
                add_copy(batch, end.half, copy.target, copy.text, sys_flag=copy.sys_flag)
        self._store.append(batch)
        for number, (end, _) in enumerate(parts):
            known.note(at + number, [end.half.queue_offset])

    def _copy_of(self, end: _End) -> _Copy | None:
        """Returns what is appended behind the op; None, with the error noted, if there can be none."""
        half = end.half
        if end.is_dropped:
            self._store.make_topic(DROPPED_TOPIC, 1, may_make=True)
            return _Copy((DROPPED_TOPIC, 0), half.properties_text, half.sys_flag)
        target = real_target(self._store, half.properties, half.queue_offset) if end.is_commit else None
        if target is None:
            return _Copy(None, b"", 0)
        text = changed_text(half.properties_text, (REAL_TOPIC, REAL_QUEUE, _PREPARED))
        try:
            entry = scheduled(*target, text, self._clock.now_ms(), max_delay_ms=self._max_delay_ms)
            if entry is not None:
                target, text = (entry.topic, entry.queue_id), entry.properties
            self._store.make_topic(target[0], self._store.queues_of(target[0]), may_make=True)
        except StoreError as error:
            end.error = error
            return None
        return _Copy(target, text, half.sys_flag & ~TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT)


def _halves_of(op: Record) -> list[int]:
    """Returns the queue offsets of the halves that an op message tells of, as RocketMQ lists them."""
    if op.properties.get(TAGS) != _OP_TAG:
        return []
    return [int(word) for word in op.body.split(b",") if word.isdigit()]


def _state_of(op: Record) -> _State | None:
    words = op.properties.get(_OPS, "").split(",")
    return _State(*map(int, words)) if len(words) == 3 and all(map(str.isdigit, words)) else None
