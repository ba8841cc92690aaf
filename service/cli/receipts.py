"""``tierlog receipts``: what became of erasures."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_document
from service.cli.errors import DONE, NOTHING, say
from service.cli.look import Look
from service.cli.output import rows_out
from service.cli.stopping import interruptible
from service.cli.targets import open_writer
from service.wire import Json

HELP = "show the receipts of erasures, or of one: objects rewritten and deleted, and what may still hold bytes"
EXAMPLES = (
    (
        "all erasures",
        "tierlog receipts --url http://127.0.0.1:8080",
    ),
    (
        "one of them whole",
        "tierlog receipts 01JD2Q8Z --root ./store --format json",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which."""
    parser.add_argument("tombstone_id", nargs="?", metavar="ID", help="only this one")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """A receipt a line, or all of one; exit code 1 if there is none."""
    from service.cli.table import Column

    look = Look.of(arguments)
    with interruptible(), open_writer(arguments) as target:
        if arguments.tombstone_id is not None:
            print_document(target.receipt(arguments.tombstone_id), look)
            return DONE
        found = target.receipts()
    shown = [
        Column("id"), Column("topic", style="name"), Column("state"), Column(f"asked ({look.zone})", style="time"),
        Column("matched", is_number=True), Column("rewritten", is_number=True, rank=1),
    ]  # fmt: skip
    out = rows_out(look, "receipts", (), shown, lambda row: _cells(row, look))
    out.write(found)
    out.end()
    if not found:
        say("nothing was ever erased")
    return DONE if found else NOTHING


def _cells(row: Json, look: Look) -> Json:
    matched, asked_ms = row.get("matched"), row.get("asked_ms")
    return {
        "id": row["tombstone_id"],
        "topic": row.get("topic"),
        "state": row["state"],
        f"asked ({look.zone})": None if asked_ms is None else look.time(asked_ms),
        "matched": None if matched is None else matched["hot"] + matched["cold"],
        "rewritten": len(row.get("segments_rewritten", ())),
    }
