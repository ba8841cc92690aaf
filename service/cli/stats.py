"""``tierlog stats``: sizes and lags."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_format, add_target
from service.cli.documents import print_document
from service.cli.errors import DONE
from service.cli.look import Look
from service.cli.output import rows_out
from service.cli.stopping import interruptible
from service.cli.targets import open_reader

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
    """Where to look and how to show it."""
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """One row; a line for each number in a table."""
    with interruptible(), open_reader(arguments) as target:
        stats = target.stats()
    look = Look.of(arguments)
    if look.form in ("json", "table"):
        print_document(stats, look)
    else:
        out = rows_out(look, "stats", tuple(stats))
        out.write([stats])
        out.end()
    return DONE
