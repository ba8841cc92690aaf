"""``tierlog flush``: make everything acknowledged durable now."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.output import print_done
from tierlog.service.cli.signals import stop_flag
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE

HELP = "make durable now what was acknowledged as async"
EXAMPLES = (
    (
        "before the power goes",
        "tierlog flush --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where."""
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Flushes; silent in a pipe when it went well, unless a format is asked for."""
    with stop_flag(), open_writer(arguments) as target:
        target.flush()
    print_done({"flushed": True}, arguments)
    return DONE
