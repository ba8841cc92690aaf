"""Where queues begin after a restore: at their starts, those nobody knew of at the volume's first offset."""

from __future__ import annotations

import json

from tests.support.stores.hot_stores import HotWorld, batch
from tierlog.tiering.base.fs import replace_file
from tierlog.tiering.base.types import Durability
from tierlog.tiering.hot.topics import Topic, TopicRegistry, encode_topics
from tierlog.tiering.message.batch import Message

FAR = 1 << 32
#: One that nobody has a file of, in the middle of its first queue file here.
START = FAR + 17


def restored() -> HotWorld:
    """A store as a restore leaves it: queue 0 of one topic had been written, nothing else."""
    world = HotWorld()
    for folder in (world.paths.tmp, world.paths.tierlog):
        world.fs.make_dirs(folder)
    topic = Topic(5, "orders", 2)
    topic.starts, topic.first_offset = {0: START}, FAR
    replace_file(world.fs, world.paths.topics_json, encode_topics([topic], 900, FAR), world.paths.tmp)
    return world


def test_offsets_begin_at_the_start_and_elsewhere_at_the_first_offset() -> None:
    hot = restored().open()
    hot.create_topic("orders", 8)
    messages = [Message("orders", b"a", queue_id=queue_id) for queue_id in (0, 1, 1, 7)]
    result = hot.append(batch(*messages, Message("new", b"b", queue_id=0)), Durability.FLUSHED)
    assert result.queue_offset.tolist() == [START, FAR, FAR + 1, FAR, FAR]
    assert hot.topics.get("new").topic_id == 900
    hot.dispatch()
    view = hot.queues.view(5, 0)
    assert view is not None
    assert (view.first_at_or_above(0), view.next) == (START, START + 1)


def test_starts_survive_with_and_without_messages() -> None:
    world = restored()
    hot = world.open()
    hot.append(batch(Message("orders", b"a", queue_id=0)), Durability.FLUSHED)
    hot.close()
    again = world.open()
    topic = again.topics.get("orders")
    assert [again.next_offset(topic, queue_id) for queue_id in range(2)] == [START + 1, FAR]
    assert again.append(batch(Message("orders", b"c", queue_id=1)), Durability.FLUSHED).queue_offset.tolist() == [FAR]
    assert again.append(batch(Message("later", b"c", queue_id=0)), Durability.FLUSHED).queue_offset.tolist() == [FAR]


def test_a_queue_without_messages_is_not_taken_for_one_that_lost_its_files() -> None:
    world = restored()
    world.open().close()
    assert not world.open().queues.is_below_floors()


def test_a_file_without_starts_is_read() -> None:
    world = HotWorld()
    for folder in (world.paths.tmp, world.paths.tierlog):
        world.fs.make_dirs(folder)
    document = {"format": 1, "next_id": 2, "topics": [{"id": 1, "name": "a", "queues": 1, "floors": {"0": 3}}]}
    replace_file(world.fs, world.paths.topics_json, json.dumps(document).encode(), world.paths.tmp)
    assert TopicRegistry(world.fs, world.paths, 4).get("a").floor(0) == 3
