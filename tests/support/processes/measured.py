"""Time and memory of a piece of work, for benchmarks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_SAMPLE_S = 0.002


@dataclass(frozen=True)
class Measured(Generic[T]):
    """What a piece of work gave and took."""

    result: T
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Greatest anonymous memory of the process, above what it had before; mapped files do not count."""


def measured(work: Callable[[], T]) -> Measured[T]:
    """Do the work beside a thread that looks every 2 ms at RssAnon of /proc/self/status."""
    before = peak = _anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_S):
            peak = max(peak, _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        began, began_cpu = time.monotonic(), time.process_time()
        result = work()
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
    finally:
        done.set()
        watcher.join()
    return Measured(result, seconds, cpu_seconds, max(peak, _anonymous_bytes()) - before)


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise SystemExit("this kernel does not say RssAnon")
