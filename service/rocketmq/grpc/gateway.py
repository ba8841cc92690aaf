"""A gateway: takes the sends of gRPC clients, and hands them in batches to the service of a store.

It keeps nothing, so any number of them run beside one another, each on a core of its own, and the store's process gets
batches instead of calls. Messages of a topic go to the store as the client library's producer sends them: in order,
numbered, each once, however often a request of the gateway is repeated. A message that waits for its time goes into the
topic of those that do.

Producers are told to write to the gateway; consumers are told the store's own gRPC door, since deliveries are the
store's. What only the store can do for a producer (transactions, and calling a delayed message back) is passed on to
that door. Killed: nobody was answered whose message is not durable in the store; clients go on with another gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

from tierlog.client.async_client import AsyncClient
from tierlog.client.models import Appended
from tierlog.client.producers import AsyncProducer, Batching
from tierlog.client.requests import Request, RetryPolicy
from tierlog.service.access.caller import Scope
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.timers import Scheduled, recall_handle, scheduled
from tierlog.service.observing.counts import DoorCounts, DoorNumbers
from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.grpc.calls import GrpcCall, Waits, group_name
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError, common_status, status_of
from tierlog.service.rocketmq.grpc.messages import BORN_HOST, SentMessage, host_text
from tierlog.service.rocketmq.grpc.passing import PassedCalls, ProducerQuestions
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.service.rocketmq.grpc.routes import TAKEN, broker_of
from tierlog.service.rocketmq.grpc.sends import checked_messages, queue_of_group
from tierlog.service.rocketmq.grpc.server import Answering, GrpcServer
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    AccessError,
    InvalidRequestError,
    OverloadedError,
    StoreError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.format.properties import KEYS, SHARDING_KEY, TAGS, decode_properties, split_keys

#: The broker's name where the service does not say which store it is.
_SOME_STORE = "tierlog"
#: How long a topic's number of queues is believed; clients ask every 30 s.
_ROUTE_S = 5.0
#: How long it may take to ask the stores behind a gateway, and how long their answers are believed.
_REACH_S, _REACHED_S = 5.0, 2.0
#: Topics whose producers are kept.
_MOST_TOPICS = 1_000
_BATCH_BYTES = 4 << 20


class Gateway:
    """Serves producers of ``apache.rocketmq.v2``, with a store's service behind."""

    def __init__(self, url: str, settings: Settings, clock: Clock, *, control: AccessControl | None = None) -> None:
        """``url`` is the service; the token for it comes from the environment (``TIERLOG_TOKEN``)."""

        self._answers: _GatewayAnswers | None = None

        def make(waits: Waits, told: tuple[str, int]) -> _GatewayAnswers:
            self._answers = _GatewayAnswers(AsyncClient(url), settings, clock, told)
            return self._answers

        self._server = GrpcServer(settings, SignedAccess(control, clock), make, clock=clock)

    @property
    def counts(self) -> DoorCounts:
        """What metrics tell of it."""
        return self._server.counts

    def numbers(self) -> DoorNumbers:
        """What is there now."""
        return DoorNumbers(0, 0, 0, 0, 0) if self._answers is None else self._answers.clients.numbers(0)

    def reached(self) -> dict[str, str | None]:
        """Asks for the stores behind it, from another thread: by id, why one does not answer; None if it does.

        :class:`UnavailableError` if the service itself does not answer.
        """
        found = None if self._answers is None else self._server.run(self._answers.reached(), _REACH_S)
        if found is None:
            raise UnavailableError("the service behind the gateway does not answer in time")
        return found

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    def start(self) -> None:
        """Accepts connections from now on; :class:`InvalidRequestError` if it cannot listen there."""
        self._server.start()

    def stop(self, timeout_s: float) -> None:
        """Answers what is on its way, as far as there is time. Idempotent."""
        self._server.stop(timeout_s)


class _Route(NamedTuple):
    queues: int
    store_id: str
    known_s: float


