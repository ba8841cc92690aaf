"""Pulls from both tiers: every status, tag filter, the border in the middle, and a cold tier that does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stores.power_world import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import InvalidRequestError, ObjectStoreUnavailableError, TopicNotFoundError
from tierlog.tiering.base.types import PullStatus, Tier
from tierlog.tiering.message.batch import Message
from tierlog.tiering.read.fetcher import Fetcher
from tierlog.tiering.read.pull_result import PullResult

COUNT = 100


class TaggedWorld(World):
    """An engine on a memory archive, 100 messages in one queue, tags a and b in turn."""

    def __init__(self) -> None:
        super().__init__(settings=tiny_settings(4096))
        self.count = 0
        self.open()
        self.more(COUNT)

    def more(self, count: int) -> None:
        for _ in range(count):
            number = self.count
            self.count += 1
            tag = "ab"[number % 2]
            self.engine.append([Message("orders", b"%04d" % number + b"x" * 60, (), tag, queue_id=0)])

    def cold_only(self) -> Fetcher:
        return Fetcher("store", None, self.manifest(self.bucket))


@pytest.fixture
def store() -> TaggedWorld:
    return TaggedWorld()


def bodies(result: PullResult) -> list[int]:
    return [int(message.record.body[:4]) for message in result.messages]


def pull(store: TaggedWorld, offset: int, limit: int = 10, tag: str | None = None) -> PullResult:
    return store.engine.pull("orders", 0, offset, limit, tag)


@pytest.mark.parametrize("tier", ["hot", "cold", "both", "cold only"])
def test_statuses(store: TaggedWorld, tier: str) -> None:
    if tier != "hot":
        store.archive()
    if tier == "both":
        store.more(20)
    end = COUNT + 20 * (tier == "both")
    target = store.cold_only() if tier == "cold only" else store.engine

    def at(offset: int, limit: int = 10) -> tuple[PullStatus, int, int, int, list[int]]:
        found = target.pull("orders", 0, offset, limit)
        return found.status, found.next_offset, found.min_offset, found.max_offset, bodies(found)

    assert at(0) == (PullStatus.FOUND, 10, 0, end, list(range(10)))
    assert at(end - 3) == (PullStatus.FOUND, end, 0, end, [end - 3, end - 2, end - 1])
    assert at(end) == (PullStatus.NO_NEW_MESSAGE, end, 0, end, [])
    assert at(end + 1) == (PullStatus.OFFSET_TOO_LARGE, end, 0, end, [])
    assert at(end + 1000) == (PullStatus.OFFSET_TOO_LARGE, end, 0, end, [])
    assert at(-1) == (PullStatus.OFFSET_TOO_SMALL, 0, 0, end, [])
    assert at(-1000)[0] is PullStatus.OFFSET_TOO_SMALL


class Looks:
    """Counts how often the archive is asked where a queue begins, and fails if told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fails = False
        look = Fetcher._archived_first

        def counted(*given: Any) -> int:
            self.count += 1
            if self.fails:
                raise ObjectStoreUnavailableError("down")
            return look(*given)

        monkeypatch.setattr(Fetcher, "_archived_first", counted)


