"""Committed offsets of RocketMQ's consumers, which say with every pull how far they are: kept, and written in turn.

What somebody waits for is durable when it is answered. What comes beside a pull or oneway is known at once to whoever
asks, and written :data:`LATER_S` later with all else that has come by then, or at the stop; a broker of RocketMQ writes
its offsets every five seconds. Killed before: the group begins where it was, and gets those messages once more, as
after any kill of a consumer.

An offset may go back, as consumers of RocketMQ set it where they like. One that lies beyond the end of its queue, or of
a group that has members of tierlog's own, is refused; where nobody waits, it is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import NotFoundError, StoreError
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.message.batch import validate_topic_or_generation

_LOG = logging.getLogger("tierlog")
#: How long an offset waits that nobody waits for.
LATER_S = 1.0

#: Group, topic and queue.
Place = tuple[str, str, int]


class ConsumerOffsets:
    """Offsets of one store as the door's clients see them. Thread safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        #: What is not written yet, the newest of each.
        self._noted: dict[Place, int] = {}
        self._first_s = 0.0

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns where a group goes on in a queue; None if it has not said so."""
        validate_group(group)
        with self._lock:
            noted = self._noted.get((group, topic, queue_id))
        if noted is not None:
            return noted
        try:
            state = self._store.groups.committed(group)
        except NotFoundError:
            return None
        return state.offsets.get((topic, self._store.store_id, queue_id))

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Keeps an offset that is written a little later; raises for a name that no group or topic has."""
        if self.find(group, validate_topic_or_generation(topic), queue_id) == offset:
            return
        with self._lock:
            if not self._noted:
                self._first_s = self._clock.monotonic_s()
            self._noted[group, topic, queue_id] = offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commits an offset durably; raises what :meth:`ConsumerGroups.commit` raises."""
        with self._writing:
            with self._lock:
                self._noted.pop((group, topic, queue_id), None)
            self._write(group, {(topic, queue_id): offset})

    @property
    def is_due(self) -> bool:
        """Whether it is time to write what was noted."""
        return bool(self._noted) and self._clock.monotonic_s() - self._first_s >= LATER_S

    def flush(self) -> None:
        """Writes what was noted; an offset that cannot be is dropped, and logged."""
        with self._writing:
            with self._lock:
                noted = dict(self._noted)
            groups: dict[str, dict[tuple[str, int], int]] = {}
            for (group, topic, queue_id), offset in noted.items():
                groups.setdefault(group, {})[topic, queue_id] = offset
            for group, offsets in groups.items():
                self._write_all_possible(group, offsets)
            with self._lock:
                self._noted = {place: at for place, at in self._noted.items() if noted.get(place) != at}
                self._first_s = self._clock.monotonic_s()

    def forget(self, matches: Callable[[Place], bool]) -> None:
        """Drops what is not written yet of some places, as something else was decided for them."""
        with self._writing, self._lock:
            self._noted = {place: at for place, at in self._noted.items() if not matches(place)}

    def _write_all_possible(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        try:
            self._write(group, offsets)
        except StoreError as error:
            if len(offsets) == 1:
                _LOG.warning("an offset of group %s was not committed: %s", group, error)
                return
            for queue, offset in offsets.items():
                self._write_all_possible(group, {queue: offset})

    def _write(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        own = self._store.store_id
        moves = {(topic, own, queue_id): offset for (topic, queue_id), offset in offsets.items()}
        self._store.groups.commit(group, moves, reset=True)
