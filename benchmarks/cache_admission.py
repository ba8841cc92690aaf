"""Which rule should decide what the caches of an archive keep: recency, uses a byte, a door, or queues?

Replays traces that ``benchmarks/cache_traces.py`` recorded through each rule, all in one run. A layer has room for
a share of the distinct bytes that a trace asks of it. Printed for each: the share of requests found, the share of bytes
found, GETs of the archive (misses, joined as the reader joins them), and ns a request of the rule's own bookkeeping.
``memory`` rows are the two memory layers alone; ``all`` rows have a disk cache of ``--disk`` beneath memory, which
takes what no scan brought, all three by the same rule. Then what freeing ranges behind consumers would gain at most (an
oracle frees a range at the very last pull of it, where nobody else ever asks again), and how much of the
disk is rounding.

``PYTHONPATH=. python benchmarks/cache_admission.py traces.npz [--shares 0.05 0.1 0.25 0.5] [--disk 0.3]``
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.cache_traces import ROW, Trace
from tierlog.tiering.cold.reading.disk_cache import HEAD
from tierlog.tiering.cold.reading.memory_cache import ByteUses, FrequentLru

_ENTRY_BYTES, _SCAN_SHARE = 400, 8
_JOIN_GAP_BYTES, _JOIN_BYTES = 64 << 10, 8 << 20
_KEY_BYTES, _BLOCK_BYTES = 60, 4096


class Rule(Protocol):
    """What is kept of one layer within a limit."""

    def __init__(self, limit: int) -> None: ...
    def __contains__(self, key: int) -> bool: ...
    def use(self, key: int) -> None: ...
    def insert(self, key: int, cost: int) -> None: ...
    def pop(self, key: int) -> bool: ...
    def free(self, key: int) -> None: ...


class Lru:
    """Today's."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.kept: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self.kept

    def use(self, key: int) -> None:
        self.kept.move_to_end(key)

    def insert(self, key: int, cost: int) -> None:
        if cost > self.limit:
            return
        while self.used + cost > self.limit:
            self.used -= self.kept.popitem(last=False)[1]
        self.kept[key] = cost
        self.used += cost

    def pop(self, key: int) -> bool:
        cost = self.kept.pop(key, None)
        self.used -= cost or 0
        return cost is not None

    def free(self, key: int) -> None:
        if key in self.kept:
            self.kept.move_to_end(key, last=False)


class Gdsf:
    """Uses a byte, with the worth of what went last added: what is not used ages. Uses are those while it is kept."""

    remembers = 0

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self.age = limit, 0, 0.0
        self.kept: dict[int, list[float]] = {}  # cost, uses, worth
        self.heap: list[tuple[float, int, int]] = []
        self.gone: OrderedDict[int, float] = OrderedDict()
        self.turn = 0

    def __contains__(self, key: int) -> bool:
        return key in self.kept

    def use(self, key: int) -> None:
        entry = self.kept[key]
        entry[1] += 1
        entry[2] = self.age + entry[1] / entry[0]

    def insert(self, key: int, cost: int) -> None:
        if cost > self.limit:
            return
        while self.used + cost > self.limit:
            self._evict()
        uses = self.gone.pop(key, 0.0) + 1
        self.kept[key] = [cost, uses, self.age + uses / cost]
        self._push(key)
        self.used += cost

    def _push(self, key: int) -> None:
        self.turn += 1
        heapq.heappush(self.heap, (self.kept[key][2], self.turn, key))

    def _take_least(self) -> tuple[float, int, int] | None:
        """Takes what is worth least from the heap; what is there twice, or was used meanwhile, is put right."""
        while self.heap:
            worth, turn, key = heapq.heappop(self.heap)
            entry = self.kept.get(key)
            if entry is None or entry[2] < worth:
                continue
            if entry[2] == worth:
                return worth, turn, key
            self._push(key)
        return None

    def _evict(self) -> None:
        least = self._take_least()
        assert least is not None, "something is kept, and so in the heap"
        worth, _, key = least
        uses = self.kept[key][1]
        self.pop(key)
        self.age = max(self.age, worth)
        if self.remembers:
            self.gone[key] = uses
            if len(self.gone) > self.remembers * len(self.kept) + 16:
                self.gone.popitem(last=False)

    def pop(self, key: int) -> bool:
        entry = self.kept.pop(key, None)
        self.used -= int(entry[0]) if entry else 0
        return entry is not None

    def free(self, key: int) -> None:
        if key in self.kept:
            self.kept[key][2] = -1.0
            self._push(key)


