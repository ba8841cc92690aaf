"""``tierlog route``: which store of a cluster takes new messages of a topic."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import add_cluster_target, open_cluster
from tierlog.service.exit_codes import DONE
from tierlog.tiering.base.errors import InvalidRequestError

HELP = "show which store of a cluster takes new messages of a topic, or decide it"
EXAMPLES = (
    (
        "where the topic is",
        "tierlog route orders --url http://127.0.0.1:8080",
    ),
    (
        "new messages go to another store from now on",
        "tierlog route orders store-2 --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which topic, and to which store."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("store", nargs="?", metavar="STORE", help="send new messages to it; what is written stays")
    parser.add_argument("--clear", action="store_true", help="leave the topic to hashing again")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_cluster_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the topic's store, after the change if there is one."""
    if arguments.clear and arguments.store is not None:
        raise InvalidRequestError("either a store or --clear")
    with interruptible(), open_cluster(arguments) as target:
        if arguments.clear or arguments.store is not None:
            target.route_topic(arguments.topic, arguments.store)
        home = target.topic_home(arguments.topic)
    print_document(home, OutputStyle.of(arguments))
    return DONE
