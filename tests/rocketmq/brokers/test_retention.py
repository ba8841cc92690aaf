"""A broker removes what is archived, and what was not here yet: RocketMQ's own tools find each message once."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from tests.rocketmq.brokers.conftest import Begin
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import ask, tierlog
from tests.support.rocketmq.follow_alerts import Scrape, Stretch, check_alerts
from tests.support.rocketmq.following import STORE_ID, FollowProcess, differing
from tests.support.rocketmq.real_brokers import CLUSTER, Acknowledged, until
from tests.support.rocketmq.real_clients import BEGIN_MS, ClientError, RealClient, fresh, java_client, keys
from tests.tools.rocketmq_clients import JAVA_5, built
from tierlog.service.exit_codes import INCOMPLETE

SEED = int(os.environ.get("TIERLOG_SEED") or 24)
SAMPLED = 6
#: What a broker is asked by those who produce and consume, wherever their messages are.
OF_CLIENTS = {"heart_beat", "unregister_client", "get_consumer_list_by_group", "check_client_config"}
#: What look-ups ask: the message, and for who has consumed it.
OF_LOOK_UPS = {"query_message", "query_topic_consume_by_who", "get_consumer_connection_list", "get_consume_stats"}
_HA_STATUS = 907
_MINUTES_AWAY = 180


def is_found(client: RealClient, message: Acknowledged) -> bool:
    """Whether Java's client finds it by its key."""
    try:
        return bool(client.do("query", topic=message.topic, key=message.key)["messages"])
    except ClientError:
        return False


def asked(follower: FollowProcess) -> Counter[str]:
    """Requests at the door by their names."""
    found: Counter[str] = Counter()
    for labels, count in follower.metrics("tierlog_rocketmq_requests_total").items():
        name = re.search('request="([^"]*)"', labels)
        assert name is not None, labels
        found[name[1]] += int(count)
    return found


def check_gap(
    follower: FollowProcess, gap: tuple[int, int], lost: Iterable[Acknowledged], times: tuple[int, int]
) -> None:
    """What the broker removed in ``gap``, between two times, is named by every answer that it belongs into."""
    url, (begin, end) = follower.url, gap
    assert sum(follower.metrics("tierlog_follow_gap_bytes_total").values()) == end - begin
    missing = max((each for each in lost if each.physical_offset < end), key=lambda each: each.physical_offset)
    assert missing.physical_offset >= begin
    topic, words = missing.topic, f"log [{begin}, {end})"
    answer = ask(url, f"/v1/topics/{topic}/messages?key={missing.key}")
    assert answer["messages"] == []
    cursor: str | None = ""
    while cursor is not None:  # a page of newer messages is whole; the one that reaches the gap is not
        asked_for = f"from={times[0]}&to={times[1]}&limit=1000&cursor={cursor}".removesuffix("&cursor=")
        page = ask(url, f"/v1/topics/{topic}/messages?{asked_for}")
        cursor = page["next_cursor"] and quote(page["next_cursor"])
    for coverage in (answer["coverage"], page["coverage"]):
        assert not coverage["complete"], coverage
        assert any(words in str(failure) for failure in coverage["failures"]), coverage
    for question in (("--key", missing.key), ("--from", str(times[0]), "--to", str(times[1]), "--all")):
        told = tierlog("query", topic, *question, "--url", url, endpoint_url="")
        assert told.returncode == INCOMPLETE, told.stderr
        assert words in told.stderr, told.stderr
    # a consumer is told where its queue goes on
    there = [each for each in lost if (each.topic, each.queue) == (topic, missing.queue)]
    page = ask(url, f"/v1/topics/{topic}/queues/{missing.queue}/messages?offset={missing.offset}")
    assert (page["status"], page["messages"]) == ("NO_MATCHED_MESSAGE", [])
    assert page["next_offset"] == min(each.offset for each in there if each.physical_offset >= end)


