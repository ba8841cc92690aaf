"""``tierlog doctor``: is this bucket safe to use."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.arguments import DOCUMENT_FORMS, add_format, overrides
from service.cli.documents import print_document
from service.cli.errors import DONE, FAILED, NOTHING, say
from service.cli.look import Look, printable
from service.cli.stopping import interruptible
from service.wire import Json

if TYPE_CHECKING:
    from tiering.cold.doctor import Diagnosis, Doctor, Row

HELP = "ask an object store whether it is safe for an archive: capabilities, racing writes, latency"
EXAMPLES = (
    (
        "before the first message",
        "tierlog doctor --cold s3://bucket/prefix",
    ),
)
_WRITERS = 64
_ROUNDS = 50
_PROCESSES = 4
_SAMPLES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bucket, and how hard it is tried."""
    parser.add_argument("--cold", metavar="URL", required=True, help="file:///dir or s3://bucket/prefix")
    parser.add_argument("--writers", type=int, default=_WRITERS, metavar="N", help=f"racing writers ({_WRITERS})")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, metavar="N", help=f"rounds of each race ({_ROUNDS})")
    parser.add_argument("--processes", type=int, default=_PROCESSES, metavar="N", help=f"they run in ({_PROCESSES})")
    add_format(parser, forms=DOCUMENT_FORMS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 if it is safe, 1 with findings; everything written is removed again, also after ctrl-C."""
    from service.cli.targets import check_archive
    from service.opening import open_archive
    from service.racing import process_racers
    from service.settings import Settings
    from tiering.clock import SystemClock
    from tiering.cold.doctor import Doctor
    from tiering.cold.races import ThreadRacers
    from tiering.cold.urls import canonical_url
    from tiering.errors import InvalidRequestError
    from tiering.randomness import SystemRandomness

    if not 1 <= arguments.processes <= arguments.writers or arguments.rounds < 1:
        raise InvalidRequestError("a race has rounds, and a writer in each process")
    settings, clock = Settings.load(arguments.config, overrides(arguments)), SystemClock()
    url = canonical_url(arguments.cold)
    check_archive(url)
    store = open_archive(url, settings, clock)
    doctor = Doctor(store, clock, SystemRandomness().token_hex(8))
    look = Look.of(arguments)
    table = look.form == "table"
    rows: list[Row] = []

    def told(row: Row) -> None:
        rows.append(row)
        if table:
            print(f"{row.state:8} {row.capability:18} {printable(row.detail)}", flush=True)

    with interruptible():
        try:
            if url.startswith("memory://"):  # nobody else sees it
                racers = ThreadRacers(store, arguments.writers)
                found = doctor.examine(racers, rounds=arguments.rounds, samples=_SAMPLES, on_row=told)
                racers.close()
            else:
                with process_racers(
                    url, settings, writers=arguments.writers, processes=arguments.processes
                ) as processes:
                    found = doctor.examine(processes, rounds=arguments.rounds, samples=_SAMPLES, on_row=told)
        finally:
            with _undisturbed():
                cleaned = _clean(doctor, is_asked=bool(rows))
                store.close()
    if table:
        print(f"\n{found.verdict}")
    else:
        print_document(_document(url, found), look)
    if not cleaned:
        return FAILED
    return NOTHING if found.findings else DONE


def _clean(doctor: Doctor, *, is_asked: bool) -> bool:
    """Whether nothing is left; a store that answered not even the first request is told of once, by what asked."""
    from tiering.errors import StoreError

    try:
        doctor.clean()
    except StoreError as error:
        if is_asked:
            say(f"could not remove everything below {doctor.folder}: {error}")
        return False
    return True


def _document(url: str, found: Diagnosis) -> Json:
    return {
        "url": url,
        "safe": not found.findings,
        "verdict": found.verdict,
        "capabilities": [
            {"capability": row.capability, "state": row.state, "detail": row.detail} for row in found.rows
        ],
        "races": [
            {
                "condition": report.condition, "writers": report.writers, "rounds": report.rounds,
                "broken": report.broken, "unanswered": report.unanswered, "violations": report.violations,
            }
            for report in found.races
        ],
        "latency_ms": {
            name: {"p50": round(p50, 3), "p99": round(p99, 3)} for name, (p50, p99) in found.latency_ms.items()
        },
    }  # fmt: skip


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second ctrl-C waits until everything is removed, which the limits of the store bound."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
