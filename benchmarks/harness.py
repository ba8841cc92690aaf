"""What benchmarks share: sides that run in turns, figures with their spread, and what docs/performance.md is made of.

A benchmark answers one question in rows. A row has sides, tierlog first, that ran in turns over the same data; its
ratio is that of each turn, so that a machine which slows down for a while slows both. The results are kept in
``results/NAME.json`` with machine, versions, commit and command.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from tests.tools.java_programs import rocketmq_version

RESULTS = Path(__file__).parent / "results"
_CONFIDENCE = 0.95
#: A figure this near to what nobody can pass is at the limit.
_OF_LIMIT = 0.9
_LIBRARIES = ("numpy", "numba", "llvmlite", "pyarrow", "zstandard", "fastapi", "uvicorn", "rocksdict", "lmdb")
#: Does its work once, and says how many of the unit a second that was.
Side = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One line of a table: rates of each side, a figure a turn, and what was aimed at."""

    what: str
    unit: str
    #: Name to the figures of all turns; the first is tierlog's, the second what it is compared with.
    sides: Mapping[str, Sequence[float]]
    #: The ratio of the first side to the second is to be at least this (at most, if smaller figures are better).
    target: float | None = None
    #: For figures such as seconds or bytes.
    smaller_is_better: bool = False
    note: str = ""
    #: What holds it back, by a profile; only shown while the target is missed.
    held_by: str = ""
    #: What nobody can pass on this machine: a name, and the figures of the same turns by a program that does only what
    #: cannot be left out. A target that is missed becomes 0.9 of it.
    limit: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: Why that work cannot be left out; only shown while the target is missed.
    proof: str = ""

    @property
    def ratios(self) -> list[float]:
        """First side by second, turn by turn; empty for a row with one side."""
        if len(self.sides) < 2:
            return []
        ours, theirs = list(self.sides.values())[:2]
        return [one / other for one, other in zip(ours, theirs, strict=True)]

    @property
    def is_met(self) -> bool | None:
        """Whether the median of the ratios (without a second side: of the figures) reaches the target."""
        if self.target is None:
            return None
        reached = statistics.median(self.ratios or next(iter(self.sides.values())))
        return reached <= self.target if self.smaller_is_better else reached >= self.target

    @property
    def of_limit(self) -> list[float]:
        """First side by the limit, turn by turn; empty for a row that names no limit."""
        ours = next(iter(self.sides.values()))
        return [one / most for figures in self.limit.values() for one, most in zip(ours, figures, strict=True)]

    @property
    def is_at_limit(self) -> bool:
        """Whether the target is missed and the median comes as near to the limit as a target may be.

        What is passed by more than that was no limit.
        """
        if self.is_met is not False or not self.limit:
            return False
        return _OF_LIMIT <= statistics.median(self.of_limit) <= 1 / _OF_LIMIT

    @property
    def verdict(self) -> str:
        """In a word or three; empty without a target."""
        if self.is_met is None:
            return ""
        return "met" if self.is_met else "at the limit" if self.is_at_limit else "MISSED"


@dataclass
class Report:
    """The rows of one benchmark; :meth:`add` prints each as it comes, :meth:`save` keeps all."""

    name: str
    question: str
    rows: list[Row] = field(default_factory=list)
    #: Whatever a plot needs beside the rows: name to columns of equal length.
    series: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, file: str, documentation: str | None) -> Report:
        """Of a benchmark's ``__file__`` and ``__doc__``, whose first paragraph is the question."""
        question = " ".join((documentation or "").split("\n\n", 1)[0].split())
        return cls(Path(file).stem, question)

    def add(self, row: Row) -> None:
        """Keep and print a row."""
        self.rows.append(row)
        for number, (name, figures) in enumerate(row.sides.items()):
            print(f"{row.what if number == 0 else '':44.44} {name:28.28} {spread(figures)} {row.unit}", flush=True)
        if row.ratios:
            target = "" if row.target is None else f" (target {row.target:g}: {row.verdict})"
            print(f"{'':44} {'ratio':28} {spread(row.ratios)}{target}", flush=True)
        elif row.target is not None:
            print(f"{'':44} {'target':28} {row.target:g}: {row.verdict}", flush=True)
        for name in row.limit:
            print(f"{'':44} {f'by the limit, {name}':28.28} {spread(row.of_limit)}", flush=True)
        if row.note:
            print(f"{'':44} {row.note}", flush=True)

    def save(self, folder: Path = RESULTS) -> Path:
        """Write ``NAME.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        found = {
            "name": self.name,
            "question": self.question,
            "command": _command(),
            "commit": _commit(),
            "seconds": round(time.monotonic() - self.begun_s, 1),
            "machine": _machine(),
            "versions": _versions(),
            "rows": [{**asdict(row), "ratios": row.ratios, "is_met": row.is_met} for row in self.rows],
            "series": self.series,
        }
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(_rounded(found), indent=1) + "\n", encoding="utf-8")
        return path


def as_installed(**more: str) -> dict[str, str]:
    """The environment of a process whose start is measured: an installation has compiled modules.

    A workplace that forbids to write them has every module compiled by each start.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


def in_turns(sides: Mapping[str, Side], runs: int = 5, *, warm_ups: int = 1) -> dict[str, list[float]]:
    """Run every side once a turn, after warm-ups that do not count; every other turn begins with the last side."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-warm_ups, runs):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            rate = sides[name]()
            if turn >= 0:
                figures[name].append(rate)
    return figures


def processor_s(pid: int) -> float:
    """The processor time, of all its threads, that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drained() -> None:
    """Wait until what was written before has reached the disk, which would slow the next side down."""
    os.sync()


def interval(ratios: Sequence[float]) -> str:
    """Where the median of all such ratios lies with 95 % or more, by their order alone."""
    ordered, count = sorted(ratios), len(ratios)
    outside, cut = 0.0, 0
    while cut < count // 2 and (more := outside + 2 * math.comb(count, cut) / 2**count) <= 1 - _CONFIDENCE:
        outside, cut = more, cut + 1
    if not cut:
        return f"{count} turns are too few for an interval"
    return f"the median lies within {ordered[cut - 1]:.3f} and {ordered[-cut]:.3f} with {1 - outside:.0%}"


def spread(figures: Sequence[float]) -> str:
    """Lowest / median / highest."""
    return " / ".join(f"{_short(one):>9}" for one in (min(figures), statistics.median(figures), max(figures)))


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.3g}"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def _command() -> str:
    program = Path(os.path.relpath(sys.argv[0]))
    named = ["-m", ".".join(program.parent.parts)] if program.name == "__main__.py" else [str(program)]
    return shlex.join(["python", *named, *sys.argv[1:]])


def _commit() -> str:
    def git(*words: str) -> str:
        found = subprocess.run(["git", *words], capture_output=True, text=True, cwd=RESULTS.parent, check=False)
        return found.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results", ":!docs")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if changed else "")


def _machine() -> dict[str, object]:
    cpu = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, **_java_versions()}


def _java_versions() -> dict[str, str]:
    """Of Java and the RocketMQ classes that it runs; none without Java."""
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return {}
    java = re.search(r'version "([^"]+)"', said)
    return {"java": java[1] if java else "unknown", "rocketmq": rocketmq_version()}
