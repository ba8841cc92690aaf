"""What does it cost to find the index objects that overlap a range of time? Beside a walk over pages in memory.

``python benchmarks/index_catalogue.py [COUNT ...]``: index objects, not merged; 31,536 are a year at 10,000 messages a
second. Comparisons are those with the two ends of the range: of a link, a node, a reference or an entry.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tabulate import tabulate

from tests.support.index.counted import Counted
from tests.support.index.index_trees import EVER, IndexTrees
from tierlog.index.local.snapshot import OverlapOrder
from tierlog.index.objects.catalogue import IndexCatalogue
from tierlog.index.objects.interval_skip_list import IntervalSkipList, Tenure
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order, TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.format.manifest import Head, IndexEntry, PageNode

_TIMES = 15
_AT_ONCE = 400
_SEGMENT_MS = 1_000_000
_DAY_MS = 24 * 3_600_000
_RANGES = {"1 s": 1_000, "1 day": _DAY_MS, "30 days": 30 * _DAY_MS}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", metavar="COUNT", default=[1_000, 31_536, 100_000])
    rows: list[list[object]] = []
    for count in parser.parse_args().counts:
        rows += _measured(count)
    headers = ["objects", "range", "found", "first us", "compared", "us", "walk compared", "walk us", "bytes/object"]
    sys.stdout.write(tabulate(rows, headers, floatfmt=",.1f", intfmt=",") + "\n\n")
    headers = [
        "local files",
        "one spans all",
        "sorted list: change us",
        "search us",
        "skip list: change us",
        "search us",
    ]
    local = [_local(count, spans) for count in (130, 1_000) for spans in (False, True)]
    sys.stdout.write(tabulate(local, headers, floatfmt=",.1f", intfmt=",") + "\n")


def _archive(count: int) -> IndexTrees:
    trees = IndexTrees(page_entries=256, max_inline_entries=200)
    for first in range(0, count, _AT_ONCE):
        begins = (number * _SEGMENT_MS for number in range(first, min(first + _AT_ONCE, count)))
        trees.publish(
            *(TimeBounds(begin, begin + _SEGMENT_MS - 1, begin - 700, begin + _SEGMENT_MS - 9) for begin in begins)
        )
    return trees


def _measured(count: int) -> Iterator[list[object]]:
    trees = _archive(count)
    pages = {node.ref.key: trees.load(node) for node in trees.pages()}

    def load(node: PageNode) -> Sequence[Any]:
        return pages[node.ref.key]

    def walk(nodes: Sequence[PageNode], within: TimeRange) -> Iterator[IndexEntry]:
        for node in nodes:
            if node.bounds and within.overlaps(*node.bounds.on(TimeAxis.STORE)):
                if node.level:
                    yield from walk(load(node), within)
                else:
                    yield from overlapping(load(node), within)

    def overlapping(entries: Sequence[IndexEntry], within: TimeRange) -> Iterator[IndexEntry]:
        return (each for each in entries if each.bounds and within.overlaps(*each.bounds.on(TimeAxis.STORE)))

    def walk_all(within: TimeRange) -> list[IndexEntry]:
        wide = TimeRange(within.from_ms - 1_000, within.to_ms + 1_000)
        return [*walk(trees.head.index_tree, wide), *overlapping(trees.head.index, wide)]

    size = _bytes_of_an_object(trees.head, load) / count
    for name, length in _RANGES.items():
        from_ms = count // 2 * _SEGMENT_MS
        within, counted = (TimeRange(*map(kind, (from_ms, from_ms + length))) for kind in (int, Counted))
        asked = _catalogue()

        def ask(within: TimeRange, asked: IndexCatalogue = asked) -> list[IndexEntry]:
            return list(asked.overlapping(trees.head, within, load))

        first_us = _seconds(partial(ask, within)) * 1e6
        found = ask(within)
        assert {entry.key for entry in found} == {entry.key for entry in walk_all(within)}
        yield [
            count, name, len(found), first_us,
            _comparisons(partial(ask, counted)), _usual_us(partial(ask, within)),
            _comparisons(partial(walk_all, counted)), _usual_us(partial(walk_all, within)),
            size,
        ]  # fmt: skip


def _local(count: int, spans: bool) -> list[object]:
    """Local index files on both axes: put in order again at a change, or one put in and taken out."""
    files = [(number * _SEGMENT_MS, (number + 1) * _SEGMENT_MS - 1, number) for number in range(count)]
    if spans:
        files[0] = (0, count * _SEGMENT_MS, 0)
    ordered: OverlapOrder = OverlapOrder(files)  # type: ignore[arg-type]  # what is ordered is never looked into
    intervals: IntervalSkipList[int] = IntervalSkipList(SeededRandomness(1))
    for low, high, number in files:
        intervals.insert(low, high, number, Tenure(0))
    middle = count // 2 * _SEGMENT_MS + 7

    def change() -> None:
        for _ in TimeAxis:
            intervals.unlink(intervals.insert(middle, middle + 5, 0, Tenure(0)))

    return [
        count, "yes" if spans else "no",
        _usual_us(lambda: [OverlapOrder(files) for _ in TimeAxis]),  # type: ignore[arg-type]
        _usual_us(lambda: ordered.overlapping(middle, middle + 1)),
        _usual_us(change), _usual_us(lambda: list(intervals.overlapping(1, middle, middle + 1))),
    ]  # fmt: skip


def _catalogue() -> IndexCatalogue:
    return IndexCatalogue(TimeAxis.STORE, Order.NEWEST, SeededRandomness(1))


def _bytes_of_an_object(head: Head, load: Callable[[PageNode], Sequence[Any]]) -> int:
    catalogue = _catalogue()
    tracemalloc.start()
    for _ in catalogue.overlapping(head, EVER, load):
        pass
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _usual_us(action: Callable[[], object]) -> float:
    return statistics.median(_seconds(action) for _ in range(_TIMES)) * 1e6


def _comparisons(action: Callable[[], object]) -> int:
    Counted.comparisons = 0
    action()
    return Counted.comparisons


if __name__ == "__main__":
    main()
