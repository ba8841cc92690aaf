"""Requests to several stores side by side, which wait for none too long; one that does not answer is remembered so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

from tierlog.index.search.counts import CountQuery, IntervalCounts
from tierlog.index.search.hot_search import HotPage
from tierlog.index.search.query import MAX_LIMIT, Query
from tierlog.index.search.remote_search import check_page
from tierlog.index.search.results import range_behind_cursor
from tierlog.service.cluster.node_client import NodeClient
from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.engine.catalogue import QueueInfo, TopicInfo
from tierlog.service.wire.documents import ARROW_STREAM, Json, count_arguments, filter_arguments
from tierlog.service.wire.hot_page import read_hot_stream
from tierlog.service.wire.interval_counts import counts_of
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    NotFoundError,
    StoreError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.telemetry import Histogram
from tierlog.tiering.base.types import count_present
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.message.stored_message import StoredMessage

T = TypeVar("T")

_THREADS = 64
_LINGER_S = 2.0
_SHARE_OF_TIME = 0.75
"""The part of the time for which a store is waited for that it may filter messages: its answer takes the rest."""


@dataclass(frozen=True, slots=True)
class StoreService:
    """The address where a store is asked, and which one has to answer there; None while nobody has answered."""

    url: str
    store_id: str | None


@dataclass(frozen=True, slots=True)
class StoreAnswer(Generic[T]):
    """The answer of one store, or why there is none: exactly one of both."""

    service: StoreService
    value: T | None = None
    error: StoreError | None = None


def topics_of(document: Json, store_id: str) -> list[TopicInfo]:
    """Returns the topics of a store's answer to ``GET /v1/topics``."""
    try:
        return [topic_of(topic, store_id) for topic in document["topics"]]
    except (KeyError, TypeError) as error:
        raise UnavailableError(f"store {store_id} answered with something else than topics") from error


