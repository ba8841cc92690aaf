"""Real clients of RocketMQ as processes beside the tests, and the servers that they talk to."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import Node
from tests.tools.java_programs import BRIEF, java_program
from tests.tools.line_programs import LineProgram, line_program
from tests.tools.rocketmq_clients import class_path
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.remoting import BrokerClient

Json = dict[str, Any]
#: Which server the tests are run with: ours, or ``real`` for Apache RocketMQ, to learn what the clients do with it.
PEER_VARIABLE = "TIERLOG_ROCKETMQ_PEER"
#: How often our service delivers a message to a group that says nothing of it.
MAX_ATTEMPTS = 2
#: The groups that get the messages of a message group in their order.
FIFO_GROUPS = "fifo-*"
#: A push consumer of Java or Node stops when its last call has waited for so long.
_LONG_POLL_MS = 2_000
#: Time for a consumer's first messages. Clients that missed something at their start look again half a minute later,
#: which is too late, so that a door that lets them miss it is found. Apache RocketMQ does let them.
BEGIN_MS = 90_000 if os.environ.get(PEER_VARIABLE) == "real" else 30_000
_ANSWER_LIMIT_S = 100.0
_names = itertools.count(1)


class ClientError(Exception):
    """What a client library raised."""


@dataclass
class Doors:
    """Where a server is reached: by remoting, by gRPC and, if it is ours, over HTTP."""

    remoting: str
    grpc: str
    url: str = ""
    #: Of Apache RocketMQ: where its broker itself listens, and its process.
    broker_port: int = 0
    pid: int = 0


@dataclass
class RealClient:
    """A client process; each command is a line, as ``Driver.java`` says."""

    program: LineProgram
    address: str

    def do(self, command: str, **arguments: object) -> Json:
        """Run one command to its end; what the library raises is a :class:`ClientError`."""
        named = {"address": self.address, **arguments}
        line = f"{command}?{urlencode({name: str(value) for name, value in named.items()}, quote_via=quote)}"
        answer: Json = json.loads(self.program.ask(line, limit_s=_ANSWER_LIMIT_S))
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer

    def send(self, topic: str, prefix: str, **arguments: object) -> list[Json]:
        """Send messages and return what the library tells of each."""
        return list(self.do("send", topic=topic, prefix=prefix, **arguments)["messages"])

    def consumed(
        self, topic: str, group: str, count: int, *, limit_ms: int = 40_000, command: str = "consume",
        **arguments: object,
    ) -> list[Json]:  # fmt: skip
        """What a consumer has got when so many are done, or when time is over; it is stopped then."""
        with self.consumer(topic, group, command=command, **arguments) as wait:
            return wait(count, limit_ms)

    @contextlib.contextmanager
    def consumer(
        self, topic: str, group: str, *, command: str = "consume", **arguments: object
    ) -> Iterator[Callable[[int, int], list[Json]]]:
        """A consumer that runs; the function waits for so many deliveries that are done, and tells all deliveries."""
        name = f"consumer-{next(_names)}"

        def wait(count: int, limit_ms: int) -> list[Json]:
            return list(self.do("await", id=name, count=count, limit_ms=limit_ms)["messages"])

        self.do(command, id=name, topic=topic, group=group, **arguments)
        try:
            yield wait
        finally:
            self.do("stop", id=name)

    def mqadmin(self, *words: str) -> str:
        """What a command of the tool prints, told where the nameserver is."""
        return str(self.do("mqadmin", words="\n".join((*words, "-n", self.address)))["printed"])


@contextlib.contextmanager
def java_client(
    built: Path, main: str, work: Path, address: str, *, options: Sequence[str] = BRIEF
) -> Iterator[RealClient]:
    """A Java program of ``tests/rocketmq/clients/java``; ``options`` are Java's own."""
    with java_program(class_path(built), main, work, heap="512m", options=options) as program:
        yield RealClient(program, address)


@contextlib.contextmanager
def other_client(command: Sequence[str], work: Path, address: str) -> Iterator[RealClient]:
    """A program in another language that reads the same lines."""
    with line_program(command, work) as program:
        yield RealClient(program, address)


@dataclass
class SpringShop(RealClient):
    """The application of ``java/spring``; its listeners run as long as it does."""

    topics: dict[str, str]

    def received(self, listener: str, prefix: str, count: int, *, limit_ms: int = 60_000) -> list[Json]:
        """What a listener has got of the keys that begin so, when it has so many or when time is over."""
        said = {"listener": listener, "prefix": prefix, "count": count, "limit_ms": limit_ms}
        return list(self.do("received", **said)["messages"])


