"""What does following cost a RocketMQ broker, and does one core keep up with a broker at full speed?

A broker, a nameserver and a Java producer at full speed run beside ``tierlog follow``, which archives into files, by
either source. Of the cost there are two figures: messages a second that the broker takes, and its processor time a
message. Both are measured in turns with a follower, with a slave of RocketMQ's own, and with neither. Follower and
slave are begun, have caught up and are idle before each of their turns, and are stopped after it.

*Apart*, broker and producer share one core and the follower, or slave, has another, as if it were on a machine of its
own: what is lost is what the broker does for it. *Together*, all share two cores, and the producer's and the broker's
loss is mostly the processor time of the follower itself.

*Catch-up* is by a follower on one core that is stopped while the producer sends at full speed, with all cores for it
and the broker, and goes on when it has ended: until all is durable, and until all closed segments are archived, with
queues and key index. A second of processor time of the follower, archive included, is compared as well: of what it
does with a core of its own, which it may not have had. Messages have bodies of random length and bytes, 1 to
``--bytes`` and to ``--large``, and segments 64 MiB.

``PYTHONPATH=. python benchmarks/follow.py [--only network directory together speed large] [--seconds 4] [--runs 6]
[--catch-ups 3] [--bytes 1000] [--large 8000] [--version 5.4.0] [--dir build/bench]``
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.harness import Report, Row, drained, in_turns, interval, processor_s
from tests.support.rocketmq.following import FollowProcess
from tests.support.rocketmq.real_brokers import Cluster, RealBroker, nameserver, until
from tests.support.rocketmq.real_clients import java_client
from tests.tools.rocketmq_clients import JAVA_5, SERVERS, built

SOURCES = ("network", "directory")
#: What is measured: the cost by either source, apart; by the network, together; catch-up, and with large bodies.
PARTS = (*SOURCES, "together", "speed", "large")
_SEGMENT_BYTES = 64 << 20
#: What a broker has unless it is told otherwise, where those of tests are small.
_BROKER = {
    "mappedFileSizeCommitLog": _SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 6_000_000, "maxIndexNum": 20_000_000,
    "maxHashSlotNum": 5_000_000,
}  # fmt: skip
_FOLLOWER = {"tail_interval_ms": 60_000, "copy_interval_ms": 10_000}
#: After this Java compiles hardly anything more.
_WARM_UP_S = 40.0
#: Each question takes some of the follower's core.
_POLL_S = 0.1
_LIMIT_S = 300.0


@dataclass
class Load:
    """What one producer at full speed did in one turn."""

    messages_per_s: float
    mb_per_s: float
    broker_us: float
    """Processor time of the broker, a message."""


@dataclass
class Beside:
    """A broker and its producer, and followers beside them that come and go."""

    cluster: Cluster
    folder: Path
    seconds: float
    cores: Sequence[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))

    @property
    def broker(self) -> RealBroker:
        return self.cluster.broker

    def keep_on(self, cores: Sequence[int]) -> None:
        """Broker and producer run on these cores from now on."""
        for pid in (self.broker.pid, self.cluster.client.program.pid):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), cores)

    def flood(self, body_bytes: int, seconds: float | None = None) -> Load:
        """A producer at full speed for some seconds."""
        drained()
        begin, cpu_s = self.broker.bounds().max_offset, processor_s(self.broker.pid)
        flood = self.cluster.flood(bytes=body_bytes)
        time.sleep(seconds or self.seconds)
        told = self.cluster.client.do("flood-end", id=flood.name, now="true")
        cpu_s = processor_s(self.broker.pid) - cpu_s
        flood.file.unlink()
        if told["failed"]:
            raise RuntimeError(f"the broker did not take everything: {told}")
        count, taken_s = told["acknowledged"], told["seconds"]
        written = self.broker.bounds().max_offset - begin
        return Load(count / taken_s, written / taken_s / 1e6, cpu_s / count * 1e6)

    def begin_anew(self) -> None:
        """The broker removes what no turn to come needs."""
        bounds = self.broker.bounds()
        if _segment_of(bounds.max_offset) > bounds.min_offset:
            self.broker.remove_segments()

    def slave(self, name: str) -> RealBroker:
        """One of RocketMQ's own that does not run yet."""
        settings = {**_BROKER, "brokerRole": "SLAVE", "brokerId": 1}
        return RealBroker(
            self.cluster.broker.built, self.folder / name, self.broker.nameserver, settings, name=self.broker.name,
            is_brief=False,
        )  # fmt: skip

    def follower(self, name: str, source: str) -> FollowProcess:
        """One that does not run yet, with a store of its own."""
        folder = self.folder / name
        folder.mkdir()
        by = {"store": self.broker.store} if source == "directory" else {}
        return FollowProcess(folder, self.broker, **_FOLLOWER, **by)


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is begun meanwhile runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def wait_for(follower: FollowProcess, name: str, least: int) -> None:
    """Until a gauge has reached something."""
    deadline_s = time.monotonic() + _LIMIT_S
    while follower.gauge(name) < least:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{name} is not {least}: {follower.said()}")
        time.sleep(_POLL_S)


