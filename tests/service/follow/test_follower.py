"""The follower of one broker: what it does in each state, and what is true after a kill."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.rocketmq.scripted_broker import FollowerWorld, facts, until
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, broker_log
from tests.support.world import send
from tierlog.index.search.query import Query
from tierlog.service.follow.followed_broker import FollowState
from tierlog.service.follow.follower import pause_s
from tierlog.tiering.base.errors import InvalidRequestError, UnavailableError
from tierlog.tiering.format.record import MAGIC_BLANK, Record, decode_record, encode_record
from tierlog.tiering.rocketmq.broker_files import state_of
from tierlog.tiering.rocketmq.log_source import NoLogYetError

LOG = broker_log()
LONGER = broker_log(160)


def test_a_new_store_begins_where_the_broker_does_and_gets_all_of_it() -> None:
    world = FollowerWorld(BrokerLog(LOG.data, begin=2 * SEGMENT_BYTES))
    follower = world.run()
    assert world.broker.reports[-1] == LOG.end == follower.broker.end
    assert world.data() == LOG.data[2 * SEGMENT_BYTES :]
    assert follower.broker.state is FollowState.STOPPED


def test_it_goes_on_where_it_was_and_nothing_is_given_twice() -> None:
    world = FollowerWorld(BrokerLog(LOG.data[: LOG.end]))
    world.run()
    world.lose(LONGER)
    world.broker.reports.clear()
    follower = world.run()
    assert follower.broker.end == LONGER.end
    assert world.data() == LONGER.data
    assert min(world.broker.reports) > LOG.end


@pytest.mark.parametrize("piece", [1, 13, 700, 1 << 20])
def test_bytes_cut_anywhere_give_the_same_log(piece: int) -> None:
    world = FollowerWorld(LOG)
    world.broker.piece_bytes = piece
    world.run()
    assert world.data() == LOG.data


def test_a_broker_that_is_not_reached_is_tried_again_with_growing_pauses() -> None:
    world = FollowerWorld(LOG, retry_ms=100, max_retry_ms=1_000)
    world.run()
    times = []
    world.refuse(UnavailableError("nobody listens"))
    steps = [lambda: times.append(world.clock.now_ms())] * 8
    follower = world.run(*steps, lambda: world.refuse(None))
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 50 <= pauses[0] <= 200
    assert 500 <= pauses[-1] <= 1_000
    assert follower.broker.end == LOG.end


def test_while_it_is_not_reached_the_store_answers_and_says_why() -> None:
    world = FollowerWorld(LOG)
    world.run()
    world.refuse(UnavailableError("nobody listens", hint="start it"))
    follower = world.run(lambda: None, stops=False)
    world.clock.is_calm = True
    broker = follower.broker
    assert broker.state is FollowState.CONNECTING
    assert broker.store is not None
    assert broker.store.query(Query(topic="orders", key="key-1")).messages
    problem = broker.problem
    assert problem is not None
    assert "nobody listens" in problem.reason
    assert "nobody listens" not in problem.part
    follower.stop()


def test_a_new_store_needs_its_broker_and_leaves_nothing_without() -> None:
    world = FollowerWorld(LOG)
    world.refuse(UnavailableError("nobody listens"))
    with pytest.raises(UnavailableError):
        world.process().open()
    assert not world.fs.exists(world.root)


def test_a_new_store_without_an_archive_is_refused() -> None:
    world = FollowerWorld(LOG)
    world.url = None
    with pytest.raises(InvalidRequestError, match="needs an archive"):
        world.process().open()


@pytest.mark.parametrize("lost", [200, 2_000, SEGMENT_BYTES + 100, 3 * SEGMENT_BYTES])
def test_what_a_broker_lost_in_a_kill_is_dropped_and_what_it_wrote_then_is_taken(lost: int) -> None:
    world = FollowerWorld(LOG)
    world.broker.settled = 0
    world.run()
    other = BrokerLog(_changed(LOG.data, LOG.end - lost))
    assert other.data != LOG.data
    world.told.clear()
    follower = world.run(lambda: world.lose(other))
    assert follower.broker.end == LOG.end
    assert world.data() == other.data
    # however many segments differ, it is opened again once
    assert [is_open for is_open, _ in world.told] == [True, False, True, False]


def test_what_was_lost_is_dropped_though_no_record_of_the_broker_begins_where_ours_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker's files give whole records, and nothing in the middle of one."""
    monkeypatch.setattr("tierlog.service.follow.follower._FIRST_TAIL", 300)
    world = FollowerWorld(LOG)
    world.broker.settled = 0
    world.run()
    other = BrokerLog(_changed(LOG.data, LOG.end - 1_500))
    world.open(0)
    world.broker.no_record_at, _ = world.engine.tail(300)
    assert world.broker.no_record_at % SEGMENT_BYTES
    world.engine.close()
    follower = world.run(lambda: world.lose(other))
    assert follower.broker.end == LOG.end
    assert world.data() == other.data


