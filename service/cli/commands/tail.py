"""``tierlog tail``: read the queues of a topic in order."""

from __future__ import annotations

import argparse
import heapq
import queue as handover
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import add_format, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import Rows, messages_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import Reader, open_reader
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import PullStatus

if TYPE_CHECKING:
    from tierlog.service.cli.targets import Reader

HELP = "read a topic, or one of its queues, in order, from its first message unless told otherwise"
EXAMPLES = (
    ("the last hour of all queues, then what comes in", "tierlog tail orders --from 2026-03-01T11:00:00Z --follow --url http://127.0.0.1:8080"),
    ("ten messages of one queue", "tierlog tail orders --queue 3 --offset 1200 --limit 10 --root ./store --read-only"),
)  # fmt: skip
_PAGE = 1_000
_QUEUE_PAGE = 1_000
_LEAST_PAGE = 50
_WAIT_MS = 10_000
#: Each queue that is followed has a request of its own open.
MOST_FOLLOWED = 64


class TailedQueues:
    """Some queues of a topic read as one: in the order of the log, then, when followed, as messages come.

    Each is read from an offset of its own; ``offsets`` is where each goes on.
    """

    def __init__(self, target: Reader, topic: str, offsets: Mapping[int, int], tag: str | None = None) -> None:
        self._target = target
        self._topic = topic
        self._tag = tag
        self.offsets = dict(offsets)

    def stored(self, limit: int | None, on_gap: Callable[[int, int], None] | None = None) -> Iterator[Json]:
        """Yields what is there, by store time and place in the log; a queue keeps its own order whatever its times are.

        ``on_gap`` is told (offset asked for, least there is). Raises :class:`InvalidRequestError` for an offset beyond
        the end of a queue.
        """
        page = max(_LEAST_PAGE, _QUEUE_PAGE // len(self.offsets))
        if limit is not None:
            page = min(page, limit)
        streams = [self._stream(queue_id, page, on_gap) for queue_id in sorted(self.offsets)]
        for number, message in enumerate(heapq.merge(*streams, key=_place), 1):
            self.offsets[message["queue_id"]] = message["queue_offset"] + 1
            yield message
            if number == limit:
                return

    def followed(self) -> Iterator[list[Json]]:
        """Yields pages of what comes in after that, without end; raises the first error that a queue answers with."""
        came: handover.SimpleQueue[list[Json] | StoreError] = handover.SimpleQueue()
        for queue_id in self.offsets:
            threading.Thread(target=self._wait, args=(queue_id, came), daemon=True, name="tierlog-tail").start()
        while True:
            page = came.get()
            if isinstance(page, StoreError):
                raise page
            yield page

    def _stream(self, queue_id: int, page: int, on_gap: Callable[[int, int], None] | None) -> Iterator[Json]:
        offset, is_first = self.offsets[queue_id], True
        while True:
            found = self._target.pull(self._topic, queue_id, offset, page, tag=self._tag)
            status = PullStatus(found["status"])
            if status is PullStatus.OFFSET_TOO_LARGE:
                raise InvalidRequestError(
                    f"offset {offset} is beyond the end of the queue, {found['max_offset']}",
                    hint=f"the queue holds [{found['min_offset']}, {found['max_offset']})",
                )
            if status is PullStatus.OFFSET_TOO_SMALL and is_first and on_gap is not None:
                on_gap(offset, found["min_offset"])
            yield from found["messages"]
            has_moved, offset, is_first = found["next_offset"] != offset, found["next_offset"], False
            if status is PullStatus.NO_NEW_MESSAGE or not has_moved:
                self.offsets[queue_id] = offset
                return

    def _wait(self, queue_id: int, came: handover.SimpleQueue[list[Json] | StoreError]) -> None:
        try:
            while True:
                found = self._target.pull(
                    self._topic, queue_id, self.offsets[queue_id], _QUEUE_PAGE, wait_ms=_WAIT_MS, tag=self._tag
                )
                self.offsets[queue_id] = found["next_offset"]
                if found["messages"]:
                    came.put(found["messages"])
        except StoreError as error:
            came.put(error)


def _place(message: Json) -> tuple[int, int]:
    return message["store_ms"], message["physical_offset"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which queue, from where, how far."""
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
    """Returns exit code 0 with messages, 1 without any; Ctrl-C is how --follow ends, so it is no failure."""
    from tierlog.tiering.message.batch import validate_topic

    validate_topic(arguments.topic)
    for name in ("queue", "offset", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < (name == "limit"):
            raise InvalidRequestError(f"--{name} {value} is too small")
    if arguments.follow and arguments.url is None:
        raise InvalidRequestError("--follow needs --url", hint="a store that is open here gets no new messages")
    out = messages_out(OutputStyle.of(arguments))
    try:
        with interruptible(), open_reader(arguments) as target:
            queues = TailedQueues(target, arguments.topic, _begins(target, arguments), arguments.tag)
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
    """Finds the offset at which each queue that is read begins."""
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


def _show(queues: TailedQueues, arguments: argparse.Namespace, out: Rows) -> int:
    """Writes messages until the limit, the end or a stop; returns how many there were."""

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
