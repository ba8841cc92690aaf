"""``tierlog stats``: sizes and lags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.output import print_document, rows_out, shown_value
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_reader
from tierlog.service.exit_codes import DONE
from tierlog.service.wire.documents import Json

HELP = "show sizes in bytes, lags and times in ms"
EXAMPLES = (
    (
        "sizes and lags",
        "tierlog stats --url http://127.0.0.1:8080",
    ),
    (
        "one number",
        "tierlog stats --root ./store --read-only --format json | jq .unarchived_bytes",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to look and how to show it."""
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Prints one row; a line for each number in a table."""
    with interruptible(), open_reader(arguments) as target:
        stats = target.stats()
    look = OutputStyle.of(arguments)
    if look.form == "table":
        lost = ", ".join(f"log [{each['first']}, {each['next']})" for each in stats.pop("lost", None) or ())
        more = {"followed": _in_lines(stats.get("followed", {}), look), **({"lost": lost} if lost else {})}
        print_document({**stats, **more}, look)
    elif look.form == "json":
        print_document(stats, look)
    else:
        out = rows_out(look, "stats", columns=tuple(stats))
        out.write([stats])
        out.end()
    return DONE


def _in_lines(followed: Mapping[str, Json], look: OutputStyle) -> dict[str, str]:
    """Returns a line for each broker that is followed."""
    found = {}
    for name, broker in followed.items():
        parts = [
            broker["state"],
            f"{shown_value('bytes', broker['lag_bytes'], look)} bytes and {broker['lag_ms'] / 1000:,.0f} s behind",
        ]
        if broker["margin_ms"] is not None:
            parts.append(f"{broker['margin_ms'] / 3_600_000:,.1f} h until the broker may delete")
        gaps = broker["gap_bytes"]
        if gaps is not None:
            parts.append(f"{gaps:,} bytes lost in gaps" if gaps else "no gaps")
        if broker["error"]:
            parts.append(broker["error"])
        found[name] = ", ".join(parts)
    return found
