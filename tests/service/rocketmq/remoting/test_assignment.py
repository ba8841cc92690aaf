"""Queues that the broker shares out, for consumers that leave it to it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import remoting_world
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

ASKED = {
    "topic": "orders",
    "consumerGroup": "billing",
    "clientId": "c@0",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}


def assigned(client: RemotingClient, **changed: str) -> list[tuple[int, str]]:
    body = json.dumps(ASKED | changed).encode()
    found = client.document(RequestCode.QUERY_ASSIGNMENT, body=body)["messageQueueAssignments"]
    assert all(one["messageQueue"]["brokerName"] == "broker-a" for one in found)
    return [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [("AVG", [[0, 1, 2], [3, 4], [5, 6]]), ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4], [2, 5]])],
)
def test_queues_are_shared_as_clients_would_themselves(tmp_path: Path, strategy: str, shares: list[list[int]]) -> None:
    with remoting_world(tmp_path / "store") as world, ExitStack() as opened:
        world.store.create_topic("orders", 7)
        clients = [opened.enter_context(world.client(client_id=f"c@{at}")) for at in range(3)]
        for client in clients:
            client.heartbeat("billing", topics={"orders": "*"})
        found = [
            [queue for queue, mode in assigned(clients[0], clientId=f"c@{at}", strategyName=strategy) if mode == "PULL"]
            for at in range(3)
        ]
        assert found == shares
        assert assigned(clients[0], clientId="stranger") == []
        everything = [(at, "PULL") for at in range(7)]
        assert assigned(clients[0], clientId="stranger", messageModel="BROADCASTING") == everything


def test_who_pops_asks_for_all_queues_and_not_for_its_retries(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"rocketmq.request_mode": "pop"}) as world, world.client() as client:
        world.store.create_topic("orders", 7)
        client.heartbeat("billing", topics={"orders": "*"})
        assert assigned(client) == [(-1, "POP")]
        assert assigned(client, topic="%RETRY%billing") == []
        assert assigned(client, messageModel="BROADCASTING") == [(at, "PULL") for at in range(7)]


def set_mode(client: RemotingClient, mode: str, **changed: str) -> int:
    named = {"topic": "orders", "consumerGroup": "billing", "mode": mode, **changed}
    return client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(named).encode()).code


def test_the_mode_of_a_topic_and_group_is_kept_and_concerns_no_other(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="c@0") as client:
        for topic in ("orders", "bills"):
            world.store.create_topic(topic, 1)
        client.heartbeat("billing", topics={"orders": "*", "bills": "*", "%RETRY%billing": "*"})
        assert set_mode(client, "POP") == ResponseCode.SUCCESS
        assert assigned(client) == [(-1, "POP")]
        assert assigned(client, topic="bills") == [(0, "PULL")]
        assert assigned(client, topic="%RETRY%billing") == [(0, "PULL")]  # what bills' consumers could not do
        assert set_mode(client, "POP", topic="bills") == ResponseCode.SUCCESS
        assert assigned(client, topic="%RETRY%billing") == []
        assert set_mode(client, "PULL", topic="bills") == ResponseCode.SUCCESS
    with remoting_world(tmp_path / "store") as world, world.client(client_id="c@0") as client:
        client.heartbeat("billing", topics={"orders": "*", "bills": "*"})
        assert assigned(client) == [(-1, "POP")]
        assert assigned(client, topic="bills") == [(0, "PULL")]
        assert assigned(client, consumerGroup="other") == []


@pytest.mark.parametrize(
    ("mode", "changed", "code"),
    [
        ("PUSH", {}, ResponseCode.INVALID_PARAMETER),
        ("POP", {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ("POP", {"topic": "%RETRY%billing"}, ResponseCode.INVALID_PARAMETER),
        ("POP", {"consumerGroup": "a b"}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_mode_that_cannot_be_is_refused(
    tmp_path: Path, mode: str, changed: dict[str, str], code: ResponseCode
) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="c@0") as client:
        world.store.create_topic("orders", 1)
        client.heartbeat("billing", topics={"orders": "*"})
        assert set_mode(client, mode, **changed) == code
        assert assigned(client) == [(0, "PULL")]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[]", ResponseCode.INVALID_PARAMETER), (b"x", ResponseCode.INVALID_PARAMETER),
        (b'{"topic":"orders"}', ResponseCode.INVALID_PARAMETER),
        (json.dumps(ASKED | {"topic": "none"}).encode(), ResponseCode.TOPIC_NOT_EXIST),
        (json.dumps(ASKED | {"strategyName": "CONFIG"}).encode(), ResponseCode.INVALID_PARAMETER),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_answered_is_refused(tmp_path: Path, body: bytes, code: ResponseCode) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="c@0") as client:
        world.store.create_topic("orders", 1)
        client.heartbeat("billing", topics={"orders": "*"})
        assert client.ask(RequestCode.QUERY_ASSIGNMENT, body=body).code == code
