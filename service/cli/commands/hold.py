"""``tierlog hold``: forbid that anything of a topic is erased or expires."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.output import print_done
from tierlog.service.cli.signals import stop_flag
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE

HELP = "put a topic on hold, so that nothing of it is erased or expires, or end that"
EXAMPLES = (
    (
        "nothing of the topic may go",
        "tierlog hold orders on --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which topic, on or off."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("state", choices=("on", "off"))
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Sets the hold; silent in a pipe when it went well, unless a format is asked for."""
    with stop_flag(), open_writer(arguments) as target:
        target.hold(arguments.topic, hold=arguments.state == "on")
    print_done({"topic": arguments.topic, "hold": arguments.state == "on"}, arguments)
    return DONE
