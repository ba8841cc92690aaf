"""Messages of a transaction come when it is committed, once, or never."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, bodies, message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld
from tierlog.service.rocketmq.grpc.protocol import enums, messages

COMMIT, ROLLBACK = enums.TransactionResolution.COMMIT, enums.TransactionResolution.ROLLBACK


def prepared(client: GrpcClient, body: bytes = b"1") -> str:
    """Send a message of a transaction; returns its name."""
    sent = message(body, message_type=enums.MessageType.TRANSACTION, keys=["k"], tag="a")
    (entry,) = client.send(sent).entries
    assert entry.status.code == Code.OK
    return str(entry.transaction_id)


def ended(client: GrpcClient, name: str, resolution: int, topic: str = "orders") -> int:
    answer = client.call(
        "EndTransaction", topic=resource(topic), message_id="01", transaction_id=name, resolution=resolution,
    )  # fmt: skip
    return int(answer.status.code)


def test_a_message_is_there_when_its_transaction_is_committed_and_not_before(
    world: GrpcWorld, client: GrpcClient
) -> None:
    name = prepared(client)
    assert world.stored() == []
    assert ended(client, name, COMMIT) == Code.OK
    assert ended(client, name, COMMIT) == Code.OK, "an answer that was lost is asked for again"
    assert ended(client, name, ROLLBACK) == Code.OK, "it stays as it is"
    _, (found,) = client.receive(wait_ms=10_000)
    of = found.system_properties
    assert (found.body, of.message_id, list(of.keys), of.tag) == (b"1", "01", ["k"], "a")
    assert len(world.stored()) == 1


def test_a_message_whose_transaction_is_rolled_back_never_comes(world: GrpcWorld, client: GrpcClient) -> None:
    name = prepared(client)
    assert ended(client, name, ROLLBACK) == Code.OK
    assert ended(client, name, COMMIT) == Code.OK
    assert world.stored() == []


@pytest.mark.parametrize("name", ["", "x", "0-7F00000100002A9F0000000000000000", "9-7F00000100002A9F00000000000FFFFF"])
def test_a_transaction_that_is_none_has_its_code(world: GrpcWorld, client: GrpcClient, name: str) -> None:
    client.send(message())
    assert ended(client, name, COMMIT) == Code.INVALID_TRANSACTION_ID


def test_a_transaction_of_another_topic_is_not_ended(world: GrpcWorld, client: GrpcClient) -> None:
    name = prepared(client)
    assert ended(client, name, COMMIT, topic="other") == Code.INVALID_TRANSACTION_ID
    assert world.stored() == []


@pytest.mark.slow
def test_a_producer_that_says_nothing_is_asked_and_its_answer_ends_the_transaction(
    world: GrpcWorld, client: GrpcClient
) -> None:
    with client.telemetry() as stream:
        stream.ask(settings=messages.Settings(publishing=messages.Publishing(topics=[resource("orders")])))
        name = prepared(client)
        asked: Any = next(stream.answers).recover_orphaned_transaction_command
    assert (asked.transaction_id, asked.message.body) == (name, b"1")
    assert asked.message.system_properties.message_id == "01"
    assert asked.message.topic.name == "orders"
    assert ended(client, asked.transaction_id, COMMIT) == Code.OK
    assert list(bodies(client.receive(wait_ms=10_000)[1])) == [b"1"]
