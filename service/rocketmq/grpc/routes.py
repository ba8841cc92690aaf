"""Where the queues of a topic are: in this store, and in the cluster's others.

A client reaches a store that is alone as it has reached the door. In a cluster with several doors, it is told what each
store has told the others, so that whatever stands before them does not lead to another store.
"""

from __future__ import annotations

import ipaddress
from functools import partial
from typing import Any, NamedTuple

from tierlog.service.access.caller import Scope
from tierlog.service.config.settings import Settings
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall, group_name, is_fifo
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.service.rocketmq.other_stores import StoreQueues

#: What every topic takes.
TAKEN = (enums.MessageType.NORMAL, enums.MessageType.FIFO, enums.MessageType.DELAY, enums.MessageType.TRANSACTION)
#: Every queue of the broker.
_ALL_QUEUES = -1
_MOST_ADDRESSES, _MOST_HOST = 16, 255


class _Place(NamedTuple):
    """A store as a client is told of it, and its queues of a topic."""

    broker: Any
    queues: int


class Routes:
    """The calls QueryRoute and QueryAssignment."""

    def __init__(self, parts: DoorParts) -> None:
        self._parts = parts

    async def query_route(self, request: Any, call: GrpcCall) -> Any:
        """Returns the queues of a topic. One that does not exist yet has those that its first message makes."""
        scope = Scope.PRODUCE if call.caller.may(Scope.PRODUCE) else Scope.READ
        topic = call.topic(request.topic, scope)
        response = messages.QueryRouteResponse(status=OK)
        for place in await self._places(topic, request.endpoints):
            may = self._permission(call, topic, place.broker.name)
            for queue_id in range(place.queues if may else 0):
                response.message_queues.add(
                    topic=request.topic, id=queue_id, permission=may, broker=place.broker, accept_message_types=TAKEN
                )
        return response

    async def query_assignment(self, request: Any, call: GrpcCall) -> Any:
        """Returns what a push consumer asks for messages: each store as a whole, which knows what is free.

        A group that gets its messages in order is told each queue: its consumer works through what came by one of them
        in turn, and has several message groups in work at once.
        """
        topic = call.topic(request.topic, Scope.READ)
        group = group_name(request.group)
        response = messages.QueryAssignmentResponse(status=OK)
        for place in await self._places(topic, request.endpoints):
            may = self._permission(call, topic, place.broker.name)
            for queue_id in range(place.queues) if is_fifo(self._parts.settings, group) else (_ALL_QUEUES,):
                queue = messages.MessageQueue(topic=request.topic, id=queue_id, permission=may, broker=place.broker)
                response.assignments.add(message_queue=queue)
        return response

    async def _places(self, topic: str, reached: Any) -> list[_Place]:
        """Returns the stores that have a topic; of one that is not there yet, those that may get its first message."""
        parts = self._parts
        others, store, own_queues = parts.others, parts.store, parts.store.find_queues(topic)
        is_cluster = others.are_known("grpc")
        if is_cluster:
            await parts.lanes.read.run(partial(others.ask, topic))
        found = others.with_topic(topic, "grpc")
        if own_queues is None and not found:
            if not parts.settings.create_topics:
                raise RefusedError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic!r}")
            own_queues = store.queues_of(topic)
            found = {name: StoreQueues(where, own_queues) for name, where in others.brokers("grpc").items()}
        places = [_Place(self._broker(name, None, _parts_of(one.address)), one.queues) for name, one in found.items()]
        if own_queues is not None:
            own = self._broker(store.store_id, None if is_cluster else reached, parts.address)
            places.append(_Place(own, own_queues))
        return sorted(places, key=lambda place: str(place.broker.name))

    def _permission(self, call: GrpcCall, topic: str, store_id: str) -> int:
        """Returns what a caller may do with a topic in a store; 0 for nothing."""
        may_write = call.caller.may(Scope.PRODUCE, topic) and self._parts.others.takes(topic, store_id)
        may_read = call.caller.may(Scope.READ, topic)
        kinds: Any = enums.Permission
        if may_write and may_read:
            return int(kinds.READ_WRITE)
        return int(kinds.WRITE if may_write else kinds.READ if may_read else 0)

    def _broker(self, name: str, reached: Any, told: tuple[str, int]) -> Any:
        return broker_of(name, self._parts.settings, reached, told)


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


def _parts_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _scheme(host: str) -> int:
    kinds: Any = enums.AddressScheme
    try:
        return int(kinds.IPv4 if ipaddress.ip_address(host).version == 4 else kinds.IPv6)
    except ValueError:
        return int(kinds.DOMAIN_NAME)