def test_a_broker_whose_log_is_shorter_takes_ours_back() -> None:
    world = FollowerWorld(LOG)
    world.broker.settled = 0
    world.run()
    end = _end_below(LOG.data, LOG.end - 3_000)
    follower = world.run(lambda: world.lose(BrokerLog(LOG.data[:end])), lambda: None)
    assert follower.broker.end == end
    assert world.data() == LOG.data[:end]


def test_what_is_archived_is_never_dropped_and_an_operator_is_asked() -> None:
    world = FollowerWorld(LOG)
    world.run(lambda: _archive(world))
    at = SEGMENT_BYTES + 200
    follower = world.process()
    world.lose(BrokerLog(_changed(LOG.data, at)))
    follower.open()
    follower.start()
    follower._thread.join(20)
    broker = follower.broker
    assert broker.state is FollowState.DIVERGED
    assert broker.hint is not None
    assert "--store-id" in broker.hint
    follower.stop()
    assert world.data() == LOG.data


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_broker_that_begins_another_log_takes_nothing_of_ours_back(is_archived: bool, is_empty: bool) -> None:
    world = FollowerWorld(BrokerLog(LOG.data[: 2 * SEGMENT_BYTES]))
    world.broker.settled = 0
    world.run(*((lambda: _archive(world),) if is_archived else ()))
    world.lose(LOG)
    world.run()
    assert world.data() == LOG.data
    # its volume was lost, and what is not archived yet is nowhere else
    follower = world.process()
    world.lose(BrokerLog(b"" if is_empty else _changed(LOG.data, 0)))
    follower.open()
    follower.start()
    follower._thread.join(20)
    assert follower.broker.state is FollowState.DIVERGED
    assert "nothing in common" in str(follower.broker.error)
    follower.stop()
    assert world.data() == LOG.data


@pytest.mark.parametrize("is_shorter", [False, True])
@pytest.mark.parametrize("back", [SEGMENT_BYTES + 700, 2 * SEGMENT_BYTES + 700, 3 * SEGMENT_BYTES])
def test_a_diverged_broker_is_told_with_the_offset_from_which_its_log_differs(back: int, is_shorter: bool) -> None:
    world = FollowerWorld(LOG)
    world.run(lambda: _archive(world))
    assert LOG.end % SEGMENT_BYTES > 700
    at = _end_below(LOG.data, LOG.end - back)
    follower = world.process()
    world.lose(BrokerLog(LOG.data[:at] if is_shorter else _changed(LOG.data, at)))
    follower.open()
    follower.start()
    follower._thread.join(20)
    assert follower.broker.state is FollowState.DIVERGED
    assert f"differs from offset {at} on" in str(follower.broker.error)
    assert f"ends at {LOG.end} and is archived up to" in str(follower.broker.error)
    assert "start the broker that has our end" in str(follower.broker.hint)
    follower.stop()
    assert world.data() == LOG.data


def test_what_the_broker_removed_before_it_was_here_is_a_gap_that_answers_name() -> None:
    first = BrokerLog(LOG.data[: _end_below(LOG.data, 2 * SEGMENT_BYTES - 500)])
    world = FollowerWorld(first)
    world.run()
    begin = LONGER.end - LONGER.end % SEGMENT_BYTES - SEGMENT_BYTES
    follower = world.run(lambda: world.lose(BrokerLog(LONGER.data, begin=begin)), stops=False)
    broker = follower.broker
    assert broker.end == LONGER.end
    assert broker.gap_bytes == begin - first.end
    assert broker.state is FollowState.FOLLOWING
    assert broker.store is not None
    answer = broker.store.query(Query(topic="orders", from_ms=0))
    assert not answer.coverage.complete
    assert (False, FollowState.GAP) in world.told
    follower.stop()


