"""POP by the remoting door: what a client is told, puts together and sends back, as Java's does."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import RemotingWorld, remoting_world
from tierlog.service.delivery.group_topics import retry_topic
from tierlog.tiering.format.record import Record, decode_record, encode_record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame

ASKED = {
    "consumerGroup": "billing", "topic": "orders", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
    "pollTime": 0, "bornTime": 1, "initMode": 0, "expType": "TAG", "exp": "*", "order": False,
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RemotingWorld]:
    with remoting_world(tmp_path / "store") as found:
        found.store.create_topic("orders", 2)
        yield found


@pytest.fixture
def client(world: RemotingWorld) -> Iterator[RemotingClient]:
    with world.client() as found:
        yield found


def fill(world: RemotingWorld, count: int, topic: str = "orders", **more: Any) -> None:
    queues = world.store.queues_of(topic)
    world.store.append([Message(topic, b"m%d" % at, queue_id=at % queues, **more) for at in range(count)])


def records(body: bytes) -> list[Record]:
    found, at = [], 0
    while at < len(body):
        found.append(decode_record(body, at))
        at += found[-1].size
    return found


def extra_infos(frame: Frame) -> dict[bytes, str]:
    """What Java's client puts together for each message, by its body."""
    found = records(frame.body)
    fields = frame.fields
    starts = {tuple(one.split(" ")[:2]): one.split(" ")[2] for one in fields["startOffsetInfo"].split(";")}
    listed = {tuple(one.split(" ")[:2]): one.split(" ")[2].split(",") for one in fields["msgOffsetInfo"].split(";")}
    infos = {}
    for record in found:
        place = ("1" if record.topic.startswith("%RETRY%") else "0", str(record.queue_id))
        ordered = sorted(
            one.queue_offset for one in found if (one.topic, one.queue_id) == (record.topic, record.queue_id)
        )
        offset = listed[place][ordered.index(record.queue_offset)]
        assert int(offset) == record.queue_offset
        words = (
            starts[place], fields["popTime"], fields["invisibleTime"], fields["reviveQid"], place[0], "broker-a",
            place[1], offset,
        )  # fmt: skip
        infos[record.body] = " ".join(words)
    return infos


def ack(client: RemotingClient, info: str, code: RequestCode = RequestCode.ACK_MESSAGE, **more: object) -> Frame:
    words = info.split(" ")
    topic = "orders" if words[4] == "0" else "%RETRY%billing_orders"  # what Java's client makes of it
    named = {"consumerGroup": "billing", "topic": topic, "queueId": words[6], "extraInfo": info, "offset": words[7]}
    return client.ask(code, {**named, **more})


def test_what_is_popped_is_the_stored_bytes_and_is_given_once(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 5)
    found = client.done(RequestCode.POP_MESSAGE, ASKED)
    stored = [world.store.pull("orders", at, 0, 9).messages for at in range(2)]
    assert sorted(map(encode_record, records(found.body))) == sorted(
        encode_record(one.record) for queue in stored for one in queue
    )
    assert sorted(extra_infos(found)) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert client.ask(RequestCode.POP_MESSAGE, ASKED).code == ResponseCode.POLLING_TIMEOUT


def test_what_is_acknowledged_is_committed_and_only_its_last_delivery_counts(
    world: RemotingWorld, client: RemotingClient
) -> None:
    fill(world, 4)
    infos = extra_infos(client.done(RequestCode.POP_MESSAGE, ASKED))
    assert ack(client, infos[b"m0"]).code == ResponseCode.SUCCESS
    assert ack(client, infos[b"m0"]).code == ResponseCode.NO_MESSAGE
    stale = infos[b"m1"].split(" ")
    stale[1] = str(int(stale[1]) + 1)
    assert ack(client, " ".join(stale)).code == ResponseCode.NO_MESSAGE
    for body in (b"m1", b"m2", b"m3"):
        assert ack(client, infos[body]).code == ResponseCode.SUCCESS
    assert client.ask(RequestCode.POP_MESSAGE, ASKED).code == ResponseCode.POLLING_TIMEOUT


def test_a_batch_of_acknowledgements_is_bits_after_a_first_offset(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 8)
    infos = extra_infos(client.done(RequestCode.POP_MESSAGE, ASKED))
    words = infos[b"m0"].split(" ")
    batch = {
        "brokerName": "broker-a",
        "acks": [
            {
                "c": "billing", "t": "orders", "r": "0", "so": int(words[0]), "q": 0, "rq": 0, "pt": int(words[1]),
                "it": int(words[2]), "b": base64.b64encode(bytes([0b1101])).decode(),
            }
        ],
    }  # fmt: skip
    client.done(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(batch).encode())
    open_now = {body: ack(client, info).code == ResponseCode.SUCCESS for body, info in infos.items()}
    assert {body for body, is_open in open_now.items() if not is_open} == {b"m0", b"m4", b"m6"}
    client.done(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(batch).encode())  # what is over is passed over


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"acks":[1]}', b'{"acks":[{"c":"billing"}]}',
        b'{"acks":[{"c":"g","t":"t","r":"0","so":0,"q":0,"pt":0,"it":0,"b":"*"}]}',
        b'{"acks":[{"c":"g","t":"t","r":"0","so":0,"q":0,"pt":0,"it":0,"b":"' + b"////" * 9_000 + b'"}]}',
    ],
)  # fmt: skip
def test_a_batch_that_is_none_is_refused(client: RemotingClient, body: bytes) -> None:
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body).code == ResponseCode.INVALID_PARAMETER


