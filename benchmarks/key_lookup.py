"""What does a look-up by key cost in an archive of a year, and what would RocketMQ's algorithm cost over its files?

A synthetic year lies on a local object store: ``--files-per-day`` index files a day with ``--items`` messages each,
every message with a key of its own; as published (level 0), and once more as merges leave it (years, months of the last
year, days of the last month, files of the last day). Every GET takes ``--latency-ms`` in the median, lognormal with
sigma ``--sigma``, drawn from ``--seed``. Pages and frames are never cached, so that every look-up is one of a large
archive. GETs include the look whether the head of the manifest has changed, which a reader without a store makes each
time; depth counts from there.

States: *warm* has key filters, page directories and seek tables in memory; *no filters* the same without filters;
*cold* nothing but the manifest. Times are slept and measured where a look-up makes at most ``--most-slept`` requests;
else, marked ~, one look-up is made without sleeping and its time is modelled, again and again: draws of the same
distribution, in the same order of dependence, as many at a time, and nothing for computing. RocketMQ's times are all
modelled, its reads counted as they are made: of each file created in the range the slot and then the slot's items,
``--rocketmq-threads`` at once as in its fetch pool, then each message. Its files are those of level 0: it merges none.

``PYTHONPATH=. python benchmarks/key_lookup.py [--days 365] [--files-per-day 86.4] [--items 20] [--seed 1]``
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from tests.support.index.look_ups import LookUps
from tests.support.index.synthetic_archive import DAY_MS, TOPIC, TOPIC_ID, Shape, SyntheticArchive
from tests.support.rocketmq.rocketmq_lookup import RocketMqLookup, UploadedFile, rocketmq_form
from tierlog.index.search.query import Answer, Query
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo, usd_of

LIMIT = 32


class Latency:
    """Draws the time of one GET; threads may share it."""

    def __init__(self, median_ms: float, sigma: float, seed: int) -> None:
        self._log_median, self._sigma = np.log(median_ms / 1000), sigma
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def draw(self) -> float:
        """Seconds of one request."""
        return float(self.draws(1)[0])

    def draws(self, count: int) -> NDArray[np.float64]:
        """Seconds of several."""
        with self._lock:
            return self._random.lognormal(self._log_median, self._sigma, count)


class FarStore(LocalObjectStore):
    """A local object store that lies far away, as long as it is told to."""

    latency: Latency | None = None

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        self._wait()
        return super().get(key)

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        self._wait()
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._wait()
        return super().get_range(key, start, end)

    def _wait(self) -> None:
        if self.latency is not None:
            time.sleep(self.latency.draw())


def modelled_s(latency: Latency, chains: Sequence[int], parallel: int) -> float:
    """When all of some chains of requests are done, begun in order, so many at a time."""
    draws = latency.draws(sum(chains)).tolist()
    free = [0.0] * min(parallel, len(chains))
    at = 0
    for length in chains:
        heapq.heapreplace(free, free[0] + sum(draws[at : at + length]))
        at += length
    return max(free, default=0.0)


@dataclass
class Row:
    """One line of the table."""

    window: str
    archive: str
    state: str
    kind: str
    times_s: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    depth: int = 0
    considered: int = 0
    is_modelled: bool = False

    def cells(self) -> list[str]:
        """As text."""
        mark = "~" if self.is_modelled else ""
        p50, p99 = (mark + f"{1000 * float(np.percentile(self.times_s, p)):,.0f}" for p in (50, 99))
        requests = float(np.mean(self.requests))
        return [
            self.window, self.archive, self.state, self.kind, f"{len(self.times_s)}", f"{self.considered:,}", p50, p99,
            f"{requests:,.2f}", f"{self.depth}", f"{float(np.mean(self.bytes)):,.0f}",
            f"{usd_of(reads=1) * requests * 1e6:,.2f}",
        ]  # fmt: skip


HEADERS = [
    "days", "archive", "state", "look-up", "n", "objects", "p50 ms", "p99 ms", "GETs", "depth", "bytes",
    "USD/million",
]  # fmt: skip


class Year:
    """The archive in one form, and what asks it."""

    def __init__(self, given: argparse.Namespace, folder: str, *, merged: bool) -> None:
        self.given = given
        self.objects = FarStore(folder, SystemClock())
        self.peer = MemoryObjectStore(SystemClock())
        self.shape = Shape(
            days=given.days, file_ms=round(DAY_MS / given.files_per_day), messages=given.items,
            slots=max(1, given.items // 4), files_a_segment=100, merged=merged, seed=given.seed,
        )  # fmt: skip
        begun = time.perf_counter()
        keep = None if merged else self._keep_segment
        self.archive = SyntheticArchive(self.shape, self.objects, keep)
        self.name = "merged" if merged else "level 0"
        self.with_filters = LookUps(self.objects, concurrency=given.concurrency)
        self.without = LookUps(self.objects, has_filters=False, concurrency=given.concurrency)
        self.latency = Latency(given.latency_ms, given.sigma, given.seed)
        self.random = np.random.default_rng(given.seed)
        levels = np.bincount([entry.level for entry in self.without.objects])
        print(
            f"{self.name}: {self.shape.files:,} files of {given.items} items, "
            f"{', '.join(f'{count:,} objects of level {level}' for level, count in enumerate(levels) if count)}, "
            f"made in {time.perf_counter() - begun:.0f} s",
            file=sys.stderr,
        )

    def _keep_segment(self, base: int, data: NDArray[np.uint8]) -> None:
        used = int(np.flatnonzero(data[:: 1 << 12])[-1] + 1) << 12
        self.peer.put(f"log/{base}", data[:used].tobytes())

    # questions

    def queries(self, days: int, kind: str, count: int) -> list[Query]:
        """Look-ups over the newest days, each for another key: one message has it, or none."""
        from_ms = self.shape.end_ms - days * DAY_MS
        first = max(0, -(-(from_ms - self.shape.begin_of(0)) // self.shape.file_ms))
        keys = [f"nobody-{days}-{number}" for number in range(count)]
        if kind == "hit":
            files = self.random.integers(first, self.shape.files, count).tolist()
            places = self.random.integers(0, self.shape.messages, count).tolist()
            keys = [self.archive.key_of(file, place) for file, place in zip(files, places, strict=True)]
        return [Query(TOPIC, key, from_ms=from_ms, to_ms=self.shape.end_ms, limit=LIMIT) for key in keys]

    def prepared(self, state: str) -> LookUps:
        """A process with memory in a state; nothing of what brings it there is slept or counted."""
        self.objects.latency = None
        if state == "warm":
            look_ups = self.with_filters
            look_ups.load_filters(self.objects)
        else:
            look_ups = self.without
        if state == "cold":
            look_ups.forget_all_but_the_manifest()
        else:
            look_ups.load_directories()
            look_ups.load_seek_tables()
        return look_ups

    def measure(self, days: int, state: str, kind: str) -> Row:
        """One line. The first look-up, which is not slept, says how many requests there will be."""
        row = Row(f"{days}", self.name, state, kind)
        look_ups = self.prepared(state)
        first = look_ups.ask(self.queries(days, kind, 1)[0])
        row.is_modelled = first.coverage.requests > self.given.most_slept
        if row.is_modelled:
            self._note(row, first)
            row.times_s = [self._modelled(first.coverage.requests, state, kind) for _ in range(self.given.look_ups)]
            return row
        for query in self.queries(days, kind, self.given.look_ups):
            if state == "cold":
                self.prepared(state)
            self.objects.latency = self.latency
            begun = time.perf_counter()
            answer = look_ups.ask(query)
            row.times_s.append(time.perf_counter() - begun)
            self._note(row, answer)
        self.objects.latency = None
        return row

    @staticmethod
    def _note(row: Row, answer: Answer) -> None:
        coverage = answer.coverage
        assert coverage.complete
        assert len(answer.messages) == (row.kind == "hit")
        row.requests.append(coverage.requests)
        row.bytes.append(coverage.bytes)
        row.depth = max(row.depth, coverage.round_trips)
        row.considered = coverage.index_considered

    def _modelled(self, requests: int, state: str, kind: str) -> float:
        """An object costs its page, and its directory before it if nothing is in memory; frames come last."""
        per_object, per_message = (2, 2) if state == "cold" else (1, 1)
        message = per_message if kind == "hit" else 0
        objects = (requests - message - 1) // per_object
        chains = [per_object] * objects
        head = modelled_s(self.latency, [1], 1)
        return head + modelled_s(self.latency, chains, self.given.concurrency) + modelled_s(self.latency, [message], 1)

    # RocketMQ

    def rocketmq(self) -> RocketMqLookup:
        """Its algorithm over the same index files, as it uploads them."""
        files = []
        for file in self.archive.files:
            assert file.bounds is not None
            data = rocketmq_form(file.items, file.slots, file.begin_ms, file.bounds.max_store_ms)
            self.peer.put(f"index/{file.begin_ms}", data)
            files.append(UploadedFile(f"index/{file.begin_ms}", file.begin_ms, len(data)))
        return RocketMqLookup(self.peer, files, self.shape.slots)

    def measure_rocketmq(self, lookup: RocketMqLookup, days: int, kind: str, parallel: int | None) -> Row:
        """One line of the peer."""
        row = Row(f"{days}", "RocketMQ", f"{parallel or 'all'} at once", kind, is_modelled=True)
        for query in self.queries(days, kind, self.given.rocketmq_look_ups):
            assert query.key is not None
            answer = lookup.query(TOPIC, query.key, LIMIT, query.from_ms, query.to_ms)
            lookup.fetch(answer, TOPIC_ID, self._place)
            files, messages = answer.chains, [1] * len(answer.messages)
            for _ in range(self.given.look_ups // self.given.rocketmq_look_ups):
                took = modelled_s(self.latency, files, parallel or len(files))
                row.times_s.append(took + modelled_s(self.latency, messages, parallel or LIMIT))
            row.requests.append(answer.requests)
            row.bytes.append(answer.bytes_read)
            row.depth = max(row.depth, max(files, default=0) + bool(messages))
            row.considered = len(files)
        return row

    def _place(self, offset: int) -> tuple[str, int]:
        return f"log/{offset - offset % self.archive.segment_bytes}", offset % self.archive.segment_bytes


def lines(given: argparse.Namespace, say: Callable[[str], object]) -> Iterable[Row]:
    """Every line of the table, as it is measured."""
    windows = [days for days in (1, 30, 365) if days < given.days] + [given.days]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for merged in (False, True):
            year = Year(given, f"{folder}/{merged}", merged=merged)
            for state in ("cold", "no filters", "warm"):
                for days in windows:
                    for kind in ("miss", "hit"):
                        say(f"{year.name}, {state}, {days} days, {kind}")
                        yield year.measure(days, state, kind)
            if not merged:
                lookup = year.rocketmq()
                for parallel in (given.rocketmq_threads, None):
                    for days in windows:
                        for kind in ("miss", "hit"):
                            say(f"RocketMQ, {parallel}, {days} days, {kind}")
                            yield year.measure_rocketmq(lookup, days, kind, parallel)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--files-per-day", type=float, default=86.4)
    parser.add_argument("--items", type=int, default=20, help="items in an index file; four a slot")
    parser.add_argument("--look-ups", type=int, default=20, help="look-ups a line, each for another key")
    parser.add_argument("--rocketmq-look-ups", type=int, default=3)
    parser.add_argument("--rocketmq-threads", type=int, default=16, help="its fetch pool: 4 a core, at least 16")
    parser.add_argument("--concurrency", type=int, default=32, help="requests of one look-up at a time; the default")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="median of a GET")
    parser.add_argument("--sigma", type=float, default=0.8, help="of its lognormal tail; 0.8: p99 is 6.4 medians")
    parser.add_argument(
        "--most-slept", type=int, default=600, help="requests of a look-up above which time is modelled"
    )
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    parser.add_argument("--folder", default=in_memory, help="of the object store; making it on a disk takes minutes")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.perf_counter()
    rows = list(lines(given, lambda text: print(f"{time.perf_counter() - begun:5.0f} s  {text}", file=sys.stderr)))
    rows.sort(key=lambda row: (int(row.window), row.kind, ["level 0", "merged", "RocketMQ"].index(row.archive)))
    print(
        tabulate(
            [row.cells() for row in rows],
            HEADERS,
            disable_numparse=True,
            colalign=("right", *["left"] * 3, *["right"] * 8),
        )
    )


if __name__ == "__main__":
    main()
