"""What would the mechanisms of the message store race and of EQueue change, each measured with and without it?

The race's winners padded or cut the log's tail to pages of 4 KiB, put the largest messages first, flushed with several
threads, wrote files before they were used, and let threads share a flush, some with a batch of a fixed size. EQueue
keeps a state in each file's header, a record's length at both its ends, and 8-byte positions in its queues. One side is
tierlog's own log and code; record 0063 says which are built and which are refused.

``python benchmarks/mechanisms.py [--only NAME]... [--runs 5] [--flushes 300] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks import file_mechanisms as files
from benchmarks import flush_mechanisms as flush
from benchmarks.append import opened
from benchmarks.flush_mechanisms import Written
from benchmarks.harness import Report, Row, in_turns
from tierlog.service.engine import producers
from tierlog.service.engine.producers import AsyncProducer

_BODIES = (64, 385, 4000)
_AS_IT_IS = "tierlog"
_MANY = 64
_STRICT_WAIT_S, _LEARNT_WAIT_S = 0.01, 0.000_5


@dataclass(frozen=True)
class Bench:
    """What every mechanism is measured with."""

    report: Report
    folder: Path
    runs: int
    flushes: int

    def compare(self, what: str, unit: str, sides: Mapping[str, Callable[[], float]], **more: object) -> None:
        """Adds a row of sides that take turns."""
        self.report.add(Row(what, unit, in_turns(sides, self.runs), **more))  # type: ignore[arg-type]

    def compare_written(self, what: str, sides: dict[str, Callable[[], Written]]) -> None:
        """The same of sides that say what they wrote, in a note."""
        last: dict[str, Written] = {}

        def rate(name: str) -> float:
            last[name] = sides[name]()
            return last[name].rate

        found = in_turns({name: partial(rate, name) for name in sides}, self.runs)
        self.report.add(
            Row(what, "acks/s", found, note="; ".join(f"{name}: {_said(one)}" for name, one in last.items()))
        )


def _said(one: Written) -> str:
    pages = f", {one.pages / one.messages:.3g} pages a message" if one.pages else ""
    return (
        f"{one.log_bytes / one.message_bytes:.3g} log bytes a message byte{pages}, "
        f"{one.messages / one.flushes:.3g} messages a flush"
    )


def _rate(run: Callable[[], Written]) -> float:
    return run().rate


def tail_padding(bench: Bench) -> None:
    """Each flush ends a page, so that the next one writes no page again."""
    for body in (*_BODIES, 385 - len(flush.record_of(385)) + 385):
        record = flush.record_of(body)
        for together in (1, _MANY):
            flushes = flush.flushes_for(-(-len(record) * together // flush.PAGE) * flush.PAGE, bench.flushes)
            run = partial(flush.each_flushed, bench.folder, record, together, flushes)
            bench.compare_written(
                f"tail padding: {len(record)}-byte record, {together} a flush",
                {_AS_IT_IS: partial(run, padded=False), "padded to 4 KiB": partial(run, padded=True)},
            )
            if body == _BODIES[1]:
                directly = partial(flush.each_flushed_directly, bench.folder, record, together, flushes)
                sides = {_AS_IT_IS: partial(_rate, partial(run, padded=False)), "padded, O_DIRECT": directly}
                bench.compare(f"the same beside the page cache, {together} a flush", "acks/s", sides)


def tail_cutting(bench: Bench) -> None:
    """A flush writes whole pages, and the rest of a page waits for the next flush."""
    for body in _BODIES:
        record = flush.record_of(body)
        for count in (8, _MANY):
            messages = count * flush.flushes_for(2 * len(record) * count, bench.flushes)
            run = partial(flush.closed_loop, bench.folder, [record], count, messages)
            bench.compare_written(
                f"tail cutting: {body}-byte bodies, {count} producers",
                {_AS_IT_IS: partial(run, cut=False), "cut to 4 KiB": partial(run, cut=True)},
            )


def largest_first(bench: Bench) -> None:
    """Within a batch the largest come first, alone and with the tail cut."""
    records = [flush.record_of(body) for body in _BODIES]
    for count in (8, _MANY):
        messages = count * flush.flushes_for(2 * sum(map(len, records)) // 3 * count, bench.flushes)
        run = partial(flush.closed_loop, bench.folder, records, count, messages)
        bench.compare_written(
            f"largest first: 64, 385 and 4000 mixed, {count} producers",
            {
                _AS_IT_IS: partial(run, cut=False),
                "largest first": partial(run, cut=False, largest_first=True),
                "cut, largest first": partial(run, cut=True, largest_first=True),
                "cut, as they came": partial(run, cut=True),
            },
        )


def flush_threads(bench: Bench) -> None:
    """Several logs with a thread each, or one log in which several flushes are on their way."""
    for body in _BODIES:
        record = flush.record_of(body)
        rounds = flush.flushes_for(len(record) * _MANY, bench.flushes)
        beside = partial(flush.side_by_side, bench.folder, record, _MANY, rounds)
        within = partial(flush.overlapping, bench.folder, record, _MANY, rounds)
        bench.compare(
            f"flush threads: {body}-byte bodies, {_MANY} producers", "acks/s",
            {
                _AS_IT_IS: partial(beside, logs=1),
                "2 logs": partial(beside, logs=2),
                "4 logs": partial(beside, logs=4),
                "2 flushes in one log": partial(within, threads=2),
            },
        )  # fmt: skip


def pre_writing(bench: Bench) -> None:
    """Zeros are written before records come, so that a flush changes no block's state."""
    for body, together in ((64, 1), (385, 1), (4000, 1), (385, _MANY), (4000, _MANY)):
        record = flush.record_of(body)
        flushes = flush.flushes_for(len(record) * together, bench.flushes)
        run = partial(flush.into_blocks, bench.folder, record, together, flushes)
        bench.compare(
            f"pre-writing: {body}-byte bodies, {together} a flush", "acks/s",
            {
                _AS_IT_IS: partial(run, "written"),
                "blocks reserved": partial(run, "reserved"),
                "a hole": partial(run, "hole"),
            },
        )  # fmt: skip


