"""A message of one door is the same at every other: for clients of both protocols, over HTTP, and in the archive."""

from __future__ import annotations

import pytest

from tests.support.processes.nodes import Json, ask, pulled
from tests.support.processes.shell import Shell
from tests.support.rocketmq.real_clients import RealClient, TierlogServer, body_of, fresh

pytestmark = pytest.mark.timeout(400)
_DOORS = ("java_5", "java_grpc", "rust", "http")
#: The kinds of consumers that take the least time to stop.
_KINDS = {"java_5": "lite", "java_grpc": "simple", "rust": "simple"}


def sent_through(door: str, server: TierlogServer, client: RealClient | None, topic: str) -> Json:
    """One message through one door: its key, body and tag."""
    key = f"{door}-0"
    if client is None:
        message = {"body": bytes.fromhex(body_of(key)).decode(), "keys": [key], "tag": "door"}
        ask(server.doors.url, f"/v1/topics/{topic}/messages", {"messages": [message]})
    else:
        client.send(topic, door, tag="door")
    return {"key": key, "body": body_of(key), "tag": "door"}


@pytest.mark.parametrize("door", _DOORS)
def test_a_message_of_any_door_is_read_with_equal_bytes_by_all(
    tierlog: TierlogServer, door: str, shell: Shell, request: pytest.FixtureRequest
) -> None:
    topic, group = fresh("doors"), fresh("group")
    clients: dict[str, RealClient] = {name: request.getfixturevalue(name) for name in _KINDS}
    expected = sent_through(door, tierlog, clients.get(door), topic)
    read: dict[str, Json] = {}
    for name, client in clients.items():
        (read[name],) = client.consumed(topic, f"{group}-{name}", 1, kind=_KINDS[name])
    (over_http,) = pulled(tierlog.doors.url, topic)
    (found,) = shell.rows("query", topic, "--key", expected["key"], "--all", "--url", tierlog.doors.url)
    for name in clients:
        assert {field: read[name][field] for field in expected} == expected
    for message in (over_http, found):
        told = {"key": message["keys"][0], "body": message["body"].encode().hex(), "tag": message["tag"]}
        assert told == expected


def test_what_a_java_producer_sent_is_found_in_the_archive_by_mqadmin(
    tierlog: TierlogServer, java_5: RealClient, shell: Shell
) -> None:
    topic = fresh("orders")
    sent = java_5.send(topic, "order", count=20, how="async")
    shell("archive", "--all", "--drop-hot", "--url", tierlog.doors.url)
    assert {message["tier"] for message in pulled(tierlog.doors.url, topic)} == {"cold"}
    id_of = {message["key"]: message["id"] for message in sent}
    printed = java_5.mqadmin("queryMsgByKey", "-t", topic, "-k", "order-7")
    assert id_of["order-7"] in printed
    (found,) = java_5.do("query", topic=topic, key="order-7")["messages"]
    assert (found["id"], found["body"]) == (id_of["order-7"], body_of("order-7"))
    got = java_5.consumed(topic, fresh("group"), 20)
    assert {message["key"]: message["id"] for message in got} == id_of
