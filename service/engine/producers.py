"""Producers, which append messages that are sent one by one many at a time: one for threads, one for asyncio.

:class:`Producer`, for threads: what was sent waits in a list, in the memory of this process alone, until there are
enough or :meth:`Producer.flush` is called. Killed before: those messages are lost, and nobody was told otherwise. After
``flush``: they are as durable as asked for, and readers see them.

:class:`AsyncProducer`: each message is answered where it went, and all that wait share one append and its flush. A
batch is appended on the loop itself while the disk is quick, on a thread of the producer's own while it is not. Killed
at any time: what was answered is as durable as asked for, what was not may be there or not.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from tierlog.service.engine.append_results import Appended, AppendedColumns
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import ClosedError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import ANY_QUEUE
from tierlog.tiering.message.pending import PendingMessages

#: Messages, and bytes of bodies and keys, that wait at most. More at a time are encoded no faster.
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 << 20


class Producer:
    """Sends to one open store, which it does not close. Thread safe; a thread's messages keep their order.

    What is wrong with a message is raised by the :meth:`send` that brought it, and nothing of it is kept. What is wrong
    with the store is raised by the ``send`` or ``flush`` that met it: where nothing was written yet, as with
    :class:`DiskFullError` and :class:`OverloadedError`, all that was sent is still pending and can be tried again;
    otherwise what was pending has had the fate of a batch that :meth:`Store.append` refused. The message of a
    ``send`` that raises was not taken.
    """

    def __init__(
        self,
        engine: Store,
        durability: Durability = Durability.FLUSHED,
        *,
        appended: Callable[[AppendedColumns], object] | None = None,
    ) -> None:
        """``appended`` is told of each batch, in the order of the messages, where they went; it must not send."""
        self._engine = engine
        self._durability = durability
        self._appended = appended
        self._lock = threading.Lock()
        self._pending = engine.pending_messages()
        #: Whether the next :meth:`send` has to do more than keep its message.
        self._is_due = False
        self._is_closed = False

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int = ANY_QUEUE,
    ) -> None:
        """Takes one message; once enough wait, appends them first, as durably as this producer was asked to.

        It is not readable, nor safe, before :meth:`flush`.
        """
        with self._lock:
            if self._is_due:
                self._append_due()
            count = self._pending.add(
                topic, body, keys=keys, tag=tag, properties=properties, born_ms=born_ms, queue_id=queue_id
            )
            if count >= BATCH_MESSAGES or self._pending.text_bytes >= BATCH_BYTES:
                self._is_due = True

    def flush(self) -> None:
        """Appends what waits; when it returns, all that was sent is durable and readable, also with ``async``."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Flushes, and takes no more. Idempotent; what cannot be appended now is given up, with the error."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = self._is_due = True
                self._flush()

    def _flush(self) -> None:
        # a batch that is flushed has those before it flushed as well, and so has one of no messages
        self._append(Durability.FLUSHED if self._durability is Durability.ASYNC else self._durability)

    def _append_due(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        self._append(self._durability)

    def _append(self, durability: Durability) -> None:
        try:
            found = self._engine.append(self._pending, durability)
        finally:  # after a failure, waiting messages may not have been taken
            enough = len(self._pending) >= BATCH_MESSAGES or self._pending.text_bytes >= BATCH_BYTES
            self._is_due = self._is_closed or enough
        if self._appended is not None and len(found):
            self._appended(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


#: Bytes of bodies and keys that collect at most; further senders wait.
MAX_PENDING_BYTES = 16 << 20
#: How long an append may block the event loop.
MAX_BLOCKING_S = 0.000_5
#: Processor time that a message may take beyond that: a thread would hold the interpreter's lock for as long.
_MESSAGE_S = 0.000_005
#: Most messages appended on the loop at once, however fast the disk is.
_MOST_ON_LOOP = 256
_MOST_BYTES_ON_LOOP = 256 << 10
#: Quick appends in a row before the loop appends by itself: one may be luck.
_QUICK_APPENDS = 8
#: Turns of the loop in which those may still come who were in the batch before: who awaits through other tasks is late.
_MOST_TURNS = 3


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages that are appended together, and the sender that waits for each."""

    pending: PendingMessages
    senders: list[asyncio.Future[Appended]] = field(default_factory=list)

    def answer(self, found: AppendedColumns) -> None:
        for sender, one in zip(self.senders, found, strict=True):
            if not sender.done():  # it was cancelled
                sender.set_result(one)

    def refuse(self, error: Exception) -> None:
        for sender in self.senders:
            if not sender.done():
                sender.set_exception(error)


class AsyncProducer:
    """Sends to one open store, which it does not close, from the event loop that it was made on.

    A batch holds whatever is sent while the one before is on its way, so many senders share an fdatasync. No timer
    waits for company: who was answered may send again first, and while fewer have come than were in the batch before,
    the loop goes round three times more at most.

    An append on the loop saves two changes of threads, which are longer than a quick flush, and holds up all else there
    meanwhile. So the loop appends, 256 messages at most, only while the last eight appends were quick; one slow flush
    moves them to the thread, where the loop waits for none, until eight in a row were quick again. It begins on the
    thread, as nobody knows the disk.
    """

    def __init__(
        self,
        engine: Store,
        durability: Durability = Durability.FLUSHED,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_blocking_s: float = MAX_BLOCKING_S,
        clock: Clock | None = None,
    ) -> None:
        """``max_pending_bytes`` of bodies and keys collect at most, and one message more.

        ``max_blocking_s`` and 5 us a message are what a quick append takes at most: so long are others on the loop held
        up by appends there, and by at most one in nine for as long as a slow flush takes. 0: never by any, at the price
        of a lower rate.
        """
        self._engine = engine
        self._durability = durability
        self._most_bytes = max_pending_bytes
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        #: A batch has many senders, and belongs to no one's trace.
        self._nobodys = Context()
        self._next = _Batch(engine.pending_messages())
        #: Whether something is being appended, or will be at the next turn of the loop.
        self._is_busy = False
        self._is_closed = False
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._most_s = max_blocking_s
        self._quick = 0
        self._company = self._turns = 0
        self._work: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int = ANY_QUEUE,
    ) -> Appended:
        """Appends one message and says where it went, once it is as durable as this producer was asked to make it.

        Raises at once what is wrong with the message, and later what :meth:`Store.append` raises for its batch: all
        who were in it get the same. Cancelled, the message may be appended or not; the others of its batch are.
        """
        while self._next.pending.text_bytes >= self._most_bytes and not self._is_closed:
            waiting = self._loop.create_future()
            self._room.append(waiting)
            await waiting
        if self._is_closed:
            raise ClosedError("the producer is closed")
        batch = self._next
        batch.pending.add(topic, body, keys=keys, tag=tag, properties=properties, born_ms=born_ms, queue_id=queue_id)
        sender: asyncio.Future[Appended] = self._loop.create_future()
        batch.senders.append(sender)
        if not self._is_busy:
            self._is_busy = True
            self._begin_soon()
        return await sender

    def _begin_soon(self) -> None:
        self._loop.call_soon(self._begin, context=self._nobodys)

    def _begin(self) -> None:
        """Appends what has collected, or rests."""
        batch = self._next
        if not batch.senders:
            self._is_busy = False
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        if len(batch.senders) < self._company and self._turns < _MOST_TURNS:
            self._turns += 1
            self._begin_soon()
            return
        self._company, self._turns = len(batch.senders), 0
        self._next = _Batch(self._engine.pending_messages())
        while self._room:
            waiting = self._room.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if self._may_block(batch):
            self._end(batch, self._append(batch))
        else:
            self._begin_thread()
            self._work.put(batch)

    def _may_block(self, batch: _Batch) -> bool:
        return (
            self._quick >= _QUICK_APPENDS
            and len(batch.senders) <= _MOST_ON_LOOP
            and batch.pending.text_bytes <= _MOST_BYTES_ON_LOOP
            and self._durability is not Durability.ARCHIVED
        )

    def _end(self, batch: _Batch, found: AppendedColumns | Exception) -> None:
        if isinstance(found, Exception):
            batch.refuse(found)
        else:
            batch.answer(found)
        # after those who were answered, so that what they send next is in one batch
        self._begin_soon()

    def _append(self, batch: _Batch) -> AppendedColumns | Exception:
        begun_s = self._clock.monotonic_s()
        try:
            return self._engine.append(batch.pending, self._durability)
        except Exception as error:  # the senders', of whatever kind
            return error
        finally:
            taken_s = self._clock.monotonic_s() - begun_s
            is_quick = self._most_s > 0 and taken_s <= self._most_s + len(batch.senders) * _MESSAGE_S
            self._quick = self._quick + 1 if is_quick else 0

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._append_all, name="tierlog-producer", daemon=True)
            self._thread.start()

    def _append_all(self) -> None:
        while (batch := self._work.get()) is not None:
            found = self._append(batch)
            try:
                self._loop.call_soon_threadsafe(self._end, batch, found, context=self._nobodys)
            except RuntimeError:  # the loop was closed before this producer, so nobody waits
                return

    async def close(self) -> None:
        """Takes no more, and returns when all that was taken is answered. Idempotent."""
        self._is_closed = True
        if self._is_busy:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)
        self._work.put(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
