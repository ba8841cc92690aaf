"""A topic that a real broker deletes and makes again, while its old messages are still in the log."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path

from tests.rocketmq.brokers.conftest import Begin
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import ask
from tests.support.rocketmq.following import STORE_ID, FollowProcess, differing
from tests.support.rocketmq.real_brokers import CLUSTER, Cluster, until
from tests.support.rocketmq.real_clients import Json, fresh, keys, names
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.main import main
from tierlog.tiering.base.paths import StorePaths

_COUNTS = (40, 25)
_QUEUES = 2


def make(cluster: Cluster, topic: str) -> None:
    address = cluster.broker.address
    cluster.client.mqadmin("updateTopic", "-b", address, "-t", topic, "-r", str(_QUEUES), "-w", str(_QUEUES))
    until(lambda: cluster.broker.name in cluster.client.mqadmin("topicRoute", "-t", topic), lambda: "it is there")


def delete(cluster: Cluster, topic: str) -> None:
    cluster.client.mqadmin("deleteTopic", "-c", CLUSTER, "-t", topic)
    queues = cluster.broker.store / "consumequeue" / topic
    until(lambda: not queues.exists(), lambda: "its queues are gone")
    until(lambda: cluster.broker.name not in cluster.client.mqadmin("topicRoute", "-t", topic), lambda: "it is gone")


def told(messages: list[Json]) -> list[tuple[str, int, int]]:
    return sorted((each["key"], each["queue"], each["offset"]) for each in messages)


def test_each_generation_is_followed_replayed_and_adopted(begin: Begin, tmp_path: Path) -> None:
    cluster = begin(timerWheelEnable="true")  # without it a broker cannot delete a topic
    broker, client, topic = cluster.broker, cluster.client, fresh("orders")
    follower = FollowProcess(tmp_path, broker, listen=f"127.0.0.1:{free_port()}")
    generations: list[list[tuple[str, int, int]]] = []
    try:
        follower.start()
        for number, count in enumerate(_COUNTS):
            if number:
                delete(cluster, topic)
            make(cluster, topic)
            generations.append(told(client.send(topic, f"made-{number}", count=count)))
            assert {queue for _, queue, offset in generations[-1] if offset == 0} == set(range(_QUEUES))
        follower.reach(broker.bounds().max_offset)
        until(lambda: _is_listed(follower, topic), lambda: "both generations are listed")
        # over HTTP, each by its number and all by the name
        for name, wanted in ((f"{topic}@1", generations[0]), (f"{topic}@2", generations[1])):
            found = ask(follower.url, f"/v1/topics/{name}/messages?limit=100")["messages"]
            assert sorted((m["keys"][0], m["queue_id"], m["queue_offset"]) for m in found) == wanted
        found = ask(follower.url, f"/v1/topics/{topic}/messages?limit=100")["messages"]
        assert len(found) == sum(_COUNTS)
        # a consumer of Java reads all of them, in queues of their own
        replayed = f"archive%{topic}"
        until(
            lambda: f'"readQueueNums":{2 * _QUEUES}' in client.mqadmin("topicRoute", "-t", replayed).replace(" ", ""),
            lambda: "the queues of both are registered",
        )
        group = fresh("replayer")
        got = client.consumed(replayed, group, sum(_COUNTS), limit_ms=90_000)
        assert keys(got) == sorted([*names("made-0", _COUNTS[0]), *names("made-1", _COUNTS[1])])
        assert len({each["queue"] for each in got}) == 2 * _QUEUES
        until(lambda: _committed(follower, group) == sum(_COUNTS), lambda: "the group's offsets are kept")
        # nothing is left at the live broker for those who look for the older ones by what its queues say
        for key, queue, offset in (generations[0][3], generations[1][3]):
            (hit,) = client.do("query", topic=topic, key=key)["messages"]
            assert (hit["queue"], hit["offset"]) == (queue, offset)
        os.kill(follower.pid, signal.SIGTERM)
        assert follower.ended() == 0, follower.said()
        assert differing(follower.root / STORE_ID, broker) == []
    finally:
        follower.kill()
    broker.stop()
    _check_store(follower.root / STORE_ID, topic, generations)
    cold = f"file://{tmp_path / 'adopted'}"
    assert main(["adopt", str(broker.store), "--cold", cold, "--store-id", "adopted"]) == 0
    _check_archive(cold, topic, generations)


def _is_listed(follower: FollowProcess, topic: str) -> bool:
    listed = {each["topic"]: each["messages"] for each in ask(follower.url, "/v1/topics")["topics"]}
    return (listed.get(f"{topic}@1"), listed.get(topic)) == _COUNTS


def _committed(follower: FollowProcess, group: str) -> int:
    paths = StorePaths(follower.root / STORE_ID)
    groups = json.loads(paths.groups_json.read_text())["groups"] if paths.groups_json.exists() else []
    offsets = [each["offsets"] for each in groups if each["name"] == f"archive%{group}"]
    return sum(offset for of in offsets for queues in of.values() for offset in queues.values())


def _check_store(root: Path, topic: str, generations: list[list[tuple[str, int, int]]]) -> None:
    with closing(Store.open(root, settings=Settings.load(), read_only=True)) as store:
        _check(store, topic, generations)


def _check_archive(cold: str, topic: str, generations: list[list[tuple[str, int, int]]]) -> None:
    archive = Archive.open(cold, settings=Settings.load())
    with closing(archive):
        _check(archive, topic, generations)


def _check(store: Store | Archive, topic: str, generations: list[list[tuple[str, int, int]]]) -> None:
    """By queue and by key, of each generation what its producer was told."""
    for number, wanted in enumerate(generations, 1):
        name, found = f"{topic}@{number}", []
        for queue in range(_QUEUES):
            messages = store.pull(name, queue, 0, 100).messages
            found += [(each.keys[0], each.record.queue_id, each.record.queue_offset) for each in messages]
        assert sorted(found) == wanted, name
        for key, queue, offset in wanted[::7]:
            for asked, count in ((topic, 1), (name, 1), (f"{topic}@{3 - number}", 0)):
                hits = store.query(Query(asked, key)).messages
                assert [(each.record.queue_id, each.record.queue_offset) for each in hits] == [(queue, offset)] * count
