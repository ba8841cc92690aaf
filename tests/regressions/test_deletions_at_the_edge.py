"""Deletions where nothing was appended yet, where a volume is lost with tails, and where a disk forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.deleted_topics import has_topic
from tests.support.stores.dumps import column, dumped
from tests.support.stores.hot_stores import append
from tests.support.stores.removal_world import RemovalWorld
from tests.support.stores.tails import TailedStore, take_over
from tests.support.world import ROOT, URL
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.format.manifest import ObjectRef
from tierlog.tiering.format.store_state import StoreState, TopicState
from tierlog.tiering.hot.topics import Topic, TopicDeletion, encode_topics
from tierlog.tiering.lifecycle.tail_recovery import recover_tails
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.transfer import put_verified


def test_a_topic_deleted_before_anything_was_appended_is_gone_from_the_archive_too() -> None:
    world = RemovalWorld()
    engine = world.open()
    engine.create_topic("t", 2)
    engine.archive(everything=True)
    engine.removal.delete_topic("t")
    assert not has_topic(engine, "t")
    assert not has_topic(world.cold(), "t")
    engine.close()
    world.fs = CrashFileSystem()
    restored = Store.open(
        ROOT, settings=world.settings, cold_url=URL, clock=world.clock, fs=world.fs,
        randomness=SeededRandomness(7), objects=world.objects, restore=True,
    )  # fmt: skip
    assert not has_topic(restored, "t")
    restored.create_topic("t", 2)
    world.append(restored, 4)
    world.verify(restored)


def test_a_state_of_an_empty_log_says_what_it_was_given() -> None:
    deleted = TopicState(1, "t", 2, deleted=True, begins=(0, 0), ends=(0, 0))
    state = StoreState((deleted, TopicState(2, "u", 1, ends=(0,))))
    assert StoreState.decode(state.encode(), path="state") == state


def test_files_that_tell_of_a_deletion_can_be_dumped(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_bytes(StoreState((TopicState(1, "t", 1, deleted=True, deleted_below=7, begins=(3,)),)).encode())
    assert column(dumped(state), "topic", "deleted", "deleted_below", "begins") == [("t", True, 7, [3])]
    topics = tmp_path / "topics.json"
    deletion = TopicDeletion(7, {0: 3}, "id", "salt")
    topics.write_bytes(encode_topics([Topic(1, "t", 1, deletion=deletion)], 2))
    assert column(dumped(topics), "topic", "deletion") == [("t", deletion.to_json())]


def test_a_topic_made_again_after_a_deletion_of_an_empty_log_is_told_once() -> None:
    world = RemovalWorld()
    engine = world.open()
    engine.create_topic("t", 2)
    engine.removal.delete_topic("t")
    engine.create_topic("t", 2)
    engine.archive()
    version = engine.stats()["manifest_version"]
    engine.archive()
    assert engine.stats()["manifest_version"] == version
    assert has_topic(world.cold(), "t")


def test_the_lag_of_a_group_counts_nothing_that_was_deleted() -> None:
    world = RemovalWorld()
    engine = world.open()
    engine.append([Message("t", b"x", queue_id=0)] * 10)
    engine.groups.commit("g", {("t", engine.store_id, 0): 2})
    engine.removal.delete_topic("t")
    engine.append([Message("t", b"x", queue_id=0)])
    engine.flush()
    assert engine.group_lags(10) == {"g": 1}


def test_a_disk_that_forgets_hides_nothing_that_is_appended_after_a_deletion() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 6, ("t",))
    engine.removal.delete_topic("t")
    file = world.fs.open(StorePaths(ROOT).segment(0))
    file.write_at(world.sent[-2].offset, bytes(1000))
    file.flush()
    file.close()
    again = world.open()
    (at,) = again.append([Message("t", b"new", queue_id=0)])
    assert again.message(at.message_id).record.body == b"new"
    page = again.pull("t", 0, at.queue_offset, 1)
    assert (page.status, [message.record.body for message in page.messages]) == (PullStatus.FOUND, [b"new"])
    assert at.queue_offset == page.min_offset


def test_a_disk_that_forgets_hides_nothing_that_is_appended_after_an_erasure() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 6, ("t",))
    world.erase(engine, "t")
    file = world.fs.open(StorePaths(ROOT).segment(0))
    file.write_at(world.sent[-2].offset, bytes(1000))
    file.flush()
    file.close()
    again = world.open()
    (at,) = again.append([Message("t", b"new", queue_id=0)])
    assert again.message(at.message_id).record.body == b"new"


@pytest.mark.parametrize("drop_hot", [False, True])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_request_sent_again_after_a_deletion_is_refused_and_not_answered_as_if_it_were_there(
    made_again: bool, drop_hot: bool
) -> None:
    world = RemovalWorld()
    engine = world.open()
    key, sent = IdempotencyKey("p"), [Message("t", b"first", queue_id=0)]
    engine.append(sent, key=key)
    engine.removal.delete_topic("t")
    if made_again:
        engine.append([Message("t", b"other", queue_id=0)])
    if drop_hot:
        engine.archive(everything=True, drop_hot=True)
    for again in (engine, world.open()):
        with pytest.raises(ConflictError, match="erased"):
            again.append(sent, key=key)
    (at,) = again.append([Message("t", b"second", queue_id=0)], key=IdempotencyKey("p", 1))
    assert again.message(at.message_id).record.body == b"second"


def test_a_hold_keeps_nothing_hot_that_was_deleted_before() -> None:
    world = RemovalWorld()
    engine = world.open()
    engine.create_topic("t", 2)
    engine.removal.configure("t", archive=False)
    world.append(engine, 30, ("t",))
    engine.removal.delete_topic("t")
    engine.archive(everything=True)
    begin = engine._hot.log.end
    world.append(engine, 30, ("t",))
    engine.removal.configure("t", hold=True)
    engine.archive(everything=True, drop_hot=True)
    assert engine._hot.border >= begin


def recovered(*, made_again: bool) -> TopicState:
    """What the state says of a deleted topic, whose last records are in one tail with later ones of another."""
    tailed = TailedStore()
    append(tailed.hot, Message("gone", b"old", queue_id=0))
    below = tailed.hot.flush()
    append(tailed.hot, Message("orders", b"later", queue_id=0))
    if made_again:
        append(tailed.hot, Message("gone", b"new", queue_id=0))
    tailed.writer.want(tailed.hot.log.flushed)
    tailed.run()
    told = StoreState((TopicState(1, "gone", 4, deleted=True, deleted_below=below, begins=(1, 0, 0, 0)),)).encode()
    key = tailed.manifest.keys.state("0123456789abcdef")
    ref = ObjectRef(key, len(told), put_verified(tailed.manifest.objects, key, told), len(told))
    tailed.manifest.commit(ManifestChange(state=ref), tailed.head)
    manifest, head = take_over(tailed)
    found = recover_tails(manifest, head, tailed.hot_world.fs, Path("/restore"), SeededRandomness(5))
    return manifest.state(manifest.reader(), found.head).topics[0]


def test_tails_from_before_a_deletion_do_not_make_the_topic_again() -> None:
    assert recovered(made_again=False).deleted


def test_tails_from_behind_a_deletion_do() -> None:
    state = recovered(made_again=True)
    assert (state.deleted, state.begins) == (False, (1, 0, 0, 0))