def test_what_the_broker_removes_while_it_is_connected_is_a_gap_too() -> None:
    log = BrokerLog(LOG.data[: _end_below(LOG.data, 2 * SEGMENT_BYTES - 500)])
    first_end, begin = log.end, LONGER.end - LONGER.end % SEGMENT_BYTES - SEGMENT_BYTES
    world = FollowerWorld(log)

    def write_and_remove() -> None:
        log.data, log.begin = LONGER.data, begin

    follower = world.run(write_and_remove, *[lambda: None] * 4, stops=False)
    until(lambda: follower.broker.end == LONGER.end)
    assert follower.broker.gap_bytes == begin - first_end
    follower.stop()
    assert world.data() == LONGER.data[begin:]


def test_a_gap_is_not_left_behind_while_the_bucket_takes_nothing() -> None:
    first = BrokerLog(LOG.data[: _end_below(LOG.data, 2 * SEGMENT_BYTES - 500)])
    world = FollowerWorld(first)
    world.run()
    begin = LONGER.end - LONGER.end % SEGMENT_BYTES - SEGMENT_BYTES
    world.lose(BrokerLog(LONGER.data, begin=begin))
    world.bucket.die()
    follower = world.process()
    follower.open()
    follower.start()
    until(lambda: follower.broker.error is not None and follower.broker.state is FollowState.CONNECTING)
    assert follower.broker.end == first.end
    world.bucket.revive()
    until(lambda: follower.broker.end == LONGER.end)
    follower.stop()


def test_a_gap_is_told_as_it_was_declared_and_not_as_none_while_the_archive_is_not_reached() -> None:
    first = BrokerLog(LOG.data[: _end_below(LOG.data, 2 * SEGMENT_BYTES - 500)])
    world = FollowerWorld(first)
    assert world.run().broker.gap_declared_ms is None
    begin = LONGER.end - LONGER.end % SEGMENT_BYTES - SEGMENT_BYTES
    world.lose(BrokerLog(LONGER.data, begin=begin))
    before_ms = world.clock.now_ms()
    declared_ms = world.run().broker.gap_declared_ms
    assert declared_ms is not None
    assert before_ms <= declared_ms < before_ms + 60_000  # the broker's clock may be ahead
    # an alert would take a rise from 0 for another loss
    world.clock.advance(3_600_000)
    world.bucket.die()
    told: list[tuple[int | None, int | None]] = []

    def tell() -> None:
        told.append((world.follower.broker.gap_bytes, world.follower.broker.gap_declared_ms))

    def is_known() -> bool:
        world.clock.advance(1_000)  # until the archive is tried again
        return world.follower._opened.gap_bytes is not None

    def revive() -> None:
        world.bucket.revive()
        until(is_known)

    world.run(tell, revive, *[lambda: None] * 4, tell)
    assert told == [(None, None), (begin - first.end, declared_ms)]


def test_topics_and_groups_come_with_their_offsets() -> None:
    world = FollowerWorld(LOG)
    world.broker.state = state_of(
        topics={
            "orders": {"readQueueNums": 6, "writeQueueNums": 6, "perm": 6},
            "quiet": {"readQueueNums": 2, "writeQueueNums": 2},
            "no topic/..": {},
        },
        groups={"shop": {"retryMaxTimes": 3}, "idle": {}, "no group": {}},
        consumer_offsets={"orders@shop": {"0": 5, "1": 7}},
        delay_offsets={"3": 17},
    )
    follower = world.run(stops=False)
    store = follower.broker.store
    assert store is not None
    assert len(store.topic("orders").queues) == 6
    assert len(store.topic("quiet").queues) == 2
    found = store.groups.all_committed()
    assert set(found) == {"shop", "idle"}
    assert {place[2]: offset for place, offset in found["shop"].offsets.items()} == {0: 5, 1: 7}
    assert store.groups.delay_offsets == {3: 17}
    follower.stop()


