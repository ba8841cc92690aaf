"""A deleted topic is gone for every reader of both tiers, and its queues never begin again below their old ends."""

from __future__ import annotations

import json

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.deleted_topics import has_topic, note_deletion, verify_gone, verify_others
from tests.support.stores.removal_world import RemovalWorld, asked, bodies, filled, pulled
from tests.support.world import ROOT
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    ConflictError,
    ObjectStoreUnavailableError,
    TopicHeldError,
    TopicNotFoundError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.format.section import decode_head, whole_section
from tierlog.tiering.format.store_state import StoreState, TopicState
from tierlog.tiering.hot.topics import Topic, TopicDeletion, encode_topics
from tierlog.tiering.message.batch import Message


def test_a_deleted_topic_is_gone_for_every_reader_and_its_bytes_leave_the_archive() -> None:
    world = filled()
    engine = world.open()
    done = engine.removal.delete_topic("t")
    assert done["deleted"]
    assert done["receipt"]["matched"] == {"hot": done["receipt"]["matched"]["hot"],
                                          "cold": 38 - done["receipt"]["matched"]["hot"], "complete": True}  # fmt: skip
    verify_gone(engine, world, "t")
    verify_gone(world.cold(), world, "t")
    verify_others(engine, world, "t")
    world.finish(engine)
    verify_gone(engine, world, "t")
    verify_others(engine, world, "t")
    for one in world.sent:
        assert world.bucket_holds(one.message.body) == (one.message.topic != "t")
    assert engine.removal.receipt(done["tombstone_id"])["state"] == "rewritten"
    assert engine.check(deep=True) == []
    engine.close()
    again = world.open()
    verify_gone(again, world, "t")
    verify_others(again, world, "t")
    again.archive(everything=True, drop_hot=True)
    verify_gone(again, world, "t")
    assert again.check(deep=True) == []


@pytest.mark.parametrize(
    "wanted", ["cold", *(pytest.param(each, marks=pytest.mark.slow) for each in ("hot", "archived"))]
)
def test_a_topic_made_again_begins_behind_its_old_ends_and_shows_nothing_of_before(wanted: str) -> None:
    world = filled()
    engine = world.open()
    before = {queue.queue_id: queue.max_offset for queue in engine.topic("t").queues}
    done = engine.removal.delete_topic("t")
    assert {queue["queue_id"]: queue["next_offset"] for queue in done["queues"]} == before
    note_deletion(world, "t")
    world.append(engine, 16)
    if wanted != "hot":
        engine.archive(everything=True, drop_hot=wanted == "cold")
    world.append(engine, 2)
    if wanted != "hot":
        engine.archive(everything=True, drop_hot=wanted == "cold")
    engine.close()
    engine = world.open()
    world.verify(engine)
    for queue in engine.topic("t").queues:
        assert queue.min_offset == before[queue.queue_id]
        early = engine.pull("t", queue.queue_id, 0, 10)
        assert (early.status, early.min_offset) == (PullStatus.OFFSET_TOO_SMALL, before[queue.queue_id])
        assert engine.offset_by_time("t", queue.queue_id, 0, Boundary.LOWER) == before[queue.queue_id]
        assert engine.offset_by_time("t", queue.queue_id, world.sent[5].store_ms, Boundary.UPPER) == 0
    world.finish(engine)
    world.verify(engine)
    assert engine.check(deep=True) == []
    if wanted != "hot":
        cold = world.cold()
        for queue in cold.topic("t").queues:
            assert queue.min_offset == before[queue.queue_id]
            assert cold.offset_by_time("t", queue.queue_id, 0, Boundary.LOWER) == before[queue.queue_id]


@pytest.mark.slow
def test_a_topic_can_be_deleted_again_and_again() -> None:
    world = filled()
    engine = world.open()
    for _ in range(3):
        engine.removal.delete_topic("t")
        note_deletion(world, "t")
        verify_gone(engine, world, "t")
        world.append(engine, 8)
        world.verify(engine)
        engine.archive(everything=True)
    world.finish(engine)
    world.verify(engine)
    assert len(engine.removal.receipts()) == 3
    assert engine.check(deep=True) == []


