"""A broker is killed, loses the end of its log or all of it; a bucket refuses everything; followers are killed then."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from moto.s3.responses import S3Response

from tests.rocketmq.brokers.conftest import Begin
from tests.support.objects.s3_server import S3Server
from tests.support.processes.nodes import pulled
from tests.support.rocketmq.following import STORE_ID, Following, FollowProcess, check_messages, differing
from tests.support.rocketmq.real_brokers import CLOCK, until
from tierlog.index.search.query import Query
from tierlog.service.delivery.timers import Timers
from tierlog.service.follow.followed_broker import FollowState
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.rocketmq.remoting import bounds_in, flushed_below, runtime_info

SEED = int(os.environ.get("TIERLOG_SEED") or 24)
#: How often a follower is killed while its bucket refuses everything.
KILLS = 2


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_broker_that_was_killed_and_lost_the_end_of_its_log_is_followed_on(
    flush: str, begin: Begin, tmp_path: Path
) -> None:
    cluster = begin(flushDiskType=flush)
    broker, chance = cluster.broker, random.Random(f"{SEED} {flush}")
    cluster.client.send(cluster.topics[0], "first")
    with Following(tmp_path, broker, "by-network") as by_network:
        with Following(tmp_path, broker, "by-directory", store=broker.store) as by_directory:
            flood = cluster.flood(bytes=2000)
            cluster.grow(chance.randrange(100_000, 1_500_000))
            broker.kill()
            beside_it = by_directory.hot
        flood.end(now=True)
        # whoever reads its files ends with it; nobody publishes what the broker or who reads has not flushed
        # (of more than its last file, a broker leaves a hole of zeros in its log, and goes on behind it)
        kept = max(by_network.hot.publish_below, beside_it.publish_below)
        broker.lose_end(chance.randint(kept, max(kept, by_network.hot.log.end, beside_it.log.end)))
        broker.start()
        sent = cluster.flood(count=500).end()
        with Following(tmp_path, broker, "by-directory", store=broker.store) as by_directory:
            for follower in (by_network, by_directory):
                follower.reach(broker.bounds().max_offset)
                assert differing(follower.root, broker) == []
                check_messages(follower.store, sent, seed=SEED)


def test_a_broker_that_lost_its_end_while_its_follower_was_killed_is_followed_on(begin: Begin, tmp_path: Path) -> None:
    cluster, chance = begin(), random.Random(f"{SEED} both")
    broker = cluster.broker
    cluster.client.send(cluster.topics[0], "first")
    follower = FollowProcess(tmp_path, broker)
    try:
        follower.start()
        flood = cluster.flood(bytes=2000)
        cluster.grow(chance.randrange(100_000, 1_500_000))
        follower.kill()
        info = runtime_info(broker.client)
        followed, flushed = bounds_in(info).max_offset, flushed_below(info) or 0
        broker.kill()
        flood.end(now=True)
        # what the follower has published, the broker had flushed when it was killed, and is not lost
        kept = max(broker.last_segment(), flushed)
        broker.lose_end(chance.randint(kept, max(kept, followed)))
        broker.start()
        sent = cluster.flood(count=500).end()
        follower.start()
        follower.reach(broker.bounds().max_offset)
        assert differing(follower.root / STORE_ID, broker) == []
        follower.check_found(chance.sample(sent, 20))
    finally:
        follower.kill()


def test_a_follower_killed_while_its_bucket_refuses_everything_goes_on_and_catches_up(
    begin: Begin, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, chance = begin(), random.Random(f"{SEED} refused")
    broker, bucket = cluster.broker, s3_server.new_bucket()
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", s3_server.endpoint_url)
    follower = FollowProcess(tmp_path, broker, f"s3://{bucket}/archive", s3_server.endpoint_url)
    try:
        follower.start()
        first = cluster.flood(count=1000).end()
        follower.reach(broker.bounds().max_offset)
        follower.check_found(chance.sample(first, 5))
        with monkeypatch.context() as full:
            for write in ("put_object", "upload_part"):
                full.setattr(S3Response, write, lambda server: (507, {}, "<Error><Code>QuotaExceeded</Code></Error>"))
            flood = cluster.flood(window=2)  # all of it is archived in the end
            for _ in range(KILLS):
                cluster.grow(500_000)
                follower.kill()
                follower.start()
            sent = flood.end(now=True)
            end = broker.bounds().max_offset
            follower.reach(end)
            follower.check_found(chance.sample(sent, 5))
            archived_to = follower.archived_to()
            assert archived_to < end - end % broker.segment_bytes
        until(lambda: follower.archived_to() >= end - end % broker.segment_bytes, lambda: "the archive catches up")
        assert differing(follower.root / STORE_ID, broker) == []
        follower.check_found(chance.sample(first + sent, 20))
    finally:
        follower.kill()


def test_what_waits_at_a_brokers_levels_of_delay_fires_once_in_the_store_that_takes_its_place(
    begin: Begin, tmp_path: Path
) -> None:
    cluster = begin()
    broker, topic = cluster.broker, cluster.topics[0]
    cluster.client.send(topic, "at-once")
    with Following(tmp_path, broker, "promoted", promote=True, promote_after_ms=1000) as follower:
        follower.reach(broker.bounds().max_offset)
        for level in (2, 4):  # 5 s and 30 s
            cluster.client.send(topic, f"level-{level}", count=5, **{"property.DELAY": str(level)})

        def found(level: int) -> list[int]:
            queries = [Query(topic=topic, key=f"level-{level}-{number}") for number in range(5)]
            return [len(follower.store.query(query).messages) for query in queries]

        until(lambda: found(2) == [1] * 5, lambda: f"the broker sends on what waited for 5 s: {found(2)}")
        assert found(4) == [0] * 5
        broker.stop()
        until(lambda: follower.broker.state is FollowState.PROMOTED, follower.told)
        timers = Timers(follower.store, CLOCK, SystemRandomness())
        timers.start()
        try:
            until(lambda: sum(found(4)) >= 5, lambda: f"what waited for 30 s comes: {found(4)}")
            until(lambda: timers.pending() == 0, lambda: f"{timers.pending()} wait still")
        finally:
            timers.close()
        assert (found(2), found(4)) == ([1] * 5, [1] * 5)


def test_all_that_a_sync_master_acknowledged_is_here_when_its_volume_and_the_replica_are_lost_at_once(
    begin: Begin, tmp_path: Path
) -> None:
    cluster = begin(brokerRole="SYNC_MASTER", inSyncReplicas=2, flushDiskType="SYNC_FLUSH")
    broker = cluster.broker
    follower = FollowProcess(tmp_path, broker, mode="replica")
    try:
        follower.start()
        follower.reach(broker.bounds().max_offset)
        cluster.client.send(cluster.topics[0], "first")
        flood = cluster.flood()
        cluster.grow(300_000)
        follower.kill()  # what was acknowledged until now is durable here, and nothing can be from now on
        broker.kill()
        shutil.rmtree(broker.store)
        acknowledged = flood.end(now=True)
        assert len(acknowledged) > 100, flood.told
        follower.start()
        there = {
            (topic, each["queue_id"], each["queue_offset"], each["physical_offset"])
            for topic in cluster.topics
            for each in pulled(follower.url, topic)
        }
        assert {(each.topic, each.queue, each.offset, each.physical_offset) for each in acknowledged} <= there
        follower.check_found(acknowledged[:: len(acknowledged) // 20])
    finally:
        follower.kill()
