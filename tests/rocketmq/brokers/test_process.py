"""``tierlog follow`` as a process beside real brokers: another one becomes master, one cannot be followed, one is gone.

Also what it answers in their place, and how it goes on from their files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conftest import ROOT
from tests.rocketmq.brokers.conftest import NEWEST, Begin, server_program
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import NO_ANSWER, RefusedError, ask
from tests.support.rocketmq.following import STORE_ID, FollowProcess, differing
from tests.support.rocketmq.real_brokers import Acknowledged, Cluster, RealBroker, controller, until
from tests.support.rocketmq.real_clients import ClientError, RealClient, fresh
from tierlog.service.exit_codes import WRONG_USE
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.properties import UNIQ_KEY
from tierlog.tiering.rocketmq.remoting import copied_state

OLDER, VERSION = "5.1.4", "5.4.0"
SAMPLED = 25


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """What is begun in a test, and ends with it."""
    with ExitStack() as stack:
        yield stack


def process(running: ExitStack, folder: Path, broker: RealBroker, **follow: object) -> FollowProcess:
    """One that has begun, and is killed in the end."""
    follower = FollowProcess(folder, broker, **follow)
    running.callback(follower.kill)
    follower.start()
    return follower


def found(follower: FollowProcess, wanted: Acknowledged) -> list[tuple[int, int, int, str]]:
    """Where the process finds the key, and the ids that producers gave."""
    try:
        messages = ask(follower.url, f"/v1/topics/{wanted.topic}/messages?key={wanted.key}")["messages"]
    except RefusedError:  # no such topic yet, or the store is closed for a moment
        return []
    return [
        (one["queue_id"], one["queue_offset"], one["physical_offset"], one["properties"][UNIQ_KEY]) for one in messages
    ]


def check(follower: FollowProcess, sent: list[Acknowledged]) -> None:
    """Some of the messages are found by key, each once and where its producer was told."""
    assert sent
    for wanted in sent[:: max(1, len(sent) // SAMPLED)]:
        told = (wanted.queue, wanted.offset, wanted.physical_offset, wanted.unique_id)
        assert found(follower, wanted) == [told]


def catch_up(follower: FollowProcess, broker: RealBroker) -> None:
    """Wait until the log of the process is the broker's, byte for byte."""

    def is_same() -> bool:
        try:
            return differing(follower.root / STORE_ID, broker) == []
        except FileNotFoundError:  # a segment that is not here yet
            return False

    until(is_same, lambda: f"the logs are the same: {follower.said()[-3000:]}")


def state(follower: FollowProcess) -> str:
    """What it says of its broker."""
    try:
        states = follower.metrics("tierlog_follow_state")
    except (*NO_ANSWER, urllib.error.HTTPError):  # its store is closed for a moment
        return ""
    return next((labels.split('state="')[1].split('"')[0] for labels, is_so in states.items() if is_so), "")


def until_state(follower: FollowProcess, wanted: str) -> None:
    """Wait until it says so."""
    until(lambda: state(follower) == wanted, lambda: f"{wanted}, not {state(follower)}: {follower.said()[-3000:]}")


def is_followed(follower: FollowProcess) -> bool:
    """Whether the directory says so, and not that the store takes messages itself."""
    return bool(json.loads(StorePaths(follower.root / STORE_ID).store_json.read_bytes()).get("followed"))


# another master


def with_slave(begin: Begin, version: str, **more: object) -> tuple[Cluster, RealBroker]:
    """A master, and a slave of its name beside it."""
    cluster = begin(version, **more)
    for topic in cluster.topics:
        cluster.client.send(topic, "first")
    slave = begin(version, master=cluster.broker, **{**more, "brokerRole": "SLAVE", "brokerId": 1}).broker
    replicate(cluster, slave)  # one that begins later begins with the newest segment
    return cluster, slave


def replicate(cluster: Cluster, slave: RealBroker) -> None:
    """Wait until a slave has all of its master's log, and the topics."""
    end = cluster.broker.bounds().max_offset

    def is_done() -> bool:
        known = {topic.name for topic in copied_state(slave.client).topics}
        return slave.bounds().max_offset >= end and known >= set(cluster.topics)

    until(is_done, lambda: f"the slave has {slave.bounds()} of {end}")


