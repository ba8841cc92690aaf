"""The remoting door where tokens are set: who signs is let in, and does what its entry permits."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import RemotingWorld, remoting_world
from tests.support.service.access import line
from tests.support.service.certificates import Authority
from tierlog.service.access.audit import AuditLog
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import HeaderForm
from tierlog.tiering.rocketmq.remoting import BrokerClient, Credentials, bounds_in, runtime_info

SECRET = "0123456789abcdef"
NEW = {"topic": "shop-1", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}


def entry(name: str, scopes: str, topics: str) -> str:
    fields = line(name, scopes, topics).split(":")
    return ":".join([fields[0], f"{fields[1]}/{SECRET}-{name}", *fields[2:]])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RemotingWorld]:
    tokens = ";".join(
        (entry("ops", "admin,read", "*"), entry("shop", "produce,read", "shop-*"), entry("other", "read", "other"))
    )
    audit = AuditLog(LocalFileSystem(), tmp_path / "audit", SystemClock(), SystemRandomness(), 1 << 20)
    with remoting_world(tmp_path / "store", {"access.tokens": tokens}, audit=audit) as found:
        yield found
    audit.close()


def connected(world: RemotingWorld, name: str, form: HeaderForm = HeaderForm.JSON) -> RemotingClient:
    client = world.client(form=form)
    client.keys = (name, f"{SECRET}-{name}")
    return client


@pytest.mark.parametrize("form", list(HeaderForm))
def test_only_who_signs_is_answered_in_either_form(world: RemotingWorld, form: HeaderForm) -> None:
    world.store.create_topic("shop-1", 1)
    with connected(world, "shop", form) as client:
        assert client.route("shop-1")["queueDatas"][0]["writeQueueNums"] == 1
        client.keys = None
        unsigned = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "shop-1"})
        client.keys = ("shop", f"{SECRET}-ops")
        wrong = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "shop-1"})
        assert unsigned.code == wrong.code == ResponseCode.NO_PERMISSION
        assert "needs a signature" in str(unsigned.remark)
        assert SECRET not in f"{unsigned.remark}{wrong.remark}"


def test_who_may_produce_a_topic_makes_it_by_sending_as_clients_do(world: RemotingWorld) -> None:
    with connected(world, "shop") as client:
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "shop-1"}).code == ResponseCode.TOPIC_NOT_EXIST
        assert client.route("TBW102")["queueDatas"][0]["writeQueueNums"] > 0
        message = {"a": "producers", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "k": False}
        client.done(RequestCode.SEND_MESSAGE_V2, message | {"b": "shop-1"}, b"first")
        refused = client.ask(RequestCode.SEND_MESSAGE_V2, message | {"b": "stock"}, b"first")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "stock" in str(refused.remark)
    assert world.store.find_queues("shop-1") is not None
    assert world.store.find_queues("stock") is None


def test_who_may_read_some_topic_finds_the_retries_of_its_group(world: RemotingWorld) -> None:
    with connected(world, "other") as other:
        assert other.route("%RETRY%billing")["queueDatas"][0]["readQueueNums"] == 1
        other.heartbeat("billing", topics={"other": "*", "%RETRY%billing": "*"})
        assert other.route("%RETRY%billing")["queueDatas"][0]["readQueueNums"] == 1
        foreign = other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "shop-1"})
        assert foreign.code == ResponseCode.NO_PERMISSION


def test_a_topic_is_for_who_may_administer_it_and_each_change_is_recorded(world: RemotingWorld, tmp_path: Path) -> None:
    with connected(world, "shop") as shop, connected(world, "ops") as ops:
        for code, fields in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, NEW),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "shop-1"}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"}),
        ):
            assert shop.ask(code, fields).code == ResponseCode.NO_PERMISSION
        assert not (tmp_path / "audit").exists()
        ops.done(RequestCode.UPDATE_AND_CREATE_TOPIC, NEW)
        ops.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "shop-1"})
    (file,) = (tmp_path / "audit").iterdir()
    lines = [json.loads(each) for each in file.read_text(encoding="utf-8").splitlines()]
    begun = [each for each in lines if each["state"] == "begun"]
    assert [(each["caller"], each["path"]) for each in begun] == [
        ("ops", "UPDATE_AND_CREATE_TOPIC"), ("ops", "DELETE_TOPIC_IN_BROKER"),
    ]  # fmt: skip
    assert begun[0]["parameters"] == {"topic": "shop-1", "queues": 2}
    assert begun[0]["peer"] == "127.0.0.1"
    assert [each["ok"] for each in lines if each["state"] == "ended"] == [True, True]


def test_topics_and_groups_of_others_are_neither_listed_nor_changed(world: RemotingWorld) -> None:
    for topic in ("shop-1", "other"):
        world.store.create_topic(topic, 1)
    world.store.groups.commit("billing", {("shop-1", "broker-a", 0): 0})
    with connected(world, "other") as other, connected(world, "shop") as shop, connected(world, "ops") as ops:
        for client, topics, groups in ((other, ["other"], []), (shop, ["shop-1"], ["billing"])):
            assert client.document(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"] == topics
            configs = client.document(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
            assert list(configs) == groups
        reset = {"group": "billing", "topic": "other", "timestamp": 0}
        asked = other.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert asked.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert shop.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.NO_PERMISSION
        shop.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"topic": "shop-1"})
        offline = other.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        everywhere = (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "x"})
        assert shop.ask(*everywhere).code == ResponseCode.NO_PERMISSION
        assert shop.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {}).code == ResponseCode.NO_PERMISSION
        assert ops.ask(*everywhere).code == ResponseCode.SYSTEM_ERROR


def test_the_client_that_asks_brokers_signs_what_the_door_takes(world: RemotingWorld) -> None:
    for secret, is_known in ((f"{SECRET}-ops", True), (f"{SECRET}-shop", False)):
        client = BrokerClient(world.address, clock=SystemClock(), credentials=Credentials("ops", secret))
        reply = client.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert (reply.code == ResponseCode.SUCCESS) == is_known
        client.close()


def test_the_client_that_asks_brokers_speaks_tls_where_it_is_told_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("server")
    given = {"serve.tls_certificate": str(certificate), "serve.tls_key": str(key)}
    trusted, strange = ssl.create_default_context(cafile=str(authority.file)), ssl.create_default_context()
    with remoting_world(tmp_path / "store", given) as world:
        client = BrokerClient(world.address, clock=SystemClock(), tls=trusted)
        assert bounds_in(runtime_info(client)).min_offset == 0
        client.close()
        refused = BrokerClient(world.address, clock=SystemClock(), tls=strange)
        with pytest.raises(UnavailableError, match="did not answer"):
            refused.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        refused.close()
