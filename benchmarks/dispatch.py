"""How fast are queues and key index derived from the log, and do they stay close behind whoever appends at full speed?

Messages of 256 random bytes with two keys of 16 hex digits and a tag lie in the log, flushed. Timed is one pass of the
dispatcher over all of them: the records are checked and taken apart, each gets its queue unit, and two items go into
the index. One thread does it, and its processor time is what counts.

Then one producer appends batches of 1,000 as fast as the store takes them, with the background deriving beside it:
how far queues and index are behind the end of the log is noted 100 times. ``hot.max_behind_bytes`` bounds that for
what is flushed; what is not flushed, ``hot.flush_dirty_bytes`` at most and a batch, comes on top.

``python benchmarks/dispatch.py [--messages 1000000] [--runs 5] [--lag-messages 5000000] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.append import BATCH, batches, opened
from benchmarks.harness import Report, Row, drained
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.arrow_input import ArrowMessages

_TARGET = 5_000_000
_SAMPLES = 100
_HELD_BY = (
    "of 0.20 to 0.35 us a message the scan takes 0.08 to 0.1, a third of it page faults of the log's map, hashing two "
    "keys 0.06 to 0.1, putting the items 0.04 to 0.05, queue units 0.02 to 0.04; see record 0026"
)


def derive(folder: Path, columns: list[ArrowMessages], messages: int) -> tuple[float, float]:
    """Messages a second of processor time, and by the clock."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        # nothing is to be derived before the clock starts, however much is appended
        engine = opened(Path(inside) / "store", prewritten=False, start=False, max_behind_bytes=1 << 40)
        try:
            _append(engine, columns, messages)
            engine._hot.flush()  # and no more than that
            drained()
            assert engine._hot.dispatched_to == 0
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            engine._hot.dispatch()
            seconds, cpu_seconds = time.perf_counter() - begun, time.thread_time() - begun_cpu
            assert engine._hot.dispatched_to == engine._hot.log.end
        finally:
            engine.close()
    return messages / cpu_seconds, messages / seconds


def lag(folder: Path, columns: list[ArrowMessages], messages: int) -> tuple[float, list[float], list[float]]:
    """Messages accepted a second; seconds and MiB behind the end of the log, sample by sample."""
    seconds, behind = [], []
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store")
        try:
            drained()
            begun = time.perf_counter()
            for _ in range(_SAMPLES):
                _append(engine, columns, messages // _SAMPLES)
                seconds.append(time.perf_counter() - begun)
                behind.append((engine._hot.log.end - engine._hot.dispatched_to) / (1 << 20))
        finally:
            engine.close()
    return messages / seconds[-1], seconds, behind


def _append(engine: Store, columns: list[ArrowMessages], messages: int) -> None:
    for number in range(messages // BATCH):
        engine.append(columns[number % len(columns)], Durability.ASYNC)


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--lag-messages", type=int, default=5_000_000)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    columns = batches(unique_keys=True)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as inside:
        folder = Path(inside)
        derive(folder, columns, arguments.messages // 10)
        found = [derive(folder, columns, arguments.messages) for _ in range(arguments.runs)]
        report.add(
            Row(
                "dispatch, of one core's time",
                "messages/s",
                {"tierlog": [cpu for cpu, _ in found]},
                target=_TARGET,
                held_by=_HELD_BY,
            )
        )
        report.add(Row("dispatch, by the clock", "messages/s", {"tierlog": [clock for _, clock in found]}))
        accepted, seconds, behind = lag(folder, columns, arguments.lag_messages)
        hot = Settings().hot
        most_mib = (hot.max_behind_bytes + hot.flush_dirty_bytes) / (1 << 20) + 1
        report.add(Row("accepted beside the dispatch", "messages/s", {"tierlog": [accepted]}))
        report.add(
            Row("behind the log at full speed", "MiB", {"tierlog": behind}, target=most_mib, smaller_is_better=True)
        )
        halves = {"second half": max(behind[_SAMPLES // 2 :]), "first half": max(behind[: _SAMPLES // 2])}
        report.add(Row("greatest lag", "MiB", {name: [most] for name, most in halves.items()}, smaller_is_better=True))
        report.series["lag"] = {"seconds": seconds, "behind_mib": behind}
    report.save()


if __name__ == "__main__":
    main()