def aggregation(bench: Bench) -> None:
    """Senders share a flush; how many are waited for is learnt from the batch before, or tried out."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as inside:
        engine = opened(Path(inside) / "store", prewritten=False)

        def turns(most: int, run: Callable[[], Written]) -> Written:
            with patch.object(producers, "_MOST_TURNS", most):
                return run()

        for size, count in ((64, _MANY), (385, 8), (385, _MANY), (4000, _MANY)):
            body = bytes(range(256)) * 16
            run = partial(flush.tasks, engine, body[:size], count, bench.flushes * count // 4)
            bench.compare_written(
                f"aggregation: {size}-byte bodies, {count} tasks",
                {
                    _AS_IT_IS: partial(run, AsyncProducer),
                    "waits for nobody": partial(turns, 0, partial(run, AsyncProducer)),
                    "tries how many": partial(run, flush.ClimbingProducer),
                },
            )
        engine.close()


def strict_mode(bench: Bench) -> None:
    """A batch waits until exactly so many threads have joined."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as inside:
        engine = opened(Path(inside) / "store", prewritten=False)
        for threads, pausing in ((8, 0), (16, 0), (_MANY, 0), (16, 4)):
            senders = flush.Senders(threads, pausing, 0.005)
            strict = flush.StrictAppends(engine, threads, _STRICT_WAIT_S)
            learnt = flush.LearntAppends(engine, _LEARNT_WAIT_S)
            among = f", {pausing} of which pause for 5 ms" if pausing else ""
            bench.compare(
                f"strict mode: {threads} threads{among}", "acks/s",
                {
                    _AS_IT_IS: partial(senders.run, lambda message: engine.append([message])),
                    f"batches of {threads}": partial(senders.run, strict.append),
                    "as many as before": partial(senders.run, learnt.append),
                },
            )  # fmt: skip
        engine.close()


def chunk_states(bench: Bench) -> None:
    """A file says in its header and footer whether it is complete."""
    bench.compare(
        "chunk states: a roll", "ms",
        {
            _AS_IT_IS: partial(files.rolls, bench.folder, with_states=False),
            "header and footer written": partial(files.rolls, bench.folder, with_states=True),
        },
        smaller_is_better=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=bench.folder) as inside:
        paths = files.make_segments(Path(inside))
        bench.compare(
            "chunk states: 64 segments loaded", "ms",
            {
                _AS_IT_IS: partial(files.loads, paths, with_states=False),
                "header and footer read": partial(files.loads, paths, with_states=True),
            },
            smaller_is_better=True,
        )  # fmt: skip


def both_ends(bench: Bench) -> None:
    """A record ends with its length, so that the log can be read backwards."""
    for body in _BODIES:
        logs = files.two_logs(body)
        growth = len(logs.both_ends) / len(logs.plain)
        bench.compare(
            f"length at both ends: newest 32 of {body}-byte bodies", "look-ups/s",
            {
                _AS_IT_IS: partial(files.newest_by_units, logs),
                "backwards by lengths": partial(files.newest_by_lengths, logs),
            },
            note=f"the log grows {growth:.4f} times; a look-up copies 32 records of one queue",
        )  # fmt: skip


def positions(bench: Bench) -> None:
    """A queue's items are the 8 bytes of a position, without size and tag."""
    for body in _BODIES:
        of = files.queued(bench.folder, body)
        by_units, by_records = files.pages_of_filter(of)
        bench.compare(
            f"positions: written, {body}-byte bodies", "items/s",
            {
                _AS_IT_IS: partial(files.write_items, bench.folder, of.units),
                "8-byte positions": partial(files.write_items, bench.folder, of.positions),
            },
            note=f"{of.units.nbytes / len(of.data):.3f} and {of.positions.nbytes / len(of.data):.3f} bytes a log byte",
        )  # fmt: skip
        bench.compare(
            f"positions: read by one tag of 16, {body}-byte bodies", "messages/processor s",
            {_AS_IT_IS: partial(files.filter_by_units, of), "8-byte positions": partial(files.filter_by_records, of)},
            note=f"touches {by_units:,} and {by_records:,} pages of the log",
        )  # fmt: skip


MECHANISMS: dict[str, Callable[[Bench], None]] = {
    function.__name__: function
    for function in (
        tail_padding, tail_cutting, largest_first, flush_threads, pre_writing, aggregation, strict_mode, chunk_states,
        both_ends, positions,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MECHANISMS, help="may be given several times")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--flushes", type=int, default=300)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    bench = Bench(report, arguments.dir, arguments.runs, arguments.flushes)
    for name in arguments.only or MECHANISMS:
        MECHANISMS[name](bench)
    if arguments.only is None:
        report.save()


if __name__ == "__main__":
    main()
