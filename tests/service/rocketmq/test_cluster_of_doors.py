"""Several stores of one cluster, each with its doors: clients find them all, and do without one that is gone."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.real_s3 import free_port
from tests.support.rocketmq.grpc_client import Code, GrpcClient, message, resource
from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import listen
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.process import join_cluster
from tierlog.service.cluster.table_view import TableView
from tierlog.service.delivery.timers import RecallHandle
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.doors import Doors
from tierlog.service.rocketmq.grpc.protocol import enums
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

STORES = ("a", "b")


@dataclass
class Member:
    """A store of the cluster: its service and its doors."""

    store: Store
    view: TableView
    remoting: str
    grpc: str
    #: What ends its service, as if the process was gone.
    service: contextlib.ExitStack


@dataclass
class DoorCluster:
    """The stores, by id."""

    members: dict[str, Member]

    def look(self) -> None:
        """Every store enters itself, once it has claimed its archive, and sees the newest table."""
        until = time.monotonic() + 60
        while not all(member.view.is_entered for member in self.members.values()):
            assert time.monotonic() < until
            for member in self.members.values():
                member.view.look()
                member.view.enter()
            time.sleep(0.01)
        for member in self.members.values():
            member.view.look()


@contextlib.contextmanager
def member_of(root: Path, store_id: str, objects: MemoryObjectStore) -> Iterator[Member]:
    port = free_port()
    settings = tiny_settings(
        cluster__address=f"http://127.0.0.1:{port}", cluster__refresh_ms=100, cluster__retry_ms=0,
        rocketmq__listen="127.0.0.1:0", rocketmq__grpc_listen="127.0.0.1:0",
    )  # fmt: skip
    with contextlib.closing(Doors(settings, listen)) as doors, contextlib.ExitStack() as service:
        settings = doors.settings
        remoting, grpc = settings.rocketmq.listen, settings.rocketmq.grpc_listen
        assert remoting is not None
        assert grpc is not None
        with Store.open(
            root / store_id, settings=settings, cold_url="memory://doors", store_id=store_id, objects=objects
        ) as store:
            store.start()
            view = join_cluster(store, settings)
            assert view is not None
            service.enter_context(served(store, settings, port=port))
            control = AccessControl(settings.access, SystemClock())
            with doors.of(store, settings, control, cluster=view, tell=lambda line: None):
                yield Member(store, view, remoting, grpc, service)
            service.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DoorCluster]:
    objects = MemoryObjectStore(SystemClock())
    with contextlib.ExitStack() as stack:
        members = {name: stack.enter_context(member_of(tmp_path, name, objects)) for name in STORES}
        found = DoorCluster(members)
        found.look()
        yield found


def brokers(route: Any) -> dict[str, tuple[str, int, int]]:
    """By store: the address, the number of queues, the permission."""
    addresses = {one["brokerName"]: one["brokerAddrs"]["0"] for one in route["brokerDatas"]}
    return {
        one["brokerName"]: (addresses[one["brokerName"]], one["readQueueNums"], one["perm"])
        for one in route["queueDatas"]
    }


def test_a_route_lists_each_store_that_has_the_topic_with_its_own_queues(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    a.store.create_topic("orders", 3)
    b.store.create_topic("orders", 5)
    b.store.create_topic("only-b", 1)
    for member in (a, b):
        with RemotingClient(member.remoting) as client:
            assert brokers(client.route("orders")) == {"a": (a.remoting, 3, 6), "b": (b.remoting, 5, 6)}
            assert brokers(client.route("only-b")) == {"b": (b.remoting, 1, 6)}
            assert brokers(client.route("TBW102")).keys() == {"a", "b"}
            assert (
                client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST
            )
            told = client.document(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert told["clusterAddrTable"] == {"DefaultCluster": ["a", "b"]}
            assert told["brokerAddrTable"]["b"]["brokerAddrs"] == {"0": b.remoting}


def test_a_store_that_does_not_answer_leaves_the_routes(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    for member in (a, b):
        member.store.create_topic("orders", 2)
    b.service.close()
    with RemotingClient(a.remoting) as client, GrpcClient(a.grpc) as modern:
        assert brokers(client.route("orders")).keys() == {"a"}
        assert brokers(client.route("TBW102")).keys() == {"a"}
        told = client.document(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert told["clusterAddrTable"] == {"DefaultCluster": ["a"]}
        queues = modern.call("QueryRoute", topic=resource("orders")).message_queues
        assert {queue.broker.name for queue in queues} == {"a"}


def test_what_operators_route_or_close_gets_no_more_messages_and_is_read_on(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    for topic in ("orders", "bills"):
        for member in (a, b):
            member.store.create_topic(topic, 1)
    a.view.learn(a.view.tables.change(lambda table: table.route("orders", "b")))
    with RemotingClient(a.remoting) as client, GrpcClient(a.grpc) as modern:
        assert {name: perm for name, (_, _, perm) in brokers(client.route("orders")).items()} == {"a": 4, "b": 6}
        queues = modern.call("QueryRoute", topic=resource("orders")).message_queues
        assert {queue.broker.name: queue.permission for queue in queues} == {
                "a": enums.Permission.READ, "b": enums.Permission.READ_WRITE,
            }  # fmt: skip
        a.view.learn(a.view.tables.change(lambda table: table.close("b")))
        assert {name: perm for name, (_, _, perm) in brokers(client.route("bills")).items()} == {"a": 6, "b": 4}


def test_grpc_clients_are_told_each_store_as_it_told_the_others(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    a.store.create_topic("orders", 1)
    b.store.create_topic("orders", 2)

    def places(queues: Any) -> set[tuple[str, str, int]]:
        return {
            (queue.broker.name, f"{address.host}:{address.port}", queue.id)
            for queue in queues
            for address in queue.broker.endpoints.addresses
        }

    for member in (a, b):
        with GrpcClient(member.grpc) as client:
            queues = client.call("QueryRoute", topic=resource("orders")).message_queues
            assert places(queues) == {("a", a.grpc, 0), ("b", b.grpc, 0), ("b", b.grpc, 1)}
            given = client.call("QueryAssignment", topic=resource("orders"), group=resource("g")).assignments
            assert places(one.message_queue for one in given) == {("a", a.grpc, -1), ("b", b.grpc, -1)}
            new = client.call("QueryRoute", topic=resource("new")).message_queues
            assert {queue.broker.name for queue in new} == {"a", "b"}


def test_consumers_that_leave_it_to_the_broker_get_queues_of_every_store(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    a.store.create_topic("orders", 2)
    b.store.create_topic("orders", 3)

    def assigned(member: Member, client_id: str, strategy: str = "AVG") -> list[tuple[str, int]]:
        asked = {
            "topic": "orders", "consumerGroup": "g", "clientId": client_id, "strategyName": strategy,
            "messageModel": "CLUSTERING",
        }  # fmt: skip
        with RemotingClient(member.remoting) as client:
            found = client.document(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(asked).encode())
        queues = [one["messageQueue"] for one in found["messageQueueAssignments"]]
        return [(queue["brokerName"], queue["queueId"]) for queue in queues]

    with contextlib.ExitStack() as stack:
        for member in (a, b):
            for client_id in ("c@0", "c@1"):
                client = stack.enter_context(RemotingClient(member.remoting, client_id=client_id))
                client.heartbeat("g", topics={"orders": "*"})
        for member in (a, b):
            assert assigned(member, "c@0") == [("a", 0), ("a", 1), ("b", 0)]
            assert assigned(member, "c@1") == [("b", 1), ("b", 2)]
            assert assigned(member, "c@1", "AVG_BY_CIRCLE") == [("a", 1), ("b", 1)]


def test_a_delayed_message_is_called_back_at_the_door_of_any_store(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    at_ms = SystemClock().now_ms() + 3_600_000
    with GrpcClient(b.grpc) as client:
        (entry,) = client.send(message(b"late", message_id="0A", deliver_ms=at_ms)).entries
    assert RecallHandle.decode(entry.recall_handle).broker == "b"
    with GrpcClient(a.grpc) as client:
        answer = client.call("RecallMessage", topic=resource("orders"), recall_handle=entry.recall_handle)
        assert (answer.status.code, answer.message_id) == (Code.OK, "0A")
        unknown = RecallHandle("orders", "c", at_ms + 1, "0A").encode()
        answer = client.call("RecallMessage", topic=resource("orders"), recall_handle=unknown)
        assert answer.status.code == Code.BAD_REQUEST
    with GrpcClient(a.grpc, metadata={"tierlog-passed-on": "1"}) as client:
        answer = client.call("RecallMessage", topic=resource("orders"), recall_handle=entry.recall_handle)
        assert answer.status.code == Code.BAD_REQUEST, "it is passed on once"


def test_a_store_without_doors_is_no_broker(cluster: DoorCluster) -> None:
    a, b = cluster.members.values()
    for member in (a, b):
        member.store.create_topic("orders", 1)
    entry = a.view.table.stores["b"]
    assert dict(entry.doors) == {"remoting": b.remoting, "grpc": b.grpc}
    table = a.view.table.remove("b")
    a.view.tables.change(lambda _: table)
    a.view.look()
    with RemotingClient(a.remoting) as client, GrpcClient(a.grpc) as modern:
        assert brokers(client.route("orders")).keys() == {"a"}
        assert modern.send(message(b"x")).entries[0].message_id
