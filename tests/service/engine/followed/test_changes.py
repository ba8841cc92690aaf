"""The closed directory of a store that follows: its log is cut, goes on behind a gap, comes back from the archive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.engines import small_settings
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, FollowedWorld, broker_log
from tests.support.world import numbers_of, read_all
from tierlog.index.search.counts import CountQuery
from tierlog.index.search.query import Query
from tierlog.service.engine.followed.changes import begin_again, rewind
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.tiering.base.errors import (
    DivergedError,
    FencedError,
    InvalidRequestError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.record import MAGIC_BLANK, decode_record, encode_record
from tierlog.tiering.message.batch import Message


def _record_at_or_above(log: BrokerLog, position: int) -> int:
    at = position - position % SEGMENT_BYTES
    while at < position:
        at += decode_record(log.data, at, physical_offset=at).size
    return at


def _times(log: BrokerLog) -> list[tuple[int, int]]:
    """When each message of the topic was stored, and where its record lies."""
    places = [at for _, at in _places(log, "orders")]
    return [(decode_record(log.data, at, physical_offset=at).store_ms, at) for at in places]


def _places(log: BrokerLog, topic: str) -> list[tuple[int, int]]:
    """The numbers of a topic's messages, and where their records lie."""
    at, found = 0, []
    while at < log.end:
        if log.data[at + 4 : at + 8] == MAGIC_BLANK.to_bytes(4, "big", signed=True):
            at += SEGMENT_BYTES - at % SEGMENT_BYTES
            continue
        record = decode_record(log.data, at, physical_offset=at)
        if record.topic == topic:
            found.append((int(record.body.split(b".")[0].split()[1]), at))
        at += record.size
    return found


def _followed(world: FollowedWorld, log: BrokerLog) -> FollowedStore:
    store = world.open()
    log.feed(store, most=900)
    store.flush()
    return store


def _with_cuts(
    prepare: Callable[[FollowedWorld], None], change: Callable[[FollowedWorld], None], cuts_at: range
) -> Iterator[FollowedWorld]:
    """Worlds in which a change of the closed directory was cut off, at one call after the other, until none cuts it."""
    cuts = 0
    for cut_at in cuts_at:
        world = FollowedWorld()
        prepare(world)
        world.fs = world.fs.after_kill(cut_at=cut_at)
        try:
            change(world)
        except PowerCut:
            cuts += 1
        else:
            break
        world.fs = world.fs.crash(cut_at)
        yield world
    assert cuts > 3