def check_alerts_of_absence(before: Scrape, after: Scrape, folder: Path) -> None:
    """Nobody can scrape who is stopped or killed: that is its alert. Who is back tells what was lost meanwhile."""
    check_alerts(
        [
            Stretch(10, before),
            Stretch(_MINUTES_AWAY, None, frozenset({"TierlogDown"})),
            Stretch(5, after, frozenset({"TierlogFollowGap"})),
            Stretch(90, after),
        ],
        folder,
    )


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
        followed_to, was = broker.bounds().max_offset, Scrape.of(follower.url)
        follower.kill()
        began_ms = int(time.time() * 1000)
        lost = cluster.flood(count=6000).end()
        ended_ms = int(time.time() * 1000)
        border = broker.remove_segments()
        follower.start()
        after = cluster.flood(count=2000).end()
        follower.reach(broker.bounds().max_offset)
        assert differing(follower.root / STORE_ID, broker) == []
        check_gap(follower, (followed_to, border), [*lost, *after], (began_ms, ended_ms))
        check_alerts_of_absence(was, Scrape.of(follower.url), tmp_path)

        archive = f"tierlog-{CLUSTER}"
        until(
            lambda: archive in client.mqadmin("topicRoute", "-t", before[0].topic), lambda: "the archive is registered"
        )
        chance = random.Random(SEED)
        archived = [each for each in before if each.physical_offset < border]
        until(lambda: is_found(client, archived[0]), lambda: "a client that runs has asked for its routes again")
        sampled = [*chance.sample(archived, SAMPLED), *chance.sample(after, SAMPLED)]
        for wanted in sampled:
            found = client.do("query", topic=wanted.topic, key=wanted.key)["messages"]
            assert [(each["key"], each["queue"], each["offset"], each["id"]) for each in found] == [
                (wanted.key, wanted.queue, wanted.offset, wanted.unique_id)
            ]
            printed = client.mqadmin("queryMsgByKey", "-t", wanted.topic, "-k", wanted.key)
            rows = [line.split() for line in printed.splitlines() if not line.startswith("#") and line.strip()]
            assert [row[0] for row in rows] == [wanted.unique_id], printed
        # in one process it works once: the command keeps the client that it has shut down
        with java_client(built(JAVA_5), "Remoting5", tmp_path, client.address) as other:
            for wanted, asking in ((sampled[0], client), (sampled[-1], other)):
                printed = asking.mqadmin("queryMsgByUniqueKey", "-t", wanted.topic, "-i", wanted.unique_id, "-a")
                assert printed.count("Message Body Path:") == 1, printed
                assert f"[{wanted.key}]" in printed
        by_all = asked(follower)
        assert by_all["query_message"]
        assert set(by_all) <= OF_CLIENTS | OF_LOOK_UPS
    finally:
        follower.kill()


def test_a_consumer_of_what_is_kept_goes_on_where_it_was_when_the_follower_was_killed_and_is_back(
    begin: Begin, tmp_path: Path
) -> None:
    cluster, group = begin(), fresh("replayer")
    broker, client, topic = cluster.broker, cluster.client, cluster.topics[0]
    replayed, kept = f"archive%{topic}", quote(f"archive%{group}")
    follower = FollowProcess(tmp_path, broker, listen=f"127.0.0.1:{free_port()}")

    def consume_new() -> None:
        """What came since, and nothing else."""
        sent = [each.key for each in cluster.flood(count=100).end() if each.topic == topic]
        before = sum(follower.committed(kept).values())
        follower.reach(broker.bounds().max_offset)
        until(lambda: "brokerDatas" in client.mqadmin("topicRoute", "-t", replayed), lambda: "it is registered")
        assert keys(client.consumed(replayed, group, len(sent), limit_ms=BEGIN_MS)) == sorted(sent)
        until(
            lambda: sum(follower.committed(kept).values()) == before + len(sent),
            lambda: f"{len(sent)} more are committed: {follower.committed(kept)}",
        )

    try:
        follower.start()
        consume_new()
        follower.kill()
        follower.start()
        consume_new()
    finally:
        follower.kill()


def test_a_follower_that_was_stopped_past_retention_declares_what_it_missed(begin: Begin, tmp_path: Path) -> None:
    cluster = begin(haHousekeepingInterval=5_000)
    broker = cluster.broker
    follower = FollowProcess(tmp_path, broker)
    try:
        follower.start()
        before = cluster.flood(count=3000).end()
        followed_to = broker.bounds().max_offset
        follower.reach(followed_to)
        was, began_ms = Scrape.of(follower.url), int(time.time() * 1000)
        follower.stop()
        lost = cluster.flood(count=16_000, bytes=2000).end()  # more than the network keeps for who does not read
        ended_ms = int(time.time() * 1000)
        # what it sends to somebody, a broker does not remove
        until(
            lambda: b'"haConnectionInfo":[]' in broker.client.request(_HA_STATUS).body.replace(b" ", b""),
            lambda: "the broker gives the follower up",
        )
        border = broker.remove_segments()
        follower.go_on()
        after = cluster.flood(count=2000).end()
        follower.reach(broker.bounds().max_offset)
        until(lambda: sum(follower.metrics("tierlog_follow_gap_bytes_total").values()) > 0, lambda: "a gap is declared")
        gap_bytes = int(sum(follower.metrics("tierlog_follow_gap_bytes_total").values()))
        assert gap_bytes <= border - followed_to
        assert differing(follower.root / STORE_ID, broker) == []
        check_gap(follower, (border - gap_bytes, border), [*lost, *after], (began_ms, ended_ms))
        follower.check_found((before[-1], *[each for each in lost if each.physical_offset >= border][:2], after[0]))
        check_alerts_of_absence(was, Scrape.of(follower.url), tmp_path)
    finally:
        follower.kill()