def topic_of(document: Json, store_id: str) -> TopicInfo:
    """Returns one topic as a store tells of it."""
    try:
        queues = [_queue_of(one, store_id) for one in document["offsets"]]
        return TopicInfo(
            name=document["topic"], topic_id=document["topic_id"], queues=queues, archive=document["archive"],
            cold_retention_ms=document["cold_retention_ms"], hold=document["hold"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"store {store_id} answered with something else than a topic") from error


def _queue_of(document: Json, store_id: str) -> QueueInfo:
    first, end, gaps = document["min_offset"], document["max_offset"], document["gaps"]
    gaps = None if gaps is None else [(missing, present) for missing, present in gaps]
    # a node of an earlier version does not say how many there are
    messages = document["messages"] if "messages" in document else count_present(first, end, gaps)
    return QueueInfo(document["queue_id"], first, end, gaps, messages, store_id, document.get("generation"))


@dataclass(slots=True)
class _Silence:
    until_s: float
    error: StoreError


class StoresAsked(Protocol):
    """Asks several stores, side by side: over HTTP, or those that are open in this process. Thread safe."""

    seconds: Histogram
    """Seconds that stores took to answer or to fail."""

    @property
    def silent(self) -> int:
        """The number of stores that gave no answer when they were asked last."""
        ...

    def hot_pages(self, services: Sequence[StoreService], query: Query, page_bytes: int) -> list[StoreAnswer[HotPage]]:
        """Asks each for what it has hot."""
        ...

    def counts(self, services: Sequence[StoreService], query: CountQuery) -> list[StoreAnswer[IntervalCounts]]:
        """Asks each how many messages it has per interval."""
        ...

    def topics(self, services: Sequence[StoreService]) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for its topics."""
        ...

    def topic(self, services: Sequence[StoreService], name: str) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for one topic, which is :class:`NotFoundError` where there is none."""
        ...

    def messages(
        self, services: Sequence[StoreService], message_id: str, show: Callable[[StoredMessage], Json]
    ) -> list[StoreAnswer[list[Json]]]:
        """Asks each for a message by its id, as ``show`` makes it or as the store itself shows it."""
        ...

    def close(self) -> None:
        """Closes idle connections."""
        ...


class StoreFanOut:
    """A :class:`StoresAsked` over HTTP. Waits for no store longer than ``cluster.ask_timeout_ms``."""

    def __init__(self, settings: ClusterSettings, clock: Clock) -> None:
        self._timeout_s = settings.ask_timeout_ms / 1000
        self._retry_s = settings.retry_ms / 1000
        self._clock = clock
        self._pool = WorkerPool(_THREADS, "tierlog-ask", linger_s=_LINGER_S)
        #: Asks one node.
        self.client = NodeClient("querier", settings.ask_timeout_ms)
        self._lock = threading.Lock()
        self._silent: dict[str, _Silence] = {}
        #: Seconds that stores took to answer or to fail.
        self.seconds = Histogram()

    @property
    def silent(self) -> int:
        """The number of stores that gave no answer when they were asked last."""
        return len(self._silent)

    def hot_pages(self, services: Sequence[StoreService], query: Query, page_bytes: int) -> list[StoreAnswer[HotPage]]:
        """Asks each for what it has hot; an answer that cannot be one to the query is a failure."""
        most_s = None if query.timeout_ms is None else query.timeout_ms / 1000
        asked = {
            "key": query.key, "from": query.from_ms, "to": query.to_ms, "limit": min(query.limit, MAX_LIMIT),
            "time": query.axis.value, "order": query.order.value, "cursor": query.cursor, "page_bytes": page_bytes,
        }  # fmt: skip
        if query.filters is not None:  # what they let through is not known before, so the time is told as well
            whole_s = self._timeout_s if most_s is None else min(most_s, self._timeout_s)
            asked |= {**filter_arguments(query), "timeout_ms": max(1, int(whole_s * 1000 * _SHARE_OF_TIME))}
        path = f"/v1/topics/{quote(query.topic, safe='')}/hot"

        def hot_page(service: StoreService) -> HotPage:
            page = read_hot_stream(self.client.fetch(service.url, path, asked, ARROW_STREAM, store_id=service.store_id))
            if service.store_id is not None and page.store_id != service.store_id:
                raise StoreMismatchError(
                    f"{service.url} answers for store {page.store_id}, not for {service.store_id}",
                    hint="the cluster table or --stores names the wrong address",
                )
            check_page(page, query, range_behind_cursor(query))
            return page

        return self.each(services, hot_page, most_s)

    def counts(self, services: Sequence[StoreService], query: CountQuery) -> list[StoreAnswer[IntervalCounts]]:
        """Asks each how many messages it has per interval; an answer that cannot be one is a failure."""
        most_s = None if query.timeout_ms is None else query.timeout_ms / 1000
        whole_s = self._timeout_s if most_s is None else min(most_s, self._timeout_s)
        asked = {**count_arguments(query), "timeout_ms": max(1, int(whole_s * 1000 * _SHARE_OF_TIME))}
        path = f"/v1/topics/{quote(query.topic, safe='')}/counts?{urlencode(asked)}"
        return self.each(
            services,
            lambda one: counts_of(self.client.get(one.url, path, store_id=one.store_id), query, one.store_id),
            most_s,
        )

    def topics(self, services: Sequence[StoreService]) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for its topics."""
        return self._read(services, "/v1/topics", topics_of)

    def topic(self, services: Sequence[StoreService], name: str) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for one topic."""
        path = f"/v1/topics/{quote(name, safe='')}"
        return self._read(services, path, lambda document, store_id: [topic_of(document, store_id)])

    def messages(
        self, services: Sequence[StoreService], message_id: str, show: Callable[[StoredMessage], Json]
    ) -> list[StoreAnswer[list[Json]]]:
        """Asks each for a message, which is shown as the store does it."""
        return self._read(services, f"/v1/messages/{quote(message_id, safe='')}", lambda document, store_id: [document])

    def _read(
        self, services: Sequence[StoreService], path: str, read: Callable[[Json, str], list[T]]
    ) -> list[StoreAnswer[list[T]]]:
        """Asks each by a GET; that another store than the one meant does not have it is no answer."""

        def ask(one: StoreService) -> list[T]:
            document = self.client.get(one.url, path, store_id=one.store_id)
            return [] if one.store_id is None else read(document, one.store_id)

        return self.each(services, ask)

    def close(self) -> None:
        """Closes idle connections."""
        self.client.close()

    def each(
        self, services: Sequence[StoreService], ask: Callable[[StoreService], T], most_s: float | None = None
    ) -> list[StoreAnswer[T]]:
        """Asks all of them, and returns when each has answered, failed or been waited for long enough."""
        most_s = self._timeout_s if most_s is None else min(most_s, self._timeout_s)
        end_s = self._clock.monotonic_s() + most_s
        begun = [(service, self._begin(service, ask)) for service in services]
        return [self._outcome(service, future, end_s, most_s) for service, future in begun]

    def _begin(self, service: StoreService, ask: Callable[[StoreService], T]) -> Future[T] | StoreError:
        with self._lock:
            silence, now_s = self._silent.get(service.url), self._clock.monotonic_s()
            if silence is not None:
                if now_s < silence.until_s:
                    return silence.error
                silence.until_s = now_s + self._timeout_s  # one request finds out whether it is back
        return self._pool.submit(lambda: self._done(service, ask))

    def _done(self, service: StoreService, ask: Callable[[StoreService], T]) -> T:
        begun_s = self._clock.monotonic_s()
        try:
            value = ask(service)
        except (NotFoundError, InvalidRequestError):
            self._is_back(service)
            raise
        except StoreError as error:
            self._is_silent(service, error)
            raise
        finally:
            self.seconds.observe(self._clock.monotonic_s() - begun_s)
        self._is_back(service)
        return value

    def _outcome(
        self, service: StoreService, future: Future[T] | StoreError, end_s: float, most_s: float
    ) -> StoreAnswer[T]:  # fmt: skip
        if isinstance(future, StoreError):
            return StoreAnswer(service, error=future)
        try:
            return StoreAnswer(service, future.result(max(0.0, end_s - self._clock.monotonic_s())))
        except FutureTimeoutError:
            future.cancel()
            late = UnavailableError(f"no answer from {service.url} within {round(most_s * 1000)} ms")
            if most_s >= self._timeout_s:
                self._is_silent(service, late)
            return StoreAnswer(service, error=late)
        except StoreError as error:
            return StoreAnswer(service, error=error)

    def _is_silent(self, service: StoreService, error: StoreError) -> None:
        with self._lock:
            self._silent[service.url] = _Silence(self._clock.monotonic_s() + self._retry_s, error)

    def _is_back(self, service: StoreService) -> None:
        if service.url in self._silent:
            with self._lock:
                self._silent.pop(service.url, None)
