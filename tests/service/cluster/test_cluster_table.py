"""The cluster table: its bytes, its rules, and that of many who change it at once nobody's change is lost."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.service.cluster.table import (
    MAX_TABLE_BYTES,
    ClusterTable,
    ClusterTableStore,
    StoreEntry,
    rendezvous,
    weight,
)
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    InvalidRequestError,
    NotFoundError,
    ObjectStoreUnavailableError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.paths import CLUSTER_TABLE
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.hot.identity import validate_store_id
from tierlog.tiering.objects.memory import MemoryObjectStore


def entry(epoch: int = 1, volume: str = "v1") -> StoreEntry:
    return StoreEntry(f"http://{volume}:8080", epoch, volume)


def table_of(*store_ids: str) -> ClusterTable:
    return ClusterTable(stores={store_id: entry() for store_id in store_ids})


def tables(objects: MemoryObjectStore | FaultyObjectStore) -> ClusterTableStore:
    return ClusterTableStore(objects, SystemClock(), SystemRandomness())


# bytes


def test_what_is_written_is_read() -> None:
    table = table_of("a", "b").route("orders", "b").close("a")
    assert ClusterTable.decode(table.encode()) == table


def test_bytes_are_as_they_were_published() -> None:
    table = ClusterTable(7, {"a": StoreEntry("http://a:8080", 3, "5f5f")}, {"orders": "a"}, frozenset({"a"}))
    assert json.loads(table.encode()) == {
        "format": 1, "version": 7, "stores": {"a": {"url": "http://a:8080", "epoch": 3, "volume_id": "5f5f"}},
        "topics": {"orders": "a"}, "closed": ["a"],
    }  # fmt: skip


def test_the_doors_of_a_store_are_written_beside_it_and_go_with_its_next_entry() -> None:
    told = StoreEntry("http://a:8080", 3, "v", {"remoting": "a:9876", "grpc": "[::1]:8081"})
    table = ClusterTable().enter("a", told)
    assert json.loads(table.encode())["stores"]["a"]["doors"] == {"grpc": "[::1]:8081", "remoting": "a:9876"}
    assert ClusterTable.decode(table.encode()) == table
    assert not table.enter("a", StoreEntry("http://a:8080", 4, "v")).stores["a"].doors


def test_what_a_newer_version_wrote_beside_is_kept() -> None:
    document = json.loads(table_of("a").encode())
    document["zones"] = {"a": "north"}
    document["stores"]["a"]["weight"] = 2
    table = ClusterTable.decode(json.dumps(document).encode()).enter("a", entry(2, "v2")).route("t", "a")
    written = json.loads(table.encode())
    assert written["zones"] == {"a": "north"}
    assert written["stores"]["a"] == {"url": "http://v2:8080", "epoch": 2, "volume_id": "v2", "weight": 2}


def test_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormatError) as raised:
        ClusterTable.decode(b'{"format": 2}', path=CLUSTER_TABLE)
    assert raised.value.path == CLUSTER_TABLE


@pytest.mark.parametrize(
    "damage",
    [
        {"version": -1}, {"version": True}, {"version": 1 << 63}, {"stores": []}, {"stores": {"A": {}}},
        {"stores": {"a": {"url": "ftp://a", "epoch": 1, "volume_id": "v"}}},
        {"stores": {"a": {"url": 5, "epoch": 1, "volume_id": "v"}}},
        {"stores": {"a": {"url": "http://a", "epoch": 1, "volume_id": "v", "doors": {"remoting": "nowhere"}}}},
        {"stores": {"a": {"url": "http://a", "epoch": 1, "volume_id": "v", "doors": ["a:1"]}}},
        {"stores": {"a": {"url": "http://a", "epoch": "1", "volume_id": "v"}}},
        {"stores": {"a": {"url": "http://a", "epoch": 1, "volume_id": None}}},
        {"topics": {"a b": "a"}}, {"topics": {"a": 1}}, {"closed": {}}, {"closed": ["../x"]}, {"format": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_tables_are_corruption(damage: dict[str, object]) -> None:
    document = json.loads(table_of("a").encode()) | damage
    with pytest.raises(CorruptionError):
        ClusterTable.decode(json.dumps(document).encode())


def test_bytes_beyond_the_limit_are_not_parsed() -> None:
    with pytest.raises(CorruptionError):
        ClusterTable.decode(b" " * (MAX_TABLE_BYTES + 1))
    many = ClusterTable(topics={f"t{number:030d}" + "x" * 90: "a" for number in range(40_000)})
    with pytest.raises(InvalidRequestError):
        many.encode()


@settings(max_examples=30)
@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_refused_by_a_class_of_the_error_tree(data: bytes) -> None:
    with pytest.raises((CorruptionError, UnsupportedFormatError)):
        ClusterTable.decode(data)


def test_deep_nesting_is_corruption() -> None:
    with pytest.raises(CorruptionError):
        ClusterTable.decode(b"[" * 100_000)


# rules


def test_an_old_volume_never_takes_the_entry_back() -> None:
    table = table_of("a").enter("a", entry(5, "new"))
    for late in (entry(4, "old"), entry(5, "old")):
        with pytest.raises(ConflictError):
            table.enter("a", late)
    assert table.enter("a", entry(5, "new")) == table
    assert table.enter("a", entry(6, "newer")).stores["a"].volume_id == "newer"


def test_the_last_open_store_is_not_closed() -> None:
    table = table_of("a", "b").close("a")
    assert table.open_stores == ["b"]
    with pytest.raises(ConflictError):
        table.close("b")
    assert table.open("a").open_stores == ["a", "b"]
    assert ClusterTable(stores=table.stores, closed=frozenset({"a", "b"})).open_stores == ["a", "b"]


def test_a_removed_store_takes_its_routes_along() -> None:
    table = table_of("a", "b").route("x", "a").route("y", "b").close("a").remove("a")
    assert (list(table.stores), dict(table.topics), table.closed) == (["b"], {"y": "b"}, frozenset())


def test_unknown_stores_are_not_routed_to() -> None:
    with pytest.raises(NotFoundError):
        table_of("a").route("t", "b")
    with pytest.raises(NotFoundError):
        table_of("a").close("b")


def test_no_store_is_called_like_the_folder_that_all_share() -> None:
    with pytest.raises(InvalidRequestError):
        validate_store_id("cluster")
    assert validate_store_id("cluster-1") == "cluster-1"


# hashing


def test_weights_are_those_of_every_version() -> None:
    weights = [weight("orders", store_id) for store_id in ("a", "b", "store-2")]
    assert weights == [7281130714393271265, 13107791950673205168, 17934699140245464916]
    assert rendezvous("orders", ["a", "b", "store-2"]) == "store-2"
    assert rendezvous("orders", []) is None


def test_a_new_store_takes_its_share_and_moves_nothing_else() -> None:
    names, stores = [f"topic-{number}" for number in range(4_000)], [f"store-{number}" for number in range(4)]
    before = {name: rendezvous(name, stores) for name in names}
    after = {name: rendezvous(name, [*reversed(stores), "store-4"]) for name in names}
    moved = [name for name in names if before[name] != after[name]]
    assert {after[name] for name in moved} == {"store-4"}
    assert 0.17 < len(moved) / len(names) < 0.23  # a fifth
    for store_id in stores:
        assert 0.21 < list(before.values()).count(store_id) / len(names) < 0.29


# compare-and-swap


def route(mine: ClusterTableStore, topic: str, store_id: str) -> None:
    mine.change(lambda table: table.route(topic, store_id))


def test_of_many_changes_at_once_none_is_lost() -> None:
    objects = MemoryObjectStore(SystemClock())
    failures: list[BaseException] = []

    def change(number: int) -> None:
        mine = tables(objects)
        try:
            mine.change(lambda table: table.enter(f"s{number}", entry()))
            for topic in range(3):
                route(mine, f"t{number}-{topic}", f"s{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    table = tables(objects).refresh()
    assert (len(table.stores), len(table.topics), table.version) == (8, 24, 32)


def test_a_lost_answer_is_looked_up_and_not_written_twice() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    mine = tables(objects)
    objects.fail_after("put", CLUSTER_TABLE)
    assert mine.change(lambda table: table.enter("a", entry())).version == 1
    objects.fail_before("put", CLUSTER_TABLE)
    assert mine.change(lambda table: table.route("t", "a")).version == 2


def test_a_change_that_changes_nothing_is_not_written() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    mine = tables(objects)
    mine.change(lambda table: table.enter("a", entry()))
    before = len(objects.calls)
    assert mine.change(lambda table: table.enter("a", entry())).version == 1
    assert [call.operation for call in objects.calls[before:]] == ["get_if_changed"]


def test_a_bucket_that_never_answers_raises_its_error() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    objects.fail_before("put", CLUSTER_TABLE, times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        ClusterTableStore(objects, ManualClock(), SystemRandomness()).change(lambda table: table.enter("a", entry()))


def test_versions_go_on_where_the_object_was_set_back() -> None:
    objects = MemoryObjectStore(SystemClock())
    mine = tables(objects)
    mine.change(lambda table: table.enter("a", entry()))
    old, _ = objects.get(CLUSTER_TABLE)
    mine.change(lambda table: table.enter("b", entry()))
    mine.change(lambda table: table.route("t", "b"))
    objects.put(CLUSTER_TABLE, old)
    assert mine.refresh().version == 3
    assert mine.is_set_back
    healed = mine.change(lambda table: table)
    assert (healed.version, list(healed.stores)) == (4, ["a"])
    assert not mine.is_set_back


def test_a_table_that_is_gone_begins_with_what_was_known() -> None:
    objects = MemoryObjectStore(SystemClock())
    mine = tables(objects)
    mine.change(lambda table: table.enter("a", entry()))
    mine.change(lambda table: table.route("t", "a"))
    objects.delete(CLUSTER_TABLE)
    assert mine.refresh().version == 2
    assert mine.change(lambda table: table.enter("a", entry())).version == 3
    assert dict(tables(objects).refresh().topics) == {"t": "a"}
