"""``tierlog query``: find messages by key and by time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import ROW_FORMS, TIMES, add_format, add_target, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import COLUMN_FORMS, Rows, messages_out, rows_out, write_columns
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import Reader, open_reader
from tierlog.service.exit_codes import DONE, INCOMPLETE, NOTHING
from tierlog.service.wire.documents import Json, merged_coverage
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.progress_bar import spinner
from tierlog.tiering.base.times import parse_duration
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
        "how many there were each hour of a day",
        "tierlog query orders --counts --interval 3600 --from 2026-03-01 --to 2026-03-02 --url http://127.0.0.1:8080",
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
_BAR_CELLS = 40


def coverage_line(coverage: Json) -> str:
    """Writes for a terminal whether an answer is complete, what it cost and what was examined for it."""
    files, messages = coverage["index_files"], coverage.get("messages", {})
    state = "complete" if coverage["complete"] else f"incomplete: {_why_incomplete(coverage)}"
    asked = f"{coverage['requests']:,} requests, {coverage['manifest_requests']:,} of them for the manifest"
    paid = f"{coverage['bytes']:,} bytes, {coverage['cost_usd']:.7f} USD, {coverage['round_trips']} round trips"
    parts = [f"{count:,} {what}" for what, count in files.items() if count or what == "considered"]
    examined = f"; {messages['read']:,} messages examined" if messages.get("read") != messages.get("matched") else ""
    return f"{state}; {asked}; {paid}; index files: {', '.join(parts)}{examined}"


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
    parser.add_argument("--tag", metavar="EXPR", help="only messages with this tag, or one of several: 'A || B'")
    parser.add_argument(
        "--contains", action="append", metavar="TEXT", help="only bodies that contain this text; repeatable"
    )
    parser.add_argument(
        "--where", action="append", metavar="NAME=VALUE",
        help="only messages whose property, or field of a JSON body (order.id=4711), has this value; repeatable",
    )  # fmt: skip
    parser.add_argument("--from", dest="from_time", metavar="T", help=f"begin of the range: {TIMES}")
    parser.add_argument("--to", dest="to_time", metavar="T", help="end of the range, exclusive")
    parser.add_argument("--limit", type=int, metavar="N", help="messages of a page, 32 unless told, at most 10000")
    parser.add_argument("--time", choices=[axis.value for axis in TimeAxis], default="store", help="which time")
    parser.add_argument("--order", choices=[order.value for order in Order], default="newest")
    parser.add_argument("--max-requests", type=int, metavar="N", help="ask the object store at most this often")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="answer after S seconds, or 2m, with what is known"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what it may cost, and read only the manifest")
    parser.add_argument(
        "--coverage", action="store_true", help="show what was searched and what it cost: in a table one line"
    )
    parser.add_argument("--counts", action="store_true", help="count messages per interval of time, and show none")
    parser.add_argument("--buckets", type=int, metavar="N", help="with --counts: so many intervals, 60 unless told")
    parser.add_argument("--interval", type=_seconds, metavar="S", help="with --counts: intervals of S seconds instead")
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
    refused = [f"--{name}" for name in _NOT_COUNTED if getattr(arguments, name)] if arguments.counts else []
    if refused:
        raise InvalidRequestError(f"{refused[0]} does not go with --counts", hint="counts are by topic and time")
    if not arguments.counts and (arguments.buckets or arguments.interval):
        raise InvalidRequestError("--buckets and --interval go with --counts")
    with interruptible(), open_reader(arguments) as target:
        return show_counts(target, arguments) if arguments.counts else _show(target, arguments)


_NOT_COUNTED = ("key", "tag", "contains", "where", "limit", "cursor", "all", "dry_run")


def show_counts(target: Reader, arguments: argparse.Namespace) -> int:
    """Shows how many messages each interval has: bars in a table."""
    from tierlog.index.search.counts import DEFAULT_BUCKETS, CountQuery
    from tierlog.service.cli.table import Column

    from_ms, to_ms = asked_times(arguments, "from_time", "to_time")
    with spinner(f"counting {arguments.topic}"):
        found = target.counts(
            CountQuery(
                arguments.topic,
                from_ms,
                to_ms,
                TimeAxis(arguments.time),
                DEFAULT_BUCKETS if arguments.buckets is None else arguments.buckets,
                interval_ms=arguments.interval,
                max_requests=arguments.max_requests,
                timeout_ms=arguments.timeout,
            )
        )
    look = OutputStyle.of(arguments)
    most = max((each["messages"] for each in found["counts"]), default=0)
    name = f"{'born' if arguments.time == TimeAxis.BORN.value else 'stored'} from ({look.zone})"

    def cells(row: Json) -> Json:
        bar = "█" * -(-_BAR_CELLS * row["messages"] // max(1, most))
        return {name: look.time(row["from_ms"]), "messages": f"{row['messages']:,}", "": bar}

    shown = (Column(name, style="time"), Column("messages", is_number=True), Column("", style="key"))
    out = rows_out(
        look, "counts", columns=("from_ms", "messages"), shown=shown, cells=cells,
        types={"from_ms": "int", "messages": "int"},
    )  # fmt: skip
    out.write(found["counts"])
    beside = {name: value for name, value in found.items() if name != "counts"}
    out.end(**beside)
    coverage = found["coverage"]
    if arguments.coverage and look.form != "json":
        stream = sys.stdout if look.form in ("ndjson", "table") else sys.stderr
        print(coverage_line(coverage) if look.form == "table" else json.dumps(beside), file=stream, flush=True)
    if look.form == "table" and found["counts"]:
        about = "" if found["exact"] else f"; {found['estimated']:,} of them spread over the times that they may have"
        say(f"{found['total']:,} messages{about}")
    if not coverage["complete"]:
        say(f"the answer is incomplete: {_why_incomplete(coverage)}")
        return INCOMPLETE
    if not found["total"]:
        say("nothing found")
        return NOTHING
    return DONE


def _show(target: Reader, arguments: argparse.Namespace) -> int:
    look = OutputStyle.of(arguments)
    # a time-out ends a search by filters as a whole, and each page of a download
    ends_early = arguments.timeout is not None and (arguments.tag or arguments.contains or arguments.where)
    is_download = arguments.all and not arguments.dry_run and not ends_early
    if is_download and not sys.stdout.isatty() and look.form in COLUMN_FORMS:
        return _download(target, arguments, look.form)
    out = messages_out(look, arguments.key, by_born=arguments.time == TimeAxis.BORN.value)
    cursor: str | None = arguments.cursor
    coverage: Json = {}
    found = 0
    within = _range(arguments)
    while True:
        with spinner(f"searching {arguments.topic}"):
            page = target.query(_question(arguments, cursor, within))
        if arguments.dry_run:
            return _show_estimate(page, out, look.form)
        found += len(page["messages"])
        out.write(page["messages"])
        coverage = merged_coverage(coverage, page["coverage"])
        cursor = page["next_cursor"]
        if not arguments.all or cursor is None or _is_spent(page["coverage"], arguments):
            break
    beside = {"next_cursor": cursor, "coverage": coverage}
    hint = page.get("hint")
    if hint is not None:
        beside["hint"] = hint
    out.end(**beside)
    return _ended(beside, arguments, look.form, found)


def _download(target: Reader, arguments: argparse.Namespace, form: str) -> int:
    """Shows all messages without an object for each."""
    followed = target.follow(_question(arguments, arguments.cursor, _range(arguments)), arguments.limit)
    found = write_columns(followed, form)
    return _ended(followed.metadata(), arguments, form, found)


def _ended(beside: Json, arguments: argparse.Namespace, form: str, found: int) -> int:
    """Says what stands beside the messages, and returns the exit code."""
    cursor, coverage, hint = beside["next_cursor"], beside["coverage"], beside.get("hint")
    if arguments.coverage and form != "json":
        # where rows have one shape, the coverage would be a row of another: it goes beside them
        stream = sys.stdout if form in ("ndjson", "table") else sys.stderr
        print(coverage_line(coverage) if form == "table" else json.dumps(beside), file=stream, flush=True)
    if not coverage["complete"]:
        reason = _why_incomplete(coverage)
        goes_on = f"; go on with --cursor {cursor}" if coverage.get("examined_to_ms") is not None else ""
        say(f"the answer is incomplete: {reason}{goes_on}")
        return INCOMPLETE
    if not found:
        say("nothing found" if hint is None else f"nothing found; {hint['detail']}: add --time {hint['time']}")
        return NOTHING
    if cursor is not None:
        say(f"cut by the limit; more with --all, or with --cursor {cursor}")
    return DONE


def _is_spent(coverage: Json, arguments: argparse.Namespace) -> bool:
    """Whether the budget, or the time that was asked for, ended the page: the cursor is for who wants to spend more."""
    cut = coverage["cut_by"] if coverage.get("examined_to_ms") is not None else None
    return cut == "budget" or (cut == "timeout" and arguments.timeout is not None)


def _show_estimate(page: Json, out: Rows, form: str) -> int:
    beside = {name: value for name, value in page.items() if name != "messages"}
    out.end(**beside)
    if form == "table":
        print(estimate_lines(page["estimate"], page["coverage"]))
    elif form != "json":
        print(json.dumps(beside), file=sys.stdout if form == "ndjson" else sys.stderr, flush=True)
    return DONE


def _seconds(text: str) -> int:
    """Converts seconds, or a duration with a unit, to ms."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_duration(text) / 1000
        except InvalidRequestError:
            seconds = 0.0
    if not 0.001 <= seconds <= 86_400:  # nan neither
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no number of seconds from 0.001 to 86400, nor 500ms, 2m or 1h"
        )
    return round(seconds * 1000)


