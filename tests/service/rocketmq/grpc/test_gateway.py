"""Gateways: they keep nothing, and what they were sent is in the store when they say so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tests.support.service.served import served
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.timers import RecallHandle
from tierlog.service.main import main
from tierlog.service.rocketmq.doors import gateway
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.hashing import java_hash

WRONG_USE = 2


@contextmanager
def opened_gateway(url: str, **settings: Any) -> Iterator[str]:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    made = Settings.load(overrides={"rocketmq.grpc_listen": "127.0.0.1:0", **named})
    with gateway(url, made, AccessControl(made.access, SystemClock())) as (where, _):
        yield where


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[tuple[GrpcWorld, str]]:
    """A store with its door, and the URL of its service."""
    with grpc_world(tmp_path / "store", {"hot.default_queues": 4}) as world, served(world.store, world.settings) as url:
        yield world, url


def test_a_message_that_a_gateway_took_is_in_the_store_with_all_it_has(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    with opened_gateway(url) as where, GrpcClient(where) as client:
        sent = message(
            b"\xff\x00hello", message_id="0A", keys=["k1", "k2"], tag="paid", user={"a": "b"},
            born_ms=1_700_000_000_123, trace_context="00-11",
        )  # fmt: skip
        answer = client.send(sent)
        assert answer.status.code == answer.entries[0].status.code == Code.OK
        assert (answer.entries[0].message_id, answer.entries[0].offset) == ("0A", 0)
    with world.client() as client:
        _, (found,) = client.receive()
        of = found.system_properties
        assert (found.body, dict(found.user_properties)) == (b"\xff\x00hello", {"a": "b"})
        assert (of.message_id, list(of.keys), of.tag, of.trace_context) == ("0A", ["k1", "k2"], "paid", "00-11")
        assert (of.born_timestamp.seconds, of.born_host) == (1_700_000_000, "127.0.0.1")


def test_messages_of_a_group_keep_their_order_and_their_queue_through_a_gateway(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    with opened_gateway(url) as where:

        def send(group: str) -> None:
            with GrpcClient(where, client_id=group) as client:
                for step in range(20):
                    assert client.send(message(b"%d" % step, message_group=group)).status.code == Code.OK

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, "abcd"))
    for group in "abcd":
        found = [one.record for one in world.stored() if one.record.properties["__SHARDINGKEY"] == group]
        assert [int(record.body) for record in found] == list(range(20))
        assert {record.queue_id for record in found} == {abs(java_hash(group)) % 4}


def test_a_delayed_message_waits_in_the_store(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    at_ms = SystemClock().now_ms() + 1_500
    with opened_gateway(url) as where, GrpcClient(where) as client:
        assert client.send(message(b"late", deliver_ms=at_ms, keys=["k"])).status.code == Code.OK
        assert client.send(message(deliver_ms=at_ms + 41 * 86_400_000)).status.code == Code.ILLEGAL_DELIVERY_TIME
    with world.client() as client:
        status, given = client.receive(wait_ms=20_000)
        assert status.code == Code.OK, status
        assert [(one.body, list(one.system_properties.keys)) for one in given] == [(b"late", ["k"])]
    assert world.stored()[0].record.store_ms >= at_ms


def test_producers_are_sent_to_the_gateway_and_consumers_to_the_stores_own_door(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    world.store.create_topic("orders", 2)

    def places(found: Any) -> set[tuple[int, str]]:
        return {
            (queue.permission, f"{address.host}:{address.port}")
            for queue in found
            for address in queue.broker.endpoints.addresses
        }

    with opened_gateway(url, rocketmq__consume_at=world.address) as where, GrpcClient(where) as client:
        queues = client.call("QueryRoute", topic=resource("orders")).message_queues
        assert places(queues) == {(enums.Permission.WRITE, where), (enums.Permission.READ, world.address)}
        assert sorted(queue.id for queue in queues) == [0, 0, 1, 1]
        answer = client.call("QueryAssignment", topic=resource("orders"), group=resource("g"))
        assert places([one.message_queue for one in answer.assignments]) == {(enums.Permission.READ, world.address)}
        assert client.receive()[0].code == Code.NOT_IMPLEMENTED
    with opened_gateway(url) as where, GrpcClient(where) as client:
        queues = client.call("QueryRoute", topic=resource("orders")).message_queues
        assert places(queues) == {(enums.Permission.WRITE, where)}
        answer = client.call("QueryAssignment", topic=resource("orders"), group=resource("g"))
        assert answer.status.code == Code.NOT_IMPLEMENTED


def test_what_is_wrong_with_a_message_is_said_by_the_gateway(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    with opened_gateway(url) as where, GrpcClient(where) as client:
        assert client.send(message(tag="a|b")).status.code == Code.ILLEGAL_MESSAGE_TAG
        assert client.send(message(topic="rmq_sys_x")).status.code == Code.ILLEGAL_TOPIC
        prepared = message(message_type=enums.MessageType.TRANSACTION)
        assert client.send(prepared).status.code == Code.NOT_IMPLEMENTED
    assert world.store.find_queues("orders") is None


def test_what_the_store_refuses_is_told_to_whom_it_is_about(tmp_path: Path) -> None:
    with (
        grpc_world(tmp_path / "store", {"create_topics": False}) as world,
        served(world.store, world.settings) as url,
        opened_gateway(url) as where,
        GrpcClient(where) as client,
    ):
        world.store.create_topic("orders", 1)
        assert client.send(message(topic="other")).status.code == Code.TOPIC_NOT_FOUND
        assert client.send(message()).status.code == Code.OK


def test_a_gateway_beyond_the_loopback_needs_callers(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRequestError, match="without tokens"),
        opened_gateway("http://127.0.0.1:1", rocketmq__grpc_listen="0.0.0.0:0"),
    ):
        pass


@pytest.mark.parametrize(
    "flags",
    [
        ["--stores", "http://127.0.0.1:1", "--root", "x"],
        ["--stores", "http://127.0.0.1:1", "http://127.0.0.1:2"],
        ["--stores", "s3://bucket/prefix"],
        ["--stores", "http://127.0.0.1:1", "--cold", "file:///x"],
        ["--stores", "http://127.0.0.1:1"],
        [],
    ],
)
def test_a_gateway_that_is_not_for_one_service_or_listens_nowhere_is_wrong_use(flags: list[str]) -> None:
    assert main(["serve", "--role", "gateway", *flags]) == WRONG_USE
    last_resorts = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(one.finished.is_set() for one in last_resorts), "whoever called it would be ended in nine seconds"


def ended(client: GrpcClient, name: str, resolution: int) -> int:
    answer = client.call(
        "EndTransaction", topic=resource("orders"), message_id="01", transaction_id=name, resolution=resolution,
    )  # fmt: skip
    return int(answer.status.code)


def test_a_transaction_through_a_gateway_is_ended_by_the_store(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    kinds: Any = enums.TransactionResolution
    with opened_gateway(url, rocketmq__consume_at=world.address) as where, GrpcClient(where) as client:
        names = []
        for body in (b"kept", b"dropped"):
            (entry,) = client.send(message(body, message_type=enums.MessageType.TRANSACTION)).entries
            assert entry.status.code == Code.OK
            names.append(entry.transaction_id)
        assert world.stored() == []
        assert [ended(client, *one) for one in zip(names, (kinds.COMMIT, kinds.ROLLBACK), strict=True)] == [Code.OK] * 2
        assert ended(client, "none", kinds.COMMIT) == Code.INVALID_TRANSACTION_ID
    with world.client() as client:
        assert [one.body for one in client.receive(wait_ms=10_000)[1]] == [b"kept"]


@pytest.mark.slow
def test_a_producer_at_a_gateway_is_asked_about_its_transaction_and_its_answer_ends_it(
    behind: tuple[GrpcWorld, str],
) -> None:
    world, url = behind
    with (
        opened_gateway(url, rocketmq__consume_at=world.address) as where,
        GrpcClient(where) as client,
        client.telemetry() as stream,
    ):
        stream.ask(settings=messages.Settings(publishing=messages.Publishing(topics=[resource("orders")])))
        (entry,) = client.send(message(b"1", message_type=enums.MessageType.TRANSACTION)).entries
        asked: Any = next(stream.answers).recover_orphaned_transaction_command
        assert (asked.transaction_id, asked.message.body) == (entry.transaction_id, b"1")
        assert ended(client, asked.transaction_id, enums.TransactionResolution.COMMIT) == Code.OK
    assert [one.record.body for one in world.stored()] == [b"1"]


def test_a_delayed_message_is_called_back_through_a_gateway(behind: tuple[GrpcWorld, str]) -> None:
    world, url = behind
    at_ms = SystemClock().now_ms() + 3_600_000
    with opened_gateway(url, rocketmq__consume_at=world.address) as where, GrpcClient(where) as client:
        (entry,) = client.send(message(b"late", message_id="0A", deliver_ms=at_ms)).entries
        handle = RecallHandle.decode(entry.recall_handle)
        assert (handle.broker, handle.topic, handle.unique_key) == (world.store.store_id, "orders", "0A")
        answer = client.call("RecallMessage", topic=resource("orders"), recall_handle=entry.recall_handle)
        assert (answer.status.code, answer.message_id) == (Code.OK, "0A")


def test_a_gateway_without_a_way_to_the_stores_door_says_so(behind: tuple[GrpcWorld, str]) -> None:
    _, url = behind
    with opened_gateway(url) as where, GrpcClient(where) as client:
        assert ended(client, "x", enums.TransactionResolution.COMMIT) == Code.NOT_IMPLEMENTED
        answer = client.call("RecallMessage", topic=resource("orders"), recall_handle="x")
        assert answer.status.code == Code.NOT_IMPLEMENTED
    with opened_gateway(url, rocketmq__consume_at="127.0.0.1:1") as where, GrpcClient(where) as client:
        assert ended(client, "x", enums.TransactionResolution.COMMIT) == Code.TOO_MANY_REQUESTS
