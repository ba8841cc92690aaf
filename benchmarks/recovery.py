"""How long does opening a store take after its process was killed, with 1 GiB of log?

Both sides hold the same number of messages (256 bytes, a random key of 16 hex digits and one more, two index items
each), were killed two seconds after the last, and are opened by a process of its own, page cache warm, until queues and
index are there: from the call that opens the store, and with the process's start before it. As a service leaves its
store, with the recovery points that it makes every five seconds; and without any, so that the whole log is scanned with
its checksums and derived again, which is what RocketMQ does either way.

``python benchmarks/recovery.py [--messages 2500000] [--runs 5] [--dir build/bench]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.corpus import hex_keys
from benchmarks.harness import Report, Row, as_installed, drained, in_turns
from benchmarks.peers.rocketmq import RocketMQ, rocketmq
from tests.tools.cache import ToolMissingError
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.arrow_input import ArrowMessages

_TOPIC, _BODY_BYTES, _BATCH = "TopicTest", 256, 50_000
_LINGER_S = 2.0
_TARGET = 1 / 3
_DERIVING = (
    "one thread derives all: of its time the scan with checksums takes half, hashing keys a fifth, putting items and "
    "page faults of the new files the rest"
)
_STARTING = (
    "a third of it is the start: of 0.65 s some 310 modules of our own take half, numba, numpy and pyarrow a third; of "
    "the opening, the scan with checksums takes a third, keys that are hashed and put a third, numba a sixth, which "
    "imports how to lower code before it loads its first compiled kernel"
)


def settings() -> Settings:
    return Settings.load(overrides={"advertise": "127.0.0.1:10911", "hot.disk_full_percent": 100})


def fill_and_die(root: Path, messages: int, *, has_points: bool) -> None:
    """In a process of its own: with the background that makes recovery points, or without."""
    engine = Store.open(root, settings=settings())
    if has_points:
        engine.start()
    bodies = np.random.default_rng(1).bytes(_BATCH * _BODY_BYTES)
    offsets = pa.array(np.arange(_BATCH + 1, dtype=np.int32) * _BODY_BYTES)
    keys = hex_keys(2 * messages).astype("U16")
    for first in range(0, messages, _BATCH):
        count = min(_BATCH, messages - first)
        body = pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(bodies)])
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * 2)
        both = pa.ListArray.from_arrays(ends, pa.array(keys[2 * first : 2 * (first + count)]))
        table = pa.table({"body": body, "keys": both, "tag": ["TagA"] * count})
        is_last = first + count == messages
        engine.append(ArrowMessages(table, _TOPIC), Durability.FLUSHED if is_last else Durability.ASYNC)
        engine.pull(_TOPIC, 0, 0, 1)  # which derives, and makes no recovery point as a flush of the engine would
    time.sleep(_LINGER_S)
    print(engine.stats()["log_end"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_die(root: Path) -> None:
    """In a process of its own: seconds of opening the store."""
    begun_s = time.perf_counter()
    engine = Store.open(root, settings=settings())
    print(json.dumps({"seconds": time.perf_counter() - begun_s, "end": engine.stats()["log_end"]}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _in_a_process(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.recovery", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=as_installed())
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"{command} ended with {done.returncode}")
    return done.stdout


class Killed:
    """The store of a killed process, which every opening gets a copy of: opening makes a recovery point."""

    def __init__(self, folder: Path, messages: int, *, has_points: bool) -> None:
        self._store, self._copy = folder / "killed", folder / "copy"
        self.log_bytes = int(
            _in_a_process("--fill", str(self._store), str(messages), "points" if has_points else "none")
        )

    def opened(self, *, with_start: bool) -> float:
        """Seconds; the log is shared with the copy, as opening changes nothing of it but zeros behind its end."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._store, self._copy, copy_function=_copied)
        drained()
        begun_s = time.perf_counter()
        answer = json.loads(_in_a_process("--open", str(self._copy)))
        seconds = time.perf_counter() - begun_s
        if answer["end"] != self.log_bytes:
            raise SystemExit(f"the log ended at {self.log_bytes}, and after recovery at {answer['end']}")
        return seconds if with_start else float(answer["seconds"])


def _copied(source: str, target: str) -> None:
    if Path(source).parent.name == "commitlog":
        os.link(source, target)
    else:  # files of the index are mostly holes
        subprocess.run(["cp", "--sparse=always", source, target], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=2_500_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        fill_and_die(Path(given.fill[0]), int(given.fill[1]), has_points=given.fill[2] == "points")
    if given.open:
        open_and_die(given.open)
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name)
        peer = _killed_peer(folder / "rocketmq", given.messages)
        for what, has_points in (("recovery points", True), ("no recovery point", False)):
            killed = Killed(folder / what.replace(" ", "-"), given.messages, has_points=has_points)
            for with_start in (True, False) if has_points else (False,):
                sides = {"tierlog": partial(killed.opened, with_start=with_start)}
                if peer is not None:
                    sides["RocketMQ"] = partial(peer.recovered_seconds, folder / "rocketmq", with_start=with_start)
                report.add(
                    Row(
                        f"{what}, {'with the start' if with_start else 'opening alone'}", "s",
                        in_turns(sides, given.runs), target=_TARGET, smaller_is_better=True,
                        note="" if has_points else _DERIVING, held_by=_STARTING if with_start else "",
                    )
                )  # fmt: skip
    report.save()


def _killed_peer(folder: Path, messages: int) -> RocketMQ | None:
    try:
        with rocketmq(folder) as peer:
            pass
    except ToolMissingError as error:
        print(f"without RocketMQ: {error}")
        return None
    peer.prepare_killed(folder, n=messages, body=_BODY_BYTES, linger_ms=int(_LINGER_S * 1000))
    return peer


if __name__ == "__main__":
    main()
