"""The door of a store for clients of RocketMQ's remoting protocol: what is served, and what it is served with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable

from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.other_stores import OtherStores
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import HANDLERS
from tierlog.service.rocketmq.remoting.clients import Clients
from tierlog.service.rocketmq.remoting.consumer_offsets import ConsumerOffsets
from tierlog.service.rocketmq.remoting.handlers import (
    assignment,
    broker_tools,
    client_tools,
    group_tools,
    locking,
    lookups,
    membership,
    offsets,
    popping,
    pulling,
    recalling,
    routes,
    sending,
    topic_tools,
)
from tierlog.service.rocketmq.remoting.handlers import (
    transactions as transactions_handlers,
)
from tierlog.service.rocketmq.remoting.queue_locks import QueueLocks
from tierlog.service.rocketmq.remoting.refusals import why_refused
from tierlog.service.rocketmq.remoting.request_modes import RequestMode, RequestModes
from tierlog.service.rocketmq.remoting.server import RemotingServer
from tierlog.service.rocketmq.shared_sends import SharedSends
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock

#: The modules that declare what is answered.
SUBJECTS = (
    assignment, broker_tools, client_tools, group_tools, locking, lookups, membership, offsets, popping, pulling,
    recalling, routes, sending, topic_tools, transactions_handlers,
)  # fmt: skip


class RemotingDoor(RemotingServer[Broker]):
    """Serves one store to clients of RocketMQ's remoting protocol."""

    def __init__(
        self,
        listening: socket.socket,
        store: Store,
        settings: Settings,
        clock: Clock,
        *,
        deliveries: Deliveries,
        timers: Timers,
        transactions: Transactions,
        others: OtherStores,
        address: str,
        control: AccessControl,
        audit: AuditLog | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """``listening`` is bound and listens; ``address`` is what clients are told."""
        super().__init__(listening, settings, clock, HANDLERS, control=control, tls=tls)
        self.broker = Broker(
            store=store, settings=settings, clock=clock, address=address, clients=Clients(clock, self.tell_members),
            sends=SharedSends(store, self._at_turn_end, self.call_soon), polls=self._polls,
            offsets=ConsumerOffsets(store, clock), locks=QueueLocks(clock), deliveries=deliveries, timers=timers,
            transactions=transactions, audit=audit, call_soon=self.call_soon,
            modes=RequestModes(store, clock, RequestMode(settings.rocketmq.request_mode)), others=others,
        )  # fmt: skip

    def start(self) -> None:
        """Accepts connections from now on."""
        self.broker.sends.start()
        super().start()

    def stop(self, timeout_s: float) -> None:
        """Stops within about ``timeout_s``; idempotent."""
        super().stop(timeout_s)
        self.broker.sends.stop(timeout_s)

    def committed_offsets(self) -> Iterable[ConsumerOffsets]:
        """Returns the offsets of the store's groups."""
        return (self.broker.offsets,)

    def why_refused(self, code: int) -> str:
        """Returns what whoever asks for something that is not answered is told."""
        return why_refused(code)

    def _at_turn_end(self, work: Callable[[], object]) -> None:
        """Runs ``work`` when the loop has looked at all that has come; from any thread."""
        if threading.get_ident() == self._thread.ident:
            self.loop.call_soon(work)
        else:
            self.call_soon(work)
