"""Every call of the REST API as a flow: what is asked, and what an answer means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from tierlog.client.consumer_settings import Start
from tierlog.client.models import (
    Appended,
    AxisHint,
    Coverage,
    GroupInfo,
    IntervalCounts,
    Membership,
    Page,
    PulledPage,
    QueueRef,
    StoredMessage,
    TopicInfo,
)
from tierlog.client.requests import Flow, Json, Request, RequestAttempts, RetryPolicy, Tries, document_of, told_ms
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreError
from tierlog.tiering.base.types import Boundary, Durability, Order, TimeAxis

_NDJSON, _JSON = "application/x-ndjson", "application/json"
_PRODUCER_BYTES = 16
#: Time for which the home of a topic is remembered; a failed append asks again.
_HOME_S = 60.0


@dataclass(frozen=True, slots=True)
class Query:
    """The arguments of a query."""

    topic: str
    key: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    time: TimeAxis = TimeAxis.STORE
    order: Order = Order.NEWEST
    max_requests: int | None = None
    timeout_ms: int | None = None
    store_id: str | None = None
    tag: str | None = None
    contains: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    """``name=value``."""

    @classmethod
    def of(cls, topic: str, contains: str | Iterable[str], where: Mapping[str, str] | None, **others: Any) -> Query:
        """Takes filters as callers write them."""
        texts = (contains,) if isinstance(contains, str) else tuple(contains)
        fields = tuple(f"{name}={value}" for name, value in (where or {}).items())
        if any(not name or "=" in name for name in where or {}):
            raise InvalidRequestError("the name of a field is not empty and has no '='")
        return cls(topic, contains=texts, where=fields, **others)


class Calls:
    """The calls of one client. Thread safe; what they return is worked off by who does input and output."""

    def __init__(self, attempts: RequestAttempts) -> None:
        self.attempts = attempts
        self._homes: dict[str, tuple[str | None, float]] = {}

    # messages in

    def append(
        self,
        topic: str,
        lines: Sequence[bytes],
        durability: Durability,
        key: str | None = None,
        retries: RetryPolicy | None = None,
    ) -> Flow[list[Appended]]:
        """Appends messages that :meth:`Message.line` made, in order, all or none; ``key`` is fresh if not given.

        All tries go to the same store, because another one would not know what the first has done. Only if the first
        try is answered with :class:`NotFoundError`, because the store left the cluster, the home is looked up again.
        """
        if not lines:
            return []
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidRequestError("an idempotency key is printable ASCII: `producer` or `producer:number`")
        headers = {"Content-Type": _NDJSON, "Idempotency-Key": key or self.new_producer()}
        body = b"\n".join(lines)
        is_known = topic in self._homes
        while True:
            home = yield from self.home(topic)
            path = _path("topics", topic, "messages", durability=durability.value, store_id=home)
            tries = Tries()
            try:
                found = yield from self.attempts.document(Request("POST", path, body, headers), retries, tries)
                break
            except InvalidRequestError:
                raise
            except StoreError as error:
                self._homes.pop(topic, None)
                if not isinstance(error, NotFoundError) or tries.may_be_done or not is_known:
                    raise
                is_known = False
        results = [
            Appended(one["message_id"], one["queue_id"], one["queue_offset"], one["store_ms"], home)
            for one in found["results"]
        ]
        if len(results) != len(lines):
            raise StoreError(f"{len(lines)} messages were answered with {len(results)} results")
        return results

    def home(self, topic: str) -> Flow[str | None]:
        """Returns the store that takes new messages of a topic, None if the service does not tell its name."""
        now_s = self.attempts.clock.monotonic_s()
        known = self._homes.get(topic)
        if known is None or now_s - known[1] > _HOME_S:
            found = yield from self.attempts.document(Request("GET", _path("cluster/topics", topic)))
            known = self._homes[topic] = (found["store_id"], now_s)
        return known[0]

    def new_producer(self) -> str:
        """Returns a name that no other producer has."""
        return self.attempts.randomness.token_hex(_PRODUCER_BYTES)

    # messages out

    def query_page(self, query: Query, cursor: str | None, limit: int, max_requests: int | None) -> Flow[Page]:
        """Returns the page behind ``cursor``, the first one without."""
        path = _path(
            "topics", query.topic, "messages",
            key=query.key, **{"from": query.from_ms}, to=query.to_ms, time=query.time.value, order=query.order.value,
            limit=limit, cursor=cursor, max_requests=max_requests, timeout_ms=query.timeout_ms,
            store_id=query.store_id, tag=query.tag, contains=query.contains or None, where=query.where or None,
        )  # fmt: skip
        found = yield from self.attempts.document(Request("GET", path, waits_s=(query.timeout_ms or 0) / 1000))
        return Page(
            tuple(map(StoredMessage.of, found["messages"])), found["next_cursor"], Coverage.of(found["coverage"]),
            AxisHint.of(found.get("hint")),
        )  # fmt: skip

    def counts(self, query: Query, buckets: int | None, interval_ms: int | None) -> Flow[IntervalCounts]:
        """Counts messages per interval; of the query, topic, range, time and bounds matter."""
        path = _path(
            "topics", query.topic, "counts",
            **{"from": query.from_ms}, to=query.to_ms, time=query.time.value, buckets=buckets, interval_ms=interval_ms,
            max_requests=query.max_requests, timeout_ms=query.timeout_ms, store_id=query.store_id,
        )  # fmt: skip
        found = yield from self.attempts.document(Request("GET", path, waits_s=(query.timeout_ms or 0) / 1000))
        return IntervalCounts.of(found)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int | None,
        limit: int,
        *,
        wait_ms: int = 0,
        tag: str | None = None,
        backward: bool = False,
        store_id: str | None = None,
        retries: RetryPolicy | None = None,
    ) -> Flow[PulledPage]:
        """Reads messages of a queue in order from ``offset``; the service may return fewer than ``limit``.

        ``backward`` reads those below ``offset``, the last one first; None is the end of the queue then, else its
        beginning.
        """
        path = _path(
            "topics", topic, "queues", queue_id, "messages",
            offset=offset, limit=limit, wait_ms=wait_ms or None, tag=tag, backward="true" if backward else None,
            store_id=store_id,
        )  # fmt: skip
        found = yield from self.attempts.document(Request("GET", path, waits_s=wait_ms / 1000), retries)
        return PulledPage.of(found)

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        time_ms: int,
        boundary: Boundary = Boundary.LOWER,
        store_id: str | None = None,
        *,
        retries: RetryPolicy | None = None,
    ) -> Flow[int]:
        """Finds the offset of a store time in a queue."""
        path = _path(
            "topics", topic, "queues", queue_id, "offset", time_ms=time_ms, boundary=boundary.value, store_id=store_id
        )
        found = yield from self.attempts.document(Request("GET", path), retries)
        return int(found["offset"])

    def message(self, message_id: str, store_id: str | None = None) -> Flow[StoredMessage]:
        """Returns one message by its id."""
        found = yield from self.attempts.document(Request("GET", _path("messages", message_id, store_id=store_id)))
        return StoredMessage.of(found)

    # topics

    def topics(self) -> Flow[list[TopicInfo]]:
        """Returns every topic that the caller may read."""
        found = yield from self.attempts.document(Request("GET", _path("topics")))
        return [TopicInfo.of(one) for one in found["topics"]]

    def topic(self, name: str) -> Flow[TopicInfo]:
        """Returns one topic."""
        found = yield from self.attempts.document(Request("GET", _path("topics", name)))
        return TopicInfo.of(found)

    def make_topic(self, name: str, queues: int | None = None) -> Flow[TopicInfo]:
        """Creates a topic, or adds queues to an existing one."""
        body = {} if queues is None else {"queues": queues}
        found = yield from self.attempts.document(_with_json("PUT", _path("topics", name), body))
        return TopicInfo.of(found)

    # groups

    def join(
        self, group: str, topics: str | Iterable[str], session_timeout_ms: int, retries: RetryPolicy | None = None
    ) -> Flow[Membership]:
        """Joins a group. A join whose answer was lost leaves a member behind, whose session ends by itself."""
        joined, _ = yield from self.join_at(group, topics, session_timeout_ms, None, retries)
        return joined

    def join_at(
        self,
        group: str,
        topics: str | Iterable[str],
        session_timeout_ms: int,
        within_s: float | None,
        retries: RetryPolicy | None,
    ) -> Flow[tuple[Membership, int]]:
        """Joins, and returns the time of that in ms: by the clock of the service, to the second, or by ours if it tells
        none."""
        body = {
            "topics": [topics] if isinstance(topics, str) else list(topics),
            "session_timeout_ms": session_timeout_ms,
        }
        request = _with_json("POST", _path("groups", group, "members"), body, within_s)
        answer = yield from self.attempts.answer(request, retries)
        now_ms = told_ms(answer)
        return Membership.of(document_of(answer)), self.attempts.clock.now_ms() if now_ms is None else now_ms

    def heartbeat(
        self, group: str, member_id: str, within_s: float | None = None, retries: RetryPolicy | None = None
    ) -> Flow[Membership]:
        """Keeps the member alive and returns the current assignment."""
        request = Request("PUT", _path("groups", group, "members", member_id), within_s=within_s)
        found = yield from self.attempts.document(request, retries)
        return Membership.of(found)

    def leave(self, group: str, member_id: str, retries: RetryPolicy | None = None) -> Flow[None]:
        """Gives the queues to the other members at once."""
        yield from self.attempts.answer(Request("DELETE", _path("groups", group, "members", member_id)), retries)

    def committed(
        self, group: str, retries: RetryPolicy | None = None, within_s: float | None = None
    ) -> Flow[dict[QueueRef, int]]:
        """Returns the next offset to consume of each queue; a queue without a commit is left out."""
        request = Request("GET", _path("groups", group, "offsets"), within_s=within_s)
        found = yield from self.attempts.document(request, retries)
        return _offsets(found)

    def commit(
        self,
        group: str,
        offsets: Mapping[QueueRef, int],
        member: Membership | None = None,
        *,
        reset: bool = False,
        retries: RetryPolicy | None = None,
        within_s: float | None = None,
    ) -> Flow[dict[QueueRef, int]]:
        """Commits, durably and all or nothing; returns all committed offsets of the group."""
        body: Json = {
            "offsets": [
                {"topic": queue.topic, "store_id": queue.store_id, "queue_id": queue.queue_id, "offset": offset}
                for queue, offset in offsets.items()
            ]
        }
        if member is not None:
            body |= {"member_id": member.member_id, "generation": member.generation}
        if reset:
            body["reset"] = True
        request = _with_json("PUT", _path("groups", group, "offsets"), body, within_s)
        found = yield from self.attempts.document(request, retries)
        return _offsets(found)

    def group(self, name: str) -> Flow[GroupInfo]:
        """Returns one group."""
        found = yield from self.attempts.document(Request("GET", _path("groups", name)))
        return GroupInfo.of(found)

    def reset_group(
        self,
        name: str,
        to: Start | int,
        *,
        topic: str | None = None,
        store_id: str | None = None,
        queue_id: int | None = None,
        dry_run: bool = False,
    ) -> Flow[dict[QueueRef, int]]:
        """Moves a group that has no live member; returns the offsets of the queues that are meant."""
        wanted: Json = {"time": to} if isinstance(to, int) else {"to": "first" if to is Start.EARLIEST else "latest"}
        chosen = {"topic": topic, "store_id": store_id, "queue_id": queue_id}
        wanted |= {field: value for field, value in chosen.items() if value is not None} | {"dry_run": dry_run}
        found = yield from self.attempts.document(_with_json("POST", _path("groups", name, "reset"), wanted))
        return {QueueRef.of(one): one["new_offset"] for one in found["queues"]}

    def remove_group(self, name: str) -> Flow[None]:
        """Forgets a group that has no live member, and its offsets."""
        tries = Tries()
        try:
            yield from self.attempts.answer(Request("DELETE", _path("groups", name)), tries=tries)
        except NotFoundError:
            if not tries.may_be_done:  # otherwise a try whose answer was lost has removed it
                raise


def _offsets(found: Json) -> dict[QueueRef, int]:
    return {QueueRef.of(one): one["offset"] for one in found["offsets"]}


def _path(*parts: object, **arguments: Any) -> str:
    """Builds a path: the first part is of the API, the others are names from outside."""
    first, *names = parts
    path = "/".join([f"/v1/{first}", *(quote(str(name), safe="") for name in names)])
    given = {name: value for name, value in arguments.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True, quote_via=quote)}" if given else path


def _with_json(method: str, path: str, body: Json, within_s: float | None = None) -> Request:
    return Request(method, path, orjson.dumps(body), {"Content-Type": _JSON}, within_s=within_s)
