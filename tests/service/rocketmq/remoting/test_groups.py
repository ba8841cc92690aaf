"""Groups at the remoting door: members, offsets, locks, routes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import HandClock, RemotingWorld, remoting_world
from tierlog.service.rocketmq.remoting.clients import EXPIRES_S
from tierlog.service.rocketmq.remoting.queue_locks import LOCK_S
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

_PLACE = {"consumerGroup": "g", "topic": "orders", "queueId": 0}


def _members(client: RemotingClient, group: str = "g") -> list[str]:
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return []
    ids: list[str] = json.loads(answer.body)["consumerIdList"]
    return ids


# members


def test_members_of_a_group_are_known_at_once_and_told_of_each_change(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="one") as one:
        one.heartbeat("g", topics={"orders": "*"})
        assert one.push().fields == {"consumerGroup": "g"}
        assert _members(one) == ["one"]
        with world.client(client_id="two") as two:
            two.heartbeat("g", topics={"orders": "*"})
            for client in (one, two):
                told = client.push()
                assert (told.code, told.fields, told.is_oneway) == (
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, True,
                )  # fmt: skip
            assert _members(one) == ["one", "two"]
        assert one.push().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED  # its connection is gone
        assert _members(one) == ["one"]


def test_a_heartbeat_that_changes_nothing_tells_nobody(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        client.heartbeat("g", topics={"orders": "*"})
        client.push()
        for _ in range(3):
            client.heartbeat("g", topics={"orders": "*"})
        client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert client.pushed == []
        client.heartbeat("g", topics={"orders": "TagA"})
        assert client.push().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def test_a_member_that_leaves_is_told_of(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="one") as one:
        one.heartbeat("g")
        one.push()
        with world.client(client_id="two") as two:
            two.heartbeat("g", producers=("p",))
            one.push()
            two.done(RequestCode.UNREGISTER_CLIENT, {"clientID": "two", "consumerGroup": "g"})
            assert one.push().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            assert _members(one) == ["one"]
            assert [each.client_id for each in world.door.broker.clients.producers("p")] == ["two"]
            two.done(RequestCode.UNREGISTER_CLIENT, {"clientID": "two", "producerGroup": "p"})
            assert world.door.broker.clients.producers("p") == []


def test_a_member_without_heartbeats_is_gone_after_two_minutes(tmp_path: Path) -> None:
    clock = HandClock()
    with (
        remoting_world(tmp_path / "store", clock=clock) as world,
        world.client(client_id="one") as one,
        world.client(client_id="two") as two,
    ):
        two.heartbeat("g")
        clock.advance((EXPIRES_S - 10) * 1000)
        one.heartbeat("g")
        assert _members(one) == ["one", "two"]
        two.done(RequestCode.GET_BROKER_CLUSTER_INFO)  # connected still, but no member
        clock.advance(11_000)
        world.wait_until(lambda: _members(one) == ["one"])


def test_a_group_of_nobody_is_an_error_as_clients_know_it(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, nobody")


def test_a_client_that_connects_anew_is_one_member(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(client_id="one") as before:
        before.heartbeat("g")
        with world.client(client_id="one") as after:
            after.heartbeat("g")
            assert _members(after) == ["one"]
            before.close()
            world.wait_until(lambda: world.connections() == 1)
            assert _members(after) == ["one"]


def test_subscriptions_may_be_left_out_once_they_are_known(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        short: dict[str, Any] = {"heartbeatFingerprint": 7, "isWithoutSub": True}
        unknown = client.heartbeat("g", **short)
        assert (unknown.fields["IS_SUPPORT_HEART_BEAT_V2"], unknown.fields["IS_SUB_CHANGE"]) == ("true", "true")
        client.heartbeat("g", topics={"orders": "TagA"}, heartbeatFingerprint=7)
        assert client.heartbeat("g", **short).fields["IS_SUB_CHANGE"] == "false"
        found = world.door.broker.clients.subscription("g", "orders")
        assert found is not None
        assert found.expression == "TagA"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"clientID":""}', b'{"clientID":"c","consumerDataSet":[7]}',
                                  b'{"clientID":"c","consumerDataSet":[{"groupName":"a b"}]}'])  # fmt: skip
def test_what_is_no_heartbeat_is_refused(tmp_path: Path, body: bytes) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        assert client.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.INVALID_PARAMETER


def test_the_topic_of_a_groups_retries_is_there_with_its_first_heartbeat(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"create_topics": False}) as world, world.client() as client:
        client.heartbeat("g", topics={"%RETRY%g": "*"})
        assert world.store.find_queues("%RETRY%g") == 1
        assert client.route("%RETRY%g")["queueDatas"][0]["writeQueueNums"] == 1


@pytest.mark.parametrize(("kind", "code"), [("TAG", ResponseCode.SUCCESS), ("SQL92", ResponseCode.SYSTEM_ERROR)])
def test_a_subscription_that_cannot_be_served_is_refused_before_it_begins(
    tmp_path: Path, kind: str, code: ResponseCode
) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        asked = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "orders", "expressionType": kind}}
        assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, json.dumps(asked).encode()).code == code


# routes


def test_the_route_leads_to_the_door_itself(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        world.store.create_topic("orders", 3)
        broker = {
            "brokerAddrs": {"0": world.address}, "brokerName": "broker-a", "cluster": "DefaultCluster",
            "enableActingMaster": False,
        }  # fmt: skip
        queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}
        assert client.route("orders") == {"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]}
        assert client.document(RequestCode.GET_BROKER_CLUSTER_INFO) == {
            "brokerAddrTable": {"broker-a": broker},
            "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
        }
        assert client.document(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"] == ["orders"]


def test_clients_are_told_the_address_that_is_set(tmp_path: Path) -> None:
    given = {"rocketmq.advertise": "mq.example.org", "rocketmq.cluster": "shop"}
    with remoting_world(tmp_path / "store", given) as world, world.client() as client:
        found = client.document(RequestCode.GET_BROKER_CLUSTER_INFO)
        port = world.host_and_port[1]
        assert found["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": f"mq.example.org:{port}"}
        assert found["clusterAddrTable"] == {"shop": ["broker-a"]}


def test_an_unknown_topic_is_one_to_clients_too(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nothing"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert client.route("TBW102")["queueDatas"][0]["perm"] == 7


def test_a_client_that_asks_for_its_retries_before_its_first_heartbeat_does_not_wait_for_them(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"create_topics": False}) as world, world.client() as client:
        before = client.route("%RETRY%g")
        assert world.store.find_queues("%RETRY%g") is None  # who only asks makes nothing
        client.heartbeat("g", topics={"%RETRY%g": "*"})
        assert client.route("%RETRY%g") == before
        place = {"consumerGroup": "g", "topic": "%RETRY%g", "queueId": 0}
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "0"}
        for topic, code in (
            ("%DLQ%g", ResponseCode.TOPIC_NOT_EXIST),
            ("%RETRY%" + "g" * 300, ResponseCode.INVALID_PARAMETER),
        ):
            assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == code


# offsets


def _fill(world: RemotingWorld, count: int) -> None:
    world.store.append([Message("orders", b"%d" % number, queue_id=0) for number in range(count)])


def test_a_new_group_begins_at_the_first_message_where_the_queue_still_has_it(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world, 5)
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, _PLACE).fields == {"offset": "0"}
        answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**_PLACE, "setZeroIfNotFound": False})
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_an_offset_that_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world, 5)
        client.done(RequestCode.UPDATE_CONSUMER_OFFSET, {**_PLACE, "commitOffset": 4})
        assert world.store.groups.committed("g").offsets == {("orders", "broker-a", 0): 4}
        client.done(RequestCode.UPDATE_CONSUMER_OFFSET, {**_PLACE, "commitOffset": 2})  # consumers may go back
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, _PLACE).fields == {"offset": "2"}


def test_an_offset_that_nobody_waits_for_is_known_at_once_and_kept_at_the_stop(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world, 5)
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, {**_PLACE, "commitOffset": 3}, oneway=True)
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, _PLACE).fields == {"offset": "3"}
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, _PLACE).fields == {"offset": "3"}


def test_an_offset_that_its_queue_does_not_have_is_refused_and_loses_no_other(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world, 5)
        world.store.append([Message("orders", b"x", queue_id=1)])
        beyond = {**_PLACE, "commitOffset": 6}
        assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, beyond).code == ResponseCode.INVALID_PARAMETER
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, beyond, oneway=True)
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, {**_PLACE, "queueId": 1, "commitOffset": 1}, oneway=True)
        world.wait_until(lambda: "g" in world.store.groups.all_committed())
        assert world.store.groups.committed("g").offsets == {("orders", "broker-a", 1): 1}
        gone = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**_PLACE, "topic": "nothing", "commitOffset": 0})
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST


def test_offsets_of_a_queue_are_those_of_both_ends_and_of_times(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        queue = {"topic": "orders", "queueId": 0}
        world.store.create_topic("orders", 1)
        assert client.done(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).fields == {"timestamp": "-1"}
        _fill(world, 5)
        stored = [one.record.store_ms for one in world.store.pull("orders", 0, 0, 5).messages]
        assert client.done(RequestCode.GET_MAX_OFFSET, queue).fields == {"offset": "5"}
        assert client.done(RequestCode.GET_MIN_OFFSET, queue).fields == {"offset": "0"}
        assert client.done(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).fields == {"timestamp": str(stored[0])}
        at = {**queue, "timestamp": stored[0]}
        assert client.done(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at).fields == {"offset": "0"}
        late = {**queue, "timestamp": stored[-1] + 1}
        assert client.done(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, late).fields == {"offset": "5"}
        newest = {**at, "boundaryType": "upper"}
        assert client.done(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, newest).fields == {
            "offset": str(world.store.offset_by_time("orders", 0, stored[0], Boundary.UPPER))
        }


# locks


def _lock(client: RemotingClient, client_id: str, *queues: int, group: str = "g") -> list[int]:
    asked = {
        "clientId": client_id,
        "consumerGroup": group,
        "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": queue} for queue in queues],
    }
    found = client.document(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(asked).encode())
    return [one["queueId"] for one in found["lockOKMQSet"]]


def test_a_queue_is_locked_by_one_client_of_a_group_until_its_time_is_over(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock) as world, world.client() as client:
        assert _lock(client, "one", 0, 1) == [0, 1]
        assert _lock(client, "two", 0, 1, 2) == [2]
        assert _lock(client, "two", 0, group="other") == [0]
        clock.advance(round(LOCK_S * 1000) - 1)
        assert _lock(client, "one", 0) == [0]  # renewed
        clock.advance(1)
        assert _lock(client, "two", 0, 1) == [1]


def test_a_client_unlocks_its_own_queues_only(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _lock(client, "one", 0)
        queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}]
        for client_id, free in (("two", []), ("one", [0])):
            asked = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
            client.done(RequestCode.UNLOCK_BATCH_MQ, {}, json.dumps(asked).encode())
            assert _lock(client, "three", 0) == free
