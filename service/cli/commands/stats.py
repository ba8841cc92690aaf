"""``tierlog stats``: sizes and lags."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.output import print_document, rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_reader
from tierlog.service.exit_codes import DONE

HELP = "show sizes in bytes, lags and times in ms"
EXAMPLES = (
    (
        "sizes and lags",
        "tierlog stats --url http://127.0.0.1:8080",
    ),
    (
        "one number",
        "tierlog stats --root ./store --read-only --format json | jq .unarchived_bytes",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to look and how to show it."""
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Prints one row; a line for each number in a table."""
    with interruptible(), open_reader(arguments) as target:
        stats = target.stats()
    look = OutputStyle.of(arguments)
    if look.form in ("json", "table"):
        print_document(stats, look)
    else:
        out = rows_out(look, "stats", columns=tuple(stats))
        out.write([stats])
        out.end()
    return DONE
