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
from queue import SimpleQueue
from typing import NamedTuple

from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ClosedError, StoreError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.client_messages import ClientMessages

_LOG = logging.getLogger("tierlog")
#: Bytes and messages from which on those who come share the append after the next.
_MOST_BYTES, _MOST_SENDS = 8 << 20, 4_096
#: Turns of the loop without another send, after which those that have come are appended.
_IDLE_TURNS = 3
#: Beside the body and the properties.
_SEND_BYTES = 256

#: Takes the places of a send's messages, or why there are none.
Done = Callable[[Sequence[Appended] | BaseException], object]
_Outcomes = Sequence[tuple[Done, Sequence[Appended] | BaseException]]


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
    """Appends what clients send. Thread safe.

    Who was answered may send again at once, and so be in the next append with those who came meanwhile. So before that
    one begins, the loop goes round as long as that brings more, until as many have come as were in the last. It waits
    for nobody: a few turns that bring nothing end it, which take microseconds.
    """

    def __init__(
        self,
        store: Store,
        at_turn_end: Callable[[Callable[[], object]], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        """``at_turn_end`` runs something on the loop when all that has come by now was looked at.

        ``tell`` runs something on the loop too, for the thread that appends: there ``done`` of all sends of an append
        are called in one turn.
        """
        self._store = store
        self._at_turn_end = at_turn_end
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: deque[_Batch] = deque()
        #: Whether something is being appended, or will be.
        self._is_busy = self._is_closed = False
        #: Sends in the last append, those that had come at the last turn, and turns since that brought none.
        self._company = self._seen = self._idle_turns = 0
        self._work: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tierlog-rocketmq-append", daemon=True)

    def start(self) -> None:
        """Appends from now on."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Takes no more, and appends what is there as far as there is time. Idempotent."""
        with self._lock:
            self._is_closed = True
            while self._waiting:
                self._work.put(self._waiting.popleft())
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def add(self, sent: Sent, done: Done) -> None:
        """Has it appended, and ``done`` called; raises what is wrong with it, which nobody else's messages feel."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the service is stopping")
            if not self._waiting or self._waiting[-1].is_full:
                self._waiting.append(_Batch(self._store.client_messages()))
            batch = self._waiting[-1]
            try:
                places = sent.add_to(batch.messages)
            except BaseException:
                if not batch.sends:
                    self._waiting.pop()
                raise
            batch.sends.append((sent, places, done))
            batch.bytes += len(sent.body) + len(sent.properties or b"") + _SEND_BYTES
            was_busy, self._is_busy = self._is_busy, True
        if not was_busy:
            self._at_turn_end(self._begin)

    def _begin(self) -> None:
        """Hands the next batch to the thread, on the loop, or looks for company first."""
        with self._lock:
            if not self._waiting:
                self._is_busy = False
                return
            waits = self._waits_for_company(self._waiting[0])
            if not waits:
                self._work.put(self._waiting.popleft())
        if waits:
            self._at_turn_end(self._begin)

    def _waits_for_company(self, batch: _Batch) -> bool:
        count = len(batch.sends)
        self._idle_turns = 0 if count > self._seen else self._idle_turns + 1
        self._seen = count
        if count < self._company and not batch.is_full and self._idle_turns < _IDLE_TURNS:
            return True
        self._company, self._seen, self._idle_turns = count, 0, 0
        return False

    # the thread that appends

    def _run(self) -> None:
        while (batch := self._work.get()) is not None:
            outcomes = self._append(batch)
            del batch
            self._tell(partial(self._told, outcomes))
            del outcomes

    def _append(self, batch: _Batch) -> _Outcomes:
        """Appends for all; each alone if another's message may be what was refused."""
        try:
            rows = list(self._store.append(batch.messages, Durability.FLUSHED))
        except StoreError as error:  # none of it is in the log, or the store is read-only now
            if len(batch.sends) > 1:
                return [(done, self._append_alone(sent)) for sent, _, done in batch.sends]
            return [(done, error) for _, _, done in batch.sends]
        except BaseException as error:  # whatever ended the append: each client waits, and this thread goes on
            return [(done, error) for _, _, done in batch.sends]
        return [(done, rows[places.start : places.stop]) for _, places, done in batch.sends]

    def _append_alone(self, sent: Sent) -> Sequence[Appended] | BaseException:
        messages = self._store.client_messages()
        try:
            sent.add_to(messages)
            return list(self._store.append(messages, Durability.FLUSHED))
        except BaseException as error:  # of this client alone: the next ones wait for this thread
            return error

    # the loop again

    def _told(self, outcomes: _Outcomes) -> None:
        for done, found in outcomes:
            try:
                done(found)
            except Exception:
                _LOG.exception("a send could not be answered")
        # after those who were answered, so that what they send next is in one append
        self._at_turn_end(self._begin)