def test_half_and_delayed_messages_are_no_part_of_the_archive_unless_asked_for() -> None:
    for asked_for in (False, True):
        world = FollowerWorld(LOG, system_topics=asked_for)
        world.broker.state = state_of(
            topics={"SCHEDULE_TOPIC_XXXX": {"readQueueNums": 18, "writeQueueNums": 18}},
            groups={}, consumer_offsets={}, delay_offsets={},
        )  # fmt: skip
        follower = world.run(stops=False)
        store = follower.broker.store
        assert store is not None
        assert store.topic("SCHEDULE_TOPIC_XXXX").archive is asked_for
        follower.stop()


def test_a_broker_that_answers_slowly_is_read_on_meanwhile_and_holds_up_no_stop() -> None:
    world = FollowerWorld(LOG)
    world.broker.answers.clear()
    follower = world.process()
    follower.open()
    follower.start()
    until(lambda: follower.broker.end == LOG.end and follower.broker.heard_s > 0)  # heard of by its log
    assert follower.broker.state is FollowState.FOLLOWING
    store = follower.broker.store
    assert store is not None
    assert not store.topic("SCHEDULE_TOPIC_XXXX").archive  # which is decided without an answer
    follower.stop()
    assert not follower._thread.is_alive()
    world.broker.answers.set()
    assert world.data() == LOG.data


def test_a_broker_without_time_to_spare_is_asked_less_often() -> None:
    assert [pause_s(took_s) for took_s in (0.0, 0.01, 0.02, 1.0)] == [3.0, 3.0, 6.0, 10.0]


def test_a_broker_without_a_log_is_waited_for() -> None:
    world = FollowerWorld(LOG)
    world.refuse(NoLogYetError("a broker has no log here yet"))
    follower = world.run(*[lambda: None] * 3, stops=False)
    broker = follower.broker
    assert (broker.state, broker.store) == (FollowState.WAITING, None)
    assert broker.problem is not None
    assert "no log here yet" in broker.problem.reason
    world.refuse(None)
    until(lambda: broker.end == LOG.end)
    until(lambda: broker.state is FollowState.FOLLOWING)
    follower.stop()
    assert world.data() == LOG.data


@pytest.mark.parametrize("torn", [0, 3, 20, 40, 120])
@pytest.mark.parametrize("begins", ["in a segment", "with a segment"])
def test_behind_a_hole_of_zeros_the_log_goes_on_and_what_was_lost_is_a_gap_that_answers_name(
    begins: str, torn: int
) -> None:
    at = SEGMENT_BYTES + 900 if begins == "in a segment" else 2 * SEGMENT_BYTES
    end, begin = at if begins == "with a segment" else _end_below(LONGER.data, at), 4 * SEGMENT_BYTES
    log = BrokerLog(LONGER.data[: end + torn] + bytes(begin - end - torn) + LONGER.data[begin:])
    world = FollowerWorld(BrokerLog(LONGER.data[:end]))
    world.broker.piece_bytes = 700 if torn else 11
    world.broker.settled = 0
    world.run()
    follower = world.run(lambda: world.lose(log), *[lambda: None] * 3, stops=False)
    broker = follower.broker
    until(lambda: broker.end == log.end)
    assert broker.gap_bytes == begin - end
    assert broker.store is not None
    answer = broker.store.query(Query(topic="orders", from_ms=0, limit=500))
    assert f"[{end}, {begin})" in str(answer.coverage.failures)
    assert broker.store.query(Query(topic="orders", key="key-1")).messages
    follower.stop()
    assert world.data() == log.data[begin:]