def send_into_a_new_segment(cluster: Cluster) -> list[Acknowledged]:
    """Some messages, behind which the log's last segment has room for more than as many."""
    sent = cluster.flood(count=4000).end()
    while cluster.broker.bounds().max_offset % cluster.broker.segment_bytes > cluster.broker.segment_bytes // 2:
        sent += cluster.flood(count=200).end()
    return sent


def is_found_once(client: RealClient, wanted: Acknowledged) -> bool:
    """Whether Java's client, which asks each broker of a topic, finds it once: False while it finds none."""
    try:
        messages = client.do("query", topic=wanted.topic, key=wanted.key)["messages"]
    except ClientError:
        return False
    assert len(messages) <= 1, messages
    return bool(messages)


def is_taken(client: RealClient, topic: str) -> bool:
    """Whether a producer that runs knows a master of the topic, for which it asks now and then."""
    try:
        return bool(client.send(topic, "asking"))
    except ClientError:
        return False


@pytest.mark.parametrize(("version", "lacks"), [(OLDER, False), (VERSION, True)])
def test_a_slave_that_becomes_master_is_followed_on_whether_it_has_all_or_lacks_the_end(
    version: str, lacks: bool, begin: Begin, running: ExitStack, tmp_path: Path
) -> None:
    cluster, slave = with_slave(begin, version)
    broker = cluster.broker
    follower = process(running, tmp_path, broker, listen=f"127.0.0.1:{free_port()}")
    before = send_into_a_new_segment(cluster)
    replicate(cluster, slave)
    only_there: list[Acknowledged] = []
    if lacks:
        slave.stop()
        only_there = cluster.flood(count=100).end()  # in a segment that is not closed, nor archived
    catch_up(follower, broker)
    broker.kill()
    shutil.rmtree(broker.store)
    if lacks:
        slave.start()
    until_state(follower, "connecting")
    # a slave has no messages of its own, and answers look-ups: each message comes once, from it
    until(lambda: is_found_once(cluster.client, before[-1]), lambda: "the slave is asked")
    slave.stop()
    slave.settings.update(brokerRole="ASYNC_MASTER", brokerId=0)
    slave.start()
    cluster = replace(cluster, broker=slave)
    until(lambda: all(is_taken(cluster.client, topic) for topic in cluster.topics), lambda: "producers know of it")
    after = cluster.flood(count=2000).end()
    catch_up(follower, slave)
    until_state(follower, "following")
    check(follower, before)
    check(follower, after)
    # what only the lost master had is nowhere in the cluster any more, and not here either
    for gone in only_there:
        assert found(follower, gone) == []
    put_aside = list((follower.root / STORE_ID / "quarantine").glob("log-*"))
    assert bool(put_aside) is lacks
    assert all(gone.unique_id.encode() in put_aside[0].read_bytes() for gone in only_there)


# modes that are refused