class GdsfRemembers(Gdsf):
    """The same, and uses of what went are remembered, of four times as many as are kept."""

    remembers = 4


class GdsfSorted(Gdsf):
    """The same as :class:`Gdsf` in a sorted list, which is kept right at each use."""

    def __init__(self, limit: int) -> None:
        from sortedcontainers import SortedList

        super().__init__(limit)
        self.order: SortedList[tuple[float, int]] = SortedList()

    def use(self, key: int) -> None:
        self.order.remove((self.kept[key][2], key))
        super().use(key)
        self.order.add((self.kept[key][2], key))

    def _push(self, key: int) -> None:
        self.order.add((self.kept[key][2], key))

    def _evict(self) -> None:
        worth, key = self.order[0]
        self.pop(key)
        self.age = max(self.age, worth)

    def pop(self, key: int) -> bool:
        if key in self.kept:
            self.order.discard((self.kept[key][2], key))
        return super().pop(key)


class Counts:
    """How often each was asked for, kept or not; halved after four times as many as are kept."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.asked = 0

    def add(self, key: int, kept: int) -> None:
        self.of[key] = self.of.get(key, 0) + 1
        self.asked += 1
        if self.asked > 4 * max(kept, 16):
            self.asked = 0
            self.of = {key: count // 2 for key, count in self.of.items() if count > 1}


class LruFrequent(Lru):
    """Recency, behind a door: a newcomer is let in only if it was asked for more often than what would go for it."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.counts = Counts()

    def use(self, key: int) -> None:
        self.counts.add(key, len(self.kept))
        super().use(key)

    def insert(self, key: int, cost: int) -> None:
        self.counts.add(key, len(self.kept))
        lacking, going = self.used + cost - self.limit, 0
        for other, other_cost in self.kept.items():
            if lacking <= 0:
                break
            lacking -= other_cost
            going = max(going, self.counts.of.get(other, 0))
        if self.counts.of.get(key, 0) > going:
            super().insert(key, cost)


