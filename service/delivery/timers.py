"""Delayed messages: kept in RocketMQ's timer topic, and appended to their real topic at their time, once.

A delayed message is an ordinary one of ``rmq_sys_wheel_timer``, with the topic, queue and time that it is for in
properties, as RocketMQ's brokers write it (:func:`scheduled`). :class:`Timers` fires what is due: one append of a note
to ``rmq_sys_tierlog_timers`` and of the copies that it announces (:mod:`~service.delivery.copies`). The note says what
is done once they are there (:class:`~service.delivery.timer_state.TimerNote`).

State and messages are in one log, so any prefix of it that survives, on a volume or in its archive, says truly what has
fired in it: there is no file to keep, to restore or to take over. *Killed in the append*: the note is there without
some of its copies, which are looked for at the start, and fire if they are missing. *Before it*: no note, nothing
fired. *After it*: all of them are there.
"""

from __future__ import annotations

import logging
import re
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from tierlog.service.delivery.copies import (
    NO_HOST,
    CopiedMessages,
    Reading,
    add_copy,
    changed_text,
    copied_at,
    last_messages,
    messages_from,
    read_at,
    real_target,
    records_of,
)
from tierlog.service.delivery.timer_state import FAR, DoneTimers, PendingTimers, TimerNote, TimerRun
from tierlog.service.engine.stats import DelayNumbers
from tierlog.service.engine.store import Store
from tierlog.tiering.base.backoff import Backoff, RepeatedTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    ConflictError,
    InvalidRequestError,
    MessageTooLargeError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.format.properties import TAGS, UNIQ_KEY, decode_properties, encode_properties
from tierlog.tiering.format.record import CHECKSUM_BYTES, MAX_PROPERTIES_BYTES, Record
from tierlog.tiering.message.batch import ANY_QUEUE, Message, check_property_bytes, no_such_queue
from tierlog.tiering.message.waiting import REAL_QUEUE, REAL_TOPIC, RECALLED, SCHEDULE_TOPIC, TIMER_TOPIC

_LOG = logging.getLogger("tierlog")

#: Where the notes of what has fired are.
NOTE_TOPIC = "rmq_sys_tierlog_timers"

# properties of RocketMQ's

