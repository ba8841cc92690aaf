"""``tierlog flush``: make everything acknowledged durable now."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_target
from service.cli.errors import DONE
from service.cli.stopping import stop_flag
from service.cli.targets import open_writer

HELP = "make durable now what was acknowledged as async"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where."""
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Silent when it went well."""
    with stop_flag(), open_writer(arguments) as target:
        target.flush()
    return DONE
