"""Appends to an open store: single messages share appends, and a request may be sent again.

Appends that may be sent again: what is in the log already is answered from there, the rest is appended. A producer
numbers its messages of a topic. A request names the producer and the number of its first message, and the
others follow on. Of its messages those are appended whose numbers the store does not know; for those that it knows, the
record is read back, compared, and answered as it was the first time. So a request whose answer was lost, or that a kill
cut in the middle, is sent again as it was or cut in other pieces, and each message is in the log once.

Killed before the append: nothing happened. In the middle of it: a first part of the messages is in the log, each with
its number, and the next try appends the rest. After it: the next try appends nothing.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tierlog.service.config.settings import Settings
from tierlog.service.engine.append_results import AppendedColumns, Row
from tierlog.service.engine.opening import StoreParts, store_host
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError, KeyReusedError, OverloadedError, StoreError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.cold.reading.gate import entering_archive
from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, SHARDING_KEY
from tierlog.tiering.hot.producers import ProducerSequences, SequenceRun
from tierlog.tiering.message.batch import ANY_QUEUE, Message, MessageBatch, is_in_columns
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.pending import LoneMessage, PendingMessages
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.fetcher import Fetcher

#: What can be appended.
AppendedMessages = Sequence[Message] | PendingMessages | ClientMessages
#: What was collected for one append, and is sent once.
_COLLECTED = (PendingMessages, ClientMessages)
#: Writing a larger message takes as long as a flush, so it shares only the flush.
_MOST_SHARED_BYTES = 64 << 10
_UNQUOTED = "([A-Za-z0-9_.~-]{1,64})(?::([0-9]{1,18}))?"
#: Every Idempotency-Key, whole.
IDEMPOTENCY_KEY_PATTERN = f'{_UNQUOTED}|"{_UNQUOTED}"'
_KEY = re.compile(IDEMPOTENCY_KEY_PATTERN)


class _Sender:
    """A thread that waits until it has something to do."""

    __slots__ = ("_is_called", "_lock")

    def __init__(self) -> None:
        self._is_called = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._lock.release()

    def wait(self) -> None:
        """Returns once it is called; also where an earlier wait was interrupted, before or after the call."""
        if not self._is_called:
            self._lock.acquire()


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages that are appended together."""

    pending: PendingMessages
    senders: list[_Sender] = field(default_factory=list)
    found: AppendedColumns | None = None
    is_taken: bool = False
    """Somebody appends it, or did."""
    is_lost: bool = False
    """Nobody knows how far it came."""

    def call(self, place: int) -> None:
        """Calls the sender in this place, if there is one."""
        if place < len(self.senders):
            self.senders[place].call()


class SharedAppends:
    """Appends of single messages to one store by threads that each wait for the disk. Thread safe.

    A thread that comes while one append is on its way shares the next. So a batch costs one append and one flush,
    whoever is in it. The first of those who wait does it for the others; nobody else is needed, and who comes alone
    waits for nobody. Those who waited call each other, one by one: called at once, they would only wait again, for the
    interpreter's lock (record 0021).
    """

    def __init__(
        self, append: Callable[[PendingMessages], AppendedColumns], new_pending: Callable[[], PendingMessages]
    ) -> None:
        """``append`` is how messages become records, once they are as durable as the callers want."""
        self._append = append
        self._new_pending = new_pending
        self._lock = threading.Lock()
        self._next = _Batch(new_pending())
        self._is_busy = False

    def append(self, message: Message) -> AppendedColumns:
        """Appends one message, alone or with those of others; raises as if it were alone."""
        if len(message.body) > _MOST_SHARED_BYTES:
            return self._append_alone(message)
        with self._lock:
            is_first = not self._is_busy
            if is_first:
                self._is_busy = True
            else:
                batch = self._next
                place = batch.pending.add_message(message) - 1
                batch.senders.append(_Sender())
        if is_first:
            try:
                return self._append_alone(message)
            finally:
                self._pass_on()
        try:
            self._go_on(batch, place)
        except BaseException:  # interrupted: the other senders depend on this one
            threading.Thread(target=self._go_on, args=(batch, place), daemon=True).start()
            raise
        if batch.found is not None:
            return batch.found[place : place + 1]
        if batch.is_lost:
            raise StoreError("the append was interrupted; the message may be there or not")
        # the refused message may be another sender's; if the disk failed, the store tells each sender
        return self._append_alone(message)

    def _go_on(self, batch: _Batch, place: int) -> None:
        """Waits for the call, appends for all unless somebody did, calls the next; what was done is not repeated."""
        batch.senders[place].wait()
        try:
            self._append_for_all(batch)
        finally:
            batch.call(place + 1)

    def _append_for_all(self, batch: _Batch) -> None:
        is_mine = False
        try:
            with self._lock:
                is_mine = not batch.is_taken
                batch.is_taken = True
                if self._next is batch:
                    self._next = _Batch(self._new_pending())
            if is_mine:
                batch.found = self._append(batch.pending)
        except StoreError:
            pass  # none of it is in the log, or the store is read-only now
        except BaseException:
            batch.is_lost = is_mine
            raise
        finally:
            if is_mine:
                self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            self._is_busy = bool(self._next.senders)
            self._next.call(0)

    def _append_alone(self, message: Message) -> AppendedColumns:
        pending = self._new_pending()
        pending.add_message(message)
        return self._append(pending)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The sender of a request, and the number of its first message among all that it sends to the topic."""

    producer: str
    first: int = 0
    #: The caller whose producer it is; empty where all callers are one.
    caller: str = ""

    @property
    def origin(self) -> str:
        """The producer as records have it: no producer and no caller has a slash."""
        return f"{self.caller}/{self.producer}" if self.caller else self.producer

    @classmethod
    def parse(cls, text: str, caller: str = "") -> IdempotencyKey:
        """Reads ``producer`` or ``producer:number``, quoted or not; :class:`InvalidRequestError` for others."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise InvalidRequestError(
                f"bad Idempotency-Key {text[:100]!r}",
                hint="1 to 64 ASCII letters, digits and _ . ~ -, then : and the number of the first message, if not 0",
            )
        producer, first = (found[1], found[2]) if found[1] else (found[3], found[4])
        return cls(producer, int(first or 0), caller)


