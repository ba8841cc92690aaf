"""A member of a consumer group at work, for handlers that block: each runs on a thread of a pool.

Everything but the handlers is an :class:`AsyncConsumer` on an event loop of its own, on a thread of its own. So a
handler may take as long as it likes and the session goes on, and a hundred queues need no more threads than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from tierlog.client.async_client import AsyncClient
from tierlog.client.async_consumer import AsyncConsumer
from tierlog.client.client import Client
from tierlog.client.consumer_settings import ConsumerCounts, Consuming, ConsumingChanges, Decision
from tierlog.client.models import QueueRef, StoredMessage
from tierlog.tiering.base.errors import ClosedError

T = TypeVar("T")

Handler = Callable[[StoredMessage], object]
OnFailure = Callable[[StoredMessage, Exception], Decision]


def stop(message: StoredMessage, error: Exception) -> Decision:
    """Ends the consumer with the error: what happens to a message that cannot be handled, unless told otherwise."""
    return Decision.STOP


class Consumer:
    """Handles the messages of some topics together with the other members of a group. Thread safe, once.

    ``with`` joins and begins, and closes at the end; :meth:`wait` raises what ended it.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: str | Iterable[str],
        handler: Handler,
        *,
        on_failure: OnFailure = stop,
        settings: Consuming | None = None,
        **changes: Unpack[ConsumingChanges],
    ) -> None:
        """``changes`` are fields of :class:`Consuming`, for what ``settings`` does not say.

        A message is done when ``handler`` returns; it is called by ``workers`` threads. The consumer has connections
        of its own, so ``client`` may be closed before it.
        """
        self._client, self._group = client, group
        self._topics = topics if isinstance(topics, str) else list(topics)
        self._handler, self._on_failure = handler, on_failure
        self._settings = replace(settings or Consuming(), **changes)
        self._thread = threading.Thread(target=self._main, name=f"tierlog-consumer-{group}", daemon=True)
        self._begun = threading.Event()
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer: AsyncConsumer | None = None
        self._failure: BaseException | None = None
        self._is_told = False

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None and self._failure is not None and not self._is_told:
            raise self._failure

    def start(self) -> None:
        """Starts in the background, once."""
        if self._begun.is_set():
            raise ClosedError("a consumer begins once", hint="make another")
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Begins to stop and does not wait; a handler may call it."""
        if self._loop is not None and self._consumer is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._consumer.stop)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the consumer has ended, at most ``timeout_s``; returns whether it has, and raises what ended it.

        :class:`HandlerFailedError` after a failure that ``on_failure`` did not let pass, else what the service
        refused for good.
        """
        if not self._over.wait(timeout_s):
            return False
        if self._failure is not None:
            self._is_told = True
            raise self._failure
        return True

    def close(self) -> None:
        """Stops handing out, waits ``drain_s`` for running handlers, commits what is done, and leaves the group.

        Handlers that take longer are left alone, and their messages come again. Idempotent.
        """
        self.stop()
        if self._begun.is_set():
            self._thread.join()

    @property
    def counts(self) -> ConsumerCounts:
        """The counts of what was done until now."""
        return ConsumerCounts() if self._consumer is None else self._consumer.counts

    @property
    def assignment(self) -> tuple[QueueRef, ...]:
        """The queues that are read now."""
        return () if self._consumer is None else self._consumer.assignment

    def _main(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()
            self._begun.set()

    async def _consume(self) -> None:
        hands = _Hands(self._settings.workers, self._group)

        async def handle(message: StoredMessage) -> None:
            await hands.call(self._handler, message)

        async def decide(message: StoredMessage, error: Exception) -> Decision:
            return await hands.call(self._on_failure, message, error)

        async with AsyncClient.like(self._client) as client:
            consumer = AsyncConsumer(
                client, self._group, self._topics, handle, on_failure=decide, settings=self._settings
            )
            self._loop, self._consumer = asyncio.get_running_loop(), consumer
            consumer.start()
            self._begun.set()
            try:
                await consumer.wait()
            finally:
                await consumer.close()
                hands.close()


class _Hands:
    """Threads that call what blocks. They are daemons: one that never ends keeps no process from ending."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"tierlog-handler-{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends idle threads at once and busy ones when they are done; waits for none."""
        for _ in self._threads:
            self._work.put(None)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs a function on one of the threads, and returns or raises what it does."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            error: Exception | None = None
            try:
                result = function(*arguments)
            except BaseException as raised:
                error = _for_a_future(raised)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                if error is None:
                    loop.call_soon_threadsafe(_settle, future, result)
                else:
                    loop.call_soon_threadsafe(_settle, future, None, error)

        self._work.put(work)
        return await future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _for_a_future(raised: BaseException) -> Exception:
    """Returns what a future can hold: an exit of a handler is a failure of it, and no end of this thread."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    failure = RuntimeError(f"the handler ended with {raised!r}")
    failure.__cause__ = raised
    return failure


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
