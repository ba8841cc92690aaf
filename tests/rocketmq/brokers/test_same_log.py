"""A broker with a producer at full speed is followed by both sources: each store has the broker's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rocketmq.brokers.conftest import Begin
from tests.support.rocketmq.following import Following, check_messages, differing
from tests.tools.rocketmq_clients import SERVERS

MESSAGES = 5_000


@pytest.mark.parametrize("version", SERVERS)
def test_a_broker_at_full_speed_is_followed_byte_for_byte_by_both_sources(
    version: str, begin: Begin, tmp_path: Path
) -> None:
    cluster = begin(version)
    broker = cluster.broker
    cluster.client.send(cluster.topics[0], "first")
    flood = cluster.flood(count=MESSAGES)
    with (
        Following(tmp_path, broker, "by-network") as by_network,
        Following(tmp_path, broker, "by-directory", store=broker.store) as by_directory,
    ):
        sent = flood.end()
        assert len(sent) == MESSAGES, flood.told
        for follower in (by_network, by_directory):
            follower.reach(broker.bounds().max_offset)
            assert follower.broker.lag_bytes == 0
            assert differing(follower.root, broker) == []
            check_messages(follower.store, sent, seed=1)
