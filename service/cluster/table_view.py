"""A view of the cluster by its table, looked at in the background; a node enters its own store there.

Nothing of it lies on a disk. A process that starts while the bucket is dead knows its own store only, and all there was
once the bucket answers; one that runs on keeps what it saw last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tierlog.service.cluster.group_homes import MAX_HOMES, GroupHomes
from tierlog.service.cluster.table import ClusterTable, ClusterTableStore, StoreEntry, rendezvous
from tierlog.service.cluster.view import StorePlace
from tierlog.tiering.base.backoff import Backoff, RepeatedTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, FencedError, NotFoundError, StoreMismatchError, UnavailableError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.remote.endpoint import ServiceAddress

_LOG = logging.getLogger("tierlog")
#: Minimum time between two looks, also while the own store is not entered yet.
_SOON_S = 0.5
_MOST_PAUSE_S = 10.0
_JOIN_S = 1.0
_REMEMBERED_TOPICS = 10_000


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The store that this process serves, and what it takes to enter it."""

    store_id: str
    url: str
    volume_id: str
    #: The epoch that it holds in its archive's head, by a look there; None for not yet. Raises if it is another's.
    epoch: Callable[[], int | None]
    #: Consumer groups that it has had since before it was in a cluster.
    groups: Callable[[], Iterable[str]] = tuple
    #: By protocol: ``host:port`` at which clients of RocketMQ reach it.
    doors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A version of the table, with what was worked out from it."""

    table: ClusterTable
    places: dict[str, StorePlace]
    hashed_over: list[str]
    homes: dict[str, str] = field(default_factory=dict)


class TableView:
    """A :class:`ClusterView` over the table; ``own`` is None for a querier. Thread safe.

    :meth:`start` begins looking; before that and while the bucket is dead, only the own store is known.
    """

    def __init__(
        self,
        objects: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        *,
        refresh_ms: int,
        own: OwnNode | None = None,
        max_groups: int = MAX_HOMES,
    ) -> None:
        self._stopping = stopping = threading.Event()
        #: Changes the table; pass the result to :meth:`learn`.
        self.tables = ClusterTableStore(objects, clock, randomness, stopping)
        self.homes = GroupHomes(objects, max_groups)
        #: The own store, if there is one.
        self.own = own
        self._clock = clock
        self._refresh_s = refresh_ms / 1000
        backoff = Backoff(clock, randomness, first_s=min(_SOON_S, self._refresh_s), most_s=_MOST_PAUSE_S)
        self._look_again = RepeatedTask("reading the cluster table", self.look, backoff)
        pauses = Backoff(clock, randomness, first_s=min(_SOON_S, self._refresh_s), most_s=_MOST_PAUSE_S)
        self._enter_again = RepeatedTask("entering the store in the cluster table", self.enter, pauses)
        self._lock = threading.Lock()
        self._seen = self._see(ClusterTable())
        self._looked_s: float | None = None
        self._made_s = clock.monotonic_s()
        self._entered: StoreEntry | None = None
        self._fenced: str | None = None
        self._has_tried = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    # what is known

    @property
    def own_store(self) -> str | None:
        """The store of this process; None for a querier."""
        return self.own.store_id if self.own is not None else None

    @property
    def table(self) -> ClusterTable:
        """The table as it was seen last; of version 0 before the first look."""
        return self._seen.table

    @property
    def age_ms(self) -> int | None:
        """The time since the table was known to be the newest; None before the first look."""
        looked_s = self._looked_s
        return None if looked_s is None else max(0, round((self._clock.monotonic_s() - looked_s) * 1000))

    @property
    def silence_s(self) -> float:
        """The time since the table was known to be the newest; before the first look, since it was looked for."""
        looked_s = self._looked_s
        return max(0.0, self._clock.monotonic_s() - (self._made_s if looked_s is None else looked_s))

    @property
    def error(self) -> str | None:
        """The reason why the table could not be read, or the own store not be entered; None if all is well."""
        return self._look_again.error or self._fenced or self._enter_again.error

    @property
    def is_entered(self) -> bool:
        """Whether the own store stands in the table as this process entered it; never for a querier."""
        entered = self._entered
        return self.own is not None and entered is not None and self.table.stores.get(self.own.store_id) == entered

    def stores(self) -> Sequence[StorePlace]:
        """Returns every store that is known, by id; the own one too."""
        places = self._seen.places
        return [places[store_id] for store_id in sorted(places)]

    def place_of(self, store_id: str) -> StorePlace:
        """Returns where a store answers; :class:`NotFoundError` for one that is not in the cluster."""
        found = self._seen.places.get(store_id)
        if found is None:
            raise NotFoundError(
                f"store {store_id!r} is not in the cluster", hint="`tierlog cluster` lists those that are"
            )
        return found

    def home_of_topic(self, topic: str) -> str:
        """Returns the store for new messages of a topic; :class:`UnavailableError` while no store is known."""
        seen = self._seen
        home = seen.homes.get(topic)
        if home is None:
            home = self._home(seen, topic)
            if len(seen.homes) < _REMEMBERED_TOPICS:
                seen.homes[topic] = home
        return home

    def is_routed(self, topic: str) -> bool:
        """Whether the table names the store of a topic, so that hashing has no say."""
        return self._seen.table.topics.get(topic) in self._seen.places

    def takes(self, topic: str, store_id: str) -> bool:
        """Whether clients that choose the store themselves may send messages of a topic to it.

        That is the store that the table names for the topic; where it names none, each that is not closed.
        """
        table = self._seen.table
        if self.is_routed(topic):
            return table.topics[topic] == store_id
        return store_id in table.open_stores or store_id not in table.stores

    def home_of_group(self, group: str) -> str:
        """Returns the store that keeps a consumer group; the first use asks the bucket, which may raise its error.

        One that the own store has had since before it was in a cluster stays here, although this is asked for before
        the store has entered itself.
        """
        return self.homes.home(group, lambda: self.choice_for_group(group))

    def known_home_of_group(self, group: str) -> str | None:
        """Returns the home without deciding it; None if nobody has."""
        return self.homes.known(group)

    def refresh_soon(self) -> None:
        """Looks again within half a second. Returns at once."""
        self._wake.set()

    def _home(self, seen: _Seen, topic: str) -> str:
        routed = seen.table.topics.get(topic)
        return routed if routed in seen.places else self._hashed(seen, topic)

    def _hashed(self, seen: _Seen, name: str) -> str:
        home = rendezvous(name, seen.hashed_over)
        if home is None:
            raise UnavailableError(
                "no store of the cluster is known yet", hint="is there one that has cluster.address?"
            )
        return home

    def choice_for_group(self, group: str) -> str:
        """Returns the store that :meth:`home_of_group` would choose; nothing is decided."""
        known = self._known_by_bucket()
        own = self.own
        if own is not None and self._fenced is None and group in own.groups():
            return own.store_id
        return self._hashed(known, group)

    def _known_by_bucket(self) -> _Seen:
        """Returns what a decision for ever may rest on: the table, not what is known here while the bucket is dead."""
        if self._looked_s is None:
            self.look()
        return self._seen

    # looking

    def start(self, first_look_s: float = 0.0) -> None:
        """Looks now and from then on, on a thread of its own; waits for so long until the first look has ended somehow.

        A node that answers before it would keep messages of topics that have their home elsewhere.
        """
        self._thread = threading.Thread(target=self._run, name="tierlog-cluster", daemon=True)
        self._thread.start()
        self._clock.wait(self._has_tried, first_look_s)

    def stop(self) -> None:
        """Ends the thread, or leaves it after a second if it hangs in a call to a dead bucket. Idempotent."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    def look(self) -> None:
        """Looks at the table, one conditional GET; raises the object store's error, or what is wrong with the table."""
        table = self.tables.refresh()
        self._looked_s = self._clock.monotonic_s()
        self.learn(table)

    def learn(self, table: ClusterTable) -> None:
        """Goes by this table from now on, unless a newer one is known."""
        with self._lock:
            if table.version >= self._seen.table.version:
                self._seen = self._see(table)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look_again.run_once()
                self._has_tried.set()
                if self._look_again.error is None:
                    self._enter_again.run_once()
            except ClosedError:
                return
            self._clock.wait(self._stopping, min(_SOON_S, self._refresh_s))  # however often somebody asks
            self._clock.wait(self._wake, self._pause_s())
            self._wake.clear()

    def _pause_s(self) -> float:
        """Returns how long there is nothing more to do unless somebody asks."""
        rest_s = max(0.0, self._refresh_s - _SOON_S)
        if self._look_again.error is not None:
            return 0.0  # it pauses by itself
        if self._enter_again.error is not None:
            return min(rest_s, _MOST_PAUSE_S)
        is_entering = self.own is not None and self._fenced is None and not self.is_entered
        return 0.0 if is_entering else rest_s

    def _see(self, table: ClusterTable) -> _Seen:
        places = {store_id: StorePlace(store_id, entry.url, entry.doors) for store_id, entry in table.stores.items()}
        own = self.own
        if own is not None and own.store_id not in places:
            places[own.store_id] = StorePlace(own.store_id, own.url, own.doors)
        # a store that is not entered yet gets no topics, because the others do not know it
        return _Seen(table, places, table.open_stores or sorted(places))

    # entering

    def enter(self) -> None:
        """Enters the own store, unless it stands there as this process entered it.

        Whoever was fenced never enters itself again: the head is asked between the read of the table and its
        compare-and-swap (docs/recovery.md).
        """
        own, entered = self.own, self._entered
        if own is None or self._fenced is not None:
            return
        if entered is not None and self.is_entered and not self.tables.is_set_back:
            return
        try:
            if own.store_id not in self.table.stores and own.epoch() is not None:
                for group in own.groups():  # before any request for them is forwarded
                    self.homes.settle(group, own.store_id)
            self.learn(self.tables.change(lambda table: self._with_own(table, own)))
        except (FencedError, StoreMismatchError) as error:
            self._fenced = str(error)
            _LOG.error("this store is entered in the cluster table no more: %s", error)

    def _with_own(self, table: ClusterTable, own: OwnNode) -> ClusterTable:
        epoch = own.epoch()
        if epoch is None:
            return table
        entry = StoreEntry(str(ServiceAddress.parse(own.url)), epoch, own.volume_id, own.doors)
        changed = table.enter(own.store_id, entry)
        self._entered = changed.stores[own.store_id]
        return changed
