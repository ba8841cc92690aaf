"""The state object: what only the store knew of groups and queues is in the archive a minute later, once a change."""

from __future__ import annotations

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.service.given_queues import GivenQueues
from tests.support.stores.engines import small_settings
from tests.support.world import World, send
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.format.store_state import CommittedOffset, GroupRecord, OffsetElsewhere, StoreState
from tierlog.tiering.lifecycle.state_writer import STATE_INTERVAL_S

MINUTE_MS = int(STATE_INTERVAL_S * 1000)


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def opened(world: World, objects: object = None) -> Store:
    """An open volume that the archive knows, with two queues."""
    engine = world.open("a", objects=objects)
    send(engine, "orders", 0, 3, queue_id=0)
    engine.run_tiers()
    return engine


def test_groups_and_queue_ends_are_written_a_minute_after_a_change(world: World) -> None:
    engine = opened(world)
    before = world.head()
    send(engine, "orders", 3, 5, queue_id=1)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 2})
    engine.run_tiers()
    assert world.head() == before, "a minute has not passed"
    world.clock.advance(MINUTE_MS)
    engine.run_tiers()
    state = world.state()
    assert state.groups == (GroupRecord("billing", 0, (CommittedOffset("orders", 0, 2),)),)
    assert [topic.ends for topic in state.topics] == [(3, 2)]
    assert (state.segment_bytes, state.log_end, state.next_topic_id) == (4096, engine.stats()["log_end"], 2)
    assert world.head().version == before.version + 1


def test_offsets_of_other_stores_have_a_place_of_their_own(world: World) -> None:
    engine = opened(world)
    engine.groups.elsewhere = GivenQueues(9, {"store-b": {"orders": 2}})
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 2, ("orders", "store-b", 1): 9})
    engine.archive(everything=True)
    elsewhere = (OffsetElsewhere("orders", "store-b", 1, 9),)
    assert world.state().groups == (GroupRecord("billing", 0, (CommittedOffset("orders", 0, 2),), elsewhere),)


def test_nothing_is_written_where_nothing_has_changed(world: World) -> None:
    engine = opened(world)
    for _ in range(5):
        world.clock.advance(MINUTE_MS)
        engine.run_tiers()
    version = world.head().version
    engine.close()
    again = world.open("a")
    for _ in range(5):
        world.clock.advance(MINUTE_MS)
        again.run_tiers()
    assert world.head().version == version


def test_a_store_without_topics_and_groups_has_nothing_to_tell(world: World) -> None:
    engine = world.open("a")
    engine.archive(everything=True)
    assert world.head().state is None


def test_a_segment_with_a_new_topic_and_its_state_come_in_one_commit(world: World) -> None:
    engine = opened(world)
    engine.archive(everything=True)
    send(engine, "pays", 0, 1)
    version = world.head().version
    engine.archive(everything=True)
    assert [topic.name for topic in world.state().topics] == ["orders", "pays"]
    segment = max(world.head().log, key=lambda entry: entry.base)
    assert segment.added == version + 1
    assert world.state().topics[1].ends == (1, 0)


def test_archiving_now_tells_everything_now(world: World) -> None:
    engine = opened(world)
    engine.archive(everything=True)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 3})
    engine.archive(everything=True)
    assert world.state().groups[0].offsets == (CommittedOffset("orders", 0, 3),)


def test_the_state_before_goes_to_the_removed_list(world: World) -> None:
    engine = opened(world)
    engine.archive(everything=True)
    before = world.head().state
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 3})
    engine.archive(everything=True)
    manifest = world.manifest()
    head = manifest.refresh()
    assert before is not None
    assert before.key in {name for name, _ in manifest.removed_names(manifest.reader(), head)}


def test_a_state_that_could_not_be_written_is_written_later(world: World) -> None:
    faulty = FaultyObjectStore(world.objects)
    engine = opened(world, faulty)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 3})
    world.clock.advance(MINUTE_MS)
    faulty.fail_before("put", "store/state/*")
    with pytest.raises(ObjectStoreUnavailableError):
        engine.run_tiers()
    world.clock.advance(MINUTE_MS)
    engine.run_tiers()
    assert world.state().groups[0].name == "billing"


def test_equal_states_are_equal_however_far_the_log_was_read() -> None:
    assert StoreState(log_end=5).tells_as_much(StoreState(log_end=9))
    assert not StoreState(first_offset=5).tells_as_much(StoreState(first_offset=9))
