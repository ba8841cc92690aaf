"""What clients send is in the log when they are told so, in the queue it belongs to, under every door's names."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tierlog.index.search.query import Query
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.format.hashing import java_hash
from tierlog.tiering.message.batch import Message


def test_a_message_is_found_by_its_keys_and_by_its_own_id(world: GrpcWorld, client: GrpcClient) -> None:
    answer = client.send(message(b"hello", keys=["4711"], tag="paid", message_id="0A0B0C", user={"a": "b"}))
    assert (answer.status.code, answer.entries[0].status.code) == (Code.OK, Code.OK)
    assert (answer.entries[0].message_id, answer.entries[0].offset) == ("0A0B0C", 0)
    for key in ("4711", "0A0B0C"):
        (found,) = world.store.query(Query("orders", key=key)).messages
        assert (found.record.body, found.tag, found.keys) == (b"hello", "paid", ["4711"])
        assert found.properties["a"] == "b"


def test_the_born_host_is_the_address_that_the_client_has(world: GrpcWorld, client: GrpcClient) -> None:
    client.send(message())
    (found,) = world.stored()
    assert found.record.born_host[:4] == bytes((127, 0, 0, 1))
    assert int.from_bytes(found.record.born_host[4:], "big") > 0


def test_messages_of_a_group_go_to_the_queue_that_rest_chooses_by_the_same_key(
    world: GrpcWorld, client: GrpcClient
) -> None:
    for number in range(40):
        client.send(message(message_id=f"{number:02X}", message_group=f"group-{number % 8}"))
    queues: dict[str, int] = {}
    for found in world.stored():
        group = found.record.properties["__SHARDINGKEY"]
        assert queues.setdefault(group, found.record.queue_id) == found.record.queue_id
        assert found.record.queue_id == abs(java_hash(group)) % 4
    assert len(queues) == 8


def test_messages_without_a_group_are_spread_over_the_queues(world: GrpcWorld, client: GrpcClient) -> None:
    for number in range(40):
        client.send(message(message_id=f"{number:02X}"))
    assert Counter(found.record.queue_id for found in world.stored()) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_each_message_of_a_call_has_an_entry_in_their_order(world: GrpcWorld, client: GrpcClient) -> None:
    answer = client.send(*(message(message_id=f"{number:02X}", message_group="g") for number in range(5)))
    assert [entry.message_id for entry in answer.entries] == ["00", "01", "02", "03", "04"]
    assert [entry.offset for entry in answer.entries] == [0, 1, 2, 3, 4]


def test_a_call_with_one_bad_message_appends_none(world: GrpcWorld, client: GrpcClient) -> None:
    answer = client.send(message(message_id="01"), message(message_id=" "))
    assert (answer.status.code, len(answer.entries)) == (Code.ILLEGAL_MESSAGE_ID, 0)
    assert world.store.find_queues("orders") is None


def test_a_call_is_about_one_topic_and_has_messages(client: GrpcClient) -> None:
    assert client.send().status.code == Code.BAD_REQUEST
    both = client.send(message(message_id="01"), message(message_id="02", topic="other"))
    assert both.status.code == Code.BAD_REQUEST


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "rmq_sys_wheel_timer", "TBW102", "SCHEDULE_TOPIC_XXXX"])
def test_a_topic_that_clients_may_not_name_is_refused(client: GrpcClient, topic: str) -> None:
    assert client.send(message(topic=topic)).status.code == Code.ILLEGAL_TOPIC
    assert client.call("QueryRoute", topic=resource(topic)).status.code == Code.ILLEGAL_TOPIC


def test_a_namespace_is_part_of_the_name_as_remoting_clients_write_it(world: GrpcWorld, client: GrpcClient) -> None:
    sent = message()
    sent.topic.resource_namespace = "MQ_INST_1"
    assert client.send(sent).status.code == Code.OK
    assert len(world.stored("MQ_INST_1%orders")) == 1


def test_many_clients_at_once_share_appends_and_each_is_told_its_own_place(world: GrpcWorld) -> None:
    def send(number: int) -> list[tuple[str, int]]:
        with world.client(client_id=f"c{number}") as client:
            found = []
            for step in range(20):
                (entry,) = client.send(message(b"x", message_id=f"{number:02X}{step:02X}", message_group="g")).entries
                found.append((entry.message_id, entry.offset))
            return found

    with ThreadPoolExecutor(8) as pool:
        told = [place for places in pool.map(send, range(8)) for place in places]
    stored = {found.record.properties["UNIQ_KEY"]: found.record.queue_offset for found in world.stored()}
    assert dict(told) == stored
    assert sorted(stored.values()) == list(range(160))


def test_a_store_that_makes_no_topics_says_so_to_this_client_alone(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", {"create_topics": False}) as world, world.client() as client:
        world.store.create_topic("orders", 2)
        assert client.call("QueryRoute", topic=resource("other")).status.code == Code.TOPIC_NOT_FOUND
        assert client.send(message(topic="other")).status.code == Code.TOPIC_NOT_FOUND
        late = message(topic="other", deliver_ms=SystemClock().now_ms() + 3_600_000)
        assert client.send(late).status.code == Code.TOPIC_NOT_FOUND
        assert client.send(message()).status.code == Code.OK
        assert len(client.call("QueryRoute", topic=resource("orders")).message_queues) == 2


def test_a_message_of_a_kind_that_is_not_served_is_refused(client: GrpcClient) -> None:
    assert client.send(message(message_type=99)).status.code == Code.NOT_IMPLEMENTED


def test_a_message_that_rest_appended_is_received_with_all_it_has(world: GrpcWorld, client: GrpcClient) -> None:
    world.store.append([Message("orders", b"hello", ["k1", "k2"], "paid", {"a": "b"}, born_ms=1_700_000_000_123)])
    _, (found,) = client.receive()
    of = found.system_properties
    assert (found.body, dict(found.user_properties)) == (b"hello", {"a": "b"})
    assert (list(of.keys), of.tag, of.born_timestamp.seconds) == (["k1", "k2"], "paid", 1_700_000_000)
    assert of.message_id == world.stored()[0].record.message_id


def test_a_delayed_message_comes_at_its_time_and_not_before(world: GrpcWorld, client: GrpcClient) -> None:
    world.store.create_topic("orders", 1)
    at_ms = SystemClock().now_ms() + 1_500
    answer = client.send(message(b"late", deliver_ms=at_ms, keys=["k"]))
    assert answer.status.code == Code.OK
    assert world.store.offsets("orders", 0) == (0, 0)
    status, (found,) = client.receive(wait_ms=20_000)
    assert status.code == Code.OK
    assert (found.body, list(found.system_properties.keys)) == (b"late", ["k"])
    assert world.stored()[0].record.store_ms >= at_ms


def test_a_time_that_is_over_is_no_delay(world: GrpcWorld, client: GrpcClient) -> None:
    client.send(message(deliver_ms=1))
    assert len(world.stored()) == 1


def test_a_delay_that_is_too_long_is_refused(client: GrpcClient) -> None:
    at_ms = SystemClock().now_ms() + 41 * 24 * 3_600_000
    assert client.send(message(deliver_ms=at_ms)).status.code == Code.ILLEGAL_DELIVERY_TIME


def test_a_delayed_message_can_be_taken_back(client: GrpcClient) -> None:
    at_ms = SystemClock().now_ms() + 3_600_000
    (entry,) = client.send(message(deliver_ms=at_ms, message_id="0A")).entries
    answer = client.call("RecallMessage", topic=resource("orders"), recall_handle=entry.recall_handle)
    assert (answer.status.code, answer.message_id) == (Code.OK, "0A")
    answer = client.call("RecallMessage", topic=resource("orders"), recall_handle="none")
    assert answer.status.code == Code.BAD_REQUEST
