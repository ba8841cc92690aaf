"""A producer for threads: messages one by one, appended many at a time.

What was sent waits in a list, in the memory of this process alone, until there are enough or :meth:`Producer.flush` is
called. Killed before: those messages are lost, and nobody was told otherwise. After ``flush``: they are as durable as
asked for, and readers see them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from service.appended import AppendedColumns
from service.engine import Engine
from tiering.batch import ANY_QUEUE
from tiering.errors import ClosedError
from tiering.types import Durability

#: Messages, and bytes of bodies and keys, that wait at most. More at a time are encoded no faster.
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 << 20


class Producer:
    """Sends to one open store, which it does not close. Thread safe; a thread's messages keep their order.

    What is wrong with a message is raised by the :meth:`send` that brought it, and nothing of it is kept. What is wrong
    with the store is raised by the ``send`` or ``flush`` that met it: where nothing was written yet, as with
    :class:`DiskFullError` and :class:`OverloadedError`, all that was sent is still pending and can be tried again;
    otherwise what was pending has had the fate of a batch that :meth:`Engine.append` refused. The message of a
    ``send`` that raises was not taken.
    """

    def __init__(
        self,
        engine: Engine,
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
        #: The next :meth:`send` has more to do than to keep its message.
        self._is_due = False
        self._is_closed = False

    def send(
        self,
        topic: str,
        body: bytes,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int = ANY_QUEUE,
    ) -> None:
        """Take one message; once enough wait, append them first, as durably as this producer was asked to.

        It is not readable, nor safe, before :meth:`flush`.
        """
        with self._lock:
            if self._is_due:
                self._append_due()
            count = self._pending.add(topic, body, keys, tag, properties, born_ms, queue_id)
            if count >= BATCH_MESSAGES or self._pending.text_bytes >= BATCH_BYTES:
                self._is_due = True

    def flush(self) -> None:
        """Append what waits; when it returns, all that was sent is durable and readable, also with ``async``."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Flush, and take no more. Idempotent; what cannot be appended now is given up, with the error."""
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
        finally:  # after a failure what waits may not have been taken
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
