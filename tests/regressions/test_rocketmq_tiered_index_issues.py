"""Defects that the users of RocketMQ's tiered store reported of its index: one test for each that has none elsewhere.

``docs/rocketmq.md`` lists all of them with their tests. Numbers are those of apache/rocketmq.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.objects.priced_store import PricedStore
from tests.support.stores.archives import archive_settings, archive_world
from tests.support.world import ROOT, STORE_ID, URL
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import END_OF_TIME_MS, Durability, TimeAxis, TimeRange
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore

HOUR_MS = 3_600_000


def bodies(engine: Store, key: str, from_ms: int = 0, to_ms: int = END_OF_TIME_MS, limit: int = 10_000) -> list[str]:
    """What a query finds; the answer says that it is all there is."""
    answer = engine.query(Query("orders", key, from_ms=from_ms, to_ms=to_ms, limit=limit))
    assert answer.coverage.complete, answer.coverage
    return [message.record.body.decode() for message in answer.messages]


def append(engine: Store, *texts: str, keys: list[str]) -> None:
    engine.append([Message("orders", text.encode(), keys) for text in texts])


def sealed(engine: Store) -> None:
    engine._hot.dispatch()
    engine._index.seal()
    engine._index.compact_sealed()


#: How far the index has come.
STATES: dict[str, Callable[[Store], object]] = {
    "writing": lambda _: None,
    "compacted": sealed,
    "in both tiers": lambda engine: engine.archive(everything=True),
    "archived": lambda engine: engine.archive(everything=True, drop_hot=True),
}
IN_EVERY_STATE = pytest.mark.parametrize("state", STATES)


@IN_EVERY_STATE
def test_10268_and_9233_message_later_than_the_creation_of_its_file_is_found(state: str) -> None:
    world = archive_world()
    engine = world.open()
    append(engine, "early", keys=["k"])
    world.clock.advance(5 * HOUR_MS)
    late_ms = world.clock.now_ms()
    append(engine, "late", keys=["k"])
    STATES[state](engine)
    assert bodies(engine, "k", late_ms - HOUR_MS, late_ms + HOUR_MS) == ["late"]
    assert bodies(engine, "k", late_ms, late_ms + 1) == ["late"]
    assert bodies(engine, "k", late_ms - HOUR_MS, late_ms) == []
    engine.close()


@IN_EVERY_STATE
@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_10656_end_of_a_files_times_is_the_same_after_a_restart(state: str, *, is_clean: bool) -> None:
    world = archive_world()
    engine = world.open()
    append(engine, "early", keys=["k"])
    world.clock.advance(5 * HOUR_MS)
    late_ms = world.clock.now_ms()
    append(engine, "late", keys=["k"])
    STATES[state](engine)
    if is_clean:
        engine.close()
    engine = world.open()
    for entry in engine._index.files():
        assert entry.bounds is not None
        assert entry.bounds.max_store_ms == late_ms
    assert bodies(engine, "k", late_ms, late_ms + 1) == ["late"]
    assert bodies(engine, "k", late_ms + 1) == []
    engine.close()


@IN_EVERY_STATE
def test_10462_a_limit_is_a_limit(state: str) -> None:
    """RocketMQ's file that is being written gave one result more."""
    engine = archive_world().open()
    append(engine, *(str(number) for number in range(30)), keys=["k"])
    STATES[state](engine)
    for limit in (1, 2, 29, 30, 31):
        assert bodies(engine, "k", limit=limit) == [str(number) for number in range(29, -1, -1)][:limit]
    engine.close()


def test_10462_queries_do_not_leave_threads_behind_nor_make_ever_more() -> None:
    world = archive_world()
    engine = world.open()
    for number in range(200):
        append(engine, str(number), keys=["k", f"k{number}"])
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    cold = world.cold()
    cold.query(Query("orders", "k"))
    after_one = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: len(cold.query(Query("orders", f"k{number}")).messages), range(200)))
    assert found == [1] * 200
    assert threading.active_count() <= 2 * after_one + 32


def test_9802_of_what_has_expired_no_index_object_stays_known() -> None:
    world = archive_world()
    engine = world.open()
    for number in range(120):
        append(engine, f"{number} " + "x" * 500, keys=["k"])
        world.clock.advance(1000)
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    manifest = world.manifest()
    head = manifest.refresh()
    assert [*manifest.all_index_entries(manifest.reader(), head)]
    usual = archive_settings()
    settings = usual.model_copy(update={"cold": usual.cold.model_copy(update={"retention_ms": 1})})
    engine = Store.open(
        ROOT, settings=settings, cold_url=URL, store_id=STORE_ID, clock=world.clock, fs=world.fs,
        objects=world.objects,
    )  # fmt: skip
    world.clock.advance(HOUR_MS)
    while engine.removal.run_once():
        world.clock.advance(60_000)
    head = manifest.refresh()
    assert head.cold_min == head.archived_to
    assert [*manifest.all_index_entries(manifest.reader(), head)] == []
    answer = engine.query(Query("orders", "k"))
    assert (answer.messages, answer.coverage.index_considered) == ([], 0)
    assert [file.path for file in engine._index.files()] == []
    engine.close()


def test_8653_last_index_file_is_published_though_it_is_not_full() -> None:
    world = archive_world()
    engine = world.open()
    append(engine, "only", keys=["k"])
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    head = world.manifest().refresh()
    assert head.indexed_to == head.archived_to > 0
    assert [message.record.body for message in world.cold().query(Query("orders", "k")).messages] == [b"only"]


