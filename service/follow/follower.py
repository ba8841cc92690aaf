"""The follower of one broker: a thread that has the store's log be the broker's, whatever happens to either.

::

    connect -> compare the ends of both logs -> read, append, flush, report -> … lost: once more, later
                 |           |
                 |           the broker's is another one: what differs is dropped, or it is for an operator
                 the broker has removed what comes next: archive all, declare a gap, go on behind it

Killed anywhere, the store is what :class:`FollowedStore` says of a kill, and the next start compares again. Nothing of
a follower outlives its process but the store.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Generic, TypeVar

from tierlog.service.config.follow import FollowSettings
from tierlog.service.engine.followed.store import CopiedGroup, CopiedTopic, FollowedStore
from tierlog.service.engine.store import Store
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.service.follow.followed_directory import FollowedDirectory
from tierlog.service.follow.upstream import BrokerLink, BrokerNow, Upstream
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    CorruptionError,
    DivergedError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    StoreMismatchError,
)
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.format.record import BLANK
from tierlog.tiering.hot.topics import validate_foreign_topic
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tierlog.tiering.rocketmq.broker_files import BrokerState
from tierlog.tiering.rocketmq.log_source import (
    PATIENCE,
    LogBounds,
    LogSource,
    NoLogYetError,
    SourceLostError,
    behind_hole,
)
from tierlog.tiering.rocketmq.remoting import BrokerFacts

_LOG = logging.getLogger("tierlog")
#: Topics of a broker's own, whose messages come again as ordinary ones, or are no messages.
SYSTEM_TOPICS = (HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)
_WAIT_S = 1.0
_LOOK_EVERY_S, _LOOK_SELDOM_S = 3.0, 10.0
_LOOK_AGAIN_S = 10.0
#: How long the first answers of a connection are waited for before the log is read.
_FIRST_ANSWER_S = 1.0
#: Ends of logs are compared over so much, then over 16 times as much, up to a segment.
_FIRST_TAIL = 64 << 10
_MORE_TAIL = 16
#: Above this part of its disk a broker removes segments of any age.
_FORCED_REMOVAL = 0.85
_HOUR_MS = 3_600_000
_STOP_S = 6.0
_JITTER_BYTES = 2


T = TypeVar("T")


class _Question(Generic[T]):
    """Asks the broker something beside its log, on another thread, once at a time: nobody waits for a slow answer."""

    def __init__(self, ask: Callable[[], T], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._pool = WorkerPool(1, "tierlog-ask-broker")
        self._asked: Future[T] | None = None
        self.took_s = 0.0
        """How long the last answer took."""

    def ask(self) -> None:
        """Asks, unless an answer is still to come."""
        if self._asked is None:
            self._asked = self._pool.submit(self._timed)

    def _timed(self) -> T:
        begun_s = self._clock.monotonic_s()
        found = self._ask()
        self.took_s = self._clock.monotonic_s() - begun_s
        return found

    def answer(self, wait_s: float = 0.0) -> T | None:
        """Returns what was answered, once, or raises it; None while nothing was."""
        asked = self._asked
        if asked is None:
            return None
        if wait_s:
            wait_for([asked], wait_s)
        if not asked.done():
            return None
        self._asked = None
        return asked.result()


class _Questions:
    """What is asked over one connection."""

    def __init__(self, connection: BrokerLink, clock: Clock) -> None:
        self.now = _Question(connection.now, clock)
        self.state = _Question(connection.state, clock)


@dataclass(slots=True)
class _Unflushed:
    """What was appended and is not durable."""

    bytes: int = 0
    since_s: float = 0.0


class Follower:
    """Follows one broker. :meth:`open`, then :meth:`start`; :meth:`stop` ends it and closes the store."""

    def __init__(
        self,
        upstream: Upstream,
        place: FollowedDirectory,
        *,
        changed: Callable[[FollowedBroker], None] = lambda broker: None,
    ) -> None:
        """``changed`` is called when the store was opened, is going to be closed, or takes messages from now on."""
        self.broker = FollowedBroker(upstream.name, place.store_id)
        self._upstream = upstream
        self._place = place
        self._settings: FollowSettings = place.settings.follow
        self._clock = place.clock
        self._changed = changed
        self._segment_bytes = 0
        self._restores = False
        self._store: FollowedStore | None = None
        self._promoted: Store | None = None
        self._connection: BrokerLink | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tierlog-follow-{place.store_id}", daemon=True)
        self._unflushed = _Unflushed()
        self._failures = 0
        self._look_s = self._copy_s = self._came_s = self._clock.monotonic_s()
        self._gone_s: float | None = None
        #: What the broker told of itself last.
        self._told: tuple[BrokerFacts | None, BrokerNow] | None = None
        #: When the broker was looked at last, and lag and margin then.
        self._looked: tuple[int, int, int | None] | None = None
        #: When the broker's log was first seen to end at or above an offset, and that offset: what lags since when.
        self._seen: deque[tuple[int, int]] = deque()
        #: Topics and groups of the broker that cannot be copied, which is said once.
        self._odd: set[str] = set()

    # its life

    def open(self, *, restore: bool = False, promote_now: bool = False) -> None:
        """Opens the store; a new one needs the broker, whose segments it takes.

        Where the broker has no log yet, the store is made when it has one. ``promote_now`` makes one that follows, or
        that ``restore`` makes, take messages at once, whatever the broker had that is not here. Raises what
        :meth:`Upstream.connect` and :meth:`FollowedStore.open` raise, and :class:`InvalidRequestError` for one that is
        to be promoted while its broker is there.
        """
        found = self._place.identity()
        if found is not None and found.broker is not None:
            self.broker.cluster, self.broker.address = found.broker
            self._upstream.remember(found.broker[1])
        if found is not None and not found.followed and (self._settings.promote or promote_now):
            self._open_promoted(found.followed_below)
            return
        if promote_now:
            self._check_promotable(is_there=found is not None or restore)
            self._open(None if found is None else found.segment_bytes, 0, restore=restore)
            self._promote()
            return
        if found is not None and not restore:
            self._open(found.segment_bytes, 0)
            return
        if self._place.cold_url is None:
            raise InvalidRequestError(
                "a follower needs an archive: without one, what the broker removes would be lost here as well",
                hint="name it with --cold URL",
            )
        self._restores = restore
        try:
            self._make()
        except NoLogYetError as error:
            self._note(FollowState.WAITING, error)
        except NotFoundError as error:  # later a broker may be away; now its name is wrong
            raise InvalidRequestError(error.message, path=error.path, hint=error.hint) from error

    def _make(self) -> None:
        """Makes the store of a broker that is reached."""
        connection = self._upstream.connect()
        try:
            bounds, size = connection.source.bounds(), connection.source.segment_bytes
        finally:
            connection.close()
        self._open(size, bounds.min_offset - bounds.min_offset % size, restore=self._restores)

    def _check_promotable(self, *, is_there: bool) -> None:
        if not is_there:
            raise InvalidRequestError(
                "there is no store yet that could take messages in the broker's place", hint="follow the broker first"
            )
        if not self._settings.nameservers:
            raise InvalidRequestError(
                "whether the broker is gone is asked where it answers, which no nameserver says",
                hint="give --namesrv HOST:PORT with --promote-now",
            )
        if self._upstream.is_back():
            raise InvalidRequestError(
                f"broker {self.broker.name} is there, and takes messages itself",
                hint="stop it first; --promote, without -now, waits until it is gone",
            )

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Has the thread end soon; returns at once."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        """Ends the thread and closes the store, within 10 s whatever hangs. Idempotent."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        self.broker.state = FollowState.STOPPED
        self._close()
        if self._promoted is not None:
            self._promoted.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._reopen()
                if self._promoted is None:
                    self._follow()
            except DivergedError as error:
                self._note(FollowState.DIVERGED, error)
                return
            except (InvalidRequestError, StoreMismatchError) as error:
                self._note(FollowState.REFUSED, error)
            except NoLogYetError as error:
                self._note(FollowState.WAITING, error)
            except StoreError as error:
                if not self._stopping.is_set():
                    self._note(FollowState.CONNECTING, error)
            except Exception as error:  # a thread that ends says nothing to anybody
                _LOG.exception("the follower of broker %s failed", self.broker.name)
                self._note(FollowState.CONNECTING, StoreError(f"{type(error).__name__}: {error}"))
            if self._stopping.is_set():
                return
            self.broker.slaves = self._upstream.slaves
            self._age()
            try:
                self._consider_promotion()
                if self._promoted is not None:
                    self._watch()
                    return
            except StoreError as error:
                self._note(FollowState.CONNECTING, error)
            self._clock.wait(self._stopping, self._pause_s())

    def _pause_s(self) -> float:
        """Returns the time until the next try: doubled with each failure, and no two processes' the same."""
        settings = self._settings
        most_ms = min(settings.max_retry_ms, settings.retry_ms << min(self._failures, 20))
        if settings.promote:
            most_ms = min(most_ms, max(settings.retry_ms, settings.promote_after_ms // 4))
        self._failures += 1
        jitter = int(self._place.randomness.token_hex(_JITTER_BYTES), 16) / (1 << 8 * _JITTER_BYTES)
        return most_ms * (0.5 + jitter / 2) / 1000

    def _note(self, state: FollowState, error: StoreError | None = None) -> None:
        broker = self.broker
        message, hint = (None, None) if error is None else (str(error.message), error.hint)
        if (state, message) != (broker.state, broker.error) and (error is not None or state is not broker.state):
            level = logging.INFO if error is None else logging.WARNING
            _LOG.log(level, "broker %s: %s%s", broker.name, state, f": {error}" if error is not None else "")
        broker.error, broker.hint = message, hint
        broker.state = state

    # the store, open or closed

    def _open(self, segment_bytes: int | None, begin: int, *, restore: bool = False) -> None:
        if self._stopping.is_set():
            raise ClosedError("the follower was stopped")
        store = self._place.open(segment_bytes, begin, restore=restore)
        self._store, self._segment_bytes = store, segment_bytes or 0
        self._unflushed = _Unflushed()
        if self._settings.promote:
            store.store.keep_log(store.keep_delayed)
        store.store.start()
        broker = self.broker
        broker.store, broker.end = store.store, store.end
        self._note_gaps()
        self._changed(broker)

    def _open_promoted(self, followed_below: int) -> None:
        self._promoted = store = self._place.open_promoted()
        store.start()
        self.broker.store, self.broker.end = store, followed_below
        self._note(FollowState.PROMOTED)
        self._changed(self.broker)

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None and self._promoted is None:
            self.broker.store = None
            self._changed(self.broker)
            store.close()

    def _reopen(self) -> None:
        """Opens the store where it is closed, after a change of its directory that was cut off, or a failed disk."""
        if self._promoted is not None:
            return
        if self._store is not None and self._store.store.read_only_reason is not None:
            self._close()
        if self._store is None and self._segment_bytes:
            self._open(self._segment_bytes, 0)
        elif self._store is None:
            self._make()

    @property
    def _opened(self) -> FollowedStore:
        if self._store is None:
            raise ClosedError("the store is closed")
        return self._store

    # one stretch of following

    def _follow(self) -> None:
        self._connection = connection = self._upstream.connect()
        try:
            if self._stopping.is_set():
                return
            broker, source = self.broker, connection.source
            broker.cluster, broker.address = connection.cluster or broker.cluster, connection.address
            broker.slaves = self._upstream.slaves
            if source.segment_bytes != self._segment_bytes:
                raise StoreMismatchError(
                    f"the broker's segments have {source.segment_bytes} bytes now, those of the store "
                    f"{self._segment_bytes}",
                    hint="follow it as another store: --store-id ID with an empty --root",
                )
            if broker.address is not None:
                self._opened.note_broker(broker.cluster, broker.address)
            if not self._settings.system_topics:  # decided before their first record is here
                self._opened.copy_topics([CopiedTopic(name, 1, archive=False) for name in SYSTEM_TOPICS])
            self._seen.clear()
            questions = _Questions(connection, self._clock)
            self._look_s = self._copy_s = self._clock.monotonic_s()
            self._look(connection, questions.now, wait_s=_FIRST_ANSWER_S)
            self._copy(questions.state, wait_s=_FIRST_ANSWER_S)
            rest = self._meet(source)
            self._gone_s = None
            self._measure()
            self._judge()
            try:
                self._read(connection, questions, *rest)
            except CorruptionError:
                self._unflushed = _Unflushed()
                self.broker.end = self._opened.flush()  # what a replica begins at, it acknowledges
                begin = behind_hole(source, self.broker.end)
                if begin is None or not connection.goes_on_at(begin):
                    raise
                self._begin_again(begin, "the broker has lost [{end}, {begin}), and goes on behind zeros")
        finally:
            self._connection = None
            connection.close()

    def _meet(self, source: LogSource) -> tuple[int, bytes]:
        """Has our log be a beginning of the broker's, and its source go on behind it.

        Returns what was read beyond what was compared, and where that lies.
        """
        while True:
            store, bounds = self._opened, source.bounds()
            if store.end < bounds.min_offset:
                self._begin_again(bounds.min_offset, "the broker has removed [{end}, {begin}) before it was here")
                continue
            agreed, position, rest = _compare(source, store, bounds)
            if agreed == store.end:
                return position, rest
            _LOG.warning(
                "broker %s: its log differs from %d on, and ours ends at %d: the rest of ours is dropped",
                self.broker.name, agreed, store.end,
            )  # fmt: skip
            self._close()
            self._place.rewind(self._segment_bytes, agreed)
            self._open(self._segment_bytes, 0)

    def _begin_again(self, begin: int, why: str) -> None:
        """Archives what there is, and lets the log go on at ``begin``.

        Killed in here: the same again at the next start, or the next opening ends it.
        """
        store = self._opened
        gone = why.format(end=store.end, begin=begin)
        self._note(FollowState.GAP, StoreError(gone, hint="it is declared as a gap, which answers name"))
        store.archive_all()  # most of the work, while the store still answers
        self._close()
        self._place.begin_again(self._segment_bytes, begin - begin % self._segment_bytes)
        self._open(self._segment_bytes, 0)

    def _read(self, connection: BrokerLink, questions: _Questions, position: int, rest: bytes) -> None:
        source, settings = connection.source, self._settings
        self._take(position, rest)
        while not self._stopping.is_set():
            unflushed = self._unflushed
            is_waited_for = not unflushed.bytes
            data = source.read(0.0 if unflushed.bytes else _WAIT_S)
            if len(data):
                self._take(source.position(), data)
            now_s = self._clock.monotonic_s()
            is_due = (
                not len(data)
                or unflushed.bytes >= settings.flush_bytes
                or (now_s - unflushed.since_s) * 1000 >= settings.flush_interval_ms
            )
            if unflushed.bytes and is_due:
                self._flush(source)
            if is_due:  # whatever came was taken
                self._failures = 0
            if self._look(connection, questions.now):
                self._judge()
                if is_waited_for and not len(data):
                    self._check_still_there()
                self._opened.publish_below = source.settled()
                if connection.address is not None and self._settings.promote:
                    self._consider_promotion()
                    if self._promoted is not None:
                        return
            self._copy(questions.state)

    def _check_still_there(self) -> None:
        """Raises :class:`SourceLostError` if the broker has removed what comes next: a master then sends nothing for
        ever, and does not say so."""
        least, end = self.broker.live_min_offset, self._opened.end
        if least is not None and least > end:
            raise SourceLostError(f"the broker has removed what lies below {least}, and {end} is wanted")

    def _take(self, position: int, data: memoryview | bytes) -> None:
        """Appends what comes next; what lies between a blank record and the end of its segment is passed over."""
        if not len(data):
            return
        self._came_s = self._clock.monotonic_s()
        if not self._unflushed.bytes:
            self._unflushed.since_s = self._came_s
        self._unflushed.bytes += len(data)
        self._opened.append(position, data)

    def _flush(self, source: LogSource) -> None:
        self._unflushed = _Unflushed()
        store = self._opened
        self.broker.end = store.flush()
        source.report(self.broker.end)
        store.publish_below = source.settled()

    # how far the broker is

    def _look(self, connection: BrokerLink, question: _Question[BrokerNow], *, wait_s: float = 0.0) -> bool:
        """Asks now and then where the broker's log begins and ends, and takes what was answered; whether it was time.

        A broker that does not answer may still send its log.
        """
        now_s = self._clock.monotonic_s()
        is_time = now_s >= self._look_s
        if is_time:
            self._look_s = now_s + pause_s(question.took_s)
            question.ask()
        broker, now = self.broker, None
        try:
            now = question.answer(wait_s)
        except SourceLostError:
            raise
        except StoreError:
            self._look_s = now_s + _LOOK_AGAIN_S
        broker.heard_s = max(broker.heard_s, connection.source.heard_s())
        if now is not None:
            broker.heard_s = now_s
            self._told = connection.facts, now
            broker.live_min_offset, broker.live_max_offset = now.bounds.min_offset, now.bounds.max_offset
        if is_time or now is not None:
            self._measure()
        return is_time

    def _measure(self) -> None:
        """Says how far the store is behind what the broker told last."""
        broker, store = self.broker, self._opened
        self._note_gaps()
        if self._told is not None:
            segment = store.end - store.end % self._segment_bytes
            broker.margin_ms = margin_ms(*self._told, segment, store.last_store_ms, self._clock.now_ms())
        self._measure_lag()
        self._looked = self._clock.now_ms(), self.broker.lag_ms, self.broker.margin_ms

    def _note_gaps(self) -> None:
        store = self._opened
        if store.gap_bytes is not None:  # what was known stays known while the store is opened again
            self.broker.gap_bytes, self.broker.gap_declared_ms = store.gap_bytes, store.gap_declared_ms

    def _age(self) -> None:
        """While the broker is not reached, all may be missing that it could have taken since it was looked at."""
        if self._looked is not None:
            looked_ms, lag_ms, margin = self._looked
            passed_ms = max(0, self._clock.now_ms() - looked_ms)
            self.broker.lag_ms = lag_ms + passed_ms
            self.broker.margin_ms = None if margin is None else max(0, margin - passed_ms)

    def _judge(self) -> None:
        is_behind = self.broker.lag_ms > self._settings.behind_ms
        self._note(FollowState.BEHIND if is_behind else FollowState.FOLLOWING)

    def _measure_lag(self) -> None:
        """The oldest message that is not here was stored behind our last one, and before the broker's end was seen."""
        broker, seen, now_ms = self.broker, self._seen, self._clock.now_ms()
        last_ms, ends_at = self._opened.last_store_ms, broker.live_max_offset or 0
        if not seen or ends_at > seen[-1][1]:
            # of what was there before we looked, only our last message tells how old it may be
            seen.append((last_ms if not seen and last_ms else now_ms, ends_at))
        while seen and seen[0][1] <= broker.end:
            seen.popleft()
        broker.lag_ms = max(0, now_ms - max(seen[0][0], last_ms)) if seen else 0

    # beside the log

    def _copy(self, question: _Question[BrokerState], *, wait_s: float = 0.0) -> None:
        """Asks now and then for topics, groups and offsets, and keeps what was answered; a broker that does not tell
        them now is asked again later."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._copy_s:
            self._copy_s = now_s + self._settings.copy_interval_ms / 1000
            question.ask()
        try:
            state = question.answer(wait_s)
        except StoreError as error:
            _LOG.warning("broker %s: its topics and groups are not copied: %s", self.broker.name, error)
            return
        if state is not None:
            self._keep(state)

    def _keep(self, state: BrokerState) -> None:
        keeps_all = self._settings.system_topics
        self._opened.copy_topics(
            [
                CopiedTopic(topic.name, topic.queue_count, keeps_all or topic.name not in SYSTEM_TOPICS)
                for topic in state.topics
                if self._can_be_kept(topic.name)
            ]
        )
        left_out = self._opened.copy_groups(copied_groups(state), state.delay_offsets)
        for name, error in left_out.items():
            self._say_odd(name, error)
        self.broker.topics = state.topics

    def _can_be_kept(self, topic: str) -> bool:
        try:
            validate_foreign_topic(topic)
        except InvalidRequestError as error:
            self._say_odd(topic, error)
            return False
        return True

    def _say_odd(self, name: str, error: StoreError) -> None:
        if name not in self._odd:
            self._odd.add(name)
            _LOG.warning("broker %s: %r is not copied: %s", self.broker.name, name, error)

    # the broker's end

    def _consider_promotion(self) -> None:
        """Makes the store one that takes messages, once the broker is gone for long enough and its log is here."""
        if not self._settings.promote or self._store is None:
            return
        broker, now_s = self.broker, self._clock.monotonic_s()
        if not self._upstream.is_gone():
            self._gone_s = None
            return
        if self._gone_s is None:
            self._gone_s = now_s
            _LOG.warning("broker %s is gone; the store is promoted if it stays so", broker.name)
        quiet_s = now_s - max(self._gone_s, self._came_s)
        is_known = broker.live_max_offset is not None  # not if it was gone already when this process began
        is_all_here = is_known and self._store.end >= (broker.live_max_offset or 0)
        if is_known and quiet_s * 1000 < self._settings.promote_after_ms:
            return
        if not is_all_here:
            lacks = f"{broker.lag_bytes} bytes of its log are not here"
            if not is_known:
                lacks = "where its log ended is not known"
            raise SourceLostError(
                f"the broker is gone, and {lacks}: the store is not promoted",
                hint="start the broker until all is here, or begin once with --promote-now, which gives up the rest",
            )
        self._promote()

    def _promote(self) -> None:
        """Makes the store one that takes messages.

        Killed before `store.json` says so: the store follows, and the next start decides anew. After it: promoted.
        """
        store, broker = self._opened, self.broker
        store.promote()
        self._promoted, self._store, broker.end = store.store, None, store.end
        self._note(FollowState.PROMOTED)
        _LOG.warning("broker %s is gone: store %s takes messages from now on", broker.name, broker.store_id)
        self._changed(broker)

    def _watch(self) -> None:
        """Looks for a broker that comes back, which would take messages beside the store that was promoted."""
        while not self._clock.wait(self._stopping, _LOOK_AGAIN_S):
            if self._upstream.is_back():
                self._note(
                    FollowState.TWO_WRITERS,
                    StoreError(
                        "the broker is back, and both take messages: stop one of them",
                        hint="docs/adopting_rocketmq.md, a broker that comes back",
                    ),
                )
            else:
                self._note(FollowState.PROMOTED)


def copied_groups(state: BrokerState) -> list[CopiedGroup]:
    """Returns the groups of a broker, each with all its offsets."""
    offsets: dict[str, dict[tuple[str, int], int]] = {group.name: {} for group in state.groups}
    for (topic, group), queues in state.consumer_offsets.items():
        offsets.setdefault(group, {}).update({(topic, queue_id): offset for queue_id, offset in queues.items()})
    return [CopiedGroup(name, found) for name, found in sorted(offsets.items())]


def margin_ms(facts: BrokerFacts | None, now: BrokerNow, segment: int, last_store_ms: int, now_ms: int) -> int | None:
    """Returns ms until the broker may remove ``segment``, the first one that is not all here; None if not known.

    A broker removes a segment so many hours after its last write, which is at or after our last message, in the hours
    of its settings, whose zone it does not tell: it may be later. Above 85 % of its disk it removes any but the newest.
    """
    if facts is None:
        return None
    reserved_ms = facts.file_reserved_hours * _HOUR_MS
    if segment + facts.segment_bytes > now.bounds.max_offset:  # the newest one, which stays
        return reserved_ms
    if now.disk_used is not None and now.disk_used >= _FORCED_REMOVAL:
        return 0
    return max(0, last_store_ms + reserved_ms - now_ms) if last_store_ms else 0


def _compare(source: LogSource, store: FollowedStore, bounds: LogBounds) -> tuple[int, int, bytes]:
    """Returns up to where both logs agree, and what was read beyond it, which begins at the second number.

    The source goes on behind that if all of ours agrees. Segments of ours in which nothing does are passed over from
    the last one to the first, down to one that is archived: nothing is dropped until it is known what has to be.
    """
    below, most = store.end, _FIRST_TAIL
    while True:
        at, ours = store.tail(most, below)
        base = at - at % source.segment_bytes
        if not ours or at < bounds.min_offset:
            source.begin(below)
            return below, below, b""
        if at <= bounds.max_offset:
            source.begin(at)
            try:
                theirs, rest = _fetch(source, at, min(len(ours), bounds.max_offset - at))
            except SourceLostError:
                if at == base or source.position() != at:
                    raise
                theirs, rest = b"", b""  # no record of the broker's begins there: its files give whole ones
            agreed = at + _agreed(ours, theirs)
            if agreed == at + len(ours):
                return _skipped(source, below, agreed, rest) if below == store.end else (below, below, b"")
            if agreed > at:
                return agreed, agreed, b""
        if at > base:
            most = min(most * _MORE_TAIL, source.segment_bytes)
        elif base <= store.archived_to:
            _check_same_log(source, store, bounds, base)
            return base, base, b""
        else:
            below, most = base, _FIRST_TAIL


def _check_same_log(source: LogSource, store: FollowedStore, bounds: LogBounds, base: int) -> None:
    """Raises :class:`DivergedError` unless the broker has what lies before ``base`` here, where logs differ from there.

    A broker whose volume was lost begins another log. Nothing of ours is dropped for that: it may be the last copy.
    """
    at, ours = store.tail(_FIRST_TAIL, base)
    if ours and at < bounds.min_offset <= base <= bounds.max_offset:
        return  # what can be compared was removed there
    if ours and bounds.min_offset <= at and at + len(ours) <= bounds.max_offset:
        source.begin(at)
        if _fetch(source, at, len(ours))[0] == ours:
            return
    differs = _differs_from(source, store, bounds, base)
    said = "has nothing in common with" if differs is None else f"differs from offset {differs} on from"
    raise DivergedError(
        f"the broker's log [{bounds.min_offset}, {bounds.max_offset}) {said} ours, which ends at {store.end} and is "
        f"archived up to {store.archived_to}",
        hint="nothing is dropped; start the broker that has our end, and then this process, or follow this one as "
        "another store: --store-id ID with an empty --root",
    )


def _differs_from(source: LogSource, store: FollowedStore, bounds: LogBounds, below: int) -> int | None:
    """Returns where the first record lies that only one of both logs has, which do not agree before ``below``.

    None if they have nothing in common there, for all that is here and at the broker.
    """

    def is_other(base: int) -> bool:
        at, ours = store.tail(_FIRST_TAIL, base)
        if at + len(ours) > bounds.max_offset:
            return True
        source.begin(at)
        return _fetch(source, at, len(ours))[0] != ours

    size, begin = source.segment_bytes, max(store.begin, bounds.min_offset)
    bases = range(begin - begin % size + size, below + 1, size)
    first = bisect.bisect_left(bases, True, key=is_other)
    if first == len(bases):
        return None
    at, ours = store.tail(size, bases[first])
    if not bounds.min_offset <= at <= bounds.max_offset:
        return at if first else None
    source.begin(at)
    differs = at + _agreed(ours, _fetch(source, at, min(len(ours), bounds.max_offset - at))[0])
    return differs if first or differs > at else None


def pause_s(took_s: float) -> float:
    """Returns how long after one look at a broker the next one is due, by how long it took to answer.

    An answer takes some 15 ms of the broker's processor: one that has none to spare answers slowly.
    """
    return min(_LOOK_SELDOM_S, max(_LOOK_EVERY_S, 300 * took_s))


def _fetch(source: LogSource, position: int, count: int) -> tuple[bytes, bytes]:
    """Returns the next ``count`` bytes, and what came with them; raises :class:`SourceLostError` if they do not."""
    found, waited = bytearray(), 0
    while len(found) < count:
        data = source.read(_WAIT_S)
        if not len(data):
            waited += 1
            if waited > PATIENCE:
                raise SourceLostError(f"the broker does not send what it has at {position + len(found)}")
            continue
        if source.position() != position + len(found):
            break  # the rest of a segment was left out: there is no record of ours there
        found += data
    return bytes(found[:count]), bytes(found[count:])


def _agreed(ours: bytes, theirs: bytes) -> int:
    """Returns the length of the whole records at the start that are the same in both."""
    if theirs == ours:
        return len(ours)
    at = 0
    while at + BLANK.size <= len(ours):
        size, _ = BLANK.unpack_from(ours, at)
        size = min(size, len(ours) - at)  # a blank record is longer than what there is of it
        if size <= 0 or theirs[at : at + size] != ours[at : at + size]:
            break
        at += size
    return at


def _skipped(source: LogSource, end: int, position: int, rest: bytes) -> tuple[int, int, bytes]:
    """Passes over what lies between a blank record, at ``position``, and the end of its segment."""
    while position + len(rest) < end:
        position, rest = position + len(rest), b""
        data = source.read(_WAIT_S)
        if len(data):
            position, rest = source.position(), bytes(data)
        else:
            source.begin(end)
            return end, end, b""
    return end, max(position, end), rest[max(0, end - position) :]
