"""Requests to nameservers and brokers: what they answer is read, bounded and never waited for without an end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.rocketmq.fake_broker import FakeBroker
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError, NotFoundError, UnavailableError
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import SIGNATURE, Frame, encode_frame
from tierlog.tiering.rocketmq.log_source import LogBounds
from tierlog.tiering.rocketmq.remoting import (
    BrokerAddress,
    BrokerClient,
    Credentials,
    bounds_in,
    copied_state,
    facts_of,
    find_brokers,
    flushed_below,
    parse_address,
    runtime_info,
)

CLUSTER = b"""{"brokerAddrTable":{
    "broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"C"},
    "broker-b":{"brokerAddrs":{1:"10.0.0.3:10911"},"brokerName":"broker-b","cluster":"C"}},
    "clusterAddrTable":{"C":["broker-a","broker-b"]}}"""
CONFIG = b"""brokerName=broker-a
brokerClusterName=C
brokerRole=SYNC_MASTER
brokerIP2=10.0.0.9
haListenPort=10912
mappedFileSizeCommitLog=1048576
fileReservedTime=48
deleteWhen=04;16
diskMaxUsedSpaceRatio=80
enableControllerMode=false
enableDLegerCommitLog=true
aclFile=a=b
"""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as found:
        yield found


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[BrokerClient]:
    found = BrokerClient(broker.address, clock=ManualClock())
    yield found
    found.close()


def test_a_request_is_answered_with_code_fields_and_body(broker: FakeBroker, client: BrokerClient) -> None:
    broker.answer(RequestCode.REGISTER_BROKER, b"body", haServerAddr="10.0.0.1:10912")
    reply = client.request(RequestCode.REGISTER_BROKER, {"brokerName": "b"}, b"sent")
    assert (reply.code, dict(reply.fields), reply.body) == (0, {"haServerAddr": "10.0.0.1:10912"}, b"body")
    assert [(frame.code, dict(frame.fields), frame.body) for frame in broker.asked] == [
        (103, {"brokerName": "b"}, b"sent")
    ]


def test_requests_are_signed_for_who_has_credentials(broker: FakeBroker) -> None:
    broker.answer(RequestCode.HEART_BEAT, b"")
    credentials = Credentials("shop", "12345678-secret-key")
    client = BrokerClient(broker.address, clock=ManualClock(), credentials=credentials)
    client.ask(RequestCode.HEART_BEAT, {}, b"{}")
    client.close()
    # as AclClientRPCHook of RocketMQ 5.4.0 makes it
    assert broker.asked[0].fields[SIGNATURE] == "cS/3KAeNdFTdaq3Cls7XXCW5eIc="
    assert "secret-key" not in repr(credentials)


def test_a_connection_that_was_closed_meanwhile_is_made_again(broker: FakeBroker, client: BrokerClient) -> None:
    broker.requests_a_connection = 1
    broker.tell_bounds(1, 2)
    for _ in range(3):
        assert bounds_in(runtime_info(client)) == LogBounds(1, 2)


def test_a_refusal_is_an_error_that_names_the_request(broker: FakeBroker, client: BrokerClient) -> None:
    broker.refuse(RequestCode.GET_BROKER_CONFIG, ResponseCode.SYSTEM_ERROR)
    with pytest.raises(UnavailableError, match="answered GET_BROKER_CONFIG with 1"):
        facts_of(client)
    broker.refuse(RequestCode.GET_BROKER_CONFIG, ResponseCode.NO_PERMISSION)
    with pytest.raises(ForbiddenError, match="refused GET_BROKER_CONFIG"):
        facts_of(client)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x7f\xff\xff\xff\0\0\0\x02{}",
        b"\xff\xff\xff\xff\0\0\0\x02{}",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x06\0\0\0\x02[]",
        encode_frame(Frame(0, 1, 1, body=b"no JSON")),
        encode_frame(Frame(0, 1, 1, body=b"[]")),
        encode_frame(Frame(0, 1, 1, body=b'{"table":{"commitLogMinOffset":"x"}}')),
        encode_frame(Frame(0, 1, 1, body=b'{"table":[]}')),
    ],
    ids=["huge", "negative", "http", "no-header", "no-json", "no-object", "no-offset", "no-table"],
)
def test_what_is_no_answer_is_an_error_that_may_pass(broker: FakeBroker, client: BrokerClient, raw: bytes) -> None:
    broker.raw = raw
    with pytest.raises(UnavailableError):
        bounds_in(runtime_info(client))


def test_who_does_not_answer_is_not_waited_for_without_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = BrokerClient(f"127.0.0.1:{server.getsockname()[1]}", clock=SystemClock(), timeout_s=0.2)
        with pytest.raises(UnavailableError, match="did not answer"):
            client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    with pytest.raises(UnavailableError, match=r"did not answer: .*refused"):
        client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    client.close()


def test_abandoning_ends_a_request_that_waits_and_refuses_further_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = BrokerClient(f"127.0.0.1:{server.getsockname()[1]}", clock=SystemClock(), timeout_s=60)
        failures: list[UnavailableError] = []

        def ask() -> None:
            try:
                client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            except UnavailableError as error:
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1)  # it waits for the answer
            client.abandon()
            asking.join(20)
        assert failures
        with pytest.raises(UnavailableError, match="not asked any more"):
            client.request(RequestCode.GET_BROKER_RUNTIME_INFO)


def test_other_frames_before_the_answer_do_not_keep_it_from_ending_in_time(broker: FakeBroker) -> None:
    broker.raw = encode_frame(Frame(0, 77, 1)) * 3
    client = BrokerClient(broker.address, clock=SystemClock(), timeout_s=0.3)
    with pytest.raises(UnavailableError, match="did not answer"):
        client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    client.close()


def test_the_master_is_found_at_the_first_nameserver_that_answers(broker: FakeBroker) -> None:
    broker.answer(RequestCode.GET_BROKER_CLUSTER_INFO, CLUSTER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    servers = [gone, broker.address]
    found = find_brokers(servers, "broker-a", clock=ManualClock())
    assert found == BrokerAddress("broker-a", "C", "10.0.0.1:10911", ("10.0.0.2:10911",))
    assert found.all == ("10.0.0.1:10911", "10.0.0.2:10911")
    without_master = find_brokers(servers, "broker-b", clock=ManualClock())
    assert (without_master.address, without_master.all) == ("", ("10.0.0.3:10911",))
    with pytest.raises(NotFoundError, match=r"broker-z; the nameserver knows: broker-a, broker-b"):
        find_brokers(servers, "broker-z", clock=ManualClock())
    with pytest.raises(UnavailableError, match=r"no nameserver answers: .*refused"):
        find_brokers([gone], "broker-a", clock=ManualClock())


def test_a_brokers_settings_are_read(broker: FakeBroker, client: BrokerClient) -> None:
    broker.answer(RequestCode.GET_BROKER_CONFIG, CONFIG)
    broker.tell_bounds(0, 1, brokerVersionDesc="V5_4_0")
    facts = facts_of(client)
    assert (facts.name, facts.cluster, facts.role, facts.version) == ("broker-a", "C", "SYNC_MASTER", "V5_4_0")
    assert (facts.segment_bytes, facts.ha_address) == (1 << 20, "10.0.0.9:10912")
    assert (facts.is_controller_mode, facts.is_dledger) == (False, True)
    assert (facts.file_reserved_hours, facts.delete_hours, facts.disk_max_used_percent) == (48, (4, 16), 80)


def test_what_a_slave_copies_is_read(broker: FakeBroker, client: BrokerClient) -> None:
    topics = {"topicConfigTable": {"orders": {"readQueueNums": 8, "writeQueueNums": 4, "perm": 6}, "odd": 3}}
    broker.answer(RequestCode.GET_ALL_TOPIC_CONFIG, topics)
    groups = {"subscriptionGroupTable": {"shop": {"groupName": "shop", "retryMaxTimes": 3}}}
    broker.answer(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups)
    broker.answer(RequestCode.GET_ALL_CONSUMER_OFFSET, b'{"offsetTable":{"orders@shop":{0:12,1:7}}}')
    broker.answer(RequestCode.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{3:9}}')
    state = copied_state(client)
    assert [(topic.name, topic.queue_count, topic.perm) for topic in state.topics] == [("orders", 8, 6)]
    assert [(group.name, group.retry_max_times) for group in state.groups] == [("shop", 3)]
    assert state.consumer_offsets == {("orders", "shop"): {0: 12, 1: 7}}
    assert state.delay_offsets == {3: 9}


@pytest.mark.parametrize(
    ("said", "flushed"),
    [
        ("0 B", 10_000_000),
        ("1023 B", 10_000_000 - 1023),
        ("1.0 KiB", 10_000_000 - 1076),
        ("1,0 KiB", 10_000_000 - 1076),
        ("9.5 MiB", 0),
        ("9.4 MiB", 10_000_000 - 9909044),
        ("", None),
        ("-1 B", None),
        ("many", None),
    ],
)
def test_what_a_broker_has_flushed_is_never_more_than_it_says(said: str, flushed: int | None) -> None:
    info = {"commitLogMinOffset": "0", "commitLogMaxOffset": "10000000", "remainHowManyDataToFlush": said}
    assert flushed_below(info) == flushed


def test_a_log_without_a_file_begins_where_it_ends() -> None:
    assert bounds_in({"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}) == LogBounds(0, 0)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no address"):
        parse_address(address)


def test_addresses_are_read() -> None:
    assert parse_address("broker-a.local:10911") == ("broker-a.local", 10911)
    assert parse_address("[::1]:1") == ("::1", 1)
