"""How many look-ups a second do several queriers answer over one archive, and what does each cost?

One store's archive lies on an S3 server (versitygw) behind a proxy of this script that holds each request for a time
drawn from a lognormal distribution. Every querier is a process of its own (``tierlog serve --role querier``) with a
cache of ``--cache-bytes``, far smaller than the archive, so that look-ups ask the archive. Each has ``--clients``
clients in a closed loop over HTTP: the next look-up of one message by a random key begins when the answer is there, and
an answer without exactly that message ends the run. Queriers, clients, proxy and server share this machine: where the
column of all cores comes near to what is free, the rate is bound by them and says nothing about queriers; give more
latency.

``PYTHONPATH=. python benchmarks/queriers.py [--queriers 1 2 4] [--latency-ms 30] [--clients 8] [--seconds 15]``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from tabulate import tabulate

from tests.support.objects.real_s3 import running_server
from tests.support.processes.nodes import Querier
from tierlog.service.config.settings import ColdSettings, HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

_TOPIC = "orders"
_BATCH = 2_000
_HEADERS = ["queriers", "look-ups/s", "of one", "p50 ms", "p99 ms", "CPU ms each", "of all cores", "requests each"]


# the archive


def key_of(number: int) -> str:
    """Hashed, so that neighbours in the index are not neighbours in the log."""
    return f"order-{number * 2_654_435_761 % 2**32:08x}-{number}"


def make_archive(folder: Path, cold_url: str, endpoint_url: str, messages: int, body_bytes: int) -> None:
    """Append so many messages, each with a key of its own and a body that does not compress, and archive them all."""
    settings = Settings(
        hot=HotSettings(segment_bytes=16 << 20),
        index=IndexSettings(slots=10_000, items=max(1_000, messages // 4)),
        cold=ColdSettings(s3_endpoint=endpoint_url),
    )
    engine = Store.open(folder, settings=settings, cold_url=cold_url, store_id="a")
    try:
        for first in range(0, messages, _BATCH):
            engine.append(
                [
                    Message(_TOPIC, os.urandom(body_bytes), [key_of(number)])
                    for number in range(first, min(first + _BATCH, messages))
                ]
            )
        engine.archive(everything=True, drop_hot=True)
    finally:
        engine.close()


# what makes it far away


def proxy(target: str, median_ms: float, sigma: float, seed: int, told: Connection) -> None:
    """Hand on every request after a while, and its answer at once; tell the own URL, then the number of requests each
    time that somebody asks."""
    place, chance = urlsplit(target), random.Random(seed)
    requests = 0

    async def requests_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while data := await reader.read(1 << 16):  # a request without a body comes in one piece
            requests += 1
            await asyncio.sleep(median_ms / 1000 * chance.lognormvariate(0, sigma))
            writer.write(data)
            await writer.drain()
        writer.close()

    async def answers_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, further = await asyncio.open_connection(place.hostname, place.port)
        with contextlib.suppress(OSError):
            await asyncio.gather(requests_of(reader, further), answers_of(there, writer))

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        told.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

        def answer() -> None:
            told.recv()
            told.send(requests)

        asyncio.get_running_loop().add_reader(told.fileno(), answer)
        await server.serve_forever()

    asyncio.run(run())


class FarServer:
    """The proxy's process."""

    def __init__(self, target: str, given: argparse.Namespace) -> None:
        self._told, theirs = multiprocessing.Pipe()
        arguments = (target, given.latency_ms, given.sigma, given.seed, theirs)
        self.process = multiprocessing.get_context("fork").Process(target=proxy, args=arguments, daemon=True)
        self.process.start()
        self.url: str = self._told.recv()

    def requests(self) -> int:
        """That came so far."""
        self._told.send(None)
        count: int = self._told.recv()
        return count


# those who ask


