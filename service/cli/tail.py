"""``tierlog tail``: read one queue in order."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_format, add_target
from service.cli.errors import DONE, NOTHING, say
from service.cli.output import Rows, messages_out
from service.cli.stopping import interruptible
from service.cli.targets import Reader, open_reader
from tiering.errors import InvalidRequestError
from tiering.times import parse_time
from tiering.types import PullStatus

HELP = "read a queue in order, from its first message unless told otherwise"
_PAGE = 1_000
_WAIT_MS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which queue, from where, how far."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--queue", type=int, metavar="Q", help="queue id, 0 unless told")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--offset", type=int, metavar="N", help="queue offset to begin with")
    begin.add_argument(
        "--from",
        dest="from_time",
        metavar="T",
        help="begin with the first message stored at or after T; ms or RFC 3339",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="stop after this many messages")
    parser.add_argument("--follow", action="store_true", help="wait for more until stopped (with --url)")
    add_format(parser)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 with messages, 1 without any; Ctrl-C is how --follow ends, so it is no failure."""
    from tiering.batch import validate_topic

    validate_topic(arguments.topic)
    for name in ("queue", "offset", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < (name == "limit"):
            raise InvalidRequestError(f"--{name} {value} is too small")
    if arguments.follow and arguments.url is None:
        raise InvalidRequestError("--follow needs --url", hint="a store that is open here gets no new messages")
    out = messages_out(arguments.format)
    try:
        with interruptible(), open_reader(arguments) as target:
            found, following = _read(target, arguments, out)
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
        out.end()
        return DONE
    out.end(next_offset=following)
    if not found:
        say("no messages there")
        return NOTHING
    return DONE


def _read(target: Reader, arguments: argparse.Namespace, out: Rows) -> tuple[int, int]:
    """Write messages until the limit, the end of the queue or a stop; (how many, the next offset)."""
    queue_id = arguments.queue or 0
    found, offset = 0, arguments.offset or 0
    if arguments.from_time is not None:
        offset = target.offset_since(arguments.topic, queue_id, parse_time(arguments.from_time))
    first = True
    while arguments.limit is None or found < arguments.limit:
        limit = _PAGE if arguments.limit is None else min(_PAGE, arguments.limit - found)
        page = target.pull(arguments.topic, queue_id, offset, limit, wait_ms=_WAIT_MS if arguments.follow else 0)
        out.write(page["messages"]) if page["messages"] else None
        found += len(page["messages"])
        status = PullStatus(page["status"])
        if status is PullStatus.OFFSET_TOO_LARGE:
            raise InvalidRequestError(
                f"offset {offset} is beyond the end of the queue, {page['max_offset']}",
                hint=f"the queue holds [{page['min_offset']}, {page['max_offset']})",
            )
        if status is PullStatus.OFFSET_TOO_SMALL and arguments.offset is not None and first:
            say(f"the queue begins at offset {page['min_offset']}, not {offset}")
        moved, offset, first = page["next_offset"] != offset, page["next_offset"], False
        if status is PullStatus.NO_NEW_MESSAGE and not arguments.follow:
            break
        if not moved and status is not PullStatus.NO_NEW_MESSAGE:
            break
    if arguments.queue is None:
        _tell_other_queues(target, arguments.topic)
    return found, offset


def _tell_other_queues(target: Reader, topic: str) -> None:
    for one in target.topics():
        if one["topic"] == topic and one["queues"] > 1:
            say(f"this was queue 0 of {one['queues']}; the others with --queue Q")
