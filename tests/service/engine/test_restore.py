"""A volume made from the archive alone: what it holds, where it goes on, and what it refuses."""

from __future__ import annotations

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.service.given_queues import GivenQueues
from tests.support.stores.engines import small_settings
from tests.support.world import STORE_ID, URL, World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    ObjectStoreUnavailableError,
    StoreMismatchError,
)
from tierlog.tiering.base.types import Boundary, PullStatus, TimeRange
from tierlog.tiering.lifecycle.takeover import LOG_STEP, QUEUE_STEP, TOPIC_ID_STEP
from tierlog.tiering.read.fetcher import Fetcher

EVER = TimeRange(0, 1 << 60)


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def filled(world: World, count: int = 60) -> Store:
    """Volume a with two topics, everything archived; queue 1 of orders has no message."""
    engine = world.open("a")
    for at in range(0, count, 4):
        send(engine, "orders", at, at + 4, queue_id=0)
        send(engine, "pays", at, at + 4)
        world.clock.advance(1000)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 7})
    engine.archive(everything=True)
    return engine


def by_key(engine: Store, topic: str, number: int) -> list[int]:
    answer = engine.query(Query(topic, f"key-{number}", EVER.from_ms, EVER.to_ms))
    assert answer.coverage.complete
    return numbers_of(answer.messages)


def test_everything_archived_is_answered_by_key_time_and_pull(world: World) -> None:
    filled(world).close()
    engine = world.open("b", restore=True)
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(60))
    assert sorted(numbers_of(read_all(engine, "pays", 0) + read_all(engine, "pays", 1))) == list(range(60))
    assert [by_key(engine, "orders", number) for number in (0, 31, 59)] == [[0], [31], [59]]
    found = engine.query(Query("pays", None, EVER.from_ms, EVER.to_ms, limit=100))
    assert sorted(numbers_of(found.messages)) == list(range(60))
    first_ms = engine.pull("orders", 0, 8, 1).messages[0].record.store_ms
    assert engine.offset_by_time("orders", 0, first_ms, Boundary.LOWER) == 8
    assert engine.check(deep=True) == []


def test_offsets_go_on_far_beyond_what_anybody_saw(world: World) -> None:
    old = filled(world)
    log_end, next_topic = old.stats()["log_end"], world.state().next_topic_id
    assert isinstance(log_end, int)
    old.close()
    engine = world.open("b", restore=True)
    assert send(engine, "orders", 60, 61, queue_id=0) == [60 + QUEUE_STEP]
    assert send(engine, "orders", 61, 62, queue_id=1) == [QUEUE_STEP], "nobody saw a message of this one"
    engine.create_topic("orders", 6)
    assert send(engine, "orders", 62, 63, queue_id=5) == [QUEUE_STEP], "nor of a queue that was not there"
    assert send(engine, "new", 0, 1, queue_id=0) == [QUEUE_STEP]
    assert engine.topic("new").topic_id == next_topic + TOPIC_ID_STEP
    begin = engine.stats()["log_begin"]
    assert isinstance(begin, int)
    assert log_end + LOG_STEP < begin <= log_end + LOG_STEP + 2 * 4096
    assert begin % 4096 == 0


def test_a_consumer_goes_over_the_gap_in_both_tiers(world: World) -> None:
    filled(world).close()
    engine = world.open("b", restore=True)
    send(engine, "orders", 60, 70, queue_id=0)
    gap = engine.pull("orders", 0, 60, 10)
    assert (gap.status, gap.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 60 + QUEUE_STEP)
    inside = engine.pull("orders", 0, 61, 10)
    assert (inside.status, inside.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 60 + QUEUE_STEP)
    assert (inside.min_offset, inside.max_offset) == (0, 70 + QUEUE_STEP)
    assert engine.topic("orders").queues[0].gaps == [(60, 60 + QUEUE_STEP)]
    assert numbers_of(read_all(engine, "orders", 0, 58)) == list(range(58, 70))
    engine.archive(everything=True, drop_hot=True)
    assert numbers_of(read_all(engine, "orders", 0, 58)) == list(range(58, 70))
    assert engine.pull("orders", 0, 61, 10).next_offset == 60 + QUEUE_STEP
    archived = Fetcher(STORE_ID, None, world.manifest())
    assert archived.declared_gaps("orders", 0) == [(60, 60 + QUEUE_STEP)]
    assert by_key(engine, "orders", 65) == [65]
    assert engine.check(deep=True) == []