def test_a_second_deletion_finds_no_such_topic() -> None:
    engine = filled().open()
    engine.removal.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        engine.removal.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        engine.removal.delete_topic("never-there")


def test_a_topic_on_hold_is_not_deleted() -> None:
    world = filled()
    engine = world.open()
    engine.removal.configure("t", hold=True)
    for dry_run in (True, False):
        with pytest.raises(TopicHeldError):
            engine.removal.delete_topic("t", dry_run=dry_run)
    world.verify(engine)


def test_a_dry_run_changes_nothing() -> None:
    world = filled()
    engine = world.open()
    plan = engine.removal.delete_topic("t", dry_run=True)
    assert plan["deleted"] is False
    assert [queue["next_offset"] for queue in plan["queues"]] == [
        queue.max_offset for queue in engine.topic("t").queues
    ]
    world.verify(engine)
    assert engine.removal.receipts() == []


def test_a_store_without_an_archive_deletes_topics_too() -> None:
    world = RemovalWorld(url=None)
    world_objects = world.objects
    engine = open_without_archive(world)
    engine.append([Message("t", b"old"), Message("u", b"stays")])
    done = engine.removal.delete_topic("t")
    assert (done["deleted"], done["receipt"]) == (True, None)
    assert not has_topic(engine, "t")
    engine.close()
    engine = open_without_archive(world)
    with pytest.raises(TopicNotFoundError):
        engine.query(Query("t"))
    engine.append([Message("t", b"new", queue_id=0)])
    assert asked(engine, Query("t")) == [b"new"]
    assert bodies(pulled(engine, "t")) == {0: [b"new"]}
    assert engine.check() == []
    engine.close()
    # an archive that comes later never gets what was deleted
    world.url = "memory://archive"
    world.objects = world_objects
    engine = world.open()
    engine.archive(everything=True)
    assert not world.bucket_holds(b"old")
    assert world.bucket_holds(b"new")
    world.finish(engine)
    assert asked(world.cold(), Query("t")) == [b"new"]
    assert engine.check(deep=True) == []


def open_without_archive(world: RemovalWorld) -> Store:
    world.fs.kill()
    return Store.open(
        ROOT, settings=world.settings, store_id="store", clock=world.clock, fs=world.fs,
        randomness=SeededRandomness(7),
    )  # fmt: skip


def deleted_while_the_bucket_is_dead() -> tuple[RemovalWorld, Store]:
    world = filled()
    broken = FaultyObjectStore(world.objects)
    engine = world.open(objects=broken)
    engine.query(Query("t"))
    broken.die()
    with pytest.raises(ObjectStoreUnavailableError):
        engine.removal.delete_topic("t")
    return world, engine


def test_a_dead_bucket_delays_only_the_archive_and_asking_again_is_answered() -> None:
    world, engine = deleted_while_the_bucket_is_dead()
    assert not has_topic(engine, "t")
    with pytest.raises(TopicNotFoundError):
        engine.query(Query("t"))
    engine = world.open()  # killed; the bucket is back
    verify_gone(engine, world, "t")
    assert has_topic(world.cold(), "t")
    assert engine.removal.delete_topic("t")["deleted"]
    verify_gone(world.cold(), world, "t")
    world.finish(engine)
    assert engine.check(deep=True) == []


def test_what_the_archive_was_not_told_is_told_in_the_background() -> None:
    world, _ = deleted_while_the_bucket_is_dead()
    engine = world.open()
    engine.run_tiers()
    verify_gone(world.cold(), world, "t")
    (receipt,) = engine.removal.receipts()
    assert receipt["topic"] == "t"


