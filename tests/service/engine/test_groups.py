"""Consumer groups: sessions, generations, and who may commit what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fs.crash_fs import PowerCut
from tests.support.service.group_world import END, OWN, GroupWorld
from tierlog.service.engine import groups as groups_module
from tierlog.service.engine.groups import ResetQueues, ResetTo
from tierlog.tiering.base.errors import (
    ConflictError,
    DiskFailedError,
    InvalidRequestError,
    MemberNotFoundError,
    NotFoundError,
    ReadOnlyError,
    StaleGenerationError,
    TopicNotFoundError,
)
from tierlog.tiering.hot.consumer_groups import Queue


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def orders(*queue_ids: int) -> list[Queue]:
    return [("orders", OWN, queue_id) for queue_id in queue_ids]


def test_members_share_the_queues_and_learn_of_a_change_by_their_heartbeat(world: GroupWorld) -> None:
    alone = world.join()
    assert (alone.generation, alone.assignment) == (1, orders(0, 1, 2, 3, 4))
    second = world.join()
    shared = world.beat(alone)
    assert shared.generation == second.generation == 2
    assert sorted(len(each.assignment) for each in (shared, second)) == [2, 3]
    assert sorted(shared.assignment + second.assignment) == orders(0, 1, 2, 3, 4)
    first = min(shared, second, key=lambda each: each.member_id)
    assert first.assignment == orders(0, 1, 2), "the remainder goes to the first of the sorted members"
    world.groups.leave("g", second.member_id)
    assert (world.beat(alone).generation, world.beat(alone).assignment) == (3, orders(0, 1, 2, 3, 4))
    world.groups.leave("g", second.member_id)  # an answer that was lost is asked for again
    assert world.beat(alone).generation == 3


def test_each_topic_is_shared_by_those_who_named_it(world: GroupWorld) -> None:
    both, other = world.join("orders", "pays", "orders"), world.join("pays")
    assert world.beat(both).assignment[:5] == orders(0, 1, 2, 3, 4)
    pays = [queue for member in (both, other) for queue in world.beat(member).assignment if queue[0] == "pays"]
    assert sorted(pays) == [("pays", OWN, 0), ("pays", OWN, 1)]


def test_a_silent_member_is_gone_after_its_session_and_its_queues_are_given_away(world: GroupWorld) -> None:
    silent, live = world.join(session_ms=5_000), world.join(session_ms=60_000)
    world.clock.advance(4_999)
    assert world.beat(live).generation == 2
    assert world.beat(silent).generation == 2, "one beat in time is enough"
    world.clock.advance(5_000)
    after = world.beat(live)
    assert (after.generation, after.assignment) == (3, orders(0, 1, 2, 3, 4))
    with pytest.raises(MemberNotFoundError):
        world.beat(silent)
    with pytest.raises(MemberNotFoundError):
        world.commit(silent, {("orders", OWN, 0): 20})
    assert world.join().generation == 4


def test_sessions_follow_the_monotonic_clock(world: GroupWorld) -> None:
    member = world.join()
    world.clock.step(10**9)
    assert world.beat(member).generation == 1
    world.clock.step(-(10**10))
    world.clock.advance(10_000)
    with pytest.raises(MemberNotFoundError):
        world.beat(member)


def test_more_queues_begin_a_generation(world: GroupWorld) -> None:
    member = world.join("orders", "later")
    assert member.assignment == orders(0, 1, 2, 3, 4)
    world.topics.ensure_queues(world.topics.get("orders"), 6)
    assert (world.beat(member).generation, world.beat(member).assignment) == (2, orders(0, 1, 2, 3, 4, 5))
    world.topics.create("later", 1)
    grown = world.beat(member)
    assert (grown.generation, ("later", OWN, 0) in grown.assignment) == (3, True)
    world.topics.create("unrelated", 3)
    assert world.beat(member).generation == 3


def test_a_commit_of_a_generation_that_has_passed_is_refused(world: GroupWorld) -> None:
    old = world.join()
    world.commit(old, {("orders", OWN, 0): 20, ("orders", OWN, 4): 30})
    world.join()
    with pytest.raises(StaleGenerationError):
        world.commit(old, {("orders", OWN, 0): 40})
    new = world.beat(old)
    mine, theirs = new.assignment[0], next(queue for queue in orders(0, 1, 2, 3, 4) if queue not in new.assignment)
    world.commit(new, {mine: 50})
    with pytest.raises(ConflictError, match="not assigned"):
        world.commit(new, {mine: 60, theirs: 60})
    assert world.offsets() == {("orders", OWN, 0): 20, ("orders", OWN, 4): 30} | {mine: 50}


def test_a_member_that_joins_while_a_commit_is_checked_makes_it_stale(world: GroupWorld) -> None:
    member = world.join()
    ranges = world.groups._offset_range

    def joined_meanwhile(topic: str, queue_id: int) -> tuple[int, int]:
        world.join()
        return ranges(topic, queue_id)

    world.groups._offset_range = joined_meanwhile
    with pytest.raises(StaleGenerationError):
        world.commit(member, {("orders", OWN, 0): 20})
    assert world.offsets() == {}


def test_offsets_stay_inside_the_queue_and_go_back_only_when_told(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", OWN, 0): END})
    for offsets in ({("orders", OWN, 1): END + 1}, {("orders", OWN, 1): -1}, {("orders", OWN, 0): END - 1}):
        with pytest.raises(InvalidRequestError):
            world.commit(member, offsets)
    assert world.offsets() == {("orders", OWN, 0): END}
    world.commit(member, {("orders", OWN, 0): 3}, reset=True)
    assert world.offsets() == {("orders", OWN, 0): 3}
    with pytest.raises(InvalidRequestError, match="or neither"):
        world.groups.commit("g", {("orders", OWN, 0): 20}, member_id=member.member_id)


def test_without_a_member_offsets_are_committed_only_to_a_group_at_rest(world: GroupWorld) -> None:
    world.groups.commit("solo", {("orders", OWN, 0): 20})
    assert world.groups.committed("solo").generation == 0
    with pytest.raises(TopicNotFoundError):
        world.groups.commit("solo", {("nobody", OWN, 0): 0})
    member = world.join()
    with pytest.raises(ConflictError, match="live members"):
        world.groups.commit("g", {("orders", OWN, 0): 20}, reset=True)
    world.clock.advance(10_000)
    world.groups.commit("g", {("orders", OWN, 0): 15})
    assert (world.offsets(), world.groups.describe("g").members) == ({("orders", OWN, 0): 15}, [])
    with pytest.raises(MemberNotFoundError):
        world.beat(member)


def test_offsets_and_generation_survive_a_restart_and_members_join_again(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", OWN, 2): 42})
    world.restart()
    with pytest.raises(MemberNotFoundError):
        world.beat(member)
    with pytest.raises(MemberNotFoundError):
        world.commit(member, {("orders", OWN, 2): 43})
    again = world.join()
    assert (again.generation, world.offsets()) == (2, {("orders", OWN, 2): 42})
    world.commit(again, {("orders", OWN, 2): 43})


def test_a_generation_that_the_disk_refuses_changes_no_membership(world: GroupWorld) -> None:
    member = world.join()
    world.fs.refuse("rename")
    changes: list[Callable[[], object]] = [world.join, lambda: world.groups.leave("g", member.member_id)]
    for change in changes:
        with pytest.raises(DiskFailedError):
            change()
        assert world.beat(member) == member
    world.fs.heal()
    assert world.join().generation == 2


def test_a_group_shows_its_members_and_how_far_it_is(world: GroupWorld) -> None:
    member = world.join()
    world.clock.advance(1_500)
    world.commit(member, {("orders", OWN, 0): 60, ("orders", OWN, 1): 4}, reset=True)
    info = world.groups.describe("g")
    (shown,) = info.members
    assert (shown.member_id, shown.topics, shown.idle_ms) == (member.member_id, ["orders"], 1_500)
    assert shown.assignment == member.assignment
    assert [(each.offset, each.lag) for each in info.queues] == [(60, 40), (4, 90), (None, 90), (None, 90), (None, 90)]
    (summary,) = world.groups.all()
    assert (summary.group, summary.generation, summary.members, summary.queues) == ("g", 1, 1, 2)
    world.groups.leave("g", member.member_id)
    assert [each.queue_id for each in world.groups.describe("g").queues] == [0, 1]


def test_a_group_is_removed_only_at_rest(world: GroupWorld) -> None:
    member = world.join()
    with pytest.raises(ConflictError):
        world.groups.remove("g")
    world.groups.leave("g", member.member_id)
    world.groups.remove("g")
    assert world.groups.all() == []
    for call in (world.groups.remove, world.groups.describe, world.groups.committed):
        with pytest.raises(NotFoundError):
            call("g")
    with pytest.raises(MemberNotFoundError):
        world.beat(member)


def test_names_and_numbers_have_limits(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: world.groups.join("a b", ["orders"]),
        lambda: world.groups.join("g", []),
        lambda: world.groups.join("g", ["a/b"]),
        lambda: world.groups.join("g", [f"t{number}" for number in range(groups_module.MAX_TOPICS + 1)]),
        lambda: world.groups.join("g", ["orders"], groups_module.MIN_SESSION_MS - 1),
        lambda: world.groups.join("g", ["orders"], groups_module.MAX_SESSION_MS + 1),
        lambda: world.groups.commit("a b", {("orders", OWN, 0): 1}),
    ]
    for call in wrong:
        with pytest.raises(InvalidRequestError):
            call()
    monkeypatch.setattr(groups_module, "MAX_MEMBERS", 2)
    world.join(), world.join()
    with pytest.raises(ConflictError):
        world.join()
    assert world.groups.describe("g").generation == 2


def test_a_store_that_turned_read_only_still_shows_its_groups(world: GroupWorld) -> None:
    member = world.join()
    world.commit(member, {("orders", OWN, 0): 20})
    world.read_only_reason = "the disk failed"
    world.clock.advance(10_000)  # its session ends, and no generation can begin
    assert [(each.group, each.generation, each.members) for each in world.groups.all()] == [("g", 1, 1)]
    shown = world.groups.describe("g")
    assert [(each.member_id, each.idle_ms) for each in shown.members] == [(member.member_id, 10_000)]
    assert shown.queues[0].offset == 20
    with pytest.raises(ReadOnlyError):
        world.beat(member)
    world.read_only_reason = None
    assert world.groups.describe("g").members == []


def test_a_commit_under_way_is_not_taken_for_one_of_a_group_that_was_removed_and_made_anew(world: GroupWorld) -> None:
    member, offset_range = world.join(), world.range_of

    def removed_meanwhile(topic: str, queue_id: int) -> tuple[int, int]:
        world.groups.leave("g", member.member_id)
        world.groups.remove("g")
        world.join()
        return offset_range(topic, queue_id)

    world.groups._offset_range = removed_meanwhile
    with pytest.raises(StaleGenerationError):
        world.commit(member, {("orders", OWN, 0): 50})
    assert world.offsets() == {}


# resets


def at_rest(world: GroupWorld) -> None:
    """The group has read 30 messages of two queues of ``orders``, and has no member."""
    world.groups.commit("g", {("orders", OWN, 0): 40, ("orders", OWN, 1): 40, ("pays", OWN, 0): 20})


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        (ResetTo(place="first"), 10), (ResetTo(place="latest"), END), (ResetTo(time_ms=77), 77),
        (ResetTo(time_ms=5), 10),
        (ResetTo(time_ms=5_000), END), (ResetTo(offset=33), 33),
    ],
)  # fmt: skip
def test_a_reset_moves_every_queue_of_the_groups_topics(world: GroupWorld, to: ResetTo, offset: int) -> None:
    """A queue without an offset too, whose consumer would begin wherever it likes."""
    at_rest(world)
    every = [*orders(0, 1, 2, 3, 4), ("pays", OWN, 0), ("pays", OWN, 1)]
    plan = world.groups.reset("g", to, dry_run=True)
    assert len(world.offsets()) == 3, "a dry run changes nothing"
    assert world.groups.reset("g", to) == plan
    assert [(each.topic, each.store_id, each.queue_id) for each in plan] == every
    assert [each.offset for each in plan] == [40, 40, None, None, None, 20, None]
    assert {each.new_offset for each in plan} == {offset}
    world.restart()
    assert world.offsets() == dict.fromkeys(every, offset)


def test_a_reset_can_be_of_a_topic_or_of_a_queue_alone(world: GroupWorld) -> None:
    at_rest(world)
    world.groups.reset("g", ResetTo(place="latest"), ResetQueues("orders", queue_id=1))
    assert world.offsets() == {("orders", OWN, 0): 40, ("orders", OWN, 1): END, ("pays", OWN, 0): 20}
    world.groups.reset("g", ResetTo(place="first"), ResetQueues("pays", OWN))
    assert world.offsets() == {
        ("orders", OWN, 0): 40, ("orders", OWN, 1): END, ("pays", OWN, 0): 10, ("pays", OWN, 1): 10,
    }  # fmt: skip
    for wrong in (ResetQueues("other"), ResetQueues("orders", queue_id=9), ResetQueues(store_id="store-b")):
        with pytest.raises(NotFoundError):
            world.groups.reset("g", ResetTo(place="first"), wrong)


def test_a_reset_of_a_group_with_members_changes_nothing(world: GroupWorld) -> None:
    at_rest(world)
    world.join()
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="1 live members"):
            world.groups.reset("g", ResetTo(place="first"), dry_run=dry_run)
    assert world.offsets()["orders", OWN, 0] == 40
    world.clock.advance(10_000)  # its session is over
    world.groups.reset("g", ResetTo(place="first"))
    assert world.offsets()["orders", OWN, 0] == 10


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reset_beyond_the_end_of_one_queue_moves_none(world: GroupWorld, dry_run: bool) -> None:
    at_rest(world)
    before = world.offsets()
    with pytest.raises(InvalidRequestError, match="is not in"):
        world.groups.reset("g", ResetTo(offset=END + 1), dry_run=dry_run)
    assert world.offsets() == before
    with pytest.raises(NotFoundError):
        world.groups.reset("nobody", ResetTo(place="first"), dry_run=dry_run)


def test_a_power_cut_at_any_call_of_a_reset_leaves_all_offsets_as_they_were_or_all_new(world: GroupWorld) -> None:
    at_rest(world)
    before = world.offsets()
    after = dict.fromkeys([*orders(0, 1, 2, 3, 4), ("pays", OWN, 0), ("pays", OWN, 1)], 10)
    disk, is_done, cut_at = world.disk, False, 0
    seen = []
    while not is_done:
        cut_at += 1
        world.disk = disk.after_kill(cut_at=cut_at)
        try:
            world.restart()
            world.groups.reset("g", ResetTo(place="first"))
            is_done = True
        except PowerCut:
            pass
        for seed in range(3):
            found = GroupWorld()
            found.disk = world.disk.crash(seed, lose_everything=seed == 0)
            found.restart()
            assert found.offsets() in ([after] if is_done else [before, after])
            seen.append(found.offsets())
    assert before in seen
    assert after in seen


def test_the_list_tells_topics_and_lag(world: GroupWorld) -> None:
    at_rest(world)
    (summary,) = world.groups.all()
    assert (summary.topics, summary.lag, summary.store_id) == (["orders", "pays"], 60 + 60 + 80, OWN)
    (shown,) = world.groups.all(lambda topic: topic == "pays")
    assert (shown.topics, shown.lag, shown.queues) == (["pays"], 80, 1)
    world.join("orders")
    (summary,) = world.groups.all()
    assert summary.lag == 60 + 60 + 3 * 90 + 80, "what a member reads counts from its beginning"
    assert summary.lag == sum(queue.lag or 0 for queue in world.groups.describe("g").queues)


def test_a_list_of_groups_asks_the_archive_about_a_few_queues_and_does_not_know_the_rest(world: GroupWorld) -> None:
    known: set[tuple[str, int]] = set()
    asked: list[tuple[str, int]] = []

    def lag(topic: str, queue_id: int, offset: int, may_ask: Callable[[], bool]) -> int:
        """As a fetcher: what the archive has told is not asked again."""
        if (topic, queue_id) not in known and may_ask():
            asked.append((topic, queue_id))
            known.add((topic, queue_id))
        return END - offset

    world.groups._lag = lag
    for name, topic, queues in (("a", "pays", 2), ("b", "orders", 5)):
        world.groups.commit(name, {(topic, OWN, queue_id): 90 for queue_id in range(queues)})
    assert [summary.lag for summary in world.groups.all()] == [20, None]
    assert len(asked) == 4
    assert [summary.lag for summary in world.groups.all()] == [20, 50]
    assert len(asked) == 7
