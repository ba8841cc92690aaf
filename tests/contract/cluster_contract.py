"""What a cluster asks of a bucket: no change of the table is lost, and a group has one home."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.contract.contract_base import THREADS, StoreUnderTest
from tierlog.service.cluster.group_homes import GroupHomes
from tierlog.service.cluster.table import ClusterTableStore, StoreEntry
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.paths import CLUSTER_TABLE, group_home_key
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import stores_below


class ClusterContract(StoreUnderTest):
    """For backends that several stores may share."""

    def test_of_racing_changes_of_the_cluster_table_none_is_lost(self, store: ObjectStore) -> None:
        def enter(number: int) -> None:
            tables = ClusterTableStore(store, SystemClock(), SystemRandomness())
            tables.change(lambda table: table.enter(f"s{number}", StoreEntry("http://n", 1, "v")))
            tables.change(lambda table: table.route(f"t{number}", f"s{number}"))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(enter, range(THREADS)))
        table = json.loads(store.get(CLUSTER_TABLE)[0])
        assert (len(table["stores"]), len(table["topics"]), table["version"]) == (THREADS, THREADS, 2 * THREADS)

    def test_of_racing_homes_of_a_group_one_stays(self, store: ObjectStore) -> None:
        group = "a%2F|b%-_" + "c" * 246
        with ThreadPoolExecutor(THREADS) as pool:
            found = set(pool.map(lambda number: GroupHomes(store).home(group, lambda: f"s{number}"), range(THREADS)))
        assert found == {json.loads(store.get(group_home_key(group))[0])["store_id"]}

    def test_what_stores_share_is_no_store(self, store: ObjectStore) -> None:
        for key in (CLUSTER_TABLE, group_home_key("head"), "a/head", "cluster-2/head", "z/head"):
            store.put(key, b"{}")
        assert list(stores_below(store)) == ["a", "cluster-2", "z"]