def test_where_an_archived_queue_begins_and_ends_is_looked_up_once_for_each_version_of_the_head(
    store: TaggedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    store.archive()
    reader = store.cold_only()
    for offset in (0, COUNT - 3, COUNT, COUNT + 1, -1):
        found = reader.pull("orders", 0, offset, 1)
        assert (found.min_offset, found.max_offset) == (0, COUNT)
    assert looks.count == 1
    store.more(20)
    store.archive()
    found = reader.pull("orders", 0, COUNT, 10)
    assert (found.status, found.min_offset, found.max_offset) == (PullStatus.FOUND, 0, COUNT + 20)
    assert looks.count == 2


def test_a_beginning_that_could_not_be_learnt_is_asked_for_again(
    store: TaggedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    store.archive()
    reader = store.cold_only()
    looks.fails = True
    assert reader.pull("orders", 0, 0, 1).status is PullStatus.FOUND
    looks.fails = False
    for _ in range(2):
        assert reader.pull("orders", 0, 0, 1).min_offset == 0
    assert looks.count == 2


def test_the_border_in_the_middle(store: TaggedWorld) -> None:
    store.archive()
    store.more(50)
    found: list[int] = []
    tiers: list[Tier] = []
    offset = 0
    while True:
        result = pull(store, offset, 7)
        if result.status is not PullStatus.FOUND:
            break
        assert len({message.tier for message in result.messages}) == 1, "one answer comes from one tier"
        found += bodies(result)
        tiers += [message.tier for message in result.messages]
        offset = result.next_offset
    assert result.status is PullStatus.NO_NEW_MESSAGE
    assert found == list(range(150))
    assert tiers == [Tier.COLD] * COUNT + [Tier.HOT] * 50
    assert pull(store, COUNT - 3, 10).next_offset == COUNT


def test_both_tiers_give_identical_records(store: TaggedWorld) -> None:
    hot = [message.record for message in pull(store, 0, 1000).messages]
    store.archive()
    cold = pull(store, 0, 1000).messages
    assert {message.tier for message in cold} == {Tier.COLD}
    assert [message.record for message in cold] == hot


@pytest.mark.parametrize("is_cold", [False, True])
def test_tag_filter(store: TaggedWorld, is_cold: bool) -> None:
    if is_cold:
        store.archive()
    even = pull(store, 0, 10, "a")
    assert (even.status, bodies(even), even.next_offset) == (PullStatus.FOUND, list(range(0, 20, 2)), 19)
    assert bodies(pull(store, 19, 10, "a")) == list(range(20, 40, 2))
    none = pull(store, 0, 10, "c")
    assert (none.status, none.next_offset, none.messages) == (PullStatus.NO_MATCHED_MESSAGE, COUNT, [])
    last = pull(store, 99, 10, "a")
    assert (last.status, last.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, COUNT)
    for everything in ("", "*"):
        assert bodies(pull(store, 0, 3, everything)) == [0, 1, 2]
    for expression in ("a || b", "b||a", " a|| b ||"):
        assert bodies(pull(store, 0, 3, expression)) == [0, 1, 2]
    assert bodies(pull(store, 0, 2, "c||b")) == [1, 3]
    for wrong in ("||", " || ", " ", "||".join(map(str, range(101)))):
        with pytest.raises(InvalidRequestError):
            pull(store, 0, 3, wrong)


def test_tag_filter_compares_the_text_behind_equal_hashes(store: TaggedWorld) -> None:
    store.engine.append([Message("tags", b"1", (), "Aa", queue_id=0), Message("tags", b"2", (), "BB", queue_id=0)])
    found = store.engine.pull("tags", 0, 0, 10, "BB")
    assert [message.record.body for message in found.messages] == [b"2"]
    assert found.next_offset == 2


def test_limit_zero_and_bytes(store: TaggedWorld) -> None:
    assert pull(store, 5, 0).messages == []
    assert pull(store, 5, 0).next_offset == 5
    assert len(pull(store, 0, 1_000_000).messages) == COUNT


def test_unknown_topic_or_queue(store: TaggedWorld) -> None:
    store.archive()
    for target in (store.engine, store.cold_only()):
        for topic, queue_id in (("nobody", 0), ("orders", 99), ("orders", -1)):
            with pytest.raises(TopicNotFoundError):
                target.pull(topic, queue_id, 0, 10)


def test_an_empty_queue(store: TaggedWorld) -> None:
    found = store.engine.pull("orders", 1, 0, 10)
    assert (found.status, found.min_offset, found.max_offset) == (PullStatus.NO_NEW_MESSAGE, 0, 0)
    assert store.engine.pull("orders", 1, 1, 10).status is PullStatus.OFFSET_TOO_LARGE


def test_hot_reading_goes_on_while_the_cold_tier_is_dead(store: TaggedWorld) -> None:
    store.archive()
    store.more(30)
    store.bucket.die()
    found = pull(store, COUNT + 5)
    assert (found.status, bodies(found)) == (PullStatus.FOUND, list(range(COUNT + 5, COUNT + 15)))
    assert pull(store, COUNT + 30).status is PullStatus.NO_NEW_MESSAGE
    store.bucket.revive()
    assert bodies(pull(store, COUNT - 2)) == [COUNT - 2, COUNT - 1]


def test_hot_reading_goes_on_in_a_store_opened_without_its_archive(store: TaggedWorld) -> None:
    store.archive()
    store.more(30)
    store.engine.close()
    store.bucket.die()
    store.engine = store.open()
    assert store.engine.cold_error is not None
    found = pull(store, COUNT + 5)
    assert (found.status, len(found.messages)) == (PullStatus.FOUND, 10)
    assert store.engine.append([Message("orders", b"x", queue_id=0)])[0].queue_offset == COUNT + 30


def test_cold_reading_fails_loudly_while_the_cold_tier_is_dead(store: TaggedWorld) -> None:
    store.archive()
    store.more(5)
    store.bucket.die()
    with pytest.raises(ObjectStoreUnavailableError):
        pull(store, 0)
    store.bucket.revive()
    store.bucket.fail_before("get_range", "*/log/*", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        pull(store, 0)


def test_cold_reading_in_a_store_opened_without_its_archive_is_not_taken_for_nothing_there(store: TaggedWorld) -> None:
    store.archive()
    store.more(5)
    store.engine.close()
    store.bucket.die()
    store.engine = store.open()
    with pytest.raises(ObjectStoreUnavailableError):
        pull(store, 0)


def test_offsets_count_both_tiers(store: TaggedWorld) -> None:
    store.archive()
    store.more(5)
    (queue, *others) = store.engine.topic("orders").queues
    assert (queue.min_offset, queue.max_offset) == (0, COUNT + 5)
    assert all((each.min_offset, each.max_offset) == (0, 0) for each in others)
    assert store.cold_only().offsets("orders", 0) == (0, COUNT)


def test_offsets_are_the_hot_tiers_where_the_archive_cannot_be_read(store: TaggedWorld) -> None:
    store.archive()
    store.more(5)
    store.engine.close()
    store.bucket.die()
    store.engine = store.open()
    queue = store.engine.topic("orders").queues[0]
    assert (queue.min_offset, queue.max_offset) == (COUNT, COUNT + 5)
    store.bucket.revive()
    assert bodies(pull(store, 0)) == list(range(10)), "the pull that needs the archive looks for it itself"
    assert store.engine.topic("orders").queues[0].min_offset == 0


def test_offsets_of_queues_outside_the_topic(store: TaggedWorld) -> None:
    for queue_id in (-1, 99):
        with pytest.raises(TopicNotFoundError):
            store.engine._fetcher.offsets("orders", queue_id)


def test_a_border_that_rose_before_there_was_an_archive(store: TaggedWorld) -> None:
    fetcher = Fetcher("store", store.engine._hot, store.cold_only()._manifest)
    store.engine._hot.roll()
    store.more(1)
    store.engine._hot.dispatch()
    store.engine._hot.remove_below(store.engine._hot.log.last_base, forget=lambda _: None)
    found = fetcher.pull("orders", 0, 0, 10)
    assert (found.status, found.min_offset) == (PullStatus.OFFSET_TOO_SMALL, COUNT)


def test_a_query_without_the_archive_says_that_it_is_not_complete(store: TaggedWorld) -> None:
    store.archive()
    store.more(5)
    store.engine.close()
    store.bucket.die()
    store.engine = store.open()
    answer = store.engine.query(Query("orders", limit=1000))
    assert [int(message.record.body[:4]) for message in answer.messages] == list(range(COUNT + 4, COUNT - 1, -1))
    assert not answer.coverage.complete
    store.bucket.revive()
    answer = store.engine.query(Query("orders", limit=1000))
    assert (len(answer.messages), answer.coverage.complete) == (COUNT + 5, True)
