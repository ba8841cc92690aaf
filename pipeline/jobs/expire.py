"""Lets messages of an archive expire in bulk: whole segments by their age, or those of topics.

``python -m tierlog.pipeline.jobs.expire --cold URL [--store ID] [--older-than DURATION | --before T] [--topic T]…``
"""

from __future__ import annotations

import argparse

from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs.job import (
    Job,
    JobContext,
    Summary,
    add_archive_arguments,
    grace_ms_of,
    most_at_once,
    on_executors,
)
from tierlog.pipeline.removal.expiry import BulkExpiry
from tierlog.pipeline.removal.tasks import ArchivePlace
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_duration, parse_time
from tierlog.tiering.lifecycle.expiry import ConfiguredRules, ExpiryRules, GivenRules


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_archive_arguments(parser)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--older-than", metavar="DURATION", help="what was stored longer ago, for example 90d")
    when.add_argument("--before", metavar="T", help="what was stored before T: ms, RFC 3339, or 90d (ago)")
    parser.add_argument(
        "--topic",
        metavar="T",
        action="append",
        default=[],
        help="only this topic; may be repeated (all: whole segments)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only count what would expire")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    rules = _rules(arguments, context.clock.now_ms())
    store = ArchiveSnapshot.take(arguments.cold, filter(None, [arguments.store])).only()
    place = ArchivePlace(store.url, store.store_id, grace_ms_of(arguments))
    expiry = BulkExpiry(
        place, on_executors(context.spark), context.clock, rules,
        most=most_at_once(context.spark), has_volume=not arguments.no_volume,
    )  # fmt: skip
    for name in arguments.topic:
        expiry.view.topic(name)
    report = expiry.plan() if arguments.dry_run else expiry.run(context.progress)
    return {**report.to_json(), "dry_run": arguments.dry_run}


def _rules(arguments: argparse.Namespace, now_ms: int) -> ExpiryRules:
    """Returns the rules of the arguments, else the retention of each topic."""
    if arguments.older_than is None and arguments.before is None:
        if arguments.topic:
            raise InvalidRequestError("--topic without a time", hint="give --older-than DURATION or --before T")
        return ConfiguredRules()
    if arguments.before is not None:
        before_ms = parse_time(arguments.before, now_ms)
        if before_ms > now_ms:
            raise InvalidRequestError(f"--before {arguments.before} is still to come")
        return GivenRules(before_ms=before_ms, topics=frozenset(arguments.topic))
    return GivenRules(parse_duration(arguments.older_than), topics=frozenset(arguments.topic))


JOB = Job("expire", "Let messages of an archive expire by age.", _add_arguments, _body, " bytes")

if __name__ == "__main__":
    raise SystemExit(JOB.main())
