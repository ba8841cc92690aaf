"""Delayed messages: kept in RocketMQ's timer topic, and appended to their real topic at their time, once.

A delayed message is an ordinary one of ``rmq_sys_wheel_timer``, with the topic, queue and time that it is for in
properties, as RocketMQ's brokers write it (:func:`scheduled`). :class:`Timers` fires what is due: one append of a note
to ``rmq_sys_tierlog_timers`` and of the copies that it announces (:mod:`~service.delivery.copies`). The note says what
is done once they are there::

    {"format": 1, "at": 17, "from": 40, "done": [[52, 1700000000000, 51]], "except": [44],
     "latest": 1700000000000, "copies": [45, 46], "rolled": false}

Offsets are those of the timer topic. ``[end, time, offset]`` of ``done``: of the messages below ``end``, those due
before ``time``, and those due then up to ``offset``, are done. So is everything below ``from``, and nothing in
``except``, which could not be read. ``latest`` is the latest time at which anything that is done was due. ``at`` is the
note's own offset: what says another one was appended again, by a salvage, and is none.

State and messages are in one log, so any prefix of it that survives, on a volume or in its archive, says truly what has
fired in it: there is no file to keep, to restore or to take over. *Killed in the append*: the note is there without
some of its copies, which are looked for at the start, and fire if they are missing. *Before it*: no note, nothing
fired. *After it*: all of them are there.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.service.delivery.copies import (
    NO_HOST,
    REAL_QUEUE,
    REAL_TOPIC,
    CopiedMessages,
    Reading,
    add_copy,
    changed_text,
    copied_at,
    last_messages,
    read_at,
    real_target,
)
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
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.properties import TAGS, UNIQ_KEY, decode_properties, encode_properties
from tierlog.tiering.format.record import CHECKSUM_BYTES, MAX_PROPERTIES_BYTES, Record

_LOG = logging.getLogger("tierlog")

#: Where delayed messages wait; its only queue is 0. RocketMQ's name, so that a broker goes on with them.
TIMER_TOPIC = "rmq_sys_wheel_timer"
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
#: The unique key of a delayed message that is called back.
RECALLED = "TIMER_DEL_UNIQKEY"
_ENQUEUE_MS, _DEQUEUE_MS = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
_RECALL_TAG = "_RECALL_TAG_"
_HINTS = (b"DELAY\x01", b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_MS\x01", b"TIMER_DELAY_SEC\x01")

_S, _MIN = 1_000, 60_000
#: RocketMQ's delay levels, the first one level 1; a higher one is taken for the last.
LEVELS_MS = (
    _S, 5 * _S, 10 * _S, 30 * _S, *(minutes * _MIN for minutes in range(1, 11)), 20 * _MIN, 30 * _MIN, 60 * _MIN,
    120 * _MIN,
)  # fmt: skip
#: How far ahead a message may be delayed, unless the settings say otherwise.
MAX_DELAY_MS = 40 * 24 * 60 * _MIN
#: What a message's property text grows by at most when it fires: two times are noted.
_GROWTH = 2 * (len(_ENQUEUE_MS) + 2 + 20) + CHECKSUM_BYTES

#: What fires in one append.
_MOST_COPIES, _MOST_BYTES = 1024, 4 << 20
#: How many messages may wait for what cannot be read; with more, nothing fires.
_MOST_WAITING = 4096
_LOADED_AT_ONCE = 1000
#: How long after a failure what lies where it happened is tried again.
_AGAIN_S = 5.0
#: How often a thread looks for new messages; one that is due earlier fires then.
_LOOK_S = 0.1
_PAUSE_S = 0.02
_JOIN_S = 2.0
_FAR = (1 << 63) - 1
_DUE = re.compile(rb"(?:^|\x02)TIMER_OUT_MS\x01(-?[0-9]{1,18})(?:\x02|$)")
_RECALL_MARK = RECALLED.encode() + b"\x01"
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
    if topic == TIMER_TOPIC or not any(hint in properties for hint in _HINTS):
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
    if due_ms - now_ms > max_delay_ms:
        raise InvalidRequestError(
            f"a delay of {due_ms - now_ms} ms is over the limit of {max_delay_ms} ms",
            hint="rocketmq.max_delay_ms is the limit",
        )
    gone = (DELAY_LEVEL, DELIVER_MS, DELAY_MS, DELAY_S) if level > 0 else (DELAY_LEVEL,)
    added |= {OUT_MS: str(due_ms), REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    text = changed_text(properties, gone, added)
    if len(text) + _GROWTH > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError(
            f"property text of {len(text)} bytes leaves no room for the times of a delay",
            hint=f"the limit is {MAX_PROPERTIES_BYTES - _GROWTH} bytes",
        )
    return Scheduled(TIMER_TOPIC, 0, text, due_ms)


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


# what is pending

_Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Messages in the order in which they are due: time, offset and bytes of each."""

    due_ms: _Times = field(default_factory=lambda: np.empty(0, np.int64))
    offset: _Times = field(default_factory=lambda: np.empty(0, np.int64))
    size: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.due_ms)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yields (due_ms, offset, size) of each."""
        return zip(self.due_ms.tolist(), self.offset.tolist(), self.size.tolist(), strict=True)

    def joined(self, other: _Run) -> _Run:
        due_ms = np.concatenate((self.due_ms, other.due_ms))
        offset = np.concatenate((self.offset, other.offset))
        order = np.lexsort((offset, due_ms))
        return _Run(due_ms[order], offset[order], np.concatenate((self.size, other.size))[order])

    def part(self, places: slice | NDArray[np.bool_]) -> _Run:
        return _Run(self.due_ms[places], self.offset[places], self.size[places])


class PendingTimers:
    """Messages that have not fired, 20 bytes each: a long sorted run, and a short one of what came last."""

    _SHORT = 1 << 14

    def __init__(self) -> None:
        self._long, self._short = _Run(), _Run()

    def __len__(self) -> int:
        return len(self._long) + len(self._short)

    def copy(self) -> PendingTimers:
        """Returns the same, apart from these; runs are never changed."""
        copied = PendingTimers()
        copied._long, copied._short = self._long, self._short
        return copied

    def add(self, timers: Iterable[tuple[int, int, int]]) -> None:
        """Adds (due_ms, offset, size) of messages."""
        rows = np.array(list(timers), np.int64).reshape(-1, 3)
        if len(rows) == 0:
            return
        self._short = self._short.joined(_Run(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int32)))
        if len(self._short) > self._SHORT:
            self._long, self._short = self._long.joined(self._short), _Run()

    def first(self) -> tuple[int, int] | None:
        """(due_ms, offset) of the one that is due first."""
        heads = [(int(run.due_ms[0]), int(run.offset[0])) for run in (self._long, self._short) if len(run)]
        return min(heads, default=None)

    def least_offset(self) -> int:
        """The least offset of all, or one that no message has."""
        return min((int(run.offset.min()) for run in (self._long, self._short) if len(run)), default=_FAR)

    def due(self, now_ms: int, *, most: int, most_bytes: int) -> _Run:
        """Returns those that are due, in their order, as many as one append takes; they stay."""
        found = _Run()
        for run in (self._long, self._short):
            end = min(int(run.due_ms.searchsorted(now_ms, side="right")), most)
            found = found.joined(run.part(slice(0, end)))
        end = max(1, int(found.size.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right")))
        return found.part(slice(0, min(most, end)))

    def below(self, offset: int, *, most: int, most_bytes: int) -> _Run:
        """Returns those with the least offsets, all below ``offset``, in the order of the offsets; they stay."""
        found = _Run()
        for run in (self._long, self._short):
            found = found.joined(run.part(run.offset < offset))
        order = np.argsort(found.offset)[:most]
        found = _Run(found.due_ms[order], found.offset[order], found.size[order])
        end = max(1, int(found.size.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right")))
        return found.part(slice(0, end))

    def remove(self, offsets: Sequence[int]) -> None:
        """Removes messages; those of :meth:`due` are the first of each run, which costs nothing."""
        gone = np.array(offsets, np.int64)
        heads = [int(np.isin(run.offset[: len(gone)], gone).sum()) for run in (self._long, self._short)]
        if sum(heads) == len(gone) and all(
            np.isin(run.offset[:count], gone).all() for run, count in zip((self._long, self._short), heads, strict=True)
        ):
            self._long, self._short = self._long.part(slice(heads[0], None)), self._short.part(slice(heads[1], None))
            return
        self._long, self._short = (run.part(~np.isin(run.offset, gone)) for run in (self._long, self._short))


class _Step(NamedTuple):
    """Of the messages below ``end``, those due before ``due_ms``, and those due then up to ``offset``, are done."""

    end: int
    due_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class DoneTimers:
    """What has fired, was called back, or can never fire."""

    below: int = 0
    """All messages below are done."""
    steps: tuple[_Step, ...] = ()
    """Those that end further on come later."""
    excepted: frozenset[int] = frozenset()
    """The ones among all these that are not done."""
    latest_ms: int = -_FAR
    """The latest time at which one that is done was due."""

    def has(self, due_ms: int, offset: int) -> bool:
        """Whether a message is done."""
        if offset in self.excepted:
            return False
        return offset < self.below or any(offset < step.end and (due_ms, offset) <= step[1:] for step in self.steps)

    @property
    def begin(self) -> int:
        """The first message that may not be done."""
        return min(self.below, *self.excepted) if self.excepted else self.below

    def extended(
        self, below: int, end: int, next_due: tuple[int, int] | None, *, excepted: Iterable[int], latest_ms: int
    ) -> DoneTimers:
        """Returns what is done if of all messages below ``end`` the first that is not is ``next_due``.

        That is (due_ms, offset). No step goes beyond ``latest_ms``, so that few are kept.
        """
        below, latest_ms = max(below, self.below), max(latest_ms, self.latest_ms)
        latest = latest_ms, _FAR
        last = latest if next_due is None or next_due > latest else (next_due[0], next_due[1] - 1)
        kept = [old for old in self.steps if old.end > end or old[1:] > last]
        steps = tuple(one for one in (*kept, _Step(end, *last)) if one.end > below)
        return DoneTimers(below, steps, frozenset(excepted), latest_ms)


class TimerNote(NamedTuple):
    """The body of a note."""

    at: int
    done: DoneTimers
    copies: list[int]
    is_rolled: bool

    def encode(self) -> bytes:
        document = {
            "format": 1, "at": self.at, "from": self.done.below, "done": self.done.steps,
            "except": sorted(self.done.excepted), "latest": self.done.latest_ms, "copies": self.copies,
            "rolled": self.is_rolled,
        }  # fmt: skip
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> TimerNote:
        """Inverse of :meth:`encode`; ValueError, LookupError or TypeError for anything else."""
        document = json.loads(body)
        if document["format"] != 1:
            raise ValueError(f"format {document['format']!r}")
        steps = tuple(_Step(int(end), int(due_ms), int(offset)) for end, due_ms, offset in document["done"])
        excepted, latest_ms = frozenset(map(int, document["except"])), int(document["latest"])
        done = DoneTimers(int(document["from"]), steps, excepted, latest_ms)
        return cls(int(document["at"]), done, list(map(int, document["copies"])), bool(document["rolled"]))


class _Copy(NamedTuple):
    """A message that is due, where its copy goes, and the copy's property text."""

    original: Record
    target: tuple[str, int]
    text: bytes


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
        self._loaded = 0
        #: Messages that fired since the start, and those that named no topic to fire to.
        self.fired = self.undeliverable = 0
        backoff = Backoff(clock, randomness, first_s=0.1, most_s=_AGAIN_S)
        self._task = RepeatedTask("firing delayed messages", self.run_once, backoff)

    # life

    def start(self) -> None:
        """Loads what is pending and fires it, on a thread of its own."""
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
        overdue = [*(due_ms for due_ms, _ in self._waiting.values()), *(first[:1] if first else ())]
        return max(0, self._clock.now_ms() - min(overdue)) if overdue else 0

    def run_once(self) -> int:
        """Loads what is new and fires all that is due; returns how many messages that were."""
        before = self.fired
        while not self._stopping.is_set():
            with self._lock:
                if not self._load():
                    break
                self._retry_waiting()
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
                found = self._store.pull(TIMER_TOPIC, 0, self._loaded, _LOADED_AT_ONCE)
            except TopicNotFoundError:
                return True
            self._pending.add(timer for message in found.messages if (timer := self._timer(message.record)) is not None)
            is_last = found.status is PullStatus.NO_NEW_MESSAGE or found.next_offset <= self._loaded
            self._loaded = max(self._loaded, found.next_offset)
            if is_last or self._loaded >= found.max_offset:
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
        elif not self._done.has(due_ms, offset):
            if offset not in self._done.excepted:
                return due_ms, offset, record.size
            self._waiting[offset] = due_ms, record.size
        return None

    def _read_notes(self) -> None:
        """Learns what is done by the last note, if that is not known yet."""
        if self._done is not None:
            return
        done = DoneTimers()
        for message in islice(last_messages(self._store, NOTE_TOPIC, 0), _NOTE_TRIES):
            record = message.record
            try:
                note = TimerNote.decode(record.body)
            except (ValueError, LookupError, TypeError):
                continue
            if note.at == record.queue_offset:
                done = replace(note.done, excepted=note.done.excepted | self._missing(note, record.store_ms))
                break
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

    def _fire(self, timers: _Run) -> None:
        """Appends the copies of messages that are due behind a note; what cannot be read waits."""
        offsets: list[int] = timers.offset.tolist()
        reading = self._read(sorted(offsets))
        due_ms = dict(zip(offsets, timers.due_ms.tolist(), strict=True))
        recalled = self._recalled(set(due_ms.values()))
        now_ms = self._clock.now_ms()
        copies, waiting = [], set(reading.unread)
        for offset in offsets:
            if offset in reading.found:
                try:
                    copy = self._fired(reading.found[offset].record, recalled.get(due_ms[offset], ()), now_ms)
                except ConflictError as error:  # no room for its topic
                    self._again_s = self._clock.monotonic_s() + _AGAIN_S
                    _LOG.warning("message %d of %s waits: %s", offset, TIMER_TOPIC, error)
                    waiting.add(offset)
                else:
                    copies += [] if copy is None else [copy]
        with self._taken(timers, waiting):
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
    def _taken(self, timers: _Run, unread: Collection[int]) -> Iterator[None]:
        """Counts messages as done, or as waiting if they are ``unread``; as before if what is done with them fails."""
        assert self._done is not None
        before = self._pending.copy(), dict(self._waiting), self._done
        for due_ms, offset, size in timers.rows():
            self._waiting.pop(offset, None)
            if offset in unread:
                self._waiting[offset] = due_ms, size
        self._pending.remove(timers.offset.tolist())
        below = min(self._pending.least_offset(), *self._recalls, self._loaded)
        self._done = self._done.extended(
            below, self._loaded, self._pending.first(),
            excepted=self._waiting, latest_ms=int(timers.due_ms.max(initial=-_FAR)),
        )  # fmt: skip
        try:
            yield
        except BaseException:
            self._pending, self._waiting, self._done = before
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
        open_ms = min(self._clock.now_ms(), *waiting, *(first[:1] if first else ()), _FAR)
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
        if self._store.hides(replace(record, topic=topic)):
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


def fired_text(text: bytes, *, store_ms: int, now_ms: int) -> bytes:
    """Returns the property text that RocketMQ gives a delayed message at its time."""
    if _LEVEL_KEPT in decode_properties(text):
        return changed_text(text, (_LEVEL_KEPT, OUT_MS))
    times = {_ENQUEUE_MS: str(store_ms), _DEQUEUE_MS: str(now_ms)}
    return changed_text(text, (REAL_TOPIC, REAL_QUEUE, *times), times)
