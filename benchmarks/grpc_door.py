"""How many messages a second does a core take from gRPC clients of RocketMQ, at a store and through gateways?

``tierlog serve`` with its gRPC door in a process of its own, and plain gRPC clients in others, which send messages of
``--body`` bytes that they laid out before, one a call, each answered when it is flushed. Then the same through one and
two gateways (``serve --role gateway``), each with a client of its own, before a store whose door is shut.

All of it shares the machine, and a client takes as much of it as a server: the rates are what is left for the service.
So beside them stands what the service's own processor time makes of a core: for a gateway its own, and that of the
store's process for what all gateways together sent.

``PYTHONPATH=. python benchmarks/grpc_door.py [--seconds 2] [--runs 5] [--body 256] [--dir build/bench]``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from benchmarks.harness import Report, Row, processor_s
from tierlog.service.rocketmq.grpc.protocol import SERVICE, enums, messages

TOPIC = "orders"
#: What holds rows back, by profiles; record 0053 has them.
_HELD_BY = (
    "a call that comes alone wakes six threads 14 times: of some 520 us, 250 are grpc.aio with a handler that does "
    "nothing, and 150 the thread that appends and flushes for this call only"
)
_CHANNELS = 8
_LAID_OUT = 512


def requests(body: int) -> list[bytes]:
    """Returns calls as a Java client makes them."""
    found = []
    for number in range(_LAID_OUT):
        request = messages.SendMessageRequest()
        message = request.messages.add(body=os.urandom(body), user_properties={"channel": "web"})
        message.topic.name = TOPIC
        of = message.system_properties
        of.message_id, of.tag, of.born_host = f"01{os.urandom(15).hex().upper()}", "paid", "shop-1"
        of.keys.append(f"order-{number}")
        of.message_type = enums.MessageType.NORMAL
        of.born_timestamp.seconds = int(time.time())
        found.append(request.SerializeToString())
    return found


async def drive(address: str, callers: int, seconds: float, body: int) -> int:
    """Keeps so many calls under way; returns how many were answered."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(min(callers, _CHANNELS))]
    laid_out, answered, end = requests(body), 0, time.monotonic() + seconds

    async def caller(place: int) -> None:
        nonlocal answered
        call = channels[place % len(channels)].unary_unary(f"/{SERVICE}/SendMessage", None, None)
        metadata = (("x-mq-client-id", f"bench-{place}"),)
        at = place
        while time.monotonic() < end:
            answer = messages.SendMessageResponse.FromString(await call(laid_out[at % _LAID_OUT], metadata=metadata))
            if answer.status.code != enums.Code.OK:
                raise RuntimeError(answer.status.message)
            answered += 1
            at += callers

    await asyncio.gather(*map(caller, range(callers)))
    for channel in channels:
        await channel.close()
    return answered


def client(address: str, callers: int, seconds: float, body: int) -> int:
    """A process of clients."""
    return asyncio.run(drive(address, callers, seconds, body))


class Serving:
    """``tierlog serve`` in a process of its own."""

    def __init__(self, *arguments: str, grpc_port: int | None = None) -> None:
        named = {} if grpc_port is None else {"TIERLOG_ROCKETMQ_GRPC_LISTEN": f"127.0.0.1:{grpc_port}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tierlog.service.main", "serve", *arguments],
            env={**os.environ, **named}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        is_up = threading.Event()
        threading.Thread(target=self._read, args=(is_up,), daemon=True).start()
        is_up.wait()

    def _read(self, is_up: threading.Event) -> None:
        """Takes what it says: a line for some requests, which would fill a pipe."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "serving" in line or "gateway at" in line:
                is_up.set()
        is_up.set()

    @property
    def cpu_s(self) -> float:
        """The processor time that it took so far."""
        return processor_s(self.process.pid)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@contextlib.contextmanager
def serving(*arguments: str, grpc_port: int | None = None) -> Iterator[Serving]:
    made = Serving(*arguments, grpc_port=grpc_port)
    try:
        yield made
    finally:
        made.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Sends:
    """Turns of clients, each against an address of its own, and what they cost."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def turn(self, addresses: list[str], callers: int, seconds: float | None = None) -> int:
        """Returns the messages that were answered in one turn."""
        taken = self._arguments.seconds if seconds is None else seconds
        with multiprocessing.get_context("spawn").Pool(len(addresses)) as pool:
            work = [(address, callers, taken, self._arguments.body) for address in addresses]
            return sum(pool.starmap(client, work))

    def measure(
        self, report: Report, what: str, addresses: list[str], callers: int, processes: dict[str, list[Serving]]
    ) -> None:
        """Adds rows: the rate, and what a core of each kind of process would do."""
        self.turn(addresses, callers, seconds=1.0)
        rates: list[float] = []
        of_core: dict[str, list[float]] = {name: [] for name in processes}
        for _ in range(self._arguments.runs):
            before = {name: sum(one.cpu_s for one in all_) for name, all_ in processes.items()}
            answered = self.turn(addresses, callers)
            rates.append(answered / self._arguments.seconds)
            for name, all_ in processes.items():
                spent_s = sum(one.cpu_s for one in all_) - before[name]
                of_core[name].append(answered / max(0.01, spent_s))
        report.add(Row(what, "messages/s", {"tierlog": rates}))
        for name, figures in of_core.items():
            target = 2_000.0 if name != "the store" else None
            report.add(Row(f"{what}, a core of {name}", "messages/s", {"tierlog": figures}, target, held_by=_HELD_BY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--body", type=int, default=256)
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    report, sends = Report.of(__file__, __doc__), Sends(arguments)
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        port = free_port()
        with serving("--root", str(folder / "door"), "--port", "0", grpc_port=port) as door:
            for callers in (1, 64, 256):
                processes = {"the door": [door]}
                sends.measure(report, f"{callers} at once, at the store", [f"127.0.0.1:{port}"], callers, processes)
        rest = free_port()
        with serving("--root", str(folder / "behind"), "--port", str(rest)) as store, contextlib.ExitStack() as opened:
            gateways: list[Serving] = []
            ports: list[int] = []
            for number in (1, 2):
                ports.append(free_port())
                flags = ("--role", "gateway", "--stores", f"http://127.0.0.1:{rest}", "--port", "0")
                gateways.append(opened.enter_context(serving(*flags, grpc_port=ports[-1])))
                processes = {"gateways": list(gateways), "the store": [store]}
                addresses = [f"127.0.0.1:{each}" for each in ports]
                sends.measure(report, f"64 at once at each of {number} gateways", addresses, 64, processes)
    finally:
        shutil.rmtree(folder)
    report.save()


if __name__ == "__main__":
    main()