class _GatewayAnswers:
    """What answers from a store's service."""

    def __init__(self, client: AsyncClient, settings: Settings, clock: Clock, told: tuple[str, int]) -> None:
        self._client, self._settings, self._clock, self._told = client, settings, clock, told
        self.clients = GrpcClients(settings, clock)
        self._passed = PassedCalls(settings)
        self._producers: dict[str, AsyncProducer] = {}
        self._routes: dict[str, _Route] = {}
        self._reached: tuple[float, dict[str, str | None]] | None = None
        self._bytes = 0
        self._turn = count()
        self.calls: Mapping[str, Answering] = {
            "QueryRoute": self.query_route,
            "QueryAssignment": self.query_assignment,
            "SendMessage": self.send_message,
            "RecallMessage": partial(self._pass_on, "RecallMessage"),
            "EndTransaction": partial(self._pass_on, "EndTransaction"),
            "Heartbeat": self.clients.heartbeat,
            "NotifyClientTermination": self.clients.notify_client_termination,
            "Telemetry": self.telemetry,
        }

    async def start(self) -> None:
        """Nothing has to be there yet: a service that does not answer is waited for by whoever sends."""

    async def look(self) -> None:
        self.clients.expire()

    async def stop(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(timeout_s):
                for producer in self._producers.values():
                    await producer.close()
        await self._passed.close()
        await self._client.close()

    async def reached(self) -> dict[str, str | None]:
        """Asks each store of the service's cluster, through the service; not again within a moment."""
        now_s = self._clock.monotonic_s()
        if self._reached is None or now_s - self._reached[0] >= _REACHED_S:
            stores = (await self._asked("/v1/cluster"))["stores"]
            found = {one["store_id"]: await self._error_of(one["store_id"]) for one in stores}
            self._reached = now_s, found
        return self._reached[1]

    async def _error_of(self, store_id: str) -> str | None:
        try:
            await self._asked(f"/v1/stats?store_id={quote(store_id)}")
        except AccessError:
            pass  # it answers
        except StoreError as error:
            return error.message
        return None

    async def _asked(self, path: str) -> Any:
        return await self._client.run(self._client.calls.attempts.document(Request("GET", path), RetryPolicy(0.0)))

    # what the store's own door does

    async def _pass_on(self, name: str, request: Any, call: GrpcCall) -> Any:
        """Has the store's own door answer."""
        call.topic((request.messages[0] if name == "SendMessage" else request).topic, Scope.PRODUCE)
        door = self._settings.rocketmq.consume_at
        if door is None:
            raise RefusedError(
                Code.NOT_IMPLEMENTED,
                "this gateway has no way to the store's own door (rocketmq.consume_at); send transactions and recalls "
                "there",
            )
        return await self._passed.ask(door, name, request, call)

    async def telemetry(self, requests: AsyncIterator[Any], call: GrpcCall) -> None:
        """Answers a client's settings; the store's door asks a producer about its transactions by this stream."""
        door = self._settings.rocketmq.consume_at
        if door is None:
            await self.clients.telemetry(requests, call)
            return
        questions = ProducerQuestions(self._passed, door, call)
        try:
            await self.clients.telemetry(questions.heard(requests), call)
        finally:
            questions.close()

    # routes

    async def query_route(self, request: Any, call: GrpcCall) -> Any:
        """Names the gateway for sending, and the store's own door for consuming."""
        scope = Scope.PRODUCE if call.caller.may(Scope.PRODUCE) else Scope.READ
        topic = call.topic(request.topic, scope)
        route = await self._route(topic)
        response = messages.QueryRouteResponse(status=OK)
        if call.caller.may(Scope.PRODUCE, topic):
            here = broker_of(route.store_id, self._settings, request.endpoints, self._told)
            self._add_queues(response, request.topic, route, enums.Permission.WRITE, here)
        door = self._settings.rocketmq.consume_at
        if door is not None and call.caller.may(Scope.READ, topic):
            self._add_queues(response, request.topic, route, enums.Permission.READ, self._door(route, door))
        return response

    def _add_queues(self, response: Any, topic: Any, route: _Route, may: int, broker: Any) -> None:
        for queue_id in range(route.queues):
            response.message_queues.add(
                topic=topic, id=queue_id, permission=may, broker=broker, accept_message_types=TAKEN
            )

    def _door(self, route: _Route, door: str) -> Any:
        host, _, port = door.rpartition(":")
        return broker_of(route.store_id, self._settings, None, (host.strip("[]"), int(port)))

    async def query_assignment(self, request: Any, call: GrpcCall) -> Any:
        """Names the store's own door, which gives messages."""
        topic = call.topic(request.topic, Scope.READ)
        group_name(request.group)
        door = self._settings.rocketmq.consume_at
        if door is None:
            raise RefusedError(
                Code.NOT_IMPLEMENTED, "this gateway takes messages only; consume at the store's own door"
            )
        route = await self._route(topic)
        response = messages.QueryAssignmentResponse(status=OK)
        queue = messages.MessageQueue(topic=request.topic, id=-1, permission=enums.Permission.READ)
        queue.broker.CopyFrom(self._door(route, door))
        response.assignments.add(message_queue=queue)
        return response

    async def _route(self, topic: str) -> _Route:
        now_s = self._clock.monotonic_s()
        known = self._routes.get(topic)
        if known is not None and now_s - known.known_s < _ROUTE_S:
            return known
        try:
            found = (await self._client.topic(topic)).queues
            queues, store_id = len(found), found[0].store_id if found else None
        except TopicNotFoundError:
            if not self._settings.create_topics:
                raise
            queues, store_id = self._settings.hot.default_queues, None
        if len(self._routes) >= _MOST_TOPICS:
            self._routes.clear()
        route = self._routes[topic] = _Route(queues, store_id or _SOME_STORE, now_s)
        return route

    # sending

    async def send_message(self, request: Any, call: GrpcCall) -> Any:
        """Sends the messages on, and answers when the store has them."""
        _, found = checked_messages(request, call, self._settings, self._clock.now_ms())
        if any(one.is_prepared for one in found):
            return await self._pass_on("SendMessage", request, call)
        size = sum(len(one.body) + len(one.properties) for one in found)
        most = self._settings.serve.body_memory_bytes
        if self._bytes + size > most:
            raise OverloadedError(
                f"{self._bytes} bytes of messages wait already",
                hint="try again in a moment; serve.body_memory_bytes is the limit",
            )
        self._bytes += size
        try:
            submitted = [await self._submitted(one, call) for one in found]
            await asyncio.wait([place for place, _ in submitted])
        finally:
            self._bytes -= size
        response = messages.SendMessageResponse()
        statuses = []
        for one, (place, waiting) in zip(found, submitted, strict=True):
            error = place.exception()
            status = OK if error is None else status_of(error)
            statuses.append(status)
            if error is None:
                at = place.result()
                handle = None if waiting is None or at.store_id is None else recall_handle(at.store_id, waiting)
                response.entries.add(
                    status=OK, message_id=one.message_id, offset=at.queue_offset, recall_handle=handle or ""
                )
            else:
                response.entries.add(status=status)
        response.status.CopyFrom(common_status(statuses))
        return response

    async def _submitted(
        self, one: SentMessage, call: GrpcCall
    ) -> tuple[asyncio.Future[Appended], Scheduled | None]:  # fmt: skip
        """Hands a message to the producer of its topic; returns with it what waits for its time in place of it."""
        topic, text, queue_id, group = one.topic, one.properties, None, one.message_group or None
        entry = None
        if one.has_delay:
            queues = (await self._route(topic)).queues
            own = next(self._turn) % queues if group is None else queue_of_group(group, queues)
            try:
                entry = scheduled(
                    topic, own, text, self._clock.now_ms(), max_delay_ms=self._settings.produce.max_delay_ms
                )
            except InvalidRequestError as error:
                raise RefusedError(Code.ILLEGAL_DELIVERY_TIME, str(error)) from None
            if entry is not None:
                topic, queue_id, text, _ = entry
        properties = decode_properties(text)
        keys, tag = properties.pop(KEYS, ""), properties.pop(TAGS, "")
        if queue_id is None and group is not None:
            del properties[SHARDING_KEY]  # the store adds it
        else:
            group = None
        host = host_text(call.peer_host)
        if host:
            properties.setdefault(BORN_HOST, host)
        place = await self._producer(topic).submit(
            one.body, keys=split_keys(keys), tag=tag, properties=properties, born_ms=one.born_ms, queue_id=queue_id,
            sharding_key=group,
        )  # fmt: skip
        return place, entry

    def _producer(self, topic: str) -> AsyncProducer:
        producer = self._producers.get(topic)
        if producer is None:
            if len(self._producers) >= _MOST_TOPICS:
                raise OverloadedError(f"messages of {_MOST_TOPICS} topics are sent by this gateway already")
            producer = self._producers[topic] = self._client.producer(topic, batching=Batching(max_bytes=_BATCH_BYTES))
        return producer