def test_8481_nothing_is_sent_again_after_a_start() -> None:
    world = archive_world()
    engine = world.open()
    for number in range(100):
        append(engine, f"{number} " + "x" * 300, keys=["k"])
    engine.archive(everything=True)
    engine.close()
    named = {info.key for info in world.objects.list("")}
    meter = Meter()
    engine = world.open(objects=MeteredObjectStore(world.objects, meter))
    report = engine.archive()
    engine.run_tiers()
    assert (report.segments, report.index_objects) == (0, 0)
    assert {info.key for info in world.objects.list("") if "/log/" in info.key or "/index/" in info.key} <= named
    engine.close()


def test_7545_burst_that_fills_many_files_in_one_millisecond_loses_no_key_and_a_kill_stops_nothing() -> None:
    world = archive_world()
    engine = world.open()
    engine.append([Message("orders", b"%d" % number, [f"a{number}", f"b{number}", "all"]) for number in range(200)])
    engine._hot.dispatch()
    files = engine._index.files()
    assert len(files) >= 10
    assert len({file.name for file in files}) == len(files), "two files made in one millisecond have one name"
    engine = world.open()  # as after a kill
    engine.append(
        [Message("orders", b"%d" % number, [f"a{number}", f"b{number}", "all"]) for number in range(200, 230)]
    )
    for state in STATES.values():
        state(engine)
        assert sorted(map(int, bodies(engine, "all"))) == list(range(230))
        for number in range(0, 230, 7):
            assert bodies(engine, f"a{number}") == bodies(engine, f"b{number}") == [str(number)]
    assert engine.check() == []
    engine.close()


def test_7872_the_same_question_has_the_same_answer_whatever_happens_meanwhile() -> None:
    world = archive_world()
    engine = world.open()
    for number in range(150):
        append(engine, str(number), keys=["k"])
        world.clock.advance(300)
    until_ms = world.clock.now_ms()
    wanted = bodies(engine, "k", to_ms=until_ms, limit=32)
    stop, seen = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            seen.append(bodies(engine, "k", to_ms=until_ms, limit=32))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for state in STATES.values():
            for number in range(20):
                append(engine, f"later {number}", keys=["k"])
            state(engine)
            count = len(seen)
            while len(seen) < count + 6 and all(thread.is_alive() for thread in threads):
                threads[0].join(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert len(wanted) == 32
    assert len(seen) >= 24
    assert all(each == wanted for each in seen)
    engine.close()


@pytest.mark.parametrize("axis", list(TimeAxis))
def test_8438_a_message_that_both_tiers_hold_is_found_once_and_only_inside_the_range(axis: TimeAxis) -> None:
    world = archive_world()
    engine = world.open()
    times = []
    for number in range(90):
        times.append(world.clock.now_ms())
        append(engine, f"{number} " + "x" * 300, keys=["k"])
        world.clock.advance(700)
        if number == 60:
            engine.archive(everything=True)
    for drop_hot in (False, True):
        engine.archive(drop_hot=drop_hot)
        for from_ms, to_ms in ((0, END_OF_TIME_MS), (times[20], times[80]), (times[33], times[33] + 1)):
            inside = TimeRange(from_ms, to_ms)
            answer = engine.query(Query("orders", "k", from_ms=from_ms, to_ms=to_ms, limit=1000, axis=axis))
            found = [int(message.record.body.split()[0]) for message in answer.messages]
            assert found == [number for number in range(89, -1, -1) if inside.contains(times[number])]
    engine.close()


def test_9069_keys_of_a_batch_that_is_being_indexed_are_not_those_of_the_next() -> None:
    world = archive_world()
    engine = world.open()

    def send(sender: int) -> None:
        for number in range(40):
            engine.append([Message("orders", b"%d-%d" % (sender, number), [f"k{sender}-{number}"])], Durability.ASYNC)
            engine._hot.dispatch()

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.flush()
    for sender in range(4):
        for number in range(40):
            assert bodies(engine, f"k{sender}-{number}") == [f"{sender}-{number}"]
    engine.close()


def test_10223_topic_that_the_archive_never_had_costs_no_request() -> None:
    world = archive_world()
    engine = world.open()
    append(engine, "one", keys=["k"])
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    priced = PricedStore(world.objects)
    engine = world.open(objects=priced)
    bodies(engine, "k")
    before = priced.requests.total()
    with pytest.raises(TopicNotFoundError):
        engine.query(Query("rmq_sys_nothing", "k"))
    assert priced.requests.total() == before
    engine.close()


@IN_EVERY_STATE
def test_rust_7324_messages_of_one_second_come_in_the_order_of_their_milliseconds(state: str) -> None:
    """mxsm/rocketmq-rust #7324: a time of whole seconds loses the order."""
    world = archive_world()
    engine = world.open()
    world.clock.advance(-world.clock.now_ms() % 1000)
    for number in range(90):  # several files of the index, all in one second
        append(engine, str(number), keys=["k"])
        world.clock.advance(10)
    STATES[state](engine)
    assert bodies(engine, "k") == [str(number) for number in range(89, -1, -1)]
    assert bodies(engine, "k", limit=5) == ["89", "88", "87", "86", "85"]
    engine.close()
