"""A view of stores that were named by their URLs (``--stores``): which one answers where is learnt by asking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tierlog.service.cluster.fan_out import StoreService
from tierlog.service.cluster.table import rendezvous
from tierlog.service.cluster.view import ClusterView, StorePlace
from tierlog.tiering.base.errors import NotFoundError, UnavailableError


class StaticView:
    """A :class:`ClusterView` for a querier whose stores are a list; where a group or a topic belongs the table decides.

    Without a table a group has no home if there are several stores: whatever was decided by a list that somebody may
    change would lose its offsets.
    """

    own_store = None

    def __init__(
        self, urls: Sequence[str], learn: Callable[[Sequence[str]], dict[str, str]], table: ClusterView | None = None
    ) -> None:
        """``learn`` asks services which stores they are: ids by URL, of those that answer."""
        self._urls = tuple(urls)
        self._learn = learn
        self._table = table
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}

    def services(self) -> list[StoreService]:
        """Returns all of the list, in its order; the unknown ones are asked first, within the bound of asks."""
        unknown = [url for url in self._urls if url not in self._ids]
        if unknown:
            found = self._learn(unknown)
            with self._lock:
                self._ids.update(found)
        return [StoreService(url, self._ids.get(url)) for url in self._urls]

    def forget(self, url: str) -> None:
        """Forgets which store answers there, as it is another than before."""
        with self._lock:
            self._ids.pop(url, None)

    def stores(self) -> Sequence[StorePlace]:
        """Returns the stores that have answered once, by id."""
        places: dict[str, StorePlace] = {}
        for url, store_id in list(self._ids.items()):
            places.setdefault(store_id, StorePlace(store_id, url))
        return [places[store_id] for store_id in sorted(places)]

    def place_of(self, store_id: str) -> StorePlace:
        """Returns where a store answers; :class:`NotFoundError` for one of which that is not known."""
        for place in self.stores():
            if place.store_id == store_id:
                return place
        raise NotFoundError(f"no service of store {store_id!r} is known", hint="is it in --stores, and does it answer?")

    def home_of_topic(self, topic: str) -> str:
        """By the table if there is one, else by hashing over the list; :class:`UnavailableError` while it is partly
        unknown."""
        if self._table is not None and self._table.stores():
            return self._table.home_of_topic(topic)
        known = [place.store_id for place in self.stores()]
        home = rendezvous(topic, known) if len(self._ids) == len(self._urls) else None
        if home is None:
            raise UnavailableError("not every store of --stores has answered yet", hint="try again, or name store_id")
        return home

    def home_of_group(self, group: str) -> str:
        """Decides by the table, or for the only store; :class:`UnavailableError` without both."""
        if self._table is not None and self._table.stores():
            return self._table.home_of_group(group)
        return self._only_store()

    def known_home_of_group(self, group: str) -> str | None:
        """Returns the home without deciding it; None if nobody has."""
        if self._table is not None and self._table.stores():
            return self._table.known_home_of_group(group)
        return self._only_store()

    def choice_for_group(self, group: str) -> str:
        """Chooses by the table, or the only store."""
        if self._table is not None and self._table.stores():
            return self._table.choice_for_group(group)
        return self._only_store()

    def refresh_soon(self) -> None:
        """Looks again at the table."""
        if self._table is not None:
            self._table.refresh_soon()

    def _only_store(self) -> str:
        if len(self._urls) == 1 and self._ids:
            return next(iter(self._ids.values()))
        raise UnavailableError(
            "groups over several stores need a cluster table", hint="start the querier with --cold, or ask a node"
        )
