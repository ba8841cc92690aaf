"""A volume that was taken over: it learns it soon, stops for good, and nothing of it gets into the archive any more."""

from __future__ import annotations

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tests.support.world import URL, World, numbers_of, read_all, send
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import FencedError, ObjectStoreUnavailableError, ReadOnlyError, StoreMismatchError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message

WATCH_MS = 10_000


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def opened(world: World) -> Store:
    """Volume a, open, with everything archived."""
    engine = world.open("a")
    send(engine, "orders", 0, 20, queue_id=0)
    engine.archive(everything=True)
    return engine


def test_what_a_fenced_volume_acknowledges_stays_on_it(world: World) -> None:
    old = opened(world)
    new = world.open("b", restore=True)
    send(old, "orders", 20, 40, queue_id=0)
    send(new, "orders", 100, 110, queue_id=0)
    with pytest.raises(FencedError):
        old.archive(everything=True)
    assert "has taken the archive over" in str(old.read_only_reason)
    assert "salvage" in str(old.stats()["read_only_reason"])
    with pytest.raises(ReadOnlyError):
        send(old, "orders", 40, 41)
    assert numbers_of(read_all(old, "orders", 0)) == list(range(40)), "it goes on reading"
    new.archive(everything=True)
    assert numbers_of(read_all(new, "orders", 0)) == [*range(20), *range(100, 110)]
    assert new.check(deep=True) == []
    assert world.head().volume_id == new.volume_id


def test_it_turns_read_only_within_one_look_at_the_head(world: World) -> None:
    old = opened(world)
    old.run_tiers()
    world.open("b", restore=True)
    world.clock.advance(WATCH_MS)
    with pytest.raises(FencedError):
        old.run_tiers()
    assert old.read_only_reason is not None
    with pytest.raises(ReadOnlyError):
        old.groups.commit("billing", {("orders", old.store_id, 0): 1})


def test_a_commit_that_was_on_its_way_is_refused(world: World) -> None:
    """The segment is uploaded, and the takeover comes before the head is written."""
    faulty = FaultyObjectStore(world.objects)
    old = world.open("a", objects=faulty)
    send(old, "orders", 0, 20, queue_id=0)
    old.archive(everything=True)
    send(old, "orders", 20, 40, queue_id=0)
    uploaded = faulty.calls
    faulty.fail_before("put", "store/head", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        old.archive(everything=True)
    assert len(faulty.calls) > len(uploaded)
    new = world.open("b", restore=True)
    before = world.head()
    faulty.heal()
    with pytest.raises(FencedError):
        old.archive(everything=True)
    assert world.head() == before
    assert numbers_of(read_all(new, "orders", 0)) == list(range(20))


def test_what_it_never_archived_is_counted_below_the_gap_in_which_its_log_ends(world: World) -> None:
    old = opened(world)
    end = old._hot.log.end
    send(old, "orders", 20, 40, queue_id=0)
    old.close()
    new = world.open("b", restore=True)
    send(new, "orders", 100, 110, queue_id=0)
    new.archive(everything=True)
    again = Store.open(
        world.place("a"), settings=world.settings, cold_url=URL, clock=world.clock, fs=world.fs, read_only=True,
        objects=world.objects,
    )  # fmt: skip
    assert again.stats()["unarchived_bytes"] == again._hot.log.end - end > 0


def test_a_fenced_volume_does_not_open_again(world: World) -> None:
    old = opened(world)
    old.close()
    world.open("b", restore=True)
    with pytest.raises((FencedError, StoreMismatchError), match="salvage"):
        world.open("a")


def test_opened_while_the_bucket_was_dead_it_stops_when_that_is_back(world: World) -> None:
    old = opened(world)
    old.close()
    world.open("b", restore=True).close()
    faulty = FaultyObjectStore(world.objects)
    faulty.die()
    again = world.open("a", objects=faulty)
    send(again, "orders", 20, 24, queue_id=0)
    faulty.revive()
    with pytest.raises((FencedError, StoreMismatchError), match="salvage"):
        again.run_tiers()
    assert again.read_only_reason is not None


def test_of_two_copies_the_first_to_write_goes_on(world: World) -> None:
    opened(world).close()
    world.copy_volume("a", "copy")
    first, second = world.open("copy"), world.open("a")
    send(first, "orders", 20, 24, queue_id=0)
    send(second, "orders", 30, 34, queue_id=0)
    first.archive(everything=True)
    world.clock.advance(WATCH_MS)
    with pytest.raises(FencedError, match="a copy of this volume"):
        second.run_tiers()
    assert second.read_only_reason is not None
    assert numbers_of(read_all(first, "orders", 0)) == list(range(24))
    assert first.check(deep=True) == []


def test_a_volume_that_lost_its_tail_is_refused(world: World) -> None:
    engine = world.open("a")
    send(engine, "orders", 0, 10, queue_id=0)
    engine.close()
    world.copy_volume("a", "early")
    engine = world.open("a")
    send(engine, "orders", 10, 60, queue_id=0)
    engine.archive(everything=True)
    engine.close()
    identity = world.place("a") / "tierlog" / "store.json"
    file = world.fs.open(world.place("early") / "tierlog" / "store.json")
    file.write_at(0, world.fs.read(identity))  # a snapshot of the disk that the machine is set back to
    file.close()
    head = world.head()
    with pytest.raises(StoreMismatchError, match="--restore"):
        world.open("early")
    assert world.head() == head


def test_a_restore_that_was_overtaken_by_another_gives_up(world: World) -> None:
    """The third volume owns the store; what is left of the second must not take it over by itself."""
    opened(world).close()
    faulty = FaultyObjectStore(world.objects)
    faulty.fail_before("put", "store/state/*", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        world.open("b", restore=True, objects=faulty)
    with pytest.raises(StoreMismatchError, match="run it again with --restore"):
        world.open("b")
    third = world.open("c", restore=True)
    with pytest.raises(StoreMismatchError, match="since this restore began"):
        world.open("b", restore=True)
    send(third, "orders", 20, 30, queue_id=0)
    third.archive(everything=True)
    assert third.check(deep=True) == []


def seen_by_a_reader(world: World) -> Store:
    """A fenced volume with messages of its own, whose readers have seen the head before its watch has."""
    old = opened(world)
    world.open("b", restore=True)
    send(old, "orders", 20, 60, queue_id=0)
    old._hot.roll()
    send(old, "orders", 60, 61, queue_id=0)
    assert old._manifest is not None
    assert old._manifest.refresh().archived_to > old._hot.log.end
    return old


def test_watermarks_of_another_volume_remove_nothing_here(world: World) -> None:
    old = seen_by_a_reader(world)
    assert old._archive_mover is not None
    world.clock.advance(1000 * 86_400_000)
    old._archive_mover.roll_and_remove()
    assert numbers_of(read_all(old, "orders", 0)) == list(range(61))
    with pytest.raises(FencedError):
        old.archive(drop_hot=True)
    assert numbers_of(read_all(old, "orders", 0)) == list(range(61))


def test_watermarks_of_another_volume_acknowledge_nothing_here(world: World) -> None:
    old = seen_by_a_reader(world)
    with pytest.raises(FencedError):
        old.append([Message("orders", b"orders 61.", queue_id=0)], Durability.ARCHIVED)
    assert old.read_only_reason is not None
