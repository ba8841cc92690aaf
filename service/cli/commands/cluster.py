"""``tierlog cluster``: the stores of a cluster, and which of them take new topics."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_format
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import add_cluster_target, open_cluster
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json

HELP = "show the stores of a cluster and where each answers; close one to new topics, or take it out"
EXAMPLES = (
    (
        "who is there",
        "tierlog cluster --url http://127.0.0.1:8080",
    ),
    (
        "no new topics for a store, by the bucket alone",
        "tierlog cluster --close store-1 --cold s3://bucket/prefix",
    ),
)
_COLUMNS = ("store_id", "url", "epoch", "volume_id", "closed", "is_own")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to change, if anything, and where."""
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--close", metavar="STORE", help="hash no topic to this store any more")
    change.add_argument("--open", metavar="STORE", help="hash topics to it again")
    change.add_argument(
        "--remove", metavar="STORE", help="take it out, with topics routed to it; its node must be stopped for good"
    )
    add_format(parser)
    add_cluster_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints a store a row, after the change if there is one; exit code 1 where there is no store."""
    from tierlog.service.cli.table import Column

    look = OutputStyle.of(arguments)
    with interruptible(), open_cluster(arguments) as target:
        if arguments.close is not None:
            found = target.close_store(arguments.close, closed=True)
        elif arguments.open is not None:
            found = target.close_store(arguments.open, closed=False)
        elif arguments.remove is not None:
            found = target.remove_store(arguments.remove)
        else:
            found = target.cluster()
    shown = [
        Column("store", style="name"), Column("url"), Column("epoch", is_number=True, rank=1),
        Column("volume", rank=2), Column("topics"), Column("routed", is_number=True, rank=3),
    ]  # fmt: skip
    routed = [one["store_id"] for one in found["topics"]]
    out = rows_out(
        look, "stores", columns=_COLUMNS, shown=shown, cells=lambda row: _cells(row, routed.count(row["store_id"]))
    )
    out.write(found["stores"])
    out.end(**{name: found[name] for name in ("store_id", "version", "age_ms", "error", "topics")})
    if found["error"] is not None:
        say(found["error"])
    if not found["stores"]:
        say("there is no cluster below this prefix")
    return DONE if found["stores"] else NOTHING


def _cells(row: Json, routed: int) -> Json:
    return {
        "store": row["store_id"],
        "url": row["url"],
        "epoch": row["epoch"],
        "volume": row["volume_id"],
        "topics": "closed" if row["closed"] else "open",
        "routed": routed or None,
    }
