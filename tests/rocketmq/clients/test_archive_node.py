"""A real cluster with an archive node beside its broker: every tool finds the archive, and nothing else is sent to it.

The broker of Apache RocketMQ 5.4.0 has removed the older part of its log, which the node has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.rocketmq.answering_world import CLUSTER
from tests.support.rocketmq.real_brokers import RealBroker, nameserver, until
from tests.support.rocketmq.real_clients import ClientError, Json, RealClient, fresh, java_client, names, other_client
from tests.support.rocketmq.remoting_world import listen
from tests.tools.java_programs import BRIEF
from tests.tools.rocketmq_clients import GO, JAVA_5, SERVERS, ClientProgram, command_of
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.follow.answering.door import AnsweringDoor
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import base_offset_name

pytestmark = pytest.mark.timeout(900)
_SEGMENT_BYTES = 128 << 10
_COUNT = 300
_CLOCK = SystemClock()


@dataclass
class Cluster:
    """A nameserver, a broker that has removed files, and the node that has all of its log."""

    nameserver: str
    broker: RealBroker
    java: RealClient
    """With the tool mqadmin."""
    engine: FollowedStore
    door: AnsweringDoor
    topic: str
    border: int
    """Below it the broker has nothing."""

    def feed(self) -> None:
        """The node gets what the broker has got."""
        end = self.broker.bounds().max_offset
        while self.engine.end < end:
            position = self.engine.end
            base = position - position % _SEGMENT_BYTES
            data = (self.broker.store / "commitlog" / base_offset_name(base)).read_bytes()
            self.engine.append(position, data[position - base : end - base])
        self.engine.flush()
        self.engine.store.flush()

    def query(self, key: str) -> list[Json]:
        """What Java's client finds by a key."""
        return list(self.java.do("query", topic=self.topic, key=key)["messages"])

    def messages(self) -> int:
        """How many of the topic are kept."""
        store = self.engine.store
        return sum(store.offsets(self.topic, queue_id)[1] for queue_id in range(4))

    def counted(self) -> Counter[str]:
        """Requests to the node, by name and answer."""
        return Counter({" ".join(labels): int(value) for labels, value in self.door.counts.requests.reading().items()})


