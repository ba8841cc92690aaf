"""``tierlog erase``: hide messages for ever and have their bytes overwritten; prints the receipt."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, TIMES, add_format, add_target, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import run_stoppable, stop_flag, stopping_at
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE, INCOMPLETE
from tierlog.tiering.base.progress_bar import bar

HELP = "erase messages everywhere by topic, key and store time; answer with a JSON receipt"
EXAMPLES = (
    (
        "how many messages are meant",
        "tierlog erase orders --key 4711 --dry-run --url http://127.0.0.1:8080",
    ),
    (
        "erase them, and wait until they are overwritten",
        "tierlog erase orders --key 4711 --wait --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to erase, and whether to wait."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key", metavar="K", help="only messages with this key")
    parser.add_argument("--from", dest="from_time", metavar="T", help=f"stored at or after T: {TIMES}")
    parser.add_argument("--to", dest="to_time", metavar="T", help="stored before T")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only count what would be erased")
    how.add_argument("--wait", action="store_true", help="overwrite what is archived before answering")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 4 if some places could not be counted; the erasure holds there all the same."""
    from tierlog.index.search.query import Query
    from tierlog.tiering.base.types import END_OF_TIME_MS

    from_ms, to_ms = asked_times(arguments, "from_time", "to_time")
    query = Query(
        arguments.topic, arguments.key, 0 if from_ms is None else from_ms, END_OF_TIME_MS if to_ms is None else to_ms
    )
    with stop_flag() as stop, open_writer(arguments) as target, bar("bytes", "rewriting") as move:
        progress = stopping_at(move, stop)
        receipt = run_stoppable(
            lambda: target.erase(query, dry_run=arguments.dry_run, wait=arguments.wait, progress=progress), stop
        )
    print_document(receipt, OutputStyle.of(arguments))
    if receipt["matched"] is None or not receipt["matched"]["complete"]:
        say("not every place could be counted")
        return INCOMPLETE
    return DONE
