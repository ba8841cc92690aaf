"""``tierlog receipts``: what became of erasures."""

from __future__ import annotations

import argparse
import json
import sys

from service.cli.arguments import add_target
from service.cli.errors import DONE, NOTHING, say
from service.cli.stopping import interruptible
from service.cli.targets import open_writer

HELP = "show the receipts of erasures, or of one: objects rewritten and deleted, and what may still hold bytes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which."""
    parser.add_argument("tombstone_id", nargs="?", metavar="ID", help="only this one")
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """One JSON document a line; exit code 1 if there is none."""
    with interruptible(), open_writer(arguments) as target:
        found = target.receipts() if arguments.tombstone_id is None else [target.receipt(arguments.tombstone_id)]
    for receipt in found:
        print(json.dumps(receipt, indent=None if not sys.stdout.isatty() else 1))
    if not found:
        say("nothing was ever erased")
    return DONE if found else NOTHING