@dataclass
class Load:
    """Clients of some queriers until the time is over."""

    urls: list[str]
    clients: int
    messages: int
    seconds: float
    seed: int
    took_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Returns when every client has its last answer."""
        self._end_s = time.perf_counter() + self.seconds
        threads = [
            threading.Thread(target=self._ask, args=(url, self.seed * 1000 + number))
            for number, url in enumerate(url for url in self.urls for _ in range(self.clients))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.wrong:
            raise SystemExit(f"{len(self.wrong)} wrong answers, the first: {self.wrong[0]}")

    def _ask(self, url: str, seed: int) -> None:
        chance = random.Random(seed)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        with contextlib.closing(connection):
            while (begun_s := time.perf_counter()) < self._end_s and not self.wrong:
                key = key_of(chance.randrange(self.messages))
                connection.request("GET", f"/v1/topics/{_TOPIC}/messages?key={key}")
                with connection.getresponse() as answer:
                    body = answer.read()
                self.took_s.append(time.perf_counter() - begun_s)
                found = json.loads(body)
                if answer.status != 200 or len(found["messages"]) != 1 or not found["coverage"]["complete"]:
                    self.wrong.append(body.decode(errors="replace")[:1000])


def measure(
    queriers: list[Querier], far: FarServer, given: argparse.Namespace, rate_of_one: float | None
) -> list[float]:
    """One line: its queriers, warm; all others idle."""
    urls = [querier.url for querier in queriers]
    Load(urls, given.clients, given.messages, given.seconds / 5, given.seed + 1).run()
    busy_s, requests, begun_s = sum(querier.cpu_s for querier in queriers), far.requests(), time.perf_counter()
    load = Load(urls, given.clients, given.messages, given.seconds, given.seed)
    load.run()
    lasted_s, count = time.perf_counter() - begun_s, len(load.took_s)
    busy_s, requests = sum(querier.cpu_s for querier in queriers) - busy_s, far.requests() - requests
    rate = count / lasted_s
    p50, p99 = (1000 * float(np.percentile(load.took_s, percent)) for percent in (50, 99))
    cores = busy_s / lasted_s / (os.cpu_count() or 1)
    return [len(queriers), rate, rate / (rate_of_one or rate), p50, p99, 1000 * busy_s / count, cores, requests / count]


@contextlib.contextmanager
def running(queriers: list[Querier]) -> Iterator[None]:
    """All of them, until the end."""
    try:
        for querier in queriers:
            querier.begin()
        for querier in queriers:
            querier.wait()
        yield
    finally:
        for querier in queriers:
            querier.kill()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--queriers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=8, help="of each querier")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body", type=int, default=600, help="bytes of a message's body")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="median of a request to the archive")
    parser.add_argument("--sigma", type=float, default=0.5, help="of its lognormal tail; 0.5: p99 is 3.2 medians")
    parser.add_argument("--cache-bytes", type=int, default=2 << 20, help="cold.cache_bytes of a querier")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each line, and a fifth before it to warm up")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running_server("versitygw", Path(name)) as s3:
        folder, cold_url = Path(name), f"s3://{s3.new_bucket()}/logs"
        make_archive(folder / "store", cold_url, s3.endpoint_url, given.messages, given.body)
        far = FarServer(s3.endpoint_url, given)
        settings = {
            "TIERLOG_COLD_CACHE_BYTES": str(given.cache_bytes),
            "TIERLOG_CLUSTER_REFRESH_MS": "3600000",  # nobody changes anything
            "TIERLOG_CLUSTER_STALENESS_MS": "3600000",
        }
        queriers = [
            Querier(folder / f"querier{number}", cold_url, far.url, settings=settings)
            for number in range(max(given.queriers))
        ]
        rows: list[list[float]] = []
        with running(queriers):
            for count in given.queriers:
                rows.append(measure(queriers[:count], far, given, rows[0][1] if rows else None))
                print(f"{count} queriers: {rows[-1][1]:.1f}/s", file=sys.stderr)
    print(tabulate(rows, _HEADERS, floatfmt=("d", ".1f", ".2f", ".0f", ".0f", ".1f", ".0%", ".2f")))


if __name__ == "__main__":
    main()
