"""Transactions through the remoting door: what a producer sends, says of it, and is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import HandClock, RemotingWorld, remoting_world
from tierlog.tiering.format.record import SysFlag, decode_record
from tierlog.tiering.message.stored_message import offset_in_message_id
from tierlog.tiering.message.waiting import HALF_TOPIC
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def world(tmp_path: Path, clock: HandClock) -> Iterator[RemotingWorld]:
    with remoting_world(tmp_path / "store", clock=clock, store_clock=clock) as found:
        yield found


@pytest.fixture
def client(world: RemotingWorld) -> Iterator[RemotingClient]:
    with world.client(client_id="producer@1") as found:
        found.heartbeat(producers=("shop",))
        yield found


def prepare(client: RemotingClient, key: str, *, last: str = "") -> dict[str, object]:
    """Sends a half message, as Java's producer does; what it says when it ends the transaction."""
    text = f"UNIQ_KEY\x01{key}\x02PGROUP\x01shop\x02TAGS\x01t\x02TRAN_MSG\x01true{last}"
    fields = {
        "a": "shop", "b": "orders", "c": "TBW102", "d": 4, "e": 1, "f": int(SysFlag.TRANSACTION_PREPARED), "g": 7,
        "h": 3, "i": text, "j": 0, "k": False, "m": False,
    }  # fmt: skip
    sent = client.done(RequestCode.SEND_MESSAGE_V2, fields, key.encode()).fields
    assert sent["transactionId"] == key
    return {
        "producerGroup": "shop", "topic": "orders", "msgId": key, "transactionId": key,
        "commitLogOffset": offset_in_message_id(sent["msgId"]), "tranStateTableOffset": sent["queueOffset"],
        "fromTransactionCheck": False,
    }  # fmt: skip


def end(client: RemotingClient, half: dict[str, object], outcome: int, **changed: object) -> Frame:
    return client.ask(RequestCode.END_TRANSACTION, {**half, "commitOrRollback": outcome, **changed})


def bodies(world: RemotingWorld, topic: str = "orders") -> list[bytes]:
    return [
        one.record.body
        for at in range(world.store.queues_of(topic))
        for one in world.store.pull(topic, at, 0, 9).messages
    ]


@pytest.mark.parametrize("last", ["", "\x02"])
def test_a_message_is_there_once_its_producer_commits_it(
    world: RemotingWorld, client: RemotingClient, last: str
) -> None:
    halves = {key: prepare(client, key, last=last) for key in ("a", "b", "c")}
    assert bodies(world) == []
    for key, outcome in (("a", COMMIT), ("b", ROLLBACK), ("c", UNKNOWN)):
        assert end(client, halves[key], outcome).code == ResponseCode.SUCCESS
    (message,) = world.store.pull("orders", 1, 0, 9).messages
    record = message.record
    assert (record.body, record.flag, record.born_ms) == (b"a", 3, 7)
    assert record.prepared_offset == halves["a"]["commitLogOffset"]
    assert "TRAN_MSG" not in record.properties
    assert end(client, halves["a"], COMMIT).code == end(client, halves["b"], COMMIT).code == ResponseCode.SUCCESS
    assert bodies(world) == [b"a"]


@pytest.mark.parametrize(
    "changed",
    [{"producerGroup": "other"}, {"tranStateTableOffset": 7}, {"commitLogOffset": 1}, {"commitLogOffset": -1}],
)
def test_nobody_else_ends_a_transaction(
    world: RemotingWorld, client: RemotingClient, changed: dict[str, object]
) -> None:
    half = prepare(client, "a")
    assert end(client, half, COMMIT, **changed).code == ResponseCode.SYSTEM_ERROR
    assert bodies(world) == []
    assert end(client, half, 4).code == ResponseCode.INVALID_PARAMETER


def test_a_producer_that_said_nothing_is_asked_and_its_answer_counts(
    world: RemotingWorld, client: RemotingClient, clock: HandClock
) -> None:
    half = prepare(client, "a")
    clock.advance(7_000)
    asked = client.push()
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    assert asked.is_oneway
    told = decode_record(asked.body)
    assert (told.topic, told.queue_id, told.body, told.properties["PGROUP"]) == ("orders", 1, b"a", "shop")
    assert asked.fields == {
        "commitLogOffset": str(half["commitLogOffset"]), "tranStateTableOffset": "0", "msgId": "a",
        "transactionId": "a", "topic": "orders",
        "offsetMsgId": world.store.pull(HALF_TOPIC, 0, 0, 1).messages[0].record.message_id,
    }  # fmt: skip
    answer = half | {name: asked.fields[name] for name in ("commitLogOffset", "tranStateTableOffset")}
    client.send(RequestCode.END_TRANSACTION, answer | {"commitOrRollback": COMMIT}, oneway=True)
    world.wait_until(lambda: bodies(world) == [b"a"])


def test_a_transaction_with_a_delay_is_delayed_from_its_end(
    world: RemotingWorld, client: RemotingClient, clock: HandClock
) -> None:
    half = prepare(client, "a", last="\x02TIMER_DELAY_MS\x0160000\x02")
    assert end(client, half, COMMIT).code == ResponseCode.SUCCESS
    assert bodies(world) == []
    clock.advance(61_000)
    world.wait_until(lambda: bodies(world) == [b"a"])


def test_clients_neither_send_to_nor_list_the_topics_behind_it(world: RemotingWorld, client: RemotingClient) -> None:
    prepare(client, "a")
    fields: dict[str, Any] = {
        "a": "shop",
        "b": HALF_TOPIC,
        "c": "TBW102",
        "d": 1,
        "e": 0,
        "f": 0,
        "g": 7,
        "h": 0,
        "i": "",
    }
    assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == ResponseCode.NO_PERMISSION
    system = json.loads(client.done(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)["topicList"]
    assert HALF_TOPIC in system
