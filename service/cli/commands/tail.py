"""``tierlog tail``: read the queues of a topic in order, from any place, and follow what comes in."""

from __future__ import annotations

import argparse
import heapq
import queue as handover
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from tierlog.service.cli.arguments import TIMES, add_format, add_target, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import Rows, messages_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import Reader, open_reader
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.types import PullStatus

HELP = "read a topic, or one of its queues, in order, from its first message unless told otherwise"
EXAMPLES = (
    ("the last 20 messages of all queues, then what comes in", "tierlog tail orders -n 20 --follow --url http://127.0.0.1:8080"),
    ("the last hour", "tierlog tail orders --from 1h --root ./store --read-only"),
    ("ten messages of one queue", "tierlog tail orders --queue 3 --offset 1200 --limit 10 --root ./store --read-only"),
)  # fmt: skip
_PAGE = 1_000
_QUEUE_PAGE = 1_000
_LEAST_PAGE = 50
_WAIT_MS = 10_000
#: Time between looks for a topic that is awaited, and for queues that are added.
LOOK_S = 1.0
#: Messages that ``--last`` keeps until it knows which is the first.
MOST_LAST = 10_000
_Came = handover.Queue[list[Json] | StoreError]
#: Pages that wait to be shown, beside one in the hand of each queue: who reads slowly has no more come in.
MOST_WAITING = 4
#: Time between looks of a full handover for whether following has ended.
_FULL_S = 0.2
#: Each queue that is followed has a request of its own open.
MOST_FOLLOWED = 64


