"""What do many writers of single messages gain by sharing flushes, and what does a roll cost the one who meets it?

Each of ``--threads`` writers appends messages of ``--body`` bytes, ``flushed``, one after another, for ``--seconds``.
The peer in the same run does what a log without group commit does: lock, pwrite, fdatasync, for each record, into a
pre-written file. Then segments of ``--segment-mib`` are filled with and without the next one being made ahead; printed
is the slowest append. Everything on the same folder; no service, no network.

``PYTHONPATH=. python benchmarks/group_commit.py [--threads 1 8 32] [--seconds 3]``
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.engine import Engine
from service.settings import Settings
from tiering.batch import Message
from tiering.types import Durability


def settings_for(segment_mib: int) -> Settings:
    return Settings.load(overrides={"hot.segment_bytes": segment_mib << 20, "advertise": "127.0.0.1:10911"})


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


def flush_each(path: Path, record: bytes) -> Callable[[], None]:
    """The peer: one fdatasync a record."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(64 << 20), 0)
    os.fsync(fd)
    lock, end = threading.Lock(), [0]

    def append() -> None:
        with lock:
            os.pwrite(fd, record, end[0] % (63 << 20))
            end[0] += len(record)
            os.fdatasync(fd)

    return append


def line(name: str, threads: int, seconds: float, taken: list[float], flushes: int) -> float:
    rate = len(taken) / seconds
    middle, late = taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3
    per_flush = len(taken) / max(1, flushes)
    print(f"{name:>16} {threads:>8} {rate:>10.0f} {per_flush:>10.1f} {middle:>9.2f} ms {late:>9.2f} ms")
    return rate


def slowest_append(*, ahead: bool, segment_mib: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder), settings=settings_for(segment_mib))
        batch = [Message("bench", bytes(64 << 10), queue_id=0) for _ in range(16)]
        slowest = 0.0
        while engine._hot.log.last_base < 4 * engine._hot.log.segment_bytes:
            if ahead:  # what the background thread does, here between two appends
                engine._hot.prepare_segment()
            start = time.perf_counter()
            engine.append(batch, Durability.FLUSHED)
            slowest = max(slowest, time.perf_counter() - start)
        rolls = engine._hot.log.last_base // engine._hot.log.segment_bytes
        engine.close()
        return slowest, rolls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--segment-mib", type=int, default=256)
    given = parser.parse_args()
    print(f"{'':>16} {'threads':>8} {'msg/s':>10} {'msg/flush':>10} {'median':>12} {'99 %':>12}")
    for threads in given.threads:
        with tempfile.TemporaryDirectory() as folder:
            append = flush_each(Path(folder) / "log", bytes(given.body + 110))
            taken = run_writers(threads, given.seconds, append)
            alone = line("one flush each", threads, given.seconds, taken, len(taken))
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine.open(Path(folder), settings=settings_for(256))
            message = [Message("bench", bytes(given.body), ["key"])]
            engine.append(message)
            before = engine._hot.log.flushes
            taken = run_writers(threads, given.seconds, partial(engine.append, message))
            rate = line("group commit", threads, given.seconds, taken, engine._hot.log.flushes - before)
            engine.close()
        print(f"{'ratio':>16} {threads:>8} {rate / alone:>10.2f}")
    for ahead in (False, True):
        slowest, rolls = slowest_append(ahead=ahead, segment_mib=given.segment_mib)
        how = "made ahead" if ahead else "made by the append"
        print(f"next segment {how}: slowest of 1 MiB appends over {rolls} rolls {slowest * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
