"""``tierlog archive``: put what is rolled, or everything, into the archive now."""

from __future__ import annotations

import argparse
import json

from service.cli.arguments import add_target
from service.cli.errors import DONE
from service.cli.stopping import Stopped, run_stoppable, stop_flag
from service.cli.targets import open_writer
from tiering.progress import bar
from tiering.times import parse_time

HELP = "roll, seal and publish now; answer when it is published"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much, and whether the hot copies go."""
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--until", metavar="T", help="what was stored before this time; ms or RFC 3339")
    much.add_argument("--all", action="store_true", help="everything, the active segment too")
    parser.add_argument("--drop-hot", action="store_true", help="then remove the hot copies of what is archived")
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Print a JSON summary; stopped, it leaves what is published and can be run again."""
    until_ms = None if arguments.until is None else parse_time(arguments.until)
    with stop_flag() as stop, open_writer(arguments) as target, bar(" segments") as move:

        def progress(done: int, of: int) -> None:
            move(done, of)
            if stop.is_set():
                raise Stopped

        report = run_stoppable(
            lambda: target.archive(
                until_ms=until_ms, everything=arguments.all, drop_hot=arguments.drop_hot, progress=progress
            ),
            stop,
        )
    print(json.dumps(report))
    return DONE