def refused(broker: RealBroker, tmp_path: Path, *more: str) -> str:
    """What the command says that does not follow this broker."""
    command = [
        sys.executable, "-m", "tierlog.service.main", "follow", "--namesrv", broker.nameserver, "--broker", broker.name,
        "--root", str(tmp_path / "root"), "--cold", f"file://{tmp_path / 'cold'}", "--port", "0", *more,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == WRONG_USE, done
    assert not (tmp_path / "root" / broker.name / "commitlog").exists()
    return done.stderr


def test_dledger_is_refused_by_name_from_both_sources(begin: Begin, tmp_path: Path) -> None:
    broker = begin(
        VERSION, enableDLegerCommitLog="true", dLegerGroup="group", dLegerPeers=f"n0-127.0.0.1:{free_port()}",
        dLegerSelfId="n0",
    ).broker  # fmt: skip
    said = refused(broker, tmp_path)
    assert f"broker {broker.name} runs with DLedger" in said
    assert "no source can follow it" in said
    assert refused(broker, tmp_path, "--store", str(broker.store)) == said
    broker.stop()  # then its files tell
    assert refused(broker, tmp_path, "--store", str(broker.store)) == said


def test_controller_mode_is_refused_by_the_network_and_followed_from_its_files_over_a_restart(
    begin: Begin, running: ExitStack, tmp_path: Path
) -> None:
    """The master has no slave, so that its checkpoint says nothing but where its log ended when it became master."""
    folder = tmp_path / "controller"
    folder.mkdir()
    address, settings = running.enter_context(controller(server_program(NEWEST), folder))
    cluster = begin(address=address, **settings)
    broker = cluster.broker
    said = refused(broker, tmp_path / "refused")
    assert "controller mode" in said
    assert "--store" in said
    follower = process(running, tmp_path, broker, store=broker.store)
    for is_again in (False, True):
        if is_again:
            broker.stop()
            broker.start()
        sent = cluster.flood(count=2000).end()
        follower.reach(broker.bounds().max_offset)
        assert differing(follower.root / STORE_ID, broker) == []
        follower.check_found(sent[::100])


# from the broker's files


def test_the_files_of_a_broker_are_followed_through_its_stops_and_kills_and_ours(
    begin: Begin, running: ExitStack, tmp_path: Path
) -> None:
    cluster = begin(VERSION)
    broker = cluster.broker
    most_held = 3
    follower = process(
        running, tmp_path, broker, store=broker.store, hold="true", max_held_bytes=most_held * broker.segment_bytes
    )
    held = broker.store / "tierlog-held"

    def check_held() -> bool:
        names = list(held.iterdir()) if held.is_dir() else []
        assert len(names) <= most_held
        return not names

    sent = []
    for event in ("the broker is stopped", "the broker is killed", "we are killed"):
        flood = cluster.flood()
        for _ in range(20):
            cluster.grow(100_000)
            check_held()
        if event == "we are killed":
            follower.kill()
            sent += flood.end(now=True)
            follower.start()
        else:
            is_killed = event == "the broker is killed"
            (broker.kill if is_killed else broker.stop)()
            sent += flood.end(now=True)
            assert (broker.store / "abort").exists() is is_killed
            if not is_killed:  # its files are all there is
                until_state(follower, "following")
            broker.start()
        sent += cluster.flood(count=500).end()
        catch_up(follower, broker)
        until_state(follower, "following")
        check(follower, sent)
    until(check_held, lambda: "no segment is held that is here")
    # all that is closed is in the archive
    end = broker.bounds().max_offset
    closed = end - end % broker.segment_bytes
    until(
        lambda: int(ask(follower.url, "/v1/stats")["archived_to"] or 0) >= closed,
        lambda: f"{closed} is archived",
    )
    os.kill(follower.pid, signal.SIGTERM)
    assert follower.ended() == 0, follower.said()
    for options in ([], ["--deep"]):
        done = subprocess.run(
            [sys.executable, "-m", "tierlog.service.main", "check", "--root", follower.root / STORE_ID, "--read-only",
             *options],
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done


# in the broker's place


def migrating(running: ExitStack, folder: Path, broker: RealBroker, **follow: object) -> tuple[FollowProcess, str]:
    """A replica that takes messages once the broker is gone, and where RocketMQ's clients reach it then."""
    door = f"127.0.0.1:{free_port()}"
    folder.mkdir(exist_ok=True)
    follower = FollowProcess(folder, broker, mode="replica", promote="true", **follow)
    follower.settings["TIERLOG_ROCKETMQ_LISTEN"] = door
    running.callback(follower.kill)
    follower.start()
    return follower, door


def left_to(follower: FollowProcess, group: str, topic: str) -> int:
    """How many messages of a topic a group has not consumed; all of them while the group is not known here."""
    ends = sum(queue["max_offset"] for queue in ask(follower.url, f"/v1/topics/{topic}")["offsets"])
    try:
        offsets = ask(follower.url, f"/v1/groups/{quote(group)}/offsets")["offsets"]
    except RefusedError:
        offsets = []
    return int(ends - sum(one["offset"] for one in offsets if one["topic"] == topic))


def test_producers_and_consumers_go_on_at_the_follower_that_took_the_brokers_place(
    begin: Begin, running: ExitStack, tmp_path: Path
) -> None:
    cluster = begin(VERSION, brokerRole="SYNC_MASTER", inSyncReplicas=2, flushDiskType="SYNC_FLUSH")
    broker, group = cluster.broker, fresh("shop")
    topic = cluster.topics[0]
    follower, door = migrating(running, tmp_path, broker, promote_after_ms=1000)
    until_state(follower, "following")
    before = cluster.flood(count=600).end()
    count = sum(one.topic == topic for one in before)
    consumed = cluster.client.consumed(topic, group, count)
    assert len(consumed) == count
    until(lambda: left_to(follower, group, topic) == 0, lambda: f"offsets are copied: {follower.said()}")
    flood = cluster.flood()
    cluster.grow(400_000)
    broker.stop()
    sent = flood.end(now=True)
    until_state(follower, "promoted")
    # the same program, told where to go
    moved = replace(cluster, client=RealClient(cluster.client.program, door))
    after = moved.flood(count=600).end()
    assert len(after) == 600
    left = left_to(follower, group, topic)
    got = moved.client.consumed(topic, group, left)
    places = [(one["queue"], one["offset"]) for one in got]
    assert len(places) == len(set(places)) == left
    keys = {one["key"] for one in got}
    assert {one.key for one in sent + after if one.topic == topic} <= keys
    assert not keys & {one["key"] for one in consumed}
    check(follower, before)
    check(follower, sent)
    check(follower, after)
    # a broker that comes back is told of, by a process that begins then, too
    broker.start()
    until_state(follower, "two_writers")
    follower.kill()
    follower.start()
    until_state(follower, "two_writers")
    broker.stop()
    until_state(follower, "promoted")
    last = moved.flood(count=200).end()
    for messages in (before, sent, after, last):
        check(follower, messages)


def test_a_follower_that_is_killed_while_it_takes_the_brokers_place_follows_or_has_taken_it(
    begin: Begin, running: ExitStack, tmp_path: Path
) -> None:
    cluster = begin(VERSION)
    broker = cluster.broker
    sent = cluster.flood(count=1500).end()
    (waiting, _), (written, _), (opened, door) = (
        migrating(running, tmp_path / str(wait_ms), broker, promote_after_ms=wait_ms)
        for wait_ms in (1_000_000, 8_000, 9_000)
    )
    followers = (waiting, written, opened)
    for follower in followers:
        catch_up(follower, broker)
        until_state(follower, "following")
    broker.stop()

    def is_the_moment(follower: FollowProcess) -> bool:
        """Before anything is written, when the directory says that it is promoted, and when clients reach it."""
        if follower is waiting:
            return "is gone; the store is promoted if it stays so" in follower.said()
        return not is_followed(written) if follower is written else f"RocketMQ clients at {door}" in follower.said()

    for follower in (written, opened, waiting):
        until(partial(is_the_moment, follower), follower.said)
        follower.kill()
        check_same_log(follower, broker)
        follower.start()
    assert [is_followed(follower) for follower in followers] == [True, False, False]
    # where the broker's log ended is not known any more: whoever knows says so
    until(lambda: "where its log ended is not known" in str(ask(waiting.url, "/readyz")), waiting.said)
    waiting.kill()
    waiting.flags += ("--promote-now",)
    waiting.start()
    for follower in followers:
        until_state(follower, "promoted")
        body = {"messages": [{"body": "new", "keys": ["new"]}]}
        ask(follower.url, f"/v1/topics/{cluster.topics[0]}/messages", body)
        assert len(ask(follower.url, f"/v1/topics/{cluster.topics[0]}/messages?key=new")["messages"]) == 1
        check(follower, sent)
    # and none of them follows again
    broker.start()
    for follower in followers:
        until_state(follower, "two_writers")


def check_same_log(follower: FollowProcess, broker: RealBroker) -> None:
    """All of the log of a broker that does not run is here."""
    for path in (broker.store / "commitlog").iterdir():
        ours = StorePaths(follower.root / STORE_ID).commitlog / path.name
        data = path.read_bytes().rstrip(b"\0")
        assert not data or ours.read_bytes()[: len(data)] == data
