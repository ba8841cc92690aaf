"""Clients: who is there, what they said of themselves, and what they are told to do.

A client opens Telemetry first, sends its settings there and works by those that it gets back. It is known until it says
that it goes, which ends its calls that wait for messages, or nothing was heard of it for some time. Nothing of this is
durable: after a restart its stream breaks, and it sends its settings again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tierlog.service.config.settings import Settings
from tierlog.service.observing.counts import DoorNumbers
from tierlog.service.rocketmq.grpc.calls import GrpcCall, full_name, group_name, is_fifo
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError
from tierlog.service.rocketmq.grpc.messages import set_milliseconds
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base.clock import Clock

_LOG = logging.getLogger("tierlog")
#: Silence after which a client is gone. Clients send a heartbeat every 10 s.
CLIENT_MS = 60_000
RECEIVE_BATCH = 32
PRODUCER_ATTEMPTS = 3
_PRODUCER_BACKOFF_MS, _MOST_PRODUCER_BACKOFF_MS, _BACKOFF_FACTOR = 10, 1_000, 2.0
#: How long a consumer waits before a message that failed is delivered to it again: RocketMQ's delays.
CONSUMER_BACKOFF_MS = tuple(1000 * s for s in (10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200))
_CONSUMERS = frozenset(
    (enums.ClientType.PUSH_CONSUMER, enums.ClientType.SIMPLE_CONSUMER, enums.ClientType.PULL_CONSUMER)
)
_KNOWN_TYPES = _CONSUMERS | {enums.ClientType.PRODUCER}


@dataclass(slots=True, eq=False)
class Client:
    """One client that was heard of."""

    seen_s: float
    #: What it sent last, None before that.
    settings: Any = None
    #: The streams on which it is told something.
    streams: set[GrpcCall] = field(default_factory=set)
    #: What its calls that wait are waiting for.
    waiting: set[asyncio.Event] = field(default_factory=set)
    #: It has said that it goes, and takes no more messages.
    has_left: bool = False

    def leave(self) -> None:
        """Ends its calls that wait."""
        self.has_left = True
        for event in self.waiting:
            event.set()


class GrpcClients:
    """The clients of a door. Used on the loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._most = settings.rocketmq.max_connections
        self._by_id: dict[str, Client] = {}

    def is_there(self, client_id: str) -> bool:
        """Whether a client was heard of lately."""
        client = self._by_id.get(client_id)
        return client is not None and (bool(client.streams) or self._age_ms(client) < CLIENT_MS)

    def heard_of(self, client_id: str) -> Client:
        """Returns a client that calls just now."""
        client = self._by_id.get(client_id)
        if client is None:
            self.expire()
            if len(self._by_id) >= self._most:
                raise RefusedError(
                    Code.TOO_MANY_REQUESTS,
                    f"{len(self._by_id)} clients are there already; rocketmq.max_connections is the limit",
                )
            client = self._by_id[client_id] = Client(0.0)
        client.seen_s = self._clock.monotonic_s()
        return client

    def producers(self, topic: str) -> list[str]:
        """Returns the clients with a stream that said that they send to a topic."""
        return [
            client_id
            for client_id, client in self._by_id.items()
            if client.streams
            and client.settings is not None
            and any(full_name(one) == topic for one in client.settings.publishing.topics)
        ]

    def numbers(self, waiting: int) -> DoorNumbers:
        """Returns who is there, for metrics; ``waiting`` calls wait for messages. From any thread."""
        known = [client.settings for client in list(self._by_id.values()) if client.settings is not None]
        groups = [full_name(one.subscription.group) for one in known if one.WhichOneof("pub_sub") == "subscription"]
        return DoorNumbers(len(self._by_id), len(groups), len(known) - len(groups), len(set(groups)), waiting)

    def expire(self) -> None:
        """Forgets clients that are gone."""
        for client_id in [client_id for client_id in self._by_id if not self.is_there(client_id)]:
            del self._by_id[client_id]

    def _age_ms(self, client: Client) -> float:
        return 1000 * (self._clock.monotonic_s() - client.seen_s)

    # calls

    async def heartbeat(self, request: Any, call: GrpcCall) -> Any:
        """Keeps a client known."""
        if request.client_type not in _KNOWN_TYPES:
            raise RefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {request.client_type} is not served")
        if request.client_type in _CONSUMERS:
            group_name(request.group)
        self.heard_of(call.client_id)
        return messages.HeartbeatResponse(status=OK)

    async def notify_client_termination(self, request: Any, call: GrpcCall) -> Any:
        """Forgets a client, which says that it goes; what of it still waits for messages gets none."""
        client = self._by_id.pop(call.client_id, None)
        if client is not None:
            client.leave()
        return messages.NotifyClientTerminationResponse(status=OK)

    async def telemetry(self, requests: AsyncIterator[Any], call: GrpcCall) -> None:
        """Answers a client's settings with those that it works by, for as long as its stream is open."""
        client = self.heard_of(call.client_id)
        client.streams.add(call)
        try:
            async for command in requests:
                client.seen_s = self._clock.monotonic_s()
                if command.WhichOneof("command") == "settings":  # the others answer what was not asked
                    settings = self.merged(command.settings)
                    client.settings = settings
                    await call.write(messages.TelemetryCommand(status=OK, settings=settings))
        finally:
            client.streams.discard(call)

    async def tell(self, client_id: str, command: Any) -> bool:
        """Sends a command to a client; False if it has no stream."""
        client = self._by_id.get(client_id)
        for call in () if client is None else tuple(client.streams):
            try:
                await call.write(command)
                return True
            except Exception as error:  # of gRPC: the stream has ended meanwhile
                _LOG.debug("a client could not be told: %s", error)
        return False

    def merged(self, settings: Any) -> Any:
        """Returns a client's settings with those that the service decides; raises :class:`RefusedError`."""
        found = messages.Settings()
        found.CopyFrom(settings)
        found.metric.Clear()
        found.metric.on = False
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            self._merge_publishing(found)
        elif kind == "subscription":
            self._merge_subscription(found)
        else:
            raise RefusedError(Code.BAD_REQUEST, "settings are of a producer or of a consumer")
        return found

    def _merge_publishing(self, found: Any) -> None:
        found.publishing.max_body_size = self._settings.hot.max_body_bytes
        found.publishing.validate_message_type = True
        policy = found.backoff_policy
        policy.max_attempts = PRODUCER_ATTEMPTS
        set_milliseconds(policy.exponential_backoff.initial, _PRODUCER_BACKOFF_MS)
        set_milliseconds(policy.exponential_backoff.max, _MOST_PRODUCER_BACKOFF_MS)
        policy.exponential_backoff.multiplier = _BACKOFF_FACTOR

    def _merge_subscription(self, found: Any) -> None:
        group = group_name(found.subscription.group)
        subscription, policy = found.subscription, found.backoff_policy
        subscription.fifo = is_fifo(self._settings, group)
        subscription.receive_batch_size = RECEIVE_BATCH
        set_milliseconds(subscription.long_polling_timeout, self._settings.rocketmq.long_poll_ms)
        policy.max_attempts = self._settings.rocketmq.max_attempts
        policy.customized_backoff.Clear()
        for delay_ms in CONSUMER_BACKOFF_MS:
            set_milliseconds(policy.customized_backoff.next.add(), delay_ms)
