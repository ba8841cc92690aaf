"""``tierlog files``: every segment and index file."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.output import rows_out
from tierlog.service.cli.output_style import OutputStyle, readable_bytes
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_reader
from tierlog.service.exit_codes import DONE
from tierlog.service.wire.documents import Json

HELP = "list segments and index files with tier, state, time range and bytes"
EXAMPLES = (
    (
        "what lies in the archive",
        "tierlog files --cold s3://bucket/prefix",
    ),
    (
        "bytes of the hot tier",
        "tierlog files --root ./store --read-only | jq -s 'map(select(.tier == \"hot\").bytes) | add'",
    ),
)
_COLUMNS = (
    "kind", "name", "tier", "state", "first_offset", "next_offset", "bytes",
    "min_store_ms", "max_store_ms", "records",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to look and how to show it."""
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each file in each tier."""
    from tierlog.service.cli.table import Column

    with interruptible(), open_reader(arguments) as target:
        files = target.files()
    look = OutputStyle.of(arguments)
    shown = [
        Column("kind"), Column("name"), Column("tier", by_value=True), Column("state"), Column("bytes", is_number=True),
        Column(f"from ({look.zone})", style="time"), Column(f"to ({look.zone})", style="time", rank=1),
        Column("records", is_number=True, rank=2),
        Column("from offset", is_number=True, rank=4), Column("to offset", is_number=True, rank=3),
    ]  # fmt: skip
    out = rows_out(look, "files", columns=_COLUMNS, shown=shown, cells=lambda row: _cells(row, look))
    out.write(files)
    out.end()
    return DONE


def _cells(row: Json, look: OutputStyle) -> Json:
    least, most = (None if row[name] is None else look.time(row[name]) for name in ("min_store_ms", "max_store_ms"))
    return {
        "kind": row["kind"],
        "name": row["name"],
        "tier": row["tier"],
        "state": row["state"],
        "bytes": readable_bytes(row["bytes"]),
        f"from ({look.zone})": least,
        f"to ({look.zone})": most,
        "records": None if row["records"] is None else f"{row['records']:,}",
        "from offset": row["first_offset"],
        "to offset": row["next_offset"],
    }
