"""A member of a consumer group at work, on an event loop: reads ahead, hands out, commits what is done.

Tasks: one pulls for each queue, ``workers`` hand messages out, one commits, one says that the consumer is alive. They
share state without locks, because nothing of it is awaited in the middle.

The service shares the queues out anew as soon as a member comes or goes: by the time a heartbeat tells it, another
member may have begun at the committed offset. So a queue that was taken away is dropped at once: what waits is thrown
away, handlers at work end by themselves, and what they did is committed by nobody. A queue that stays goes on with
what was read, unless somebody else has come further in it meanwhile.

Delivery is at least once. A message comes again if it was handled and not committed: at most ``read_ahead`` of each
queue that the consumer lost, by a kill or to another member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Unpack

from tierlog.client.async_client import AsyncClient
from tierlog.client.commit_window import Window
from tierlog.client.consumer_settings import ConsumerCounts, Consuming, ConsumingChanges, Decision, Start
from tierlog.client.errors import HandlerFailedError
from tierlog.client.models import Membership, PulledPage, QueueRef, StoredMessage
from tierlog.client.requests import ONCE, T
from tierlog.tiering.base.backoff import Backoff
from tierlog.tiering.base.errors import (
    CapacityError,
    ClosedError,
    ConflictError,
    InvalidRequestError,
    MemberNotFoundError,
    NotFoundError,
    ReadOnlyError,
    StaleGenerationError,
    StoreError,
    UnavailableError,
)
from tierlog.tiering.base.types import PullStatus

_LOG = logging.getLogger("tierlog.client")
#: Messages of one pull at most; and of the first one, while their size is unknown.
_MOST_OF_A_PULL, _FIRST_PULL = 1_000, 64
#: Offsets of one commit, as many as the service takes.
_MOST_OF_A_COMMIT = 10_000
#: Time to wait for a cancelled task; a handler may ignore its cancellation.
_CANCEL_S = 1.0
#: Tries of the commit before a consumer leaves.
_LAST_COMMITS = 3
#: An offset beyond the end of every queue.
_BEYOND = (1 << 53) - 1
#: Errors that pass, by themselves or by an operator's action; a consumer waits.
_LATER = (UnavailableError, CapacityError, ReadOnlyError)

Handler = Callable[[StoredMessage], Awaitable[object]]
OnFailure = Callable[[StoredMessage, Exception], Awaitable[Decision]]


async def stop(message: StoredMessage, error: Exception) -> Decision:
    """Ends the consumer with the error: what happens to a message that cannot be handled, unless told otherwise."""
    return Decision.STOP


@dataclass(slots=True)
class _Delivery:
    """A message that waits for a handler, and what it has behind it."""

    message: StoredMessage
    tries: int = 0
    pauses: Backoff | None = None


class _Queue:
    """One assigned queue."""

    def __init__(
        self, ref: QueueRef, committed: int | None, after: _Queue | None, latest_ms: int | None = None
    ) -> None:
        self.ref = ref
        self.window = Window(committed or 0)
        #: The time from which its messages count as the latest; None: what it holds when it is placed does not count.
        self.latest_ms = latest_ms
        #: Whether the beginning of the queue is not known yet.
        self.is_new = committed is None
        #: Whether the beginning must be committed before any message: another member would choose another.
        self.must_commit = False
        #: The same queue as it was read before; its handlers end first.
        self.after = after
        self.waiting: deque[_Delivery] = deque()
        #: Messages at a handler or between two tries.
        self.running = 0
        #: The last of them has ended.
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        #: A worker is to look here.
        self.is_listed = False
        self.is_dropped = False
        #: Something was done or committed.
        self.moved = asyncio.Event()
        self.message_bytes = 0.0
        self.fetching: asyncio.Task[None] | None = None


class AsyncConsumer:
    """Handles the messages of some topics together with the other members of a group. For one event loop, once.

    ``async with`` joins and begins, and closes at the end; :meth:`wait` raises what ended it.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        topics: str | Iterable[str],
        handler: Handler,
        *,
        on_failure: OnFailure = stop,
        settings: Consuming | None = None,
        **changes: Unpack[ConsumingChanges],
    ) -> None:
        """``changes`` are fields of :class:`Consuming`, for what ``settings`` does not say.

        A message is done when ``handler`` returns. It must not hold the event loop up for long, or the session ends.
        """
        self._client, self._calls = client, client.calls
        self._group, self._topics = group, [topics] if isinstance(topics, str) else sorted(set(topics))
        self._handler, self._on_failure = handler, on_failure
        self._settings = replace(settings or Consuming(), **changes)
        self._clock = client.clock
        self._member_id: str | None = None
        #: The membership that is followed; commits carry its generation.
        self._member: Membership | None = None
        #: The service's time of the first join, in ms, from which :attr:`Start.LATEST` reads younger queues.
        self._joined_ms: int | None = None
        #: Whether the first assignment was adopted; queues that come later may be younger than the consumer.
        self._has_begun = False
        self._beats = 0
        #: The membership under which a commit was refused as a conflict, and the number of heartbeats before that.
        self._refused_at: tuple[Membership, int] | None = None
        #: Stores whose offsets cannot be committed, with the pause before each is tried again.
        self._down: dict[str, Backoff] = {}
        self._session_until_s = 0.0
        self._in_session = asyncio.Event()
        self._queues: dict[QueueRef, _Queue] = {}
        self._leaving: dict[QueueRef, _Queue] = {}
        self._ready: asyncio.Queue[_Queue] = asyncio.Queue()
        self._beat_now, self._commit_now = asyncio.Event(), asyncio.Event()
        self._stopping, self._over = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._is_told = False
        self._running: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._later: dict[int, tuple[asyncio.TimerHandle, _Queue]] = {}
        self._said: set[str] = set()
        #: What was done until now.
        self.counts = ConsumerCounts()

    async def __aenter__(self) -> AsyncConsumer:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()
        if kind is None and self._failure is not None and not self._is_told:
            raise self._failure

    def start(self) -> None:
        """Starts in the background, once."""
        if self._running is not None:
            raise ClosedError("a consumer begins once", hint="make another")
        self._running = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Begins to stop and does not wait; a handler may call it."""
        self._stopping.set()

    async def wait(self) -> None:
        """Waits until the consumer has ended: it was stopped, or something failed, which is raised.

        :class:`HandlerFailedError` after a failure that ``on_failure`` did not let pass, else what the service
        refused for good.
        """
        await self._over.wait()
        if self._failure is not None:
            self._is_told = True
            raise self._failure

    async def close(self) -> None:
        """Stops handing out, waits ``drain_s`` for running handlers, commits what is done, and leaves the group.

        Handlers that take longer are cancelled, and their messages come again. Idempotent.
        """
        self.stop()
        if self._running is not None:
            await asyncio.wait([self._running])

    @property
    def assignment(self) -> tuple[QueueRef, ...]:
        """The queues that are read now."""
        return tuple(sorted(self._queues))

    # life

    async def _run(self) -> None:
        settings = self._settings
        workers: list[asyncio.Task[None]] = []
        others: list[asyncio.Task[None]] = []
        try:
            others = [self._begin(self._stay_member()), self._begin(self._keep_committing())]
            workers = [self._begin(self._work()) for _ in range(settings.workers)]
            await self._stopping.wait()
        finally:
            self._stopping.set()
            try:
                await self._wind_down(workers, others)
            finally:
                self._over.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task; what it raises ends the consumer."""
        try:
            await work
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    async def _wind_down(self, workers: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
        """Keeps the session until handlers are done, so that what they did can be committed."""
        for queue in self._queues.values():
            queue.waiting.clear()
        for queue in {queue for _, queue in self._later.values()}:
            self._cancel_tries(queue)
        fetching = [queue.fetching for queue in self._queues.values() if queue.fetching is not None]
        await _cancel([*fetching, *self._ending])
        running = [queue for queue in [*self._queues.values(), *self._leaving.values()] if queue.running]
        if running:
            idle = [asyncio.create_task(queue.is_idle.wait()) for queue in running]
            await asyncio.wait(idle, timeout=self._settings.drain_s)
            await _cancel(idle)
        await _cancel(workers)
        await _cancel(others)
        # after this time without a heartbeat, other members have the queues
        session_s = self._settings.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(session_s):
                await self._commit_at_last()
        except Exception as error:
            words = str(error) or "nobody answered"
            _LOG.warning("group %s: what was done last is not committed, and comes again: %s", self._group, words)
        if self._member_id is not None:
            with contextlib.suppress(Exception):  # the session ends by itself
                async with asyncio.timeout(session_s / 3):
                    await self._client.run(self._calls.leave(self._group, self._member_id, ONCE))

    async def _commit_at_last(self) -> None:
        """Commits for the last time. Members that leave together each begin a generation; a refused commit is repeated
        in the next one."""
        for _ in range(_LAST_COMMITS):
            self._beat_now.clear()
            left = await self._commit(at_once=True)
            if not self._beat_now.is_set():
                if left is not None:
                    raise left
                return
            await self._beat()

    # membership

    async def _stay_member(self) -> None:
        pauses = self._calls.attempts.backoff()
        while True:
            try:
                await self._beat()
                pauses.succeeded()
                self._said.discard("group")
                wait_s = self._settings.beat_s
            except MemberNotFoundError:
                if self._stopping.is_set():
                    return
                raise
            except _LATER as error:
                pauses.failed()
                wait_s = min(_pause_s(pauses, error), self._settings.beat_s)
                self._say_once("group", "group %s: %s", self._group, error)
            await _set_within(self._beat_now, wait_s)

    async def _beat(self) -> None:
        """Sends a heartbeat and follows the assignment in its answer."""
        self._beat_now.clear()
        begun_s = self._clock.monotonic_s()
        found = await self._membership()
        known = self._member
        if known is None or (known.member_id, known.generation) != (found.member_id, found.generation):
            for ref in set(self._queues) - set(found.assignment):  # other members may read them already
                self._drop(self._queues[ref])
            committed = await self._committed()
            self._adopt(found, committed)
        self._beats += 1
        self._session_until_s = begun_s + found.session_timeout_ms / 1000
        self._in_session.set()

    async def _membership(self) -> Membership:
        """Renews the membership of this consumer, or joins if its session is over and the consumer goes on."""
        settings = self._settings
        if self._member_id is not None:
            try:
                return await self._client.run(self._calls.heartbeat(self._group, self._member_id, self._call_s, ONCE))
            except MemberNotFoundError:
                _LOG.info("group %s: the session is over", self._group)
                self._member_id = None
        if self._stopping.is_set():
            raise MemberNotFoundError("the session is over")
        joined, now_ms = await self._client.run(
            self._calls.join_at(self._group, self._topics, settings.session_timeout_ms, self._call_s, ONCE)
        )
        self._member_id = joined.member_id
        if self._joined_ms is None:
            self._joined_ms = now_ms
        self.counts.joins += 1
        return joined

    @property
    def _call_s(self) -> float:
        """Seconds that each step of a call may take when heartbeats wait for it: a third of a session."""
        return self._settings.session_timeout_ms / 3000

    async def _committed(self) -> dict[QueueRef, int]:
        return await self._client.run(self._calls.committed(self._group, ONCE, self._call_s))

    def _adopt(self, member: Membership, committed: dict[QueueRef, int]) -> None:
        """Reads the queues that are assigned now, and no others."""
        assigned = set(member.assignment)
        before, self._member = self._member, member
        if assigned != set(() if before is None else before.assignment):
            self.counts.rebalances += 1
            _LOG.info("group %s: %d queues in generation %d", self._group, len(assigned), member.generation)
        if set(member.missing_topics) - set(() if before is None else before.missing_topics):
            words = f" ({member.hint})" if member.hint else ""
            _LOG.warning("group %s: no such topics yet: %s%s", self._group, ", ".join(member.missing_topics), words)
        for ref, queue in list(self._queues.items()):
            if ref not in assigned:
                self._drop(queue)
        for ref in member.assignment:
            known = self._queues.get(ref)
            offset = committed.get(ref)
            if known is not None and not _goes_on(known, offset):
                self._drop(known)
                known = None
            if known is None:
                if not self._stopping.is_set():
                    self._open(ref, offset, self._joined_ms if self._has_begun else None)
            elif offset is not None:
                known.window.committed_to(offset)
                known.moved.set()
        self._has_begun = True

    def _open(self, ref: QueueRef, committed: int | None, latest_ms: int | None) -> _Queue:
        queue = self._queues[ref] = _Queue(ref, committed, self._leaving.get(ref), latest_ms)
        queue.fetching = self._begin(self._fetch(queue))
        return queue

    def _drop(self, queue: _Queue) -> None:
        del self._queues[queue.ref]
        queue.is_dropped = True
        queue.waiting.clear()
        self._cancel_tries(queue)
        if queue.fetching is not None:
            queue.fetching.cancel()
            self._ending.add(queue.fetching)
            queue.fetching.add_done_callback(self._ending.discard)
        if queue.running:
            self._leaving[queue.ref] = queue

    # reading

    async def _fetch(self, queue: _Queue) -> None:
        if queue.after is not None:
            await _set_within(queue.after.is_idle, self._settings.drain_s)
            queue.after = None
        pauses = self._calls.attempts.backoff()
        name = str(queue.ref)
        while True:
            try:
                if queue.is_new:
                    await self._place(queue)
                if queue.window.is_beyond_end:
                    await self._set_back(queue)
                await self._until_room(queue)
                page = await self._pull(queue)
            except (UnavailableError, NotFoundError) as error:
                # its store is down or was taken out, or the topic was deleted, which the next heartbeat shows
                if queue.latest_ms is None:  # messages that come before it can be placed must not be left out
                    queue.latest_ms = self._joined_ms
                pauses.failed()
                self._say_once(name, "queue %s: %s", name, error)
                await asyncio.sleep(_pause_s(pauses, error))
                continue
            self._said.discard(name)
            pauses.succeeded()
            if page.status is PullStatus.OFFSET_TOO_LARGE and len(queue.window):
                self._begin_lower(queue, page.next_offset)
                return
            self._took(queue, page)

    def _begin_lower(self, queue: _Queue, end: int) -> None:
        """Restarts a queue whose store lost messages that were read: other messages will have their offsets."""
        _LOG.warning("queue %s: begun anew, it ends at %d and was read to %d", queue.ref, end, queue.window.read_to)
        committed = queue.window.committed
        self._drop(queue)
        anew = self._open(queue.ref, committed, queue.latest_ms)
        anew.window.took([], min(committed, end))

    async def _set_back(self, queue: _Queue) -> None:
        """Commits the end of a queue that was committed beyond it: a disk or a volume came back with less.

        Otherwise nothing could be committed until the queue is as long again, and a consumer that begins at the old
        offset after that would skip the messages below it.
        """
        end = queue.window.read_to
        if not await self._try_commit({queue.ref: end}, reset=True):
            raise UnavailableError("the queues were reassigned meanwhile")
        _LOG.warning("queue %s: ends at %d, and %d was committed: set back", queue.ref, end, queue.window.committed)
        queue.window.committed_to(end)

    async def _place(self, queue: _Queue) -> None:
        """Decides where a queue begins in which the group has committed nothing."""
        ref, start = queue.ref, self._settings.start
        offset = 0
        since_ms = queue.latest_ms if start is Start.LATEST else start if isinstance(start, int) else None
        if since_ms is not None:
            flow = self._calls.offset_by_time(ref.topic, ref.queue_id, since_ms, store_id=ref.store_id, retries=ONCE)
            offset = await self._client.run(flow)
        elif start is Start.LATEST:
            pull = self._calls.pull(ref.topic, ref.queue_id, _BEYOND, 1, store_id=ref.store_id, retries=ONCE)
            offset = (await self._client.run(pull)).next_offset
        queue.window = Window(offset)
        queue.is_new = False
        if start is not Start.EARLIEST:
            queue.must_commit = True
            self._commit_now.set()

    def _room(self, queue: _Queue) -> int:
        """Returns how many messages of a queue may be read now."""
        settings, window = self._settings, queue.window
        left_bytes = settings.read_ahead_bytes - window.open_bytes
        if left_bytes <= 0:
            return 0
        by_size = int(left_bytes / queue.message_bytes) if queue.message_bytes else _FIRST_PULL
        return min(settings.read_ahead - len(window), max(1, by_size), _MOST_OF_A_PULL)

    async def _until_room(self, queue: _Queue) -> None:
        """Waits until a quarter of the read-ahead is free, so that a busy queue is not pulled message by message."""
        settings, window = self._settings, queue.window
        while (room := self._room(queue)) < 1 or queue.waiting:
            is_much = 4 * (settings.read_ahead - len(window)) >= settings.read_ahead
            if room and is_much and 4 * (settings.read_ahead_bytes - window.open_bytes) >= settings.read_ahead_bytes:
                return
            queue.moved.clear()
            await queue.moved.wait()

    async def _pull(self, queue: _Queue) -> PulledPage:
        ref = queue.ref
        return await self._client.run(
            self._calls.pull(
                ref.topic, ref.queue_id, queue.window.read_to, self._room(queue), wait_ms=self._settings.wait_ms,
                tag=self._settings.tag, store_id=ref.store_id, retries=ONCE,
            )
        )  # fmt: skip

    def _took(self, queue: _Queue, page: PulledPage) -> None:
        window = queue.window
        if page.status is PullStatus.OFFSET_TOO_SMALL and window.read_to:
            _LOG.warning("queue %s: offsets %d to %d are gone", queue.ref, window.read_to, page.next_offset)
        # a body that is stored compressed is larger in memory
        sizes = [(one.queue_offset, max(one.size_bytes, len(one.body))) for one in page.messages]
        window.took(sizes, page.next_offset)
        if sizes:
            queue.message_bytes = sum(size for _, size in sizes) / len(sizes)
        queue.waiting.extend(map(_Delivery, page.messages))
        self._list(queue)

    # handling

    def _list(self, queue: _Queue) -> None:
        """Lets a worker look at a queue that has messages to hand out."""
        busy = queue.running and self._settings.is_ordered
        if queue.waiting and not (queue.is_listed or busy or queue.is_dropped):
            queue.is_listed = True
            self._ready.put_nowait(queue)

    async def _work(self) -> None:
        while not self._stopping.is_set():
            queue = await self._ready.get()
            while self._clock.monotonic_s() >= self._session_until_s:  # others may have the queues by now
                self._in_session.clear()
                await self._in_session.wait()
            queue.is_listed = False
            if queue.is_dropped or not queue.waiting or self._stopping.is_set():
                continue
            delivery = queue.waiting.popleft()
            queue.running += 1
            queue.is_idle.clear()
            self._list(queue)
            await self._deliver(queue, delivery)

    async def _deliver(self, queue: _Queue, delivery: _Delivery) -> None:
        message = delivery.message
        try:
            await _called(self._handler(message))
        except Exception as error:
            self.counts.failed += 1
            await self._failed(queue, delivery, error)
        except BaseException:  # a cancellation, or an exit, which ends the loop: nobody must wait for this handler
            self._rest(queue)
            raise
        else:
            self.counts.handled += 1
            self._finish(queue, message)

    async def _failed(self, queue: _Queue, delivery: _Delivery, error: Exception) -> None:
        message = delivery.message
        delivery.tries += 1
        if delivery.tries >= self._settings.tries:
            try:
                decision = Decision(await _called(self._on_failure(message, error)))
            except Exception as worse:
                decision, error = Decision.STOP, worse
            except BaseException:
                self._rest(queue)
                raise
            if decision is Decision.STOP:
                self._rest(queue)
                where = f"{queue.ref} at offset {message.queue_offset}"
                failure = HandlerFailedError(f"the handler failed {delivery.tries} times for {where}", message)
                failure.__cause__ = error
                self._fail(failure)
                return
            if decision is Decision.SKIP:
                self.counts.skipped += 1
                self._finish(queue, message)
                return
            delivery.tries = 0
        if self._stopping.is_set() or queue.is_dropped:
            self._rest(queue)
            return
        if delivery.pauses is None:
            delivery.pauses = self._calls.attempts.backoff(self._settings.pauses)
        delivery.pauses.failed()
        timer = asyncio.get_running_loop().call_later(delivery.pauses.left_s, self._again, queue, delivery)
        self._later[id(delivery)] = (timer, queue)

    def _again(self, queue: _Queue, delivery: _Delivery) -> None:
        del self._later[id(delivery)]
        self._rest(queue)
        if not (queue.is_dropped or self._stopping.is_set()):
            queue.waiting.appendleft(delivery)
            self._list(queue)

    def _cancel_tries(self, queue: _Queue) -> None:
        """Cancels the next tries of messages of a queue."""
        for key, (timer, waiting) in list(self._later.items()):
            if waiting is queue:
                del self._later[key]
                timer.cancel()
                self._rest(queue)

    def _finish(self, queue: _Queue, message: StoredMessage) -> None:
        self._rest(queue)
        if queue.is_dropped:
            return
        window = queue.window
        window.finish(message.queue_offset)
        queue.moved.set()
        if 2 * window.finished_count >= self._settings.read_ahead:
            self._commit_now.set()
        self._list(queue)

    def _rest(self, queue: _Queue) -> None:
        """Notes that a handler has ended, or that a message waits for its next try no more."""
        queue.running -= 1
        if not queue.running:
            queue.is_idle.set()
            if self._leaving.get(queue.ref) is queue:
                del self._leaving[queue.ref]

    # committing

    async def _keep_committing(self) -> None:
        pauses = self._calls.attempts.backoff()
        while True:
            await _set_within(self._commit_now, self._settings.commit_interval_s)
            self._commit_now.clear()
            try:
                await self._commit()
                pauses.succeeded()
            except _LATER as error:
                pauses.failed()
                self._say_once("commit", "group %s: not committed: %s", self._group, error)
                await asyncio.sleep(_pause_s(pauses, error))
            else:
                self._said.discard("commit")

    async def _commit(self, *, at_once: bool = False) -> UnavailableError | None:
        """Commits what is due; returns why the offsets of some stores were not committed.

        The other stores do not wait for them. A store that is down is tried again after a pause, or ``at_once``.
        """
        due = [queue for queue in self._queues.values() if queue.must_commit or queue.window.is_due]
        sound = [queue for queue in due if queue.ref.store_id not in self._down]
        for begin in range(0, len(sound), _MOST_OF_A_COMMIT):
            await self._commit_together(sound[begin : begin + _MOST_OF_A_COMMIT])
        failure: UnavailableError | None = None
        for store_id, queues in _by_store(queue for queue in due if queue.ref.store_id in self._down).items():
            if at_once or self._down[store_id].is_over:
                failure = await self._commit_of_store(store_id, queues) or failure
        return failure

    async def _commit_of_store(self, store_id: str, queues: list[_Queue]) -> UnavailableError | None:
        """Commits for the queues of one store; returns why it could not."""
        pauses = self._down.get(store_id) or self._calls.attempts.backoff()
        try:
            for begin in range(0, len(queues), _MOST_OF_A_COMMIT):
                await self._commit_together(queues[begin : begin + _MOST_OF_A_COMMIT])
        except UnavailableError as error:
            pauses.failed()
            self._down[store_id] = pauses
            self._say_once(store_id, "group %s: nothing of store %s is committed: %s", self._group, store_id, error)
            return error
        self._down.pop(store_id, None)
        self._said.discard(store_id)
        return None

    async def _commit_together(self, queues: list[_Queue]) -> None:
        """Commits for all of them or none; if one is refused for a reason of its own, each by itself.

        A store that is down fails a commit for all: then each store is committed by itself.
        """
        # the queues may have been reassigned meanwhile: dropped ones are not ours to commit
        queues = [queue for queue in queues if not queue.is_dropped]
        if not queues:
            return
        offsets = {queue.ref: queue.window.lowest_unfinished for queue in queues}
        try:
            is_done = await self._try_commit(offsets)
        except (InvalidRequestError, NotFoundError) as error:
            if len(queues) > 1:
                for queue in queues:
                    await self._commit_together([queue])
                return
            # the group was reset by hand, or a volume came back with less than it had
            _LOG.warning("queue %s: begun anew, its offset was refused: %s", queues[0].ref, error)
            await self._reopen(queues[0])
        except UnavailableError:
            by_store = _by_store(queues)
            if len(by_store) == 1:
                raise
            failures = [await self._commit_of_store(store_id, each) for store_id, each in by_store.items()]
            if all(failures):  # no store is to blame
                for store_id in by_store:
                    self._down.pop(store_id, None)
                    self._said.discard(store_id)
                raise
        else:
            for queue in queues if is_done else ():
                queue.must_commit = False
                if offsets[queue.ref] > queue.window.committed:
                    queue.window.committed_to(offsets[queue.ref])
                queue.moved.set()

    async def _try_commit(self, offsets: dict[QueueRef, int], *, reset: bool = False) -> bool:
        """Commits; returns False if another generation has begun, which the next heartbeat shows.

        Raises a refusal that no heartbeat mends.
        """
        member = self._member
        assert member is not None, "who has queues is a member"
        try:
            await self._client.run(
                self._calls.commit(self._group, offsets, member, reset=reset, retries=ONCE, within_s=self._call_s)
            )
        except (StaleGenerationError, MemberNotFoundError):
            pass  # the queues were reassigned: those that are still ours go on
        except ConflictError as error:
            self._say_once("refused", "group %s: a commit was refused: %s", self._group, error)
            if self._refused_at is None or self._refused_at[0] != member:
                self._refused_at = (member, self._beats)
            elif self._refused_at[1] < self._beats:
                raise
        else:
            self._refused_at = None
            self._said.discard("refused")
            self.counts.commits += 1
            return True
        self.counts.refused_commits += 1
        self._beat_now.set()
        return False

    async def _reopen(self, queue: _Queue) -> None:
        committed = await self._committed()
        if not (queue.is_dropped or self._stopping.is_set()):
            self._drop(queue)
            self._open(queue.ref, committed.get(queue.ref), queue.latest_ms)

    def _say_once(self, about: str, words: str, *values: object) -> None:
        """Logs one line for a fault that lasts."""
        if about not in self._said:
            self._said.add(about)
            _LOG.warning(words, *values)


def _goes_on(queue: _Queue, committed: int | None) -> bool:
    """Returns whether a queue that stays assigned goes on with what was read of it."""
    if committed is None:
        return not queue.window.committed or queue.must_commit
    return not queue.is_new and queue.window.goes_on_at(committed)


def _by_store(queues: Iterable[_Queue]) -> dict[str, list[_Queue]]:
    found: dict[str, list[_Queue]] = {}
    for queue in queues:
        found.setdefault(queue.ref.store_id, []).append(queue)
    return found


def _pause_s(pauses: Backoff, error: StoreError) -> float:
    """Returns the pause after an error, in seconds: at least as long as the service asked for."""
    return max(pauses.left_s, error.retry_after_s)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _called(work: Awaitable[T]) -> T:
    """Returns the result of a handler. If what it waits for is cancelled, it has failed, and its worker goes on."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what the handler waited for was cancelled") from error


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and waits until they have ended, or show that they do not mean to."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting, timeout=_CANCEL_S)
