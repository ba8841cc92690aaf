"""What a process knows of its cluster: kept while the bucket is dead, never going back, and entered by owners only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.process import check_membership, join_cluster
from tierlog.service.archive.archive import Archive
from tierlog.service.cluster.table_view import OwnNode, TableView
from tierlog.service.engine.store import Store
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, UnavailableError
from tierlog.tiering.base.paths import CLUSTER_TABLE
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore


def view_of(
    objects: ObjectStore, store_id: str | None = None, epoch: Callable[[], int | None] = lambda: 1, volume: str = "v"
) -> TableView:
    own = None if store_id is None else OwnNode(store_id, f"http://{store_id}:80/", volume, epoch)
    return TableView(objects, ManualClock(), SystemRandomness(), refresh_ms=1_000, own=own)


def joined(objects: ObjectStore, *store_ids: str) -> list[TableView]:
    """Views that have all seen each other."""
    views = [view_of(objects, store_id) for store_id in store_ids]
    for view in views:
        view.look()
        view.enter()
    for view in views:
        view.look()
    return views


def member(root: Path, objects: ObjectStore, address: str = "http://n1:8080") -> tuple[Store, TableView]:
    settings = tiny_settings(cluster__address=address)
    engine = Store.open(root, settings=settings, cold_url="memory://cluster", store_id="a", objects=objects)
    view = join_cluster(engine, settings)
    assert view is not None
    return engine, view


def test_nodes_find_each_other_and_agree_on_homes() -> None:
    first, second = joined(MemoryObjectStore(SystemClock()), "a", "b")
    assert [(place.store_id, place.url) for place in first.stores()] == [("a", "http://a:80"), ("b", "http://b:80")]
    names = [f"t{number}" for number in range(50)]
    assert [first.home_of_topic(name) for name in names] == [second.home_of_topic(name) for name in names]
    assert {first.home_of_topic(name) for name in names} == {"a", "b"}
    assert first.is_entered
    assert second.place_of("a").url == "http://a:80"
    with pytest.raises(NotFoundError):
        first.place_of("c")


def test_a_route_wins_over_hashing_until_its_store_is_gone() -> None:
    objects = MemoryObjectStore(SystemClock())
    first, second = joined(objects, "a", "b")
    hashed = first.home_of_topic("orders")
    other = "a" if hashed == "b" else "b"
    first.learn(first.tables.change(lambda table: table.route("orders", other)))
    second.look()
    assert first.home_of_topic("orders") == second.home_of_topic("orders") == other
    assert first.is_routed("orders")


def test_a_closed_store_gets_no_topics_by_hashing() -> None:
    (first, second) = joined(MemoryObjectStore(SystemClock()), "a", "b")
    first.learn(first.tables.change(lambda table: table.close("a")))
    second.look()
    assert {second.home_of_topic(f"t{number}") for number in range(50)} == {"b"}


def test_a_dead_bucket_leaves_what_was_known() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    first, _ = joined(objects, "a", "b")
    homes = [first.home_of_topic(f"t{number}") for number in range(20)]
    group_home = first.home_of_group("billing")
    objects.fail_before("*", times=None)
    with pytest.raises(UnavailableError):
        first.look()
    assert [first.home_of_topic(f"t{number}") for number in range(20)] == homes
    assert first.home_of_group("billing") == group_home
    with pytest.raises(UnavailableError):
        first.home_of_group("unheard-of")


def test_without_a_first_look_a_node_knows_itself_and_a_querier_nobody() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    objects.fail_before("*", times=None)
    node, querier = view_of(objects, "a"), view_of(objects)
    assert node.home_of_topic("orders") == "a"
    assert [place.store_id for place in node.stores()] == ["a"]
    assert (querier.stores(), querier.own_store, querier.age_ms) == ([], None, None)
    with pytest.raises(UnavailableError):
        querier.home_of_topic("orders")
    with pytest.raises(UnavailableError):
        node.home_of_group("billing")  # decided for good: not by one who knows nothing


def test_a_view_never_goes_back_and_its_node_puts_the_table_right() -> None:
    objects = MemoryObjectStore(SystemClock())
    (first,) = joined(objects, "a")
    old, _ = objects.get(CLUSTER_TABLE)
    joined(objects, "b")
    first.look()
    querier = view_of(objects)
    querier.look()
    objects.put(CLUSTER_TABLE, old)
    querier.look()
    assert querier.table.version == 2
    first.look()
    first.enter()
    querier.look()
    assert querier.table.version == 3
    objects.delete(CLUSTER_TABLE)
    querier.look()
    assert querier.table.version == 3
    first.look()
    first.enter()
    assert first.table.version == 4


def test_a_store_that_was_taken_out_and_lives_enters_itself_again() -> None:
    objects = MemoryObjectStore(SystemClock())
    first, second = joined(objects, "a", "b")
    second.learn(second.tables.change(lambda table: table.remove("a")))
    first.look()
    assert not first.is_entered
    first.enter()
    assert sorted(first.table.stores) == ["a", "b"]


def test_groups_from_before_the_cluster_stay_with_their_store() -> None:
    objects = MemoryObjectStore(SystemClock())
    (first,) = joined(objects, "a")
    own = OwnNode("b", "http://b:80", "v", lambda: 1, lambda: ["g1", "g2"])
    late = TableView(objects, ManualClock(), SystemRandomness(), refresh_ms=1_000, own=own)
    late.look()
    late.enter()
    assert [first.home_of_group(group) for group in ("g1", "g2")] == ["b", "b"]


def test_a_group_has_no_home_until_somebody_makes_it() -> None:
    objects = MemoryObjectStore(SystemClock())
    first, second = joined(objects, "a", "b")
    assert [first.known_home_of_group("billing"), second.known_home_of_group("billing")] == [None, None]
    assert not list(objects.list("cluster/groups/"))
    home = first.home_of_group("billing")
    assert [first.known_home_of_group("billing"), second.known_home_of_group("billing")] == [home, home]


def test_a_group_asked_for_before_its_store_has_entered_does_not_lose_its_offsets() -> None:
    objects = MemoryObjectStore(SystemClock())
    (first,) = joined(objects, "a")
    own = OwnNode("b", "http://b:80", "v", lambda: None, lambda: ["billing"])
    late = TableView(objects, ManualClock(), SystemRandomness(), refresh_ms=1_000, own=own)
    assert late.home_of_group("billing") == "b", "members ask as soon as the node answers"
    assert late.home_of_group("new") == "a"
    assert first.home_of_group("billing") == "b"


def test_an_old_volume_cannot_take_the_entry_back(tmp_path: Path) -> None:
    objects = MemoryObjectStore(SystemClock())
    old, old_view = member(tmp_path / "old", objects, "http://old:8080")
    with contextlib.closing(old):
        old_view.look()
        old_view.enter()
        before = old_view.table.stores["a"]
        settings = tiny_settings(cluster__address="http://new:8080")
        new = Store.open(
            tmp_path / "new", settings=settings, cold_url="memory://cluster", restore=True, objects=objects
        )
        with contextlib.closing(new):
            new_view = join_cluster(new, settings)
            assert new_view is not None
            new_view.look()
            new_view.enter()
            entry = new_view.table.stores["a"]
            assert (entry.url, entry.epoch > before.epoch) == ("http://new:8080", True)
            old_view.look()
            old_view.enter()
            assert old_view.error is not None
            # not even where the entry of the new one was taken out meanwhile
            new_view.tables.change(lambda table: table.remove("a"))
            old_view.look()
            old_view.enter()
            assert old_view.table.stores == {}
            assert old.is_fenced


def test_a_volume_that_is_taken_over_between_its_look_and_its_write_is_refused() -> None:
    objects = MemoryObjectStore(SystemClock())
    asked: list[int] = []

    def owner_until_now() -> int:
        """The head still says 1; before the entry is written, the next owner has come and entered itself."""
        if len(asked) < 2:
            asked.append(1)
            if len(asked) == 2:
                newer = view_of(objects, "a", lambda: 2, "new")
                newer.look()
                newer.enter()
        return 1

    late = view_of(objects, "a", owner_until_now, "old")
    late.look()
    with pytest.raises(Exception, match="epoch 2"):
        late.enter()
    late.look()
    assert late.table.stores["a"].volume_id == "new"


def test_a_served_node_enters_itself_in_the_background(tmp_path: Path) -> None:
    objects = MemoryObjectStore(SystemClock())
    engine, view = member(tmp_path, objects)
    with contextlib.closing(engine):
        view.start()
        try:
            querier = TableView(objects, SystemClock(), SystemRandomness(), refresh_ms=1_000)
            pause = threading.Event()
            for _ in range(400):
                querier.look()
                if querier.stores():
                    break
                pause.wait(0.05)
            assert [place.url for place in querier.stores()] == ["http://n1:8080"]
        finally:
            view.stop()
    view.stop()


def test_a_bucket_that_hangs_holds_up_neither_the_view_nor_its_end() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    hold = objects.hold("get", CLUSTER_TABLE)
    view = TableView(
        objects, SystemClock(), SystemRandomness(), refresh_ms=1_000, own=OwnNode("a", "http://a", "v", lambda: 1)
    )
    view.start()
    try:
        hold.wait_until_reached()
        assert view.home_of_topic("orders") == "a"
        view.refresh_soon()
        view.stop()
    finally:
        hold.release()


def restarted(objects: ObjectStore) -> TableView:
    own = OwnNode("a", "http://a:80/", "v", lambda: 1)
    return TableView(objects, SystemClock(), SystemRandomness(), refresh_ms=1_000, own=own)


def test_a_node_that_starts_again_knows_where_topics_are_before_it_takes_any() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    first, _ = joined(objects, "a", "b")
    first.tables.change(lambda table: table.route("orders", "b"))
    hold = objects.hold("get", CLUSTER_TABLE)
    view = restarted(objects)
    homes: list[str] = []

    def start() -> None:
        view.start(first_look_s=60)
        homes.append(view.home_of_topic("orders"))

    starting = threading.Thread(target=start)
    starting.start()
    try:
        hold.wait_until_reached()
        starting.join(0.1)
        assert homes == [], "it would take messages that belong elsewhere"
        hold.release()
        starting.join(60)
        assert homes == ["b"]
    finally:
        hold.release()
        view.stop()


def test_a_node_starts_although_its_bucket_is_dead_or_hangs() -> None:
    for is_dead in (True, False):
        objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
        hold = objects.hold("get", CLUSTER_TABLE)
        if is_dead:
            hold.release()
            objects.die()
        view = restarted(objects)
        view.start(first_look_s=60 if is_dead else 0.01)
        try:
            assert (view.home_of_topic("orders"), view.age_ms) == ("a", None)
        finally:
            hold.release()
            view.stop()


def test_a_store_without_an_archive_is_no_node(tmp_path: Path) -> None:
    settings = tiny_settings(cluster__address="http://a:8080")
    with pytest.raises(InvalidRequestError, match="no cold tier"):
        check_membership(settings, tmp_path / "new", None)
    with pytest.raises(InvalidRequestError, match="single_writer"):
        check_membership(tiny_settings(cluster__address="http://a", cold__single_writer=True), tmp_path, "s3://b")
    check_membership(tiny_settings(), tmp_path, None)
    assert not (tmp_path / "new").exists()
    with contextlib.closing(Store.open(tmp_path / "lone", settings=tiny_settings())) as engine:
        assert join_cluster(engine, tiny_settings()) is None


def test_what_stores_share_is_nobody_elses_business(tmp_path: Path) -> None:
    objects = MemoryObjectStore(SystemClock())
    engine, view = member(tmp_path, objects)
    with contextlib.closing(engine):
        view.look()
        view.enter()
        view.home_of_group("billing")
        engine.append([Message("orders", b"x", keys=("k",))])
        engine.archive(everything=True, drop_hot=True)
        engine.run_tiers()
        assert engine.check(deep=True) == []
        assert engine.check_report(deep=True).notes == []
        cold = Archive.open("memory://cluster", settings=tiny_settings(), objects=objects)
        assert cold.store_ids == ["a"]
        kept = [info.key for info in objects.list("cluster/")]
        assert kept == ["cluster/groups/billing", CLUSTER_TABLE]


def test_a_node_without_an_archive_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERLOG_CLUSTER_ADDRESS", "http://127.0.0.1:1")
    assert main(["serve", "--root", str(tmp_path / "store"), "--port", "0"]) == 2
    assert "cluster.address is set, but the store has no cold tier" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
