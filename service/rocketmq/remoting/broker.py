"""What the requests of one door work with: the store, and what the door itself keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tierlog.service.access.audit import AuditLog
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.other_stores import OtherStores
from tierlog.service.rocketmq.remoting.clients import Clients
from tierlog.service.rocketmq.remoting.consumer_offsets import ConsumerOffsets
from tierlog.service.rocketmq.remoting.long_polls import LongPolls
from tierlog.service.rocketmq.remoting.queue_locks import QueueLocks
from tierlog.service.rocketmq.remoting.request_modes import RequestModes
from tierlog.service.rocketmq.shared_sends import SharedSends
from tierlog.tiering.base.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorContext:
    """What the requests of any door work with: its clients, and how they are reached."""

    settings: Settings
    clock: Clock
    #: ``host:port`` that clients are told.
    address: str
    clients: Clients
    polls: LongPolls
    #: Where what tools change is recorded.
    audit: AuditLog | None = None
    #: Runs something on the thread of the connections; from any thread.
    call_soon: Callable[[Callable[[], object]], object] = lambda work: work()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableBroker(DoorContext):
    """One store as clients of RocketMQ see it who only read."""

    store: Store
    offsets: ConsumerOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker(ReadableBroker):
    """One store as clients of RocketMQ see it: a broker, and a nameserver that knows it and the cluster's others."""

    sends: SharedSends
    locks: QueueLocks
    deliveries: Deliveries
    timers: Timers
    transactions: Transactions
    modes: RequestModes
    others: OtherStores

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.store.store_id
