"""``tierlog route``: which store of a cluster takes new messages of a topic."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format
from service.cli.clusters import add_cluster_target, open_cluster
from service.cli.documents import print_document
from service.cli.errors import DONE
from service.cli.look import Look
from service.cli.stopping import interruptible
from tiering.errors import InvalidRequestError

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
    """Which topic, and to which store."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("store", nargs="?", metavar="STORE", help="send new messages to it; what is written stays")
    parser.add_argument("--clear", action="store_true", help="leave the topic to hashing again")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_cluster_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """The topic's store, after the change if there is one."""
    if arguments.clear and arguments.store is not None:
        raise InvalidRequestError("either a store or --clear")
    with interruptible(), open_cluster(arguments) as target:
        if arguments.clear or arguments.store is not None:
            target.route_topic(arguments.topic, arguments.store)
        home = target.topic_home(arguments.topic)
    print_document(home, Look.of(arguments))
    return DONE
