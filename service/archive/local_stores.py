"""Several stores that are open in one process, asked side by side as a querier asks those of others over HTTP.

A store that is closed at the moment, to be opened again, counts as one that gives no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TypeVar

from tierlog.index.search.counts import CountQuery, IntervalCounts
from tierlog.index.search.hot_search import HotPage
from tierlog.index.search.query import Query
from tierlog.service.cluster.fan_out import StoreAnswer, StoreService
from tierlog.service.engine.catalogue import TopicInfo
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import FencedError, StoreError, UnavailableError
from tierlog.tiering.base.telemetry import Histogram
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.message.stored_message import StoredMessage

T = TypeVar("T")

_THREADS = 16
_LINGER_S = 2.0


class LocalStores:
    """A :class:`StoresAsked` over the stores of this process. Waits for none longer than a query has time."""

    def __init__(self, stores: Callable[[], Mapping[str, Store | None]], clock: Clock, *, timeout_s: float) -> None:
        """``stores`` gives each store by its id; None for one that is closed at the moment."""
        self._stores = stores
        self._clock = clock
        self._timeout_s = timeout_s
        self._pool = WorkerPool(_THREADS, "tierlog-ask", linger_s=_LINGER_S)
        self.seconds = Histogram()

    def services(self) -> list[StoreService]:
        """Returns all stores, the closed ones too; the id stands for the address."""
        return [StoreService(store_id, store_id) for store_id in self._stores()]

    @property
    def silent(self) -> int:
        """The number of stores that are closed at the moment."""
        return sum(store is None for store in self._stores().values())

    def hot_pages(self, services: Sequence[StoreService], query: Query, page_bytes: int) -> list[StoreAnswer[HotPage]]:
        """Asks each for what it has hot."""
        most_s = None if query.timeout_ms is None else query.timeout_ms / 1000
        return self._each(services, lambda store: _hot_page(store, query, page_bytes), most_s)

    def counts(self, services: Sequence[StoreService], query: CountQuery) -> list[StoreAnswer[IntervalCounts]]:
        """Asks each how many messages it has per interval."""
        most_s = None if query.timeout_ms is None else query.timeout_ms / 1000
        return self._each(services, lambda store: store.counts(query), most_s)

    def topics(self, services: Sequence[StoreService]) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for its topics."""
        return self._each(services, lambda store: _named(store, store.topics()))

    def topic(self, services: Sequence[StoreService], name: str) -> list[StoreAnswer[list[TopicInfo]]]:
        """Asks each for one topic."""
        return self._each(services, lambda store: _named(store, [store.topic(name)]))

    def messages(
        self, services: Sequence[StoreService], message_id: str, show: Callable[[StoredMessage], Json]
    ) -> list[StoreAnswer[list[Json]]]:
        """Asks each for a message by its id."""
        return self._each(services, lambda store: [show(store.message(message_id))])

    def close(self) -> None:
        """Has nothing to close: the stores are others'."""

    def _each(
        self, services: Sequence[StoreService], ask: Callable[[Store], T], most_s: float | None = None
    ) -> list[StoreAnswer[T]]:
        most_s = self._timeout_s if most_s is None else most_s
        end_s = self._clock.monotonic_s() + most_s
        stores = self._stores()
        begun = [(service, self._begin(stores.get(service.url), ask)) for service in services]
        return [self._outcome(service, future, end_s, most_s) for service, future in begun]

    def _begin(self, store: Store | None, ask: Callable[[Store], T]) -> Future[T] | None:
        if store is None:
            return None

        def done() -> T:
            begun_s = self._clock.monotonic_s()
            try:
                return ask(store)
            finally:
                self.seconds.observe(self._clock.monotonic_s() - begun_s)

        return self._pool.submit(done)

    def _outcome(
        self, service: StoreService, future: Future[T] | None, end_s: float, most_s: float
    ) -> StoreAnswer[T]:  # fmt: skip
        if future is None:
            return StoreAnswer(service, error=UnavailableError(f"store {service.url} is being opened again"))
        try:
            return StoreAnswer(service, future.result(max(0.0, end_s - self._clock.monotonic_s())))
        except FutureTimeoutError:
            future.cancel()
            late = UnavailableError(f"store {service.url} has not answered within {round(most_s * 1000)} ms")
            return StoreAnswer(service, error=late)
        except StoreError as error:
            return StoreAnswer(service, error=error)


def _hot_page(store: Store, query: Query, page_bytes: int) -> HotPage:
    if store.is_fenced:
        raise FencedError("another volume serves this store now, and what is hot here is not what is hot there")
    return store.hot_page(query, page_bytes=page_bytes)


def _named(store: Store, topics: Sequence[TopicInfo]) -> list[TopicInfo]:
    """Returns topics whose queues say which store they are of."""
    return [
        replace(topic, queues=[replace(queue, store_id=store.store_id) for queue in topic.queues]) for topic in topics
    ]
