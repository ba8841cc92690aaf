"""The door: whom it lets in, what strangers may send, and how it closes."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.rocketmq.grpc_client import CALLS_BY_NAME, Code, GrpcClient, message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tests.support.service.certificates import Authority
from tierlog.service.access.tokens import digest
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE
from tierlog.tiering.base.errors import InvalidRequestError

SECRET = "a-secret-of-sixteen-characters"


def test_two_doors_at_one_port_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "first") as world:
        with (
            pytest.raises((InvalidRequestError, OSError)),
            grpc_world(tmp_path / "second", {"rocketmq.grpc_listen": world.address}),
        ):
            pass
        assert not (tmp_path / "second").exists()


def signed(name: str, secret: str = SECRET) -> dict[str, str]:
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    return {
        "authorization": f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}",
        "x-mq-date-time": date,
    }


def test_a_caller_may_do_what_its_entry_says_and_strangers_nothing(tmp_path: Path) -> None:
    hashed = digest("tierlog_x").hex()
    tokens = f"shop:{hashed}/{SECRET}:produce:orders"
    with grpc_world(tmp_path / "store", {"access.tokens": tokens}) as world:
        with world.client() as stranger:
            assert stranger.send(message()).status.code == Code.UNAUTHORIZED
            assert stranger.receive()[0].code == Code.UNAUTHORIZED
        with world.client(metadata=signed("shop", SECRET + "x")) as liar:
            assert liar.send(message()).status.code == Code.UNAUTHORIZED
        with world.client(metadata=signed("shop")) as shop:
            assert shop.send(message()).status.code == Code.OK
            assert shop.send(message(topic="other")).status.code == Code.FORBIDDEN
            assert shop.receive()[0].code == Code.FORBIDDEN
            assert shop.call("QueryRoute", topic=resource("other")).status.code == Code.FORBIDDEN
            (queue, *_) = shop.call("QueryRoute", topic=resource("orders")).message_queues
            assert queue.permission == 3  # WRITE


def test_the_door_shows_the_certificate_of_the_service(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("server")
    set_ = {"serve.tls_certificate": str(certificate), "serve.tls_key": str(key)}
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with grpc_world(tmp_path / "store", set_) as world, world.client(credentials=credentials) as client:
        assert client.send(message()).status.code == Code.OK


def test_a_certificate_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    set_ = {"serve.tls_certificate": str(tmp_path / "no.pem")}
    with (
        pytest.raises(InvalidRequestError, match="certificate and key cannot be read"),
        grpc_world(tmp_path / "store", set_),
    ):
        pass


def test_a_message_longer_than_a_frame_is_refused(tmp_path: Path) -> None:
    set_ = {"rocketmq.max_frame_bytes": 64 << 10}
    with grpc_world(tmp_path / "store", set_) as world, world.client() as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.send(message(bytes(65 << 10)))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.send(message(bytes(60 << 10))).status.code == Code.OK


def test_metadata_is_bounded(world: GrpcWorld) -> None:
    with world.client(metadata={"x": "y" * (20 << 10)}) as client, pytest.raises(grpc.RpcError):
        client.send(message())


def test_there_are_no_more_connections_than_allowed(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", {"rocketmq.max_connections": 3}) as world:
        host, _, port = world.address.rpartition(":")
        held = [socket.create_connection((host, int(port)), timeout=20) for _ in range(3)]
        assert all(one.recv(9) for one in held), "each is greeted"
        with socket.create_connection((host, int(port)), timeout=20) as further:
            assert further.recv(9) == b""
        for one in held:
            one.close()


def test_bytes_of_another_protocol_end_the_connection_and_nothing_else(world: GrpcWorld, client: GrpcClient) -> None:
    host, _, port = world.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while stranger.recv(4_096):
            pass
    assert client.send(message()).status.code == Code.OK


HOSTILE = st.one_of(
    st.binary(max_size=300), st.builds(bytes.__add__, st.just(b"\x0a\xff\xff\xff\xff\x0f"), st.binary(max_size=50))
)


@pytest.fixture(scope="module")
def open_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with grpc_world(tmp_path_factory.mktemp("hostile") / "store") as made:
        yield made


def strategy_of(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Well-formed messages with any values."""
    fields = {}
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if depth == 4:
                continue
            one: st.SearchStrategy[Any] = strategy_of(field.message_type, depth + 1)
        elif field.enum_type is not None:
            one = st.sampled_from([-1, 0, 1, 2, 3, 4, 99])
        else:
            one = _VALUES[field.cpp_type if field.type != field.TYPE_BYTES else "bytes"]
        fields[field.name] = st.lists(one, max_size=2) if field.is_repeated else one
    return st.fixed_dictionaries({}, optional=fields)


_TEXTS = st.one_of(st.sampled_from(["", "g", "orders", "*", "\x00", "%", "a||b", "x" * 300]), st.text(max_size=20))
_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    1: st.sampled_from([0, 1, -1, 7, 2**31 - 1, -(2**31)]),  # int32
    2: st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)]),  # int64
    6: st.sampled_from([0.0, 1.5, float("nan"), float("inf")]),  # float
    7: st.booleans(),
    9: _TEXTS,
    "bytes": st.binary(max_size=50),
}


@pytest.mark.parametrize("name", [call.name for call in CALLS if not call.request_streams])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_request_has_a_status_whatever_is_in_it(open_world: GrpcWorld, name: str, data: st.DataObject) -> None:
    kind = CALLS_BY_NAME[name]
    fields = data.draw(strategy_of(kind.request.DESCRIPTOR))
    for waits in ("long_polling_timeout",):
        fields.pop(waits, None)
    with open_world.client() as client:
        found = client.call(name, timeout_s=3, **fields)
    status = found[0].status if kind.response_streams else found.status
    assert status.code in {int(code) for code in Code}
    assert status.code != Code.INTERNAL_ERROR, status.message


@settings(max_examples=40, deadline=None)
@given(content=HOSTILE, name=st.sampled_from([call.name for call in CALLS if not call.request_streams]))
def test_bytes_that_are_no_request_are_answered_or_refused(open_world: GrpcWorld, content: bytes, name: str) -> None:
    with open_world.client() as client:
        run = client.channel.unary_stream(f"/{SERVICE}/{name}", None, CALLS_BY_NAME[name].response.FromString)
        with contextlib.suppress(grpc.RpcError):  # bytes that are none of the protocol's
            assert list(run(content, timeout=3, metadata=client.metadata))
        assert client.call("Heartbeat", client_type=1).status.code == Code.OK
