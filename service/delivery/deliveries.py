"""Deliveries of one store's messages to groups, acknowledged one by one.

A message is given to whoever asks for the group, and is invisible to the others for a time. Acknowledged, it is done.
Given back, or when the time is over, it is given again, and after ``max_attempts`` it becomes a dead letter. All of it
is at least once.

How far a group has come in a queue is its committed offset (:class:`ConsumerGroups`), so lag, resets and tools see the
same; what is done, given and refused above it is noted in ``deliveries.json`` (:class:`DeliveryStates`). Both are
written about once a second, and at the end. Killed in between: what was acknowledged since is delivered again, and a
message that was given since counts as never given.

A dead letter is appended before its message is taken for done, with a number that is the message's own. Killed in
between: the message is given or given up again, and the log has its dead letter once. A volume that was restored in
between looks into the archive for dead letters of messages that are older than itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from tierlog.service.delivery.copies import CopiedMessages
from tierlog.service.delivery.group_topics import (
    OldDeadLetters,
    back_off_ms,
    dead_letter_topic,
    origin_topic,
    properties_of_dead_letter,
    retry_topic,
)
from tierlog.service.delivery.handles import HandleFields, handle_fields
from tierlog.service.delivery.queue_deliveries import Found, Given, QueueDeliveries
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.backoff import Backoff, RepeatedTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    FollowedError,
    InFlightError,
    InvalidHandleError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.store_state import QueueDeliveryState
from tierlog.tiering.hot.consumer_groups import GroupPosition, validate_group
from tierlog.tiering.message.batch import ANY_QUEUE, validate_topic
from tierlog.tiering.message.stored_message import StoredMessage

#: Acknowledged longer ago, a message is not delivered again after a kill.
SAVE_INTERVAL_S = 1.0
_JOIN_S = 3.0
_LOG = logging.getLogger("tierlog")
#: Messages of all queues that a group may have open.
MOST_OPEN_OF_GROUP = 32_768
MAX_RECEIVE = 1_024
MAX_INVISIBLE_MS = 12 * 3_600_000
MAX_REASON_CHARACTERS = 256
#: Answers of one group that are remembered in case they did not arrive.
_MOST_ANSWERS = 1_024
#: Bytes of messages in one answer, about.
_MOST_BYTES = 4 << 20
#: How often one look at a queue goes on behind messages that are not for it.
_MOST_LOOKS = 16
#: A message that cannot be read, or become a dead letter, is left alone for so long.
_PAUSE_MS = 10_000
_SOMEWHERE = GroupPosition(0)
_SHARDING_KEY = SHARDING_KEY.encode() + b"\x01"
#: The producer of dead letters, to those who look at records.
_PRODUCER = "dead-letters"

#: Topic and queue id.
_Place = tuple[str, int]


@dataclass(frozen=True)
class Delivery:
    """A message given to a group, which nobody else of it gets until then."""

    message: StoredMessage
    handle: str
    attempt: int
    """1 for the first."""
    invisible_until_ms: int


class DeliveryCounts(NamedTuple):
    """What was delivered since the store was opened, and what is open now."""

    first: int = 0
    """Messages delivered for the first time."""
    again: int = 0
    dead_letters: int = 0
    open: int = 0


@dataclass(slots=True)
class _Queue:
    """One queue of a group."""

    place: _Place
    deliveries: QueueDeliveries
    position: GroupPosition
    """Where the group's committed offset was seen last."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by who reads new messages, so that the next one goes on behind them."""


class _Group:
    """What one group has; everything in it is touched under its lock, apart from reads of the store."""

    def __init__(self, name: str, max_attempts: int, news: threading.Event) -> None:
        self.name = name
        self._news = news
        self.max_attempts = max_attempts
        self.lock = threading.Lock()
        self.queues: dict[_Place, _Queue] = {}
        self.answers: OrderedDict[str, list[HandleFields]] = OrderedDict()
        self.turn = 0
        self.old_letters = OldDeadLetters(name)
        self.is_dirty = False
        self.was_set_back = False

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Holds the lock for a change, which is noted the next time."""
        with self.lock:
            if not self.is_dirty:
                self.is_dirty = True
                self._news.set()
            yield

    def open_count(self) -> int:
        return sum(len(queue.deliveries.open) for queue in self.queues.values())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one call of :meth:`Deliveries.receive` wants."""

    topic: str
    until_ms: int
    now_ms: int
    tag: str | None
    in_order: bool


