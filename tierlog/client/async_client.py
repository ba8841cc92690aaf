"""The service as tasks on an event loop speak to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

from tierlog.client.async_transport import AsyncHttpTransport, AsyncTransport, run
from tierlog.client.calls import Calls, Query
from tierlog.client.client import DEFAULT_SESSION_MS, Client
from tierlog.client.consumer_settings import Start
from tierlog.client.models import (
    Appended,
    GroupInfo,
    IntervalCounts,
    Membership,
    Message,
    PulledPage,
    QueueRef,
    StoredMessage,
    TopicInfo,
)
from tierlog.client.paging import AsyncPages, Paging, Tailing
from tierlog.client.producers import AsyncProducer, Batching
from tierlog.client.requests import Flow, RequestAttempts, RetryPolicy, T
from tierlog.client.transport import Service
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.types import Boundary, Durability, Order, TimeAxis


class AsyncClient:
    """Speaks the REST API at one URL. For one event loop, any number of tasks.

    Every call goes on for as long as ``retries`` says while the service does not answer or asks for patience, appends
    too, because they carry an idempotency key. Raises what the service answered, by class, and
    :class:`NoAnswerError` if nobody did. Redirects are errors.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        timeout_s: float = 90.0,
        retries: RetryPolicy | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """Connects to nothing yet. Raises :class:`InvalidRequestError` for anything but an http(s) URL.

        What is not given of token, authorities and certificate is taken from the environment: ``TIERLOG_TOKEN`` or
        ``TIERLOG_TOKEN_FILE``, ``TIERLOG_CA_FILE``, ``TIERLOG_CLIENT_CERTIFICATE``, ``TIERLOG_CLIENT_KEY``. A token
        goes over HTTPS or to this machine only. ``timeout_s`` is how long an answer may stay away, beside what a call
        itself asks to wait: longer than the service's own limits (``query.timeout_ms``, ``serve.request_timeout_ms``).
        """
        self.clock = clock or SystemClock()
        self.randomness = randomness or SystemRandomness()
        self.retries = retries or RetryPolicy()
        self.service = Service.of(
            url, token=token, token_file=token_file, ca_file=ca_file, certificate=certificate, key=key,
            timeout_s=timeout_s,
        )  # fmt: skip
        self.calls = Calls(RequestAttempts(self.clock, self.randomness, self.retries))
        self._transport = transport or AsyncHttpTransport(self.service)

    @classmethod
    def like(cls, client: Client) -> AsyncClient:
        """Makes a client of the same service with the same options."""
        made = cls.__new__(cls)  # the environment may have changed, and is not needed again
        made.clock, made.randomness, made.retries = client.clock, client.randomness, client.retries
        made.service, made.calls = client.service, client.calls
        made._transport = AsyncHttpTransport(client.service)
        return made

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends pauses and closes connections. Idempotent."""
        await self._transport.close()

    async def run(self, flow: Flow[T]) -> T:
        """Runs a call of :class:`Calls`."""
        return await run(flow, self._transport)

    # messages in

    async def append(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        durability: Durability = Durability.FLUSHED,
        idempotency_key: str | None = None,
    ) -> list[Appended]:
        """Appends messages in order, all of them or, if one is wrong, none; returns the place of each.

        However often the request is sent until it is answered, each message is in the log once, as long as the store
        remembers the request (``produce.window_ms`` and ``produce.window_requests``). With an ``idempotency_key``
        (``producer`` or ``producer:number``) of one's own that holds for further calls with the same key and messages
        too.
        """
        lines = [message.line() for message in messages]
        return await self.run(self.calls.append(topic, lines, durability, idempotency_key))

    def producer(
        self, topic: str, *, durability: Durability = Durability.FLUSHED, batching: Batching | None = None
    ) -> AsyncProducer:
        """Makes a producer, which takes messages one by one and sends many at a time."""
        return AsyncProducer(self.run, self.calls, topic, durability, batching or Batching())

    # messages out

    def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        time: TimeAxis = TimeAxis.STORE,
        order: Order = Order.NEWEST,
        limit: int | None = None,
        page_size: int = 1_000,
        cursor: str | None = None,
        max_requests: int | None = None,
        timeout_ms: int | None = None,
        store_id: str | None = None,
        tag: str | None = None,
        contains: str | Iterable[str] = (),
        where: Mapping[str, str] | None = None,
    ) -> AsyncPages:
        """Finds messages; each page is requested when it is wanted, and comes with its coverage.

        ``[from_ms, to_ms)`` and the order are by ``time``; ``limit`` and ``max_requests`` are for all pages together,
        ``timeout_ms`` is for each. A page that is not complete ends the query if budget or time ran out.
        ``tag`` (``a || b``), ``contains`` (texts in the body) and ``where`` (properties, or fields of a JSON body, by
        name) filter what is found; ``limit`` counts what passes all of them.
        """
        query = Query.of(
            topic, contains, where, key=key, from_ms=from_ms, to_ms=to_ms, time=time, order=order,
            max_requests=max_requests, timeout_ms=timeout_ms, store_id=store_id, tag=tag,
        )  # fmt: skip
        return AsyncPages(Paging(self.calls, query, limit, page_size, cursor), self.run)

    async def counts(
        self,
        topic: str,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        time: TimeAxis = TimeAxis.STORE,
        buckets: int | None = None,
        interval_ms: int | None = None,
        max_requests: int | None = None,
        timeout_ms: int | None = None,
        store_id: str | None = None,
    ) -> IntervalCounts:
        """Counts messages per interval of time: ``buckets`` of them, 60 if it is not said, or ``interval_ms`` long."""
        query = Query(
            topic, from_ms=from_ms, to_ms=to_ms, time=time, max_requests=max_requests, timeout_ms=timeout_ms,
            store_id=store_id,
        )  # fmt: skip
        return await self.run(self.calls.counts(query, buckets, interval_ms))

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int | None,
        *,
        limit: int = 500,
        wait_ms: int = 0,
        tag: str | None = None,
        backward: bool = False,
        store_id: str | None = None,
    ) -> PulledPage:
        """Reads messages of a queue in order from ``offset``; ``wait_ms`` waits at its end until one comes.

        ``backward`` reads those below ``offset``, or from the end for None, the last one first. To go on, ask below
        ``next_offset``, until that is ``min_offset`` or less.
        """
        flow = self.calls.pull(
            topic, queue_id, offset, limit, wait_ms=wait_ms, tag=tag, backward=backward, store_id=store_id
        )
        return await self.run(flow)

    async def tail(
        self,
        topic: str,
        queue_id: int,
        *,
        offset: int = 0,
        follow: bool = True,
        tag: str | None = None,
        store_id: str | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Yields the messages of a queue from ``offset`` on, and, unless told not to ``follow``, those that come."""
        tailing = Tailing(self.calls, topic, queue_id, offset, follow=follow, tag=tag, store_id=store_id)
        while (messages := await self.run(tailing.next_messages())) is not None:
            for message in messages:
                yield message

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        time_ms: int,
        *,
        boundary: Boundary = Boundary.LOWER,
        store_id: str | None = None,
    ) -> int:
        """Finds the offset of a store time in a queue; ``lower``: of the first message at or after it, or the end."""
        return await self.run(self.calls.offset_by_time(topic, queue_id, time_ms, boundary, store_id))

    async def message(self, message_id: str, *, store_id: str | None = None) -> StoredMessage:
        """Returns one message, in whichever tier; raises :class:`MessageNotFoundError`."""
        return await self.run(self.calls.message(message_id, store_id))

    # topics and groups

    async def topics(self) -> list[TopicInfo]:
        """Returns every topic that the caller may read."""
        return await self.run(self.calls.topics())

    async def topic(self, name: str) -> TopicInfo:
        """Returns one topic; raises :class:`TopicNotFoundError`."""
        return await self.run(self.calls.topic(name))

    async def make_topic(self, name: str, *, queues: int | None = None) -> TopicInfo:
        """Creates a topic, or adds queues to an existing one."""
        return await self.run(self.calls.make_topic(name, queues))

    async def group(self, name: str) -> GroupInfo:
        """Returns the members of a group, how far it is in each queue, and its lag; raises :class:`NotFoundError`."""
        return await self.run(self.calls.group(name))

    async def join(
        self, group: str, topics: str | Iterable[str], *, session_timeout_ms: int = DEFAULT_SESSION_MS
    ) -> Membership:
        """Joins a group by hand; :class:`AsyncConsumer` does this and all that follows from it."""
        return await self.run(self.calls.join(group, topics, session_timeout_ms))

    async def heartbeat(self, group: str, member_id: str) -> Membership:
        """Keeps the member alive and returns the current assignment; after :class:`MemberNotFoundError`, join again."""
        return await self.run(self.calls.heartbeat(group, member_id))

    async def leave(self, group: str, member_id: str) -> None:
        """Gives the queues to the other members at once."""
        await self.run(self.calls.leave(group, member_id))

    async def committed(self, group: str) -> dict[QueueRef, int]:
        """Returns the next offset to consume of each queue; a queue without a commit is left out."""
        return await self.run(self.calls.committed(group))

    async def commit(
        self,
        group: str,
        offsets: Mapping[QueueRef, int],
        *,
        member: Membership | None = None,
        reset: bool = False,
    ) -> dict[QueueRef, int]:
        """Commits, durably and all or nothing; without ``member`` the group must have no live one.

        :class:`StaleGenerationError` if the queues were shared out anew. ``reset`` allows offsets below the committed.
        """
        if not offsets:
            raise InvalidRequestError("a commit has at least one offset")
        return await self.run(self.calls.commit(group, offsets, member, reset=reset))

    async def reset_group(
        self,
        name: str,
        to: Start | int,
        *,
        topic: str | None = None,
        store_id: str | None = None,
        queue_id: int | None = None,
        dry_run: bool = False,
    ) -> dict[QueueRef, int]:
        """Moves a group to the first or behind the last message, or to a store time in ms, durably, all or nothing.

        In every queue of its topics, or only in those of a topic, of a store or with a number. Returns their offsets
        after that; ``dry_run`` changes nothing. :class:`ConflictError` while the group has a live member.
        """
        return await self.run(
            self.calls.reset_group(name, to, topic=topic, store_id=store_id, queue_id=queue_id, dry_run=dry_run)
        )

    async def remove_group(self, name: str) -> None:
        """Forgets a group that has no live member, and its offsets."""
        await self.run(self.calls.remove_group(name))
