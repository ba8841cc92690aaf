"""A broker with a producer at full speed is followed by both sources: each store has the broker's log."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.rocketmq.brokers.conftest import Begin
from tests.support.rocketmq.direct_follower import DirectFollower, by_directory, by_network
from tests.support.rocketmq.real_brokers import Acknowledged, RealBroker
from tests.tools.rocketmq_clients import SERVERS
from tierlog.index.search.query import Query
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.properties import UNIQ_KEY
from tierlog.tiering.message.stored_message import StoredMessage

MESSAGES = 20_000
SAMPLED = 40


def differing(follower: DirectFollower, broker: RealBroker) -> list[int]:
    """Bases of the broker's segments whose bytes are not those of the follower's."""
    ours, end = StorePaths(follower.root), broker.bounds().max_offset
    wrong = []
    for base, path in broker.segments.items():
        size = min(broker.segment_bytes, end - base)
        if ours.segment(base).read_bytes()[:size] != path.read_bytes()[:size]:
            wrong.append(base)
    return wrong


def check_messages(follower: DirectFollower, sent: list[Acknowledged], seed: int) -> None:
    """Sampled messages are found by key and at their queue's offset, each once and as its producer was told."""
    store = follower.store
    for wanted in random.Random(seed).sample(sent, SAMPLED):
        told = (wanted.queue, wanted.offset, wanted.physical_offset, wanted.unique_id)
        found = store.query(Query(topic=wanted.topic, key=wanted.key)).messages
        at_its_offset = store.pull(wanted.topic, wanted.queue, wanted.offset, 1).messages
        assert [of_record(each) for each in found] == [of_record(each) for each in at_its_offset] == [told]


def of_record(message: StoredMessage) -> tuple[int, int, int, str]:
    """Where it lies, and the id that its producer gave it."""
    record = message.record
    return record.queue_id, record.queue_offset, record.physical_offset, record.properties[UNIQ_KEY]


@pytest.mark.parametrize("version", SERVERS)
def test_a_broker_at_full_speed_is_followed_byte_for_byte_by_both_sources(
    version: str, begin: Begin, tmp_path: Path
) -> None:
    cluster = begin(version)
    broker = cluster.broker
    cluster.client.send(cluster.topics[0], "first")
    flood = cluster.flood(count=MESSAGES)
    with contextlib.ExitStack() as running:
        followers = []
        for follow in (by_network, by_directory):
            followers.append(follow(tmp_path, broker))
            running.callback(followers[-1].close)
        sent = flood.end()
        assert len(sent) == MESSAGES, flood.told
        for follower in followers:
            follower.reach(broker.bounds().max_offset)
            assert differing(follower, broker) == []
            check_messages(follower, sent, seed=1)
