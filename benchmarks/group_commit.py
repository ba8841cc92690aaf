"""What do many writers of single messages gain by sharing flushes, and what does a roll cost the one who meets it?

Each of ``--threads`` writers appends messages of ``--body`` bytes, ``flushed``, one after another, for ``--seconds``.
The peer in the same run is the same store without group commit: every writer flushes for itself, one after another.
``--flush-ms`` makes each flush of the log take that much longer, as a disk without a write cache of its own does.
Then segments of ``--segment-mib`` are filled with and without the next one being made ahead; printed is the slowest
appends. Everything on the same folder; no service, no network.

``PYTHONPATH=. python benchmarks/group_commit.py [--threads 1 8 32] [--flush-ms 0 2] [--seconds 3]``
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.engine import Engine
from service.settings import Settings
from tiering.batch import Message
from tiering.fs import File, LocalFileSystem
from tiering.types import Durability


class SlowFlushes(LocalFileSystem):
    """The machine's file system with flushes of the commit log that take longer."""

    def __init__(self, flush_ms: float) -> None:
        self._flush_s = flush_ms / 1000

    def open(self, path: Path) -> File:
        """Open; the file's flush takes longer."""
        file = super().open(path)
        if self._flush_s and path.parent.name == "commitlog":
            flush = file.flush

            def slowly() -> None:
                time.sleep(self._flush_s)
                flush()

            file.flush = slowly  # type: ignore[method-assign]
        return file


def opened(folder: str, flush_ms: float, segment_mib: int) -> Engine:
    settings = Settings.load(overrides={"hot.segment_bytes": segment_mib << 20, "advertise": "127.0.0.1:10911"})
    return Engine.open(Path(folder), settings=settings, fs=SlowFlushes(flush_ms))


def run_writers(count: int, seconds: float, append: Callable[[], object]) -> list[float]:
    """Seconds that each append took, of all writers."""
    taken: list[list[float]] = [[] for _ in range(count)]
    stop = threading.Event()

    def write(mine: list[float]) -> None:
        while not stop.is_set():
            start = time.perf_counter()
            append()
            mine.append(time.perf_counter() - start)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sorted(each for mine in taken for each in mine)


def flush_each(engine: Engine, messages: list[Message]) -> Callable[[], None]:
    """The peer: whoever appends flushes, whether or not somebody else has done so meanwhile."""
    lock = threading.Lock()

    def append() -> None:
        engine.append(messages, Durability.ASYNC)
        with lock:
            engine._hot.log._flush_file()  # there is no public way to flush twice what is flushed

    return append


def measure(threads: int, flush_ms: float, seconds: float, body: int) -> None:
    messages = [Message("bench", bytes(body), ["key"])]
    rates = []
    for name in ("one flush each", "group commit"):
        with tempfile.TemporaryDirectory() as folder:
            engine = opened(folder, flush_ms, 256)
            engine.append(messages)
            before = engine._hot.log.flushes
            shares = name == "group commit"
            append = partial(engine.append, messages) if shares else flush_each(engine, messages)
            taken = run_writers(threads, seconds, append)
            per_flush = len(taken) / max(1, engine._hot.log.flushes - before)
            engine.close()
        rates.append(len(taken) / seconds)
        middle, late = taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3
        print(
            f"{flush_ms:>8.1f} {threads:>8} {name:>15} {rates[-1]:>10.0f} {per_flush:>10.1f} "
            f"{middle:>9.2f} ms {late:>9.2f} ms"
        )
    print(f"{flush_ms:>8.1f} {threads:>8} {'ratio':>15} {rates[1] / rates[0]:>10.2f}")


def slowest_append(*, ahead: bool, segment_mib: int) -> tuple[list[float], float]:
    """Seconds of each append that met a roll, and of the slowest one that met none."""
    with tempfile.TemporaryDirectory() as folder:
        engine = opened(folder, 0, segment_mib)
        batch = [Message("bench", bytes(64 << 10), queue_id=0) for _ in range(16)]
        rolls, slowest = [], 0.0
        while engine._hot.log.last_base < 4 * engine._hot.log.segment_bytes:
            if ahead:  # what the background thread does, here between two appends
                engine._hot.prepare_segment()
            base, start = engine._hot.log.last_base, time.perf_counter()
            engine.append(batch, Durability.FLUSHED)
            taken = time.perf_counter() - start
            if engine._hot.log.last_base > base:
                rolls.append(taken)
            else:
                slowest = max(slowest, taken)
        engine.close()
        return rolls, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--flush-ms", type=float, nargs="+", default=[0, 2])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--segment-mib", type=int, default=256)
    given = parser.parse_args()
    print(f"{'+ms':>8} {'threads':>8} {'':>15} {'msg/s':>10} {'msg/flush':>10} {'median':>12} {'99 %':>12}")
    for flush_ms in given.flush_ms:
        for threads in given.threads:
            measure(threads, flush_ms, given.seconds, given.body)
    for ahead in (False, True):
        rolls, slowest = slowest_append(ahead=ahead, segment_mib=given.segment_mib)
        how = "made ahead" if ahead else "made by the append"
        met = ", ".join(f"{taken * 1e3:.0f}" for taken in rolls)
        print(f"next segment {how}: 1 MiB appends that met a roll {met} ms, slowest other {slowest * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
