"""A consumer handles every message, commits what is done and nothing else, and follows the group."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.support.client.scripted import problem
from tests.support.client.scripted_group import GroupInMemory
from tierlog.client import AsyncClient, AsyncConsumer, Consuming, Decision, Start, StoredMessage
from tierlog.client.errors import ConflictError, HandlerFailedError, InvalidRequestError
from tierlog.client.requests import Answer
from tierlog.tiering.base.clock import ManualClock

#: Fast, and with a clock that stands still: no session ends by itself.
SETTINGS = Consuming(commit_interval_s=0.01, heartbeat_s=0.01, drain_s=30, first_pause_s=0, most_pause_s=0)
Place = tuple[int, int]


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop, with an end if it hangs."""

    @functools.wraps(test)
    def run(*fixtures: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*fixtures, **named), 60))

    return run


class Handled:
    """A handler that remembers, and can be held at messages."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.begun: list[Place] = []
        self.held: dict[Place, asyncio.Event] = {}
        self.failing: Counter[Place] = Counter()

    async def __call__(self, message: StoredMessage) -> None:
        place = (message.queue_id, message.queue_offset)
        self.begun.append(place)
        if place in self.held:
            await self.held[place].wait()
        await asyncio.sleep(0)
        if self.failing[place]:
            self.failing[place] -= 1
            raise RuntimeError(f"not today: {place}")
        self.places.append(place)

    def hold(self, *places: Place) -> None:
        for place in places:
            self.held[place] = asyncio.Event()

    def let_go(self) -> None:
        for event in self.held.values():
            event.set()


async def until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.001)


def consumer_of(
    group: GroupInMemory,
    handler: Callable[[StoredMessage], Awaitable[object]],
    clock: ManualClock | None = None,
    on_failure: Callable[[StoredMessage, Exception], Awaitable[Decision]] | None = None,
    **changes: Any,
) -> AsyncConsumer:
    client = AsyncClient("http://127.0.0.1:1", clock=clock or ManualClock(), transport=group)
    more = {} if on_failure is None else {"on_failure": on_failure}
    return AsyncConsumer(client, "g", ["orders"], handler, settings=SETTINGS, **more, **changes)  # type: ignore[arg-type]  # of tests


def all_of(group: GroupInMemory) -> list[Place]:
    return [(queue, offset) for queue, end in group.ends.items() for offset in range(end)]


@played
async def test_every_message_is_handled_once_and_committed_and_the_group_is_left() -> None:
    group, handled = GroupInMemory({0: 300, 1: 200, 2: 0}), Handled()
    async with consumer_of(group, handled, read_ahead=50) as consumer:
        await until(lambda: len(handled.places) == 500)
    assert sorted(handled.places) == all_of(group)
    assert group.committed == {0: 300, 1: 200}
    assert group.left == ["member1"]
    assert consumer.counts.handled == 500


@played
async def test_a_queue_is_handled_in_order() -> None:
    group, handled = GroupInMemory({0: 100, 1: 100}), Handled()
    async with consumer_of(group, handled):
        await until(lambda: len(handled.places) == 200)
    for queue in (0, 1):
        assert [offset for one, offset in handled.places if one == queue] == list(range(100))


@played
async def test_without_order_others_pass_a_slow_message_and_nothing_is_committed_beyond_it() -> None:
    group, handled = GroupInMemory({0: 40}), Handled()
    handled.hold((0, 5))
    async with consumer_of(group, handled, is_ordered=False, workers=4, read_ahead=20) as consumer:
        await until(lambda: len(handled.places) == 24)
        await until(lambda: group.committed.get(0) == 5)
        await asyncio.sleep(0.05)
        assert max(handled.begun) == (0, 24)  # 20 from the committed one on, and no more
        assert group.committed == {0: 5}
        handled.let_go()
        await until(lambda: len(handled.places) == 40)
    assert group.committed == {0: 40}
    assert consumer.counts.handled == 40


@played
async def test_no_more_is_read_ahead_than_was_asked_for() -> None:
    group, handled = GroupInMemory({0: 1000}), Handled()
    handled.hold((0, 0))
    async with consumer_of(group, handled, read_ahead=30):
        await until(lambda: len(handled.begun) == 1)
        await asyncio.sleep(0.05)
        assert group.pulled == [(0, 0)]
        handled.let_go()
        await until(lambda: len(handled.places) == 1000)


@played
async def test_bytes_bound_what_is_read_ahead_by_one_page_more() -> None:
    group, handled = GroupInMemory({0: 1000}), Handled()
    handled.hold((0, 0))
    async with consumer_of(group, handled, read_ahead=900, read_ahead_bytes=2_000):
        await until(lambda: len(handled.begun) == 1)
        await asyncio.sleep(0.05)
        assert len(group.pulled) == 1  # 64 messages of 100 bytes: more than the bound
        handled.let_go()
        await until(lambda: len(handled.places) == 1000)


@played
async def test_a_queue_that_was_taken_away_is_dropped_and_not_committed() -> None:
    group, handled = GroupInMemory({0: 50, 1: 50}), Handled()
    handled.hold((0, 10))
    async with consumer_of(group, handled) as consumer:
        await until(lambda: (0, 10) in handled.begun and group.committed.get(1) == 50)
        before = group.committed.get(0)
        group.share_out(1)
        await until(lambda: [one.queue_id for one in consumer.assignment] == [1])
        handled.let_go()
        await asyncio.sleep(0.05)
        assert group.committed.get(0) == before
    assert (0, 11) not in handled.begun


@played
async def test_a_queue_that_stays_goes_on_with_what_was_read() -> None:
    group, handled = GroupInMemory({0: 50, 1: 50}), Handled()
    handled.hold((0, 10))
    async with consumer_of(group, handled, read_ahead=50) as consumer:
        await until(lambda: (0, 10) in handled.begun and group.committed == {0: 10, 1: 50})
        group.share_out(0)
        await until(lambda: len(consumer.assignment) == 1)
        handled.let_go()
        await until(lambda: group.committed[0] == 50)
    assert Counter(handled.begun).most_common(1)[0][1] == 1
    assert [queue for queue, offset in group.pulled].count(0) <= 2


@played
async def test_a_queue_that_another_member_had_meanwhile_goes_on_where_that_one_came_to() -> None:
    group, handled = GroupInMemory({0: 50}), Handled()
    handled.hold((0, 10))
    async with consumer_of(group, handled):
        await until(lambda: (0, 10) in handled.begun)
        group.share_out()
        group.committed[0] = 40
        group.share_out(0)
        await asyncio.sleep(0.05)
        assert (0, 40) not in group.pulled  # the handler of before comes first
        handled.let_go()
        await until(lambda: group.committed[0] == 50)
    assert not {(0, offset) for offset in range(11, 40)} & set(handled.begun)


@played
async def test_a_service_that_forgot_the_members_is_joined_again_and_nothing_comes_twice() -> None:
    group, handled = GroupInMemory({0: 400}), Handled()
    handled.hold((0, 100))
    async with consumer_of(group, handled) as consumer:
        await until(lambda: (0, 100) in handled.begun)
        group.is_away = True
        await asyncio.sleep(0.03)
        group.forget()
        group.is_away = False
        handled.let_go()
        await until(lambda: group.committed.get(0) == 400)
        assert consumer.counts.joins == 2
    assert Counter(handled.begun).most_common(1)[0][1] == 1


@played
async def test_nothing_is_handed_out_when_the_session_may_be_over() -> None:
    group, handled, clock = GroupInMemory({0: 400}), Handled(), ManualClock()
    handled.hold((0, 100))
    async with consumer_of(group, handled, clock):
        await until(lambda: (0, 100) in handled.begun)
        group.is_away = True
        clock.advance(31_000)
        handled.let_go()
        await asyncio.sleep(0.05)
        assert (0, 101) not in handled.begun
        group.is_away = False
        await until(lambda: len(handled.places) == 400)


@played
async def test_a_commit_that_is_lost_is_made_again() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.hold((0, 9))
    async with consumer_of(group, handled):
        await until(lambda: (0, 9) in handled.begun)
        group.is_away = True
        handled.let_go()
        await until(lambda: len(handled.places) == 10)
        await asyncio.sleep(0.03)
        group.is_away = False
    assert group.committed == {0: 10}


@played
async def test_a_handler_that_fails_gets_the_message_again() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 4] = 2
    async with consumer_of(group, handled) as consumer:
        await until(lambda: len(handled.places) == 10)
    assert [offset for _, offset in handled.places] == list(range(10))
    assert consumer.counts.failed == 2


@played
async def test_a_message_that_cannot_be_handled_ends_the_consumer_and_is_not_committed() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 4] = 99
    consumer = consumer_of(group, handled)
    consumer.start()
    with pytest.raises(HandlerFailedError) as raised:
        await consumer.wait()
    assert raised.value.failed_message.queue_offset == 4
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert group.committed == {0: 4}
    assert group.left == ["member1"]


@played
async def test_a_failure_that_nobody_waited_for_is_raised_at_the_end_of_with() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 0] = 99
    with pytest.raises(HandlerFailedError):
        async with consumer_of(group, handled):
            await until(lambda: bool(group.left))


@played
async def test_a_hook_may_skip_or_try_again() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 2], handled.failing[0, 6] = 99, 5
    asked: list[int] = []

    async def decide(message: StoredMessage, error: Exception) -> Decision:
        asked.append(message.queue_offset)
        return Decision.SKIP if message.queue_offset == 2 else Decision.RETRY

    async with consumer_of(group, handled, on_failure=decide) as consumer:
        await until(lambda: group.committed.get(0) == 10)
    assert asked == [2, 6]
    assert [offset for _, offset in handled.places] == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert consumer.counts.skipped == 1


@played
async def test_closing_waits_for_handlers_and_commits_what_they_did() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.hold((0, 3))
    consumer = consumer_of(group, handled)
    consumer.start()
    await until(lambda: (0, 3) in handled.begun)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    handled.let_go()
    await closing
    assert group.committed == {0: 4}
    assert (0, 4) not in handled.begun


@played
async def test_closing_leaves_alone_a_handler_that_does_not_end() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.hold((0, 3))
    async with consumer_of(group, handled, drain_s=0.01):
        await until(lambda: (0, 3) in handled.begun)
    assert group.committed == {0: 3}


@played
async def test_members_that_leave_together_commit_all_the_same() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    async with consumer_of(group, handled, commit_interval_s=99, heartbeat_s=99):
        await until(lambda: len(handled.places) == 20)
        group.share_out(0, 1)  # another one has left, and no heartbeat has told it
    assert group.committed == {0: 10, 1: 10}


@played
async def test_a_commit_that_is_refused_for_what_it_is_leaves_the_other_queues_alone() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    handled.hold((0, 5), (1, 5))
    async with consumer_of(group, handled):
        await until(lambda: group.committed == {0: 5, 1: 5})
        group.ends[0] = 3  # a volume that came back with less than it had
        group.committed[0] = 2
        handled.let_go()
        await until(lambda: group.committed == {0: 3, 1: 10})


@played
async def test_a_group_without_a_commit_begins_where_it_was_told_and_keeps_to_it() -> None:
    group, handled = GroupInMemory({0: 100}), Handled()
    async with consumer_of(group, handled, start=Start.LATEST):
        await until(lambda: group.committed == {0: 100})
    assert handled.places == []


@played
async def test_a_queue_that_is_behind_its_removed_messages_goes_on_at_the_first_there_is() -> None:
    group, handled = GroupInMemory({0: 100}), Handled()
    group.committed[0] = 60
    async with consumer_of(group, handled):
        await until(lambda: group.committed == {0: 100})
    assert [offset for _, offset in handled.places] == list(range(60, 100))


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"workers": 0},
        {"read_ahead": 0},
        {"session_timeout_ms": 1},
        {"drain_s": -1},
        {"heartbeat_s": 0},
        {"wait_ms": 0},
    ):
        with pytest.raises(InvalidRequestError):
            Consuming(**wrong)  # type: ignore[arg-type]  # of a table


@played
async def test_a_cancellation_within_a_handler_is_a_failure_and_its_worker_goes_on() -> None:
    group, done = GroupInMemory({0: 10}), []

    async def handle(message: StoredMessage) -> None:
        if message.queue_offset % 2 and message.queue_offset not in done:
            done.append(message.queue_offset)
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner

    async with consumer_of(group, handle, workers=1) as consumer:
        await until(lambda: group.committed.get(0) == 10)
    assert (consumer.counts.handled, consumer.counts.failed) == (10, 5)


@played
async def test_a_handler_that_does_not_let_itself_be_cancelled_holds_up_no_end() -> None:
    group, begun, gate = GroupInMemory({0: 10}), asyncio.Event(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        begun.set()
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    consumer = consumer_of(group, handle, drain_s=0.01)
    consumer.start()
    await begun.wait()
    await consumer.close()
    assert group.left == ["member1"]
    gate.set()


@played
async def test_a_service_that_hangs_holds_up_no_end() -> None:
    group, handled = GroupInMemory({0: 10}, session_timeout_ms=1_000), Handled()
    async with consumer_of(group, handled, session_timeout_ms=1_000, commit_interval_s=99):
        await until(lambda: len(handled.places) == 10)
        group.hangs = True
    assert group.committed == {}


@played
async def test_waiting_ends_when_the_end_of_the_consumer_is_cut_short() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.hold((0, 3))
    consumer = consumer_of(group, handled)
    before = asyncio.all_tasks()
    consumer.start()
    await until(lambda: (0, 3) in handled.begun)
    waiting = asyncio.create_task(consumer.wait())
    consumer.stop()
    await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - before - {waiting}:  # as asyncio.run does at its end
        task.cancel()
    await waiting


@played
async def test_what_was_shared_out_anew_during_a_commit_is_not_committed_by_the_rest_of_it() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    async with consumer_of(group, handled, commit_interval_s=99) as consumer:
        await until(lambda: len(handled.places) == 20)
        queues = list(consumer._queues.values())
        group.committed[0] = 0
        group.share_out(1)
        consumer._beat_now.set()
        await until(lambda: len(consumer.assignment) == 1)
        group.share_out(0, 1)
        consumer._beat_now.set()
        await until(lambda: len(consumer.assignment) == 2)
        handled.hold(*((0, offset) for offset in range(10)))
        await consumer._commit_together(queues)  # as it was asked for before
        assert group.committed == {0: 0, 1: 10}
        handled.let_go()


def test_an_exit_in_a_handler_ends_the_loop_and_nobody_waits_for_that_handler() -> None:
    group = GroupInMemory({0: 10})

    async def leave(message: StoredMessage) -> None:
        raise SystemExit(3)

    async def work() -> None:
        async with consumer_of(group, leave, drain_s=3_600):
            await asyncio.sleep(3_600)

    with pytest.raises(SystemExit):
        asyncio.run(work())
    assert group.left == ["member1"]
    assert group.committed == {}


@played
async def test_a_body_counts_as_it_is_in_memory() -> None:
    group, handled = GroupInMemory({0: 200}), Handled()
    group.body = "x" * 1_000  # of messages that say 100 bytes
    handled.hold((0, 0))
    async with consumer_of(group, handled, read_ahead=1_000, read_ahead_bytes=50_000) as consumer:
        await until(lambda: len(handled.begun) == 1)
        await asyncio.sleep(0.05)
        (queue,) = consumer._queues.values()
        assert queue.window.open_bytes == 64_000
        handled.let_go()
        await until(lambda: len(handled.places) == 200)


@played
async def test_latest_reads_a_queue_that_is_added_later_from_its_first_message() -> None:
    group, handled, began_ms = GroupInMemory({0: 100, 1: 0}), Handled(), 1_790_000_000_000
    group.assigned = {0}
    group.now_ms = began_ms + 300  # which no clock of the consumer says
    async with consumer_of(group, handled, start=Start.LATEST):
        await until(lambda: group.committed == {0: 100})
        group.now_ms += 60_000
        group.times[1] = [began_ms - 5_000, began_ms + 1_000, began_ms + 50_000]
        group.ends[1] = 3
        group.share_out(0, 1)
        await until(lambda: group.committed == {0: 100, 1: 3})
    assert handled.places == [(1, 1), (1, 2)]


@played
async def test_latest_of_a_store_that_is_away_is_when_the_consumer_began() -> None:
    group, handled = GroupInMemory({0: 2}), Handled()
    group.now_ms, group.gone = 10_000, {"store-a"}
    group.times[0] = [9_000, 9_500, 11_000]
    async with consumer_of(group, handled, start=Start.LATEST):
        await until(lambda: [one.path for one in group.requests if "/queues/0/" in one.path] != [])
        group.ends[0] = 3
        group.gone.clear()
        await until(lambda: group.committed == {0: 3})
    assert handled.places == [(0, 2)]


@played
async def test_a_queue_that_ends_below_its_commit_goes_on() -> None:
    group, handled = GroupInMemory({0: 40}), Handled()
    group.committed[0] = 100
    async with consumer_of(group, handled, read_ahead=20):
        await until(lambda: group.resets == [{0: 40}])
        group.ends[0] = 95
        group.came()
        await until(lambda: group.committed == {0: 95})
    assert handled.places == [(0, offset) for offset in range(40, 95)]


@played
async def test_nothing_is_skipped_when_it_grows_past_the_old_commit() -> None:
    group, handled = GroupInMemory({0: 40}), Handled()
    group.committed[0] = 100
    for end in (40, 60, 120):
        group.ends[0] = end
        async with consumer_of(group, handled):
            await until(lambda end=end: group.committed == {0: end})  # type: ignore[misc]  # of a loop
    assert handled.places == [(0, offset) for offset in range(40, 120)]


@played
async def test_a_queue_that_ends_below_what_was_read_of_it_is_begun_at_its_end() -> None:
    group, handled = GroupInMemory({0: 50}), Handled()
    handled.hold((0, 20))
    async with consumer_of(group, handled, read_ahead=50):
        await until(lambda: group.committed == {0: 20})
        group.ends[0] = 5
        group.came()
        handled.let_go()
        await until(lambda: group.resets == [{0: 5}])
        group.ends[0] = 30
        group.came()
        await until(lambda: group.committed == {0: 30})
    assert {(0, offset) for offset in range(5, 30)} <= set(handled.places)


@played
async def test_what_one_store_keeps_back_the_others_commit() -> None:
    group, handled, clock = GroupInMemory({0: 50, 1: 400}), Handled(), ManualClock()
    group.stores, group.down = {0: "store-b"}, {"store-b"}
    async with consumer_of(group, handled, clock, read_ahead=100) as consumer:
        await until(lambda: group.committed == {1: 400})
        assert consumer.counts.handled == 450
        group.down.clear()
        clock.advance(10_000)
        await until(lambda: group.committed == {0: 50, 1: 400})


@played
async def test_the_last_commit_of_one_store_waits_for_no_other() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    group.stores, group.down = {0: "store-b"}, {"store-b"}
    async with consumer_of(group, handled, commit_interval_s=99):
        await until(lambda: len(handled.places) == 20)
    assert group.committed == {1: 10}


@played
async def test_a_store_that_leaves_the_cluster_takes_its_queues_along_and_ends_no_consumer() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    group.stores = {1: "store-b"}
    async with consumer_of(group, handled) as consumer:
        await until(lambda: group.committed == {0: 10, 1: 10})
        group.gone = {"store-b"}
        group.came()
        await asyncio.sleep(0.05)
        group.share_out(0)
        await until(lambda: [one.queue_id for one in consumer.assignment] == [0])
        group.ends[0] = 20
        group.came()
        await until(lambda: group.committed[0] == 20)


@played
async def test_a_hung_read_of_offsets_costs_no_session() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}, session_timeout_ms=1_000), Handled()
    async with consumer_of(group, handled, session_timeout_ms=1_000):
        await until(lambda: group.committed == {0: 10, 1: 10})
        group.hung.add("GET /v1/groups/g/offsets")
        group.share_out(0)
        group.requests.clear()
        await asyncio.sleep(1.5)
        group.hung.clear()
    beats = [one for one in group.requests if one.method == "PUT" and "/members/" in one.path]
    assert len(beats) >= 3
    calls = [one for one in group.requests if "/groups/" in one.path and one.method != "DELETE"]
    assert {one.within_s for one in calls} == {1 / 3}


@played
async def test_a_lost_queue_is_dropped_before_offsets_are_read() -> None:
    group, handled = GroupInMemory({0: 10, 1: 10}), Handled()
    async with consumer_of(group, handled) as consumer:
        await until(lambda: group.committed == {0: 10, 1: 10})
        group.hung.add("GET /v1/groups/g/offsets")
        group.share_out(0)
        await until(lambda: [one.queue_id for one in consumer.assignment] == [0])
        group.hung.clear()


@played
async def test_a_hook_that_decides_nothing_ends_the_consumer() -> None:
    group, handled, asked = GroupInMemory({0: 10}), Handled(), []
    handled.failing[0, 3] = 99

    async def decide(message: StoredMessage, error: Exception) -> Decision:
        asked.append(message.queue_offset)
        return None  # type: ignore[return-value]  # what is tested

    consumer = consumer_of(group, handled, on_failure=decide)
    consumer.start()
    with pytest.raises(HandlerFailedError) as raised:
        await consumer.wait()
    assert isinstance(raised.value.__cause__, ValueError)
    assert (asked, group.committed) == ([3], {0: 3})


@played
async def test_a_hook_may_decide_by_the_word() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 3] = 99

    async def decide(message: StoredMessage, error: Exception) -> Decision:
        return "skip"  # type: ignore[return-value]  # what is tested

    async with consumer_of(group, handled, on_failure=decide) as consumer:
        await until(lambda: group.committed == {0: 10})
    assert consumer.counts.skipped == 1


@played
async def test_a_commit_that_no_rebalance_mends_is_told(caplog: pytest.LogCaptureFixture) -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    group.refusal = problem(409, "conflict")
    consumer = consumer_of(group, handled)
    consumer.start()
    with pytest.raises(ConflictError, match="about conflict"):
        await consumer.wait()
    assert [one.message for one in caplog.records if "a commit was refused" in one.message] == [
        "group g: a commit was refused: about conflict"
    ]


@played
async def test_a_commit_that_is_refused_for_its_generation_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    group.refusal = problem(409, "stale-generation")
    async with consumer_of(group, handled) as consumer:
        await until(lambda: consumer.counts.refused_commits >= 3)
        group.refusal = None
        await until(lambda: group.committed == {0: 10})
    assert caplog.records == []


@played
async def test_a_consumer_leaves_a_service_alone_for_as_long_as_it_asks() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    pulls: list[dict[str, str]] = []

    async def busy(queue: int, asked: dict[str, str]) -> Answer:
        pulls.append(asked)
        return problem(429, "overloaded", retry_after_s=3_600)

    group._pull = busy  # type: ignore[method-assign]  # of the test
    async with consumer_of(group, handled):
        await until(lambda: bool(pulls))
        await asyncio.sleep(0.4)  # its own pauses begin with 0.1 s
    assert len(pulls) == 1


@played
async def test_a_pause_of_a_dropped_queue_holds_up_nobody() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    handled.failing[0, 0] = 1
    async with consumer_of(group, handled, first_pause_s=3_600, most_pause_s=3_600) as consumer:
        await until(lambda: consumer.counts.failed == 1)
        group.share_out()
        await until(lambda: consumer.assignment == ())
        group.share_out(0)
        await until(lambda: group.committed == {0: 10})


@played
async def test_a_consumer_that_ends_joins_no_more() -> None:
    group, handled = GroupInMemory({0: 10}), Handled()
    async with consumer_of(group, handled, commit_interval_s=99, heartbeat_s=99) as consumer:
        await until(lambda: len(handled.places) == 10)
        group.forget()
    assert (consumer.counts.joins, group.generation, group.left) == (1, 1, [])
    assert group.committed == {}
