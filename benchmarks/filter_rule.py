"""Which rule should decide what key filters stay in memory?

Plays look-ups in vain over the index objects of 30 days at 10,000 messages a second (2,592 objects, each with a filter
of 57 MiB, for 20 million keys) with room for 300 filters, and prints for each rule which share of the asked objects had
its filter in memory and how much was fetched for it. Needs no archive and takes ten seconds.

``python benchmarks/filter_rule.py [--seed 1]``
"""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from tierlog.tiering.cold.reading.memory_cache import AdmissionByUse, uses_that_pay

OBJECTS, ROOM, SIZE = 2592, 300, 57 << 20
A_DAY = 86


class LeastRecentlyUsed:
    def __init__(self, uses_asked: int = 1) -> None:
        self.fetched = 0
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._uses: dict[str, int] = {}
        self._uses_asked = uses_asked

    def ask(self, name: str) -> bool:
        if name in self._kept:
            self._kept.move_to_end(name)
            return True
        self._uses[name] = self._uses.get(name, 0) + 1
        if self._uses[name] >= self._uses_asked:
            self._uses[name] = 0
            self.fetched += 1
            self._kept[name] = None
            if len(self._kept) > ROOM:
                self._kept.popitem(last=False)
        return False


class ByUse:
    def __init__(self) -> None:
        self.fetched = 0
        self._table = AdmissionByUse(ROOM * SIZE)

    def ask(self, name: str) -> bool:
        self._table.use(name)
        if name in self._table:
            return True
        going = self._table.to_go_for(name, SIZE)
        if going is not None:
            for each in going:
                self._table.drop(each)
            self._table.reserve(name, SIZE)
            self._table.keep(name)
            self.fetched += 1
        return False


def all_in_turn(_: random.Random) -> Iterator[int]:
    """100 look-ups over all 30 days."""
    for _look_up in range(100):
        yield from range(OBJECTS)


def newest_first(rng: random.Random) -> Iterator[int]:
    """3,000 look-ups: four of five over the last day, others over a week or all 30 days."""
    for days in rng.choices([1, 7, 30], [80, 15, 5], k=3000):
        yield from range(min(days * A_DAY, OBJECTS))


def anywhere(rng: random.Random) -> Iterator[int]:
    """9,000 look-ups over a third of a day, which day being Zipf 1.1."""
    begins = list(range(OBJECTS))
    rng.shuffle(begins)
    for begin in rng.choices(begins, [1 / (rank + 1) ** 1.1 for rank in range(OBJECTS)], k=9000):
        yield from range(begin, min(begin + 30, OBJECTS))


def moving(_: random.Random) -> Iterator[int]:
    """300 look-ups over the same 300 objects, then over the next 300, four times."""
    for first in range(0, 1200, 300):
        for _look_up in range(300):
            yield from range(first, first + 300)


WORKLOADS: tuple[Callable[[random.Random], Iterable[int]], ...] = (all_in_turn, newest_first, anywhere, moving)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    paid = uses_that_pay(SIZE)
    rules: dict[str, Callable[[], LeastRecentlyUsed | ByUse]] = {
        "least recently used": LeastRecentlyUsed,
        f"the same, after {paid} uses": lambda: LeastRecentlyUsed(paid),
        "by use": ByUse,
    }
    print("| look-ups | " + " | ".join(rules) + " |")
    for workload in WORKLOADS:
        cells = []
        for rule in (make() for make in rules.values()):
            asked = [rule.ask(f"{number:05}") for number in workload(random.Random(seed))]
            cells.append(f"{sum(asked) / len(asked):.3f}, {rule.fetched * SIZE / (1 << 30):,.0f} GiB")
        print(f"| {workload.__name__} ({len(asked):,} objects asked) | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
