"""Metrics of the doors: what was asked and answered, how long it took, and who is there."""

from __future__ import annotations

from pathlib import Path

from tests.service.rocketmq.test_both_doors import BOTH, pulled, remoting, sent_by_remoting
from tests.support.rocketmq.grpc_client import message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tierlog.service.api.metrics import Metrics
from tierlog.service.rocketmq.grpc.protocol import messages


def samples(world: GrpcWorld) -> dict[str, float]:
    """Samples of the doors, by name and labels as they are written."""
    text = Metrics(world.store, doors=world.doors.observed).text().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("tierlog_rocketmq_")]
    return {name: float(value) for name, _, value in lines}


def test_requests_are_counted_by_name_and_answer_and_those_with_messages_are_timed(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        sent_by_remoting(other, b"hello")
        pulled(other)
        other.ask(4_711)
        other.ask(105, {"topic": "none"})
        client.send(message(b"12345"))
        client.receive()
        found = samples(world)
    for named in (
        'answer="success",door="remoting",request="send_message_v2"',
        'answer="success",door="remoting",request="pull_message"',
        'answer="request_code_not_supported",door="remoting",request="other"',
        'answer="topic_not_exist",door="remoting",request="get_routeinfo_by_topic"',
        'answer="ok",door="grpc",request="SendMessage"',
        'answer="ok",door="grpc",request="ReceiveMessage"',
    ):
        assert found[f"tierlog_rocketmq_requests_total{{{named}}}"] == 1
    for door in ("remoting", "grpc"):
        for flow in ("send", "receive"):
            assert found[f'tierlog_rocketmq_request_seconds_count{{door="{door}",flow="{flow}"}}'] == 1
        for direction in ("received", "sent"):
            assert found[f'tierlog_rocketmq_{direction}_bytes_total{{door="{door}"}}'] >= 5


def test_who_is_at_a_door_is_told(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", BOTH) as world, world.client() as client, remoting(world) as other:
        other.heartbeat("g", topics={"orders": "*"})
        with client.telemetry() as stream:
            stream.ask(settings=messages.Settings(publishing=messages.Publishing(topics=[resource("orders")])))
            found = samples(world)
    assert found['tierlog_rocketmq_connections{door="remoting"}'] == 1
    assert found['tierlog_rocketmq_members{door="remoting",kind="consumer"}'] == 1
    assert found['tierlog_rocketmq_groups{door="remoting"}'] == 1
    assert found['tierlog_rocketmq_members{door="grpc",kind="producer"}'] == 1
    assert found['tierlog_rocketmq_clients{door="grpc"}'] == found['tierlog_rocketmq_clients{door="remoting"}'] == 1
    assert found['tierlog_rocketmq_waiting_requests{door="grpc"}'] == 0


def test_connections_that_a_full_door_turned_away_are_counted(tmp_path: Path) -> None:
    with (
        grpc_world(tmp_path / "store", {**BOTH, "rocketmq.max_connections": 1}) as world,
        remoting(world) as first,
    ):
        first.send(105, {"topic": "none"})
        with remoting(world) as second:
            assert first.is_closed_by_peer() or second.is_closed_by_peer()
        found = samples(world)
    refused = [value for name, value in found.items() if name.startswith("tierlog_rocketmq_refused_connections_total")]
    assert sum(refused) == 1
