"""``tierlog salvage``: append again what a fenced volume had acknowledged but never archived."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_document
from service.cli.errors import DONE, NOTHING, say
from service.cli.look import Look
from service.cli.stopping import run_stoppable, stop_flag, stopping_at
from service.cli.targets import open_writer, settings_of
from tiering.errors import InvalidRequestError
from tiering.progress import bar

HELP = "append again what a fenced volume had acknowledged but never archived"
EXAMPLES = (
    (
        "to the service that took over",
        "tierlog salvage ./old-store --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From where, and to which volume."""
    parser.add_argument("old_root", type=Path, metavar="OLDROOT", help="directory of the fenced volume; only read")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Print a summary, findings if anything could not be saved; stopped, or run again, it appends nothing twice."""
    from service.opening import Surroundings
    from service.salvaging import salvage
    from tiering.clock import SystemClock
    from tiering.fs import LocalFileSystem
    from tiering.randomness import SystemRandomness

    old_root: Path = arguments.old_root.absolute()
    if arguments.root is not None and arguments.root.absolute() == old_root:
        raise InvalidRequestError("--root is the new volume's directory, not the old one's")
    # sizes and archive are the old volume's own
    around = Surroundings(
        settings_of(arguments).unsized(), SystemClock(), LocalFileSystem(), SystemRandomness()
    )  # fmt: skip
    with stop_flag() as stop, open_writer(arguments) as target, bar("bytes", "salvaging") as move:
        progress = stopping_at(move, stop)
        report = run_stoppable(lambda: salvage(old_root, around, target, progress), stop)
    print_document(asdict(report), Look.of(arguments))
    if not report.not_saved:
        return DONE
    say(f"{len(report.not_saved)} places of the old log could not be saved; keep it, and see not_saved")
    return NOTHING