class TailedQueues:
    """Some queues of a topic read as one: in the order of the log, then, when followed, as messages come.

    Each is read from an offset of its own; ``offsets`` is where each goes on.
    """

    def __init__(
        self,
        target: Reader,
        topic: str,
        offsets: Mapping[int, int],
        tag: str | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._topic = topic
        self._tag = tag
        self._clock = clock or SystemClock()
        self._ended = threading.Event()
        self.offsets = dict(offsets)

    def newest(self, count: int) -> list[Json]:
        """Returns the last ``count`` messages below :attr:`offsets`, oldest first; reads no more than ends of queues.

        With a tag these go as far back as it takes.
        """
        page = min(count // max(1, len(self.offsets)) + 1, _QUEUE_PAGE)
        streams = [self._backward(queue_id, page) for queue_id in sorted(self.offsets)]
        newest_first = heapq.merge(*streams, key=_place, reverse=True)
        return list(islice(newest_first, count))[::-1]

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

    def followed(self, *, grows: bool) -> Iterator[list[Json]]:
        """Yields pages of what comes in after that, without end; raises the first error that a queue answers with.

        Nothing is read ahead without bound: while nobody takes a page, requests wait.
        With ``grows`` also of queues that are added to the topic, each from its beginning.
        """
        came: _Came = handover.Queue(MOST_WAITING)
        for queue_id in list(self.offsets):
            self._follow(queue_id, came)
        if grows:
            threading.Thread(target=self._look, args=(came,), daemon=True, name="tierlog-tail").start()
        try:
            while True:
                page = came.get()
                if isinstance(page, StoreError):
                    raise page
                yield page
        finally:
            self._ended.set()

    def was_shown(self, page: Sequence[Json]) -> None:
        """Has :attr:`offsets` go on behind messages of :meth:`followed`; what came and nobody saw does not count."""
        for message in page:
            self.offsets[message["queue_id"]] = message["queue_offset"] + 1

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

    def _backward(self, queue_id: int, page: int) -> Iterator[Json]:
        """Yields the messages of a queue from its end; the next page is twice as long."""
        below = self.offsets[queue_id]
        while True:
            pulled = self._target.pull(self._topic, queue_id, below, page, tag=self._tag, backward=True)
            yield from pulled["messages"]
            if not pulled["min_offset"] < pulled["next_offset"] < below:
                return
            below, page = pulled["next_offset"], min(2 * page, _QUEUE_PAGE)

    def _follow(self, queue_id: int, came: _Came) -> None:
        threading.Thread(target=self._wait, args=(queue_id, came), daemon=True, name="tierlog-tail").start()

    def _wait(self, queue_id: int, came: _Came) -> None:
        """Hands over what comes into a queue, up to the first error."""
        offset = self.offsets[queue_id]
        try:
            while not self._ended.is_set():
                found = self._target.pull(self._topic, queue_id, offset, _QUEUE_PAGE, wait_ms=_WAIT_MS, tag=self._tag)
                offset = found["next_offset"]
                if found["messages"]:
                    self._hand_over(found["messages"], came)
        except StoreError as error:
            self._hand_over(error, came)

    def _hand_over(self, page: list[Json] | StoreError, came: _Came) -> None:
        """Waits for room; lets go of the page if following ends before there is any."""
        while not self._ended.is_set():
            with suppress(handover.Full):
                came.put(page, timeout=_FULL_S)
                return

    def _look(self, came: _Came) -> None:
        """Has queues followed that are added to the topic."""
        try:
            while not self._clock.wait(self._ended, LOOK_S):
                for queue_id in _queue_ids(self._target.topic(self._topic)):
                    if queue_id not in self.offsets:
                        _check_followed(self._topic, len(self.offsets) + 1)
                        self.offsets[queue_id] = 0
                        self._follow(queue_id, came)
        except StoreError as error:
            self._hand_over(error, came)


def _place(message: Json) -> tuple[int, int]:
    return message["store_ms"], message["physical_offset"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which queue, from where, how far."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--queue", type=int, metavar="Q", help="queue id; all queues, by store time, unless told")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "-n", "--last", type=int, metavar="N",
        help=f"begin with the last N messages of all queues together, {MOST_LAST} at most",
    )  # fmt: skip
    begin.add_argument("--offset", type=int, metavar="N", help="queue offset to begin with")
    begin.add_argument(
        "--from", dest="from_time", metavar="T", help=f"begin with the first message stored at or after T: {TIMES}"
    )
    parser.add_argument("--tag", metavar="EXPR", help="only messages with this tag, or one of several: A || B")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after this many messages")
    parser.add_argument(
        "-f", "--follow", action="store_true",
        help="wait for more until stopped, first for the topic itself if there is none (with --url)",
    )  # fmt: skip
    parser.add_argument("-v", "--full", action="store_true", help="in a table every field, and bodies whole")
    add_format(parser, times=True)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 with messages, 1 without any; Ctrl-C is how --follow ends, so it is no failure."""
    from tierlog.tiering.message.batch import validate_topic_or_generation

    validate_topic_or_generation(arguments.topic)
    _check_numbers(arguments)
    if arguments.follow and arguments.url is None:
        raise InvalidRequestError("--follow needs --url", hint="a store that is open here gets no new messages")
    (from_ms,) = asked_times(arguments, "from_time")
    if arguments.follow and from_ms is not None and from_ms > SystemClock().now_ms():
        raise InvalidRequestError("--from is still to come", hint="--from now begins with what comes in")
    out = messages_out(OutputStyle.of(arguments))
    try:
        with interruptible(), open_reader(arguments) as target:
            topic, is_new = _topic(target, arguments)
            begins = _begins(target, topic, arguments, from_ms, is_new=is_new)
            queues = TailedQueues(target, arguments.topic, begins, arguments.tag)
            found = _show(queues, arguments, out, None if is_new else arguments.last)
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
        out.end()
        return DONE
    if len(queues.offsets) == 1:
        out.end(next_offset=next(iter(queues.offsets.values())))
    else:
        out.end(next_offsets={str(queue_id): offset for queue_id, offset in dict(queues.offsets).items()})
    if not found:
        say("no messages there")
        return NOTHING
    return DONE


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("queue", "offset", "limit", "last"):
        value = getattr(arguments, name)
        if value is not None and value < (name == "limit"):
            raise InvalidRequestError(f"--{name} {value} is too small")
    if arguments.last is not None and arguments.last > MOST_LAST:
        raise InvalidRequestError(f"--last {arguments.last} is more than {MOST_LAST}", hint="--from T has no limit")


def _topic(target: Reader, arguments: argparse.Namespace) -> tuple[Json, bool]:
    """Returns the topic, which --follow waits for, and whether it was made meanwhile."""
    is_new, clock, never = False, SystemClock(), threading.Event()
    while True:
        try:
            return target.topic(arguments.topic), is_new
        except TopicNotFoundError:
            if not arguments.follow:
                raise
        if not is_new:
            say(f"waiting for topic {arguments.topic!r}, which does not exist yet")
        is_new = True
        clock.wait(never, LOOK_S)


def _begins(
    target: Reader, topic: Json, arguments: argparse.Namespace, from_ms: int | None, *, is_new: bool
) -> dict[int, int]:
    """Finds the offset at which each queue that is read begins; with --last, its end."""
    name: str = arguments.topic
    queue_ids = _queue_ids(topic) if arguments.queue is None else [arguments.queue]
    if arguments.offset is not None and len(queue_ids) > 1:
        raise InvalidRequestError(
            f"--offset is of one queue, and topic {name!r} has {len(queue_ids)}", hint="say which with --queue Q"
        )
    if arguments.follow:
        _check_followed(name, len(queue_ids))
    if from_ms is not None and not is_new:
        return {queue_id: target.offset_since(name, queue_id, from_ms) for queue_id in queue_ids}
    if arguments.last is not None and not is_new:
        ends = {queue["queue_id"]: queue["max_offset"] for queue in topic["offsets"]}
        missing = next((queue_id for queue_id in queue_ids if queue_id not in ends), None)
        if missing is not None:
            raise TopicNotFoundError(f"topic {name!r} has no queue {missing}")
        return {queue_id: ends[queue_id] for queue_id in queue_ids}
    return dict.fromkeys(queue_ids, arguments.offset or 0)


def _queue_ids(topic: Json) -> list[int]:
    return [queue["queue_id"] for queue in topic["offsets"]]


def _check_followed(topic: str, count: int) -> None:
    if count > MOST_FOLLOWED:
        raise InvalidRequestError(
            f"topic {topic!r} has {count} queues, of which {MOST_FOLLOWED} can be followed at once",
            hint="say which with --queue Q",
        )


def _show(queues: TailedQueues, arguments: argparse.Namespace, out: Rows, last: int | None) -> int:
    """Writes messages until the limit, the end or a stop; returns how many there were."""

    def on_gap(asked: int, least: int) -> None:
        if arguments.offset is not None:
            say(f"the queue begins at offset {least}, not {asked}")

    found, limit = 0, arguments.limit
    for page in _stored(queues, last, limit, on_gap):
        out.write(page)
        found += len(page)
    if not arguments.follow or found == limit:
        return found
    for page in queues.followed(grows=arguments.queue is None):
        shown = page if limit is None else page[: limit - found]
        out.write(shown)
        queues.was_shown(shown)
        found += len(shown)
        if found == limit:
            break
    return found


def _stored(
    queues: TailedQueues, last: int | None, limit: int | None, on_gap: Callable[[int, int], None]
) -> Iterator[list[Json]]:
    """Yields pages of what is there."""
    if last is not None:
        yield queues.newest(last)[:limit]
        return
    stored = queues.stored(limit, on_gap)
    while page := list(islice(stored, _PAGE)):
        yield page