def stop(follower: FollowProcess) -> None:
    """Cleanly."""
    os.kill(follower.pid, signal.SIGTERM)
    follower.ended()
    follower.kill()


def report_cost(report: Report, beside: Beside, part: str, *, runs: int, body_bytes: int) -> None:
    """Adds the rows of what a follower costs the broker."""
    is_apart, source = part in SOURCES, part if part in SOURCES else SOURCES[0]
    what = f"by {source}, {'apart' if is_apart else 'together'}"
    first, others = (beside.cores[:1], beside.cores[1:]) if is_apart else (beside.cores, beside.cores)
    beside.keep_on(first)
    follower = beside.follower(what.replace(", ", "-").replace(" ", "-"), source)
    slave = beside.slave(f"slave-{part}")
    cpu_us: dict[str, list[float]] = {"followed": [], "alone": [], "with a slave": []}
    behind_s: list[float] = []

    def flooded(name: str) -> float:
        load = beside.flood(body_bytes)
        cpu_us[name].append(load.broker_us)
        return load.messages_per_s

    def with_slave() -> float:
        with on_cores(others):
            slave.start()
        end = beside.broker.bounds().max_offset
        until(lambda: slave.bounds().max_offset >= end, lambda: "the slave has caught up", limit_s=_LIMIT_S)
        rate = flooded("with a slave")
        slave.stop()
        return rate

    def followed() -> float:
        with on_cores(others):
            follower.start()
        wait_for(follower, "tierlog_flushed_to_bytes", beside.broker.bounds().max_offset)
        wait_for(follower, "tierlog_archived_to_bytes", _segment_of(beside.broker.bounds().max_offset))
        rate = flooded("followed")
        begun_s = time.monotonic()
        wait_for(follower, "tierlog_flushed_to_bytes", beside.broker.bounds().max_offset)
        behind_s.append(time.monotonic() - begun_s)
        stop(follower)
        return rate

    try:
        figures = in_turns({"followed": followed, "alone": lambda: flooded("alone"), "with a slave": with_slave}, runs)
    finally:
        follower.kill()
        slave.close()
    times = {name: of[-runs:] for name, of in cpu_us.items()}
    for other, target in (("alone", 0.97), ("with a slave", None)):
        for of, unit, sides in (("messages", "messages/s", figures), ("processor time", "µs a message", times)):
            compared = {name: sides[name] for name in ("followed", other)}
            row = Row(f"the broker's {of}, {what}", unit, compared, smaller_is_better=sides is times)
            aimed_at = target if is_apart and sides is figures else None
            report.add(replace(row, target=aimed_at, note=interval(row.ratios)))
    lag = {"tierlog": behind_s[-runs:]}
    report.add(Row(f"from the last message to all durable, {what}", "s", lag, smaller_is_better=True))
    shutil.rmtree(follower.root.parent)


