"""How many messages a second do clients of RocketMQ send and pull through the remoting door?

``tierlog serve`` in a process of its own, and a client in another that writes frames made before to plain sockets
and only counts answers, so that the service is what is measured. Sends are of ``--body`` bytes and answered when they
are flushed: by 1 and by 64 connections that each wait for their answer, by one that has 256 requests under way, and in
batches of 500. The peer, in turns with ours, is Apache RocketMQ's broker with SYNC_FLUSH, which gets the same bytes,
and some seconds of them beforehand, so that Java has compiled itself.

Pulls are of 4 MiB of records from the page cache; the peer, in turns with them, is a process that sends as many bytes
of a file in pieces as large by ``sendfile``.

All of it shares the machine: client, servers and disk. Beside the rate, the processor time of each server says what one
core would do. With ``--no-peer`` RocketMQ's broker is left out.

``PYTHONPATH=. python benchmarks/rocketmq_door.py [--seconds 2] [--runs 5] [--body 100] [--warm-up 10] [--no-peer]
[--dir build/bench]``
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Row, in_turns, processor_s
from tests.support.rocketmq.real_clients import real_server
from tests.tools.rocketmq_clients import JAVA_5, built
from tierlog.tiering.rocketmq.codes import RequestCode
from tierlog.tiering.rocketmq.frames import Frame, FrameReader, encode_frame

TOPIC = "orders"
_BATCH = 500
_PULLED_BYTES = 4 << 20
_LENGTH = struct.Struct(">i")


def send_frame(body: bytes, queue_id: int, code: int = RequestCode.SEND_MESSAGE_V2) -> bytes:
    """Returns the frame of one send, as Java's client writes it."""
    properties = (
        "UNIQ_KEY\x017F0000010F5C18B4AAC2000000000000\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01order-4711\x02"
    )
    fields = {
        "a": "benchmark", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": str(code == RequestCode.SEND_BATCH_MESSAGE).lower(),
    }  # fmt: skip
    return encode_frame(Frame(code, 1, 0, fields, body, language="JAVA"))


def client_batch(body: bytes, count: int) -> bytes:
    """Returns the body of a batch."""
    text = b"UNIQ_KEY\x017F0000010F5C18B4AAC2000000000000\x02TAGS\x01TagA\x02KEYS\x01order-4711\x02"
    one = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body)) + body
    return (one + struct.pack(">h", len(text)) + text) * count


def drive(port: int, frames: list[bytes], under_way: int, seconds: float) -> float:
    """Keeps so many requests under way on a connection for each frame; returns answers a second."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in frames]
    poll = select.epoll()
    of = {}
    for one, frame in zip(sockets, frames, strict=True):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one, select.EPOLLIN)
        of[one.fileno()] = (one, frame)
        one.sendall(frame * under_way)
    rests: dict[int, bytes] = {}
    done, begin = 0, time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for number, _ in poll.poll(1):
            one, frame = of[number]
            data = rests.get(number, b"") + one.recv(1 << 18)
            count = at = 0
            while len(data) - at >= 4:
                whole = 4 + _LENGTH.unpack_from(data, at)[0]
                if len(data) - at < whole:
                    break
                if b'"code":0' not in data[at : at + 24]:
                    raise RuntimeError(data[at : at + whole])
                at += whole
                count += 1
            rests[number] = data[at:]
            done += count
            if count:
                one.sendall(frame * count)
    taken = time.perf_counter() - begin
    for one in sockets:
        one.close()
    return done / taken


def pull_all(port: int, seconds: float) -> float:
    """Pulls a queue again and again; returns MB/s of records."""
    with socket.create_connection(("127.0.0.1", port)) as one:
        offset, taken, begin = 0, 0, time.perf_counter()
        reader = FrameReader(1 << 30)
        buffer = bytearray(1 << 20)
        while time.perf_counter() - begin < seconds:
            fields = {
                "consumerGroup": "benchmark", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
                "maxMsgNums": "10000", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0",
            }  # fmt: skip
            one.sendall(encode_frame(Frame(RequestCode.PULL_MESSAGE, 1, 0, fields)))
            start = b""
            while len(start) < 8:
                start += one.recv(8 - len(start))
            size, word = struct.unpack(">iI", start)
            header = b""
            while len(header) < word & 0xFFFFFF:
                header += one.recv((word & 0xFFFFFF) - len(header))
            (frame,) = reader.feed(struct.pack(">iI", 4 + len(header), word) + header)
            left = size - 4 - len(header)
            taken += left
            while left:
                left -= one.recv_into(buffer, min(left, len(buffer)))
            offset = 0 if frame.code != 0 else int(frame.fields["nextBeginOffset"])
        return taken / (time.perf_counter() - begin) / 1e6


def send_file(path: str, ports: Any) -> None:
    """The peer: sends 4 MiB of a file for each byte that it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Path(path).open("rb") as file:
        ports.put(listener.getsockname()[1])
        size = os.fstat(file.fileno()).st_size
        while True:
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                at = 0
                while one.recv(1):
                    at = 0 if at + _PULLED_BYTES > size else at
                    end = at + _PULLED_BYTES
                    while at < end:
                        at += os.sendfile(one.fileno(), file.fileno(), at, end - at)


