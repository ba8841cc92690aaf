"""The gRPC door of a store: every call of the protocol, on one open store."""

from __future__ import annotations

from collections.abc import Mapping

from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.engine.store import Store
from tierlog.service.observing.counts import DoorCounts, DoorNumbers
from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.grpc.calls import DoorLanes, DoorParts, Waits
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.service.rocketmq.grpc.offsets import Offsets
from tierlog.service.rocketmq.grpc.passing import PassedCalls
from tierlog.service.rocketmq.grpc.receives import Receives
from tierlog.service.rocketmq.grpc.renewals import Renewals
from tierlog.service.rocketmq.grpc.routes import Routes
from tierlog.service.rocketmq.grpc.sends import Sends
from tierlog.service.rocketmq.grpc.server import Answering, GrpcServer
from tierlog.service.rocketmq.grpc.transactions import TransactionEnds
from tierlog.service.rocketmq.other_stores import OtherStores
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.message.stored_message import StoredMessage

#: Time for a question to a producer to be sent.
_ASK_S = 5.0


class GrpcDoor:
    """Serves one store to clients of ``apache.rocketmq.v2``."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        *,
        deliveries: Deliveries,
        timers: Timers,
        transactions: Transactions,
        others: OtherStores,
        address: tuple[str, int] | None = None,
        control: AccessControl | None = None,
    ) -> None:
        """``address`` is host and port that clients are told; unless given, where it listens."""
        lanes = DoorLanes(settings.serve)
        self._answers: _StoreAnswers | None = None

        def make(waits: Waits, told: tuple[str, int]) -> _StoreAnswers:
            self._answers = _StoreAnswers(
                DoorParts(
                    store,
                    settings,
                    clock,
                    deliveries=deliveries,
                    timers=timers,
                    transactions=transactions,
                    others=others,
                    lanes=lanes,
                    address=told,
                    waits=waits,
                )
            )
            return self._answers

        self._server = GrpcServer(settings, SignedAccess(control, clock), make, clock=clock, address=address)

    @property
    def counts(self) -> DoorCounts:
        """What metrics tell of it."""
        return self._server.counts

    def numbers(self) -> DoorNumbers:
        """What is there now."""
        waiting = self._server.waiting
        return DoorNumbers(0, 0, 0, 0, waiting) if self._answers is None else self._answers.clients.numbers(waiting)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    def ask(self, group: str, half: StoredMessage) -> bool:
        """Asks a producer about a transaction, from another thread; False if none of its group is at this door."""
        if self._answers is None:
            return False
        return self._server.run(self._answers.ends.ask(group, half), _ASK_S) or False

    def start(self) -> None:
        """Accepts connections from now on; :class:`InvalidRequestError` if it cannot listen there."""
        self._server.start()

    def stop(self, timeout_s: float) -> None:
        """Stops within about ``timeout_s``; idempotent."""
        self._server.stop(timeout_s)


class _StoreAnswers:
    """What answers from a store."""

    def __init__(self, parts: DoorParts) -> None:
        self.clients = GrpcClients(parts.settings, parts.clock)
        self._renewals = Renewals(parts, self.clients)
        self._passed = PassedCalls(parts.settings)
        self._sends = Sends(parts, self._passed)
        routes, offsets = Routes(parts), Offsets(parts, self.clients)
        self.ends = TransactionEnds(parts, self.clients)
        receives = Receives(parts, self.clients, self._renewals)
        self.calls: Mapping[str, Answering] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "SendMessage": self._sends.send_message,
            "RecallMessage": self._sends.recall_message,
            "Heartbeat": self.clients.heartbeat,
            "NotifyClientTermination": self.clients.notify_client_termination,
            "Telemetry": self.clients.telemetry,
            "ReceiveMessage": receives.receive_message,
            "AckMessage": receives.ack_message,
            "ChangeInvisibleDuration": receives.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": receives.forward_message_to_dead_letter_queue,
            "PullMessage": offsets.pull_message,
            "UpdateOffset": offsets.update_offset,
            "GetOffset": offsets.get_offset,
            "QueryOffset": offsets.query_offset,
            "EndTransaction": self.ends.end_transaction,
        }

    async def start(self) -> None:
        self._sends.start()

    async def look(self) -> None:
        self.clients.expire()
        await self._renewals.look()

    async def stop(self, timeout_s: float) -> None:
        self._sends.stop(timeout_s)
        await self._passed.close()
