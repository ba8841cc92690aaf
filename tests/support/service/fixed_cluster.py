"""Nodes of a cluster in this process, each behind a server of its own; who is where is what the test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.service.served import served_app
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.cluster.view import StorePlace
from tierlog.service.config.serve import AccessSettings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import NotFoundError


class FixedCluster:
    """A :class:`ClusterView` that knows what it was told: where stores answer, and the homes of topics and groups.

    What has no home named is at home in the store whose id comes first: a group from when it is decided.
    """

    def __init__(
        self, own: str | None, places: Mapping[str, str], homes: Mapping[str, str],
        groups: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._own, self._places, self._homes = own, places, homes
        self._groups = {} if groups is None else groups
        self.refreshes = 0

    @property
    def own_store(self) -> str | None:
        """The store of this process."""
        return self._own

    def stores(self) -> Sequence[StorePlace]:
        """Every store."""
        return [self.place_of(store_id) for store_id in sorted(self._places)]

    def place_of(self, store_id: str) -> StorePlace:
        """Where a store answers."""
        if store_id not in self._places:
            raise NotFoundError(f"store {store_id!r} is not in the cluster")
        return StorePlace(store_id, self._places[store_id])

    def home_of_topic(self, topic: str) -> str:
        """As it was told."""
        return self._homes.get(topic) or min(self._places)

    def home_of_group(self, group: str) -> str:
        """As it was told, or decided for all who share these groups."""
        return self._groups.setdefault(group, min(self._places))

    def known_home_of_group(self, group: str) -> str | None:
        """As it was told or decided."""
        return self._groups.get(group)

    def choice_for_group(self, group: str) -> str:
        """What :meth:`home_of_group` would decide."""
        return min(self._places)

    def refresh_soon(self) -> None:
        """Counted."""
        self.refreshes += 1


@dataclass
class Node:
    """One node, and a client of it."""

    store_id: str
    url: str
    engine: Store
    cluster: FixedCluster
    http: httpx.Client

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """The answer to one request, with ``body`` as JSON."""
        return self.http.request(method, path, json=body, **more)

    def bodies(self, topic: str) -> set[str]:
        """Of the messages that its own store has of a topic."""
        answer = self.http.get(f"/v1/topics/{topic}/messages?limit=1000&store_id={self.store_id}")
        return {message["body"] for message in answer.json()["messages"]} if answer.status_code == 200 else set()


class Nodes:
    """Makes nodes below one prefix; all share :attr:`places` and :attr:`homes`, unless they are given others."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.places: dict[str, str] = {}
        self.homes: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def add(
        self, store_id: str, *, settings: Settings | None = None, places: Mapping[str, str] | None = None,
        homes: Mapping[str, str] | None = None, access: AccessSettings | None = None, is_alone: bool = False,
    ) -> Node:  # fmt: skip
        """A node that has begun to answer."""
        settings = settings or tiny_settings()
        engine = Store.open(
            self._folder / store_id, cold_url=(self._folder / "cold").as_uri(), store_id=store_id, settings=settings
        )
        self._stack.callback(engine.close)
        engine.start()
        cluster = FixedCluster(
            store_id, self.places if places is None else places, self.homes if homes is None else homes, self.groups
        )
        control = None if access is None else AccessControl(access, SystemClock())
        stopping = threading.Event()
        app = create_app(engine, settings, stopping, control=control, cluster=None if is_alone else cluster)
        url = self._stack.enter_context(served_app(app, settings, stopping))
        self.places.setdefault(store_id, url)
        http = self._stack.enter_context(httpx.Client(base_url=url, timeout=60))
        return Node(store_id, url, engine, cluster, http)


@contextlib.contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    """Nodes that end with the context."""
    with contextlib.ExitStack() as stack:
        yield Nodes(folder, stack)
