"""``tierlog flush``: make everything acknowledged durable now."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_done
from service.cli.errors import DONE
from service.cli.stopping import stop_flag
from service.cli.targets import open_writer

HELP = "make durable now what was acknowledged as async"
EXAMPLES = (
    (
        "before the power goes",
        "tierlog flush --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where."""
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Silent in a pipe when it went well, unless a format is asked for."""
    with stop_flag(), open_writer(arguments) as target:
        target.flush()
    print_done({"flushed": True}, arguments)
    return DONE