def test_a_group_goes_on_in_the_queues_of_other_stores_too(world: World) -> None:
    old = filled(world)
    theirs = ("orders", "store-b", 3)
    old.groups.elsewhere = GivenQueues(100, {"store-b": {"orders": 4}})
    old.groups.commit("billing", {theirs: 41})
    old.archive(everything=True)
    old.close()
    engine = world.open("b", restore=True)
    assert engine.groups.committed("billing").offsets == {("orders", engine.store_id, 0): 7, theirs: 41}


def test_groups_go_on_from_their_committed_offset(world: World) -> None:
    old = filled(world)
    member = old.groups.join("billing", ["orders"])
    old.archive(everything=True)
    old.close()
    engine = world.open("b", restore=True)
    assert engine.groups.committed("billing").offsets == {("orders", engine.store_id, 0): 7}
    assert engine.groups.committed("billing").generation > member.generation
    (queue,) = [each for each in engine.groups.describe("billing").queues if each.queue_id == 0]
    assert queue.lag == 53, "what no message will ever have is nothing to consume"
    engine.groups.commit("billing", {("orders", engine.store_id, 0): engine.pull("orders", 0, 60, 1).next_offset})
    (queue,) = engine.groups.describe("billing").queues
    assert queue.lag == 0


def messages_of(engine: Store, topic: str) -> list[int | None]:
    return [queue.messages for queue in engine.topic(topic).queues]


def test_only_messages_are_counted_after_a_restore_and_after_another(world: World) -> None:
    """A consumer is where it was: what it has to do is what is there, not what lies between the offsets."""
    filled(world).close()
    sent = 60
    for volume in "bcd":
        engine = world.open(volume, restore=True)
        assert engine.group_lags(9) == {"billing": sent - 7}
        send(engine, "orders", sent, sent + 10, queue_id=0)
        sent += 10
        (queue,) = engine.groups.describe("billing").queues
        assert engine.group_lags(9) == {"billing": sent - 7} == {"billing": queue.lag}
        assert messages_of(engine, "orders")[0] == sent
        assert engine.topic("pays").messages == 60
        engine.archive(everything=True)
        engine.close()
    cold = Archive.open(URL, settings=world.settings, store_id=STORE_ID, objects=world.objects)
    assert {topic.name: topic.messages for topic in cold.topics()} == {"orders": sent, "pays": 60}


def test_what_expired_before_a_restore_or_after_it_is_no_lag(world: World) -> None:
    old = filled(world)
    old.archive(everything=True, drop_hot=True)
    old.close()
    world.clock.advance(60_000)
    engine = world.open("b", restore=True, settings=small_settings(cold__retention_ms=3_600_000))
    send(engine, "orders", 60, 64, queue_id=0)
    assert engine.group_lags(9) == {"billing": 53 + 4}
    world.clock.advance(3_600_000 + 60_000)
    while engine.removal.run_once():
        pass
    assert engine.pull("orders", 0, 60 + QUEUE_STEP, 1).min_offset == 60 + QUEUE_STEP, "all of the old part is gone"
    assert engine.group_lags(9) == {"billing": 4}
    assert messages_of(engine, "orders")[0] == 4


