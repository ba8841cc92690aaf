"""The queues of other stores, learnt over REST: what a consumer group's home allocates beside its own.

Each store is asked by a thread of its own, which exists only while there is something to ask, so that one that hangs
delays nobody but those who wait for it, and those for ``cluster.ask_timeout_ms`` at most. After it did not answer it is
left alone for ``cluster.retry_ms``. What it told is never forgotten because it is down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from tierlog.service.cluster.node_client import NodeClient
from tierlog.service.cluster.view import ClusterView
from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.engine.groups import QueueEnds, no_such_store
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import StoreError, TopicNotFoundError, UnavailableError
from tierlog.tiering.hot.consumer_groups import Queue
from tierlog.tiering.remote.endpoint import ServiceAccess

_LOG = logging.getLogger("tierlog")
#: Topics that are remembered for a store; the least recently requested go first.
_MOST_TOPICS = 20_000

_Ask = Callable[[str, str], tuple[QueueEnds, ...]]


@dataclass(slots=True)
class _Ticket:
    """A question that is to be asked, or is being asked."""

    topic: str
    is_urgent: bool
    is_running: bool = False
    is_done: bool = False
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    asked_s: float
    queues: tuple[QueueEnds, ...]


class _RemoteStore:
    """One other store; everything but :meth:`_run` under the lock of ``changed``."""

    def __init__(self, store_id: str, ask: _Ask, clock: Clock, retry_ms: int, changed: threading.Condition) -> None:
        self.store_id = store_id
        self._ask = ask
        self._clock = clock
        self._retry_s = retry_ms / 1000
        self._changed = changed
        self._answers: dict[str, _Answer] = {}
        self._tickets: dict[str, _Ticket] = {}
        self._failed_s: float | None = None
        self._is_asking = False

    @property
    def is_answering(self) -> bool:
        return self._failed_s is None

    def last_known(self, topic: str) -> tuple[QueueEnds, ...] | None:
        """Returns the answer last given; None if it was never asked, or never answered."""
        found = self._answers.get(topic)
        return None if found is None else found.queues

    def is_due(self, topic: str, age_s: float) -> bool:
        found, ticket = self._answers.get(topic), self._tickets.get(topic)
        if found is None:
            return True
        return ticket is None and self._clock.monotonic_s() - found.asked_s >= age_s

    def begin(self, topics: Iterable[str], *, is_urgent: bool) -> list[_Ticket]:
        """Schedules a request for these topics, unless the store is left alone. An urgent caller gets counts from after
        the call."""
        if self._failed_s is not None and self._clock.monotonic_s() - self._failed_s < self._retry_s:
            return []
        tickets = []
        for topic in topics:
            ticket = self._tickets.get(topic)
            if ticket is None or (is_urgent and ticket.is_running):
                ticket = self._tickets[topic] = _Ticket(topic, is_urgent)
            ticket.is_urgent |= is_urgent
            tickets.append(ticket)
        if tickets and not self._is_asking:
            self._is_asking = True
            threading.Thread(target=self._run, name=f"queues-of-{self.store_id}", daemon=True).start()
        return tickets

    def _run(self) -> None:
        while (ticket := self._next()) is not None:
            asked_s = self._clock.monotonic_s()
            queues: tuple[QueueEnds, ...] | None = None
            try:
                queues = self._ask(self.store_id, ticket.topic)
            except StoreError as error:
                self._log_change(f"does not tell its queues: {error}", is_answer=False)
            except Exception:  # a bug: waiting callers are released all the same
                _LOG.exception("store %s cannot be asked for its queues", self.store_id)
            else:
                self._log_change("tells its queues again", is_answer=True)
            with self._changed:
                self._end(ticket, asked_s, queues)

    def _next(self) -> _Ticket | None:
        with self._changed:
            waiting = [ticket for ticket in self._tickets.values() if not ticket.is_running]
            ticket = next((each for each in waiting if each.is_urgent), waiting[0] if waiting else None)
            if ticket is None:
                self._is_asking = False
            else:
                ticket.is_running = True
            return ticket

    def _log_change(self, words: str, *, is_answer: bool) -> None:
        if is_answer != self.is_answering:
            _LOG.log(logging.INFO if is_answer else logging.WARNING, "store %s %s", self.store_id, words)

    def _end(self, ticket: _Ticket, asked_s: float, queues: tuple[QueueEnds, ...] | None) -> None:
        ended = [ticket]
        if queues is None:
            self._failed_s = self._clock.monotonic_s()
            ended += self._tickets.values()  # the next request would fail as well
        else:
            self._failed_s = None
            ticket.is_answered = True
            self._answers.pop(ticket.topic, None)
            self._answers[ticket.topic] = _Answer(asked_s, queues)
            while len(self._answers) > _MOST_TOPICS:
                del self._answers[next(iter(self._answers))]
        for each in ended:
            each.is_done = True
            if self._tickets.get(each.topic) is each:
                del self._tickets[each.topic]
        self._changed.notify_all()


class QueueCounts:
    """The queues of a cluster's other stores, as those told last. Thread safe."""

    def __init__(
        self, view: ClusterView, settings: ClusterSettings, clock: Clock, access: ServiceAccess | None = None
    ) -> None:
        """``access``, if it is not given, is what the environment says; asks nobody yet."""
        self._view = view
        self._settings = settings
        self._clock = clock
        self._client = NodeClient(view.own_store or "", settings.ask_timeout_ms, access)
        self._changed = threading.Condition()
        self._stores: dict[str, _RemoteStore] = {}

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        """See :meth:`RemoteQueues.refresh`."""
        if not topics:
            return
        age_s = (self._settings.refresh_ms if age_ms is None else age_ms) / 1000
        tickets: list[_Ticket] = []
        with self._changed:
            for store in self._others():
                due = [topic for topic in sorted(topics) if store.is_due(topic, age_s)]
                tickets += store.begin(due, is_urgent=False)
        if wait:
            self._wait(tickets)

    def counts(self, topic: str) -> Mapping[str, int]:
        """See :meth:`RemoteQueues.counts`."""
        with self._changed:
            return {store.store_id: len(queues) for store in self._others() if (queues := store.last_known(topic))}

    def is_answering(self, store_id: str) -> bool:
        """Whether a store answered when it was asked last, or was not asked yet."""
        with self._changed:
            return self._store(store_id).is_answering

    def last_known(self, queue: Queue) -> QueueEnds:
        """See :meth:`RemoteQueues.last_known`."""
        with self._changed:
            store = self._other(queue[1])
            if not store.is_answering:
                raise _down(store.store_id)
            return _ends_of(store, queue)

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """See :meth:`RemoteQueues.ends`."""
        tickets: dict[tuple[str, str], _Ticket] = {}
        with self._changed:
            doubtful = {
                queue: self._other(queue[1]) for queue, offset in offsets.items() if self._is_new(queue, offset)
            }
            for store in set(doubtful.values()):
                topics = {topic for (topic, store_id, _) in doubtful if store_id == store.store_id}
                begun = store.begin(sorted(topics), is_urgent=True)
                if not begun:
                    raise _down(store.store_id)
                tickets.update({(store.store_id, ticket.topic): ticket for ticket in begun})
        self._wait(tickets.values())
        with self._changed:
            for (store_id, _), ticket in tickets.items():
                if not ticket.is_answered:
                    raise _down(store_id)
            return {queue: _ends_of(self._other(queue[1]), queue).max_offset for queue in offsets}

    def offset_since(self, queue: Queue, time_ms: int) -> int:
        """See :meth:`RemoteQueues.offset_since`."""
        topic, store_id, queue_id = queue
        with self._changed:
            _ends_of(self._other(store_id), queue)
        url = self._view.place_of(store_id).url
        asked = urlencode({"time_ms": time_ms, "boundary": "lower", "store_id": store_id})
        path = f"/v1/topics/{quote(topic, safe='')}/queues/{queue_id}/offset?{asked}"
        found = self._client.get(url, path, store_id=store_id)
        try:
            return int(found["offset"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"{url} did not tell where {time_ms} ms lies in {topic!r}") from error

    def _is_new(self, queue: Queue, offset: int) -> bool:
        """Whether an offset lies beyond what is known of its queue."""
        topic, store_id, queue_id = queue
        queues = self._other(store_id).last_known(topic)
        return queues is None or queue_id >= len(queues) or offset > queues[queue_id].max_offset

    def _others(self) -> list[_RemoteStore]:
        own = self._view.own_store
        return [self._store(place.store_id) for place in self._view.stores() if place.store_id != own]

    def _other(self, store_id: str) -> _RemoteStore:
        if all(place.store_id != store_id for place in self._view.stores()):
            raise no_such_store(store_id)
        return self._store(store_id)

    def _store(self, store_id: str) -> _RemoteStore:
        if store_id not in self._stores:
            retry_ms = self._settings.retry_ms
            self._stores[store_id] = _RemoteStore(store_id, self._ask, self._clock, retry_ms, self._changed)
        return self._stores[store_id]

    def _wait(self, tickets: Collection[_Ticket]) -> None:
        timeout_s = self._settings.ask_timeout_ms / 1000
        with self._changed:
            self._changed.wait_for(lambda: all(ticket.is_done for ticket in tickets), timeout_s)

    def _ask(self, store_id: str, topic: str) -> tuple[QueueEnds, ...]:
        url = self._view.place_of(store_id).url
        try:
            # the store is named, so that no other one answers at an address that was reused
            found = self._client.get(url, f"/v1/topics/{quote(topic, safe='')}?store_id={store_id}", store_id=store_id)
        except TopicNotFoundError:
            return ()
        try:
            return tuple(
                QueueEnds(
                    int(queue["min_offset"]),
                    int(queue["max_offset"]),
                    None if queue["gaps"] is None else tuple((int(first), int(end)) for first, end in queue["gaps"]),
                )
                for queue in sorted(found["offsets"], key=lambda queue: int(queue["queue_id"]))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"{url} did not tell its queues of {topic!r}") from error


def _ends_of(store: _RemoteStore, queue: Queue) -> QueueEnds:
    topic, store_id, queue_id = queue
    queues = store.last_known(topic)
    if queues is None:
        raise _down(store_id)
    if queue_id >= len(queues):
        raise TopicNotFoundError(f"store {store_id} has no queue {topic}/{queue_id}")
    return queues[queue_id]


def _down(store_id: str) -> UnavailableError:
    return UnavailableError(
        f"store {store_id} does not say where its queues end", hint="nothing was committed: commit again"
    )
