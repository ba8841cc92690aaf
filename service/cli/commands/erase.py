"""``tierlog erase``: hide messages for ever and have their bytes overwritten; prints the receipt."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, TIMES, add_format, add_target, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.removal_guard import add_words, is_agreed, refuse_whole_topic
from tierlog.service.cli.signals import interruptible, run_stoppable, stop_flag, stopping_at
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE, INCOMPLETE, NOTHING
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.progress_bar import bar

if TYPE_CHECKING:
    from tierlog.index.search.query import Query

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
    (
        "erase everything that the topic holds now, and keep the topic",
        "tierlog erase orders --all --url http://127.0.0.1:8080",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to erase, and whether to wait."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key", metavar="K", help="only messages with this key")
    parser.add_argument("--from", dest="from_time", metavar="T", help=f"stored at or after T: {TIMES}")
    parser.add_argument("--to", dest="to_time", metavar="T", help="stored before T")
    add_words(parser, "every message of the topic; needed where no key or time says which")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only count what would be erased")
    how.add_argument("--wait", action="store_true", help="overwrite what is archived before answering")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 4 if some places could not be counted, where the erasure holds all the same; 1 after a no."""
    query = _query(arguments)
    with interruptible(), open_writer(arguments) as target:
        if not arguments.dry_run:
            if not (arguments.whole_topic or _is_filtered(query)):
                hint = "say which with --key, --from or --to, or --all if it is meant; --dry-run only counts"
                refuse_whole_topic(target, query.topic, would="erases", hint=hint)
            if not is_agreed(target, query, arguments, will=_will(arguments)):
                return NOTHING
        with stop_flag() as stop, bar("bytes", "rewriting") as move:
            progress = stopping_at(move, stop)
            receipt = run_stoppable(
                lambda: target.erase(query, dry_run=arguments.dry_run, wait=arguments.wait, progress=progress), stop
            )
    print_document(receipt, OutputStyle.of(arguments))
    if receipt["matched"] is None or not receipt["matched"]["complete"]:
        say("not every place could be counted")
        return INCOMPLETE
    return DONE


def _query(arguments: argparse.Namespace) -> Query:
    from tierlog.index.search.query import Query
    from tierlog.tiering.base.types import END_OF_TIME_MS

    from_ms, to_ms = asked_times(arguments, "from_time", "to_time")
    query = Query(
        arguments.topic, arguments.key, 0 if from_ms is None else from_ms, END_OF_TIME_MS if to_ms is None else to_ms
    )
    if arguments.whole_topic and _is_filtered(query):
        raise InvalidRequestError("--all is the whole topic, and a key or a time a part of it", hint="give one of them")
    return query


def _is_filtered(query: Query) -> bool:
    from tierlog.tiering.lifecycle.tombstones import hides_whole_topic

    return not hides_whole_topic([query.key], query.from_ms, query.to_ms)


def _will(arguments: argparse.Namespace) -> str:
    """Says which messages are meant, as they were typed."""
    what = [f"this erases from topic {arguments.topic!r}"]
    what += [f"with key {arguments.key!r}"] if arguments.key is not None else []
    what += [f"from {arguments.from_time}"] if arguments.from_time is not None else []
    what += [f"to {arguments.to_time}"] if arguments.to_time is not None else []
    return " ".join(what)
