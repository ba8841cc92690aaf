"""What does one node do per core: with all of them, with one taken away, and with one that another program keeps busy?

Each piece of work runs in a process of its own, on the cores that it may use; beside it, where so named, runs a program
on the last core that never sleeps. Appends are batches of 1,000 in Arrow columns until they are derived; then messages
from 64 asyncio tasks that each wait for the flush, a hot queue pulled as Arrow, look-ups of one key, and a segment that
is archived at level 3. Beside it RocketMQ's ``putMessage``, whose process has the same cores and the same neighbour.

``python benchmarks/cores.py [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.append import append, batches, opened
from benchmarks.archive_segment import archived
from benchmarks.group_commit import MANY, tasks
from benchmarks.harness import Report, Row, as_installed, drained, in_turns
from benchmarks.log_records import fill_segment, open_hot
from benchmarks.peers.rocketmq import rocketmq
from benchmarks.pull import TOPIC, fill, pull_all
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Visibility

_TARGET_BUSY = 8
_MESSAGES = 1_000_000
_PULLED = 200_000
_LOOKED_UP = 3_000
_SEGMENT_MIB = 128
_COLUMNS = ("queue_offset", "physical_offset", "store_ms", "born_ms", "body")


def _append(folder: Path) -> float:
    columns = batches()
    append(folder, columns, 10_000, Visibility.WRITTEN)
    return append(folder, columns, _MESSAGES, Visibility.WRITTEN)


def _tasks(folder: Path) -> float:
    with closing(opened(folder / "store")) as engine:
        tasks(engine, MANY, 10_000)
        return tasks(engine, MANY, 60_000)


def _pull(folder: Path) -> float:
    with closing(opened(folder / "store")) as engine:
        fill(engine, _PULLED)
        pull_all(engine, _COLUMNS)
        return pull_all(engine, _COLUMNS)


def _look_up(folder: Path) -> float:
    with closing(opened(folder / "store")) as engine:
        fill(engine, _PULLED)
        keys = [message.keys[0] for message in engine.query(Query(TOPIC, limit=100)).messages]
        asked = [Query(TOPIC, key=keys[number % len(keys)], limit=1) for number in range(_LOOKED_UP)]
        engine.query(asked[0])
        begun = time.perf_counter()
        for query in asked:
            engine.query(query)
        return _LOOKED_UP / (time.perf_counter() - begun)


def _archive(folder: Path) -> float:
    with closing(open_hot(folder / "store", _SEGMENT_MIB << 20)) as hot:
        fill_segment(hot, _SEGMENT_MIB, 16)
        archived(hot, folder / "cold", 3)
        drained()
        begun = time.perf_counter()
        archived(hot, folder / "cold", 3)
        return (_SEGMENT_MIB << 20) / (time.perf_counter() - begun) / 1e6


#: By name: what it is, its unit, and how it is done once in an empty folder.
WORK: Mapping[str, tuple[str, str, Callable[[Path], float]]] = {
    "append": ("append in batches of 1,000, until derived", "messages/s", _append),
    "tasks": ("64 asyncio tasks, flushed", "acks/s", _tasks),
    "pull": ("pull as Arrow, hot", "messages/s", _pull),
    "look-up": ("look-up of one key, hot", "look-ups/s", _look_up),
    "archive": ("archive of a segment, level 3", "MB/s", _archive),
}


@contextmanager
def neighbour(core: int) -> Iterator[None]:
    """Keeps a core busy."""
    program = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield
        finally:
            process.kill()


def alone(name: str, folder: Path, cores: list[int]) -> float:
    """What a process of its own found."""
    command = (sys.executable, __file__, "--work", name, "--cores", *map(str, cores), "--dir", str(folder))
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=as_installed(PYTHONPATH=path), stdout=subprocess.PIPE, check=True)
    return float(done.stdout.split()[-1])


def beside(core: int, work: Callable[[], float]) -> float:
    """The same with a neighbour."""
    with neighbour(core):
        return work()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        os.sched_setaffinity(0, given.cores)
        with tempfile.TemporaryDirectory(dir=given.dir) as folder:
            print(WORK[given.work][2](Path(folder)))
        return
    given.dir.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    report = Report.of(__file__, __doc__)
    every, fewer = f"{len(cores)} cores", f"{len(cores) - 1} of {len(cores)} cores"
    busy = "one core busy beside"
    for name, (what, unit, _) in WORK.items():
        sides = {
            every: partial(alone, name, given.dir, cores),
            fewer: partial(alone, name, given.dir, cores[:-1]),
            busy: partial(beside, cores[-1], partial(alone, name, given.dir, cores)),
        }
        report.add(Row(what, unit, in_turns(sides, given.runs, warm_ups=0)))
    with tempfile.TemporaryDirectory(dir=given.dir) as inside, rocketmq(Path(inside)) as java:
        put = partial(java.rate, "append", "dispatched_rate", n=_MESSAGES, prewritten=True)
        sides = {
            "tierlog": partial(beside, cores[-1], partial(alone, "append", given.dir, cores)),
            "RocketMQ putMessage": partial(beside, cores[-1], put),
        }
        what, unit, _ = WORK["append"]
        found = in_turns(sides, given.runs)
        report.add(Row(f"{what}, {busy}", unit, found, target=_TARGET_BUSY))
    report.save()


if __name__ == "__main__":
    main()
