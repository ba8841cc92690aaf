"""The service is killed under gRPC clients of all languages at once: what they may rely on afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.nodes import Json, ask, pulled
from tests.support.rocketmq.real_clients import FIFO_GROUPS, ClientError, RealClient, fresh, keys, names, tierlog_server

pytestmark = pytest.mark.timeout(400)
_CLIENTS = ("java_grpc", "python", "node", "rust")
_KILLS = 2
_SHARDS = 3
_LATE = 4
#: So long is a message away whose delivery a kill has cut off; the door allows no less.
_INVISIBLE_MS = 10_000
_WITHIN_S = 120
#: More than so many messages of each client are acknowledged.
_LEAST = 20
Wait = Callable[[int, int], list[Json]]


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> dict[str, RealClient]:
    """A client of each language."""
    return {name: request.getfixturevalue(name) for name in _CLIENTS}


def test_kills_lose_nothing_acknowledged_and_keep_order_and_delays_fire_once(
    programs: dict[str, RealClient], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    work, late = fresh("work"), fresh("late")
    groups = {name: fresh(FIFO_GROUPS.rstrip("-*")) for name in programs}
    # a delivery that was cut off counts as an attempt
    with tierlog_server(tmp_path, TIERLOG_ROCKETMQ_MAX_ATTEMPTS="16") as server:
        clients = {name: RealClient(program.program, server.doors.grpc) for name, program in programs.items()}
        for name, client in clients.items():
            client.send(late, f"late.{name}", count=_LATE, delay_ms=2_000 + chance.randrange(4_000))
        with ExitStack() as consumers, ThreadPoolExecutor(len(clients)) as threads:
            waits = {
                name: consumers.enter_context(
                    client.consumer(work, groups[name], kind="simple", invisible_ms=_INVISIBLE_MS)
                )
                for name, client in clients.items()
            }
            over = threading.Event()
            loads = {name: threads.submit(load, client, work, name, over) for name, client in clients.items()}
            try:
                for _ in range(_KILLS):
                    time.sleep(chance.uniform(0.5, 2.0))
                    server.kill()
                    server.start()
            finally:
                over.set()
            acknowledged = {key for found in loads.values() for key in found.result()}
            assert all(len(found.result()) > _LEAST for found in loads.values())
            deadline_s = time.monotonic() + _WITHIN_S
            for name, wait in waits.items():
                delivered = all_delivered(wait, acknowledged, deadline_s)
                assert all(numbers == sorted(numbers) for numbers in steps(delivered).values()), name
            while len(fired := keys_in(server.doors.url, late)) < _LATE * len(clients):
                assert time.monotonic() < deadline_s, fired
                time.sleep(0.2)
            for name, group in groups.items():
                while left := ask(server.doors.url, f"/v1/groups/{group}")["lag"]:
                    assert time.monotonic() < deadline_s, (name, left)
                    time.sleep(0.2)

        server.stop()
        server.start()
        assert Counter(keys_in(server.doors.url, late)) == Counter(fired)
        assert sorted(fired) == sorted(key for name in clients for key in names(f"late.{name}", _LATE))
        clients["rust"].send(work, "after")
        for name, client in clients.items():
            with client.consumer(work, groups[name], kind="simple", invisible_ms=_INVISIBLE_MS) as wait:
                wait(1, 60_000)
                assert keys(wait(2, 500)) == ["after-0"], name


def load(client: RealClient, topic: str, name: str, over: threading.Event) -> list[str]:
    """Sends one message after another, to one message group and the next, and returns the keys of those acknowledged.

    What was not acknowledged may be there or not; it is not sent again. On a busy machine it goes on until enough are.
    """
    acknowledged: list[str] = []
    number, deadline_s = 0, time.monotonic() + _WITHIN_S
    while not over.wait(0.01) or (len(acknowledged) <= _LEAST and time.monotonic() < deadline_s):
        shard = f"{name}.{number % _SHARDS}"
        try:
            (sent,) = client.send(topic, f"{shard}-{number}", message_group=shard)
            acknowledged.append(str(sent["key"]))
        except ClientError:
            over.wait(0.1)
        number += 1
    return acknowledged


def all_delivered(wait: Wait, expected: set[str], deadline_s: float) -> list[str]:
    """The keys of all deliveries, once each message that is expected was delivered."""
    while missing := expected - set(delivered := [message["key"] for message in wait(1 << 30, 200)]):
        assert time.monotonic() < deadline_s, sorted(missing)
    return delivered


def steps(delivered: list[str]) -> dict[str, list[int]]:
    """The numbers of each message group's messages, where each comes first."""
    order: dict[str, list[int]] = defaultdict(list)
    for key in dict.fromkeys(delivered):
        group, number, _ = key.split("-")
        order[group].append(int(number))
    return order


def keys_in(url: str, topic: str) -> list[str]:
    """Of all messages that the topic has, also of those that it has twice."""
    return [key for message in pulled(url, topic) for key in message["keys"] if key.startswith("late.")]
