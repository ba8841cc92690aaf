"""Where the queues of a topic are: all in this store, which a client reaches as it has reached the door."""

from __future__ import annotations

import ipaddress
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.config.settings import Settings
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall, group_name, is_fifo
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base.errors import TopicNotFoundError

#: What every topic takes.
TAKEN = (enums.MessageType.NORMAL, enums.MessageType.FIFO, enums.MessageType.DELAY, enums.MessageType.TRANSACTION)
#: Every queue of the broker.
_ALL_QUEUES = -1
_MOST_ADDRESSES, _MOST_HOST = 16, 255


class Routes:
    """The calls QueryRoute and QueryAssignment."""

    def __init__(self, parts: DoorParts) -> None:
        self._parts = parts

    async def query_route(self, request: Any, call: GrpcCall) -> Any:
        """Returns the queues of a topic. One that does not exist yet has those that its first message makes."""
        scope = Scope.PRODUCE if call.caller.may(Scope.PRODUCE) else Scope.READ
        topic = call.topic(request.topic, scope)
        broker = self._broker(request.endpoints)
        may = self._permission(call, topic)
        response = messages.QueryRouteResponse(status=OK)
        for queue_id in range(self._queues(topic)):
            response.message_queues.add(
                topic=request.topic, id=queue_id, permission=may, broker=broker, accept_message_types=TAKEN
            )
        return response

    async def query_assignment(self, request: Any, call: GrpcCall) -> Any:
        """Returns what a push consumer asks for messages: the store as a whole, which knows what is free.

        A group that gets its messages in order asks each queue, so that one that waits for its last message does not
        keep the others waiting.
        """
        topic = call.topic(request.topic, Scope.READ)
        group, queues = group_name(request.group), self._queues(topic)
        response = messages.QueryAssignmentResponse(status=OK)
        broker, may = self._broker(request.endpoints), self._permission(call, topic)
        for queue_id in range(queues) if is_fifo(self._parts.settings, group) else (_ALL_QUEUES,):
            queue = messages.MessageQueue(topic=request.topic, id=queue_id, permission=may, broker=broker)
            response.assignments.add(message_queue=queue)
        return response

    def _queues(self, topic: str) -> int:
        if not self._parts.settings.create_topics:
            try:
                return len(self._parts.store.topic(topic).queues)
            except TopicNotFoundError as error:
                raise RefusedError(Code.TOPIC_NOT_FOUND, str(error)) from None
        return self._parts.store.queues_of(topic)

    def _permission(self, call: GrpcCall, topic: str) -> int:
        may_write, may_read = (call.caller.may(scope, topic) for scope in (Scope.PRODUCE, Scope.READ))
        kinds: Any = enums.Permission
        if may_write and may_read:
            return int(kinds.READ_WRITE)
        return int(kinds.WRITE if may_write else kinds.READ)

    def _broker(self, reached: Any) -> Any:
        return broker_of(self._parts.store.store_id, self._parts.settings, reached, self._parts.address)


def broker_of(name: str, settings: Settings, reached: Any, told: tuple[str, int]) -> Any:
    """Returns a broker as clients are told of it.

    It is where ``rocketmq.advertise`` says; else where the client says that it has ``reached`` the door; else ``told``.
    """
    broker = messages.Broker(name=name, id=0)
    is_usable = (
        reached is not None
        and 0 < len(reached.addresses) <= _MOST_ADDRESSES
        and all(0 < len(address.host) <= _MOST_HOST for address in reached.addresses)
    )
    if settings.rocketmq.advertise is None and is_usable:
        broker.endpoints.CopyFrom(reached)
    else:
        host, port = told
        broker.endpoints.scheme = _scheme(host)
        broker.endpoints.addresses.add(host=host, port=port)
    return broker


def _scheme(host: str) -> int:
    kinds: Any = enums.AddressScheme
    try:
        return int(kinds.IPv4 if ipaddress.ip_address(host).version == 4 else kinds.IPv6)
    except ValueError:
        return int(kinds.DOMAIN_NAME)