#: A level of :data:`LEVELS_MS`, from 1.
DELAY_LEVEL = "DELAY"
DELIVER_MS, DELAY_MS, DELAY_S = "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
#: When a message of the timer topic is due.
OUT_MS = "TIMER_OUT_MS"
#: The level that a delayed message came with: with ``DELAY`` itself, a broker that fires it would delay it again.
_LEVEL_KEPT = "TIMER_DELAY_LEVEL"
_ENQUEUE_MS, _DEQUEUE_MS = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
_ROLL_TIMES = "TIMER_ROLL_TIMES"
_RECALL_TAG = "_RECALL_TAG_"
#: What a property text has that asks for a delay; all of them have the first one.
_HINT = b"DEL"
_HINTS = (b"DELAY\x01", b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_MS\x01", b"TIMER_DELAY_SEC\x01")

_S, _MIN = 1_000, 60_000
#: RocketMQ's delay levels, the first one level 1; a higher one is taken for the last.
LEVELS_MS = (
    _S, 5 * _S, 10 * _S, 30 * _S, *(minutes * _MIN for minutes in range(1, 11)), 20 * _MIN, 30 * _MIN, 60 * _MIN,
    120 * _MIN,
)  # fmt: skip
#: How far ahead a message may be delayed, unless the settings say otherwise.
MAX_DELAY_MS = 40 * 24 * 60 * _MIN
#: What a message's property text grows by at most until it has fired: a count and two times are noted.
_GROWTH = 2 * (len(_ENQUEUE_MS) + 2 + 20) + 2 * len(_ROLL_TIMES) + CHECKSUM_BYTES

#: What fires in one append.
_MOST_COPIES, _MOST_BYTES = 1024, 4 << 20
#: How many messages may wait for what cannot be read; with more, nothing fires.
_MOST_WAITING = 4096
_LOADED_AT_ONCE = 10_000
#: How long after a failure what lies where it happened is tried again.
_AGAIN_S = 5.0
#: How often a thread looks for new messages; one that is due earlier fires then.
_LOOK_S = 0.1
_PAUSE_S = 0.02
#: How often messages that may go soon are looked for.
_ROLL_EVERY_S = 60.0
_JOIN_S = 2.0
_DUE = re.compile(rb"(?:^|\x02)TIMER_OUT_MS\x01(-?[0-9]{1,18})(?:\x02|$)")
_RECALL_MARK, _ENQUEUE_MARK = RECALLED.encode() + b"\x01", _ENQUEUE_MS.encode() + b"\x01"
_NOTE_TRIES = 10_000


class Scheduled(NamedTuple):
    """A message for the timer topic: where it goes, its property text, and when it is due."""

    topic: str
    queue_id: int
    properties: bytes
    due_ms: int


def scheduled(
    topic: str, queue_id: int, properties: bytes, now_ms: int, *, max_delay_ms: int = MAX_DELAY_MS
) -> Scheduled | None:
    """Returns what is to be stored of a message that asks for a delay; None for one that goes to its topic now.

    A level (``DELAY``) counts before a time, as with RocketMQ. Raises :class:`InvalidRequestError` for a delay that is
    no number or longer than ``max_delay_ms``.
    """
    if _HINT not in properties or topic == TIMER_TOPIC or not any(hint in properties for hint in _HINTS):
        return None
    found = decode_properties(properties)
    if OUT_MS in found:
        return None
    level = _number(found, DELAY_LEVEL) or 0
    added: dict[str, str] = {}
    if level > 0:
        level = min(level, len(LEVELS_MS))
        due_ms = now_ms + LEVELS_MS[level - 1]
        added[_LEVEL_KEPT] = str(level)
    else:
        asked = _asked_ms(found, now_ms)
        if asked is None or asked <= now_ms:
            if asked is not None and RECALLED in found:
                raise InvalidRequestError("a message cannot be called back once it is due")
            return None
        due_ms = asked
    _check_delay(due_ms - now_ms, max_delay_ms)
    gone = (DELAY_LEVEL, DELIVER_MS, DELAY_MS, DELAY_S) if level > 0 else (DELAY_LEVEL,)
    added |= {OUT_MS: str(due_ms), _ENQUEUE_MS: str(now_ms), REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    text = changed_text(properties, gone, added)
    if len(text) + _GROWTH > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError(
            f"property text of {len(text)} bytes leaves no room for the times of a delay",
            hint=f"the limit is {MAX_PROPERTIES_BYTES - _GROWTH} bytes",
        )
    return Scheduled(TIMER_TOPIC, 0, text, due_ms)


def delayed(messages: Sequence[Message], due_ms: int, store: Store, *, max_delay_ms: int) -> Sequence[Message]:
    """Returns messages of one topic as they wait for their time; as they are if that is over.

    Their topics are made. Raises :class:`InvalidRequestError` for a longer delay than ``max_delay_ms``, and for a
    message to a queue that its topic does not have.
    """
    now_ms = store.now_ms()
    if due_ms <= now_ms or not messages:
        return messages
    _check_delay(due_ms - now_ms, max_delay_ms)
    topic = messages[0].topic
    store.make_topic(topic, store.queues_of(topic))
    store.make_topic(TIMER_TOPIC, 1, may_make=True)
    queues = store.queues_of(topic)
    found = []
    for place, message in enumerate(messages):
        queue_id = (now_ms + place) % queues if message.queue_id == ANY_QUEUE else message.queue_id
        if queue_id >= queues:
            raise no_such_queue(topic, queue_id, queues, place)
        properties = {
            **message.properties, OUT_MS: str(due_ms), _ENQUEUE_MS: str(now_ms), REAL_TOPIC: topic,
            REAL_QUEUE: str(queue_id),
        }  # fmt: skip
        text = encode_properties(properties)
        check_property_bytes(
            len(text) + len(" ".join(message.keys).encode()) + len(message.tag.encode()) + _GROWTH, place
        )
        found.append(replace(message, topic=TIMER_TOPIC, queue_id=0, properties=properties))
    return found


def _check_delay(delay_ms: int, max_delay_ms: int) -> None:
    if delay_ms > max_delay_ms:
        raise InvalidRequestError(
            f"a delay of {delay_ms} ms is over the limit of {max_delay_ms} ms", hint="produce.max_delay_ms is the limit"
        )


def _asked_ms(properties: dict[str, str], now_ms: int) -> int | None:
    delay_s = _number(properties, DELAY_S)
    if delay_s is not None:
        return now_ms + 1000 * delay_s
    delay_ms = _number(properties, DELAY_MS)
    return _number(properties, DELIVER_MS) if delay_ms is None else now_ms + delay_ms


def _number(properties: dict[str, str], name: str) -> int | None:
    value = properties.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII):
        raise InvalidRequestError(f"property {name} is {value[:50]!r}, which is no number")
    return int(value)


class RecallHandle(NamedTuple):
    """RocketMQ's handle to call a delayed message back, version 1: four words behind ``v1``, as Base64 for URLs."""

    topic: str
    broker: str
    #: One ms after the message is due.
    after_ms: int
    unique_key: str

    def encode(self) -> str:
        words = " ".join(("v1", self.topic, self.broker, str(self.after_ms), self.unique_key))
        return urlsafe_b64encode(words.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Inverse of :meth:`encode`; :class:`InvalidRequestError` for anything else."""
        try:
            version, topic, broker, after_ms, unique_key, *_ = urlsafe_b64decode(text).decode().split(" ")
            found = cls(topic, broker, int(after_ms), unique_key)
        except ValueError as error:
            raise InvalidRequestError("recall handle is invalid") from error
        if version != "v1":
            raise InvalidRequestError("recall handle is invalid")
        return found


def recall_handle(store_id: str, entry: Scheduled) -> str | None:
    """Returns the handle that the sender of a delayed message gets; None for one without a unique key of one word."""
    properties = decode_properties(entry.properties)
    if " " in properties.get(UNIQ_KEY, " "):
        return None
    return RecallHandle(properties[REAL_TOPIC], store_id, entry.due_ms + 1, properties[UNIQ_KEY]).encode()


class _Copy(NamedTuple):
    """A message that is due, where its copy goes, and the copy's property text."""

    original: Record
    target: tuple[str, int]
    text: bytes


class _AtBroker(NamedTuple):
    """A message that waited at a level of a followed broker's, and when it is due."""

    record: Record
    level: int
    due_ms: int
    target: tuple[str, int]

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What its copy is known by that the broker appended: a retry has the unique key of the try before."""
        return (*self.target, self.record.properties.get(UNIQ_KEY, ""), self.record.reconsume_times)

    @property
    def text(self) -> bytes:
        """Its property text in the timer topic."""
        added = {_LEVEL_KEPT: str(self.level), OUT_MS: str(self.due_ms), _ENQUEUE_MS: str(self.record.store_ms)}
        return changed_text(self.record.properties_text, (DELAY_LEVEL,), added)


def _levels_of(store: Store) -> range:
    return range(1, min(store.find_queues(SCHEDULE_TOPIC) or 0, len(LEVELS_MS)) + 1)


def _waiting_at(store: Store, level: int, offset: int, below: int) -> Iterator[_AtBroker]:
    """Yields what a broker has at a level from an offset on; what names no topic is said and left out."""
    for message in messages_from(store, SCHEDULE_TOPIC, level - 1, offset):
        record = message.record
        target = real_target(store, record.properties, record.queue_offset)
        if target is None:
            _LOG.warning("message %d of level %d names no topic to go to", record.queue_offset, level)
        elif record.physical_offset < below:
            yield _AtBroker(record, level, record.store_ms + LEVELS_MS[level - 1], target)


def _copied_behind(store: Store, below: int) -> set[int]:
    """Returns the originals of what the timer topic has in the log behind that of the broker."""
    found = set()
    for message in last_messages(store, TIMER_TOPIC, 0):
        if message.record.physical_offset < below:
            break
        found.add(message.record.prepared_offset)
    return found


def _sent_on(store: Store, waiting: Sequence[_AtBroker], below: int) -> set[tuple[str, int, str, int]]:
    """Returns the keys of those that the broker had sent on itself, as their topics have them."""
    since: dict[tuple[str, int], int] = {}
    for one in waiting:
        since[one.target] = min(one.due_ms, since.get(one.target, one.due_ms))
    found = set()
    for (topic, queue_id), due_ms in since.items():
        with suppress(TopicNotFoundError):
            start = store.offset_by_time(topic, queue_id, due_ms, Boundary.LOWER)
            for message in messages_from(store, topic, queue_id, start):
                record = message.record
                if record.physical_offset >= below:
                    break
                if key := record.properties.get(UNIQ_KEY):
                    found.add((topic, queue_id, key, record.reconsume_times))
    return found


class Timers:
    """Fires the delayed messages of one open store. Thread safe; only one may be made of a store that is open.

    Nothing fires before everything pending was loaded, so that a call back is never missed; :meth:`start` does that in
    the background. Messages that cannot be read, as while the archive does not answer, wait while others fire.
    """

    def __init__(self, store: Store, clock: Clock, randomness: Randomness) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending = PendingTimers()
        #: Calls back that were loaded: when they count, and the topic and unique key of whom.
        self._recalls: dict[int, tuple[int, tuple[str, str]]] = {}
        #: What could not be read: when it is due, and its size.
        self._waiting: dict[int, tuple[int, int]] = {}
        self._again_s = 0.0
        self._unread_to = -1
        self._done: DoneTimers | None = None
        self._loaded, self._is_loaded = 0, False
        self._has_taken_over = False
        self._roll_before_ms, self._roll_at_s = 0, 0.0
        self._brokers_before_ms = -FAR
        """In a store without a note, what a broker wrote and was due before has been fired by that broker."""
        #: Messages that fired since the start, and those that named no topic to fire to.
        self.fired = self.undeliverable = 0
        backoff = Backoff(clock, randomness, first_s=0.1, most_s=_AGAIN_S)
        self._task = RepeatedTask("firing delayed messages", self.run_once, backoff)

    # life

    def start(self) -> None:
        """Loads what is pending and fires it, on a thread of its own; from now on no log goes that it still needs."""
        self._store.keep_log(self.keep)
        self._store.delay_numbers = self.numbers
        self._thread = threading.Thread(target=self._loop, name="tierlog-timers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what is due then fires after the next start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._task.run_once()
            except ClosedError:
                return
            first = self._pending.first()
            left_s = _LOOK_S if first is None else (first[0] - self._clock.now_ms()) / 1000
            self._clock.wait(self._stopping, min(max(left_s, _PAUSE_S), _LOOK_S))

    @property
    def error(self) -> str | None:
        """The last failure to fire; None once it went well again."""
        return self._task.error

    def pending(self) -> int:
        """Returns how many messages wait for their time, as far as they are loaded."""
        return len(self._pending) + len(self._waiting)

    def lag_ms(self) -> int:
        """Returns how long the message that has waited longest is overdue; 0 if none is."""
        first = self._pending.first()
        overdue = [*(due_ms for due_ms, _ in list(self._waiting.values())), *(first[:1] if first else ())]
        return max(0, self._clock.now_ms() - min(overdue)) if overdue else 0

    def numbers(self) -> DelayNumbers:
        """Returns what ``stats`` tells of delayed messages."""
        return DelayNumbers(self.pending(), self.lag_ms(), self.fired, self.undeliverable)

    def run_once(self) -> int:
        """Loads what is new and fires all that is due; returns how many messages that were."""
        before = self.fired
        while not self._stopping.is_set():
            with self._lock:
                if not self._load():
                    break
                if not self._has_taken_over:
                    self._take_over()
                    continue
                self._retry_waiting()
                if self._roll_old():
                    continue
                due = self._pending.due(self._clock.now_ms(), most=_MOST_COPIES, most_bytes=_MOST_BYTES)
                if len(due) == 0 or len(self._waiting) >= _MOST_WAITING:
                    break
                self._fire(due)
        return self.fired - before

    # loading

    def _load(self) -> bool:
        """Reads the timer topic to its end; False if it was asked to stop before."""
        self._read_notes()
        while not self._stopping.is_set():
            try:
                with self._store.pull_records(TIMER_TOPIC, 0, self._loaded, _LOADED_AT_ONCE) as found:
                    records = (record for part in found.parts for record in records_of(part))
                    self._pending.add(timer for record in records if (timer := self._timer(record)) is not None)
            except TopicNotFoundError:
                self._is_loaded = True
                return True
            is_last = found.status is PullStatus.NO_NEW_MESSAGE or found.next_offset <= self._loaded
            self._loaded = max(self._loaded, found.next_offset)
            if is_last or self._loaded >= found.max_offset:
                self._is_loaded = True
                return True
        return False

    def _timer(self, record: Record) -> tuple[int, int, int] | None:
        """Returns what is pending of a message; None if it is done, a call back, or one that can never fire."""
        assert self._done is not None
        match = _DUE.search(record.properties_text)
        if match is None:
            return None
        due_ms, offset = int(match[1]), record.queue_offset
        if _RECALL_MARK in record.properties_text and RECALLED in record.properties:
            properties = record.properties
            self._recalls[offset] = due_ms, (properties.get(REAL_TOPIC, ""), properties[RECALLED])
        elif due_ms < self._brokers_before_ms and _ENQUEUE_MARK not in record.properties_text:
            return None
        elif not self._done.has(due_ms, offset):
            if offset not in self._done.excepted:
                return due_ms, offset, record.size
            self._waiting[offset] = due_ms, record.size
        return None

    def _read_notes(self) -> None:
        """Learns what is done by the last note, if that is not known yet."""
        if self._done is not None:
            return
        done, has_note = DoneTimers(), False
        for message in islice(last_messages(self._store, NOTE_TOPIC, 0), _NOTE_TRIES):
            record = message.record
            try:
                note = TimerNote.decode(record.body)
            except (ValueError, LookupError, TypeError):
                continue
            if note.at == record.queue_offset:
                has_note = True
                done = replace(note.done, excepted=note.done.excepted | self._missing(note, record.store_ms))
                break
        if not has_note:
            self._brokers_before_ms = self._store.last_store_ms
        self._done, self._loaded = done, done.begin

    def _missing(self, note: TimerNote, store_ms: int) -> set[int]:
        """Returns which messages of the last note have no copy."""
        reading = read_at(self._store, TIMER_TOPIC, 0, sorted(note.copies))
        if isinstance(reading.error, UnavailableError):
            raise reading.error
        there: dict[str, set[int]] = {}
        missing = set(reading.unread)
        for offset, message in reading.found.items():
            record = message.record
            target = (TIMER_TOPIC, 0) if note.is_rolled else real_target(self._store, record.properties, offset)
            if target is not None:
                topic = target[0]
                if topic not in there:
                    there[topic] = copied_at(self._store, topic, store_ms)
                if record.physical_offset not in there[topic]:
                    missing.add(offset)
        return missing

    def _take_over(self) -> None:
        """Has what waited at a followed broker's levels of delay fire here, once, in a store that was promoted.

        The broker had sent on what lies below its offsets, as they were copied last, and perhaps some behind: that is
        found in its topic. All else is appended to the timer topic, with its time. *Killed in an append*, or before the
        offsets say that it is done: what was appended is known by its originals, and the rest follows.
        """
        store = self._store
        kept, below = store.groups.delay_offsets, store.followed_below
        ends = {level: store.offsets(SCHEDULE_TOPIC, level - 1)[1] for level in _levels_of(store) if below}
        if any(kept.get(level, 0) < end for level, end in ends.items()):
            waiting = [one for level in ends for one in _waiting_at(store, level, kept.get(level, 0), below)]
            there = _copied_behind(store, below)
            late = _sent_on(store, [one for one in waiting if one.due_ms <= store.last_store_ms], below)
            left: Sequence[_AtBroker] = [
                one for one in waiting if one.record.physical_offset not in there and one.key not in late
            ]
            while left:
                left = self._append_waiting(left)
            # Killed before: nothing is left when it is looked for again. After it: nothing is looked for.
            store.groups.copy({}, ends)
        self._has_taken_over = True

    def _append_waiting(self, waiting: Sequence[_AtBroker]) -> Sequence[_AtBroker]:
        """Appends some to the timer topic, behind a note of what is done there; returns the rest."""
        batch, count, size = CopiedMessages(), 0, 0
        self._store.make_topic(NOTE_TOPIC, 1, may_make=True)
        self._store.make_topic(TIMER_TOPIC, 1, may_make=True)
        with (
            self._store.copying() as is_erased,
            self._taken(TimerRun(), (), latest_ms=self._brokers_before_ms),
        ):
            assert self._done is not None
            _, at = self._store.offsets(NOTE_TOPIC, 0)
            note = TimerNote(at, self._done, [], True)
            batch.add(NOTE_TOPIC, 0, note.encode(), b"", born_ms=self._clock.now_ms(), born_host=NO_HOST)
            for one in waiting[:_MOST_COPIES]:
                if count and size + one.record.size > _MOST_BYTES:
                    break
                count, size = count + 1, size + one.record.size
                if not is_erased(one.record):
                    add_copy(batch, one.record, (TIMER_TOPIC, 0), one.text)
            self._store.append(batch)
        return waiting[count:]

    # firing

    def _retry_waiting(self) -> None:
        """Tries what could not be read, if the pause after the last try is over."""
        now_ms = self._clock.now_ms()
        if self._clock.monotonic_s() >= self._again_s:
            rows = sorted(
                (due_ms, offset, size) for offset, (due_ms, size) in self._waiting.items() if due_ms <= now_ms
            )
            if rows:
                waiting = PendingTimers()
                waiting.add(rows)
                self._fire(waiting.due(now_ms, most=_MOST_COPIES, most_bytes=_MOST_BYTES))

    def _fire(self, timers: TimerRun) -> None:
        """Appends the copies of messages that are due behind a note; what cannot be read waits."""
        offsets: list[int] = timers.offset.tolist()
        reading = self._read(sorted(offsets))
        due_ms = dict(zip(offsets, timers.due_ms.tolist(), strict=True))
        recalled = self._recalled(set(due_ms.values()))
        now_ms = self._clock.now_ms()
        copies, waiting = [], set(reading.unread)
        with self._store.copying() as is_erased:
            for offset in offsets:
                if offset in reading.found and not is_erased(record := reading.found[offset].record):
                    try:
                        copy = self._fired(record, recalled.get(due_ms[offset], ()), now_ms)
                    except ConflictError as error:  # no room for its topic
                        self._again_s = self._clock.monotonic_s() + _AGAIN_S
                        _LOG.warning("message %d of %s waits: %s", offset, TIMER_TOPIC, error)
                        waiting.add(offset)
                    else:
                        copies += [] if copy is None else [copy]
            with self._taken(timers, waiting, latest_ms=max(due_ms.values(), default=-FAR)):
                if copies:
                    self._append(copies, is_rolled=False)
        self.fired += len(copies)
        self._forget_recalls()

    def _read(self, offsets: list[int]) -> Reading:
        """Reads messages of the timer topic; where the archive did not answer a moment ago, it is not asked."""
        is_pausing = self._clock.monotonic_s() < self._again_s
        skipped = {offset for offset in offsets if is_pausing and offset <= self._unread_to}
        reading = read_at(self._store, TIMER_TOPIC, 0, [offset for offset in offsets if offset not in skipped])
        if reading.unread:
            self._again_s = self._clock.monotonic_s() + _AGAIN_S
            if isinstance(reading.error, UnavailableError):
                self._unread_to = max(reading.unread)
            _LOG.warning("%d delayed messages cannot be read, and wait: %s", len(reading.unread), reading.error)
        return reading._replace(unread=reading.unread | skipped)

    @contextmanager
    def _taken(self, timers: TimerRun, unread: Collection[int], latest_ms: int = -FAR) -> Iterator[None]:
        """Counts messages as done, or as waiting if they are ``unread``; as before if what is done with them fails."""
        assert self._done is not None
        before = self._pending.copy(), dict(self._waiting), dict(self._recalls), self._done
        for due_ms, offset, size in timers.rows():
            self._waiting.pop(offset, None)
            self._recalls.pop(offset, None)
            if offset in unread:
                self._waiting[offset] = due_ms, size
        self._pending.remove(timers.offset.tolist())
        below = min(self._pending.least_offset(), *self._recalls, self._loaded)
        self._done = self._done.extended(
            below, self._loaded, self._pending.first(), excepted=self._waiting, latest_ms=latest_ms
        )
        try:
            yield
        except BaseException:  # also an exit: what was not appended is still to be delivered
            self._pending, self._waiting, self._recalls, self._done = before
            raise

    def _recalled(self, due_ms: set[int]) -> dict[int, set[tuple[str, str]]]:
        """Returns the topics and unique keys of those that are called back, by the time at which they are due."""
        keys: dict[int, set[tuple[str, str]]] = {}
        for recall_ms, key in self._recalls.values():
            if recall_ms in due_ms:
                keys.setdefault(recall_ms, set()).add(key)
        return keys

    def _forget_recalls(self) -> None:
        """Forgets calls back of messages that are done."""
        first = self._pending.first()
        waiting = (due_ms for due_ms, _ in self._waiting.values())
        open_ms = min(self._clock.now_ms(), *waiting, *(first[:1] if first else ()), FAR)
        for offset in [offset for offset, (due_ms, _) in self._recalls.items() if due_ms < open_ms]:
            del self._recalls[offset]

    def _fired(self, record: Record, recalled: Collection[tuple[str, str]], now_ms: int) -> _Copy | None:
        """Returns the copy of a message; None if there is to be none."""
        properties = record.properties
        target = real_target(self._store, properties, record.queue_offset)
        if target is None:
            self.undeliverable += 1
            _LOG.warning("message %d of %s names no topic to go to", record.queue_offset, TIMER_TOPIC)
            return None
        topic = target[0]
        key = properties.get(UNIQ_KEY)
        if key is not None and ((topic, key) in recalled or (topic, f"{topic}+{key}") in recalled):
            return None
        text = fired_text(record.properties_text, store_ms=record.store_ms, now_ms=now_ms)
        try:
            add_copy(CopiedMessages(), record, target, text)
            self._store.make_topic(topic, self._store.queues_of(topic), may_make=True)
        except InvalidRequestError as error:
            self.undeliverable += 1
            _LOG.warning("message %d of %s cannot go to its topic: %s", record.queue_offset, TIMER_TOPIC, error)
            return None
        return _Copy(record, target, text)

    def _append(self, copies: Sequence[_Copy], *, is_rolled: bool) -> None:
        assert self._done is not None
        self._store.make_topic(NOTE_TOPIC, 1, may_make=True)
        _, at = self._store.offsets(NOTE_TOPIC, 0)
        note = TimerNote(at, self._done, [copy.original.queue_offset for copy in copies], is_rolled)
        batch = CopiedMessages()
        batch.add(NOTE_TOPIC, 0, note.encode(), b"", born_ms=self._clock.now_ms(), born_host=NO_HOST)
        for copy in copies:
            add_copy(batch, copy.original, copy.target, copy.text)
        self._store.append(batch)

    # keeping

    def keep(self, border: int, newest_ms: int) -> int:
        """Returns the border below which the log may go, at most ``border``, where records are of ``newest_ms``.

        What is pending below is appended again in the next round, and keeps the log no more then.
        """
        with self._lock:
            if not self._is_loaded:
                return 0
            self._drop_erased()
            if not self.pending():
                return border
            least = min(self._pending.least_offset(), *self._recalls, *self._waiting, FAR)
            found = read_at(self._store, TIMER_TOPIC, 0, [least]).found
            first = found[least].record.physical_offset if found else 0
            if first >= border:
                return border
            self._roll_before_ms = newest_ms + 1
            self._roll_at_s = 0.0
            return first

    def _drop_erased(self) -> None:
        """Takes the first messages that are erased for done: nothing is kept for them."""
        while len(rows := self._pending.below(FAR, most=_MOST_COPIES, most_bytes=_MOST_BYTES)):
            reading = read_at(self._store, TIMER_TOPIC, 0, rows.offset.tolist())
            left = min(*reading.found, *reading.unread, FAR)
            if int(rows.offset[0]) < left:
                with self._taken(rows.part(rows.offset < left), ()):
                    pass
            if left < FAR:
                return

    def _roll_old(self) -> bool:
        """Appends again what is pending in records that are old enough to go soon, with what calls it back.

        Says whether there was anything.
        """
        if self._clock.monotonic_s() < self._roll_at_s:
            return False
        kept_ms = self._store.kept_ms(TIMER_TOPIC)
        half_ms = 0 if kept_ms is None else self._clock.now_ms() - kept_ms // 2
        before_ms, self._roll_before_ms = max(half_ms, self._roll_before_ms), 0
        self._roll_at_s = self._clock.monotonic_s() + _ROLL_EVERY_S
        if before_ms <= 0 or not self.pending():
            return False
        below = self._store.offset_by_time(TIMER_TOPIC, 0, before_ms, Boundary.LOWER)
        is_any = False
        while self._roll(below):
            is_any = True
        return is_any

    def _roll(self, below: int) -> bool:
        """Appends some of the messages below an offset again, the first ones; whether there may be more."""
        below = min(below, *self._waiting, FAR)
        rolled = self._pending.below(below, most=_MOST_COPIES, most_bytes=_MOST_BYTES)
        end = int(rolled.offset[-1]) if len(rolled) else below
        recalls = [(due_ms, offset, 0) for offset, (due_ms, _) in self._recalls.items() if offset < end]
        rows = sorted([*rolled.rows(), *recalls], key=lambda row: row[1])
        reading = self._read([offset for _, offset, _ in rows])
        if not rows or reading.unread:
            return False
        with self._store.copying() as is_erased:
            copies = [
                _Copy(message.record, (TIMER_TOPIC, 0), rolled_text(message.record))
                for message in reading.found.values()
                if not is_erased(message.record)
            ]
            with self._taken(TimerRun.of(rows), ()):
                if copies:
                    self._append(copies, is_rolled=True)
        return True

    # calling back

    def recall(self, topic: str, handle: str) -> str:
        """Calls a delayed message back, durably: it never fires. Returns its unique key.

        Raises :class:`InvalidRequestError` for a handle of another topic or store, and if it is too late.
        """
        found = RecallHandle.decode(handle)
        if found.topic != topic:
            raise InvalidRequestError("recall failed, topic not match")
        if found.broker != self._store.store_id:
            raise InvalidRequestError("recall failed, broker service not available", hint="ask the store that has it")
        due_ms = found.after_ms - 1
        with self._lock:
            self._read_notes()
            assert self._done is not None
            now_ms = self._clock.now_ms()
            if due_ms <= max(now_ms, self._done.latest_ms):
                raise InvalidRequestError("recall failed, timestamp invalid", hint="the message has been delivered")
            properties = {
                TAGS: _RECALL_TAG, RECALLED: found.unique_key, UNIQ_KEY: found.unique_key,
                DELIVER_MS: str(found.after_ms), OUT_MS: str(due_ms), REAL_TOPIC: topic, REAL_QUEUE: "0",
            }  # fmt: skip
            batch = CopiedMessages()
            batch.add(TIMER_TOPIC, 0, b"0", encode_properties(properties), born_ms=now_ms, born_host=NO_HOST)
            self._store.make_topic(TIMER_TOPIC, 1, may_make=True)
            (appended,) = self._store.append(batch)
            self._recalls[appended.queue_offset] = due_ms, (topic, found.unique_key)
        return found.unique_key


def rolled_text(record: Record) -> bytes:
    """Returns the property text of a delayed message that is appended again, as RocketMQ counts it."""
    times = record.properties.get(_ROLL_TIMES, "")
    count = int(times) + 1 if times.isascii() and times.isdigit() else 1
    return changed_text(record.properties_text, (_ROLL_TIMES,), {_ROLL_TIMES: str(count)})


def fired_text(text: bytes, *, store_ms: int, now_ms: int) -> bytes:
    """Returns the property text that RocketMQ gives a delayed message at its time."""
    found = decode_properties(text)
    if _LEVEL_KEPT in found:
        return changed_text(text, (_LEVEL_KEPT, OUT_MS, _ENQUEUE_MS))
    times = {_ENQUEUE_MS: found.get(_ENQUEUE_MS, str(store_ms)), _DEQUEUE_MS: str(now_ms)}
    return changed_text(text, (REAL_TOPIC, REAL_QUEUE, *times), times)
