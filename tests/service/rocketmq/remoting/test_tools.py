"""What RocketMQ's tools ask and change: answers in the forms that they parse, and rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient, in_thread
from tests.support.rocketmq.remoting_world import RemotingWorld, remoting_world
from tierlog.service.rocketmq.remoting import java_json
from tierlog.service.rocketmq.remoting.calls import HANDLERS
from tierlog.service.rocketmq.remoting.java_json import MessageQueue
from tierlog.service.rocketmq.remoting.refusals import REFUSED, refused_codes, why_refused
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame, encode_frame

NEW = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RemotingWorld]:
    with remoting_world(tmp_path / "store") as found:
        yield found


@pytest.fixture
def client(world: RemotingWorld) -> Iterator[RemotingClient]:
    with world.client() as found:
        yield found


def fill(world: RemotingWorld, count: int = 8) -> None:
    """Messages in four queues of a topic."""
    world.store.create_topic("orders", 4)
    world.store.append([Message("orders", b"m%d" % at, keys=[f"k{at}"], queue_id=at % 4) for at in range(count)])


def tables(body: bytes, name: str) -> dict[MessageQueue, Any]:
    """A table by message queue in an answer."""
    found = java_json.member(body, name)
    assert found is not None
    text, decoder, at, entries = found.decode(), json.JSONDecoder(), 1, {}
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at + (text[at] == ","))
        value, at = decoder.raw_decode(text, at + 1)
        entries[MessageQueue(key["brokerName"], key["queueId"], key["topic"])] = value
    return entries


def queue(at: int) -> MessageQueue:
    return MessageQueue("broker-a", at, "orders")


# topics


def test_a_topic_is_made_grows_and_is_deleted(world: RemotingWorld, client: RemotingClient) -> None:
    client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "orders", **NEW, "attributes": "+message.type=FIFO"})
    assert world.store.find_queues("orders") == 4
    client.done(
        RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "orders", **NEW, "readQueueNums": 6, "writeQueueNums": 6}
    )
    assert world.store.find_queues("orders") == 6
    assert client.document(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})["writeQueueNums"] == 6
    left = client.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert left.code == ResponseCode.SYSTEM_ERROR
    client.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    client.done(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    client.done(RequestCode.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"})
    assert world.store.find_queues("orders") is None
    assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"}).code == ResponseCode.TOPIC_NOT_EXIST
    client.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})  # tools delete what may not be there


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"perm": 4}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": 8}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": 0, "writeQueueNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": 2, "writeQueueNums": 2}, ResponseCode.SYSTEM_ERROR),
        ({"attributes": "+cleanup.policy=COMPACTION"}, ResponseCode.INVALID_PARAMETER),
        ({"attributes": "+message.type=ODD"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "rmq_sys_wheel_timer"}, ResponseCode.NO_PERMISSION),
        ({"topic": "a b"}, ResponseCode.INVALID_PARAMETER),
        ({"writeQueueNums": "many"}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_what_a_topic_cannot_have_is_refused_and_changes_nothing(
    world: RemotingWorld, client: RemotingClient, changed: dict[str, object], code: ResponseCode
) -> None:
    world.store.create_topic("orders", 4)
    before = world.store.queue_counts()
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "orders", **NEW, **changed}).code == code
    assert world.store.queue_counts() == before


def test_all_settings_of_topics_come_in_pages(world: RemotingWorld, client: RemotingClient) -> None:
    for name in ("a", "b", "c"):
        world.store.create_topic(name, 1)
    pages = [
        client.done(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": at, "maxTopicNum": 2, "dataVersion": "{}"})
        for at in (0, 2)
    ]
    assert [json.loads(page.body)["topicConfigTable"].keys() for page in pages] == [{"a", "b"}, {"c"}]
    assert {page.fields["totalTopicNum"] for page in pages} == {"3"}
    assert len(client.document(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]) == 3
    of_cluster = client.document(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
    assert of_cluster["topicList"] == ["a", "b", "c"]
    assert client.document(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "other"})["topicList"] == []
    system = client.document(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert system == ["DefaultCluster", "broker-a"]


def test_statistics_of_a_topic_are_a_table_by_queue(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world, 7)
    body = client.done(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body
    assert b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{' in body
    found = tables(body, "offsetTable")
    assert {at: found[queue(at)]["maxOffset"] for at in range(4)} == {0: 2, 1: 2, 2: 2, 3: 1}
    last = world.store.pull("orders", 0, 1, 1).messages[0].record.store_ms
    assert found[queue(0)] == {"lastUpdateTimestamp": last, "maxOffset": 2, "minOffset": 0}
    assert client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST


# groups


def test_progress_of_a_group_is_what_every_door_has_committed(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    world.store.groups.commit("billing", {("orders", "broker-a", 1): 1})
    for fields in ({}, {"topic": "orders"}, {"topicList": "orders;none"}):
        body = client.done(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "billing", **fields}).body
        found = tables(body, "offsetTable")
        assert [(found[queue(at)]["consumerOffset"], found[queue(at)]["brokerOffset"]) for at in range(4)] == [
            (0, 2), (1, 2), (0, 2), (0, 2),
        ]  # fmt: skip
        assert found[queue(1)]["lastTimestamp"] == world.store.pull("orders", 1, 0, 1).messages[0].record.store_ms
        assert found[queue(0)]["lastTimestamp"] == 0
    assert client.document(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"}) == {"groupList": ["billing"]}
    assert client.document(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "billing"})["topicList"] == ["orders"]
    unknown = client.done(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"}).body
    assert tables(unknown, "offsetTable") == {}


def test_a_group_that_is_made_is_listed_until_it_is_deleted(world: RemotingWorld, client: RemotingClient) -> None:
    wanted = {"groupName": "billing", "consumeEnable": True, "retryMaxTimes": 16}
    client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(wanted).encode())
    world.store.create_topic("orders", 4)
    world.store.groups.commit("billing", {("orders", "broker-a", 0): 0})
    listed = client.done(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert list(json.loads(listed.body)["subscriptionGroupTable"]) == ["billing"]
    assert listed.fields["totalGroupNum"] == "1"
    client.done(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing", "cleanOffset": False})
    assert "billing" in world.store.groups.all_committed()
    client.done(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing", "cleanOffset": True})
    assert "billing" not in world.store.groups.all_committed()
    client.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%billing"})
    gone = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"})
    assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "changed", [{"consumeEnable": False}, {"retryMaxTimes": 3}, {"groupName": "a b"}, {"groupName": 1}]
)
def test_settings_that_a_group_cannot_have_are_refused(client: RemotingClient, changed: dict[str, object]) -> None:
    body = json.dumps({"groupName": "billing", **changed}).encode()
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_a_reset_moves_what_is_committed_and_tells_each_member_in_its_form(world: RemotingWorld) -> None:
    fill(world)
    places = {("orders", "broker-a", at): 2 for at in range(4)}
    world.store.groups.commit("billing", places)
    with world.client(client_id="java@1") as java, world.client(client_id="cpp@1") as cpp, world.client() as tool:
        java.heartbeat("billing", topics={"orders": "*"})
        cpp.language = "CPP"
        cpp.heartbeat("billing", topics={"orders": "*"})
        since = {"group": "billing", "topic": "orders", "timestamp": 0, "isForce": True, "offset": -1}
        answer = tool.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, since)
        assert tables(answer.body, "offsetTable") == {queue(at): 0 for at in range(4)}
        offsets = world.store.groups.committed("billing").offsets
        assert {at[2]: offset for at, offset in offsets.items()} == dict.fromkeys(range(4), 0)
        told = next(iter(pushed(java, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)))
        assert (told.fields["group"], told.fields["topic"]) == ("billing", "orders")
        assert told.is_oneway
        assert tables(told.body, "offsetTable") == {queue(at): 0 for at in range(4)}
        listed = json.loads(next(iter(pushed(cpp, RequestCode.RESET_CONSUMER_CLIENT_OFFSET))).body)["offsetTable"]
        assert listed[3] == {"brokerName": "broker-a", "offset": 0, "queueId": 3, "topic": "orders"}


def pushed(client: RemotingClient, code: RequestCode) -> Iterator[Frame]:
    while True:
        found = client.push()
        if found.code == code:
            yield found


def test_a_reset_goes_to_the_end_to_an_offset_or_never_forward(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    world.store.groups.commit("billing", {("orders", "broker-a", 0): 1})

    def reset(**fields: object) -> dict[MessageQueue, Any]:
        asked = {"group": "billing", "topic": "orders", "timestamp": -1, **fields}
        return tables(client.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked).body, "offsetTable")

    assert reset(isForce=False, queueId=0) == {queue(0): 1}
    assert reset(queueId=0, offset=0) == {queue(0): 0}
    assert reset() == {queue(at): 2 for at in range(4)}
    for fields, code in (
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 0, "offset": 3}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        asked = {"group": "billing", "topic": "orders", "timestamp": -1, **fields}
        assert client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked).code == code


# clients


def test_connections_are_listed_with_what_is_read(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    client.heartbeat("billing", topics={"orders": "TagA || TagB"}, producers=("shop",))
    found = client.document(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
    assert [one["clientId"] for one in found["connectionSet"]] == [client.client_id]
    assert found["subscriptionTable"]["orders"]["subString"] == "TagA || TagB"
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    makers = client.document(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "shop"})
    assert [one["language"] for one in makers["connectionSet"]] == ["JAVA"]
    assert list(client.document(RequestCode.GET_ALL_PRODUCER_INFO)["data"]) == ["shop"]
    subscription = client.document(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "billing", "topic": "orders"})
    assert subscription["subscriptionData"]["topic"] == "orders"
    offline = client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "nobody"})
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    nobody = client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"})
    assert nobody.code == ResponseCode.SYSTEM_ERROR


class Consumer:
    """A client that answers what the broker asks it."""

    def __init__(self, world: RemotingWorld, answers: dict[RequestCode, bytes], client_id: str = "c@1") -> None:
        self.client = world.client(client_id=client_id)
        self.client.heartbeat("billing", topics={"orders": "*"})
        self.answers = answers
        self.asked: list[Frame] = []
        self.thread = in_thread(self.run)

    def run(self) -> None:
        while len(self.asked) < len(self.answers):
            frame = self.client.push()
            if frame.code in self.answers:
                self.asked.append(frame)
                body = self.answers[RequestCode(frame.code)]
                self.client.socket.sendall(
                    encode_frame(Frame(ResponseCode.SUCCESS, frame.opaque, FrameFlag.RESPONSE, {}, body))
                )

    def close(self) -> None:
        self.thread.join()
        self.client.close()


def test_what_a_consumer_says_is_handed_on_as_it_came(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    odd = b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{}}}'
    consumer = Consumer(
        world, {RequestCode.GET_CONSUMER_RUNNING_INFO: odd, RequestCode.CONSUME_MESSAGE_DIRECTLY: b'{"order":false}'}
    )
    named = {"consumerGroup": "billing", "clientId": "c@1"}
    asked = client.done(RequestCode.GET_CONSUMER_RUNNING_INFO, {**named, "jstackEnable": True, "Signature": "s"})
    assert asked.body == odd
    message = world.store.pull("orders", 2, 0, 1).messages[0].record
    taken = client.done(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**named, "msgId": message.message_id, "topic": "orders"})
    assert taken.body == b'{"order":false}'
    consumer.close()
    info, directly = consumer.asked
    assert dict(info.fields) == {**named, "jstackEnable": "true"}
    assert directly.fields["brokerName"] == "broker-a"
    assert int.from_bytes(directly.body[:4]) == len(directly.body)
    assert b"m2" in directly.body


def test_where_all_members_are_is_put_together(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    table = b'{{"brokerName":"broker-a","queueId":%d,"topic":"orders"}:7}'
    consumers = [
        Consumer(
            world,
            {RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: b'{"consumerTable":{},"messageQueueTable":' + said},
            client_id=f"c@{at}",
        )
        for at, said in enumerate((table % 0 + b"}", table % 1 + b"}", b'{"a":[1}}'))
    ]
    body = client.done(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "billing", "topic": "orders"}).body
    for consumer in consumers:
        consumer.close()
    assert b'"c@0":' + table % 0 in body
    assert b'"c@1":' + table % 1 in body
    assert b"c@2" not in body
    gone = client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "nobody", "topic": "orders"})
    assert gone.code == ResponseCode.SYSTEM_ERROR


def test_a_consumer_that_is_not_there_or_closes_is_told(world: RemotingWorld, client: RemotingClient) -> None:
    named = {"consumerGroup": "billing", "clientId": "c@1"}
    assert client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, named).code == ResponseCode.SYSTEM_ERROR
    with world.client(client_id="c@1") as consumer:
        consumer.heartbeat("billing", topics={"orders": "*"})
        number = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, named)
        next(iter(pushed(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)))
    assert client.answer_to(number).code == ResponseCode.CONSUME_MSG_TIMEOUT


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a":1,"t":{"x":"}\\""},"b":2}', b'{"x":"}\\""}'),
        (b'{"a":{"t":1},"t":5}', b"5"),
        (b'{"t":"a,b"}', b'"a,b"'),
        (b'{"b":2}', None),
        (b"", None),
    ],
)  # fmt: skip
def test_a_member_is_taken_over_whole(body: bytes, found: bytes | None) -> None:
    assert java_json.member(body, "t") == found


@pytest.mark.parametrize(
    "body", [b'{"t":[1}}', b'{"t":{', b'{"t":{"x":1}', b'{"t":[[1}', b'{"t":1}' + b" " * java_json.MOST_BYTES]
)
def test_a_member_whose_brackets_do_not_match_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        java_json.member(body, "t")


# the broker, and what is refused


def test_the_brokers_numbers_are_texts(world: RemotingWorld, client: RemotingClient) -> None:
    fill(world)
    table = client.document(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert table["msgPutTotalTodayNow"] == table["tierlog.appended_messages"] == "8"
    assert all(isinstance(value, str) for value in table.values())
    float(table["commitLogDiskRatio"])
    rates = client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"})
    assert rates.code == ResponseCode.SYSTEM_ERROR
    pairs = client.ask(RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"})
    assert pairs.code == ResponseCode.QUERY_NOT_FOUND


def test_what_is_refused_says_why(client: RemotingClient) -> None:
    for codes in REFUSED:
        for code in codes if isinstance(codes, range) else [codes]:
            answer = client.ask(code, {})
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
            assert f"{code} not supported: " in str(answer.remark)
    assert client.ask(7_777).remark == "request type 7777 not supported"


def test_every_code_is_answered_sent_or_refused_and_the_page_says_which() -> None:
    sent = {
        RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    }  # fmt: skip
    assert set(RequestCode) - set(HANDLERS) - sent - refused_codes() == set()
    assert refused_codes().isdisjoint(HANDLERS)
    page = Path(__file__).parents[4] / "docs" / "rocketmq_clients.md"
    listed = (
        page.read_text(encoding="utf-8").partition("<!-- refused: begin -->")[2].partition("<!-- refused: end -->")[0]
    )
    told: dict[int, str] = {}
    for row in listed.strip().splitlines()[2:]:
        _, codes, why, _ = (cell.strip() for cell in row.split("|"))
        for one in codes.split(", "):
            first, _, last = one.partition(" to ")
            told |= dict.fromkeys(range(int(first), int(last or first) + 1), why)
    assert told == {code: why_refused(code).partition(" not supported: ")[2] for code in refused_codes()}
