"""Does a follower have all of a broker that is at full speed for minutes, and does it not grow meanwhile?

``python -m tests.soak.follow_soak [--minutes 10] [--bytes 300] [--most-gib 0.75] [--version 5.4.0] [--dir FOLDER]
[--no-save]``, or ``make follow-soak``. A Java producer sends as fast as a real broker takes it, while two processes of
``tierlog follow`` stand beside the broker: one copies as a slave does, one reads the broker's directory.

Whenever the broker's log has ``--most-gib``, and at the end, the producer stops and both reach the end. Then each byte
of the broker's segments is compared with both stores, each acknowledged message is looked for at the place that its
producer was told, with its queue, offset and id, and some of this round and of those before by key in both processes.
After that the broker removes its segments. At the end both archives reach the end, messages of all rounds are found by
key, and both stores are checked deeply. Ends with 1 if anything was missing, wrong or lost, or memory grew; the course
is kept in benchmarks/results/follow_soak.json. On the disk are, beside what is compared, both archives: of all that was
sent.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Report, Row
from tests.conftest import ROOT
from tests.soak.growth import MOST_RATIO, Growth, growth, resident_mib
from tests.soak.soak import Course
from tests.support.processes.nodes import ask
from tests.support.rocketmq.following import STORE_ID, FollowProcess, differing
from tests.support.rocketmq.real_brokers import Acknowledged, Cluster, Flood, RealBroker, nameserver, until
from tests.support.rocketmq.real_clients import java_client
from tests.tools.rocketmq_clients import JAVA_5, SERVERS, built

SOURCES = ("network", "directory")
SEGMENT_BYTES = 64 << 20
#: Small, so that index files were sealed and compacted long before memory is judged. What the caches may hold is a
#: thirtieth of a follower's memory: they fill only once look-ups need the archive, which is late on a slow machine.
SETTINGS = {
    "index.slots": 200_000, "index.items": 400_000, "cold.cache_bytes": 4 << 20, "cold.filter_bytes": 2 << 20,
    "cold.disk_cache_bytes": 32 << 20, "cold.read_ahead_bytes": 16 << 20,
}  # fmt: skip
#: Of the log, for memory to be judged: in the first third segments begin to be removed, so that look-ups need the
#: archive.
_LEAST_MB = 4_000.0
_SAMPLE_S = 5.0
_SAY_EVERY = 6
_BY_KEY = 50
_LIMIT_S = 600.0
_MOST_WRONG = 20
#: Size, magic and checksum of a record, its queue, its flag, its offset in the queue, and its place.
_HEAD = struct.Struct(">12xi4xqq")
_SIZE = struct.Struct(">i")


@dataclass
class FollowSoak:
    """One broker, its producer and both followers, for some seconds; what was wrong is in :attr:`wrong`."""

    cluster: Cluster
    followers: dict[str, FollowProcess]
    seconds: float
    body_bytes: int
    most_bytes: int
    chance: random.Random
    wrong: list[str] = field(default_factory=list)
    course: Course = field(default_factory=Course)
    acknowledged: int = 0
    compared_bytes: int = 0
    removed_bytes: int = 0
    #: Messages of all rounds, to be found by key once more at the end.
    kept: list[Acknowledged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun_s = time.monotonic()

    @property
    def broker(self) -> RealBroker:
        """The one that is followed."""
        return self.cluster.broker

    def run(self) -> None:
        """From the first message to both deep checks."""
        self.cluster.client.send(self.cluster.topics[0], "first")  # before it, a broker's directory has no log
        for follower in self.followers.values():
            follower.start()
        self._begun_s = time.monotonic()
        while True:
            self._round()
            if self._second >= self.seconds or self.wrong:
                break
            begin = self.broker.bounds().min_offset
            self.removed_bytes += self.broker.remove_segments() - begin
        self._end()

    def growth(self, source: str) -> Growth | None:
        """Of a follower's memory, over all of the log that it followed."""
        return growth(self.course.columns["log_mb"], self.course.columns[f"resident_mib_by_{source}"], _LEAST_MB)

    @property
    def _second(self) -> float:
        return time.monotonic() - self._begun_s

    def _complain(self, what: str) -> None:
        if len(self.wrong) < _MOST_WRONG:
            self.wrong.append(what)

    # a round

    def _round(self) -> None:
        flood = self.cluster.flood(bytes=self.body_bytes)
        self._watch()
        told = self.cluster.client.do("flood-end", id=flood.name, now="true")
        if told["failed"]:
            self._complain(f"the broker refused {told['failed']} messages: {told['errors']}")
        end, stopped_s = self.broker.bounds().max_offset, self._second
        for source, follower in self.followers.items():
            follower.reach(end)
            print(f"follow: by {source} all is durable {self._second - stopped_s:.1f} s after the last message")
            wrong = differing(follower.root / STORE_ID, self.broker)
            if wrong:
                self._complain(f"by {source}, segments differ: {wrong}")
        self.compared_bytes = end
        some = self._look_at_each(flood)
        self._look_up([*some, *self.kept[-_BY_KEY:]])
        self.kept += some[: _BY_KEY // 5]

    def _watch(self) -> None:
        """Until the time is over or the broker's log is long enough."""
        before, before_s = self.broker.bounds().max_offset, self._second
        while self._second < self.seconds:
            time.sleep(_SAMPLE_S)
            bounds, second = self.broker.bounds(), self._second
            speed = (bounds.max_offset - before) / (second - before_s) / 1e6
            row = {"seconds": second, "log_mb": bounds.max_offset / 1e6, "broker_mb_per_s": speed}
            before, before_s = bounds.max_offset, second
            for source, follower in self.followers.items():
                durable = follower.gauge("tierlog_flushed_to_bytes")
                row[f"lag_mb_by_{source}"] = max(0.0, bounds.max_offset - durable) / 1e6
                row[f"archive_lag_mb_by_{source}"] = follower.gauge("tierlog_archive_lag_bytes") / 1e6
                row[f"resident_mib_by_{source}"] = resident_mib(follower.pid)
            self.course.add(row)
            if len(self.course.columns["seconds"]) % _SAY_EVERY == 0:
                print("follow: " + ", ".join(f"{name} {value:.1f}" for name, value in row.items()), flush=True)
            if bounds.max_offset - bounds.min_offset >= self.most_bytes:
                return

    def _look_at_each(self, flood: Flood) -> list[Acknowledged]:
        """Look for each message where its producer was told that it is; some, chosen by chance, are returned."""
        some: list[Acknowledged] = []
        with mapped(self.broker) as segments, flood.file.open() as lines:
            count = 0
            for line in lines:
                topic, key, queue, offset, unique_id, place, status = line.split()
                if status != "SEND_OK":
                    continue
                one = Acknowledged(topic, key, int(queue), int(offset), unique_id, place)
                if not is_there(segments, self.broker.segment_bytes, one):
                    self._complain(f"{one} is not where it was acknowledged")
                count += 1
                if len(some) < _BY_KEY:
                    some.append(one)
                elif (at := self.chance.randrange(count)) < _BY_KEY:
                    some[at] = one
        self.acknowledged += count
        flood.file.unlink()
        return some

    def _look_up(self, wanted: list[Acknowledged]) -> None:
        for one in wanted:
            for source, follower in self.followers.items():
                answer = ask(follower.url, f"/v1/topics/{one.topic}/messages?key={one.key}")
                found = [
                    (each["queue_id"], each["queue_offset"], each["physical_offset"]) for each in answer["messages"]
                ]
                if found != [(one.queue, one.offset, one.physical_offset)] or not answer["coverage"]["complete"]:
                    self._complain(f"by {source}, {one} is found as {found}")

    # the end

    def _end(self) -> None:
        end = self.broker.bounds().max_offset
        for source, follower in self.followers.items():
            self._wait_for_archive(source, end - end % self.broker.segment_bytes)
            lost = sum(follower.metrics("tierlog_follow_gap_bytes_total").values())
            if lost:
                self._complain(f"by {source}, {lost:.0f} bytes were missed")
        self._look_up(self.kept)
        for source, follower in self.followers.items():
            os.kill(follower.pid, signal.SIGTERM)
            if follower.ended():
                self._complain(f"by {source}, the process did not end well: {follower.said()}")
            command = [
                sys.executable, "-m", "tierlog.service.main", "check", "--deep",
                "--root", str(follower.root / STORE_ID), "--cold", follower.cold_url,
            ]  # fmt: skip
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                self._complain(f"by {source}, check --deep: {done.stdout[-1000:]} {done.stderr[-1000:]}")

    def _wait_for_archive(self, source: str, end: int) -> None:
        """Until segments below ``end`` are archived, and what is above is in tails."""
        follower = self.followers[source]

        def has_all() -> bool:
            is_archived = follower.gauge("tierlog_archived_to_bytes") >= end
            return is_archived and follower.gauge("tierlog_unarchived_bytes") == 0

        until(has_all, lambda: f"by {source}, the archive has all: {follower.said()}", limit_s=_LIMIT_S)


@contextlib.contextmanager
def mapped(broker: RealBroker) -> Iterator[dict[int, mmap.mmap]]:
    """The segments of a broker by their base, to be read."""
    with contextlib.ExitStack() as opened:
        found = {}
        for base, path in broker.segments.items():
            file = opened.enter_context(path.open("rb"))
            found[base] = opened.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        yield found


def is_there(segments: Mapping[int, mmap.mmap | bytes], segment_bytes: int, wanted: Acknowledged) -> bool:
    """Whether a log has a message where its producer was told: its queue, its offset there, and its id."""
    place = wanted.physical_offset
    at = place % segment_bytes
    data = segments[place - at]
    queue, offset, own_place = _HEAD.unpack_from(data, at)
    if (queue, offset, own_place) != (wanted.queue, wanted.offset, place):
        return False
    return data.find(wanted.unique_id.encode(), at, at + _SIZE.unpack_from(data, at)[0]) >= 0


@contextlib.contextmanager
def begun(folder: Path, given: argparse.Namespace, seed: int) -> Iterator[FollowSoak]:
    """All processes but the followers run, and those end with it."""
    for name in ("nameserver", "client", *SOURCES):
        (folder / name).mkdir()
    program, most_bytes = built(SERVERS[given.version]), int(given.most_gib * (1 << 30))
    with contextlib.ExitStack() as running:
        address = running.enter_context(nameserver(program, folder / "nameserver"))
        client = running.enter_context(java_client(built(JAVA_5), "Remoting5", folder / "client", address, options=()))
        sizes = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "maxIndexNum": 20_000_000, "maxHashSlotNum": 5_000_000}
        broker = RealBroker(program, folder / "broker", address, sizes, is_brief=False)
        running.callback(broker.close)
        broker.start()
        followers = {}
        for source in SOURCES:
            by = {"store": broker.store} if source == "directory" else {}
            followers[source] = FollowProcess(folder / source, broker, tail_interval_ms=10_000, **by)
            # what was compared goes once it is archived, as it does at the broker
            own = {**SETTINGS, "hot.max_bytes": most_bytes * 3 // 2}
            named = {f"TIERLOG_{name.replace('.', '_').upper()}": str(value) for name, value in own.items()}
            followers[source].settings.update(named)
            running.callback(followers[source].kill)
        yield FollowSoak(
            Cluster(broker, client), followers, given.minutes * 60, given.bytes, most_bytes, random.Random(seed)
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.follow_soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--bytes", type=int, default=300, help="the longest body; lengths are random")
    parser.add_argument(
        "--most-gib", type=float, default=0.75, help="of the broker's log, before it removes its segments"
    )
    parser.add_argument("--version", choices=SERVERS, default="5.4.0")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where everything is meanwhile")
    parser.add_argument("--no-save", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args()
    seed = int(os.environ.get("TIERLOG_SEED") or random.randrange(2**32))
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with (
        tempfile.TemporaryDirectory(dir=given.dir.resolve(), prefix="follow-soak-") as folder,
        begun(Path(folder), given, seed) as soak,
    ):
        soak.run()
        for line in soak.wrong:
            print(f"wrong: {line}")
        is_well = _told(report, soak)
    if not given.no_save:
        report.save()
    return 0 if is_well else 1


def _told(report: Report, soak: FollowSoak) -> bool:
    course = soak.course.columns
    report.add(Row("wrong, missing or lost", "", {"tierlog": [len(soak.wrong)]}, target=0, smaller_is_better=True))
    report.add(Row("the broker takes", "MB/s", {"tierlog": course["broker_mb_per_s"]}))
    report.add(Row("acknowledged messages, each found in its place", "", {"tierlog": [soak.acknowledged]}))
    report.add(Row("bytes compared with both stores", "MB", {"tierlog": [soak.compared_bytes / 1e6]}))
    report.add(Row("bytes removed by the broker", "MB", {"tierlog": [soak.removed_bytes / 1e6]}))
    is_well = not soak.wrong
    for source in SOURCES:
        lags = {"tierlog": course[f"lag_mb_by_{source}"]}
        report.add(Row(f"not durable here yet, by {source}", "MB", lags, smaller_is_better=True))
        lags = {"tierlog": course[f"archive_lag_mb_by_{source}"]}
        report.add(Row(f"not in an archived segment yet, by {source}", "MB", lags, smaller_is_better=True))
        grown = soak.growth(source)
        if grown is None:
            print(f"memory, by {source}: not judged, as the log has less than {_LEAST_MB:,.0f} MB")
        else:
            sides = {"last third": [grown.last], "middle third": [grown.middle]}
            what, note = f"resident memory, by {source}", "thirds of the log's bytes"
            report.add(Row(what, "MiB", sides, target=MOST_RATIO, smaller_is_better=True, note=note))
            is_well = is_well and grown.is_within
    report.series["course"] = course
    return is_well


if __name__ == "__main__":
    sys.exit(main())
