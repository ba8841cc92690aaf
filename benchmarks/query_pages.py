"""What does a page of a query cost where very many messages have the key, or few have the tag?

One topic in one queue, bodies of 32 random bytes. In one store all messages have one key, and of those the newest
thousand, say, have another one: a page of 32 should cost as much by either, hot and out of a local archive whose
caches are empty: time, greatest memory that Python and numpy took for it (tracemalloc, apart from the time), and
requests; and what it does there without a key. Then one in ``--rare`` messages has a tag and
all of those are asked for, without a key: with the tag's hash in queue units and frames, and with every record taken
apart; the archive's frames lie in memory then.

``python benchmarks/query_pages.py [--counts 1000 100000 10000000] [--filtered 1000000] [--rare 100] [--runs 5]
[--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks.harness import Report, Row, Side, in_turns
from tierlog.index.search import segment_search
from tierlog.index.search.query import Answer, Query
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability, Order
from tierlog.tiering.cold.segment.reader import items_in
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue
from tierlog.tiering.message.arrow_input import ArrowMessages

_TOPIC, _RARE, _USUAL = "TopicTest", "rare", "usual"
_BATCH, _BODY_BYTES = 1_000, 32
_PAGE, _PAGES, _ARCHIVED_PAGES = 32, 50, 5
_MOST = 2
Ask = Callable[[], Answer]


def fill(folder: Path, counts: Sequence[int], rare: int) -> Store:
    """A store whose newest so many messages have the key of each count, every ``rare``-th the tag.

    It has as many messages as the greatest count, all of them archived and still hot.
    """
    total, items = max(counts), sum(counts)
    settings = Settings.load(
        None, {"index.items": items + 1, "index.slots": max(1, items // 4), "hot.default_queues": 1}
    )
    engine = Store.open(folder / "store", settings=settings, cold_url=(folder / "archive").as_uri())
    bodies = np.random.default_rng(1).integers(0, 256, (_BATCH, _BODY_BYTES), np.uint8)
    columns = {
        "body": pa.array([body.tobytes() for body in bodies], pa.binary()),
    }
    for start in range(0, total, _BATCH):
        columns["keys"] = pa.array([[of(count) for count in counts if start >= total - count]] * _BATCH)
        columns["tag"] = pa.array([_RARE if (start + number) % rare == 0 else _USUAL for number in range(_BATCH)])
        engine.append(ArrowMessages(pa.table(columns), _TOPIC), Durability.ASYNC)
    engine.flush()
    engine.archive(everything=True)
    return engine


def archived(folder: Path) -> Archive:
    """A reader of the archive with nothing in memory."""
    return Archive.open((folder / "archive").as_uri(), settings=Settings())


def ask_archived(folder: Path, query: Query) -> Answer:
    """Asks an archive that was just opened."""
    archive = archived(folder)
    try:
        return archive.query(query)
    finally:
        archive.close()


def pages(ask: Ask, count: int) -> float:
    """Seconds a page."""
    begun = time.perf_counter()
    for _ in range(count):
        answer = ask()
    seconds = time.perf_counter() - begun
    assert len(answer.messages) == _PAGE
    assert answer.coverage.complete
    return seconds / count


def peak_bytes(ask: Ask) -> float:
    """The greatest memory that a page takes."""
    ask()
    tracemalloc.start()
    try:
        ask()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def add_key_rows(report: Report, folder: Path, engine: Store, counts: Sequence[int], runs: int) -> None:
    """Pages of each key, compared with that of the fewest messages."""
    for order in Order:
        queries = {count: Query(_TOPIC, of(count), limit=_PAGE, order=order) for count in sorted(counts)}
        asks: dict[str, dict[int, Ask]] = {
            "hot": {count: partial(engine.query, query) for count, query in queries.items()},
            "archived": {count: partial(ask_archived, folder, query) for count, query in queries.items()},
        }
        for tier, of_counts in asks.items():
            repeats = _PAGES if tier == "hot" else _ARCHIVED_PAGES
            runners: dict[str, Side] = {of(count): partial(pages, ask, repeats) for count, ask in of_counts.items()}
            figures = {
                "s": in_turns(runners, runs),
                "bytes": {of(count): [peak_bytes(ask)] for count, ask in of_counts.items()},
            }
            if tier == "archived":
                figures["requests"] = {of(count): [float(ask().coverage.requests)] for count, ask in of_counts.items()}
            for unit, found in figures.items():
                least, *others = found
                for name in others:
                    what = f"a page of {_PAGE} of one key, {tier}, {order.value} first"
                    sides = {name: found[name], least: found[least]}
                    report.add(Row(what, unit, sides, _MOST, smaller_is_better=True))


def add_archived_rows(report: Report, folder: Path, count: int, runs: int) -> None:
    """A page with the key and one of the same messages without it."""
    for order in Order:
        query = Query(_TOPIC, of(count), limit=_PAGE, order=order)
        with_key, without = "by the key", "without it"
        asks: dict[str, Ask] = {
            with_key: partial(ask_archived, folder, query),
            without: partial(ask_archived, folder, replace(query, key=None)),
        }
        figures = {
            "s": in_turns({name: partial(pages, ask, _ARCHIVED_PAGES) for name, ask in asks.items()}, runs),
            "requests": {name: [float(ask().coverage.requests)] for name, ask in asks.items()},
        }
        for unit, found in figures.items():
            what = f"a page of {_PAGE} of {count:,}, archived, {order.value} first"
            report.add(Row(what, unit, found, _MOST, smaller_is_better=True))


def of(count: int) -> str:
    """The key of so many messages, and the name of its side."""
    return f"of-{count}"


@contextmanager
def every_record_taken_apart() -> Iterator[None]:
    """The same queries without the tag's hash."""
    with (
        patch.object(SnapshotQueue, "tags_in_units", lambda *_: None),
        patch.object(segment_search, "tagged_items_in", lambda frame, row, _: items_in(frame, row)),
    ):
        yield


