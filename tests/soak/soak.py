"""A service under everything at once: producers, a group, look-ups, archive rounds, merges, expiry, and SIGKILL.

In the first half of the time the service is killed again and again, at moments that a seed decides: while it starts,
or some seconds later. The second half has no kills, so that memory can be judged (:mod:`tests.soak.growth`). At the end
all that was acknowledged has been consumed, and the store is killed once more and checked deeply.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT
from tests.soak.actors import Actor, Keeper, LookUp, Member, Producer
from tests.soak.growth import Growth, growth, resident_mib
from tests.soak.ledger import Ledger, Topic
from tests.support.processes.nodes import Node, ask

STORE_ID = "soak"
GRACE_MS = 120_000
#: The first is kept as long as the archive keeps anything, the second by a rule of its own.
TOPICS = (Topic("kept", 3, 90_000), Topic("brief", 2, 20_000))
SETTINGS = {
    "hot.segment_bytes": 4 << 20, "hot.queue_file_units": 20_000, "hot.roll_age_ms": 10_000,
    "hot.retention_ms": 10_000, "hot.checkpoint_interval_ms": 1_000,
    "index.slots": 20_000, "index.items": 40_000, "index.seal_age_ms": 10_000,
    "cold.retention_ms": 90_000, "cold.grace_ms": GRACE_MS, "cold.max_inline_entries": 12, "cold.page_entries": 6,
    # small, so that they are full long before memory is judged
    "cold.cache_bytes": 16 << 20, "cold.filter_bytes": 4 << 20, "cold.disk_cache_bytes": 32 << 20,
    "cold.read_ahead_bytes": 16 << 20, "produce.window_ms": 60_000,
    "hot.disk_max_used_percent": 100, "hot.disk_full_percent": 100, "log.level": "warning",
}  # fmt: skip
_SAMPLE_S = 2.0
_DRAIN_S = 120.0


@dataclass
class Course:
    """What was seen, a column a figure, a row every other second."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def add(self, row: dict[str, float]) -> None:
        """One more row."""
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)

    def since(self, second: float) -> tuple[list[float], list[float]]:
        """Seconds and resident memory of the rows from a second on."""
        rows = zip(self.columns["seconds"], self.columns["resident_mib"], strict=True)
        kept = [row for row in rows if row[0] >= second]
        return [at for at, _ in kept], [mib for _, mib in kept]


class Soak:
    """One soak in a folder of its own; the same seed kills at the same moments."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self.seconds, self.seed = seconds, seed
        self.kills = 0
        self.course = Course()
        self.ledger = Ledger(TOPICS)
        self._chance = random.Random(seed)
        self._cold = folder / "cold"
        self._root = folder / "store"
        settings = {f"TIERLOG_{name.replace('.', '_').upper()}": str(value) for name, value in SETTINGS.items()}
        flags = ("--store-id", STORE_ID)
        self._node = Node(self._root, self._cold.as_uri(), "", flags, settings)
        self._begun_s = time.monotonic()
        self._last: tuple[float, dict[str, int]] | None = None

    def run(self) -> None:
        """From the first message to the deep check; what was wrong is in the ledger."""
        self._node.start()
        try:
            for topic in TOPICS:
                wanted: dict[str, int] = {"queues": topic.queues}
                if topic.name == "brief":
                    wanted["cold_retention_ms"] = topic.retention_ms
                ask(self._node.url, f"/v1/topics/{topic.name}", wanted, "PUT")
            self.keeper = Keeper(*self._of("keeper"), self._cold, STORE_ID, GRACE_MS)
            producers = [
                Producer(*self._of(f"{topic.name}.{name}"), topic, is_careless=name == "careless")
                for topic in TOPICS
                for name in ("a", "b", "careless")
            ]
            readers: list[Actor] = [
                *(Member(*self._of(f"member-{number}")) for number in range(2)),
                *(LookUp(*self._of(f"look-up-{number}")) for number in range(2)),
            ]
            everybody = [self.keeper, *producers, *readers]
            self._begun_s = time.monotonic()
            for actor in everybody:
                actor.start()
            self._kill_until(self.seconds / 2)
            self._watch_until(self.seconds)
            _end([self.keeper, *producers])
            self._drain()
            _end(readers)
        finally:
            self._node.kill()
        self._check()

    @property
    def growth(self) -> Growth | None:
        """Of the memory in the half without kills."""
        return growth(*self.course.since(self.seconds / 2))

    def _of(self, name: str) -> tuple[str, str, Ledger, random.Random]:
        """What every actor has; its chance is its own, so that none depends on how the threads take turns."""
        return name, self._node.url, self.ledger, random.Random(self._chance.random())

    def _kill_until(self, second: float) -> None:
        while self._second < second and not self.ledger.wrong:
            if self._chance.random() < 0.3:  # while it starts
                self._node.kill()
                self._node.begin()
                self._watch_until(self._second + self._chance.uniform(0, 2))
            else:
                self._watch_until(min(second, self._second + self._chance.uniform(3, 25)))
            self._node.kill()
            self.kills += 1
            self._node.start()

    def _watch_until(self, second: float) -> None:
        while (left_s := second - self._second) > 0 and not self.ledger.wrong:
            time.sleep(min(left_s, _SAMPLE_S))
            self._sample()

    def _sample(self) -> None:
        ledger = self.ledger
        counted = {"acknowledged": ledger.acknowledged, "consumed": ledger.consumed, "look_ups": ledger.looked_up}
        second = self._second
        if self._last is not None and second - self._last[0] < _SAMPLE_S / 2:
            return
        before_s, before = self._last or (second - _SAMPLE_S, counted)
        try:
            mib = resident_mib(self._node.pid)
        except ProcessLookupError:
            return
        rates = {f"{name}_per_s": (counted[name] - before[name]) / (second - before_s) for name in counted}
        sizes = {"hot_mib": _mib_below(self._root), "archive_mib": _mib_below(self._cold)}
        self.course.add({"seconds": second, "resident_mib": mib, "kills": self.kills, **rates, **sizes})
        self._last = second, counted

    @property
    def _second(self) -> float:
        return time.monotonic() - self._begun_s

    def _drain(self) -> None:
        """Wait until consumers have been given all that was acknowledged."""
        deadline_s = time.monotonic() + _DRAIN_S
        while self.ledger.behind() and not self.ledger.wrong:
            if time.monotonic() > deadline_s:
                self.ledger.complain(f"{self.ledger.behind()} messages were not consumed within {_DRAIN_S} s")
            time.sleep(0.2)

    def _check(self) -> None:
        command = [
            sys.executable, "-m", "tierlog.service.main", "check", "--deep",
            "--root", str(self._root), "--cold", self._cold.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            self.ledger.complain(f"check --deep: {done.returncode} {done.stdout[-1000:]} {done.stderr[-1000:]}")

    def said(self) -> str:
        """The end of the service's log."""
        return self._node.said()


def _end(actors: Sequence[Actor]) -> None:
    for actor in actors:
        actor.stopping.set()
    for actor in actors:
        actor.join(90)


def _mib_below(folder: Path) -> float:
    """Blocks in use; files may go while they are counted."""
    blocks = 0
    for path in folder.rglob("*"):
        try:
            blocks += path.stat().st_blocks
        except FileNotFoundError:
            continue
    return blocks / 2048
