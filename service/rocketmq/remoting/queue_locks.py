"""Queues that one client of a group consumes alone, for messages in order; a lock ends :data:`LOCK_S` after its last
renewal, as in RocketMQ, and with the process."""

from __future__ import annotations

import threading
from collections.abc import Collection

from tierlog.tiering.base.clock import Clock

#: Time for which a lock is held; clients renew theirs every 20 s.
LOCK_S = 60.0
_MOST_LOCKS = 100_000

#: Topic and queue.
LockedQueue = tuple[str, int]


class QueueLocks:
    """The locks of one door. Thread safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Who holds a queue of a group, and until when.
        self._held: dict[tuple[str, LockedQueue], tuple[str, float]] = {}

    def lock(self, group: str, client_id: str, queues: Collection[LockedQueue]) -> list[LockedQueue]:
        """Locks or renews what nobody else holds, and returns that."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if len(self._held) + len(queues) > _MOST_LOCKS:
                self._held = {place: held for place, held in self._held.items() if held[1] > now_s}
            got = []
            for queue in queues:
                holder, until_s = self._held.get((group, queue), (client_id, now_s))
                is_room = len(self._held) < _MOST_LOCKS or (group, queue) in self._held
                if (holder == client_id or until_s <= now_s) and is_room:
                    self._held[group, queue] = (client_id, now_s + LOCK_S)
                    got.append(queue)
        return got

    def unlock(self, group: str, client_id: str, queues: Collection[LockedQueue]) -> None:
        """Ends the client's own locks among these."""
        with self._lock:
            for queue in queues:
                if self._held.get((group, queue), ("", 0.0))[0] == client_id:
                    del self._held[group, queue]

    def is_locked(self, group: str) -> bool:
        """Whether any queue of the group is held."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            return any(name == group and until_s > now_s for (name, _), (_, until_s) in self._held.items())