def decoded(ask: Ask) -> int:
    """Records that are taken apart for an answer, in either tier."""
    count = 0
    record, decode = HotSnapshot.record, decode_record

    def from_log(snapshot: HotSnapshot, offset: int) -> object:
        nonlocal count
        count += 1
        return record(snapshot, offset)

    def from_frame(data: bytes, position: int) -> object:
        nonlocal count
        count += 1
        return decode(data, position)

    with (
        patch.object(HotSnapshot, "record", from_log),
        patch("tierlog.tiering.cold.segment.reader.decode_record", from_frame),
    ):
        ask()
    return count


def add_filter_rows(report: Report, engine: Store, archive: Archive, shares: tuple[int, int], runs: int) -> None:
    """All messages with the tag, with and without its hash; ``shares``: of so many, one in so many has it."""
    count, rare = shares
    query = Query(_TOPIC, tag=_RARE, limit=count // rare, timeout_ms=None)
    for tier, ask in (("hot", partial(engine.query, query)), ("archived", partial(archive.query, query))):
        archive.query(query)
        with_hash, without = "by the tag's hash", "every record taken apart"

        def seconds(ask: Ask = ask) -> float:
            begun = time.perf_counter()
            answer = ask()
            took = time.perf_counter() - begun
            assert len(answer.messages) == count // rare
            return took

        def plainly(seconds: Callable[[], float] = seconds) -> float:
            with every_record_taken_apart():
                return seconds()

        what = f"{count // rare:,} of {count:,} by tag, {tier}"
        report.add(Row(what, "s", in_turns({with_hash: seconds, without: plainly}, runs), smaller_is_better=True))
        few = float(decoded(ask))
        with every_record_taken_apart():
            figures = {with_hash: [few], without: [float(decoded(ask))]}
        report.add(Row(f"{what}, taken apart", "records", figures, smaller_is_better=True))


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 100_000, 10_000_000])
    parser.add_argument("--filtered", type=int, default=1_000_000)
    parser.add_argument("--rare", type=int, default=100, help="one message in so many has the tag")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with ExitStack() as stack:
        inside = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.dir.resolve())))

        def made(name: str, counts: Sequence[int]) -> tuple[Path, Store]:
            engine = fill(inside / name, counts, given.rare)
            stack.callback(engine.close)
            return inside / name, engine

        folder, engine = made("keys", given.counts)
        add_key_rows(report, folder, engine, given.counts, given.runs)
        add_archived_rows(report, folder, max(given.counts), given.runs)
        folder, engine = made("filtered", [given.filtered])
        archive = archived(folder)
        stack.callback(archive.close)
        add_filter_rows(report, engine, archive, (given.filtered, given.rare), given.runs)
    report.save()


if __name__ == "__main__":
    main()
