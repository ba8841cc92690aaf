"""The service is killed under clients that produce and consume in order: what they may rely on afterwards."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.support.processes.nodes import pulled
from tests.support.rocketmq.real_clients import RealClient, fresh, keys, names, tierlog_server

pytestmark = pytest.mark.timeout(400)
_KILLS = 2


def steps(found: list[str]) -> dict[str, list[int]]:
    """The numbers of each shard's messages, where each comes first."""
    order: dict[str, list[int]] = defaultdict(list)
    for key in dict.fromkeys(found):
        _, shard, number = key.split("-")
        order[shard].append(int(number))
    return order


@pytest.mark.parametrize("again", range(2))
def test_kills_lose_nothing_acknowledged_and_keep_order_and_delays_fire_once(
    java_5: RealClient, tmp_path: Path, seed: int, again: int
) -> None:
    chance = random.Random(seed + again)
    work, late, group = fresh("work"), fresh("late"), fresh("group")
    with tierlog_server(tmp_path) as server:
        client = RealClient(java_5.program, server.doors.remoting)
        client.send(work, "load-0")
        client.send(late, "late", count=20, **{"property.TIMER_DELAY_MS": 2_000 + chance.randrange(2_000)})
        load = fresh("load")
        client.do("load", id=load, topic=work, prefix="load", shards=4, pause_ms=3)
        with client.consumer(work, group, kind="orderly") as wait:
            for _ in range(_KILLS):
                time.sleep(chance.uniform(0.3, 2.0))
                server.kill()
                server.start()
            acknowledged = {message["key"] for message in client.do("stop-load", id=load)["messages"]}
            deadline_s = time.monotonic() + 90
            while not acknowledged <= (got := {message["key"] for message in wait(1 << 30, 500)}):
                assert time.monotonic() < deadline_s, sorted(acknowledged - got)
            delivered = [message["key"] for message in wait(0, 0)]
        assert len(acknowledged) > 100
        assert all(numbers == sorted(numbers) for numbers in steps(delivered).values())
        while len(fired := keys_in(server.doors.url, late)) < 20 and time.monotonic() < deadline_s:
            time.sleep(0.2)

        server.stop()
        server.start()
        client.send(work, "load-9", how="ordered", count=1)
        with client.consumer(work, group, kind="orderly") as wait:
            wait(1, 60_000)
            assert keys(wait(2, 1_500)) == names("load-9", 1)
        assert Counter(keys_in(server.doors.url, late)) == Counter(fired) == Counter(names("late", 20))


def keys_in(url: str, topic: str) -> list[str]:
    """Of all messages that the topic has, also of those that it has twice."""
    return sorted(message["keys"][0] for message in pulled(url, topic))
