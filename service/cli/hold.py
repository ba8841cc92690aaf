"""``tierlog hold``: forbid that anything of a topic is erased or expires."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_done
from service.cli.errors import DONE
from service.cli.stopping import stop_flag
from service.cli.targets import open_writer

HELP = "put a topic on hold, so that nothing of it is erased or expires, or end that"
EXAMPLES = (
    (
        "nothing of the topic may go",
        "tierlog hold orders on --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which topic, on or off."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("state", choices=("on", "off"))
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Silent in a pipe when it went well, unless a format is asked for."""
    with stop_flag(), open_writer(arguments) as target:
        target.hold(arguments.topic, hold=arguments.state == "on")
    print_done({"topic": arguments.topic, "hold": arguments.state == "on"}, arguments)
    return DONE
