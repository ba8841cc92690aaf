"""``tierlog query``: find messages by key and by time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import ROW_FORMS, add_format, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import COLUMN_FORMS, Rows, messages_out, write_columns
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import Reader, open_reader
from tierlog.service.exit_codes import DONE, INCOMPLETE, NOTHING
from tierlog.service.wire.documents import Json, merged_coverage
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.progress_bar import spinner
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis

if TYPE_CHECKING:
    from tierlog.index.search.query import Query

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
        "a whole topic as a Parquet file",
        "tierlog query orders --all --format parquet --url http://127.0.0.1:8080 >orders.parquet",
    ),
    (
        "what would it cost to ask the bucket",
        "tierlog query orders --key 4711 --cold s3://bucket/prefix --dry-run",
    ),
)
_MOST = 10_000


def cost_line(coverage: Json) -> str:
    """Writes the cost and depth of an answer for a terminal."""
    files = coverage["index_files"]
    asked = f"{coverage['requests']:,} requests, {coverage['manifest_requests']:,} of them for the manifest"
    paid = f"{coverage['bytes']:,} bytes, {coverage['cost_usd']:.7f} USD, {coverage['round_trips']} round trips"
    parts = [f"{count:,} {what}" for what, count in files.items() if count or what == "considered"]
    return f"{asked}; {paid}; index files: {', '.join(parts)}"


def estimate_lines(estimate: Json, coverage: Json) -> str:
    """Writes what a dry run found for a terminal."""
    requests, objects, files = estimate["requests"], estimate["index_objects"], coverage["index_files"]
    usd = estimate["cost_usd"]
    lines = [
        f"requests  {requests['likely']:,} likely, {requests['least']:,} at least, {requests['most']:,} at most",
        f"likely    {estimate['bytes']:,} bytes, {estimate['round_trips']} round trips, {usd['likely']:.7f} USD",
        f"index     {files['considered']:,} files, {files['filtered']:,} ruled out, {objects['asked']:,} to ask",
        f"in memory {objects['filters_resident']:,} filters, {objects['directories_resident']:,} directories of those",
        f"by time   {estimate['segments']['by_time']:,} segments to search record by record",
        f"dry run   {coverage['requests']:,} requests",
    ]
    return "\n".join(lines + [f"note      {note}" for note in estimate["notes"]])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to find."""
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
    add_format(parser, forms=(*ROW_FORMS, "parquet"), times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 with messages or for a dry run, 1 without any, 4 if not everything asked for was searched."""
    if arguments.limit is not None and not 1 <= arguments.limit <= _MOST:
        raise InvalidRequestError(
            f"--limit {arguments.limit} is not from 1 to {_MOST}", hint="--all shows every message, page by page"
        )
    with interruptible(), open_reader(arguments) as target:
        return _show(target, arguments)


def _show(target: Reader, arguments: argparse.Namespace) -> int:
    look = OutputStyle.of(arguments)
    if arguments.all and not arguments.dry_run and not sys.stdout.isatty() and look.form in COLUMN_FORMS:
        return _download(target, arguments, look.form)
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
    out.end(**beside)
    return _ended(beside, arguments, look.form, found)


def _download(target: Reader, arguments: argparse.Namespace, form: str) -> int:
    """Shows all messages without an object for each."""
    followed = target.follow(_question(arguments, arguments.cursor), arguments.limit)
    found = write_columns(followed, form)
    return _ended(followed.metadata(), arguments, form, found)


def _ended(beside: Json, arguments: argparse.Namespace, form: str, found: int) -> int:
    """Says what stands beside the messages, and returns the exit code."""
    cursor, coverage = beside["next_cursor"], beside["coverage"]
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
    """Converts seconds to ms."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:  # nan neither
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of seconds from 0.001 to 86400")
    return round(seconds * 1000)


def _question(arguments: argparse.Namespace, cursor: str | None) -> Query:
    from tierlog.index.search.query import DEFAULT_LIMIT, Query

    limit = arguments.limit
    if limit is None:
        limit = _MOST if arguments.all else DEFAULT_LIMIT
    return Query(
        topic=arguments.topic,
        key=arguments.key,
        from_ms=0 if arguments.from_time is None else parse_time(arguments.from_time),
        to_ms=END_OF_TIME_MS if arguments.to_time is None else parse_time(arguments.to_time),
        limit=limit,
        axis=TimeAxis(arguments.time),
        order=Order(arguments.order),
        cursor=cursor,
        max_requests=arguments.max_requests,
        timeout_ms=arguments.timeout,
        dry_run=arguments.dry_run,
    )


def _incomplete(coverage: Json) -> str:
    reasons = [f"cut by {coverage['cut_by']}"] if coverage["cut_by"] else []
    reasons += [f"{store['store_id']}: {store['error']}" for store in coverage["stores"] if store["error"]]
    reasons += [f"{failure['object']}: {failure['error']}" for failure in coverage["failures"][:3]]
    return "the answer is incomplete: " + ("; ".join(reasons) or "not all of the range was searched")
