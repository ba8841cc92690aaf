"""Sends of all connections share appends: those that come while one append is on its way are in the next.

One thread appends. So a batch costs one append and one flush, whoever is in it, and who comes alone waits for nobody.
Killed before the flush: nobody was answered, and the messages are in the log or not. After it: they are there, whether
or not the answers went out.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ClosedError, StoreError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.client_messages import ClientMessages

_LOG = logging.getLogger("tierlog")
#: Bytes and messages from which on those who come share the append after the next.
_MOST_BYTES, _MOST_SENDS = 8 << 20, 4_096
#: Beside the body and the properties.
_SEND_BYTES = 256

#: Takes the places of a send's messages, or why there are none.
Done = Callable[[Sequence[Appended] | BaseException], object]


class Sent(NamedTuple):
    """What one client sent: a message, or a client batch of them."""

    topic: str
    queue_id: int
    body: bytes
    #: Property text; None for a batch, whose messages have their own.
    properties: bytes | None
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0

    def add_to(self, messages: ClientMessages) -> range:
        """Adds the messages and returns their places; raises what is wrong with them."""
        if self.properties is None:
            return messages.add_batch(
                self.topic, self.queue_id, self.body, sys_flag=self.sys_flag, born_ms=self.born_ms,
                born_host=self.born_host, reconsume_times=self.reconsume_times,
            )  # fmt: skip
        place = messages.add(
            self.topic, self.queue_id, self.body, self.properties, flag=self.flag, sys_flag=self.sys_flag,
            born_ms=self.born_ms, born_host=self.born_host, reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
        )  # fmt: skip
        return range(place, place + 1)


@dataclass(slots=True, eq=False)
class _Batch:
    messages: ClientMessages
    sends: list[tuple[Sent, range, Done]] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= _MOST_BYTES or len(self.sends) >= _MOST_SENDS


class SharedSends:
    """Appends what clients send. Thread safe."""

    def __init__(
        self,
        store: Store,
        at_turn_end: Callable[[Callable[[], object]], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        """``at_turn_end`` runs something when all that has come by now was looked at.

        ``tell`` is called on the thread that appends, once an append, and runs where ``done`` of its sends are called.
        """
        self._store = store
        self._at_turn_end = at_turn_end
        self._tell = tell
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[_Batch] = deque()
        self._is_told = self._is_closed = False
        self._may_begin = False
        self._thread = threading.Thread(target=self._run, name="tierlog-rocketmq-append", daemon=True)

    def start(self) -> None:
        """Appends from now on."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Takes no more, and appends what is there as far as there is time. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def add(self, sent: Sent, done: Done) -> None:
        """Has it appended, and ``done`` called; raises what is wrong with it, which nobody else's messages feel."""
        with self._changed:
            if self._is_closed:
                raise ClosedError("the service is stopping")
            if not self._waiting or self._waiting[-1].is_full:
                self._waiting.append(_Batch(self._store.client_messages()))
            batch = self._waiting[-1]
            places = sent.add_to(batch.messages)
            batch.sends.append((sent, places, done))
            batch.bytes += len(sent.body) + len(sent.properties or b"") + _SEND_BYTES
            is_first = not self._is_told
            self._is_told = True
        if is_first:
            self._at_turn_end(self._begin)

    def _begin(self) -> None:
        with self._changed:
            self._may_begin = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if not self._append(batch):
                for sent, _, done in batch.sends:
                    self._append_alone(sent, done)
            del batch

    def _next(self) -> _Batch | None:
        """Waits for the next batch; None at the end. Whoever comes from now on shares the next one."""
        with self._changed:
            if not self._waiting:
                self._is_told = self._may_begin = False
            while not (self._waiting and (self._may_begin or self._is_closed)):
                if self._is_closed and not self._waiting:
                    return None
                self._changed.wait()
            return self._waiting.popleft()

    def _append(self, batch: _Batch) -> bool:
        """Appends for all; whether they were told, as they are not if another's message may be what was refused."""
        found: list[Appended] | BaseException
        try:
            found = list(self._store.append(batch.messages, Durability.FLUSHED))
        except StoreError as error:  # none of it is in the log, or the store is read-only now
            if len(batch.sends) > 1:
                return False
            found = error
        except BaseException as error:  # whatever ended the append: each client waits, and this thread goes on
            found = error
        self._tell(partial(_tell_all, batch.sends, found))
        return True

    def _append_alone(self, sent: Sent, done: Done) -> None:
        messages = self._store.client_messages()
        try:
            sent.add_to(messages)
            found: list[Appended] | BaseException = list(self._store.append(messages, Durability.FLUSHED))
        except BaseException as error:  # of this client alone: the next ones wait for this thread
            found = error
        self._tell(partial(_tell_all, [(sent, range(len(messages)), done)], found))


def _tell_all(sends: Sequence[tuple[Sent, range, Done]], found: list[Appended] | BaseException) -> None:
    """Tells each of the sends of one append what became of its messages."""
    for _, places, done in sends:
        try:
            done(found if isinstance(found, BaseException) else found[places.start : places.stop])
        except Exception:
            _LOG.exception("a send could not be answered")