class Deliveries:
    """The deliveries of one open store. Thread safe; there is one of these for a store, which all doors share."""

    def __init__(self, store: Store, clock: Clock, randomness: Randomness, max_attempts: int = 16) -> None:
        """``max_attempts`` holds for groups that do not say otherwise."""
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._max_attempts = max_attempts
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._is_closed = False
        self._counted = DeliveryCounts()
        self._is_started = False
        self._stopping, self._news = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Has what changes written within about a second, on a thread that begins with the first group.

        Without it only :meth:`save` and :meth:`close` write.
        """
        self._is_started = True

    def _save_loop(self) -> None:
        backoff = Backoff(self._clock, self._randomness, first_s=1, most_s=30)
        task = RepeatedTask("saving deliveries", self.save, backoff)
        while not self._stopping.is_set():
            self._news.wait()
            self._clock.wait(self._stopping, SAVE_INTERVAL_S)
            self._news.clear()
            with contextlib.suppress(ClosedError, ReadOnlyError):
                task.run_once()
            if self._is_any_dirty():  # what could not be written is tried again
                self._news.set()

    def _is_any_dirty(self) -> bool:
        with self._lock:
            return any(group.is_dirty for group in self._groups.values())

    # giving

    def receive(
        self,
        group: str,
        topic: str,
        queue_id: int = ANY_QUEUE,
        *,
        limit: int,
        invisible_ms: int,
        tag: str | None = None,
        fifo: bool = False,
        attempt_id: str | None = None,
        max_attempts: int | None = None,
        from_latest: bool = False,
    ) -> list[Delivery]:
        """Gives up to ``limit`` messages for ``invisible_ms``; none if there are none. Never waits for messages.

        Those whose time is over come first, the oldest of a queue first, then new ones, of all queues of the topic or
        of one; what consumers of the group sent back to its retry topic comes with it. ``fifo``: of the messages of one
        message group (property ``__SHARDINGKEY``) in a queue, the next only when the last is done. The consumers of a
        group use one ``tag`` expression: what it does not match is done. A call with the ``attempt_id`` of an earlier
        one, whose answer did not arrive, gives the same messages again as far as they are not done.

        A group without a committed offset of the topic begins at the first message, or with ``from_latest`` at the end.
        Raises :class:`TopicNotFoundError`, :class:`InvalidRequestError`, :class:`InFlightError` if the group has so
        many messages open that it gets no new one, :class:`ReadOnlyError`, and what a pull raises.
        """
        validate_group(group)
        validate_topic(topic)
        if not 1 <= limit <= MAX_RECEIVE:
            raise InvalidRequestError(f"a limit of {limit} is not in 1 to {MAX_RECEIVE}")
        _check_invisible(invisible_ms, least=1)
        if max_attempts is not None and max_attempts < 1:
            raise InvalidRequestError(f"a message is delivered once at least, not {max_attempts} times")
        self._check_writable()
        now_ms = self._clock.now_ms()
        asked = _Asked(topic, now_ms + invisible_ms, now_ms, tag, fifo)
        known = self._group(group)
        with known.changed():
            known.max_attempts = max_attempts or self._max_attempts
            known.turn += 1
            places = self._places(group, topic, queue_id, known.turn)
            begins = self._load(known, places, topic, from_latest=from_latest)
        if begins or known.was_set_back:
            # killed later, the group would begin at another end, or what was done before it was set back would be done
            self._save([known])
        key = None if attempt_id is None else f"{topic}/{queue_id}/{attempt_id}"
        found = [] if key is None else self._again(known, key, asked, limit)
        if not found:
            found = self._from_queues(known, places, asked, limit)
        self._count(first=sum(one.attempt == 1 for one in found), again=sum(one.attempt > 1 for one in found))
        if found:
            self._store.wake(by_ms=asked.until_ms)
        if key is not None:
            with known.lock:
                known.answers[key] = [handle_fields(one.handle) for one in found]
                known.answers.move_to_end(key)
                while len(known.answers) > _MOST_ANSWERS:
                    known.answers.popitem(last=False)
        return found

    def _places(self, group: str, topic: str, queue_id: int, first: int = 0) -> list[_Place]:
        """Returns the queues to look at: the retries, then those of the topic, from the ``first`` on."""
        count = self._queues_of(topic)
        if queue_id != ANY_QUEUE and not 0 <= queue_id < count:
            raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}")
        own = [queue_id] if queue_id != ANY_QUEUE else [(first + step) % count for step in range(count)]
        retries = retry_topic(group)
        sent_back = range(self._store.queues_of(retries)) if topic != retries and self._exists(retries) else ()
        return [(retries, number) for number in sent_back] + [(topic, number) for number in own]

    def _queues_of(self, topic: str) -> int:
        self._store.next_offset(topic, 0)  # or there is no such topic
        return self._store.queues_of(topic)

    def _exists(self, topic: str) -> bool:
        try:
            self._store.next_offset(topic, 0)
        except TopicNotFoundError:
            return False
        return True

    def _from_queues(self, group: _Group, places: Sequence[_Place], asked: _Asked, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        failure: StoreError | None = None
        found_bytes = 0
        for place in places:
            queue = group.queues[place]
            try:
                for take in (self._due, self._new):
                    while len(found) < limit and found_bytes < _MOST_BYTES:
                        given = take(group, queue, asked, limit - len(found))
                        if given is None:
                            break
                        found += given
                        found_bytes += sum(one.message.shown_bytes for one in given)
            except StoreError as error:  # of what was given already nothing is lost
                failure = failure or error
        if failure is not None and not found:
            raise failure
        return found

    def _due(self, group: _Group, queue: _Queue, asked: _Asked, limit: int) -> list[Delivery] | None:
        """Gives messages again, as far as they are still there; None if none was due."""
        with group.changed():
            mark = _asker(group.name, queue.place, asked.topic)
            given = queue.deliveries.take_due(asked.now_ms, asked.until_ms, limit, topic=mark, in_order=asked.in_order)
        if not given:
            return None
        return self._read_given(group, queue, given, asked.until_ms)

    def _read_given(self, group: _Group, queue: _Queue, given: Sequence[Given], until_ms: int) -> list[Delivery]:
        try:
            messages, read_to = self._read(queue.place, [one.offset for one in given])
        except BaseException:  # also an exit: who was given what nobody got would keep it from the others
            with group.changed():
                queue.deliveries.put_back(given, until_ms)
                # the first could not be read: the others need not wait for it
                again_ms = self._clock.now_ms() + _PAUSE_MS
                queue.deliveries.postpone(given[0].offset, again_ms)
            self._store.wake(by_ms=again_ms)
            raise
        found: list[Delivery] = []
        for one in given:
            message = messages.get(one.offset)
            if one.offset >= read_to:
                with group.changed():
                    queue.deliveries.put_back([one], until_ms)
            elif message is None:  # expired, erased or lost since
                with group.changed():
                    queue.deliveries.done(one.offset)
            else:
                found += self._delivered(group, queue, one, message, until_ms)
        return found

    def _read(self, place: _Place, offsets: Sequence[int]) -> tuple[dict[int, StoredMessage], int]:
        """Returns the messages at rising offsets of a queue that are there, and how far was looked: less far than asked
        where there are many bytes, or where the next message cannot be read."""
        found: dict[int, StoredMessage] = {}
        found_bytes = 0
        for _, run in groupby(enumerate(offsets), key=lambda pair: pair[1] - pair[0]):
            wanted = [offset for _, offset in run]
            at, end = wanted[0], wanted[-1] + 1
            while at < end:
                if found_bytes >= _MOST_BYTES:
                    return found, at
                try:
                    result = self._store.pull(*place, at, end - at)
                except StoreError:
                    if not found:
                        raise
                    return found, at
                found |= {one.record.queue_offset: one for one in result.messages}
                found_bytes += sum(one.shown_bytes for one in result.messages)
                if result.next_offset <= at:
                    break
                at = result.next_offset
        return found, offsets[-1] + 1

    def _delivered(
        self, group: _Group, queue: _Queue, given: Given, message: StoredMessage, until_ms: int
    ) -> Iterator[Delivery]:
        """Gives a message that was read, or makes a dead letter of it if it was given too often."""
        if given.attempt > group.max_attempts:
            self._give_up(group, queue, given.offset, message)
            return
        fields = HandleFields(group.name, *queue.place, given.offset, given.attempt, until_ms)
        yield Delivery(message, fields.text, given.attempt, until_ms)

    def _new(self, group: _Group, queue: _Queue, asked: _Asked, limit: int) -> list[Delivery] | None:
        """Gives messages that nobody had; None if there are none, or none that may be given."""
        is_retry = queue.place[0] == retry_topic(group.name)
        mark = _asker(group.name, queue.place, asked.topic)
        with queue.reading:
            for _ in range(_MOST_LOOKS):
                with group.lock:
                    state = queue.deliveries
                    start, epoch = state.next, state.epoch
                    room = min(state.room, MOST_OPEN_OF_GROUP - group.open_count())
                if room <= 0:
                    self._refuse_more(group, queue, start)
                result = self._store.pull(*queue.place, start, min(limit, room), None if is_retry else asked.tag)
                seen = [_found_of(one.record, is_retry=is_retry) for one in result.messages]
                with group.changed():
                    if state.epoch != epoch:
                        continue  # set to another place meanwhile
                    if result.status is PullStatus.OFFSET_TOO_LARGE:
                        state.cut(result.next_offset)
                        return None
                    given = state.take_new(
                        seen, result.next_offset, asked.until_ms, limit=limit, topic=mark, in_order=asked.in_order
                    )
                    is_over = state.next == start
                if given:
                    break
                if is_over or result.status is PullStatus.NO_NEW_MESSAGE:
                    return None
            else:
                return None
        messages = {one.record.queue_offset: one for one in result.messages}
        found: list[Delivery] = []
        for one in given:
            found += self._delivered(group, queue, one, messages[one.offset], asked.until_ms)
        return found

    def _refuse_more(self, group: _Group, queue: _Queue, start: int) -> None:
        if self._store.next_offset(*queue.place) > start:
            topic, queue_id = queue.place
            raise InFlightError(
                f"group {group.name!r} has {group.open_count()} messages open, "
                f"{len(queue.deliveries.open)} of them of {topic}/{queue_id}",
                hint="acknowledge what was delivered; then there is more",
            )

    def _again(self, group: _Group, key: str, asked: _Asked, limit: int) -> list[Delivery]:
        """Gives what an earlier call of the same attempt gave, as far as it is open and nobody else's since."""
        found: list[Delivery] = []
        with group.changed():
            still: dict[_Place, list[Given]] = {}
            for fields in group.answers.get(key, ())[:limit]:
                place = fields.topic, fields.queue_id
                with contextlib.suppress(InvalidHandleError):
                    state = group.queues[place].deliveries
                    state.check(fields.offset, fields.attempt, fields.invisible_until_ms)
                    state.give_again(fields.offset, asked.until_ms)
                    still.setdefault(place, []).append(Given(fields.offset, fields.attempt))
        for place, given in still.items():
            found += self._read_given(group, group.queues[place], sorted(given), asked.until_ms)
        return found

    # what consumers say

    def acknowledge(self, handle: str) -> None:
        """Takes a message for done; :class:`InvalidHandleError` unless this is its last delivery, and it is open."""
        group, queue, fields = self._found(handle)
        with group.changed():
            queue.deliveries.acknowledge(fields.offset, fields.attempt, fields.invisible_until_ms)
        self._wake_for(queue)

    def extend(self, handle: str, invisible_ms: int) -> str:
        """Has a delivery last for this time from now on; returns its new handle. 0 gives the message back at once."""
        _check_invisible(invisible_ms, least=0)
        group, queue, fields = self._found(handle)
        until_ms = self._clock.now_ms() + invisible_ms
        with group.changed():
            queue.deliveries.extend(fields.offset, fields.attempt, fields.invisible_until_ms, until_ms)
        self._store.wake(by_ms=until_ms)
        return replace(fields, invisible_until_ms=until_ms).text

    def nack(self, handle: str, *, delay_ms: int | None = None, reason: str = "") -> None:
        """Gives a message back that was not done; it is delivered again after ``delay_ms``, or a time that grows.

        One that was delivered as often as it may be becomes a dead letter at once. ``reason`` is kept with it.
        """
        if delay_ms is not None:
            _check_invisible(delay_ms, least=0)
        group, queue, fields = self._found(handle)
        with group.changed():
            one = queue.deliveries.check(fields.offset, fields.attempt, fields.invisible_until_ms)
            one.reason = reason[:MAX_REASON_CHARACTERS]
            is_last = fields.attempt >= group.max_attempts
            again_ms = self._clock.now_ms() + (back_off_ms(fields.attempt) if delay_ms is None else delay_ms)
            if not is_last:
                queue.deliveries.postpone(fields.offset, again_ms)
        if is_last:
            self.forward_to_dead_letters(handle, reason=reason)
        else:
            self._store.wake(by_ms=again_ms)

    def forward_to_dead_letters(self, handle: str, *, reason: str = "") -> None:
        """Writes a message into the group's dead-letter topic, durably, and takes it for done then."""
        group, queue, fields = self._found(handle)
        with group.changed():
            one = queue.deliveries.check(fields.offset, fields.attempt, fields.invisible_until_ms)
            one.reason = reason[:MAX_REASON_CHARACTERS] or one.reason
        message = self._read(queue.place, [fields.offset])[0].get(fields.offset)
        if message is not None:
            self._append_dead_letter(group, message.record, one.reason)
        with group.changed():
            queue.deliveries.done(fields.offset)
        self._wake_for(queue)

    def _found(self, handle: str) -> tuple[_Group, _Queue, HandleFields]:
        fields = handle_fields(handle)
        self._check_writable()
        group = self._known(fields.group)
        queue = group.queues.get((fields.topic, fields.queue_id)) if group else None
        if group is None or queue is None:
            raise InvalidHandleError("the message is not delivered", hint="receive again")
        with group.changed():
            self._follow(group, queue)
        return group, queue, fields

    def completed(self, fields: HandleFields) -> HandleFields:
        """Returns a delivery with its attempt, for protocols whose clients know its place and its end alone.

        Raises :class:`InvalidHandleError` if nothing is delivered there until then.
        """
        group, queue, _ = self._found(fields.text)
        with group.lock:
            one = queue.deliveries.open.get(fields.offset)
            if one is None or one.visible_ms != fields.invisible_until_ms or one.attempt == 0:
                raise InvalidHandleError("the message is done, or was given to somebody else since")
            return replace(fields, attempt=one.attempt)

    def _wake_for(self, queue: _Queue) -> None:
        """Tells who waits, where a message was perhaps held back until now."""
        if queue.deliveries.in_order or queue.deliveries.room < 2:
            self._store.wake()

    # dead letters

    def _give_up(self, group: _Group, queue: _Queue, offset: int, message: StoredMessage) -> None:
        """Makes a dead letter of a message that was delivered too often; where that fails it is tried again."""
        with group.changed():
            one = queue.deliveries.open.get(offset)
            reason = one.reason if one is not None else ""
        try:
            self._append_dead_letter(group, message.record, reason)
        except StoreError as error:
            _LOG.warning("a message of %s/%d cannot become a dead letter of %s: %s", *queue.place, group.name, error)
            again_ms = self._clock.now_ms() + _PAUSE_MS
            with group.changed():
                queue.deliveries.postpone(offset, again_ms)
            self._store.wake(by_ms=again_ms)
            return
        with group.changed():
            queue.deliveries.done(offset)

    def _append_dead_letter(self, group: _Group, record: Record, reason: str) -> None:
        topic = dead_letter_topic(group.name)
        self._store.make_topic(topic, 1, may_make=True)
        key = IdempotencyKey(_PRODUCER, record.physical_offset, group.name)
        if group.old_letters.have(self._store, record, key.origin):
            return
        letter = CopiedMessages()
        letter.add(
            topic, 0, record.body, properties_of_dead_letter(record, reason), flag=record.flag,
            sys_flag=record.sys_flag, born_ms=record.born_ms, born_host=record.born_host,
            reconsume_times=record.reconsume_times + 1,
        )  # fmt: skip
        self._store.append_unless_known(letter, topic, key)
        self._count(dead_letters=1)

    # the rest

    def watch(self, group: str, topic: str, notify: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Calls ``notify`` once inside the context, on another thread, when there may be something to receive.

        New messages are noticed at once, and so are deliveries whose time is over.
        """

        def has_something(place: _Place) -> bool:
            known = self._known(group)
            if known is None:
                return True
            with known.lock:
                queue = known.queues.get(place)
                if queue is None or queue.position != self._position(known, place):
                    return True  # nobody has looked there
                state = queue.deliveries
                if state.is_due(self._clock.now_ms(), _asker(group, place, topic)):
                    return True
                has_room = state.room > 0 and known.open_count() < MOST_OPEN_OF_GROUP
                return has_room and self._store.next_offset(*place) > state.next

        def arrived() -> bool:
            try:
                return any(map(has_something, self._places(group, topic, ANY_QUEUE)))
            except StoreError:  # whoever receives gets it
                return True

        def due_ms() -> int | None:
            now_ms = self._clock.now_ms()
            try:
                places, known = self._places(group, topic, ANY_QUEUE), self._known(group)
            except StoreError:  # as above
                return None
            if known is None:
                return None
            with known.lock:
                states = [known.queues[place].deliveries for place in places if place in known.queues]
                times_ms = [state.next_due_ms(now_ms) for state in states]
            return min((each for each in times_ms if each is not None), default=None)

        return self._store.watch_until(arrived, notify, due_ms)

    def counted(self) -> DeliveryCounts:
        """Returns what was delivered and given up since the store was opened, and how many messages are open."""
        with self._lock:
            counted, groups = self._counted, list(self._groups.values())
        found = 0
        for group in groups:
            with group.lock:
                found += group.open_count()
        return counted._replace(open=found)

    def _count(self, *, first: int = 0, again: int = 0, dead_letters: int = 0) -> None:
        with self._lock:
            before = self._counted
            self._counted = DeliveryCounts(
                before.first + first, before.again + again, before.dead_letters + dead_letters
            )

    def topics(self, group: str) -> set[str]:
        """Returns the topics that a group consumes, its own ones among them, also those it has begun with just now."""
        known = self._known(group)
        if known is None:
            return self._store.groups.topics(group)
        with known.lock:
            begun = {topic for topic, _ in known.queues}
        return begun | self._store.groups.topics(group)

    def save(self) -> None:
        """Commits how far each group has come, and notes what it has above that; forgets groups that were removed."""
        with self._lock:
            changed = [group for group in self._groups.values() if group.is_dirty]
        self._save(changed)
        with self._lock:
            self._groups = {name: group for name, group in self._groups.items() if self._is_there(name)}

    def _save(self, groups: Sequence[_Group]) -> None:
        failure: StoreError | None = None
        noted: dict[str, list[QueueDeliveryState]] = {}
        with self._saving:
            try:
                for group in groups:
                    try:
                        noted[group.name] = self._commit(group)
                    except StoreError as error:  # that of one group is not that of the others
                        failure = failure or error
                        group.is_dirty = True
                self._store.delivery_states.save(noted)
            except BaseException:  # also an exit: what was not noted is still to be noted
                for group in groups:
                    group.is_dirty = True
                raise
        if failure is not None:
            raise failure

    def _commit(self, group: _Group) -> list[QueueDeliveryState]:
        """Commits how far a group has come, and returns what it has above that; nothing of one that was removed."""
        if not self._is_there(group.name):
            return []
        with group.lock:
            group.is_dirty = group.was_set_back = False
            queues = list(group.queues.values())
            for queue in queues:
                self._follow(group, queue)
            moves = {
                queue.place: (queue.position, queue.deliveries.committed)
                for queue in queues
                if queue.deliveries.committed != queue.position.offset
            }
            states = [(queue, queue.deliveries.epoch, queue.deliveries.state(*queue.place)) for queue in queues]
        if moves:
            self._store.groups.advance(group.name, moves)
        with group.lock:
            for place, (before, offset) in moves.items():
                queue = group.queues[place]
                if queue.position == before:
                    queue.position = before._replace(offset=offset)
                self._follow(group, queue)
            # of a queue that was set to another place meanwhile, nothing is noted
            return [state for queue, epoch, state in states if state.opened and queue.deliveries.epoch == epoch]

    def close(self) -> None:
        """Writes what is known, so that a store that is opened again delivers nothing that is done. Idempotent."""
        self._stopping.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with contextlib.suppress(ReadOnlyError):  # it was said before that nothing can be written
            self.save()

    def _group(self, name: str) -> _Group:
        """Returns a group, which is made if the store does not have it, or not any more."""
        if not self._is_there(name):
            with self._lock:
                self._groups.pop(name, None)
            self._store.groups.advance(name, {})  # so many groups as the store may have
            self._store.delivery_states.save({name: ()})
        found = self._known(name, always=True)
        assert found is not None
        return found

    def _known(self, name: str, *, always: bool = False) -> _Group | None:
        """Returns a group, as it was noted if nobody has asked for it yet; None for one without deliveries."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("deliveries are closed")
            group = self._groups.get(name)
            if group is None and (always or self._store.delivery_states.get(name)):
                group = self._groups[name] = _Group(name, self._max_attempts, self._news)
                if self._is_started and self._thread is None:
                    self._thread = threading.Thread(target=self._save_loop, name="tierlog-deliveries", daemon=True)
                    self._thread.start()
                for state in self._store.delivery_states.get(name):
                    place = state.topic, state.queue_id
                    position = self._position(group, place)
                    if position.offset is not None and position.offset >= state.committed:
                        group.queues[place] = _Queue(place, QueueDeliveries(position.offset, state), position)
        return group

    def _check_writable(self) -> None:
        """Refuses where nothing can be noted: another volume may deliver the same by now."""
        reason = self._store.read_only_reason
        if reason is not None:
            raise ReadOnlyError(f"the store is read-only: {reason}")
        if self._store.is_followed:
            raise FollowedError(
                f"store {self._store.store_id} follows a RocketMQ broker, where its groups consume",
                hint="consume at the broker; here a queue is pulled by offset",
            )

    def _is_there(self, name: str) -> bool:
        try:
            self._store.groups.committed(name)
        except NotFoundError:
            return False
        return True

    def _position(self, group: _Group, place: _Place) -> GroupPosition:
        return self._store.groups.position(group.name, *place)

    def _load(self, group: _Group, places: Sequence[_Place], topic: str, *, from_latest: bool) -> bool:
        """Has the queues of a topic, and its retries, follow the group's committed offsets. Under the group's lock.

        Returns whether the group begins with the topic now, and at its end.
        """
        every = {*places, *((topic, number) for number in range(self._store.queues_of(topic)))}
        new = {}
        for place in every:
            queue = group.queues.get(place)
            if queue is None:
                new[place] = self._position(group, place)
            else:
                self._follow(group, queue)
        # a queue that the topic gets later is read from its first message on
        own = [place for place in every if place[0] == topic]
        begins = from_latest and all(new.get(place, _SOMEWHERE).offset is None for place in own)
        for place, position in new.items():
            start = position.offset or 0
            if begins and place[0] == topic:
                start = self._store.next_offset(*place, catch_up=True)
            group.queues[place] = _Queue(place, QueueDeliveries(start), position)
        return begins

    def _follow(self, group: _Group, queue: _Queue) -> None:
        """Takes over where somebody else has set the group, by a reset or a commit of its own."""
        position = self._position(group, queue.place)
        if position == queue.position:
            return
        before, queue.position = queue.position, position
        is_gone = position.offset is None and before.offset is not None
        if is_gone or position.resets != before.resets or (position.offset or 0) < (before.offset or 0):
            queue.deliveries.restart(position.offset or 0)
            group.was_set_back = group.is_dirty = True
        else:
            queue.deliveries.skip_to(position.offset or 0)


def _check_invisible(invisible_ms: int, *, least: int) -> None:
    if not least <= invisible_ms <= MAX_INVISIBLE_MS:
        raise InvalidRequestError(f"{invisible_ms} ms is not in {least} to {MAX_INVISIBLE_MS} ms")


def _mark(text: str) -> int:
    """Returns the number that stands for a text; never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") or 1


def _asker(group: str, place: _Place, topic: str) -> int | None:
    """Returns the number of the topic whose consumers ask for messages of a queue; 0 where all are for them.

    None, for all topics, to those who ask for the group's retries themselves.
    """
    if place[0] != retry_topic(group):
        return 0
    return None if topic == place[0] else _mark(topic)


def _found_of(record: Record, *, is_retry: bool) -> Found:
    topic = _mark(origin_topic(record)) if is_retry else 0
    return Found(record.queue_offset, _line(record), topic, record.reconsume_times)


def _line(record: Record) -> int:
    """Returns the number that stands for a message's message group, 0 if it has none."""
    if _SHARDING_KEY not in record.properties_text:  # most have none, and taking properties apart takes longer
        return 0
    group = record.properties.get(SHARDING_KEY)
    return _mark(group) if group else 0
