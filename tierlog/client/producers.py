"""Producers: messages that come one by one, gathered into batches, and sent until the service has them.

A producer numbers its messages. Each request names the producer and the number of its first message, so the service
knows what it has already: a batch whose answer was lost is sent again, whole or in pieces, and each message is in the
log once. One batch is on its way at a time, so messages are in each queue in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tierlog.client.calls import Calls
from tierlog.client.models import Appended, Message
from tierlog.client.requests import Flow, T
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    InvalidRequestError,
    MessageTooLargeError,
    StoreError,
    UnavailableError,
)
from tierlog.tiering.base.types import Durability

_LOG = logging.getLogger("tierlog.client")
F = TypeVar("F")

#: Memory that a message takes beside its bytes, about.
_BESIDE_BYTES = 512
#: Finds the line that the refusal of an unreadable body names.
_LINE = re.compile(r"\bline \d")


@dataclass(frozen=True, slots=True)
class Batching:
    """The size and pace of batches, and how many messages may wait."""

    max_messages: int = 1_000
    """A batch with this many is sent at once."""
    max_bytes: int = 1 << 20
    """So is one of this size; a larger message is a batch of its own."""
    linger_ms: int = 0
    """Time that the first message of a batch waits for others if the batch is not full; the time of the batch before it
    counts."""
    max_pending_bytes: int = 16 << 20
    """Maximum size of all messages without an answer; senders wait beyond it."""

    def __post_init__(self) -> None:
        if min(self.max_messages, self.max_bytes, self.max_pending_bytes) < 1 or self.linger_ms < 0:
            raise InvalidRequestError("a batch has at least a message and a byte, and nobody lingers less than 0 ms")


@dataclass(frozen=True, slots=True)
class Batch(Generic[F]):
    """Messages that go together; ``futures`` are for the answers, in the same order."""

    first: int
    """The number of the first message."""
    lines: list[bytes]
    futures: list[F]
    size: int


class Outbox(Generic[F]):
    """The messages that a producer has to send. For one thread at a time: whoever owns it has a lock or an event
    loop."""

    def __init__(self, batching: Batching, clock: Clock) -> None:
        self._batching = batching
        self._clock = clock
        self._waiting: deque[tuple[bytes, F]] = deque()
        self._waiting_bytes = self._pending_bytes = 0
        self._oldest_s = 0.0
        self._next = self._urgent_to = 0
        #: Numbers of messages that were added, and of the oldest of those that are answered.
        self.added = self.answered = 0

    def has_room(self, line: bytes) -> bool:
        """Returns whether a message may be added; one that is larger than the bound may when it is alone."""
        return (
            not self._pending_bytes
            or self._pending_bytes + len(line) + _BESIDE_BYTES <= self._batching.max_pending_bytes
        )

    def add(self, line: bytes, future: F) -> None:
        """Adds a message behind the others."""
        if not self._waiting:
            self._oldest_s = self._clock.monotonic_s()
        self._waiting.append((line, future))
        self._waiting_bytes += len(line)
        self._pending_bytes += len(line) + _BESIDE_BYTES
        self.added += 1

    def hurry(self) -> int:
        """Ends the linger of all that waits now; returns the number of answers to wait for."""
        self._urgent_to = self.added
        return self.added

    def due_in_s(self) -> float | None:
        """Returns the seconds until a batch may go, 0 for now; None if nothing waits."""
        if not self._waiting:
            return None
        chosen = self._batching
        is_full = len(self._waiting) >= chosen.max_messages or self._waiting_bytes >= chosen.max_bytes
        if is_full or self._next < self._urgent_to:
            return 0.0
        return max(0.0, self._oldest_s + chosen.linger_ms / 1000 - self._clock.monotonic_s())

    def take(self) -> Batch[F]:
        """Returns the oldest messages, as many as a batch has; something has to wait."""
        lines: list[bytes] = []
        futures: list[F] = []
        size = 0
        while self._waiting and len(lines) < self._batching.max_messages:
            line = self._waiting[0][0]
            if lines and size + len(line) > self._batching.max_bytes:
                break
            _, future = self._waiting.popleft()
            lines.append(line)
            futures.append(future)
            size += len(line)
        self._waiting_bytes -= size
        batch = Batch(self._next, lines, futures, size + _BESIDE_BYTES * len(lines))
        self._next += len(lines)
        return batch

    def take_all(self) -> Iterator[Batch[F]]:
        """Yields batches until nothing waits."""
        while self._waiting:
            yield self.take()

    def done(self, batch: Batch[F]) -> None:
        """Gives back the room of a batch that was answered."""
        self._pending_bytes -= batch.size
        self.answered += len(batch.lines)


def _send_batch(
    calls: Calls, topic: str, producer: str, batch: Batch[F], durability: Durability
) -> Flow[list[Appended | StoreError]]:
    """Returns what became of each message of a batch.

    The service refuses a batch with a message that is wrong as a whole. So it is halved until the wrong ones are
    alone; the others are appended, in their order. A refusal that is not about messages, as of a durability that the
    store does not have, and any other error is that of all that is left.
    """
    results: list[Appended | StoreError] = []
    pieces = [(0, len(batch.lines))]
    whole: InvalidRequestError | None = None
    try:
        yield from calls.home(topic)  # an error of the topic is not an error of a message
        while pieces:
            start, end = pieces.pop()
            key = f"{producer}:{batch.first + start}"
            try:
                results += yield from calls.append(topic, batch.lines[start:end], durability, key)
            except InvalidRequestError as error:
                whole = whole or error
                if end - start == 1:
                    if len(results) == 1 and _is_of_all(whole, results[0], error):
                        raise
                    results.append(error)
                else:
                    middle = (start + end) // 2
                    pieces += [(middle, end), (start, middle)]
    except StoreError as error:
        results += [error] * (len(batch.lines) - len(results))
    return results


def _is_of_all(whole: InvalidRequestError, first: Appended | StoreError, second: InvalidRequestError) -> bool:
    """Returns whether a refusal concerns every message: batch and first two messages are refused in the same words.

    The refusal of a single message names its place: a position, or a line of the body in its words.
    """
    return (
        not isinstance(whole, MessageTooLargeError)
        and isinstance(first, InvalidRequestError)
        and whole.position is first.position is second.position is None
        and whole.message == first.message == second.message
        and _LINE.search(whole.message) is None
    )


def _not_sent(batch: Batch[F], error: BaseException) -> list[Appended | StoreError]:
    """Returns the fate of a batch that failed in an unforeseen way."""
    failure = StoreError(f"a batch of messages could not be sent: {error!r}")
    failure.__cause__ = error
    return [failure] * len(batch.lines)


def _abandoned(batch: Batch[F]) -> list[Appended | StoreError]:
    """Returns the fate of a batch that nobody sends any more."""
    error = ClosedError("the producer ended before the message was answered, which may be in the log or not")
    return [error] * len(batch.lines)


class _Sending(Generic[F]):
    """The common part of producers for threads and for event loops: their batches and the answers."""

    def __init__(self, calls: Calls, topic: str, durability: Durability, batching: Batching) -> None:
        self.outbox: Outbox[F] = Outbox(batching, calls.attempts.clock)
        self._calls = calls
        self._topic = topic
        self._durability = durability
        self._name = calls.new_producer()
        self._failure: StoreError | None = None
        self._silence: UnavailableError | None = None
        #: Nothing more is taken.
        self.is_closed = False

    def flow(self, batch: Batch[F]) -> Flow[list[Appended | StoreError]]:
        """Returns the calls of a batch.

        A producer that closes tries no further batch once one had no answer in all of its time: closing takes as long
        as a call, and not as long as a call for each batch.
        """
        if self.is_closed and self._silence is not None:
            return [self._silence] * len(batch.lines)
        results = yield from _send_batch(self._calls, self._topic, self._name, batch, self._durability)
        if len(results) != len(batch.lines):  # each message has to get its own
            raise StoreError(f"{len(batch.lines)} messages came to {len(results)} results")
        return results

    def done(self, batch: Batch[F], results: Sequence[Appended | StoreError]) -> None:
        """Gives back the room of a batch, and remembers the first failure."""
        self.outbox.done(batch)
        last = results[-1]
        self._silence = last if self.is_closed and isinstance(last, UnavailableError) else None
        self._failure = self._failure or next((one for one in results if isinstance(one, StoreError)), None)

    def take_failure(self) -> StoreError | None:
        """Returns the first failure since it was last asked for."""
        failure, self._failure = self._failure, None
        return failure


class _Run(Protocol):
    def __call__(self, flow: Flow[T]) -> T: ...


class Producer:
    """Sends messages of one topic, in order, each once. Thread safe; one thread of its own sends.

    Messages that wait are in memory only: what was not answered when the process is killed may be in the log or not.
    """

    def __init__(self, run: _Run, calls: Calls, topic: str, durability: Durability, batching: Batching) -> None:
        self._run = run
        self._sending: _Sending[Future[Appended]] = _Sending(calls, topic, durability, batching)
        self._outbox = self._sending.outbox
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._send, name=f"tierlog-producer-{topic}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        body: bytes | str,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
    ) -> Future[Appended]:
        """Sends a message in the background; the future gets its place, or the error.

        Waits only while ``max_pending_bytes`` are on their way. Raises :class:`InvalidRequestError` for what is no
        message, :class:`ClosedError`. Callbacks of the future run on the thread that sends: they may submit, which
        does not wait there, but not wait for other messages.
        """
        line = Message(body, keys, tag, properties or {}, born_ms, queue_id, sharding_key).line()
        future: Future[Appended] = Future()
        is_callback = threading.current_thread() is self._thread
        with self._changed:
            self._changed.wait_for(lambda: self._sending.is_closed or is_callback or self._outbox.has_room(line))
            if self._sending.is_closed:
                raise ClosedError("the producer is closed")
            self._outbox.add(line, future)
            self._changed.notify_all()
        return future

    def send(
        self,
        body: bytes | str,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
    ) -> Appended:
        """Sends a message, batched with those of other threads, and waits until it is as durable as asked for."""
        return self.submit(
            body, keys=keys, tag=tag, properties=properties, born_ms=born_ms, queue_id=queue_id,
            sharding_key=sharding_key,
        ).result()  # fmt: skip

    def flush(self) -> None:
        """Waits until all that was sent before is answered.

        Raises the first error of a message since the last flush, whether anybody looked at its future or not.
        """
        with self._changed:
            wanted = self._outbox.hurry()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox.answered >= wanted)
            failure = self._sending.take_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flushes and ends; messages that remain when a whole call had no answer fail with its error. Idempotent."""
        with self._changed:
            self._sending.is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self.flush()

    def _send(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                try:
                    results = self._run(self._sending.flow(batch))
                except BaseException as error:
                    results = _not_sent(batch, error)
                self._settle(batch, results)
        finally:
            self._give_up()

    def _settle(self, batch: Batch[Future[Appended]], results: Sequence[Appended | StoreError]) -> None:
        for future, result in zip(batch.futures, results, strict=True):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if isinstance(result, StoreError):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            except BaseException:  # a callback exits; other senders still wait for their answers
                _LOG.exception("a callback of a message failed")
        with self._changed:
            self._sending.done(batch, results)
            self._changed.notify_all()

    def _give_up(self) -> None:
        """Fails what waits for a thread that has ended."""
        with self._changed:
            self._sending.is_closed = True
            left = list(self._outbox.take_all())
            self._changed.notify_all()
        for batch in left:
            self._settle(batch, _abandoned(batch))

    def _next_batch(self) -> Batch[Future[Appended]] | None:
        """Waits until one may go; None once the producer is closed and has sent all."""
        with self._changed:
            while True:
                due_s = self._outbox.due_in_s()
                if due_s is None and self._sending.is_closed:
                    return None
                if due_s is not None and (due_s <= 0 or self._sending.is_closed):
                    return self._outbox.take()
                self._changed.wait(due_s)


class _AsyncRun(Protocol):
    async def __call__(self, flow: Flow[T]) -> T: ...


class AsyncProducer:
    """Sends messages of one topic, in order, each once. For one event loop, on which a task of its own sends.

    Messages that wait are in memory only: what was not answered when the process is killed may be in the log or not.
    """

    def __init__(self, run: _AsyncRun, calls: Calls, topic: str, durability: Durability, batching: Batching) -> None:
        self._run = run
        self._sending: _Sending[asyncio.Future[Appended]] = _Sending(calls, topic, durability, batching)
        self._outbox = self._sending.outbox
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        body: bytes | str,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[Appended]:
        """Sends a message in the background; the future gets its place, or the error.

        Waits only while ``max_pending_bytes`` are on their way. Raises :class:`InvalidRequestError` for what is no
        message, :class:`ClosedError`.
        """
        line = Message(body, keys, tag, properties or {}, born_ms, queue_id, sharding_key).line()
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        async with self._changed:
            await self._changed.wait_for(lambda: self._sending.is_closed or self._outbox.has_room(line))
            if self._sending.is_closed:
                raise ClosedError("the producer is closed")
            self._outbox.add(line, future)
            if self._task is None:
                self._task = asyncio.create_task(self._send())
            self._changed.notify_all()
        return future

    async def send(
        self,
        body: bytes | str,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
    ) -> Appended:
        """Sends a message, batched with those of other tasks, and waits until it is as durable as asked for.

        One that is cancelled may be in the log or not.
        """
        future = await self.submit(
            body, keys=keys, tag=tag, properties=properties, born_ms=born_ms, queue_id=queue_id,
            sharding_key=sharding_key,
        )  # fmt: skip
        return await future

    async def flush(self) -> None:
        """Waits until all that was sent before is answered.

        Raises the first error of a message since the last flush, whether anybody looked at its future or not.
        """
        async with self._changed:
            wanted = self._outbox.hurry()
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._outbox.answered >= wanted)
            failure = self._sending.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flushes and ends; messages that remain when a whole call had no answer fail with its error. Idempotent.

        One that is cancelled leaves the rest to the task that sends.
        """
        async with self._changed:
            self._sending.is_closed = True
            self._changed.notify_all()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self.flush()

    async def _send(self) -> None:
        try:
            while (batch := await self._next_batch()) is not None:
                try:
                    results = await self._run(self._sending.flow(batch))
                except asyncio.CancelledError:
                    await self._settle(batch, _abandoned(batch))
                    raise
                except Exception as error:
                    results = _not_sent(batch, error)
                await self._settle(batch, results)
        finally:  # nothing waits for a task that has ended
            self._sending.is_closed = True
            for batch in list(self._outbox.take_all()):
                await self._settle(batch, _abandoned(batch))

    async def _settle(self, batch: Batch[asyncio.Future[Appended]], results: Sequence[Appended | StoreError]) -> None:
        for future, result in zip(batch.futures, results, strict=True):
            if future.done():  # cancelled
                continue
            if isinstance(result, StoreError):
                future.set_exception(result)
                future.exception()  # flush raises it where nobody looks
            else:
                future.set_result(result)
        async with self._changed:
            self._sending.done(batch, results)
            self._changed.notify_all()

    async def _next_batch(self) -> Batch[asyncio.Future[Appended]] | None:
        """Waits until one may go; None once the producer is closed and has sent all."""
        async with self._changed:
            while True:
                due_s = self._outbox.due_in_s()
                if due_s is None and self._sending.is_closed:
                    return None
                if due_s is not None and (due_s <= 0 or self._sending.is_closed):
                    return self._outbox.take()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await self._changed.wait()
