"""``tierlog salvage``: append again what a fenced volume had acknowledged but never archived."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import run_stoppable, stop_flag, stopping_at
from tierlog.service.cli.targets import open_writer, settings_of
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.progress_bar import bar

HELP = "append again what a fenced volume had acknowledged but never archived"
EXAMPLES = (
    (
        "to the service that took over",
        "tierlog salvage ./old-store --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds from where, and to which volume."""
    parser.add_argument("old_root", type=Path, metavar="OLDROOT", help="directory of the fenced volume; only read")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary, findings if anything could not be saved; stopped, or run again, it appends nothing twice."""
    from tierlog.service.cli.salvager import salvage
    from tierlog.service.engine.parts import Components
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.randomness import SystemRandomness

    old_root: Path = arguments.old_root.absolute()
    if arguments.root is not None and arguments.root.absolute() == old_root:
        raise InvalidRequestError("--root is the new volume's directory, not the old one's")
    # sizes and archive are the old volume's own
    components = Components(
        settings_of(arguments).unsized(), SystemClock(), LocalFileSystem(), SystemRandomness()
    )  # fmt: skip
    with stop_flag() as stop, open_writer(arguments) as target, bar("bytes", "salvaging") as move:
        progress = stopping_at(move, stop)
        report = run_stoppable(lambda: salvage(old_root, components, target, progress), stop)
    print_document(asdict(report), OutputStyle.of(arguments))
    if not report.not_saved:
        return DONE
    say(f"{len(report.not_saved)} places of the old log could not be saved; keep it, and see not_saved")
    return NOTHING
