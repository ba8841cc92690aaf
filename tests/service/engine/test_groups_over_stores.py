"""Consumer groups over the queues of several stores: who reads which, and what is refused while a store is down."""

from __future__ import annotations

import pytest

from tests.support.service.given_queues import GivenQueues
from tests.support.service.group_world import END, OWN, GroupWorld
from tierlog.service.engine.groups import ResetQueues, ResetTo
from tierlog.tiering.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    StaleGenerationError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.hot.consumer_groups import Queue

B = "store-b"
THEIR_END = 50


@pytest.fixture
def world() -> GroupWorld:
    made = GroupWorld()
    made.elsewhere = GivenQueues(THEIR_END, {B: {"orders": 3}})
    made.restart()
    return made


def others(world: GroupWorld) -> GivenQueues:
    assert isinstance(world.elsewhere, GivenQueues)
    return world.elsewhere


def orders(store: str, *queue_ids: int) -> list[Queue]:
    return [("orders", store, queue_id) for queue_id in queue_ids]


ALL = orders(OWN, 0, 1, 2, 3, 4) + orders(B, 0, 1, 2)


def test_members_share_the_queues_of_all_stores(world: GroupWorld) -> None:
    alone = world.join()
    assert (alone.generation, alone.assignment) == (1, ALL)
    second = world.join()
    first, last = sorted((world.beat(alone), second), key=lambda each: each.member_id)
    assert (first.assignment, last.assignment) == (ALL[:4], ALL[4:])
    assert world.join("pays").assignment == [("pays", OWN, 0), ("pays", OWN, 1)], "a topic that only one store has"


def test_a_topic_that_only_another_store_has_is_read_there(world: GroupWorld) -> None:
    others(world).there[B]["theirs"] = 1
    member = world.join("theirs")
    assert member.assignment == [("theirs", B, 0)]
    world.commit(member, {("theirs", B, 0): 7})


def test_a_store_that_is_added_begins_a_generation_and_the_one_before_is_stale(world: GroupWorld) -> None:
    member = world.join()
    others(world).there["store-c"] = {"orders": 1}
    more = world.beat(member)
    assert (more.generation, more.assignment) == (2, ALL + orders("store-c", 0))
    with pytest.raises(StaleGenerationError):
        world.commit(member, {ALL[0]: 20})
    world.commit(more, {("orders", "store-c", 0): 50, ALL[0]: 20})


def test_a_restart_of_another_store_is_no_rebalance(world: GroupWorld) -> None:
    member = world.join()
    others(world).down.add(B)
    assert world.beat(member) == member
    world.commit(member, {("orders", B, 1): THEIR_END})
    others(world).down.clear()
    assert world.beat(member) == member


def test_a_store_that_never_answered_has_no_queues_until_it_does(world: GroupWorld) -> None:
    others(world).down.add(B)
    member = world.join()
    assert member.assignment == orders(OWN, 0, 1, 2, 3, 4)
    others(world).down.clear()
    assert world.beat(member).assignment == ALL


