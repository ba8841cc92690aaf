"""``tierlog archive``: put what is rolled, or everything, into the archive now."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_document
from service.cli.errors import DONE
from service.cli.look import Look
from service.cli.stopping import run_stoppable, stop_flag, stopping_at
from service.cli.targets import open_writer
from service.cli.watching import archive_progress
from tiering.times import parse_time

HELP = "roll, seal and publish now; answer when it is published"
EXAMPLES = (
    (
        "everything, and only the archive keeps it",
        "tierlog archive --all --drop-hot --url http://127.0.0.1:8080",
    ),
    (
        "what was stored before March",
        "tierlog archive --until 2026-03-01 --root ./store",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much, and whether the hot copies go."""
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--until", metavar="T", help="what was stored before this time; ms or RFC 3339")
    much.add_argument("--all", action="store_true", help="everything, the active segment too")
    parser.add_argument("--drop-hot", action="store_true", help="then remove the hot copies of what is archived")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Print a summary; stopped, it leaves what is published and can be run again."""
    until_ms = None if arguments.until is None else parse_time(arguments.until)
    with stop_flag() as stop, open_writer(arguments) as target, archive_progress(target) as move:
        progress = stopping_at(move, stop)
        report = run_stoppable(
            lambda: target.archive(
                until_ms=until_ms, everything=arguments.all, drop_hot=arguments.drop_hot, progress=progress
            ),
            stop,
        )
    print_document(report, Look.of(arguments))
    return DONE
