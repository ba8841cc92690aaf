"""The remoting door: what clients may rely on, and what it survives of them."""

import contextlib
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import HandClock, RemotingWorld, remoting_world
from tests.support.service.certificates import Authority
from tierlog.service.config.settings import Settings
from tierlog.service.rocketmq.remoting.calls import answer_of
from tierlog.service.rocketmq.remoting.connection import BEHIND_BYTES
from tierlog.service.rocketmq.remoting.server import IDLE_S
from tierlog.service.server.connections import ACCEPTED_AT_ONCE, kept_descriptors
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame, HeaderForm, encode_frame

_WAITING_PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6,
    "commitOffset": 0, "suspendTimeoutMillis": 30_000, "subscription": "*", "subVersion": 0,
}  # fmt: skip


@pytest.mark.parametrize("form", HeaderForm)
def test_a_request_that_waits_holds_up_no_other_of_its_connection(tmp_path: Path, form: HeaderForm) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(form=form) as client:
        world.store.create_topic("orders", 1)
        waiting = client.send(RequestCode.PULL_MESSAGE, _WAITING_PULL)
        assert client.route("orders")["queueDatas"][0]["readQueueNums"] == 1
        world.store.append([Message("orders", b"here", queue_id=0)])
        answer = client.answer_to(waiting)
        assert (answer.code, answer.form) == (ResponseCode.SUCCESS, form)


def test_an_unknown_code_is_answered_as_not_supported(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        answer = client.ask(99_999)
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 99999 not supported",
        )  # fmt: skip


def test_fields_that_are_wrong_are_answered_with_their_name(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "many"})
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER, "the field queueId is no number: 'many'",
        )  # fmt: skip
        answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders"})
        assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, "the field queueId is missing")


def test_fields_that_are_no_texts_are_answered_with_an_error(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        header = b'{"code":105,"opaque":41,"extFields":{"topic":{"a":1}}}'
        client.socket.sendall(struct.pack(">iI", 4 + len(header), len(header)) + header)
        answer = client.answer_to(41)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "field 'topic' is no text")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">iI", -5, 0), id="negative length"),
        pytest.param(struct.pack(">iI", (1 << 31) - 1, 0), id="longer than a frame may be"),
        pytest.param(struct.pack(">iI", 20, 0x00FFFFFF), id="header longer than the frame"),
        pytest.param(struct.pack(">iI", 8, 4) + b"{{{{body", id="no JSON"),
        pytest.param(struct.pack(">iI", 8, 7 << 24 | 4) + b"abcdbody", id="unknown form"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS where there is none"),
    ],
)
def test_what_is_no_frame_ends_the_connection_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as other, world.client() as client:
        client.socket.sendall(data)
        assert client.is_closed_by_peer()
        assert other.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SUCCESS
        assert world.in_work() == 0


_CODES = st.sampled_from([int(code) for code in RequestCode]) | st.integers(-(1 << 31), (1 << 31) - 1)
_NAMES = st.sampled_from(
    [
        "topic", "queueId", "consumerGroup", "queueOffset", "sysFlag", "maxMsgNums", "commitOffset", "key", "offset",
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "clientID", "timestamp", "group",
    ]
)  # fmt: skip
_VALUES = st.sampled_from(
    ["", "0", "-1", "1", "4", "orders", "TBW102", "%RETRY%g", "9223372036854775808", "\x01\x02", "é", "*", "true"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)  # fmt: skip


def test_whatever_a_frame_says_it_is_answered(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        world.store.append([Message("orders", b"one", queue_id=0)])

        @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(_CODES, st.dictionaries(_NAMES, _VALUES, max_size=16), st.binary(max_size=60) | _BODIES, st.booleans())
        def asks(code: int, fields: dict[str, str], body: bytes, is_binary: bool) -> None:
            if is_binary and not -(1 << 15) <= code < 1 << 15:
                return
            client.form = HeaderForm.ROCKETMQ if is_binary else HeaderForm.JSON
            fields.pop("suspendTimeoutMillis", None)
            answer = client.ask(code, fields, body)
            assert answer.remark != "an unexpected error, see the service's log", (code, fields, body)

        asks()


_BODIES = st.sampled_from(
    [
        b"{}", b"[]", b"null", b'{"clientID":1}', b'{"clientID":"c","consumerDataSet":[{}]}', b'{"mqSet":[{}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":"x"}]}]}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":1,"queueId":{}}]}', b'{"subscriptionData":7}',
        b'{"clientID":"c","heartbeatFingerprint":1e400}', b'{"consumerGroup":[],"clientId":"c"}',
    ]
)  # fmt: skip


def test_a_client_that_sends_half_a_frame_is_closed_in_time(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"serve.receive_timeout_ms": 100}) as world, world.client() as client:
        client.socket.sendall(encode_frame(Frame(106, 1))[:10])
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("rest", [b"", struct.pack(">iI", -1, 0)])
def test_what_a_client_held_is_counted_no_longer_when_it_is_gone(tmp_path: Path, rest: bytes) -> None:
    frame = encode_frame(Frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, body=bytes(5000)))
    with remoting_world(tmp_path / "store") as world:
        with world.client() as client:
            client.socket.sendall(frame[:4000])
            world.wait_until(lambda: world.in_work() == 4000)
            client.socket.sendall(frame[4000:] + (rest or frame[:100]))
            world.wait_until(lambda: world.in_work() == (0 if rest else 100))
        world.wait_until(lambda: world.in_work() == 0)