def test_a_topic_that_is_deleted_elsewhere_leaves_the_assignment_and_keeps_its_offset(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", B, 0): 9})
    others(world).there[B] = {}
    member = world.beat(member)
    assert (member.generation, member.assignment) == (2, orders(OWN, 0, 1, 2, 3, 4))
    with pytest.raises(ConflictError):
        world.commit(member, {("orders", B, 0): 10})
    assert world.offsets() == {("orders", B, 0): 9}


def test_beyond_the_last_known_end_a_commit_needs_the_store(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", B, 0): THEIR_END})
    others(world).end = THEIR_END + 10
    world.commit(member, {("orders", B, 0): THEIR_END + 10})
    others(world).down.add(B)
    with pytest.raises(UnavailableError):
        world.commit(member, {("orders", OWN, 0): 20, ("orders", B, 0): THEIR_END + 11})
    assert world.offsets() == {("orders", B, 0): THEIR_END + 10}, "all of a commit or nothing"
    others(world).down.clear()
    with pytest.raises(InvalidRequestError, match=f"orders/0 of store {B} is not in"):
        world.commit(member, {("orders", B, 0): THEIR_END + 11})
    assert world.offsets() == {("orders", B, 0): THEIR_END + 10}


def test_what_is_wrong_with_an_own_queue_is_said_whatever_is_down(world: GroupWorld) -> None:
    member = world.join()
    others(world).down.add(B)
    with pytest.raises(InvalidRequestError, match="orders/0 is not in"):
        world.commit(member, {("orders", B, 0): THEIR_END + 1, ("orders", OWN, 0): END + 1})


def test_a_queue_or_a_store_that_is_not_there_takes_no_commit(world: GroupWorld) -> None:
    with pytest.raises(TopicNotFoundError):
        world.groups.commit("solo", {("orders", B, 3): 0})
    with pytest.raises(NotFoundError, match="no such store 'store-x'"):
        world.groups.commit("solo", {("orders", "store-x", 0): 0})
    world.groups.commit("solo", {("orders", B, 2): THEIR_END})


def test_a_lone_store_knows_no_other() -> None:
    world = GroupWorld()
    assert world.join().assignment == orders(OWN, 0, 1, 2, 3, 4)
    with pytest.raises(NotFoundError, match="no such store"):
        world.groups.commit("solo", {("orders", B, 0): 0})


def test_the_lag_of_a_store_that_is_down_is_not_known(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", B, 0): 9})
    info = world.groups.describe("g")
    assert (len(info.queues), info.stores_down) == (8, [])
    (queue,) = [each for each in info.queues if (each.store_id, each.queue_id) == (B, 0)]
    assert (queue.offset, queue.max_offset, queue.lag) == (9, THEIR_END, THEIR_END - 9)
    others(world).down.add(B)
    info = world.groups.describe("g")
    assert info.stores_down == [B]
    assert [(each.store_id, each.lag is None) for each in info.queues] == [(OWN, False)] * 5 + [(B, True)] * 3


def test_after_a_restart_offsets_of_all_stores_are_there(world: GroupWorld) -> None:
    offsets = {("orders", B, 0): 9, ("orders", OWN, 4): 30}
    world.commit(world.join(), offsets)
    others(world).forget()
    others(world).down.add(B)
    world.restart()
    assert world.offsets() == offsets
    assert world.join().assignment == orders(OWN, 0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("to", "own", "theirs"),
    [
        (ResetTo(place="first"), 10, 0), (ResetTo(place="latest"), END, THEIR_END), (ResetTo(time_ms=30), 30, 30),
        (ResetTo(offset=20), 20, 20),
    ],
)  # fmt: skip
def test_a_reset_moves_the_queues_of_all_stores(world: GroupWorld, to: ResetTo, own: int, theirs: int) -> None:
    world.groups.commit("g", {("orders", OWN, 0): 40, ("orders", B, 0): 40})
    world.groups.reset("g", to)
    assert world.offsets() == {queue: own if queue[1] == OWN else theirs for queue in ALL}


@pytest.mark.parametrize("to", [ResetTo(place="latest"), ResetTo(time_ms=30), ResetTo(offset=20)])
def test_a_reset_while_a_store_does_not_answer_moves_none(world: GroupWorld, to: ResetTo) -> None:
    world.groups.commit("g", {("orders", OWN, 0): 40, ("orders", B, 0): 40})
    others(world).down.add(B)
    before = world.offsets()
    with pytest.raises(UnavailableError):
        world.groups.reset("g", to)
    assert world.offsets() == before
    world.groups.reset("g", to, ResetQueues(store_id=OWN))
    assert world.offsets()["orders", B, 0] == 40
    (summary,) = world.groups.all()
    assert summary.lag is None


def test_a_reset_leaves_queues_of_a_store_that_left_the_cluster_alone(world: GroupWorld) -> None:
    world.groups.commit("g", {("orders", OWN, 0): 40, ("orders", B, 0): 40})
    del others(world).there[B]
    others(world).forget()
    world.groups.reset("g", ResetTo(place="first"))
    assert world.offsets()["orders", B, 0] == 40
    assert world.offsets()["orders", OWN, 0] == 10