class GdsfDoor(Gdsf):
    """Uses a byte, of all, behind a door: a newcomer must have been asked for more often than what would go for it."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.counts = Counts()

    def use(self, key: int) -> None:
        self.counts.add(key, len(self.kept))
        super().use(key)

    def insert(self, key: int, cost: int) -> None:
        self.counts.add(key, len(self.kept))
        lacking, going, taken = self.used + cost - self.limit, 0, []
        while lacking > 0 and (least := self._take_least()) is not None:
            taken.append(least)
            lacking -= int(self.kept[least[2]][0])
            going += self.counts.of.get(least[2], 0)
        for each in taken:
            heapq.heappush(self.heap, each)
        if self.counts.of.get(key, 0) > going:
            super().insert(key, cost)
        elif taken:
            self.age = max(self.age, taken[0][0])  # who stands at the door counts as time that passes


class S3Fifo:
    """A small queue for newcomers, a main one for what is asked for again, and the keys of what went of the first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self.small_used = limit, 0, 0
        self.kept: dict[int, list[int]] = {}  # cost, uses, whether small
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghost: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self.kept

    def use(self, key: int) -> None:
        self.kept[key][1] = min(3, self.kept[key][1] + 1)

    def insert(self, key: int, cost: int) -> None:
        if cost > self.limit:
            return
        while self.used + cost > self.limit:
            self._evict()
        is_small = key not in self.ghost
        self.ghost.pop(key, None)
        self.kept[key] = [cost, 0, is_small]
        (self.small if is_small else self.main).append(key)
        self.used += cost
        self.small_used += cost * is_small

    def _evict(self) -> None:
        if self.small and (self.small_used > self.limit // 10 or not self.main):
            key = self.small.popleft()
            entry = self.kept.get(key)
            if entry is None or not entry[2]:
                return
            self.small_used -= entry[0]
            if entry[1] > 0:
                entry[1], entry[2] = 0, False
                self.main.append(key)
                return
            del self.kept[key]
            self.used -= entry[0]
            self.ghost[key] = None
            if len(self.ghost) > max(len(self.kept), 16):
                self.ghost.popitem(last=False)
        else:
            key = self.main.popleft()
            entry = self.kept.get(key)
            if entry is None or entry[2]:
                return
            if entry[1] > 0:
                entry[1] -= 1
                self.main.append(key)
                return
            del self.kept[key]
            self.used -= entry[0]

    def pop(self, key: int) -> bool:
        entry = self.kept.pop(key, None)
        if entry is not None:
            self.used -= entry[0]
            self.small_used -= entry[0] * entry[2]
        return entry is not None

    def free(self, key: int) -> None:
        self.pop(key)


class Built:
    """What the product does: :class:`FrequentLru` by its own names."""

    def __init__(self, limit: int) -> None:
        self.table: FrequentLru[int] = FrequentLru(limit)

    def __contains__(self, key: int) -> bool:
        return _named(key) in self.table

    def use(self, key: int) -> None:
        self.table.get(_named(key))

    def insert(self, key: int, cost: int) -> None:
        if self.table.admits(_named(key), cost):
            while self.table.used_bytes + cost > self.table.limit_bytes:
                self.table.evict()
            self.table.put(_named(key), 1, cost)

    def pop(self, key: int) -> bool:
        return self.table.pop(_named(key)) is not None

    def free(self, key: int) -> None:
        self.pop(key)


def _named(key: int) -> tuple[str, int, int]:
    return f"store/log/{key // 97:020}", key % 97 * 8192, key % 97 * 8192 + 8192


class BuiltDisk:
    """What the product does on disk: :class:`ByteUses`."""

    def __init__(self, limit: int) -> None:
        self.table: ByteUses[int, int] = ByteUses(limit)

    def __contains__(self, key: int) -> bool:
        return key in self.table

    def use(self, key: int) -> None:
        self.table.get(key)

    def insert(self, key: int, cost: int) -> None:
        if cost > self.table.limit_bytes:
            return
        while self.table.used_bytes + cost > self.table.limit_bytes:
            self.table.evict()
        self.table.put(key, 1, cost)

    def pop(self, key: int) -> bool:
        return self.table.pop(key) is not None

    def free(self, key: int) -> None:
        self.pop(key)


#: Rules of memory and of the disk beneath it.
RULES: dict[str, tuple[type[Rule], type[Rule]]] = {
    "least recently used": (Lru, Lru),
    "uses a byte": (Gdsf, Gdsf),
    "uses a byte, sorted list": (GdsfSorted, GdsfSorted),
    "uses a byte, remembered": (GdsfRemembers, GdsfRemembers),
    "uses a byte, door": (GdsfDoor, GdsfDoor),
    "recency, door": (LruFrequent, LruFrequent),
    "queues (S3-FIFO)": (S3Fifo, S3Fifo),
    "recency, door; disk recency": (LruFrequent, Lru),
    "as built": (Built, BuiltDisk),
}


class Layer:
    """One memory layer: an eighth for what scans bring, as in the product."""

    def __init__(self, rule: type[Rule], limit: int) -> None:
        self.main, self.scanned = rule(limit - limit // _SCAN_SHARE), Lru(limit // _SCAN_SHARE)

    def get(self, key: int, cost: int, *, scan: bool) -> bool:
        if key in self.main:
            if not scan:
                self.main.use(key)
            return True
        if key in self.scanned:
            if scan:
                self.scanned.use(key)
            else:
                self.main.insert(key, cost)
                if key in self.main:
                    self.scanned.pop(key)
            return True
        return False

    def put(self, key: int, cost: int, *, scan: bool) -> None:
        (self.scanned if scan else self.main).insert(key, cost)


class Disk:
    """The disk cache: what scans bring is not written, and a scan's use counts."""

    def __init__(self, rule: type[Rule], limit: int) -> None:
        self.main = rule(limit)

    def get(self, key: int, cost: int, *, scan: bool) -> bool:
        if key in self.main:
            self.main.use(key)
            return True
        return False

    def put(self, key: int, cost: int, *, scan: bool) -> None:
        if not scan:
            self.main.insert(key, cost)


def on_disk(size: int, key_bytes: int = 1024) -> int:
    """What a range takes in whole blocks."""
    return -(-(size + HEAD.size + key_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES


@dataclass
class Found:
    requests: int = 0
    hits: int = 0
    bytes: int = 0
    hit_bytes: int = 0
    gets: int = 0
    disk_hits: int = 0
    took_s: float = 0.0


Request = tuple[int, int, int, int, bool, int, int, int, int, int, int]


def requests_of(trace: Trace) -> list[Request]:
    """Layer, key, cost in memory, cost on disk, scan, object, start, end, call, block, who."""
    places = np.stack([trace[name] for name in ("layer", "object", "start", "end")], axis=1)
    _, keys = np.unique(places, axis=0, return_inverse=True)
    rows = zip(keys.ravel().tolist(), trace.tolist(), strict=True)
    return [
        (layer, key, memory + _ENTRY_BYTES, on_disk(end - start), bool(scan), obj, start, end, call, block, who)
        for key, (layer, who, scan, obj, start, end, memory, call, block) in rows
    ]


def replayed(
    requests: Sequence[Request],
    layers: Sequence[Layer],
    disk: Disk | None = None,
    last: dict[int, int] | None = None,
) -> Found:
    """Plays a trace; ``last`` frees each key behind the request of that number."""
    found = Found()
    blocks: set[int] = set()
    call_now = call_end = call_begin = -1
    begun_s = time.process_time()
    for number, (layer, key, cost, disk_cost, scan, _, start, end, call, block, _) in enumerate(requests):
        found.requests += 1
        found.bytes += end - start
        if layers[layer].get(key, cost, scan=scan):
            found.hits += 1
            found.hit_bytes += end - start
            call_now = -1 if call == call_now else call_now
        else:
            if disk is not None and disk.get(key, disk_cost, scan=scan):
                found.disk_hits += 1
                call_now = -1 if call == call_now else call_now
            else:
                is_joined = block in blocks
                if call and call == call_now and start - call_end <= _JOIN_GAP_BYTES:
                    is_joined = is_joined or end - call_begin <= _JOIN_BYTES
                if not is_joined:
                    found.gets += 1
                    call_begin = start
                call_now, call_end = call, end
                if block:
                    blocks.add(block)
                if disk is not None:
                    disk.put(key, disk_cost, scan=scan)
            layers[layer].put(key, cost, scan=scan)
        if last is not None and last.get(key) == number:
            layers[layer].main.free(key)
            layers[layer].scanned.free(key)
            if disk is not None:
                disk.main.free(key)
    found.took_s = time.process_time() - begun_s
    return found


def distinct_bytes(requests: Sequence[Request], layer: int) -> int:
    """Of all ranges of a layer in memory."""
    return sum({key: cost for of, key, cost, *_ in requests if of == layer}.values())


def _layers(requests: Sequence[Request], rule: type[Rule], share: float) -> list[Layer]:
    return [Layer(rule, int(distinct_bytes(requests, layer) * share)) for layer in (0, 1)]


def _disk(requests: Sequence[Request], rule: type[Rule], share: float) -> Disk:
    return Disk(rule, int(sum({key: cost for _, key, _, cost, *_ in requests}.values()) * share))


def rows(requests: Sequence[Request], shares: Sequence[float], disk_share: float) -> Iterator[tuple[str, list[Found]]]:
    """Each row of one workload, a cell a rule."""
    for layer, name in enumerate(("metadata", "data")):
        alone = [each for each in requests if each[0] == layer]
        for share in shares:
            yield f"{name} {share:.0%}", [replayed(alone, _layers(alone, rule, share)) for rule, _ in RULES.values()]
    for share in shares:
        yield (
            f"all {share:.0%}, disk {disk_share:.0%}",
            [
                replayed(requests, _layers(requests, rule, share), _disk(requests, below, disk_share))
                for rule, below in RULES.values()
            ],
        )


def moved(trace: Trace) -> Trace:
    """The trace, whose second half is of other objects: all interest moves at once."""
    later = trace[len(trace) // 2 :].copy()
    for name in ("object", "call", "block"):
        later[name] += (later[name] > 0) * (trace[name].max() + 1) if name != "object" else trace[name].max() + 1
    return np.concatenate([trace[: len(trace) // 2], later])


def last_pulls(requests: Sequence[Request]) -> dict[int, int]:
    """Of each range that a pull asks for last: the number of that request."""
    last = {each[1]: (number, each[-1]) for number, each in enumerate(requests)}
    return {key: number for key, (number, who) in last.items() if who == 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.25, 0.5])
    parser.add_argument("--disk", type=float, default=0.3)
    given = parser.parse_args()
    loaded = np.load(given.traces)
    recorded = {name: loaded[name].astype(ROW) for name in loaded.files}
    recorded["look-ups that move"] = moved(recorded["look-ups"])
    traces = {name: requests_of(trace) for name, trace in recorded.items()}
    print("| trace, layer, room | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
    total: dict[tuple[str, str], int] = {}
    for name, requests in traces.items():
        for what, cells in rows(requests, given.shares, given.disk):
            texts = []
            for rule, one in zip(RULES, cells, strict=True):
                total[what, rule] = total.get((what, rule), 0) + one.gets
                texts.append(
                    f"{one.hits / max(1, one.requests):.3f}, {one.hit_bytes / max(1, one.bytes):.3f}, {one.gets:,}, "
                    f"{one.took_s / max(1, one.requests) * 1e9:.0f}"
                )
            print(f"| {name}, {what} | " + " | ".join(texts) + " |", flush=True)
    print("\nGETs of all traces together, by what least recently used needs\n")
    for what in dict.fromkeys(what for what, _ in total):
        base = total[what, "least recently used"]
        print(f"| {what}, {base:,} | " + " | ".join(f"{total[what, rule] / max(1, base):.3f}" for rule in RULES) + " |")
    print("\nFreed behind consumers by an oracle: GETs without, with\n")
    for name in ("consumers", "mixed"):
        for share in given.shares:
            pairs = []
            for built, below in (RULES["least recently used"], RULES["as built"]):
                plain, freed = (
                    replayed(
                        traces[name], _layers(traces[name], built, share), _disk(traces[name], below, given.disk), last
                    ).gets
                    for last in (None, last_pulls(traces[name]))
                )
                pairs.append(f"{plain:,}, {freed:,}")
            print(f"| {name}, all {share:.0%} | " + " | ".join(pairs) + " |", flush=True)
    print("\nDistinct ranges not of scans on disk: bytes, and the share of their blocks that is none of them\n")
    for name, requests in traces.items():
        sizes = list({each[1]: each[7] - each[6] for each in requests if not each[4]}.values())
        content = sum(sizes)
        counted, exact = sum(map(on_disk, sizes)), sum(on_disk(size, _KEY_BYTES) for size in sizes)
        print(f"| {name} | {content:,} | counted {1 - content / counted:.3f} | on disk {1 - content / exact:.3f} |")


if __name__ == "__main__":
    main()