@pytest.mark.parametrize("why", ["the broker recovers", "nothing is behind", "something is in it"])
def test_zeros_that_may_not_stay_are_no_hole(why: str) -> None:
    end, begin = _end_below(LOG.data, SEGMENT_BYTES + 900), 4 * SEGMENT_BYTES
    hole = bytearray(begin - end)
    if why == "something is in it":
        hole[SEGMENT_BYTES] = 1
    log = BrokerLog(LOG.data[:end] + bytes(hole) + (b"" if why == "nothing is behind" else LOG.data[begin:]))
    world = FollowerWorld(log)
    world.broker.is_recovering = why == "the broker recovers"
    follower = world.process()
    follower.open()
    follower.start()
    until(lambda: "no record" in str(follower.broker.error))
    connections = len(world.broker.connections)
    until(lambda: len(world.broker.connections) > connections + 2)
    assert (follower.broker.end, follower.broker.gap_bytes) == (end, 0)
    world.lose(LOG)  # it has recovered, and goes on where the zeros began
    until(lambda: follower.broker.end == LOG.end)
    follower.stop()
    assert world.data() == LOG.data


def test_nothing_is_archived_that_the_broker_may_take_back() -> None:
    world = FollowerWorld(LOG)
    world.broker.settled = 2 * SEGMENT_BYTES
    follower = world.run(lambda: None, stops=False)
    opened = follower._store
    assert opened is not None
    opened.store.archive()
    assert opened.published <= 2 * SEGMENT_BYTES
    follower.stop()


def test_lag_and_margin_are_of_what_is_not_here() -> None:
    world = FollowerWorld(LOG, behind_ms=1_000)
    follower = world.run(*[lambda: None] * 4, stops=False)  # seconds, until the broker is looked at again
    broker = follower.broker
    until(lambda: broker.margin_ms == 72 * 3_600_000)
    assert (broker.lag_bytes, broker.lag_ms, broker.problem) == (0, 0, None)
    follower.stop()


def test_segments_of_another_size_are_refused_by_name_and_tried_again() -> None:
    world = FollowerWorld(LOG)
    world.run()
    world.broker.facts = facts(segment_bytes=2 * SEGMENT_BYTES)
    follower = world.process()
    follower.open()
    follower.start()
    until(lambda: follower.broker.state is FollowState.REFUSED)
    assert "--store-id" in str(follower.broker.hint)
    follower.stop()


def test_a_broker_that_is_gone_for_good_is_followed_by_a_store_that_takes_messages() -> None:
    world = FollowerWorld(LOG, promote=True, promote_after_ms=5_000)

    def stop_broker() -> None:
        world.broker.gone = True
        world.refuse(UnavailableError("nobody listens"))

    follower = world.process()
    world.broker.steps.append(stop_broker)
    follower.open()
    follower.start()
    until(lambda: follower.broker.state is FollowState.PROMOTED)
    store = follower.broker.store
    assert store is not None
    assert not store.is_followed
    world.clock.is_calm = True
    send(store, "orders", 500, 503)
    assert len(store.query(Query(topic="orders", key="key-501")).messages) == 1
    # a broker that comes back is told of, loudly
    world.broker.gone = False
    until(lambda: follower.broker.error is not None and follower.broker.state is FollowState.TWO_WRITERS)
    assert "both take messages" in str(follower.broker.error)
    assert follower.broker.problem is not None
    follower.stop()
    # also by a process that begins then
    world.broker.gone = True
    again = world.process()
    again.open()
    assert (again.broker.state, again.broker.cluster) == (FollowState.PROMOTED, "east")
    assert world.broker.remembered == "127.0.0.1:1"
    world.clock.is_calm = False
    again.start()
    world.broker.gone = False
    until(lambda: again.broker.state is FollowState.TWO_WRITERS)
    world.broker.gone = True
    until(lambda: again.broker.state is FollowState.PROMOTED)
    again.stop()


def test_a_process_that_begins_when_the_broker_is_gone_takes_its_place_only_when_it_is_told_to() -> None:
    world = FollowerWorld(LOG, promote=True, promote_after_ms=5_000)
    world.run()
    world.refuse(UnavailableError("nobody listens"))
    follower = world.process()
    with pytest.raises(InvalidRequestError, match="is there, and takes messages itself"):
        follower.open(promote_now=True)
    world.broker.gone = True
    # what the broker had last is not known
    follower = world.run(*[lambda: world.clock.advance(60_000)] * 5, stops=False)
    until(lambda: "where its log ended is not known" in str(follower.broker.error))
    assert "--promote-now" in str(follower.broker.hint)
    assert follower.broker.state is FollowState.CONNECTING
    follower.stop()
    follower = world.process()
    follower.open(promote_now=True)
    assert follower.broker.state is FollowState.PROMOTED
    assert world.told[-1] == (True, FollowState.PROMOTED)
    store = follower.broker.store
    assert store is not None
    send(store, "orders", 500, 503)
    follower.stop()
    # once it is promoted, --promote-now is as --promote
    follower = world.process()
    follower.open(promote_now=True)
    assert follower.broker.state is FollowState.PROMOTED
    follower.stop()


