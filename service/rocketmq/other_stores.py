"""The other stores of the cluster as clients of RocketMQ see them: brokers beside this one.

Every door is a nameserver too, and each gives the same routes: the table of the cluster says where the doors of the
others are, and each of them is asked for its queues of a topic over REST (:class:`QueueCounts`). One that does not
answer leaves the routes until it does, so that producers send to those that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tierlog.service.cluster.queue_counts import QueueCounts
from tierlog.service.cluster.table_view import TableView
from tierlog.service.config.cluster import ClusterSettings
from tierlog.tiering.base.clock import Clock

#: Greatest age of what others have told; clients ask for a route every 30 s.
_AGE_MS = 1_000

Door = Literal["remoting", "grpc"]


class StoreQueues(NamedTuple):
    """Another store that has a topic: the address of its door, and its queues."""

    address: str
    queues: int


class OtherStores:
    """The other stores, as those told last. Thread safe."""

    def __init__(self, view: TableView | None, settings: ClusterSettings, clock: Clock) -> None:
        """``view`` is None for a store that is alone."""
        self._view = view
        self._counts = None if view is None else QueueCounts(view, settings, clock)
        self._age_ms = min(_AGE_MS, settings.refresh_ms)

    def are_known(self, door: Door) -> bool:
        """Whether there is another store with such a door, so that asking it may take time."""
        return bool(self._addresses(door))

    def ask(self, topic: str) -> None:
        """Asks them for their queues of a topic, if that was not done just before; waits for a bounded time.

        Whatever the topic, who does not answer is known then.
        """
        if self._counts is not None:
            self._counts.refresh([topic], age_ms=self._age_ms)

    def brokers(self, door: Door) -> dict[str, str]:
        """Returns the address of each store that has such a door, and answered when it was asked last."""
        counts = self._counts
        if counts is None:
            return {}
        return {name: address for name, address in self._addresses(door).items() if counts.is_answering(name)}

    def with_topic(self, topic: str, door: Door) -> dict[str, StoreQueues]:
        """Returns those of :meth:`brokers` that have a topic, by store."""
        counts: Mapping[str, int] = {} if self._counts is None else self._counts.counts(topic)
        return {
            name: StoreQueues(address, counts[name]) for name, address in self.brokers(door).items() if name in counts
        }

    def takes(self, topic: str, store_id: str) -> bool:
        """Whether a store takes new messages of a topic from clients that choose among stores."""
        return self._view is None or self._view.takes(topic, store_id)

    def _addresses(self, door: Door) -> dict[str, str]:
        if self._view is None:
            return {}
        own = self._view.own_store
        return {
            place.store_id: place.doors[door]
            for place in self._view.stores()
            if place.store_id != own and door in place.doors
        }
