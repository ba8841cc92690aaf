"""``tierlog files``: every segment and index file."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_format, add_target
from service.cli.errors import DONE
from service.cli.output import rows_out
from service.cli.stopping import interruptible
from service.cli.targets import open_reader
from service.wire import Json
from tiering.times import format_time

HELP = "list segments and index files with tier, state, time range and bytes"
_COLUMNS = (
    "kind", "name", "tier", "state", "first_offset", "next_offset", "bytes",
    "min_store_ms", "max_store_ms", "records",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look and how to show it."""
    add_format(parser)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """A row for each file in each tier."""
    with interruptible(), open_reader(arguments) as target:
        files = target.files()
    out = rows_out(arguments.format, "files", _COLUMNS, _cells)
    out.write(files)
    out.end()
    return DONE


def _cells(row: Json) -> Json:
    times = {name: None if row[name] is None else format_time(row[name]) for name in ("min_store_ms", "max_store_ms")}
    return {
        "kind": row["kind"],
        "name": row["name"],
        "tier": row["tier"],
        "state": row["state"],
        "from offset": row["first_offset"],
        "to offset": row["next_offset"],
        "bytes": row["bytes"],
        "from (UTC)": times["min_store_ms"],
        "to (UTC)": times["max_store_ms"],
        "records": row["records"],
    }
