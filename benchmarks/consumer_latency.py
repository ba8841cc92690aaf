"""How long does a message take from the call that appends it to a handler, and how many can one consumer take?

A service runs as a process of its own, this process appends and consumes over HTTP on the loopback. For latency,
``--messages`` of some 240 bytes are appended one by one, ``--rate`` a second, each flushed to the disk before it is
answered; the time is from before the call to the first line of the handler, by one clock. For throughput, a group
without a commit reads what lies in 4 queues, in order and in any order, to the last commit. The client with threads
(``Client``, ``Consumer``) and the one on an event loop (``AsyncClient``, ``AsyncConsumer``) take turns.

``python benchmarks/consumer_latency.py [--messages 1000] [--rate 200] [--backlog 20000] [--runs 4] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Report, Row, in_turns
from tests.support.processes.nodes import Node
from tierlog.client import AsyncClient, AsyncConsumer, Client, Consumer, Message, StoredMessage

QUEUES = 4
_FILLER = b" " * 230
_WARM_UPS = 20


class Arrivals:
    """When each message of a run was sent and came to a handler."""

    def __init__(self, count: int) -> None:
        self._sent_s = [0.0] * count
        self._came_s = [0.0] * count
        self._left = count
        self.all_came = threading.Event()

    def body(self, number: int) -> bytes:
        self._sent_s[number] = time.perf_counter()
        return b"%d" % number + _FILLER

    def came(self, message: StoredMessage) -> None:
        self._came_s[int(message.body)] = time.perf_counter()
        self._left -= 1
        if not self._left:
            self.all_came.set()

    def latencies_ms(self) -> list[float]:
        """Without the first few, for which connections are opened."""
        both = zip(self._sent_s, self._came_s, strict=True)
        return sorted((came - sent) * 1000 for sent, came in list(both)[_WARM_UPS:])


def with_threads(url: str, group: str, count: int, rate: float) -> list[float]:
    arrivals = Arrivals(count)
    with Client(url) as client, Consumer(client, group, [group], arrivals.came, heartbeat_s=0.2) as consumer:
        client.make_topic(group, queues=QUEUES)
        while len(consumer.assignment) < QUEUES:
            time.sleep(0.05)
        begun_s = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, begun_s + number / rate - time.perf_counter()))
            client.append(group, [Message(arrivals.body(number))])
        arrivals.all_came.wait(60)
    return arrivals.latencies_ms()


def on_a_loop(url: str, group: str, count: int, rate: float) -> list[float]:
    arrivals = Arrivals(count)

    async def handle(message: StoredMessage) -> None:
        arrivals.came(message)

    async def work() -> None:
        async with (
            AsyncClient(url) as client,
            AsyncConsumer(client, group, [group], handle, heartbeat_s=0.2) as consumer,
        ):
            await client.make_topic(group, queues=QUEUES)
            while len(consumer.assignment) < QUEUES:
                await asyncio.sleep(0.05)
            begun_s = time.perf_counter()
            for number in range(count):
                await asyncio.sleep(max(0.0, begun_s + number / rate - time.perf_counter()))
                await client.append(group, [Message(arrivals.body(number))])
            while not arrivals.all_came.is_set():
                await asyncio.sleep(0.05)

    asyncio.run(work())
    return arrivals.latencies_ms()


def taken_by_threads(url: str, group: str, topic: str, count: int, *, is_ordered: bool) -> float:
    """Messages a second."""
    got: list[StoredMessage] = []
    begun_s = time.perf_counter()
    with Client(url) as client, Consumer(client, group, [topic], got.append, is_ordered=is_ordered):
        while len(got) < count:
            time.sleep(0.005)
    return count / (time.perf_counter() - begun_s)


def taken_on_a_loop(url: str, group: str, topic: str, count: int, *, is_ordered: bool) -> float:
    """Messages a second."""
    got: list[StoredMessage] = []

    async def handle(message: StoredMessage) -> None:
        got.append(message)

    async def work() -> None:
        async with AsyncClient(url) as client, AsyncConsumer(client, group, [topic], handle, is_ordered=is_ordered):
            while len(got) < count:
                await asyncio.sleep(0.005)

    begun_s = time.perf_counter()
    asyncio.run(work())
    return count / (time.perf_counter() - begun_s)


def at(latencies_ms: Sequence[float], share: float) -> float:
    """The latency that such a share of the messages does not pass."""
    return latencies_ms[min(len(latencies_ms) - 1, int(share * len(latencies_ms)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        root = Path(folder).resolve()
        node = Node(root / "store", f"file://{root}/cold", "").start()
        try:
            latency(report, node.url, given)
            throughput(report, node.url, given)
        finally:
            node.kill()
    report.save()


def latency(report: Report, url: str, given: argparse.Namespace) -> None:
    """Percentiles of each turn."""
    found: dict[str, list[list[float]]] = {"threads": [], "event loop": []}
    for turn in range(given.runs):
        for name, side in (("threads", with_threads), ("event loop", on_a_loop)):
            group = f"latency-{name.replace(' ', '-')}-{turn}"
            found[name].append(side(url, group, given.messages, given.rate))
    for share, what in ((0.5, "p50"), (0.99, "p99")):
        sides = {name: [at(turn, share) for turn in turns] for name, turns in found.items()}
        report.add(Row(f"append to handler, {what}", "ms", sides, smaller_is_better=True))


def throughput(report: Report, url: str, given: argparse.Namespace) -> None:
    """A backlog that is read to its end."""
    topic = "backlog"
    with Client(url) as client:
        client.make_topic(topic, queues=QUEUES)
        for begin in range(0, given.backlog, 2_000):
            bodies = range(begin, min(begin + 2_000, given.backlog))
            client.append(topic, [Message(b"%d" % number + _FILLER) for number in bodies])
    groups = iter(range(1_000_000))

    def one(side: partial[float]) -> float:
        return side(url, f"backlog-{next(groups)}", topic, given.backlog)

    for is_ordered in (True, False):
        sides = {
            "threads": partial(one, partial(taken_by_threads, is_ordered=is_ordered)),
            "event loop": partial(one, partial(taken_on_a_loop, is_ordered=is_ordered)),
        }
        order = "in order" if is_ordered else "in any order"
        report.add(Row(f"a backlog of 4 queues, {order}", "messages/s", in_turns(sides, given.runs)))


if __name__ == "__main__":
    main()