def _range(arguments: argparse.Namespace) -> tuple[int, int]:
    """Returns the range that is asked about, once for all pages."""
    from_ms, to_ms = asked_times(arguments, "from_time", "to_time")
    return 0 if from_ms is None else from_ms, END_OF_TIME_MS if to_ms is None else to_ms


def _question(arguments: argparse.Namespace, cursor: str | None, within: tuple[int, int]) -> Query:
    from tierlog.index.search.filters import parse_where
    from tierlog.index.search.query import DEFAULT_LIMIT, Query

    limit = arguments.limit
    if limit is None:
        limit = _MOST if arguments.all else DEFAULT_LIMIT
    return Query(
        topic=arguments.topic,
        key=arguments.key,
        from_ms=within[0],
        to_ms=within[1],
        limit=limit,
        axis=TimeAxis(arguments.time),
        order=Order(arguments.order),
        cursor=cursor,
        max_requests=arguments.max_requests,
        timeout_ms=arguments.timeout,
        dry_run=arguments.dry_run,
        tag=arguments.tag,
        contains=tuple(arguments.contains or ()),
        where=tuple(map(parse_where, arguments.where or ())),
    )


def _why_incomplete(coverage: Json) -> str:
    reasons = [f"cut by {coverage['cut_by']}"] if coverage["cut_by"] else []
    reasons += [f"{store['store_id']}: {store['error']}" for store in coverage["stores"] if store["error"]]
    reasons += [f"{failure['object']}: {failure['error']}" for failure in coverage["failures"][:3]]
    return "; ".join(reasons) or "not all of the range was searched"