class Appends:
    """Turns requests into records of one open store. Thread safe."""

    def __init__(self, parts: StoreParts, settings: Settings, clock: Clock, appended: Callable[[], None]) -> None:
        """``appended`` is called after each append."""
        self._hot, self._disk = parts.hot.store, parts.hot.disk
        self._archived = parts.writers.appends if parts.writers else None
        self._fetcher = parts.fetcher
        self._settings = settings
        self._clock = clock
        self._appended = appended
        self._store_host = store_host(settings)
        self._derived_to = 0
        self._legal_topics: dict[str, int] = {}
        self._shared = SharedAppends(partial(self._append, durability=Durability.FLUSHED), self.pending_messages)

    def pending_messages(self) -> PendingMessages:
        """Returns an empty list of messages that come one by one, for :meth:`append`."""
        return PendingMessages(self._settings.hot.max_body_bytes, self._legal_topics, self._hot.topics.queues_of)

    def client_messages(self) -> ClientMessages:
        """Returns an empty list of messages as clients of RocketMQ sent them, for :meth:`append`."""
        return ClientMessages(self._settings.hot.max_body_bytes, self._hot.topics.queues_of)

    def append(
        self,
        messages: AppendedMessages,
        durability: Durability,
        key: IdempotencyKey | None,
    ) -> AppendedColumns:
        """Returns where each message went, now or, with a ``key``, when it was sent before; see :class:`Durability`.

        Raises, with a key, :class:`RequestUnderWayError` while another request has some of its numbers,
        :class:`KeyReusedError` if one of them belongs to another message, :class:`ConflictError` if a message was
        appended before and cannot be read any more; nothing was appended then.
        """
        # an append that cannot wait for the archive is refused before anything is appended
        gate = entering_archive() if durability is Durability.ARCHIVED else contextlib.nullcontext()
        with gate:
            if key is None or not messages:
                if len(messages) == 1 and not isinstance(messages, _COLLECTED):
                    return self._append_one(messages[0], durability)
                return self._append(messages, durability)
            assert not isinstance(messages, _COLLECTED), "a key is for messages that can be sent again"
            return self._append_once(messages, durability, key)

    def append_unless_known(self, message: ClientMessages, topic: str, key: IdempotencyKey) -> bool:
        """Appends one message to its topic, durably, unless the log has one with its number; whether it was appended.

        The number is trusted: what is in the log is not compared. Raises :class:`RequestUnderWayError` while it is
        being appended already.
        """
        assert len(message) == 1
        window = self._hot.producers
        with window.claim(topic, key.origin, key.first, key.first + 1):
            for run in window.known(topic, key.origin, key.first, key.first + 1):
                self._make_as_durable(run, Durability.FLUSHED)
                return False
            self._append(message, Durability.FLUSHED, ProducerSequences(topic, key.origin, np.array([key.first])))
            return True

    def _append_one(self, message: Message, durability: Durability) -> AppendedColumns:
        if durability is Durability.FLUSHED:
            return self._shared.append(message)
        pending = self.pending_messages()
        pending.add_message(message)
        return self._append(pending, durability)

    def _append_once(self, messages: Sequence[Message], durability: Durability, key: IdempotencyKey) -> AppendedColumns:
        topics = {messages[0].topic}
        if not is_in_columns(messages):
            topics = {one.topic for one in messages}
        if len(topics) != 1:
            raise InvalidRequestError("messages with one idempotency key are of one topic")
        (topic,) = topics
        window, end = self._hot.producers, key.first + len(messages)
        with window.claim(topic, key.origin, key.first, end):
            rows: dict[int, Row] = {}
            # from before callers had producers of their own: who sends the same again means that
            for run in window.known(topic, key.producer, key.first, end) if key.caller else ():
                with contextlib.suppress(ConflictError):
                    _answer_again(run, key, messages, rows, self._fetcher)
                    self._make_as_durable(run, durability)
            for run in window.known(topic, key.origin, key.first, end):
                self._make_as_durable(run, durability)
                _answer_again(run, key, messages, rows, self._fetcher)
            missing = [place for place in range(len(messages)) if place not in rows]
            if missing:
                piece = [messages[place] for place in missing] if rows else messages
                fresh = self._append(
                    piece, durability, ProducerSequences(topic, key.origin, key.first + np.array(missing, np.int64))
                )
                if not rows:
                    return fresh
                rows.update(zip(missing, fresh.rows(), strict=True))
        return AppendedColumns.of_rows(rows[place] for place in range(len(messages)))

    def _append(
        self,
        messages: AppendedMessages,
        durability: Durability,
        origin: ProducerSequences | None = None,
    ) -> AppendedColumns:
        self._disk.check_room()
        self._keep_pace()
        batch = self._checked(messages, may_be_lone=origin is None)
        self._check_durability(batch.topics, durability)
        result = self._hot.append(batch, durability, origin, create_topics=self._settings.create_topics)
        self._appended()
        if durability is Durability.ARCHIVED and self._archived is not None:
            self._archived.wait_for(self._hot.log.flushed)
        return AppendedColumns.of(result, self._store_host)

    def _checked(self, messages: AppendedMessages, *, may_be_lone: bool) -> MessageBatch | LoneMessage:
        now_ms = self._clock.now_ms()
        if isinstance(messages, ClientMessages):
            most = self._settings.hot.max_body_bytes
            lone = messages.lone() if may_be_lone else None
            return lone or messages.to_batch(now_ms=now_ms, max_body_bytes=most)
        if not isinstance(messages, PendingMessages):
            return MessageBatch.of(messages, now_ms=now_ms, max_body_bytes=self._settings.hot.max_body_bytes)
        is_lone = may_be_lone and len(messages) == 1
        return messages.take_lone(now_ms=now_ms) if is_lone else messages.take(now_ms=now_ms)

    def _keep_pace(self) -> None:
        """Derives before more is appended where queues and index are too far behind the log, or refuses to append."""
        most = self._settings.hot.max_behind_bytes
        if self._hot.log.visible - self._derived_to > most:  # it only rises, so an old value is a safe bound
            self._derived_to = self._hot.dispatched_to
        if self._hot.log.visible - self._derived_to > most:
            behind = self._hot.log.visible - self._hot.dispatch()
            if behind > most:
                raise OverloadedError(
                    f"queues and index are {behind} bytes behind the log",
                    hint=self._hot.dispatch_error or "hot.max_behind_bytes is the limit; try again",
                )

    def _check_durability(self, topics: Sequence[str], durability: Durability) -> None:
        if durability is not Durability.ARCHIVED:
            return
        if self._archived is None:
            raise InvalidRequestError("this store has no cold tier", hint="open it once with --cold URL")
        left_out = {topic.name for topic in self._hot.topics.listed() if not topic.archive}
        for name in left_out.intersection(topics):
            raise InvalidRequestError(f"topic {name!r} is not archived", hint="append with durability=flushed")

    def _make_as_durable(self, run: SequenceRun, durability: Durability) -> None:
        """Makes what was acknowledged less durably, or not at all, as durable as the request asks that has it now."""
        self._check_durability((), durability)
        self._hot.flush(run.physical_end)
        if durability is Durability.ARCHIVED and self._archived is not None:
            self._archived.wait_for(run.physical_end)


