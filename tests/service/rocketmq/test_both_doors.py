"""A message that one door took is the same at the other, and to those who ask the store."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

from tests.support.rocketmq.grpc_client import Code, message
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tests.support.rocketmq.remoting_client import RemotingClient
from tierlog.index.search.query import Query
from tierlog.service.rocketmq.grpc.messages import milliseconds
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.rocketmq.codes import RequestCode

BOTH = {"rocketmq.listen": "127.0.0.1:0", "hot.default_queues": 1}
TEXT = "UNIQ_KEY\x010A0B\x02KEYS\x01k1 k2\x02TAGS\x01paid\x02a\x01b\x02"


def remoting(world: GrpcWorld) -> RemotingClient:
    assert world.settings.rocketmq.listen is not None
    return RemotingClient(world.settings.rocketmq.listen)


def pulled(client: RemotingClient, offset: int = 0) -> Record:
    """The record at an offset, as a consumer of remoting gets it."""
    fields = {
        "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": offset, "maxMsgNums": 1, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return decode_record(client.done(RequestCode.PULL_MESSAGE, fields).body)


def sent_by_remoting(client: RemotingClient, body: bytes, sys_flag: int = 0, reconsumed: int = 0) -> None:
    fields = {
        "a": "p", "b": "orders", "c": "TBW102", "d": 1, "e": 0, "f": sys_flag, "g": 1_700_000_000_123, "h": 0,
        "i": TEXT, "j": reconsumed, "k": False, "m": False,
    }  # fmt: skip
    client.done(RequestCode.SEND_MESSAGE_V2, fields, body)


def test_what_grpc_sent_is_pulled_by_remoting_and_found_by_key(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        client.send(
            message(
                b"\x00\xffhello", message_id="0A0B", keys=["k1", "k2"], tag="paid", user={"a": "b"},
                born_ms=1_700_000_000_123,
            )
        )  # fmt: skip
        record = pulled(other)
        assert (record.body, record.born_ms, record.sys_flag) == (b"\x00\xffhello", 1_700_000_000_123, 0)
        assert record.properties == {"UNIQ_KEY": "0A0B", "KEYS": "k1 k2", "TAGS": "paid", "a": "b"}
        for key in ("k2", "0A0B"):
            (found,) = world.store.query(Query("orders", key=key)).messages
            assert found.record == record


def test_what_remoting_sent_is_received_by_grpc(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        sent_by_remoting(other, b"hello")
        sent_by_remoting(other, zlib.compress(b"packed" * 100), sys_flag=1)
        _, found = client.receive()
        assert [one.body for one in found] == [b"hello", b"packed" * 100]
        for one in found:
            of = one.system_properties
            assert (of.message_id, list(of.keys), of.tag, dict(one.user_properties)) == (
                "0A0B", ["k1", "k2"], "paid", {"a": "b"},
            )  # fmt: skip
            assert (milliseconds(of.born_timestamp), of.born_host) == (1_700_000_000_123, "127.0.0.1")


def test_an_acknowledgement_at_one_door_holds_at_the_other(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        sent_by_remoting(other, b"1")
        _, found = client.receive("g")
        assert client.ack(*found, group="g").status.code == Code.OK
        asked = {"consumerGroup": "g", "topic": "orders", "queueId": 0}

        def is_told() -> bool:
            return other.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked).fields["offset"] == "1"

        end_s = time.monotonic() + 20  # acknowledgements are committed together, soon after
        while not is_told():
            assert time.monotonic() < end_s
            time.sleep(0.05)


def test_reading_by_offset_gives_the_same_at_both_doors(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        for number in range(3):
            client.send(message(b"%d" % number, message_id=f"{number:02X}"))
        by_remoting = [pulled(other, offset) for offset in range(3)]
        assert [one.body for one in by_remoting] == [b"0", b"1", b"2"]
        assert by_remoting == [one.record for one in world.stored()]