@contextlib.contextmanager
def spring_client(
    built: Path, work: Path, address: str, topics: dict[str, str], **settings: str
) -> Iterator[SpringShop]:
    """The Spring Boot application, which finds its ``application.properties`` in the folder where it is begun."""
    properties = {
        "rocketmq.name-server": address,
        "rocketmq.producer.group": "shop",
        **{f"shop.{name}": topic for name, topic in topics.items()},
        **settings,
    }
    (work / "application.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    with java_program(class_path(built), "Spring", work, heap="256m", options=BRIEF) as program:
        yield SpringShop(program, address, topics)


class TierlogServer:
    """Our own service with both doors open, killed and begun again at the same addresses."""

    def __init__(self, folder: Path, store_id: str | None = None, **settings: str) -> None:
        """With ``store_id`` it is a store of its own beside others of the same folder."""
        self.doors = Doors(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
        self.cold_url = f"file://{folder / 'cold'}"
        self.root = folder / (store_id or "store")
        own = {
            "TIERLOG_ROCKETMQ_LISTEN": self.doors.remoting,
            "TIERLOG_ROCKETMQ_GRPC_LISTEN": self.doors.grpc,
            "TIERLOG_ROCKETMQ_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
            "TIERLOG_ROCKETMQ_FIFO_GROUPS": FIFO_GROUPS,
            "TIERLOG_ROCKETMQ_LONG_POLL_MS": str(_LONG_POLL_MS),
        }
        flags = () if store_id is None else ("--store-id", store_id)
        self._node = Node(self.root, self.cold_url, "", flags, settings={**own, **settings})
        self.doors.url = self._node.url

    def start(self) -> None:
        """Until it answers."""
        self._node.start()

    def kill(self) -> None:
        """As kill -9 does."""
        self._node.kill()

    def stop(self) -> None:
        """Cleanly."""
        os.kill(self._node.pid, signal.SIGTERM)
        assert self._node.ended() == 0, self._node.said()
        self._node.kill()


@contextlib.contextmanager
def tierlog_server(folder: Path, store_id: str | None = None, **settings: str) -> Iterator[TierlogServer]:
    """One that runs, and is killed in the end."""
    server = TierlogServer(folder, store_id, **settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def real_server(built: Path, folder: Path, *settings: str, options: Sequence[str] = BRIEF) -> Iterator[Doors]:
    """Apache RocketMQ in a process of its own; settings of the broker, ``name=value``, count instead of the tests'.

    ``options`` are Java's own.
    """
    nameserver, broker, _, availability, grpc = ports = [free_port() for _ in range(5)]
    # a broker also takes the port two below its own
    assert broker - 2 not in ports
    arguments: Sequence[str] = [str(folder), *map(str, (nameserver, broker, availability, grpc)), *settings]
    with java_program(class_path(built), "RealServer", folder, arguments=arguments, options=options) as program:
        program.ask("up?", limit_s=_ANSWER_LIMIT_S)
        yield Doors(f"127.0.0.1:{nameserver}", f"127.0.0.1:{grpc}", broker_port=broker, pid=program.pid)


def wait_for_topic(doors: Doors, topic: str) -> None:
    """Until it is there: a consumer that begins sooner looks again only half a minute later."""
    deadline_s = time.monotonic() + _ANSWER_LIMIT_S
    with contextlib.closing(BrokerClient(doors.remoting, clock=SystemClock())) as client:
        while client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code != ResponseCode.SUCCESS:
            assert time.monotonic() < deadline_s, f"no topic {topic}"
            time.sleep(0.1)


def body_of(key: str) -> str:
    """The body that a client gives a message of this key, as it is told: in hex."""
    return f"body of {key}".encode().hex()


def fresh(name: str) -> str:
    """A name for a topic or a group that no other test has."""
    return f"{name}-{os.getpid()}-{next(_names)}"


def keys(messages: list[Json]) -> list[str]:
    """Of all of them, in order of the alphabet."""
    return sorted(message["key"] for message in messages)


def names(prefix: str, count: int) -> list[str]:
    """The keys of so many messages that a client sent with a prefix, in the same order."""
    return sorted(f"{prefix}-{number}" for number in range(count))