@pytest.fixture(scope="module")
def cluster(folder_of: Callable[[ClientProgram], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, topic = tmp_path_factory.mktemp("cluster"), fresh("orders")
    program, sizes = folder_of(SERVERS["5.4.0"]), {"mappedFileSizeCommitLog": _SEGMENT_BYTES, "maxMessageSize": 65536}
    with ExitStack() as opened:
        address = opened.enter_context(nameserver(program, tmp_path_factory.mktemp("nameserver")))
        real = opened.enter_context(closing(RealBroker(program, folder, address, sizes, name="broker-a")))
        real.start()
        work, options = tmp_path_factory.mktemp("java"), (*BRIEF, "-Dtests.pollNameServerMs=1000")
        java = opened.enter_context(java_client(folder_of(JAVA_5), "Remoting5", work, address, options=options))
        java.mqadmin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "4", "-w", "4")
        until(lambda: "broker-a" in java.mqadmin("topicRoute", "-t", topic), lambda: "the topic is there")
        for _ in range(2):  # each key is there twice, once on either side of the border in the end
            java.send(topic, "find", count=_COUNT, body=("x" * 700).encode().hex())
        listening = opened.enter_context(listen("127.0.0.1", 0, "follow.listen"))
        engine = FollowedStore.open(
            folder / "followed", cold_url=f"file://{folder / 'cold'}", store_id="broker-a",
            segment_bytes=_SEGMENT_BYTES, begin=0,
        )  # fmt: skip
        opened.callback(engine.close)
        engine.store.start()
        broker = FollowedBroker(
            "broker-a", "broker-a", CLUSTER, real.address, FollowState.FOLLOWING, store=engine.store
        )
        settings = Settings.load(overrides={"follow.namesrv": address})
        door = AnsweringDoor(
            listening, settings, _CLOCK, brokers=lambda: [broker], root=folder, fs=LocalFileSystem(),
            address=f"127.0.0.1:{listening.getsockname()[1]}", control=AccessControl(settings.access, _CLOCK),
        )  # fmt: skip
        found = Cluster(address, real, java, engine, door, topic, 0)
        found.feed()
        engine.archive_all()
        found.border = real.remove_segments()
        door.start()
        opened.callback(door.stop, 2.0)
        until(lambda: f"tierlog-{CLUSTER}" in java.mqadmin("topicRoute", "-t", topic), lambda: "the node is found")
        until(lambda: "brokerDatas" in java.mqadmin("topicRoute", "-t", f"archive%{topic}"), lambda: "its topic is")

        def is_asked() -> bool:
            with suppress(ClientError):  # nothing is found: the broker has removed it
                return len(found.query("find-0")) == 2
            return False

        until(is_asked, lambda: "the client has asked for its routes again")
        yield found


@pytest.fixture
def java(cluster: Cluster) -> RealClient:
    """The cluster's client."""
    return cluster.java


def test_each_key_is_found_once_on_both_sides_of_the_border(cluster: Cluster, java: RealClient) -> None:
    sides: Counter[bool] = Counter()
    found: list[Json] = []
    for number in (0, 1, _COUNT // 2, _COUNT - 2, _COUNT - 1):
        key = f"find-{number}"
        found = cluster.query(key)
        assert [one["key"] for one in found] == [key, key]
        assert len({one["id"] for one in found}) == 2
        for one in found:
            (seen,) = java.do("view", topic=cluster.topic, id=one["id"])["messages"]
            assert (seen["id"], seen["queue"], seen["offset"]) == (one["id"], one["queue"], one["offset"])
        printed = java.mqadmin("queryMsgByKey", "-t", cluster.topic, "-k", key)
        lines = Counter(line.split()[0] for line in printed.splitlines() if line.strip())
        assert {one["id"]: lines[one["id"]] for one in found} == {one["id"]: 1 for one in found}
        physical = [
            cluster.engine.store.pull(cluster.topic, one["queue"], one["offset"], 1).messages[0].record.physical_offset
            for one in found
        ]
        sides.update(at < cluster.border for at in physical)
    assert sides[True] >= 5
    assert sides[False] >= 1
    # in one process it works once: the command keeps the client that it has shut down
    printed = java.mqadmin("queryMsgByUniqueKey", "-t", cluster.topic, "-i", found[0]["id"])
    assert f"[{found[0]['key']}]" in printed


def test_tools_that_ask_every_broker_of_a_topic_work_as_before(cluster: Cluster, java: RealClient) -> None:
    group = fresh("shop")
    java.consumed(cluster.topic, group, 1)
    before = cluster.counted()
    for words in (
        ("topicStatus", "-t", cluster.topic),
        ("consumerProgress", "-g", group, "-t", cluster.topic),
        ("resetOffsetByTime", "-g", group, "-t", cluster.topic, "-s", "0"),
        ("clusterList",),
        ("brokerStatus", "-c", CLUSTER),
        ("getBrokerConfig", "-c", CLUSTER),
        ("updateTopic", "-c", CLUSTER, "-t", fresh("made"), "-r", "1", "-w", "1"),
    ):
        printed = java.mqadmin(*words)
        assert "Exception" not in printed, words
        assert printed.strip(), words
    asked = cluster.counted() - before
    assert not [name for name in asked if name.endswith("request_code_not_supported")]
    assert not [name for name in asked if name.startswith("update_and_create")]


def test_producers_and_consumers_beside_it_send_nothing_else(
    cluster: Cluster, java: RealClient, folder_of: Callable[[ClientProgram], Path], tmp_path: Path
) -> None:
    folder_of(GO)
    before = cluster.counted()
    topic = cluster.topic
    with other_client(command_of(GO), tmp_path, cluster.nameserver) as go:
        for client in (java, go):
            prefix = fresh("beside")
            client.send(topic, prefix, count=10)
            client.do("send", topic=topic, prefix=prefix, how="batch", count=5)
            got = client.consumed(topic, fresh("group"), 15)
            assert {one["topic"] for one in got} == {topic}
        with java.consumer(topic, fresh("several")) as first, java.consumer(topic, fresh("several")) as second:
            first(1, 60_000)
            second(1, 60_000)
    asked = cluster.counted() - before
    names_of = {name.split()[0] for name in asked}
    assert "heart_beat" in names_of
    assert names_of <= {"heart_beat", "unregister_client", "get_consumer_list_by_group", "check_client_config"}
    assert not [name for name in asked if name.endswith("request_code_not_supported")]


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
def test_a_java_consumer_reads_all_that_is_kept(cluster: Cluster, java: RealClient, kind: str) -> None:
    cluster.feed()
    topic, count = f"archive%{cluster.topic}", cluster.messages()
    got = java.consumed(topic, fresh("replayer"), count, kind=kind, limit_ms=90_000)
    kept = Counter(one["key"] for one in got if one["key"].startswith("find-"))
    assert kept == Counter(dict.fromkeys(names("find", _COUNT), 2))
    assert {one["topic"] for one in got} == {topic}


def test_a_go_consumer_reads_all_that_is_kept(
    cluster: Cluster, folder_of: Callable[[ClientProgram], Path], tmp_path: Path
) -> None:
    folder_of(GO)
    cluster.feed()
    with other_client(command_of(GO), tmp_path, cluster.nameserver) as go:
        got = go.consumed(f"archive%{cluster.topic}", fresh("replayer"), cluster.messages(), limit_ms=90_000)
    kept = Counter(one["key"] for one in got if one["key"].startswith("find-"))
    assert kept == Counter(dict.fromkeys(names("find", _COUNT), 2))


def test_a_replaying_group_goes_on_where_it_was_and_back_to_a_time(cluster: Cluster, java: RealClient) -> None:
    topic, group = f"archive%{cluster.topic}", fresh("replayer")
    java.consumed(topic, group, 2 * _COUNT, limit_ms=90_000)
    printed = java.mqadmin("consumerProgress", "-g", group, "-t", topic)
    assert "Exception" not in printed

    def offsets() -> int:
        state = cluster.engine.store.groups.all_committed().get(f"archive%{group}")
        return 0 if state is None else sum(state.offsets.values())

    until(lambda: offsets() >= 2 * _COUNT, lambda: f"offsets are kept: {offsets()}")
    java.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert offsets() == 0
