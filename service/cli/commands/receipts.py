"""``tierlog receipts``: show the receipts of erasures."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document, rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json

HELP = "show the receipts of erasures, or of one: objects rewritten and deleted, and what may still hold bytes"
EXAMPLES = (
    (
        "all erasures",
        "tierlog receipts --url http://127.0.0.1:8080",
    ),
    (
        "one of them whole",
        "tierlog receipts 5a697c4b00f1e2d3 --root ./store --format json",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which receipt."""
    parser.add_argument("tombstone_id", nargs="?", metavar="ID", help="only this one")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints a receipt a line, or all of one; exit code 1 if there is none."""
    from tierlog.service.cli.table import Column

    look = OutputStyle.of(arguments)
    with interruptible(), open_writer(arguments) as target:
        if arguments.tombstone_id is not None:
            print_document(target.receipt(arguments.tombstone_id), look)
            return DONE
        found = target.receipts()
    shown = [
        Column("id"), Column("topic", style="name"), Column("state"), Column(f"asked ({look.zone})", style="time"),
        Column("matched", is_number=True), Column("rewritten", is_number=True, rank=1),
    ]  # fmt: skip
    out = rows_out(look, "receipts", columns=(), shown=shown, cells=lambda row: _cells(row, look))
    out.write(found)
    out.end()
    if not found:
        say("nothing was ever erased")
    return DONE if found else NOTHING


def _cells(row: Json, look: OutputStyle) -> Json:
    matched, asked_ms = row.get("matched"), row.get("asked_ms")
    return {
        "id": row["tombstone_id"],
        "topic": row.get("topic"),
        "state": row["state"],
        f"asked ({look.zone})": None if asked_ms is None else look.time(asked_ms),
        "matched": None if matched is None else matched["hot"] + matched["cold"],
        "rewritten": len(row.get("segments_rewritten", ())),
    }
