"""The cluster and the home of a topic as JSON documents, the same from a service and from the bucket alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tierlog.service.access.caller import every_topic
from tierlog.service.cluster.table import ClusterTable, rendezvous
from tierlog.service.cluster.table_view import TableView
from tierlog.service.cluster.view import ClusterView, StorePlace
from tierlog.tiering.base.errors import ConflictError, UnavailableError

Json = dict[str, Any]


def table_json(
    table: ClusterTable,
    *,
    own: str | None = None,
    age_ms: int | None = None,
    error: str | None = None,
    shows: Callable[[str], bool] = every_topic,
) -> Json:
    """Makes the document of the table; of topics only those that ``shows`` lets through."""
    return {
        "store_id": own,
        "version": table.version,
        "age_ms": age_ms,
        "error": error,
        "stores": [
            {
                "store_id": store_id,
                "url": entry.url,
                "doors": dict(sorted(entry.doors.items())),
                "epoch": entry.epoch,
                "volume_id": entry.volume_id,
                "closed": store_id in table.closed,
                "is_own": store_id == own,
            }
            for store_id, entry in sorted(table.stores.items())
        ],
        "topics": [
            {"topic": topic, "store_id": store_id} for topic, store_id in sorted(table.topics.items()) if shows(topic)
        ],
    }


def cluster_json(view: ClusterView | None, own: str | None, shows: Callable[[str], bool] = every_topic) -> Json:
    """Makes the document of what a process knows of its cluster; without a cluster, of its own store."""
    if isinstance(view, TableView):
        found = table_json(view.table, own=own, age_ms=view.age_ms, error=view.error, shows=shows)
    else:
        found = table_json(ClusterTable(), own=own)
    listed = {one["store_id"] for one in found["stores"]}
    known = {place.store_id: place for place in view.stores()} if view is not None else {}
    if own is not None:
        known.setdefault(own, StorePlace(own, ""))
    for store_id in sorted(known.keys() - listed):  # not entered yet, or of no table
        place = known[store_id]
        found["stores"].append(
            {
                "store_id": store_id, "url": place.url or None, "doors": dict(sorted(place.doors.items())),
                "epoch": None, "volume_id": None, "closed": False, "is_own": store_id == own,
            }
        )  # fmt: skip
    return found


def home_json(view: ClusterView | None, own: str | None, topic: str) -> Json:
    """Makes the document of the store that new messages of a topic go to."""
    if view is None:
        return {"topic": topic, "store_id": own, "url": None, "is_routed": False}
    store_id = view.home_of_topic(topic)
    is_routed = isinstance(view, TableView) and view.is_routed(topic)
    return {"topic": topic, "store_id": store_id, "url": view.place_of(store_id).url, "is_routed": is_routed}


def home_in_table(table: ClusterTable, topic: str) -> Json:
    """Makes the document of a topic's store by the table alone; :class:`UnavailableError` if it has no store."""
    routed = table.topics.get(topic)
    is_routed = routed is not None and routed in table.stores
    store_id = routed if is_routed else rendezvous(topic, table.open_stores)
    if store_id is None:
        raise UnavailableError("no store of the cluster is known yet", hint="is there one that has cluster.address?")
    return {"topic": topic, "store_id": store_id, "url": table.stores[store_id].url, "is_routed": is_routed}


def change_cluster(view: ClusterView | None, edit: Callable[[ClusterTable], ClusterTable]) -> None:
    """Changes the table, and goes by it here at once; :class:`ConflictError` where there is none."""
    if view is None:
        raise ConflictError(
            "this store is in no cluster, so there is no table to change",
            hint="a node has cluster.address (docs/cluster.md)",
        )
    if not isinstance(view, TableView):
        raise ConflictError(
            "the stores here are a list in the settings, not a table that can be changed", hint="ask a node"
        )
    view.learn(view.tables.change(edit))


def taken_out(store_id: str) -> Callable[[ClusterTable], ClusterTable]:
    """Makes the change that removes a store; :class:`NotFoundError` if it was not there at the first try."""
    tried: list[bool] = []

    def edit(table: ClusterTable) -> ClusterTable:
        if not tried:
            table.check_store(store_id)
            tried.append(True)
        return table.remove(store_id)

    return edit
