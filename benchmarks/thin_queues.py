"""Does it help consumers that lag beyond memory if the pages of a thin queue's next records are asked for ahead?

A log of ``--mib`` holds ``--queues`` queues in turns, so that neighbours in a queue lie far from each other. A consumer
reads one queue through the store, ``--batch`` messages at a time, after the log has left memory (``posix_fadvise``,
checked with ``mincore``): plainly, and with ``madvise(WILLNEED)`` for the pages of the batch before its first record is
read (:meth:`HotQueue.read_ahead`). The same with the log in memory shows what the look costs where it is not needed.
Sides run in turns, each in a process of its own. Printed: the processor's time and the time that passes, in us a
record, and major faults a record.

``PYTHONPATH=. TIERLOG_DATA=… python benchmarks/thin_queues.py [--mib 256] [--queues 400] [--batch 32] [--turns 7]``
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.log_records import QUEUED_TOPIC, fill_segment, open_hot
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.read.hot_queue import HotQueue

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
Figures = tuple[float, float, float]


def in_memory(path: Path) -> float:
    """The share of a file's pages that is in memory."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        start = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-size // _PAGE), np.uint8)
        _LIBC.mincore(ctypes.c_void_p(start.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
        del start
        return float((pages & 1).mean())


def drop(path: Path) -> None:
    """Lets the file leave memory."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(root: Path, given: argparse.Namespace, queue: int, *, ahead: bool) -> Figures:
    """Reads a queue to its end; us of the processor and of the clock, and major faults, each a record."""
    hot = open_hot(root, given.mib << 20, given.queues)
    built = HotQueue.read_ahead
    if not ahead:
        HotQueue.read_ahead = lambda *_: None  # type: ignore[method-assign]
    try:
        with HotQueue.opened(hot, QUEUED_TOPIC, queue) as queue_of:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            processor_s, clock_s = time.process_time(), time.perf_counter()
            count = sum(1 for _ in queue_of.messages(0, given.batch, None, Erasures(), "store"))
            processor_s, clock_s = time.process_time() - processor_s, time.perf_counter() - clock_s
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    finally:
        HotQueue.read_ahead = built  # type: ignore[method-assign]
        hot.close()
    return processor_s / count * 1e6, clock_s / count * 1e6, faults / count


def one_side(given: argparse.Namespace) -> None:
    """The work of a process of its own, as what is mapped anywhere does not leave memory: fills, or reads a queue."""
    root = Path(given.root)
    if given.fill:
        hot = open_hot(root, given.mib << 20, given.queues)
        print(fill_segment(hot, given.mib, given.queues))
        hot.close()
    else:
        print(*read(root, given, given.queue, ahead=given.ahead))


def in_process(root: Path, *arguments: str, given: argparse.Namespace) -> list[float]:
    """The numbers that one side printed."""
    said = subprocess.run(
        [sys.executable, __file__, "--root", str(root), "--mib", str(given.mib), "--queues", str(given.queues),
         "--batch", str(given.batch), *arguments],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [float(word) for word in said.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--queues", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--queue", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.root:
        one_side(given)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        root = Path(folder)
        (count,) = in_process(root, "--fill", given=given)
        path = root / "commitlog" / f"{0:020}"
        print(f"{count:,.0f} records, {count / given.queues:.0f} a queue")
        found: dict[tuple[bool, bool], list[list[float]]] = {}
        left: list[float] = []
        sides = [(is_cold, ahead) for is_cold in (True, False) for ahead in (False, True)]
        for turn in range(given.turns):
            for is_cold, ahead in sides if turn % 2 else sides[::-1]:
                if is_cold:
                    drop(path)
                    left.append(in_memory(path))
                else:
                    path.read_bytes()
                arguments = ["--queue", str(turn), *(["--ahead"] if ahead else [])]
                found.setdefault((is_cold, ahead), []).append(in_process(root, *arguments, given=given))
        print(f"left in memory after it was dropped: {max(left):.3f} of the log at most")
        print("| log | read ahead | processor, us | clock, us (least, median, most) | faults |\n|---|---|---|---|---|")
        for (is_cold, ahead), figures_of in sorted(found.items(), reverse=True):
            processor, clock, faults = ([each[at] for each in figures_of] for at in range(3))
            print(
                f"| {'on disk' if is_cold else 'in memory'} | {'WILLNEED' if ahead else 'plain'} "
                f"| {statistics.median(processor):.1f} | {min(clock):.1f}, {statistics.median(clock):.1f}, "
                f"{max(clock):.1f} | {statistics.median(faults):.2f} |"
            )


if __name__ == "__main__":
    main()
