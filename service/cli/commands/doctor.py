"""``tierlog doctor``: find out whether a bucket is safe to use."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, overrides
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle, printable
from tierlog.service.cli.signals import interruptible
from tierlog.service.exit_codes import DONE, FAILED, NOTHING
from tierlog.service.wire.documents import Json

if TYPE_CHECKING:
    from tierlog.tiering.objects.doctor import CheckRow, Diagnosis, Doctor

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
    """Adds which bucket, and how hard it is tried."""
    parser.add_argument("--cold", metavar="URL", required=True, help="file:///dir or s3://bucket/prefix")
    parser.add_argument("--writers", type=int, default=_WRITERS, metavar="N", help=f"racing writers ({_WRITERS})")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, metavar="N", help=f"rounds of each race ({_ROUNDS})")
    parser.add_argument("--processes", type=int, default=_PROCESSES, metavar="N", help=f"they run in ({_PROCESSES})")
    add_format(parser, forms=DOCUMENT_FORMS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 if it is safe, 1 with findings; removes everything written again, also after ctrl-C."""
    from tierlog.service.cli.race_process import process_racers
    from tierlog.service.cli.targets import check_archive
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.opening import open_archive
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.errors import InvalidRequestError
    from tierlog.tiering.base.randomness import SystemRandomness
    from tierlog.tiering.objects.doctor import Doctor
    from tierlog.tiering.objects.races import ThreadRacers
    from tierlog.tiering.objects.urls import canonical_url

    if not 1 <= arguments.processes <= arguments.writers or arguments.rounds < 1:
        raise InvalidRequestError("a race has rounds, and a writer in each process")
    settings, clock = Settings.load(arguments.config, overrides(arguments)), SystemClock()
    url = canonical_url(arguments.cold)
    check_archive(url)
    store = open_archive(url, settings, clock)
    doctor = Doctor(store, clock, SystemRandomness().token_hex(8))
    # a table shows each row as soon as it is known
    look = OutputStyle.of(arguments)
    table = look.form == "table"
    rows: list[CheckRow] = []

    def show_row(row: CheckRow) -> None:
        rows.append(row)
        if table:
            print(f"{row.state:8} {row.capability:18} {printable(row.detail)}", flush=True)

    # the examination, after which nothing of it stays in the bucket
    with interruptible():
        try:
            doctor.reach()  # the racers take seconds to start, and who has no credentials need not wait for them
            if url.startswith("memory://"):  # nobody else sees it
                racers = ThreadRacers(store, arguments.writers)
                found = doctor.examine(racers, rounds=arguments.rounds, samples=_SAMPLES, on_row=show_row)
                racers.close()
            else:
                with process_racers(
                    url, settings, writers=arguments.writers, processes=arguments.processes
                ) as processes:
                    found = doctor.examine(processes, rounds=arguments.rounds, samples=_SAMPLES, on_row=show_row)
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
    """Whether nothing is left; that a store answered not even the first request is said once, by whoever asked."""
    from tierlog.tiering.base.errors import StoreError

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
    """Makes a second ctrl-C wait until everything is removed, which the limits of the store bound."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
