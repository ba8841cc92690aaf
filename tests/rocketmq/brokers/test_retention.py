"""A broker removes what is archived, and what was not here yet: RocketMQ's own tools find each message once."""

from __future__ import annotations

import random
from pathlib import Path

from tests.rocketmq.brokers.conftest import Begin
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import ask
from tests.support.rocketmq.following import STORE_ID, FollowProcess, differing
from tests.support.rocketmq.real_brokers import CLUSTER, Acknowledged, until
from tests.support.rocketmq.real_clients import BEGIN_MS, ClientError, RealClient, fresh

SEED = 24
SAMPLED = 6
#: Requests that belong to whoever takes and gives messages.
FOREIGN = ("send_message", "send_message_v2", "send_batch_message", "pull_message", "lite_pull_message", "pop_message")


def is_found(client: RealClient, message: Acknowledged) -> bool:
    """Whether Java's client finds it by its key."""
    try:
        return bool(client.do("query", topic=message.topic, key=message.key)["messages"])
    except ClientError:
        return False


def test_each_message_is_found_once_on_both_sides_of_the_border_and_a_gap_is_named(
    begin: Begin, tmp_path: Path
) -> None:
    cluster = begin()
    broker, client = cluster.broker, cluster.client
    follower = FollowProcess(tmp_path, broker, listen=f"127.0.0.1:{free_port()}")
    try:
        follower.start()
        before = cluster.flood(count=3000).end()
        follower.reach(broker.bounds().max_offset)
        followed_to = broker.bounds().max_offset
        follower.kill()
        lost = cluster.flood(count=6000).end()
        border = cluster.remove_segments()
        follower.start()
        after = cluster.flood(count=2000).end()
        follower.reach(broker.bounds().max_offset)
        assert sum(follower.metrics("tierlog_follow_gap_bytes_total").values()) == border - followed_to
        assert differing(follower.root / STORE_ID, broker) == []

        missing = next(each for each in lost if followed_to < each.physical_offset < border)
        answer = ask(follower.url, f"/v1/topics/{missing.topic}/messages?key={missing.key}")
        assert (answer["messages"], answer["coverage"]["complete"]) == ([], False)

        archive = f"tierlog-{CLUSTER}"
        until(
            lambda: archive in client.mqadmin("topicRoute", "-t", before[0].topic), lambda: "the archive is registered"
        )
        chance = random.Random(SEED)
        archived = [each for each in before if each.physical_offset < border]
        until(lambda: is_found(client, archived[0]), lambda: "a client that runs has asked for its routes again")
        for wanted in (*chance.sample(archived, SAMPLED), *chance.sample(after, SAMPLED)):
            found = client.do("query", topic=wanted.topic, key=wanted.key)["messages"]
            assert [(each["key"], each["queue"], each["offset"], each["id"]) for each in found] == [
                (wanted.key, wanted.queue, wanted.offset, wanted.unique_id)
            ]
            printed = client.mqadmin("queryMsgByKey", "-t", wanted.topic, "-k", wanted.key)
            rows = [line.split() for line in printed.splitlines() if not line.startswith("#") and line.strip()]
            assert [row[0] for row in rows] == [wanted.unique_id], printed
        # who produces and consumes beside it knows of it only from routes
        assert client.consumed(after[0].topic, fresh("group"), 100, limit_ms=BEGIN_MS)
        asked = follower.metrics("tierlog_rocketmq_requests_total")
        assert any("query_message" in labels for labels in asked), asked
        assert not [labels for labels in asked for name in FOREIGN if f'"{name}"' in labels]
    finally:
        follower.kill()