def test_consumers_of_a_deleted_topic_have_nothing_left_and_go_on_when_it_is_made_again() -> None:
    world = filled()
    engine = world.open()
    engine.groups.commit("g", {("t", engine.store_id, 0): 3, ("u", engine.store_id, 0): 2})
    engine.removal.delete_topic("t")
    progress = {(each.topic, each.queue_id): each for each in engine.groups.describe("g").queues}
    assert progress["t", 0].lag is None
    engine.append([Message("t", b"new", queue_id=0)])
    progress = {(each.topic, each.queue_id): each for each in engine.groups.describe("g").queues}
    assert progress["t", 0].lag == 1


def test_versions_that_would_show_a_deleted_topic_again_refuse_its_store() -> None:
    world = filled()
    engine = world.open()
    path = StorePaths(ROOT).topics_json
    assert json.loads(world.fs.read(path))["format"] == 1
    engine.removal.delete_topic("t")
    assert json.loads(world.fs.read(path))["format"] == 2
    assert engine._manifest is not None
    head = engine._manifest.refresh()
    assert head.state is not None
    data, _ = world.objects.get(head.state.key)
    with pytest.raises(UnsupportedFormatError):
        whole_section(data, b"TLSTATE1", 1, path="state")


def test_too_many_open_erasures_refuse_a_deletion_before_anything_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled()
    engine = world.open()
    monkeypatch.setattr("tierlog.tiering.lifecycle.tombstones.MAX_OPEN", 1)
    world.erase(engine, "u", "k1")
    with pytest.raises(ConflictError):
        engine.removal.delete_topic("t")
    world.verify(engine)


def test_topics_are_not_made_again_where_they_are_not_made_on_write() -> None:
    world = RemovalWorld()
    settings = world.settings.model_copy(update={"create_topics": False})
    world.settings = settings
    engine = world.open()
    engine.create_topic("t", 2)
    engine.append([Message("t", b"old")])
    engine.removal.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        engine.append([Message("t", b"lost")])
    engine.create_topic("t", 1)  # fewer than it had is no conflict: it keeps those
    assert len(engine.topic("t").queues) == 2
    engine.append([Message("t", b"new")])
    assert asked(engine, Query("t")) == [b"new"]


def test_the_bytes_of_a_deletion_in_topics_json() -> None:
    deletion = TopicDeletion(8192, {1: 3, 0: 17}, "0a1b", "c0ffee", in_force=False, is_archived=True)
    topic = Topic(4, "t", 2, {0: 17}, deletion=deletion)
    entry = {
        "id": 4, "name": "t", "queues": 2, "floors": {"0": 17}, "starts": {}, "archive": True,
        "cold_retention_ms": None, "hold": False, "archived_from": 0,
        "deletion": {
            "deleted": False, "below": 8192, "begins": {"0": 17, "1": 3}, "tombstone": "0a1b", "salt": "c0ffee",
            "told": True,
        },
    }  # fmt: skip
    document = {"format": 2, "next_id": 5, "first_offset": 0, "topics": [entry]}
    assert encode_topics([topic], 5) == (json.dumps(document, indent=1) + "\n").encode()
    assert TopicDeletion.from_json(deletion.to_json()) == deletion


def test_a_state_object_tells_of_deletions_in_version_2_and_is_as_before_without() -> None:
    plain = StoreState((TopicState(1, "t", 2, ends=(5, 6)),))
    assert decode_head(plain.encode(), b"TLSTATE1", 1, path="state").table["topics"] == [
        {"topic_id": 1, "name": "t", "queues": 2, "archive": True, "cold_retention_ms": None, "hold": False}
    ]
    told = StoreState((*plain.topics, TopicState(2, "u", 1, ends=(9,), deleted=True, deleted_below=77, begins=(9,))))
    for state in (plain, told):
        assert StoreState.decode(state.encode(), path="state") == state
    assert (told.find("u"), [topic.name for topic in told.listed]) == (None, ["t"])
