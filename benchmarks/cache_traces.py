"""Records what workloads over real logs ask of the caches of an archive, as numbers that tell nothing of the data.

A store takes the lines of the real logs below ``TIERLOG_DATA`` ``--copies`` times, with their own keys, a topic a log,
and archives them into memory. Each workload then runs through :class:`tierlog.service.archive.archive.Archive` with
caches that lose nothing and write down each request. A trace is rows of int64 (:data:`ROW`); objects and ranges are
numbered in the order in which they are first asked for, so no key, name or byte of a message is in it.

Workloads: ``consumers`` are three groups of each queue, one from its begin, one from its middle and one that joins
when the first is half through, in pulls of 32 to 1,000. ``look-ups`` ask for keys, which key being Zipf 1.1 of all,
over the last quarter of the time (60 %), the last half or all of it. ``time ranges`` ask for 32 messages of a short
range, mostly of late. ``scan`` reads topics whole, page by page, beside the look-ups. ``mixed`` is all in turns.

Without a file to write to, look-ups and mixed run through the reader with small caches in memory, once by recency alone
and once as built, and the requests that the archive had are printed.

``PYTHONPATH=. TIERLOG_DATA=… python benchmarks/cache_traces.py [traces.npz] [--copies 40] [--seed 1]``
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tests.support.oracles.logs import rules_for, scan_plainly
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Durability, PullStatus
from tierlog.tiering.cold.reading import archive_reader
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.reading.memory_cache import FrequentLru, MemoryCache, Range
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore

#: One request for a range. ``layer``: 0 metadata, 1 data. ``who``: see :data:`WHO`. ``memory_bytes`` is what the value
#: counts in memory, the rest of its cost excluded. Requests of one ``call`` that miss are joined as the reader does.
ROW = np.dtype(
    [(name, "<i8") for name in ("layer", "who", "is_scan", "object", "start", "end", "memory_bytes", "call", "block")]
)
WHO = ("pull", "look-up", "time range", "scan")
Trace = NDArray[np.void]

SETTINGS: dict[str, object] = {
    "hot.segment_bytes": 4 << 20,
    "index.slots": 4096,
    "index.items": 16_384,
    "cold.cache_bytes": 4 << 30,
    "cold.filter_bytes": 256 << 10,
    "cold.disk_cache_bytes": 0,
    "query.concurrency": 1,
    "query.timeout_ms": 0,
    "advertise": "127.0.0.1:10911",
}
_STEP_MS, _BATCH = 500, 200
_ZIPF = 1.1


@dataclass
class Recorder:
    """What was asked for so far, by whom."""

    who: int = 0
    rows: list[list[int]] = field(default_factory=list)
    sizes: dict[tuple[int, Range], int] = field(default_factory=dict)
    _objects: dict[str, int] = field(default_factory=dict)
    _places: list[tuple[int, Range]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    of_thread: threading.local = field(default_factory=threading.local)

    def asked(self, layer: int, place: Range, *, scan: bool) -> None:
        """One request for a range."""
        with self._lock:
            number = self._objects.setdefault(place[0], len(self._objects))
            call, block = getattr(self.of_thread, "call", 0), getattr(self.of_thread, "block", 0)
            self.rows.append([layer, self.who, scan, number, place[1], place[2], 0, call, block])
            self._places.append((layer, place))

    def trace(self) -> Trace:
        """All rows; requests for what was never brought, as it was not there or damaged, are left out."""
        rows = []
        for row, place in zip(self.rows, self._places, strict=True):
            if (size := self.sizes.get(place)) is not None:
                rows.append((*row[:6], size, *row[7:]))
        return np.array(rows, ROW)


class RecordedCache(MemoryCache[Any]):
    """A cache that writes down the requests for each range; a look again for the same purpose is none."""

    def __init__(self, recorder: Recorder, layer: int) -> None:
        super().__init__(4 << 30)
        self._recorder, self._layer = recorder, layer
        self._missed: set[Range] = set()

    def get(self, place: Range, *, scan: bool = False, again: bool = False) -> Any:
        """Counts a request once, however often it is looked for until it comes."""
        found = super().get(place, scan=scan, again=again)
        if found is None and place in self._missed:
            return found
        if not again:
            self._recorder.asked(self._layer, place, scan=scan)
        if found is None:
            self._missed.add(place)
        return found

    def put(self, place: Range, value: Any, size_bytes: int, *, scan: bool = False) -> None:
        self._missed.discard(place)
        self._recorder.sizes[self._layer, place] = size_bytes
        super().put(place, value, size_bytes, scan=scan)


def record_calls(recorder: Recorder) -> Callable[[], None]:
    """Has the readers tell which requests belong to one call or to one block; the result ends that."""
    numbers = count(1)
    data_of, block_metadata = ArchiveReader.data_of, archive_reader._BlockReader.metadata

    def named_call(self: ArchiveReader, *given: Any, **named: Any) -> Iterator[Any]:
        call, items = next(numbers), data_of(self, *given, **named)
        while True:
            recorder.of_thread.call = call
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                recorder.of_thread.call = 0
            yield item

    def named_block(self: Any, *given: Any) -> Any:
        self._number = getattr(self, "_number", 0) or next(numbers)
        recorder.of_thread.block = self._number
        try:
            return block_metadata(self, *given)
        finally:
            recorder.of_thread.block = 0

    readers, blocks = cast("Any", ArchiveReader), cast("Any", archive_reader._BlockReader)
    readers.data_of, blocks.metadata = named_call, named_block

    def end() -> None:
        readers.data_of = data_of
        del blocks.metadata

    return end


@dataclass(frozen=True)
class World:
    """An archive of real logs."""

    objects: MemoryObjectStore
    keys: Sequence[tuple[str, str]]
    topics: Sequence[str]
    begin_ms: int
    end_ms: int


def built(folder: Path, data: Path, copies: int, settings: Settings) -> World:
    """The archive; each copy of the logs lies behind the one before, and has keys of its own."""
    clock = ManualClock()
    objects, begin_ms = MemoryObjectStore(clock), clock.now_ms()
    scans = [(path.stem.split("_")[0], scan_plainly(path, rules_for(path))) for path in sorted(data.glob("*.log"))]
    if not scans:
        raise SystemExit(f"no logs below {data}: set TIERLOG_DATA")
    store = Store.open(
        folder, settings=settings, cold_url="memory://traces", store_id="store", objects=objects, clock=clock
    )
    keys: dict[tuple[str, str], None] = {}
    for copy in range(copies):
        for at in range(0, max(len(scan.lines) for _, scan in scans), _BATCH):
            for topic, scan in scans:
                batch = [
                    Message(topic, line.body, [f"{key}.{copy}" for key in line.keys], queue_id=(at + number) // 16 % 4)
                    for number, line in enumerate(scan.lines[at : at + _BATCH])
                ]
                if batch:
                    store.append(batch, Durability.ASYNC)
                    keys.update(dict.fromkeys((topic, key) for message in batch for key in message.keys))
            clock.advance(_STEP_MS)
    store.archive(everything=True, drop_hot=True)
    store.close()
    return World(objects, list(keys), [topic for topic, _ in scans], begin_ms, clock.now_ms())


Steps = Iterator[int]


def _consumers(world: World, archive: Archive, chance: random.Random) -> Steps:
    ends: dict[tuple[str, int], int] = {}
    for topic in world.topics:
        for queue in range(4):
            ends[topic, queue] = archive.pull(topic, queue, 0, 1).max_offset
    groups = [[queue, 0 if group != 1 else end // 2, group] for queue, end in ends.items() for group in range(3)]
    passed: dict[tuple[str, int], int] = {}
    while groups:
        each = chance.choice(groups)
        (topic, queue), offset, group = cast("tuple[tuple[str, int], int, int]", tuple(each))
        if group == 2 and passed.get((topic, queue), 0) < ends[topic, queue] // 2:
            continue
        for _ in range(chance.randrange(1, 6)):
            page = archive.pull(topic, queue, offset, (32, 200, 1000)[group])
            offset = page.next_offset
            if page.status is not PullStatus.FOUND:
                groups.remove(each)
                break
            each[1] = offset
            yield 0
        if group == 0:
            passed[topic, queue] = offset if each in groups else ends[topic, queue]


def _look_ups(world: World, archive: Archive, chance: random.Random) -> Steps:
    keys = list(world.keys)
    chance.shuffle(keys)
    weights = np.cumsum(1 / np.arange(1, len(keys) + 1) ** _ZIPF).tolist()
    length = world.end_ms - world.begin_ms
    while True:
        topic, key = chance.choices(keys, cum_weights=weights)[0]
        share = chance.choices([0.25, 0.5, 1.0], [60, 20, 20])[0]
        archive.query(Query(topic, key, from_ms=world.end_ms - int(length * share)))
        yield 1


def _time_ranges(world: World, archive: Archive, chance: random.Random) -> Steps:
    length = world.end_ms - world.begin_ms
    while True:
        back = min(chance.expovariate(8 / length), length * 0.95) if chance.random() < 0.8 else chance.random() * length
        start = max(world.begin_ms, int(world.end_ms - back - length / 100))
        archive.query(Query(chance.choice(world.topics), from_ms=start, to_ms=start + max(1000, length // 100)))
        yield 2


def _scan(world: World, archive: Archive, chance: random.Random) -> Steps:
    while True:
        topic, cursor = chance.choice(world.topics), None
        while True:
            page = archive.query(Query(topic, limit=10_000, cursor=cursor))
            cursor = page.next_cursor
            yield 3
            if cursor is None:
                break


Part = Callable[[World, Archive, random.Random], Steps]
#: By name: its parts, and how often each has its turn.
WORKLOADS: dict[str, dict[Part, int]] = {
    "consumers": {_consumers: 1},
    "look-ups": {_look_ups: 1},
    "time ranges": {_time_ranges: 1},
    "scan": {_scan: 1, _look_ups: 20},
    "mixed": {_consumers: 40, _look_ups: 40, _time_ranges: 10, _scan: 2},
}
_WHO: dict[Part, int] = {_consumers: 0, _look_ups: 1, _time_ranges: 2, _scan: 3}


def recorded(world: World, settings: Settings, workload: str, steps: int, seed: int) -> tuple[Trace, int]:
    """The trace of one workload, and the requests that the archive had in all, those past the caches included."""
    chance, recorder, meter = random.Random(seed), Recorder(), Meter()
    archive = Archive.open("memory://traces", settings=settings, objects=MeteredObjectStore(world.objects, meter))
    cache = archive._archive._cache
    cache.metadata, cache.data = RecordedCache(recorder, 0), RecordedCache(recorder, 1)
    end = record_calls(recorder)
    try:
        parts: dict[Part, Steps] = {part: part(world, archive, random.Random(seed + 1)) for part in WORKLOADS[workload]}
        turns = dict(WORKLOADS[workload])
        for _ in range(steps):
            if not turns:
                break
            part = chance.choices(list(turns), list(turns.values()))[0]
            recorder.who = _WHO[part]
            if next(parts[part], None) is None:
                del turns[part]
    finally:
        end()
        archive.close()
    return recorder.trace(), meter.reading().requests


class RecencyAlone(FrequentLru[Any]):
    """The least recently used goes first, and everybody is let in."""

    def admits(self, key: Range, cost: int) -> bool:
        return cost <= self.limit_bytes


def requests_through(world: World, settings: Settings, workload: str, *, steps: int, seed: int, recency: bool) -> int:
    """Requests that a workload makes of the archive through the reader itself, with the caches of the settings."""
    chance, meter = random.Random(seed), Meter()
    archive = Archive.open("memory://traces", settings=settings, objects=MeteredObjectStore(world.objects, meter))
    cache = archive._archive._cache
    if recency:
        for layer in (cache.metadata, cache.data):
            cast("Any", layer)._main = RecencyAlone(layer._main.limit_bytes)
    parts: dict[Part, Steps] = {part: part(world, archive, random.Random(seed + 1)) for part in WORKLOADS[workload]}
    turns = dict(WORKLOADS[workload])
    for _ in range(steps):
        part = chance.choices(list(turns), list(turns.values()))[0]
        if next(parts[part], None) is None:
            del turns[part]
        if not turns:
            break
    archive.close()
    return meter.reading().requests


def compare(copies: int, steps: int, seed: int, cache_bytes: Sequence[int]) -> None:
    """Prints the requests of workloads through the reader, by recency alone and as built."""
    settings = Settings.load(overrides=SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(os.environ.get("TIERLOG_DATA", "../shared/data"), "loghub")
        world = built(Path(folder), data, copies, settings)
        print("| workload, memory | least recently used | as built |\n|---|---|---|")
        for name in ("look-ups", "mixed"):
            for limit in cache_bytes:
                small = Settings.load(overrides=SETTINGS | {"cold.cache_bytes": limit})
                both = [
                    requests_through(world, small, name, steps=steps, seed=seed, recency=recency)
                    for recency in (True, False)
                ]
                print(f"| {name}, {limit >> 10:,} KiB | {both[0]:,} | {both[1]:,} |", flush=True)


def record_all(copies: int, steps: int, seed: int) -> dict[str, Trace]:
    """Every workload's trace by its name."""
    data = Path(os.environ.get("TIERLOG_DATA", "../shared/data"), "loghub")
    settings = Settings.load(overrides=SETTINGS)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        world = built(Path(folder), data, copies, settings)
        names = [info.key.split("/")[1] for info in world.objects.list("store/")]
        kinds = ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
        print(f"archive: {kinds}; {len(world.keys):,} keys", flush=True)
        for name in WORKLOADS:
            trace, requests = recorded(world, settings, name, steps, seed)
            found[name] = trace
            print(
                f"{name}: {len(trace):,} requests of caches, {requests:,} of the archive with all kept",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", type=Path, nargs="?", help="where to write them; none = compare through the reader")
    parser.add_argument("--cache-kib", type=int, nargs="+", default=[512, 1024, 4096], help="memory to compare with")
    parser.add_argument("--copies", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.traces is None:
        compare(given.copies, given.steps, given.seed, [kib << 10 for kib in given.cache_kib])
        return
    np.savez_compressed(given.traces, **cast("Any", record_all(given.copies, given.steps, given.seed)))


if __name__ == "__main__":
    main()
