"""Apache RocketMQ's nameserver and broker as processes beside the tests: begun, killed, stopped, filled and emptied."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.objects.real_s3 import free_port
from tests.support.rocketmq.real_clients import RealClient, fresh
from tests.tools.java_programs import BRIEF, java_program
from tests.tools.line_programs import LineProgram
from tests.tools.rocketmq_clients import class_path
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.rocketmq.log_source import LogBounds
from tierlog.tiering.rocketmq.remoting import BrokerClient, bounds_in, find_brokers, runtime_info

SEGMENT_BYTES = 1 << 20
CLUSTER = "DefaultCluster"
#: For whatever a broker does by itself, in its own time; a machine that is busy needs it to start one.
LIMIT_S = 180.0
_OPTIONS = (
    "-XX:MaxDirectMemorySize=256m",
    # the test machine's disk is nobody's business here
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    # nobody asks for TLS, and a key drawn at each start takes half of its time
    "-Dtls.server.mode=disabled",
)
#: What takes a core or seconds by itself: a loop until the first flush, a wheel that is compared byte by byte every
#: second, and eight threads that a broker's stop waits for one by one.
_QUIET = {"transactionMetricFlushInterval": 100, "timerWheelEnable": "false", "reviveQueueNum": 1}
#: Settings of brokers that are told by others when they are master.
_ELECTED = {"enableControllerMode", "enableDLegerCommitLog"}
CLOCK = SystemClock()


def until(holds: Callable[[], bool], what: Callable[[], str], *, limit_s: float = LIMIT_S) -> None:
    """Wait until something holds; the limit is for a test that fails."""
    deadline_s = time.monotonic() + limit_s
    while True:
        asked_s = time.monotonic()
        if holds():
            return
        took_s = time.monotonic() - asked_s
        assert asked_s < deadline_s, f"not within {limit_s:.0f} s: {what()}"
        time.sleep(max(0.05, took_s))  # who is waited for needs the processor, too


@dataclass
class Acknowledged:
    """A message as its producer was told that it is stored."""

    topic: str
    key: str
    queue: int
    offset: int
    unique_id: str
    place: str
    """The id with the broker's address and the physical offset."""

    @property
    def physical_offset(self) -> int:
        """Where the broker says that it lies."""
        return int(self.place[-16:], 16)


def acknowledged(file: Path) -> list[Acknowledged]:
    """All that a flood wrote down with the status ``SEND_OK``."""
    found = []
    for line in file.read_text().splitlines():
        topic, key, queue, offset, unique_id, place, status = line.split(" ")
        if status == "SEND_OK":
            found.append(Acknowledged(topic, key, int(queue), int(offset), unique_id, place))
    return found


class RealBroker:
    """A broker of one version; it may be begun again on its directory, at the same addresses."""

    def __init__(
        self,
        built: Path,
        folder: Path,
        nameserver: str,
        settings: Mapping[str, object],
        *,
        name: str | None = None,
        is_brief: bool = True,
    ) -> None:
        """``settings`` count instead of the tests'; ``name`` is that of a broker which this one is a slave of.

        What is not brief is compiled as Java does it otherwise, and has all that a broker has.
        """
        self.folder = folder
        self._is_brief = is_brief
        self.name = name or fresh("broker")
        self.nameserver = nameserver
        folder.mkdir(parents=True, exist_ok=True)
        self.built = built
        self._port = _port_with_room_below()
        self.address = f"127.0.0.1:{self._port}"
        self.ha_address = f"127.0.0.1:{free_port()}"
        self.settings: dict[str, object] = {**self._defaults(), **settings}
        self.client = BrokerClient(self.address, clock=CLOCK, timeout_s=30)  # on a busy machine it takes its time
        self._running = contextlib.ExitStack()
        self._program: LineProgram | None = None

    def _defaults(self) -> dict[str, object]:
        store = self.folder / "store"
        return {
            "brokerName": self.name, "brokerClusterName": CLUSTER, "brokerId": 0, "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": self._port,
            "haListenPort": self.ha_address.rpartition(":")[2], "namesrvAddr": self.nameserver,
            "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 600_000, "maxIndexNum": 200_000,
            "maxHashSlotNum": 50_000, "mappedFileSizeTimerLog": 1 << 20, "flushDiskType": "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER", "autoCreateTopicEnable": "true", "diskMaxUsedSpaceRatio": 95,
            # files go only when a test says so
            "deleteWhen": f"{(time.localtime().tm_hour + 12) % 24:02}", "fileReservedTime": 0,
            "deleteCommitLogFilesInterval": 1,
            # a small machine refuses nobody because it is slow
            "waitTimeMillsInSendQueue": 10_000, "osPageCacheBusyTimeOutMills": 10_000,
            **(_QUIET if self._is_brief else {}),
        }  # fmt: skip

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._program is not None
        return self._program.pid

    @property
    def store(self) -> Path:
        """Its directory."""
        return self.folder / "store"

    @property
    def segment_bytes(self) -> int:
        """The size of its segments."""
        return int(str(self.settings["mappedFileSizeCommitLog"]))

    @property
    def segments(self) -> dict[int, Path]:
        """Files of its log that have a byte of it, by the physical offset of their first."""
        end = self.bounds().max_offset
        return {base: path for base, path in self._files().items() if base < end}

    def _files(self) -> dict[int, Path]:
        paths = sorted((self.store / "commitlog").iterdir())
        return {int(path.name): path for path in paths if path.name.isdigit()}

    def start(self) -> None:
        """Until the nameserver names it, and it answers."""
        properties = self.folder / "broker.conf"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        arguments = ("broker", "-c", str(properties))
        self._program = self._running.enter_context(
            _server(self.built, self.folder, arguments, is_brief=self._is_brief)
        )
        self._program.ask("up?", limit_s=LIMIT_S)
        until(self._registered, lambda: "the broker is at the nameserver")

    def _registered(self) -> bool:
        with contextlib.suppress(StoreError):
            self.bounds()  # right after its start some versions cannot tell anything of themselves
            if self.settings["brokerRole"] == "SLAVE" or self.is_master():
                return True
            # on a busy machine its first try meets no nameserver, and the next is ten seconds later
            if not self.settings.keys() & _ELECTED:
                assert self._program is not None
                self._program.ask("register", limit_s=LIMIT_S)
        return False

    def is_master(self) -> bool:
        """Whether the nameserver says so."""
        with contextlib.suppress(StoreError):
            return find_brokers([self.nameserver], self.name, clock=CLOCK).address == self.address
        return False

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._program is not None
        self._program.kill()
        self._ended()

    def stop(self) -> None:
        """Cleanly, as by SIGTERM."""
        assert self._program is not None
        self._program.stop("stop", limit_s=LIMIT_S)
        self._ended()

    def remove_segments(self) -> int:
        """Let retention remove all segments but the newest; returns where the log begins then."""
        before = self.bounds()
        newest = before.max_offset - before.max_offset % self.segment_bytes
        assert newest > before.min_offset, "there is only one segment"

        def are_removed() -> bool:
            assert self._program is not None
            self._program.ask("remove", limit_s=LIMIT_S)  # again, as what is being sent to somebody stays
            return self.bounds().min_offset >= newest

        until(are_removed, lambda: "the segments are removed")
        return self.bounds().min_offset

    def _ended(self) -> None:
        self.client.close()
        self._running.close()
        self._program = None

    def lose_end(self, offset: int) -> None:
        """Have its log be without what lies at or above, as after a power cut; it does not run."""
        for base, path in self._files().items():
            size = path.stat().st_size
            if base + size > offset:
                with path.open("r+b") as file:
                    file.seek(max(0, offset - base))
                    file.write(bytes(base + size - max(base, offset)))

    def close(self) -> None:
        """Kill it if it runs."""
        if self._program is not None:
            self.kill()

    def bounds(self) -> LogBounds:
        """Where its log begins and ends."""
        return bounds_in(runtime_info(self.client))

    def last_segment(self) -> int:
        """The base of the last file in which anything was written."""
        return max(base for base, path in self._files().items() if any(path.read_bytes()[:8]))