def test_a_store_whose_volume_is_lost_as_well_takes_messages_out_of_its_archive() -> None:
    world = FollowerWorld(LOG, promote=True)
    world.run(lambda: _archive(world))
    world.refuse(UnavailableError("nobody listens"))
    world.broker.gone = True
    world.root = world.root.parent / "new"
    follower = world.process()
    follower.open(restore=True, promote_now=True)
    assert follower.broker.state is FollowState.PROMOTED
    store = follower.broker.store
    assert store is not None
    send(store, "orders", 500, 503)
    assert [len(store.query(Query(topic="orders", key=f"key-{number}")).messages) for number in (1, 501)] == [1, 1]
    follower.stop()


def test_nothing_is_promoted_of_which_there_is_no_store_or_no_way_to_tell_whether_the_broker_is_gone() -> None:
    world = FollowerWorld(LOG)
    world.broker.gone = True
    with pytest.raises(InvalidRequestError, match="there is no store yet"):
        world.process().open(promote_now=True)
    world.broker.gone = False
    world.run()
    world.follow = world.follow.model_copy(update={"namesrv": ""})
    with pytest.raises(InvalidRequestError, match="no nameserver says"):
        world.process().open(promote_now=True)


def test_a_broker_that_is_only_silent_is_never_taken_for_gone() -> None:
    world = FollowerWorld(LOG, promote=True, promote_after_ms=5_000)
    world.run()
    world.refuse(UnavailableError("it does not answer"))
    follower = world.run(*[lambda: world.clock.advance(60_000)] * 5, stops=False)
    assert follower.broker.state is FollowState.CONNECTING
    follower.stop()


@pytest.mark.parametrize("seed", range(6))
def test_after_a_power_cut_everything_that_was_reported_is_here_and_the_rest_is_taken_again(seed: int) -> None:
    world = FollowerWorld(LOG, mode="replica", flush_bytes=1_000)
    broker, disks, reported = world.broker, list[CrashFileSystem](), list[int]()
    broker.settled, broker.piece_bytes = 0, 300
    cut_at = random.Random(seed).randrange(3, LOG.end // 300)

    def cut(number: int) -> None:
        if number == cut_at:
            disks.append(world.fs.crash(seed))
            reported.extend(broker.reports)
            world.follower.ask_to_stop()
            broker.done.set()

    broker.on_read = cut
    world.run()
    (world.fs,) = disks
    follower = world.process()
    follower.open()
    assert follower.broker.end >= max(reported, default=0)
    follower.stop()
    assert world.run().broker.end == LOG.end
    assert world.data() == LOG.data


def _records(data: bytes) -> Iterator[tuple[int, Record | None, int]]:
    """Where each record begins, what it is (None: a blank one), and where the next one begins."""
    at = 0
    while at < len(data):
        if data[at + 4 : at + 8] == MAGIC_BLANK.to_bytes(4, "big", signed=True):
            end = at + SEGMENT_BYTES - at % SEGMENT_BYTES
            yield at, None, end
        else:
            record = decode_record(data, at, physical_offset=at)
            end = at + record.size
            yield at, record, end
        at = end


def _changed(data: bytes, at: int) -> bytes:
    """The same places with other messages from a record at or above ``at`` on."""
    found = bytearray(data)
    for begin, record, end in _records(data):
        if begin >= at and record is not None:
            found[begin:end] = encode_record(replace(record, body=record.body[::-1]))
    return bytes(found)


def _end_below(data: bytes, at: int) -> int:
    """Where a record ends at or below ``at``."""
    return max(end for _, record, end in _records(data) if end <= at and record is not None)


def _archive(world: FollowerWorld) -> None:
    opened = world.follower._store
    assert opened is not None
    opened.archive_all()