def report_speed(report: Report, beside: Beside, *, turns: int, body_bytes: int) -> None:
    """Adds the rows of how fast a follower on one core catches up that did not run for a while."""
    beside.keep_on(beside.cores)
    for source in SOURCES:
        follower = beside.follower(f"catch-up-{source}-{body_bytes}", source)
        try:
            with on_cores(beside.cores[-1:]):
                follower.start()
            taken = [_catch_up(beside, follower, body_bytes) for _ in range(turns + 1)][1:]
        finally:
            follower.kill()
        what = f"by {source}, bodies to {body_bytes:,} bytes"
        full = {"the broker takes": [one.full for one in taken]}
        report.add(Row(f"catch-up {what}", "MB/s", {"tierlog": [one.followed for one in taken], **full}, 1.0))
        report.add(Row(f"archived {what}", "MB/s", {"tierlog": [one.archived for one in taken], **full}, 1.0))
        of_a_core = {"tierlog": [one.of_a_core for one in taken], **full}
        report.add(Row(f"a second of processor time {what}", "MB", of_a_core, 1.0))
        shutil.rmtree(follower.root.parent)


@dataclass
class CatchUp:
    """What the broker took while its follower was stopped, and how fast all of that was durable and archived here."""

    full: float
    followed: float
    archived: float
    of_a_core: float


def _catch_up(beside: Beside, follower: FollowProcess, body_bytes: int) -> CatchUp:
    begin = beside.broker.bounds().max_offset
    wait_for(follower, "tierlog_flushed_to_bytes", begin)
    wait_for(follower, "tierlog_archived_to_bytes", _segment_of(begin))
    follower.stop()
    load = beside.flood(body_bytes, 2 * beside.seconds)
    drained()
    end, cpu_s, begun_s = beside.broker.bounds().max_offset, follower.cpu_s, time.monotonic()
    follower.go_on()
    wait_for(follower, "tierlog_flushed_to_bytes", end)
    followed_s = time.monotonic() - begun_s
    wait_for(follower, "tierlog_archived_to_bytes", _segment_of(end))
    archived_s, cpu_s = time.monotonic() - begun_s, follower.cpu_s - cpu_s
    mb = (end - begin) / 1e6
    return CatchUp(load.mb_per_s, mb / followed_s, mb / archived_s, mb / cpu_s)


def _segment_of(offset: int) -> int:
    return offset - offset % _SEGMENT_BYTES


@contextlib.contextmanager
def running(version: str, folder: Path) -> Iterator[Cluster]:
    """A broker, its nameserver and a client, compiled as Java does it for processes that stay."""
    for name in ("nameserver", "client"):
        (folder / name).mkdir()
    with (
        nameserver(built(SERVERS[version]), folder / "nameserver") as address,
        java_client(built(JAVA_5), "Remoting5", folder / "client", address, options=()) as client,
        contextlib.closing(
            RealBroker(built(SERVERS[version]), folder / "broker", address, _BROKER, is_brief=False)
        ) as broker,
    ):
        broker.start()
        yield Cluster(broker, client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--catch-ups", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--large", type=int, default=8000)
    parser.add_argument("--version", choices=SERVERS, default="5.4.0")
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    report = Report.of(__file__, __doc__)
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        with running(arguments.version, folder) as cluster:
            beside = Beside(cluster, folder, arguments.seconds)
            beside.flood(arguments.bytes, _WARM_UP_S)
            for part in arguments.only:
                beside.begin_anew()
                if part in ("speed", "large"):
                    body_bytes = arguments.large if part == "large" else arguments.bytes
                    report_speed(report, beside, turns=arguments.catch_ups, body_bytes=body_bytes)
                else:
                    report_cost(report, beside, part, runs=arguments.runs, body_bytes=arguments.bytes)
    finally:
        shutil.rmtree(folder)
    report.save()


if __name__ == "__main__":
    main()