def _answer_again(
    run: SequenceRun, key: IdempotencyKey, messages: Sequence[Message], rows: dict[int, Row], fetcher: Fetcher
) -> None:
    """Adds the rows of those messages that are in the run; what else it has may be gone."""
    offsets = fetcher.record_offsets(run.physical, run.physical_end)
    for number in range(max(run.first, key.first), min(run.end, key.first + len(messages))):
        place, at = number - key.first, number - run.first
        stored = fetcher.message_at(offsets[at]) if at < len(offsets) else None
        if stored is None:
            raise ConflictError(f"message {place} was appended before, and is erased or expired since", position=place)
        if not _is_same(messages[place], stored):
            raise KeyReusedError(
                f"message {place} is not the one that number {number} of producer {key.producer!r} belongs to",
                position=place,
                hint="each request has a key of its own; one sent again has the same messages",
            )
        record = stored.record
        rows[place] = (
            record.physical_offset, record.queue_id, record.queue_offset, record.store_ms, record.store_host,
        )  # fmt: skip


def _is_same(message: Message, stored: StoredMessage) -> bool:
    """Whether all that the client chose is the same; queue and born time count only if it chose them."""
    record = stored.record
    body, _ = stored.readable_body()
    return (
        body == message.body
        and record.properties.get(KEYS, "") == " ".join(message.keys)
        and stored.tag == message.tag
        and stored.properties == {name: value for name, value in message.properties.items() if name not in OWN_FIELDS}
        and (message.queue_id in (ANY_QUEUE, record.queue_id) or SHARDING_KEY in message.properties)
        and message.born_ms in (None, record.born_ms)
    )
