"""``tierlog query``: find messages by key and by time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from service.cli.arguments import add_format, add_target
from service.cli.cost import cost_line, estimate_lines
from service.cli.errors import DONE, INCOMPLETE, NOTHING, say
from service.cli.look import Look
from service.cli.output import Rows, messages_out
from service.cli.stopping import interruptible
from service.cli.targets import Reader, open_reader
from service.coverage import merged_coverage
from service.wire import Json
from tiering.errors import InvalidRequestError
from tiering.progress import spinner
from tiering.times import parse_time
from tiering.types import END_OF_TIME_MS, Order, TimeAxis

if TYPE_CHECKING:
    from index.query import Query

HELP = "find messages by key and by time, in both tiers"
EXAMPLES = (
    (
        "the newest messages with a key",
        "tierlog query orders --key 4711 --root ./store --read-only",
    ),
    (
        "all of one day, for another program",
        "tierlog query orders --from 2026-03-01 --to 2026-03-02 --all --url http://127.0.0.1:8080 | jq .body",
    ),
    (
        "what would it cost to ask the bucket",
        "tierlog query orders --key 4711 --cold s3://bucket/prefix --dry-run",
    ),
)
_MOST = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to find."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key", metavar="K", help="only messages with this key")
    parser.add_argument("--from", dest="from_time", metavar="T", help="first ms of the range; ms or RFC 3339")
    parser.add_argument("--to", dest="to_time", metavar="T", help="end of the range, exclusive")
    parser.add_argument("--limit", type=int, metavar="N", help="messages of a page, 32 unless told, at most 10000")
    parser.add_argument("--time", choices=[axis.value for axis in TimeAxis], default="store", help="which time")
    parser.add_argument("--order", choices=[order.value for order in Order], default="newest")
    parser.add_argument("--max-requests", type=int, metavar="N", help="ask the object store at most this often")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="answer after S seconds with what is known then")
    parser.add_argument("--dry-run", action="store_true", help="say what it may cost, and read only the manifest")
    parser.add_argument("--coverage", action="store_true", help="show what was searched and what it cost")
    parser.add_argument("--all", action="store_true", help="follow the cursor to the end")
    parser.add_argument("--cursor", metavar="C", help="go on behind an earlier page")
    parser.add_argument("-v", "--full", action="store_true", help="in a table every field, and bodies whole")
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 with messages and for a dry run, 1 without any, 4 if not everything asked for was searched."""
    if arguments.limit is not None and not 1 <= arguments.limit <= _MOST:
        raise InvalidRequestError(
            f"--limit {arguments.limit} is not from 1 to {_MOST}", hint="--all shows every message, page by page"
        )
    with interruptible(), open_reader(arguments) as target:
        return _show(target, arguments)


def _show(target: Reader, arguments: argparse.Namespace) -> int:
    look = Look.of(arguments)
    out = messages_out(look, arguments.key, by_born=arguments.time == TimeAxis.BORN.value)
    cursor: str | None = arguments.cursor
    coverage: Json = {}
    found = 0
    while True:
        with spinner(f"searching {arguments.topic}"):
            page = target.query(_question(arguments, cursor))
        if arguments.dry_run:
            return _show_estimate(page, out, look.form)
        found += len(page["messages"])
        out.write(page["messages"])
        coverage = merged_coverage(coverage, page["coverage"])
        cursor = page["next_cursor"]
        if not arguments.all or cursor is None:
            break
    beside = {"next_cursor": cursor, "coverage": coverage}
    form = look.form
    out.end(**beside)
    if arguments.coverage and form != "json":
        # where rows have one shape, the coverage would be a row of another: it goes beside them
        stream = sys.stdout if form in ("ndjson", "table") else sys.stderr
        if form == "table":
            print(cost_line(coverage))
        print(json.dumps(beside, indent=2 if form == "table" else None), file=stream, flush=True)
    if not coverage["complete"]:
        say(_incomplete(coverage))
        return INCOMPLETE
    if not found:
        say("nothing found")
        return NOTHING
    if cursor is not None:
        say(f"cut by the limit; more with --all, or with --cursor {cursor}")
    return DONE


def _show_estimate(page: Json, out: Rows, form: str) -> int:
    beside = {name: value for name, value in page.items() if name != "messages"}
    out.end(**beside)
    if form == "table":
        print(estimate_lines(page["estimate"], page["coverage"]))
    elif form != "json":
        print(json.dumps(beside), file=sys.stdout if form == "ndjson" else sys.stderr, flush=True)
    return DONE


def _seconds(text: str) -> int:
    """Seconds as ms."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:  # nan neither
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of seconds from 0.001 to 86400")
    return round(seconds * 1000)


def _question(arguments: argparse.Namespace, cursor: str | None) -> Query:
    from index.query import DEFAULT_LIMIT, Query

    limit = arguments.limit
    if limit is None:
        limit = _MOST if arguments.all else DEFAULT_LIMIT
    return Query(
        arguments.topic,
        arguments.key,
        0 if arguments.from_time is None else parse_time(arguments.from_time),
        END_OF_TIME_MS if arguments.to_time is None else parse_time(arguments.to_time),
        limit,
        TimeAxis(arguments.time),
        Order(arguments.order),
        cursor,
        arguments.max_requests,
        arguments.timeout,
        arguments.dry_run,
    )


def _incomplete(coverage: Json) -> str:
    reasons = [f"cut by {coverage['cut_by']}"] if coverage["cut_by"] else []
    reasons += [f"{store['store_id']}: {store['error']}" for store in coverage["stores"] if store["error"]]
    reasons += [f"{failure['object']}: {failure['error']}" for failure in coverage["failures"][:3]]
    return "the answer is incomplete: " + ("; ".join(reasons) or "not all of the range was searched")