def test_counts_are_not_known_until_the_archive_tells_what_a_restore_left_out(world: World) -> None:
    """Neither 2^32 messages nor none: nobody can say, and nobody asks at every look."""
    filled(world).close()
    world.open("b", restore=True).close()
    faulty = FaultyObjectStore(world.objects)
    engine = world.open("b", objects=faulty)
    faulty.fail_before("*", "store/manifest/gaps-*", times=None)
    asked = len(faulty.calls)
    for _ in range(20):
        assert engine.group_lags(9) == {}
        (queue,) = engine.groups.describe("billing").queues
        assert (queue.lag, queue.max_offset) == (None, 60 + QUEUE_STEP)
        assert [group.lag for group in engine.groups.all()] == [None]
        assert messages_of(engine, "orders") == [None, None]
    assert sum("gaps-" in call.key for call in faulty.calls[asked:]) == 1
    faulty.heal()
    world.clock.advance(60_000)
    assert engine.group_lags(9) == {"billing": 53}
    assert [group.lag for group in engine.groups.all()] == [53]
    assert messages_of(engine, "orders")[0] == 60
    engine.close()
    faulty.die()
    silent = world.open("b", objects=faulty)
    assert silent.group_lags(9) == {}
    assert silent.topic("orders").messages is None


def test_a_look_at_the_lags_asks_the_archive_about_a_few_queues_only(world: World) -> None:
    engine = world.open("a")
    engine.create_topic("orders", 20)
    for queue_id in range(20):
        send(engine, "orders", queue_id, queue_id + 1, queue_id=queue_id)
    engine.groups.commit("billing", {("orders", engine.store_id, queue_id): 0 for queue_id in range(20)})
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    faulty = FaultyObjectStore(world.objects)
    again = world.open("a", objects=faulty)
    looks = []
    for _ in range(7):
        asked = len(faulty.calls)
        assert again.group_lags(9) == {"billing": 20}
        looks.append(len(faulty.calls) - asked)
    assert max(looks) <= 4 * 8, "each question reads a few pages"
    assert looks[-2:] == [0, 0], "nothing is asked twice"


