"""``tierlog message``: show one message by its id."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import messages_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.targets import open_reader
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.errors import MessageNotFoundError

HELP = "show one message by the id that the answer to its append gave"
EXAMPLES = (
    ("all of a message", "tierlog message 0A00000100002694000000000001A2B3 --url http://127.0.0.1:8080"),
    (
        "from the archive of one of several stores",
        "tierlog message 0A00000100002694000000000001A2B3 --cold s3://bucket/prefix --store-id store",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the id."""
    parser.add_argument("message_id", metavar="ID", help="32 hex digits, 56 of an IPv6 store")
    parser.set_defaults(full=True)
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 with the message, 1 if there is none of this id."""
    with open_reader(arguments) as target:
        try:
            found = target.message(arguments.message_id)
        except MessageNotFoundError as error:
            say(f"nothing found: {error}")
            return NOTHING
    out = messages_out(OutputStyle.of(arguments))
    out.write([found])
    out.end()
    return DONE