def test_a_client_that_sends_nothing_is_closed_in_time(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"serve.receive_timeout_ms": 100}) as world, world.client() as client:
        assert client.is_closed_by_peer()


def test_an_idle_client_is_closed_after_two_minutes_and_not_before(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock) as world, world.client() as client:
        client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        clock.advance((IDLE_S - 1) * 1000)
        client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        clock.advance((IDLE_S + 1) * 1000)
        assert client.is_closed_by_peer()


def test_a_client_that_waits_for_messages_is_not_idle(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock) as world, world.client() as client:
        world.store.create_topic("orders", 1)
        waiting = client.send(RequestCode.PULL_MESSAGE, _WAITING_PULL)
        with world.client() as idle:
            idle.done(RequestCode.GET_BROKER_CLUSTER_INFO)
            clock.advance((IDLE_S + 1) * 1000)
            assert idle.is_closed_by_peer()
        world.store.append([Message("orders", b"here", queue_id=0)])
        assert client.answer_to(waiting).code == ResponseCode.SUCCESS


def _fill(world: RemotingWorld, count: int) -> None:
    world.store.append([Message("orders", bytes(1 << 20), queue_id=0) for _ in range(count)])


def test_a_client_that_takes_nothing_is_cut_off_and_holds_little_until_then(tmp_path: Path) -> None:
    given = {"serve.send_timeout_ms": 300, "serve.min_send_rate": 1 << 20, "hot.segment_bytes": 64 << 20}
    with remoting_world(tmp_path / "store", given) as world, world.client() as client, world.client() as other:
        _fill(world, 8)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pull = {**_WAITING_PULL, "sysFlag": 4}
        for _ in range(200):
            client.send(RequestCode.PULL_MESSAGE, pull)
        assert other.done(RequestCode.PULL_MESSAGE, pull).body
        threads = world.settings.serve.read_threads
        assert world.waiting_bytes() <= BEHIND_BYTES + threads * (5 << 20)
        world.wait_until(lambda: world.connections() == 1)
        assert other.done(RequestCode.PULL_MESSAGE, pull).body


def test_a_slow_client_gets_all_that_it_asked_for(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"hot.segment_bytes": 64 << 20}) as world, world.client() as client:
        _fill(world, 8)
        numbers = [client.send(RequestCode.PULL_MESSAGE, {**_WAITING_PULL, "sysFlag": 4}) for _ in range(30)]
        sizes = {len(client.answer_to(number).body) for number in numbers}
        assert len(sizes) == 1
        assert sizes.pop() > 3 << 20


def test_a_connection_too_many_is_closed_but_one_that_only_waits_makes_room(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"rocketmq.max_connections": 2}) as world:
        with world.client() as first, world.client() as silent:
            first.done(RequestCode.GET_BROKER_CLUSTER_INFO)
            with world.client() as second:
                second.done(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert silent.is_closed_by_peer()
                with world.client() as third:
                    assert third.is_closed_by_peer()
                first.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        with world.client() as again:
            world.wait_until(lambda: world.connections() == 1)
            again.done(RequestCode.GET_BROKER_CLUSTER_INFO)


def test_descriptors_are_kept_for_the_doors_connections_where_one_is_open() -> None:
    def kept(**doors: object) -> int:
        overrides = {f"rocketmq.{name}": value for name, value in doors.items()}
        return kept_descriptors(Settings.load(overrides=overrides))

    assert kept(max_connections=100) == kept()
    assert kept(max_connections=100, listen="127.0.0.1:0") == kept() + 100 + ACCEPTED_AT_ONCE


def test_a_flood_of_half_open_connections_keeps_nobody_out(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"rocketmq.max_connections": 8}) as world:
        flood = [socket.create_connection(world.host_and_port) for _ in range(200)]
        with world.client() as client:
            client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert world.connections() <= 8
        for one in flood:
            one.close()


