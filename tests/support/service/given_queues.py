"""Queues of other stores as a test says, in memory: what is down tells nothing new, and is not forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tierlog.service.engine.groups import QueueEnds, no_such_store
from tierlog.tiering.base.errors import TopicNotFoundError, UnavailableError
from tierlog.tiering.hot.consumer_groups import Queue


class GivenQueues:
    """Stores whose queues all have offsets [0, ``end``)."""

    def __init__(self, end: int, there: dict[str, dict[str, int]] | None = None) -> None:
        self.end = end
        #: Queues of each topic of each store as they are.
        self.there = there or {}
        self.down: set[str] = set()
        self._told: dict[tuple[str, str], int] = {}

    def forget(self) -> None:
        """As after a restart of whoever asked."""
        self._told = {}

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        for store, counts in self.there.items():
            if store not in self.down:
                self._told |= {(topic, store): counts.get(topic, 0) for topic in topics}

    def counts(self, topic: str) -> Mapping[str, int]:
        return {store: count for (each, store), count in self._told.items() if each == topic and count}

    def last_known(self, queue: Queue) -> QueueEnds:
        if queue[1] not in self.there:
            raise no_such_store(queue[1])
        if queue[1] in self.down:
            raise UnavailableError("down")
        return self._known(queue)

    def offset_since(self, queue: Queue, time_ms: int) -> int:
        return min(time_ms, self.last_known(queue).max_offset)

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        for (topic, store, queue_id), offset in offsets.items():
            if store not in self.there:
                raise no_such_store(store)
            if offset > self.end or queue_id >= self._told.get((topic, store), 0):
                if store in self.down:
                    raise UnavailableError("down")
                self.refresh([topic])
        return {queue: self._known(queue).max_offset for queue in offsets}

    def _known(self, queue: Queue) -> QueueEnds:
        topic, store, queue_id = queue
        if queue_id >= self._told.get((topic, store), 0):
            raise TopicNotFoundError("no such queue")
        return QueueEnds(0, self.end)
