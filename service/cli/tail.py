"""``tierlog tail``: read the queues of a topic in order."""

from __future__ import annotations

import argparse
from itertools import islice

from service.cli.arguments import add_format, add_target
from service.cli.errors import DONE, NOTHING, say
from service.cli.look import Look
from service.cli.output import Rows, messages_out
from service.cli.queues import MOST_FOLLOWED, Queues
from service.cli.stopping import interruptible
from service.cli.targets import Reader, open_reader
from tiering.errors import InvalidRequestError, TopicNotFoundError
from tiering.times import parse_time

HELP = "read a topic, or one of its queues, in order, from its first message unless told otherwise"
EXAMPLES = (
    ("the last hour of all queues, then what comes in", "tierlog tail orders --from 2026-03-01T11:00:00Z --follow --url http://127.0.0.1:8080"),
    ("ten messages of one queue", "tierlog tail orders --queue 3 --offset 1200 --limit 10 --root ./store --read-only"),
)  # fmt: skip
_PAGE = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which queue, from where, how far."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--queue", type=int, metavar="Q", help="queue id; all queues, by store time, unless told")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--offset", type=int, metavar="N", help="queue offset to begin with")
    begin.add_argument(
        "--from", dest="from_time", metavar="T",
        help="begin with the first message stored at or after T; ms or RFC 3339",
    )  # fmt: skip
    parser.add_argument("--tag", metavar="EXPR", help="only messages with this tag, or one of several: A || B")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after this many messages")
    parser.add_argument("--follow", action="store_true", help="wait for more until stopped (with --url)")
    parser.add_argument("-v", "--full", action="store_true", help="in a table every field, and bodies whole")
    add_format(parser, times=True)
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
    out = messages_out(Look.of(arguments))
    try:
        with interruptible(), open_reader(arguments) as target:
            queues = Queues(target, arguments.topic, _begins(target, arguments), arguments.tag)
            found = _show(queues, arguments, out)
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
        out.end()
        return DONE
    if len(queues.offsets) == 1:
        out.end(next_offset=next(iter(queues.offsets.values())))
    else:
        out.end(next_offsets={str(queue_id): offset for queue_id, offset in queues.offsets.items()})
    if not found:
        say("no messages there")
        return NOTHING
    return DONE


def _begins(target: Reader, arguments: argparse.Namespace) -> dict[int, int]:
    """Where each queue that is read begins."""
    topic = arguments.topic
    queue_ids = [arguments.queue] if arguments.queue is not None else _queue_ids(target, topic)
    if arguments.offset is not None and len(queue_ids) > 1:
        raise InvalidRequestError(
            f"--offset is of one queue, and topic {topic!r} has {len(queue_ids)}", hint="say which with --queue Q"
        )
    if arguments.follow and len(queue_ids) > MOST_FOLLOWED:
        raise InvalidRequestError(
            f"topic {topic!r} has {len(queue_ids)} queues, of which {MOST_FOLLOWED} can be followed at once",
            hint="say which with --queue Q",
        )
    if arguments.from_time is not None:
        time_ms = parse_time(arguments.from_time)
        return {queue_id: target.offset_since(topic, queue_id, time_ms) for queue_id in queue_ids}
    return dict.fromkeys(queue_ids, arguments.offset or 0)


def _queue_ids(target: Reader, topic: str) -> list[int]:
    for one in target.topics():
        if one["topic"] == topic:
            return [queue["queue_id"] for queue in one["offsets"]]
    raise TopicNotFoundError(f"no such topic {topic!r}")


def _show(queues: Queues, arguments: argparse.Namespace, out: Rows) -> int:
    """Write messages until the limit, the end or a stop; how many there were."""

    def on_gap(asked: int, least: int) -> None:
        if arguments.offset is not None:
            say(f"the queue begins at offset {least}, not {asked}")

    found, stored = 0, queues.stored(arguments.limit, on_gap)
    while page := list(islice(stored, _PAGE)):
        out.write(page)
        found += len(page)
    if not arguments.follow or found == arguments.limit:
        return found
    for page in queues.followed():
        shown = page if arguments.limit is None else page[: arguments.limit - found]
        out.write(shown)
        found += len(shown)
        if found == arguments.limit:
            break
    return found
