"""A broker with a producer at full speed is followed by both sources: each store has the broker's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rocketmq.brokers.conftest import NEWEST, Begin
from tests.support.rocketmq.following import STORE_ID, Following, FollowProcess, check_messages, differing
from tests.support.rocketmq.real_brokers import Cluster, RealBroker, controller
from tests.support.rocketmq.real_clients import RealClient
from tests.tools.rocketmq_clients import SERVERS, built

MESSAGES = 10_000


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


def test_the_directory_of_a_master_that_a_controller_has_made_is_followed_over_its_restarts(
    client: RealClient, tmp_path: Path
) -> None:
    """It has no slave, so that its checkpoint says nothing but where its log ended when it became master."""
    program = built(SERVERS[NEWEST])
    folder = tmp_path / "controller"
    folder.mkdir()
    with controller(program, folder) as (address, settings):
        broker = RealBroker(program, tmp_path / "broker", address, settings)
        cluster = Cluster(broker, RealClient(client.program, address))
        follower = FollowProcess(tmp_path, broker, store=broker.store)
        try:
            broker.start()
            cluster.client.send(cluster.topics[0], "first")
            follower.start()
            for _ in range(2):
                sent = cluster.flood(count=500).end()
                follower.reach(broker.bounds().max_offset)
                assert differing(follower.root / STORE_ID, broker) == []
                follower.check_found(sent[::50])
                broker.stop()
                broker.start()
        finally:
            follower.kill()
            broker.close()
