"""Replays between two pulls: each pull is a call of its own, and the next one goes on where the last one stopped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from tiering.cold.caching.fetch_pool import FetchPool
from tiering.cold.replay import QueueReplay, ReadAheadBudget

_MAX_IDLE = 64
_THREADS = 8
_LINGER_S = 0.1
"""About what a window takes to be read: the next finds a thread that need not be started."""

#: Topic id, queue id and the offset to go on at.
ReplayKey = tuple[int, int, int]


class Replays:
    """Keeps at most 64 replays that nobody is reading, the least recently left goes first. Thread safe.

    All of them are of one version of the manifest: a newer one may have other objects in the place of theirs.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.budget = ReadAheadBudget(limit_bytes)
        self.pool = FetchPool(_THREADS, linger_s=_LINGER_S)
        self._lock = threading.Lock()
        self._version = 0
        self._idle: OrderedDict[ReplayKey, QueueReplay] = OrderedDict()

    def take(self, version: int, key: ReplayKey, make: Callable[[], QueueReplay]) -> tuple[QueueReplay, bool]:
        """The replay that was left there, or a new one, and whether it was left; nobody else gets it meanwhile."""
        with self._lock:
            outdated = self._of_version(version)
            found = self._idle.pop(key, None)
        _drop(outdated)
        if found is None:
            return make(), False
        self._make_room()
        found.expect_more()
        return found, True

    def has(self, version: int, key: ReplayKey) -> bool:
        """Whether a replay of this version was left there."""
        with self._lock:
            return version == self._version and key in self._idle

    def leave(self, version: int, key: ReplayKey, replay: QueueReplay) -> None:
        """Keep a replay for the next pull. Of two that stopped at one place the later is kept."""
        with self._lock:
            dropped = self._of_version(version)
            if key in self._idle:
                dropped.append(self._idle.pop(key))
            self._idle[key] = replay
            if self.budget.limit_bytes == 0 or len(self._idle) > _MAX_IDLE:
                dropped.append(self._idle.popitem(last=False)[1])
        _drop(dropped)

    def _of_version(self, version: int) -> list[QueueReplay]:
        """Go over to another version; the replays that end with the one before."""
        if version == self._version:
            return []
        outdated, self._idle = list(self._idle.values()), OrderedDict()
        self._version = version
        return outdated

    def _make_room(self) -> None:
        """Drop what was left longest ago, as long as less than a quarter of the budget is free."""
        while self.budget.used_bytes > self.budget.limit_bytes * 3 // 4:
            with self._lock:
                if not self._idle:
                    return
                _, oldest = self._idle.popitem(last=False)
            oldest.drop()


def _drop(replays: list[QueueReplay]) -> None:
    for each in replays:
        each.drop()
