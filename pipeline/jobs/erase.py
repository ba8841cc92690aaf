"""Erases messages of an archive in bulk: hidden by one commit, overwritten by executors; prints the receipt.

``python -m tierlog.pipeline.jobs.erase --cold URL [--store ID] TOPIC [--key K]… [--keys-file FILE] [--from T] [--to
T] [--all]``
"""

from __future__ import annotations

import argparse
from pathlib import Path

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
from tierlog.pipeline.removal.erasure import BulkErasure, ErasureRequest
from tierlog.pipeline.removal.tasks import ArchivePlace
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.lifecycle.tombstones import hides_whole_topic


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_archive_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", nargs="?")
    parser.add_argument("--key", metavar="K", action="append", default=[], help="only messages with this key, or ...")
    parser.add_argument("--keys-file", metavar="FILE", type=Path, help="... one of these, one a line")
    parser.add_argument("--from", dest="from_time", metavar="T", help="stored at or after T; ms or RFC 3339")
    parser.add_argument("--to", dest="to_time", metavar="T", help="stored before T")
    parser.add_argument(
        "--all", dest="whole_topic", action="store_true", help="every message; needed without keys and times"
    )
    parser.add_argument("--scan", action="store_true", help="look at every record instead of asking the key index")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only count what would be erased")
    how.add_argument("--resume", metavar="TOMBSTONE", help="go on with an erasure that was begun")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    request = _request(arguments)
    store = ArchiveSnapshot.take(arguments.cold, filter(None, [arguments.store])).only()
    place = ArchivePlace(store.url, store.store_id, grace_ms_of(arguments))
    erasure = BulkErasure(
        place, on_executors(context.spark), context.clock, context.randomness,
        most=most_at_once(context.spark), has_volume=not arguments.no_volume,
    )  # fmt: skip
    if arguments.dry_run:
        assert request is not None
        return erasure.plan(request)
    if request is None:
        tombstone_id, tombstone = arguments.resume, erasure.open_erasure(arguments.resume)
    else:
        tombstone = erasure.begin(request)
        tombstone_id = tombstone.tombstone_id
    if tombstone is not None:
        erasure.carry_out(tombstone, request, context.progress)
    unreadable = erasure.unreadable
    return {**erasure.receipt(tombstone_id), "unreadable": list(unreadable), "findings": len(unreadable)}


def _request(arguments: argparse.Namespace) -> ErasureRequest | None:
    """Returns the request of the arguments; None to go on with an erasure that was begun."""
    if arguments.resume is not None:
        which = (arguments.key, arguments.keys_file, arguments.from_time, arguments.to_time, arguments.whole_topic)
        if arguments.topic or any(which):
            raise InvalidRequestError("--resume stands alone", hint="the tombstone says what is erased")
        return None
    if arguments.topic is None:
        raise InvalidRequestError("no topic", hint="give TOPIC, or --resume TOMBSTONE")
    keys = [*arguments.key, *_keys_of(arguments.keys_file)]
    if (arguments.keys_file is not None or arguments.key) and not keys:
        raise InvalidRequestError("no keys", path=str(arguments.keys_file))
    request = ErasureRequest(
        arguments.topic,
        tuple(dict.fromkeys(keys)),
        None if arguments.from_time is None else parse_time(arguments.from_time),
        None if arguments.to_time is None else parse_time(arguments.to_time),
        arguments.scan,
    )
    is_whole = hides_whole_topic(request.keys, request.from_ms, request.to_ms)
    if arguments.whole_topic and not is_whole:
        raise InvalidRequestError("--all is the whole topic, and a key or a time a part of it", hint="give one of them")
    if is_whole and not (arguments.whole_topic or arguments.dry_run):
        raise InvalidRequestError(
            f"this erases all that is archived of topic {arguments.topic!r}",
            hint="say which with --key, --from or --to, or --all if it is meant; --dry-run only counts",
        )
    return request


def _keys_of(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read the keys ({error})", path=str(path)) from error
    return [line for line in text.split("\n") if line]  # splitlines would cut a key at a U+2028 too


JOB = Job("erase", "Erase messages of an archive by topic, keys and store time.", _add_arguments, _body, " bytes")

if __name__ == "__main__":
    raise SystemExit(JOB.main())
