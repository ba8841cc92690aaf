"""``tierlog topics``: topics and their queues."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_format, add_target
from service.cli.errors import DONE
from service.cli.output import chosen_format, rows_out
from service.cli.stopping import interruptible
from service.cli.targets import open_reader

HELP = "list topics and the offsets of their queues"
_COLUMNS = ("topic", "topic_id", "queue_id", "min_offset", "max_offset", "archive", "cold_retention_ms", "hold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look and how to show it."""
    add_format(parser)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """A row for each topic; for each queue where a row has one shape (table, csv, arrow)."""
    with interruptible(), open_reader(arguments) as target:
        topics = target.topics()
    out = rows_out(arguments.format, "topics", _COLUMNS)
    if chosen_format(arguments.format) not in ("json", "ndjson"):
        topics = [
            {**{name: value for name, value in topic.items() if name not in ("queues", "offsets")}, **queue}
            for topic in topics
            for queue in topic["offsets"]
        ]
    out.write(topics)
    out.end()
    return DONE