def _agrees(store: FollowedStore, world: FollowedWorld, log: BrokerLog) -> None:
    begin = store.store._hot.log.begin
    assert world.log_bytes() == log.data[begin : log.end]
    assert store.store.check() == []


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("back", [100, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 500])
def test_what_the_broker_lost_is_dropped_and_followed_again(is_clean: bool, back: int) -> None:
    log, world = broker_log(), FollowedWorld()
    store = _followed(world, log)
    store.store.flush()
    if is_clean:
        store.close()
    offset = _record_at_or_above(log, log.end - back)
    rewind(world.root, offset, world.components)
    store = world.open()
    assert store.end == offset
    _agrees(store, world, BrokerLog(log.data[:offset]))
    assert _quarantined(world) == log.data[offset:]
    other = broker_log(140)
    assert other.data[:offset] == log.data[:offset]
    other.feed(store)
    store.flush()
    _agrees(store, world, other)
    found = [number for queue in range(2) for number in numbers_of(read_all(store.store, "orders", queue))]
    assert sorted(found) == [number for number in range(140) if number // 6 % 2 == 0]


def _quarantined(world: FollowedWorld) -> bytes:
    """The copies of what was dropped, in the order of the log."""
    folder = world.root / "quarantine"
    return b"".join(world.fs.read(folder / name) for name in sorted(world.fs.list_dir(folder)))


def test_what_is_dropped_again_and_again_is_kept_each_time() -> None:
    log, world = broker_log(), FollowedWorld()
    offset = _record_at_or_above(log, log.end - 500)
    kept = b""
    for data in (log.data, _otherwise(log, offset).data):
        store = world.open()
        BrokerLog(data).feed(store)
        store.flush()
        store.close()
        rewind(world.root, offset, world.components)
        kept += data[offset:]
    assert _quarantined(world) == kept


def test_what_is_archived_is_not_dropped() -> None:
    log, world = broker_log(), FollowedWorld()
    store = _followed(world, log)
    store.archive_all()
    store.close()
    with pytest.raises(DivergedError, match="it is archived") as caught:
        rewind(world.root, _record_at_or_above(log, SEGMENT_BYTES + 100), world.components)
    assert "another store" in str(caught.value.hint)
    assert world.open().end == log.end


def test_a_rewind_to_the_end_changes_nothing() -> None:
    log, world = broker_log(), FollowedWorld()
    _followed(world, log).close()
    rewind(world.root, log.end, world.components)
    _agrees(world.open(), world, log)


def test_tails_of_what_was_dropped_are_never_put_back() -> None:
    log, world = broker_log(), FollowedWorld()
    store = _followed(world, log)
    store.archive_all()
    assert store.published == log.end
    store.close()
    offset = _record_at_or_above(log, log.end - 300)
    rewind(world.root, offset, world.components)
    assert all(int(key.rpartition("/")[2]) < offset for key in world.objects._objects if "/tail/" in key)
    store = world.open()
    assert (store.end, store.published <= offset) == (offset, True)
    other = broker_log(140)
    other.feed(store)
    store.archive_all()
    again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    restored = again.open(restore=True)
    assert restored.end == other.end
    _agrees(restored, again, other)


def test_a_tail_of_what_was_dropped_that_arrives_late_is_deleted() -> None:
    log, world = broker_log(), FollowedWorld()
    offset = _record_at_or_above(log, log.end - 300)
    store = world.open()
    log.feed(store, end=offset)
    store.archive_all()
    log.feed(store)
    store.archive_all()
    (key,) = [key for key in world.objects._objects if key.endswith(f"/tail/{offset:020}")]
    late = world.objects._objects[key]
    store.close()
    rewind(world.root, offset, world.components)
    assert key not in world.objects._objects
    store = world.open()
    world.objects._objects[key] = late
    other = _otherwise(log, offset)
    other.feed(store)
    with pytest.raises(UnavailableError, match="the broker took back"):
        store.archive_all()
    assert key not in world.objects._objects
    store.archive_all()
    again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    _agrees(again.open(restore=True), again, other)


def _otherwise(log: BrokerLog, offset: int) -> BrokerLog:
    """The log with other messages from a record in its last segment on."""
    data = log.data[:offset]
    while len(data) < log.end:
        record = decode_record(log.data, len(data), physical_offset=len(data))
        data += encode_record(replace(record, body=record.body.replace(b"orders", b"ORDERS").replace(b"shop", b"SHOP")))
    return BrokerLog(data)


def test_a_lost_volume_comes_back_at_the_same_offsets_and_goes_on() -> None:
    log, world = broker_log(), FollowedWorld()
    store = _followed(world, log)
    store.archive_all()
    again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    restored = again.open(restore=True)
    assert restored.end == log.end
    _agrees(restored, again, log)
    whole = broker_log(150)
    whole.feed(restored)
    restored.archive_all()
    _agrees(restored, again, whole)
    found = [number for queue in range(2) for number in numbers_of(read_all(restored.store, "orders", queue))]
    assert sorted(found) == [number for number in range(150) if number // 6 % 2 == 0]
    assert restored.published == whole.end
    assert again.head().log_gaps == ()


def test_a_restored_store_that_is_promoted_goes_on_behind_the_tails_of_the_lost_volume() -> None:
    log, world = broker_log(), FollowedWorld()
    _followed(world, log).archive_all()
    again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    restored = again.open(restore=True)
    restored.promote()
    with pytest.raises(InvalidRequestError, match="takes messages"):
        restored.append(restored.end, b"")
    restored.close()
    ordinary = again.ordinary()
    store = ordinary.open("new")
    store.append([Message("orders", b"orders 500.")], Durability.ARCHIVED)
    assert store.read_only_reason is None
    store.archive()
    _is_refused_by_versions_that_know_no_followers(again)
    ordinary.fs.kill()
    assert 500 in numbers_of(read_all(ordinary.open("new"), "orders", 0) + read_all(ordinary.engine, "orders", 1))


def _is_refused_by_versions_that_know_no_followers(world: FollowedWorld) -> None:
    """Whether the directory and the archive say so, whose log has what those would misread, and lost ranges."""
    assert json.loads(world.fs.read(world.root / "tierlog" / "store.json"))["format"] == 2
    state = world.head().state
    assert state is not None
    assert int.from_bytes(world.objects.get(state.key)[0][8:12], "big") == 3


def test_a_promoted_store_that_is_opened_and_restored_again_is_refused_by_earlier_versions() -> None:
    log, world = broker_log(204), FollowedWorld()
    store = world.open()
    log.feed(store, end=_record_at_or_above(log, 3 * SEGMENT_BYTES - 900))
    store.flush()
    begin_again(world.root, 5 * SEGMENT_BYTES, world.components)
    store = world.open()
    log.feed(store)
    store.archive_all()
    store.promote()
    store.close()
    ordinary = world.ordinary().open()
    ordinary.append([Message("new", b"new 1.")], Durability.ARCHIVED)
    ordinary.archive()
    _is_refused_by_versions_that_know_no_followers(world)
    ordinary.close()
    restored = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    ordinary = restored.ordinary().open("new", restore=True)
    ordinary.append([Message("newer", b"newer 1.")])
    ordinary.archive()
    state = restored.head().state
    assert state is not None
    assert int.from_bytes(world.objects.get(state.key)[0][8:12], "big") == 3
    assert not ordinary.query(Query(topic="orders", key="key-1")).coverage.complete


def test_the_old_volume_is_fenced_by_the_restored_one() -> None:
    log, world = broker_log(), FollowedWorld()
    _followed(world, log).archive_all()
    again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
    again.open(restore=True)
    with pytest.raises(FencedError, match="has taken the archive"):
        world.open()


def test_an_ordinary_restore_of_a_followed_store_is_refused() -> None:
    log, world = broker_log(), FollowedWorld()
    _followed(world, log).archive_all()
    with pytest.raises(StoreMismatchError, match="follows a RocketMQ broker"):
        world.ordinary().open("other", restore=True)


@pytest.mark.parametrize("lost_segments", [0, 3])
def test_a_log_goes_on_behind_a_gap_that_answers_name(lost_segments: int) -> None:
    log, world = broker_log(204, pause_ms=10_000), FollowedWorld()
    store = world.open()
    end = _record_at_or_above(log, 3 * SEGMENT_BYTES - 900)
    log.feed(store, end=end)
    store.flush()
    store.close()
    begin = (3 + lost_segments) * SEGMENT_BYTES
    begin_again(world.root, begin, world.components)
    store = world.open()
    assert store.end == begin
    log.feed(store)
    store.archive_all()
    _agrees(store, world, log)
    found = store.store.query(Query(topic="orders", key="key-1"))
    assert numbers_of(found.messages) == [1]
    assert not found.coverage.complete
    assert f"[{end}, {begin})" in str(found.coverage.failures)
    assert numbers_of(store.store.query(Query(topic="orders", key="key-197")).messages) == [197]
    numbers = [number for queue in range(2) for number in numbers_of(read_all(store.store, "orders", queue))]
    assert sorted(numbers) == [number for number, at in _places(log, "orders") if not end <= at < begin]
    first_ms = found.messages[0].record.store_ms
    before = store.store.query(Query(topic="orders", from_ms=first_ms, to_ms=first_ms + 1))
    assert (len(before.messages), before.coverage.complete) == (6, True)
    # what is lost may have been stored by a clock that was a little behind
    last_ms = max(record_ms for record_ms, at in _times(log) if at < end)
    for apart_ms, is_complete in ((59_000, False), (61_000, True)):
        found = store.store.query(Query(topic="orders", from_ms=first_ms, to_ms=last_ms - apart_ms))
        assert found.coverage.complete is is_complete
    counted = store.store.counts(CountQuery("orders"))
    assert sum(counted.counts) == len(numbers)
    assert (counted.coverage.complete, f"[{end}, {begin})" in str(counted.coverage.failures)) == (False, True)
    assert store.store.check(deep=True) == []


def test_where_the_brokers_clock_stepped_back_before_a_gap_answers_about_its_times_name_it() -> None:
    log, world = broker_log(204, pause_ms=60_000), FollowedWorld()
    end, begin = _record_at_or_above(log, 3 * SEGMENT_BYTES - 900), 6 * SEGMENT_BYTES
    # the clock of the first segment was an hour ahead
    ahead = bytearray(log.data)
    for at in [at for topic in ("orders", "%RETRY%shop") for _, at in _places(log, topic) if at < SEGMENT_BYTES]:
        record = decode_record(log.data, at, physical_offset=at)
        ahead[at : at + record.size] = encode_record(replace(record, store_ms=record.store_ms + 3_600_000))
    BrokerLog(bytes(ahead)).feed(world.open(), end=end)
    world.engine.flush()
    begin_again(world.root, begin, world.components)
    store = world.open()
    lost_ms = next(record_ms for record_ms, at in _times(log) if at >= end)
    found = store.store.query(Query(topic="orders", from_ms=lost_ms, to_ms=lost_ms + 1))
    assert f"[{end}, {begin})" in str(found.coverage.failures)


@pytest.mark.parametrize("is_restored", [False, True])
def test_no_gap_is_declared_of_messages_whose_queue_files_are_gone(is_restored: bool) -> None:
    log, world = broker_log(600), FollowedWorld()
    world.settings = small_settings(cold__disk_cache_bytes=0, hot__retention_ms=1000, hot__queue_file_units=4)
    end, begin = _record_at_or_above(log, 3 * SEGMENT_BYTES - 900), 5 * SEGMENT_BYTES
    store = world.open()
    log.feed(store, end=end)
    store.flush()
    store.close()
    begin_again(world.root, begin, world.components)
    store = world.open()
    for stop in range(6 * SEGMENT_BYTES, log.end, SEGMENT_BYTES):
        log.feed(store, end=stop)
        store.flush()
        # nothing that is archived is in the hot tier any more, and its queue files go
        store.store._hot.dispatch()
        store.store._hot.checkpoint()
        store.archive_all()
        world.clock.advance(30_000)
        store.store.run_tiers()
        if is_restored and stop == 12 * SEGMENT_BYTES:
            again = FollowedWorld(world.root.parent / "new", objects=world.objects, clock=world.clock)
            again.settings, world = world.settings, again
            store = world.open(restore=True)
    assert store.store._hot.log.begin > begin + 3 * SEGMENT_BYTES
    numbers = [number for queue in range(2) for number in numbers_of(read_all(store.store, "orders", queue))]
    assert sorted(numbers) == [n for n, at in _places(log, "orders") if at < store.end and not end <= at < begin]


def test_a_gap_below_the_logs_end_is_refused() -> None:
    log, world = broker_log(), FollowedWorld()
    _followed(world, log).close()
    with pytest.raises(InvalidRequestError, match="does not begin again"):
        begin_again(world.root, SEGMENT_BYTES, world.components)


@pytest.mark.parametrize("seed", range(4))
def test_a_gap_that_is_cut_off_anywhere_is_finished_by_the_next_opening(seed: int) -> None:
    log = broker_log()
    end, begin = _record_at_or_above(log, 2 * SEGMENT_BYTES - 900), 5 * SEGMENT_BYTES

    def prepare(world: FollowedWorld) -> None:
        store = world.open()
        log.feed(store, end=end)
        store.flush()
        store.close()

    def change(world: FollowedWorld) -> None:
        begin_again(world.root, begin, world.components)

    for world in _with_cuts(prepare, change, range(1 + seed, 1000, 9)):
        store = world.open()
        if store.end != begin:
            assert store.end == end
            store.close()
            begin_again(world.root, begin, world.components)
            store = world.open()
        assert store.end == begin
        log.feed(store)
        store.archive_all()
        _agrees(store, world, log)
        assert [each[:2] for each in world.head().lost] == [(end, begin)]


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_after_a_gap_is_noted_forgets_nothing_that_lies_before_it(seed: int) -> None:
    log = broker_log()
    end, begin = _record_at_or_above(log, 2 * SEGMENT_BYTES - 900), 5 * SEGMENT_BYTES

    def prepare(world: FollowedWorld) -> None:
        log.feed(world.open(), end=end)  # killed: what was not flushed is in the page cache alone

    def change(world: FollowedWorld) -> None:
        begin_again(world.root, begin, world.components)

    for world in _with_cuts(prepare, change, range(1 + seed, 1000, 11)):
        store = world.open()
        if store.end != begin:
            continue
        assert [each[:2] for each in world.head().lost] == [(end, begin)]
        _agrees(store, world, BrokerLog(log.data[:begin]))
        numbers = [number for queue in range(2) for number in numbers_of(read_all(store.store, "orders", queue))]
        assert sorted(numbers) == [number for number, at in _places(log, "orders") if at < end]


@pytest.mark.parametrize("seed", range(4))
def test_a_rewind_that_is_cut_off_anywhere_leaves_a_log_that_can_be_rewound(seed: int) -> None:
    log = broker_log()
    offset = _record_at_or_above(log, 2 * SEGMENT_BYTES + 900)

    def prepare(world: FollowedWorld) -> None:
        _followed(world, log).close()

    def change(world: FollowedWorld) -> None:
        rewind(world.root, offset, world.components)

    for world in _with_cuts(prepare, change, range(1 + seed, 1000, 7)):
        store = world.open()
        assert offset <= store.end <= log.end
        _agrees(store, world, BrokerLog(log.data[: store.end]))
        if store.end < log.end:  # nothing is dropped before its copy is durable
            assert _quarantined(world) == log.data[offset:]
        store.close()
        rewind(world.root, offset, world.components)
        store = world.open()
        log.feed(store)
        store.flush()
        _agrees(store, world, log)


def test_a_log_without_a_record_begins_again_where_the_broker_does() -> None:
    log, world = broker_log(), FollowedWorld()
    world.open(begin=SEGMENT_BYTES).close()
    begin_again(world.root, 3 * SEGMENT_BYTES, world.components)
    store = world.open()
    assert store.end == 3 * SEGMENT_BYTES
    log.feed(store)
    store.archive_all()
    _agrees(store, world, log)
    assert [each[:2] for each in world.head().lost] == [(SEGMENT_BYTES, 3 * SEGMENT_BYTES)]


def test_a_store_without_an_archive_does_not_begin_again() -> None:
    log, world = broker_log(), FollowedWorld(url=None)
    _followed(world, log).close()
    with pytest.raises(StoreMismatchError, match="without a cold tier"):
        begin_again(world.root, log.end - log.end % SEGMENT_BYTES + SEGMENT_BYTES, world.components)
    assert world.open().end == log.end


@pytest.mark.parametrize("seed", range(3))
def test_a_restore_that_is_cut_off_anywhere_is_gone_on_with(seed: int) -> None:
    log, cuts = broker_log(), 0
    for cut_at in range(1 + seed, 1000, 5):
        world = FollowedWorld()
        _followed(world, log).archive_all()
        again = FollowedWorld(
            world.root.parent / "new", objects=world.objects, clock=world.clock, fs=CrashFileSystem(cut_at=cut_at)
        )
        try:
            again.open(restore=True)
        except PowerCut:
            cuts += 1
        else:
            break
        again.fs = again.fs.crash(cut_at)
        restored = again.open(restore=True)
        assert restored.end == log.end
        _agrees(restored, again, log)
    assert cuts > 3
