"""Producers that have not said what became of a transaction are asked, by whichever door they are at."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tierlog.service.delivery.transactions import PRODUCER_GROUP, Transactions
from tierlog.service.engine.store import Store
from tierlog.tiering.base.backoff import Backoff, RepeatedTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.waiting import HALF_TOPIC

#: How often it is looked who is to be asked.
LOOK_S = 1.0
_JOIN_S = 2.0

#: Asks a producer of a group about a half message; whether there was one to ask.
Ask = Callable[[str, StoredMessage], bool]


class TransactionChecks:
    """Asks the producers of one store, on a thread of its own."""

    def __init__(self, store: Store, transactions: Transactions, clock: Clock, randomness: Randomness) -> None:
        self._store = store
        self._transactions = transactions
        self._clock = clock
        #: The doors, in turn until one has a producer of the group; set before the start.
        self.doors: list[Ask] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tierlog-transactions", daemon=True)
        self._task = RepeatedTask("asking producers", self.run_once, Backoff(clock, randomness, first_s=1, most_s=30))

    def start(self) -> None:
        """Asks from now on."""
        self._thread.start()

    def close(self) -> None:
        """Asks nobody any more. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _loop(self) -> None:
        while not self._clock.wait(self._stopping, LOOK_S):
            try:
                self._task.run_once()
            except ClosedError:
                return

    def run_once(self) -> None:
        """Asks whoever is to be asked now."""
        if self._store.find_queues(HALF_TOPIC) is None:
            return
        for message in self._transactions.due_checks():
            group = message.record.properties.get(PRODUCER_GROUP, "")
            any(ask(group, message) for ask in self.doors)