def test_a_message_that_was_not_done_comes_again_with_its_count(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 1)
    info = extra_infos(client.done(RequestCode.POP_MESSAGE, ASKED))[b"m0"]
    for count in (1, 2):
        changed = ack(client, info, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=0)
        assert changed.code == ResponseCode.SUCCESS
        assert ack(client, info).code == ResponseCode.NO_MESSAGE
        again = client.done(RequestCode.POP_MESSAGE, ASKED | {"pollTime": 5_000})
        assert [one.reconsume_times for one in records(again.body)] == [count]
        info = extra_infos(again)[b"m0"]
    assert ack(client, info).code == ResponseCode.SUCCESS


def test_a_longer_time_has_a_name_of_its_own(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 1)
    info = extra_infos(client.done(RequestCode.POP_MESSAGE, ASKED))[b"m0"]
    changed = ack(client, info, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=90_000)
    words = info.split(" ")
    longer = [words[7], changed.fields["popTime"], changed.fields["invisibleTime"], changed.fields["reviveQid"]]
    assert ack(client, info).code == ResponseCode.NO_MESSAGE
    assert ack(client, " ".join([*longer, *words[4:]])).code == ResponseCode.SUCCESS


def test_what_waits_is_told_of_a_message_and_of_the_end_of_its_time(world: RemotingWorld) -> None:
    with world.client() as popping, world.client() as asking, world.client() as other:
        first = popping.send(RequestCode.POP_MESSAGE, ASKED | {"pollTime": 20_000})
        second = asking.send(RequestCode.NOTIFICATION, ASKED | {"pollTime": 20_000, "consumerGroup": "other"})
        assert other.ask(RequestCode.POP_MESSAGE, ASKED | {"pollTime": 50}).code == ResponseCode.POLLING_TIMEOUT
        assert other.done(RequestCode.NOTIFICATION, ASKED | {"pollTime": 50}).fields["hasMsg"] == "false"
        fill(world, 1)
        assert [one.body for one in records(popping.answer_to(first).body)] == [b"m0"]
        assert asking.answer_to(second).fields == {"hasMsg": "true", "pollingFull": "false"}


def test_what_a_consumer_sent_back_comes_with_its_topic(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 1)
    world.store.create_topic(retry_topic("billing"), 1)
    world.store.append([Message(retry_topic("billing"), b"again", properties={"RETRY_TOPIC": "orders"}, queue_id=0)])
    infos = extra_infos(client.done(RequestCode.POP_MESSAGE, ASKED))
    assert infos[b"again"].split(" ")[4] == "1"
    for info in infos.values():
        assert ack(client, info).code == ResponseCode.SUCCESS
    assert client.ask(RequestCode.POP_MESSAGE, ASKED).code == ResponseCode.POLLING_TIMEOUT


def test_in_order_a_message_waits_for_the_one_before_it(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 4, properties={"__SHARDINGKEY": "one"})
    ordered = ASKED | {"order": True}
    given = []
    while (found := client.ask(RequestCode.POP_MESSAGE, ordered)).code == ResponseCode.SUCCESS:
        for body, info in extra_infos(found).items():
            given.append(body)
            assert ack(client, info).code == ResponseCode.SUCCESS
    assert [body for body in given if body in (b"m0", b"m2")] == [b"m0", b"m2"]
    assert [body for body in given if body in (b"m1", b"m3")] == [b"m1", b"m3"]
    assert len(given) == 4


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST), ({"queueId": 7}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expType": "SQL92", "exp": "a > 1"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER), ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.INVALID_PARAMETER),
    ],
)  # fmt: skip
def test_what_cannot_be_popped_is_refused(
    client: RemotingClient, changed: dict[str, object], code: ResponseCode
) -> None:
    assert client.ask(RequestCode.POP_MESSAGE, ASKED | changed).code == code


@pytest.mark.parametrize("info", ["", "1 2 3", "0 a b 0 0 broker-a 0 0", "0 1 2 0 0 broker-a x 0"])
def test_a_name_of_a_delivery_that_is_none_is_refused(client: RemotingClient, info: str) -> None:
    named = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "extraInfo": info, "offset": 0}
    assert client.ask(RequestCode.ACK_MESSAGE, named).code == ResponseCode.INVALID_PARAMETER