def test_too_many_that_wait_are_told_to_come_back(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"serve.max_long_polls": 1}) as world, world.client() as client:
        world.store.create_topic("orders", 1)
        first = client.send(RequestCode.PULL_MESSAGE, _WAITING_PULL)
        second = client.send(RequestCode.PULL_MESSAGE, _WAITING_PULL)
        busy = next(
            number
            for number in client.first_answers({first, second})
            if client.answer_to(number).code == ResponseCode.SYSTEM_BUSY
        )
        world.store.append([Message("orders", b"here", queue_id=0)])
        assert client.answer_to(({first, second} - {busy}).pop()).code == ResponseCode.SUCCESS


def test_requests_without_an_answer_are_read_no_further_than_their_bound(tmp_path: Path) -> None:
    given = {"rocketmq.max_frame_bytes": 64 << 10, "serve.max_long_polls": 100_000}
    with remoting_world(tmp_path / "store", given) as world, world.client() as client:
        world.store.create_topic("orders", 1)
        frame = encode_frame(Frame(RequestCode.PULL_MESSAGE, 1, 0, {k: str(v) for k, v in _WAITING_PULL.items()}))
        client.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(10_000):
                client.socket.sendall(frame * 100)
            pytest.fail("the door read a million requests that wait")
        assert world.in_work() <= 2 << 20
        with world.client() as other:
            other.done(RequestCode.GET_BROKER_CLUSTER_INFO)


def test_the_stop_answers_who_waits_and_keeps_what_came_oneway(tmp_path: Path) -> None:
    send = {"a": "p", "b": "orders", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
    with RemotingClientAfter() as after:
        with remoting_world(tmp_path / "store") as world:
            world.store.create_topic("orders", 1)
            world.store.create_topic("quiet", 1)
            client = after.client = world.client()
            waiting = client.send(RequestCode.PULL_MESSAGE, {**_WAITING_PULL, "topic": "quiet"})
            for _ in range(200):
                client.send(RequestCode.SEND_MESSAGE_V2, send, b"oneway", oneway=True)
            client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert client.answer_to(waiting).code == ResponseCode.PULL_NOT_FOUND
        assert client.is_closed_by_peer()
    with remoting_world(tmp_path / "store") as world:
        assert world.store.offsets("orders", 0) == (0, 200)


class RemotingClientAfter:
    """A client that outlives the service."""

    client: RemotingClient

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: object) -> None:
        self.client.close()


def test_tls_is_spoken_on_the_same_port_by_whoever_begins_with_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("server")
    given = {"serve.tls_certificate": str(certificate), "serve.tls_key": str(key), "hot.segment_bytes": 64 << 20}
    trusted = ssl.create_default_context(cafile=str(authority.file))
    with remoting_world(tmp_path / "store", given) as world:
        _fill(world, 4)
        with world.client(tls=trusted) as secret, world.client() as plain:
            pulled = [one.done(RequestCode.PULL_MESSAGE, {**_WAITING_PULL, "sysFlag": 4}) for one in (secret, plain)]
            assert pulled[0].body == pulled[1].body
            assert len(pulled[0].body) > 3 << 20
        with socket.create_connection(world.host_and_port) as broken:
            broken.sendall(b"\x16\x03\x01\x00\x05hello" + bytes(100))
            assert not broken.recv(1 << 10).startswith(b"\x00")


def test_where_clients_show_certificates_none_comes_in_without(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("server")
    client_certificate, client_key = authority.sign("client")
    given = {
        "serve.tls_certificate": str(certificate),
        "serve.tls_key": str(key),
        "serve.tls_client_ca": str(authority.file),
    }
    trusted = ssl.create_default_context(cafile=str(authority.file))
    with remoting_world(tmp_path / "store", given) as world:
        with world.client() as plain:
            plain.send(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert plain.is_closed_by_peer()
        trusted.load_cert_chain(client_certificate, client_key)
        with world.client(tls=trusted) as client:
            client.done(RequestCode.GET_BROKER_CLUSTER_INFO)


def test_every_error_of_the_store_has_a_code_and_its_words() -> None:
    def tree(kind: type[StoreError]) -> list[type[StoreError]]:
        return [kind, *(each for below in kind.__subclasses__() for each in tree(below))]

    for kind in tree(StoreError):
        if kind.__module__.startswith("tierlog.client"):
            continue  # what a service says becomes one of these; the store raises none
        answer = answer_of(kind("what happened", hint="what to do"))
        assert answer.code in list(ResponseCode)
        assert answer.remark == "what happened; what to do"


def test_an_unexpected_error_tells_nobody_of_it() -> None:
    answer = answer_of(KeyError("secret"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "an unexpected error, see the service's log")


def test_an_answer_that_nobody_asked_for_is_passed_over(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        client.socket.sendall(encode_frame(Frame(0, 77, FrameFlag.RESPONSE)))
        client.done(RequestCode.GET_BROKER_CLUSTER_INFO)