def take_file(port: int, seconds: float) -> float:
    """Takes what the peer sends; returns MB/s."""
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as one:
        taken, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            one.sendall(b"x")
            left = _PULLED_BYTES
            while left:
                left -= one.recv_into(buffer, min(left, len(buffer)))
            taken += _PULLED_BYTES
        return taken / (time.perf_counter() - begin) / 1e6


class Service:
    """``tierlog serve`` with the door open."""

    def __init__(self, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        environment = {**os.environ, "TIERLOG_ROCKETMQ_LISTEN": f"127.0.0.1:{self.port}"}
        command = [sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(root), "--port", "0"]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "serving" in line:
                break

    @property
    def cpu_s(self) -> float:
        """The processor time that it took so far."""
        return processor_s(self.process.pid)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        if self.process.stderr is not None:
            self.process.stderr.close()


class Broker:
    """Apache RocketMQ's broker, which flushes before it answers."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._pid = pid

    @property
    def cpu_s(self) -> float:
        """The processor time that it took so far, its nameserver's included."""
        return processor_s(self._pid)


@contextlib.contextmanager
def real_broker(folder: Path) -> Iterator[Broker]:
    """Runs RocketMQ with the log files that a broker has unless it is told otherwise."""
    folder.mkdir()
    with real_server(built(JAVA_5), folder, f"mappedFileSizeCommitLog={1 << 30}", options=()) as doors:
        yield Broker(doors.broker_port, doors.pid)


@contextlib.contextmanager
def service(root: Path) -> Iterator[Service]:
    """Serves a new store."""
    running = Service(root)
    try:
        yield running
    finally:
        running.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    report = Report("rocketmq_door", __doc__.splitlines()[0])
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    body = os.urandom(arguments.body)
    try:
        with contextlib.ExitStack() as opened:
            running = opened.enter_context(service(folder / "store"))
            servers: dict[str, Service | Broker] = {"tierlog": running}
            if not arguments.no_peer:
                servers["RocketMQ"] = opened.enter_context(real_broker(folder / "peer"))
            report_sends(report, servers, body, arguments)
            report_pulls(report, running, folder, arguments)
    finally:
        shutil.rmtree(folder)
    report.save()


def report_sends(
    report: Report, servers: dict[str, Service | Broker], body: bytes, arguments: argparse.Namespace
) -> None:
    """Adds the rows of sends: the rates in turns, and what each server's processor time makes of a core."""
    shapes = (
        ("sends: one connection that waits", [send_frame(body, 0)], 1, 1, None, None),
        ("sends: 64 connections that wait", [send_frame(body, n % 4) for n in range(64)], 1, 1, 1.0, 8_000),
        ("sends: one connection with 256 under way", [send_frame(body, 0)], 256, 1, None, 8_000),
        ("sends: batches of 500", [send_frame(client_batch(body, _BATCH), 0, RequestCode.SEND_BATCH_MESSAGE)], 4,
         _BATCH, None, 300_000),
    )  # fmt: skip
    drive(servers["tierlog"].port, [send_frame(body, 0)], 1, 0.5)
    for name, server in servers.items():
        warm_up_s = arguments.warm_up if name != "tierlog" else 1.0
        drive(server.port, [send_frame(body, number % 4) for number in range(64)], 1, warm_up_s)
    for what, frames, under_way, messages, ratio, of_a_core in shapes:
        of_core: dict[str, list[float]] = {name: [] for name in servers}

        def turn(
            name: str, frames: list[bytes] = frames, under_way: int = under_way, messages: int = messages,
            of_core: dict[str, list[float]] = of_core,
        ) -> float:  # fmt: skip
            server = servers[name]
            before = server.cpu_s
            rate = messages * drive(server.port, frames, under_way, arguments.seconds)
            of_core[name].append(rate * arguments.seconds / max(0.01, server.cpu_s - before))
            return rate

        figures = in_turns({name: partial(turn, name) for name in servers}, arguments.runs)
        report.add(Row(what, "messages/s", figures, ratio if len(servers) > 1 else None))
        for name, rates in of_core.items():
            target = of_a_core if name == "tierlog" else None
            report.add(Row(f"{what}, a core of {name}", "messages/s", {name: rates[-arguments.runs :]}, target))


def report_pulls(report: Report, running: Service, folder: Path, arguments: argparse.Namespace) -> None:
    """Adds the row of pulls."""
    big = folder / "file"
    big.write_bytes(os.urandom(64 << 20))
    drive(
        running.port, [send_frame(client_batch(os.urandom(1000), _BATCH), 0, RequestCode.SEND_BATCH_MESSAGE)], 2, 2
    )  # fmt: skip
    ports = multiprocessing.get_context("spawn").Queue()
    peer = multiprocessing.get_context("spawn").Process(target=send_file, args=(str(big), ports), daemon=True)
    peer.start()
    try:
        port = ports.get(timeout=30)
        figures = in_turns(
            {
                "tierlog": lambda: pull_all(running.port, arguments.seconds),
                "sendfile": lambda: take_file(port, arguments.seconds),
            },
            arguments.runs,
        )
    finally:
        peer.terminate()
    report.add(Row("pulls of 4 MiB", "MB/s", figures, 0.5))


if __name__ == "__main__":
    main()
