"""``tierlog topics``: topics and their queues."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.output import rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_reader
from tierlog.service.exit_codes import DONE
from tierlog.service.wire.documents import Json

HELP = "list topics and the offsets of their queues"
EXAMPLES = (
    (
        "topics of a running service",
        "tierlog topics --url http://127.0.0.1:8080",
    ),
    (
        "offsets of every queue, of a broker's store too",
        "tierlog topics --queues --root /var/lib/rocketmq/store --read-only",
    ),
)
_COLUMNS = (
    "topic",
    "topic_id",
    "queue_id",
    "min_offset",
    "max_offset",
    "archive",
    "cold_retention_ms",
    "hold",
    "messages",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to look and how to show it."""
    parser.add_argument("--queues", action="store_true", help="in a table a row for each queue, as csv and arrow have")
    add_format(parser)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each topic; for each queue where a row has one shape (csv, arrow, a table if asked for)."""
    from tierlog.service.cli.table import Column

    with interruptible(), open_reader(arguments) as target:
        topics = target.topics()
    look = OutputStyle.of(arguments)
    shown = [
        Column("topic", style="name"),
        *([Column("queue", is_number=True)] if arguments.queues else [Column("queues", is_number=True)]),
        *([Column("from offset", is_number=True), Column("to offset", is_number=True)] if arguments.queues else []),
        Column("messages", is_number=True),
        Column("archive", rank=3),
        Column("kept", rank=2, is_number=True),
        Column("hold", rank=1),
    ]
    out = rows_out(
        look, "topics", columns=_COLUMNS, shown=shown, cells=_queue_cells if arguments.queues else _topic_cells
    )
    if look.form in ("csv", "arrow") or (look.form == "table" and arguments.queues):
        topics = [
            {**{name: value for name, value in topic.items() if name not in ("queues", "offsets")}, **queue}
            for topic in topics
            for queue in topic["offsets"]
        ]
    out.write(topics)
    out.end()
    return DONE


def _topic_cells(topic: Json) -> Json:
    return {
        "topic": topic["topic"],
        "queues": topic["queues"],
        "messages": _count(topic["messages"]),
        **_rules(topic),
    }


def _queue_cells(row: Json) -> Json:
    return {
        "topic": row["topic"],
        "queue": row["queue_id"],
        "from offset": row["min_offset"],
        "to offset": row["max_offset"],
        "messages": _count(row["messages"]),
        **_rules(row),
    }


def _count(messages: int | None) -> str:
    """Describes a number of messages, which is not known while the archive does not tell what a restore left out."""
    return "?" if messages is None else f"{messages:,}"


def _rules(row: Json) -> Json:
    """Describes what becomes of a topic's messages; nothing where that is as usual."""
    kept_ms = row["cold_retention_ms"]
    return {
        "archive": None if row["archive"] else "no",
        "kept": None if kept_ms is None else f"{kept_ms / 86_400_000:g} d",
        "hold": "hold" if row["hold"] else None,
    }
