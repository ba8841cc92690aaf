"""Threads that each append one message and wait for the disk: who comes while one append is on its way shares the next.

So a batch costs one append and one flush, whoever is in it. The first of those who wait does it for the others; nobody
else is needed, and who comes alone waits for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service.appended import AppendedColumns
from tiering.batch import Message
from tiering.errors import StoreError
from tiering.pending import PendingMessages

#: A larger message is as long in writing as a flush takes, and shares only that.
_MOST_BYTES = 64 << 10


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages that are appended together. Each of the locks is held until its owner has something to do."""

    pending: PendingMessages
    waiting: list[threading.Lock] = field(default_factory=list)
    found: AppendedColumns | None = None
    is_over: bool = False
    is_lost: bool = False
    """Nobody knows how far it came."""


class SharedAppends:
    """Appends of single messages to one store. Thread safe."""

    def __init__(
        self, append: Callable[[PendingMessages], AppendedColumns], new_pending: Callable[[], PendingMessages]
    ) -> None:
        """``append`` is how messages become records, once they are as durable as the callers want."""
        self._append = append
        self._new_pending = new_pending
        self._lock = threading.Lock()
        self._next = _Batch(new_pending())
        self._is_busy = False

    def append(self, message: Message) -> AppendedColumns:
        """Append one message, alone or with those of others; raises as if it were alone."""
        if len(message.body) > _MOST_BYTES:
            return self._append_alone(message)
        with self._lock:
            is_first = not self._is_busy
            if is_first:
                self._is_busy = True
            else:
                batch = self._next
                place = batch.pending.add_message(message) - 1
                mine = threading.Lock()
                mine.acquire()
                batch.waiting.append(mine)
        if is_first:
            try:
                return self._append_alone(message)
            finally:
                self._pass_on()
        try:
            mine.acquire()
        except BaseException:  # interrupted: the others may count on whoever has this place
            threading.Thread(target=self._stand_in, args=(mine, batch), daemon=True).start()
            raise
        self._lead(batch)
        if batch.found is not None:
            return batch.found[place : place + 1]
        if batch.is_lost:
            raise StoreError("the append was interrupted; the message may be there or not")
        # another's message may be what was refused, and of a disk that failed the store tells each
        return self._append_alone(message)

    def _lead(self, batch: _Batch) -> None:
        """Append for all who have joined by now and let go of them, unless somebody did."""
        if batch.is_over:
            return
        with self._lock:
            self._next = _Batch(self._new_pending())
        try:
            batch.found = self._append(batch.pending)
        except StoreError:
            pass  # nothing of it is in the log, or the store is read-only now
        except BaseException:
            batch.is_lost = True
            raise
        finally:
            batch.is_over = True
            for each in batch.waiting[1:]:
                each.release()
            self._pass_on()

    def _stand_in(self, place: threading.Lock, batch: _Batch) -> None:
        place.acquire()
        self._lead(batch)

    def _pass_on(self) -> None:
        with self._lock:
            self._is_busy = bool(self._next.waiting)
            if self._is_busy:
                self._next.waiting[0].release()

    def _append_alone(self, message: Message) -> AppendedColumns:
        pending = self._new_pending()
        pending.add_message(message)
        return self._append(pending)
