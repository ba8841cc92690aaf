"""What must be true of a store after a topic was deleted, by every way of reading it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.stores.removal_world import Erased, RemovalWorld, is_found
from tierlog.index.search.query import Query
from tierlog.service.archive.readers import StoreReader
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import END_OF_TIME_MS, Boundary


def note_deletion(world: RemovalWorld, topic: str) -> None:
    """All that was sent of a topic is gone."""
    world.erased.append(Erased(topic, None, 0, END_OF_TIME_MS, len(world.sent)))


def has_topic(reader: StoreReader, topic: str) -> bool:
    """Whether it is listed."""
    return topic in [each.name for each in reader.topics()]


def verify_gone(reader: StoreReader, world: RemovalWorld, topic: str) -> None:
    """The topic is listed nowhere, every read of it says that there is none, and no message of it has an id."""
    assert not has_topic(reader, topic)
    ways: list[Callable[[], object]] = [
        lambda: reader.topic(topic),
        lambda: reader.query(Query(topic)),
        lambda: reader.query(Query(topic, "k0")),
        lambda: reader.pull(topic, 0, 0, 10),
        lambda: reader.offset_by_time(topic, 0, 0, Boundary.LOWER),
    ]
    for way in ways:
        with pytest.raises(TopicNotFoundError):
            way()
    if isinstance(reader, Store):
        with pytest.raises(TopicNotFoundError), reader.hot_keys(topic):
            pass
        for one in world.sent:
            assert is_found(reader, one.message_id) == (one.message.topic != topic)


def verify_others(engine: Store, world: RemovalWorld, topic: str) -> None:
    """Everything but the deleted topic is as it was."""
    sent, world.sent = world.sent, [one for one in world.sent if one.message.topic != topic]
    try:
        world.verify(engine)
    finally:
        world.sent = sent
