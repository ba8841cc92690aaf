"""A store that was closed changes nothing of the files that its next owner has."""

from __future__ import annotations

from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message


def test_a_query_of_a_closed_store_leaves_the_index_of_the_next_owner_alone(tmp_path: Path) -> None:
    def send(store: Store, name: str) -> None:
        store.append([Message("orders", b"x", keys=(f"{name}{number}",)) for number in range(50)])

    first = Store.open(tmp_path / "store", settings=tiny_settings())
    send(first, "old")
    first.close()
    closed = Store.open(tmp_path / "store", settings=tiny_settings())
    closed.close()
    store = Store.open(tmp_path / "store", settings=tiny_settings())
    send(store, "new")
    closed.query(Query("orders", key="old1"))
    assert sum(len(store.query(Query("orders", key=f"new{number}")).messages) for number in range(50)) == 50
    store.close()
