"""Two stores of one cluster under a real client: it sends to both and reads both, and does without one that is gone."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes.nodes import ask
from tests.support.rocketmq.real_clients import RealClient, TierlogServer, fresh, keys, names, tierlog_server

pytestmark = pytest.mark.timeout(300)


def sent_to(client: RealClient, topic: str, prefix: str, count: int) -> Counter[int]:
    """How many messages each store got, by the port of its door, which the places of messages name."""
    sent = client.send(topic, prefix, count=count)
    assert {message["status"] for message in sent} == {"SEND_OK"}
    return Counter(int(message["offset_id"][8:16], 16) for message in sent)


def wait_for_both(servers: tuple[TierlogServer, ...]) -> None:
    """Until each store sees the other in the table."""
    deadline_s = time.monotonic() + 60
    for server in servers:
        while len([one for one in ask(server.doors.url, "/v1/cluster")["stores"] if one["epoch"] is not None]) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_a_client_uses_every_store_and_goes_on_without_one_that_was_killed(java_5: RealClient, tmp_path: Path) -> None:
    topic, group = fresh("spread"), fresh("group")
    with tierlog_server(tmp_path, "left") as left, tierlog_server(tmp_path, "right") as right:
        wait_for_both((left, right))
        for server in (left, right):
            ask(server.doors.url, f"/v1/topics/{topic}?store_id={server.root.name}", {"queues": 2}, "PUT")
        client = RealClient(java_5.program, left.doors.remoting)
        left_port, right_port = (int(server.doors.remoting.rpartition(":")[2]) for server in (left, right))
        assert sent_to(client, topic, "both", 12) == {left_port: 6, right_port: 6}
        with client.consumer(topic, group) as wait:
            assert keys(wait(12, 60_000)) == names("both", 12)
            right.kill()
            assert sent_to(client, topic, "alone", 12) == {left_port: 12}
            assert keys(wait(24, 60_000)) == sorted(names("both", 12) + names("alone", 12))