@dataclass
class Cluster:
    """A broker, the nameserver that knows it, and a client of Java with the tool mqadmin."""

    broker: RealBroker
    client: RealClient
    #: Names that no other broker of these tests has, made when the first message is sent.
    topics: tuple[str, str] = field(default_factory=lambda: (fresh("orders"), fresh("payments")))

    def flood(self, **arguments: object) -> Flood:
        """Begin a producer at full speed, to both topics."""
        name = fresh("flood")
        file = self.broker.folder / f"{name}.acknowledged"
        self.client.do("flood", id=name, topics=",".join(self.topics), prefix=name, file=file, **arguments)
        return Flood(self.client, name, file)

    def grow(self, count: int) -> None:
        """Wait until the log has so many bytes more."""
        end = self.broker.bounds().max_offset + count
        until(lambda: self.broker.bounds().max_offset >= end, lambda: f"the log is longer by {count}")


@dataclass
class Flood:
    """A producer at full speed that runs."""

    client: RealClient
    name: str
    file: Path

    told: dict[str, Any] = field(default_factory=dict)
    """Counts of what was acknowledged and what failed, once it has ended."""

    def end(self, *, now: bool = False) -> list[Acknowledged]:
        """Wait until it has sent all, or stop it; what was acknowledged."""
        self.told = self.client.do("flood-end", id=self.name, now=str(now).lower())
        return acknowledged(self.file)


@contextlib.contextmanager
def nameserver(built: Path, folder: Path, **settings: object) -> Iterator[str]:
    """One that runs; its address."""
    port = free_port()
    properties = folder / "namesrv.conf"
    named = {"listenPort": port, "bindAddress": "127.0.0.1", **settings}
    properties.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
    arguments = ("nameserver", "-c", str(properties))
    with _server(built, folder, arguments, heap="128m") as program:
        program.ask("up?", limit_s=LIMIT_S)
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def controller(built: Path, folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """A nameserver that says which broker is master; its address, and what its brokers are told."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "enableControllerInNamesrv": "true", "controllerDLegerGroup": "group", "controllerDLegerSelfId": "n0",
        "controllerDLegerPeers": f"n0-{address}", "controllerStorePath": folder / "controller",
    }  # fmt: skip
    with nameserver(built, folder, **settings) as found:
        yield found, {"enableControllerMode": "true", "controllerAddr": address}


@contextlib.contextmanager
def _server(
    built: Path, folder: Path, arguments: tuple[str, ...], *, heap: str = "512m", is_brief: bool = True
) -> Iterator[LineProgram]:
    options = (*_OPTIONS, *(BRIEF if is_brief else ()), f"-Drocketmq.home.dir={folder}")
    with java_program(class_path(built), "Server", folder, heap=heap, arguments=arguments, options=options) as program:
        yield program


def _port_with_room_below() -> int:
    """A free port; a broker also listens two below its own."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port - 2))
            return port