def test_what_was_archived_but_not_indexed_is_indexed(world: World) -> None:
    faulty = FaultyObjectStore(world.objects)
    engine = world.open("a", objects=faulty)
    for at in range(0, 60, 4):
        send(engine, "orders", at, at + 4, queue_id=0)
    faulty.fail_before("upload", "store/index/*", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        engine.archive(everything=True)
    head = world.head()
    assert head.indexed_to < head.archived_to
    again = world.open("b", restore=True)
    assert [by_key(again, "orders", number) for number in range(60)] == [[number] for number in range(60)]
    assert again.check(deep=True) == []
    assert not world.fs.exists(world.place("b") / "restore")


def test_indexing_from_the_archive_passes_over_removed_records(world: World) -> None:
    faulty = FaultyObjectStore(world.objects)
    engine = world.open("a", objects=faulty)
    engine.create_topic("secret", 1)
    topics = engine._hot.topics
    topics.set_options(topics.get("secret"), archive=False, cold_retention_ms=None, hold=False)
    for at in range(0, 40, 2):
        send(engine, "secret", at, at + 1)
        send(engine, "orders", at, at + 2)
        send(engine, "secret", at, at + 2)
    faulty.fail_before("upload", "store/index/*", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        engine.archive(everything=True)
    again = world.open("b", restore=True)
    assert [by_key(again, "orders", number) for number in range(40)] == [[number] for number in range(40)]
    assert by_key(again, "secret", 4) == []
    assert again.check(deep=True) == []


def test_the_archive_read_alone_goes_over_the_gap_too(world: World) -> None:
    filled(world).close()
    engine = world.open("b", restore=True)
    end = 60 + QUEUE_STEP
    cold = Archive.open(URL, settings=world.settings, store_id=STORE_ID, objects=world.objects)
    assert (cold.pull("orders", 0, 60, 9).next_offset, cold.pull("orders", 0, end, 9).status) == (
        end, PullStatus.NO_NEW_MESSAGE,
    )  # fmt: skip
    send(engine, "orders", 60, 64, queue_id=0)
    engine.archive(everything=True)
    assert cold.pull("orders", 0, 61, 9).next_offset == end
    assert numbers_of(cold.pull("orders", 0, end, 9).messages) == [60, 61, 62, 63]
    last_ms = engine.pull("orders", 0, end, 1).messages[0].record.store_ms
    assert cold.offset_by_time("orders", 0, last_ms, Boundary.UPPER) == end + 3
    (orders,) = [topic for topic in cold.topics() if topic.name == "orders"]
    assert (orders.queues[0].min_offset, orders.queues[0].max_offset) == (0, end + 4)


def test_a_restored_volume_archives_and_is_restored_again(world: World) -> None:
    filled(world).close()
    for restored, volume in enumerate("bcd"):
        engine = world.open(volume, restore=True)
        first = 60 + 10 * restored
        send(engine, "orders", first, first + 10, queue_id=0)
        engine.archive(everything=True, drop_hot=volume == "c")
        assert numbers_of(read_all(engine, "orders", 0)) == list(range(first + 10))
        assert engine.check(deep=True) == []
        engine.close()
    assert len(world.state().takeovers) == 3


def test_restored_twice_without_a_message_in_between(world: World) -> None:
    filled(world).close()
    first = world.open("b", restore=True)
    seen = send(first, "orders", 60, 62, queue_id=0) + send(first, "new", 0, 1, queue_id=0)
    log_end = first.stats()["log_end"]
    first.close()  # and the disk is lost with it: nothing of it was ever archived
    second = world.open("c", restore=True)
    begin = second.stats()["log_begin"]
    assert isinstance(begin, int)
    assert isinstance(log_end, int)
    assert begin > log_end
    assert send(second, "orders", 70, 71, queue_id=0)[0] > max(seen)
    assert send(second, "new", 0, 1, queue_id=0)[0] > max(seen)
    assert numbers_of(read_all(second, "orders", 0)) == [*range(60), 70]
    manifest = world.manifest()
    gaps = manifest.gaps(manifest.reader(), manifest.refresh())
    assert [gap for gap in gaps if gap[:2] == (1, 0)] == [(1, 0, 60, 60 + 2 * QUEUE_STEP)], "one gap, made longer"
    assert second.check(deep=True) == []


def test_messages_that_were_never_archived_lie_in_the_gap(world: World) -> None:
    old = filled(world)
    send(old, "orders", 60, 65, queue_id=0)
    world.clock.advance(60_000)
    old.run_tiers()
    assert world.state().topics[0].ends[0] == 65
    engine = world.open("b", restore=True)
    assert send(engine, "orders", 70, 71, queue_id=0) == [65 + QUEUE_STEP]
    assert engine.pull("orders", 0, 62, 9).next_offset == 65 + QUEUE_STEP
    assert numbers_of(read_all(engine, "orders", 0)) == [*range(60), 70]
    engine.archive(everything=True, drop_hot=True)
    assert engine.pull("orders", 0, 62, 9).next_offset == 65 + QUEUE_STEP
    assert engine.check(deep=True) == []


def test_gap_of_a_queue_that_was_idle_for_long_begins_where_its_messages_end(world: World) -> None:
    """Its rows lie in pages far back; the state says only where it went on."""
    engine = world.open("a")
    send(engine, "orders", 0, 3, queue_id=1)
    for at in range(0, 400, 10):
        send(engine, "pays", at, at + 10)
        engine.archive(everything=True)
    send(engine, "orders", 3, 5, queue_id=1)
    world.clock.advance(60_000)
    engine.run_tiers()
    assert world.head().log_tree
    again = world.open("b", restore=True)
    manifest = world.manifest()
    assert (1, 1, 3, 5 + QUEUE_STEP) in manifest.gaps(manifest.reader(), manifest.refresh())
    assert [again.pull("orders", 1, offset, 9).next_offset for offset in (3, 4, 5)] == [5 + QUEUE_STEP] * 3
    assert numbers_of(read_all(again, "orders", 1)) == [0, 1, 2]
    assert again.check(deep=True) == []


def test_rocketmqs_own_index_begins_with_the_new_log(world: World) -> None:
    filled(world).close()
    sizes = world.settings.index.model_copy(update={"classic": True, "classic_slots": 20, "classic_items": 40})
    world.settings = world.settings.model_copy(update={"index": sizes})
    engine = world.open("b", restore=True)
    send(engine, "orders", 60, 100, queue_id=0)
    engine.flush()
    assert engine.check() == []
    engine.close()
    assert world.open("b").check() == []


def test_segment_size_is_the_archives(world: World) -> None:
    filled(world).close()
    other = small_settings(hot__segment_bytes=8192)
    engine = world.open("b", restore=True, settings=other)
    engine.close()
    with pytest.raises(StoreMismatchError, match="segment size 4096"):
        world.open("b", settings=other)
    assert numbers_of(read_all(world.open("b"), "orders", 0)) == list(range(60))


def test_store_that_archived_nothing_is_taken_over_all_the_same(world: World) -> None:
    old = world.open("a")
    seen = send(old, "orders", 0, 5, queue_id=0)
    old.groups.commit("billing", {("orders", old.store_id, 0): 2})
    old.run_tiers()
    assert world.head().log == ()
    engine = world.open("b", restore=True)
    assert engine.groups.committed("billing").offsets == {("orders", engine.store_id, 0): 2}
    assert engine.pull("orders", 0, 2, 1).next_offset == 5 + QUEUE_STEP
    assert send(engine, "orders", 5, 6, queue_id=0)[0] > max(seen)
    engine.archive(everything=True)
    assert engine.check(deep=True) == []


def test_store_that_the_archive_does_not_know_is_refused(world: World) -> None:
    with pytest.raises(NotFoundError, match="nothing to restore"):
        world.open("b", restore=True)
    with pytest.raises(NotFoundError, match="nothing to restore"):
        world.open("b", restore=True, store_id=None)
    assert not world.fs.exists(world.place("b"))
    assert world.objects.list("") is not None
    assert list(world.objects.list("")) == []


def test_dead_bucket_never_makes_a_new_store(world: World) -> None:
    filled(world).close()
    faulty = FaultyObjectStore(world.objects)
    faulty.die()
    with pytest.raises(ObjectStoreUnavailableError):
        world.open("b", restore=True, objects=faulty)
    with pytest.raises(ObjectStoreUnavailableError):
        world.open("b", restore=True, objects=faulty, store_id=None)
    assert not world.fs.exists(world.place("b"))


def test_a_dead_bucket_makes_no_new_store_without_a_restore_either(world: World) -> None:
    """Who cannot ask does not know that the store is not there."""
    filled(world).close()
    faulty = FaultyObjectStore(world.objects)
    faulty.die()
    for store_id in (STORE_ID, "other", None):
        with pytest.raises(ObjectStoreUnavailableError, match="once its archive says"):
            world.open("b", objects=faulty, store_id=store_id)
    assert not world.fs.exists(world.place("b"))


@pytest.mark.parametrize("store_id", [STORE_ID, None], ids=["its id", "no id"])
def test_an_empty_directory_without_restore_makes_no_second_store(world: World, store_id: str | None) -> None:
    """The disk is lost, and the command that served it is typed again."""
    filled(world).close()
    before = [info.key for info in world.objects.list("")]
    with pytest.raises(StoreMismatchError) as caught:
        world.open("b", store_id=store_id)
    command = f"`tierlog serve --root {world.place('b')} --cold {URL} --store-id"
    assert f"{command} {STORE_ID} --restore`" in (caught.value.hint or "")
    assert f"{command} ANOTHER-ID`" in (caught.value.hint or "")
    assert not world.fs.exists(world.place("b"))
    assert [info.key for info in world.objects.list("")] == before
    assert numbers_of(read_all(world.open("b", restore=True), "orders", 0)) == list(range(60))


def test_of_several_stores_the_refusal_names_some_and_leaves_the_choice(world: World) -> None:
    for number in range(7):
        world.open(f"v{number}", store_id=f"store-{number}").archive(everything=True)
    with pytest.raises(StoreMismatchError, match=r"the archive has store-0, store-1, .* and more already") as caught:
        world.open("b", store_id=None)
    assert "--store-id ID --restore" in (caught.value.hint or "")


def test_a_first_store_needs_no_id_and_one_beside_it_needs_one(world: World) -> None:
    first = world.open("a", store_id=None)
    first.archive(everything=True)
    first.close()
    assert world.open("a", store_id=None).store_id == first.store_id, "it is opened again as ever"
    world.open("b", store_id="beside").archive(everything=True)
    assert {info.key.partition("/")[0] for info in world.objects.list("")} >= {first.store_id, "beside"}


def test_several_stores_below_the_prefix_need_a_name(world: World) -> None:
    filled(world).close()
    other = world.open("x", store_id="other")
    other.archive(everything=True)
    other.close()
    with pytest.raises(InvalidRequestError, match=r"2 stores lie here: other, store.*--store-id"):
        world.open("b", restore=True, store_id=None)
    assert numbers_of(read_all(world.open("b", restore=True), "orders", 0)) == list(range(60))


def test_the_only_store_below_the_prefix_needs_none(world: World) -> None:
    filled(world).close()
    assert world.open("b", restore=True, store_id=None).store_id == "store"


def test_directory_that_is_not_empty_is_refused(world: World) -> None:
    filled(world).close()
    world.fs.make_dirs(world.place("b") / "commitlog")
    with pytest.raises(InvalidRequestError, match="empty directory"):
        world.open("b", restore=True)


def test_a_restore_that_has_finished_may_be_asked_for_again_and_again(world: World) -> None:
    filled(world).close()
    first = world.open("b", restore=True)
    send(first, "orders", 900, 905)
    first.close()
    volume, log_begin = world.head().volume_id, first.stats()["log_begin"]
    for _ in range(2):
        again = world.open("b", restore=True)
        assert (again.volume_id, again.stats()["log_begin"]) == (volume, log_begin)
        assert set(range(900, 905)) <= set(numbers_of([*read_all(again, "orders", 0), *read_all(again, "orders", 1)]))
        again.archive(everything=True)
        again.close()
    assert world.head().volume_id == volume


def test_a_finished_restore_opens_again_while_the_bucket_is_dead(world: World) -> None:
    filled(world).close()
    world.open("b", restore=True).close()
    dead = FaultyObjectStore(world.objects)
    dead.die()
    assert world.open("b", restore=True, objects=dead).topics() != []


def test_a_volume_that_was_fenced_is_not_served_by_asking_for_a_restore(world: World) -> None:
    filled(world).close()
    world.open("b", restore=True).close()
    world.open("c", restore=True).close()
    for fenced in ("a", "b"):
        with pytest.raises(FencedError):
            world.open(fenced, restore=True)
    world.open("c", restore=True).close()


def test_a_directory_with_another_store_is_not_opened_by_asking_for_a_restore(world: World) -> None:
    filled(world).close()
    with pytest.raises(StoreMismatchError, match="store id"):
        world.open("a", restore=True, store_id="another")
    with pytest.raises(InvalidRequestError, match="already"):
        Store.open(
            world.place("a"), settings=world.settings, cold_url="memory://elsewhere", restore=True, fs=world.fs,
            clock=world.clock, objects=world.objects,
        )  # fmt: skip


def test_another_volume_is_told_of_restore_and_salvage(world: World) -> None:
    filled(world).close()
    with pytest.raises(StoreMismatchError, match="--restore"):
        world.open("b")
    assert not world.fs.exists(world.place("b") / "tierlog" / "store.json")


def test_options_of_topics_survive(world: World) -> None:
    old = filled(world)
    topics = old._hot.topics
    topics.set_options(topics.get("pays"), archive=True, cold_retention_ms=86_400_000, hold=True)
    old.archive(everything=True)
    old.close()
    topic = world.open("b", restore=True)._hot.topics.get("pays")
    assert (topic.archive, topic.cold_retention_ms, topic.hold) == (True, 86_400_000, True)
