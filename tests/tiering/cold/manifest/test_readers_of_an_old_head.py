"""A reader held up across a merge or a rewriting, and the sweep after it, goes on from the new head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.index.search.segment_search import SegmentSearch
from tierlog.tiering.base.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.manifest.sweep import Sweep
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.message.batch import Message

COUNT = 300
SETTINGS = {"cold__cache_bytes": 0, "index__slots": 20, "index__items": 60, "query__timeout_ms": 0}


class ReplacedWorld(World):
    """An archive whose owner replaces every object and sweeps, and a reader of the head before."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, settings=tiny_settings(**SETTINGS))
        self.open()
        for number in range(COUNT):
            self.clock.advance(1000)
            self.engine.append([Message("orders", b"%04d" % number + bytes(900), [f"k{number % 7}"], queue_id=0)])
        self.engine.archive(everything=True, drop_hot=True)
        assert self.engine._manifest is not None
        self.own: ManifestStore = self.engine._manifest
        assert self.own.head is not None
        self.old: Head = self.own.head

    def replace_everything(self) -> None:
        """Every segment and index object is put under another name; a day later the sweep takes the old ones."""
        owner = self.other()
        owner._epoch = owner.refresh().epoch
        reader = owner.reader()
        log = list(owner.log_entries(reader, owner.refresh()))
        index = list(owner.all_index_entries(reader, owner.refresh()))
        for entry in log:
            new = self.renamed(entry)
            owner.commit_other(ManifestChange(log=(new,), remove=(entry,)))
        for each in index:
            key = each.key + "-merged"
            self.bucket.put(key, self.bucket.get(each.key)[0])
            owner.commit_other(ManifestChange(index=(replace(each, key=key),), remove=(each,)))
        self.clock.advance(owner.options.grace_ms)
        report = Sweep(owner, self.clock, lambda: None).run(lambda: None)
        assert report.removed >= len(log) + len(index)

    def renamed(self, entry: LogEntry) -> LogEntry:
        key = entry.key + "-rewritten"
        self.bucket.put(key, self.bucket.get(entry.key)[0])
        return replace(entry, key=key)

    def other(self) -> ManifestStore:
        """What another process has of the manifest."""
        keys, options = self.own.keys, self.own.options
        return ManifestStore(self.bucket, keys, randomness=SeededRandomness(4), options=options, clock=self.clock)

    def pulled(self, offset: int = 0) -> list[bytes]:
        """Bodies of the whole queue, page by page."""
        bodies: list[bytes] = []
        while len(bodies) < COUNT - offset:
            page = self.engine.pull("orders", 0, offset + len(bodies), 50)
            assert page.messages
            bodies += [message.record.body[:4] for message in page.messages]
        return bodies

    def found(self) -> list[bytes]:
        """Bodies of everything with one key."""
        answer = self.engine.query(Query("orders", "k3", limit=COUNT))
        assert answer.coverage.complete, answer.coverage.failures
        return [message.record.body[:4] for message in answer.messages]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReplacedWorld]:
    world = ReplacedWorld(tmp_path)
    yield world
    world.engine.close()


ALL = [b"%04d" % number for number in range(COUNT)]
WITH_KEY = [body for number, body in enumerate(ALL) if number % 7 == 3]


def test_a_pull_with_an_old_head_goes_on_from_the_new_one(world: ReplacedWorld) -> None:
    world.replace_everything()
    assert world.own.head is world.old
    assert world.pulled() == ALL
    assert world.own.head is not world.old


def test_a_pull_that_is_held_up_in_the_middle_neither_skips_nor_repeats(world: ReplacedWorld) -> None:
    queue = world.engine._fetcher._cold_queue(world.old, world.old.archived_to, 1, "orders", 0)
    messages = queue.messages(world.old, 0)
    first = [next(messages) for _ in range(100)]
    world.replace_everything()
    seen = [*first, *messages]
    assert [offset for offset, _ in seen] == list(range(COUNT))
    assert [message.record.body[:4] for _, message in seen if message is not None] == ALL


def test_a_query_with_an_old_head_goes_on_from_the_new_one(world: ReplacedWorld) -> None:
    world.replace_everything()
    assert world.own.head is world.old
    assert sorted(world.found()) == WITH_KEY


def test_a_query_that_is_held_up_in_the_middle_finds_everything_once(
    world: ReplacedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Callable[[], None]] = [world.replace_everything]
    original = SegmentSearch._frames_of_hits

    def hold_once(self: SegmentSearch, *arguments: object) -> object:
        if held:
            held.pop()()
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentSearch, "_frames_of_hits", hold_once)
    assert sorted(world.found()) == WITH_KEY
    assert not held


def test_a_search_by_time_and_one_message_with_an_old_head(world: ReplacedWorld) -> None:
    message = world.engine.pull("orders", 0, 200, 1).messages[0]
    world.replace_everything()
    assert world.engine.message(message.record.message_id).record.body == message.record.body
    world.own._head, world.own._etag = world.old, "old"
    answer = world.engine.query(Query("orders", None, limit=COUNT))
    assert answer.coverage.complete, answer.coverage.failures
    assert len(answer.messages) == COUNT


def test_an_object_that_the_newest_head_names_is_missed_by_its_name(world: ReplacedWorld) -> None:
    gone = next(world.own.log_entries(world.own.reader(), world.old))
    world.bucket.delete(gone.key)
    with pytest.raises(ObjectNotFoundError, match=gone.key):
        world.pulled()
    answer = world.engine.query(Query("orders", "k3", limit=COUNT))
    assert not answer.coverage.complete
    assert {failure.object for failure in answer.coverage.failures} == {gone.key}


def test_a_missing_object_is_an_error_after_one_reload_too(world: ReplacedWorld) -> None:
    world.replace_everything()
    fresh = world.other()
    gone = next(fresh.log_entries(fresh.reader(), fresh.refresh()))
    world.bucket.delete(gone.key)
    before = sum(call.operation == "get_if_changed" for call in world.bucket.calls)
    with pytest.raises(ObjectNotFoundError, match=gone.key):
        world.pulled()
    assert sum(call.operation == "get_if_changed" for call in world.bucket.calls) <= before + 2


def test_hot_pulls_do_not_storm_a_dead_archive(world: ReplacedWorld) -> None:
    world.engine.append([Message("orders", b"hot", queue_id=0)])
    world.bucket.die()
    before = len(world.bucket.calls)
    for _ in range(500):
        world.clock.advance(100)
        assert world.engine.pull("orders", 0, COUNT, 10).messages
    assert 3 <= len(world.bucket.calls) - before <= 20
    with pytest.raises(ObjectStoreUnavailableError):
        world.engine.pull("orders", 0, 0, 1)
