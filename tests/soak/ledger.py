"""What a soak's producers sent and were told, and whether what readers were given agrees with it.

Every message says which producer sent it as which number, and all else about it follows from these two. A message that
was acknowledged has to be found until its retention has passed since it was sent; one that nobody was told of may be
found; anything else is a wrong answer. What expired long ago is forgotten, so that a soak of any length has room.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.processes.nodes import Json

#: So many neighbours of a producer share a key of their own.
RUN = 250
#: So many keys come again and again, in the messages of all producers of a topic.
RECURRING = 499
#: Expiry looks every minute, rises a minute at a time, and a kill may come before it.
OVERDUE_MS = 300_000
#: Readers see what is flushed: an `async` append is found soon, and not at once.
_FLUSHED_MS = 10_000
_MOST_WRONG = 20


def now_ms() -> int:
    """The clock that the service has too."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Topic:
    """A topic, and how long its messages are kept."""

    name: str
    queues: int
    retention_ms: int


def body_of(producer: str, number: int) -> str:
    """The body of a message: of any length up to 400 characters."""
    return f"{producer}:{number}:" + "abcdefghij"[number % 10 :] * (number * 7919 % 40)


def keys_of(producer: str, number: int) -> list[str]:
    """The keys of a message."""
    return [f"{producer}-{number // RUN}", f"r{number % RECURRING}"]


@dataclass
class Request:
    """Messages of one request, all to one queue."""

    producer: str
    topic: Topic
    queue_id: int
    first: int
    count: int
    sent_ms: int
    is_async: bool = False
    #: Their queue offsets, once acknowledged.
    offsets: array[int] | None = None
    told_ms: int = 0

    def numbers_with(self, key: str) -> range:
        """Which of the messages have a key."""
        end = self.first + self.count
        producer, _, run = key.rpartition("-")
        if producer:
            wanted = range(int(run) * RUN, (int(run) + 1) * RUN) if producer == self.producer else range(0)
            return range(max(wanted.start, self.first), min(wanted.stop, end))
        rest = int(key[1:])
        return range(self.first + (rest - self.first) % RECURRING, end, RECURRING)

    def must_be_found(self, now_ms: int) -> bool:
        """Whether a look-up that begins now has to find the messages, as long as they are kept."""
        return self.offsets is not None and (not self.is_async or now_ms > self.told_ms + _FLUSHED_MS)

    def must_be_kept(self, at_ms: int) -> bool:
        """Whether the messages, if they are there, may not have expired."""
        return at_ms < self.sent_ms + self.topic.retention_ms


@dataclass
class _Queue:
    """How far its consumers are."""

    position: int = 0
    #: Acknowledged offsets from there on.
    ahead: dict[int, Request] = field(default_factory=dict)
    #: Offsets that no consumer was given, and when.
    gaps: deque[tuple[int, int, int]] = field(default_factory=deque)


class Ledger:
    """Thread safe."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.wrong: list[str] = []
        self.acknowledged = self.consumed = self.again = self.expired = self.looked_up = self.found = 0
        self._requests: dict[str, list[Request]] = {}
        self._queues = {(topic.name, number): _Queue() for topic in topics for number in range(topic.queues)}
        self._lock = threading.Lock()

    # ---- producers

    def sends(
        self, producer: str, topic: Topic, queue_id: int, first: int, count: int, *, is_async: bool = False
    ) -> Request:
        """Note a request before it is sent."""
        request = Request(producer, topic, queue_id, first, count, now_ms(), is_async)
        with self._lock:
            mine = self._requests.setdefault(producer, [])
            mine.append(request)
            oldest_ms = now_ms() - topic.retention_ms - OVERDUE_MS
            if mine[len(mine) // 2].sent_ms < oldest_ms:
                del mine[: len(mine) // 2]
        return request

    def told(self, request: Request, results: Sequence[Json]) -> None:
        """Note that a request was acknowledged."""
        with self._lock:
            offsets = array("q", [one["queue_offset"] for one in results])
            self._expect(len(offsets) == request.count, f"{request}: {len(offsets)} results")
            self._expect(all(one["queue_id"] == request.queue_id for one in results), f"{request}: another queue")
            self._expect(list(offsets) == sorted(set(offsets)), f"{request}: offsets {list(offsets)} do not ascend")
            request.told_ms, request.offsets = now_ms(), offsets
            self.acknowledged += request.count
            queue = self._queues[request.topic.name, request.queue_id]
            for offset in offsets:
                if offset >= queue.position:
                    queue.ahead[offset] = request
                else:
                    for start, end, at_ms in queue.gaps:
                        if start <= offset < end:
                            self._skipped(request, offset, at_ms)

    # ---- consumers

    def position(self, topic: str, queue_id: int) -> int:
        """Below it, all of a queue was consumed."""
        return self._queues[topic, queue_id].position

    def given(self, topic: str, queue_id: int, offset: int, page: Json) -> None:
        """Note what a consumer was given at an offset."""
        with self._lock:
            queue = self._queues[topic, queue_id]
            offsets = [one["queue_offset"] for one in page["messages"]]
            where = f"{topic}/{queue_id} from {offset}"
            self._expect(offset <= queue.position, f"{where}: asked beyond {queue.position}, as the group committed")
            self._expect(offsets == sorted({*offsets}), f"{where}: {offsets} do not ascend")
            self._expect(all(offset <= one < page["next_offset"] for one in offsets), f"{where}: {offsets} lie outside")
            for message in page["messages"]:
                self._right(self.topics[topic], message)
                if message["queue_offset"] < queue.position:
                    self.again += 1
                else:
                    self._pass(queue, message["queue_offset"])
                    queue.ahead.pop(message["queue_offset"], None)
                    queue.position = message["queue_offset"] + 1
                    self.consumed += 1
            if page["next_offset"] > queue.position:
                self._pass(queue, page["next_offset"])

    def _pass(self, queue: _Queue, to: int) -> None:
        """A consumer was sent over offsets without their messages."""
        if to == queue.position:
            return
        at_ms = now_ms()
        queue.gaps.append((queue.position, to, at_ms))
        while queue.gaps[0][2] < at_ms - OVERDUE_MS:
            queue.gaps.popleft()
        for offset in [one for one in queue.ahead if one < to]:
            self._skipped(queue.ahead.pop(offset), offset, at_ms)
        queue.position = to

    def _skipped(self, request: Request, offset: int, at_ms: int) -> None:
        self.expired += 1
        age_ms = at_ms - request.sent_ms
        self._expect(
            not request.must_be_kept(at_ms),
            f"{request.topic.name}/{request.queue_id}: consumers were not given {offset}, {age_ms} ms old",
        )

    def behind(self) -> int:
        """Acknowledged messages that no consumer was given yet."""
        with self._lock:
            return sum(len(queue.ahead) for queue in self._queues.values())

    # ---- look-ups

    def wanted(self, topic: str, key: str, from_ms: int) -> list[tuple[Request, int]]:
        """Messages that a look-up which begins now has to find, unless they expire before it has ended."""
        begun_ms = now_ms()
        with self._lock:
            return [
                (request, number)
                for request in self._of(topic)
                if request.must_be_found(begun_ms) and request.sent_ms >= from_ms
                for number in request.numbers_with(key)
            ]

    def looked(
        self, topic: str, key: str, from_ms: int, wanted: Iterable[tuple[Request, int]], found: Sequence[Json]
    ) -> None:
        """Compare what a look-up found, now that it has ended, with what was wanted."""
        ended_ms = now_ms()
        with self._lock:
            self.looked_up += 1
            self.found += len(found)
            places = {(one["queue_id"], one["queue_offset"]) for one in found}
            where = f"{topic} {key} from {from_ms}"
            self._expect(len(places) == len(found), f"{where}: {len(found)} found at {len(places)} places")
            for message in found:
                self._right(self.topics[topic], message)
                self._expect(key in message["keys"], f"{where}: found {message['body'][:40]}")
                self._expect(message["store_ms"] >= from_ms, f"{where}: found one of {message['store_ms']}")
            for request, number in wanted:
                assert request.offsets is not None
                place = (request.queue_id, request.offsets[number - request.first])
                self._expect(
                    place in places or not request.must_be_kept(ended_ms),
                    f"{where}: not {request.producer}:{number} at {place}, {ended_ms - request.sent_ms} ms old",
                )

    def recent(self, topic: str) -> Sequence[Request]:
        """Requests of a topic that are not forgotten."""
        with self._lock:
            return list(self._of(topic))

    # ---- what is right

    def _of(self, topic: str) -> Iterable[Request]:
        return (one for mine in self._requests.values() for one in mine if one.topic.name == topic)

    def _right(self, topic: Topic, message: Json) -> None:
        """It is what was sent, where its producer was told that it is, and not long expired."""
        producer, number_text, _ = message["body"].split(":", 2)
        number = int(number_text)
        request = self._request_of(producer, number)
        said = f"{topic.name}/{message['queue_id']} at {message['queue_offset']}: {producer}:{number}"
        if request is None:
            self._expect(False, f"{said} was never sent, or has long expired")
            return
        is_same = message["body"] == body_of(producer, number) and message["keys"] == keys_of(producer, number)
        self._expect(is_same, f"{said} was changed: {message}")
        is_there = (message["queue_id"], message["topic"]) == (request.queue_id, request.topic.name)
        self._expect(is_there, f"{said} was sent to {request.topic.name}/{request.queue_id}")
        if request.offsets is not None:
            told = request.offsets[number - request.first]
            self._expect(told == message["queue_offset"], f"{said} was acknowledged at {told}")
            age_ms = now_ms() - request.told_ms
            self._expect(age_ms < topic.retention_ms + OVERDUE_MS, f"{said} should have expired, {age_ms} ms old")

    def _request_of(self, producer: str, number: int) -> Request | None:
        mine = self._requests.get(producer, [])
        place = bisect_right(mine, number, key=lambda one: one.first) - 1
        if place < 0 or number >= mine[place].first + mine[place].count:
            return None
        return mine[place]

    def _expect(self, is_right: bool, what: str) -> None:
        if not is_right and len(self.wrong) < _MOST_WRONG:
            self.wrong.append(what)

    def complain(self, what: str) -> None:
        """Note something wrong that somebody else saw."""
        with self._lock:
            self._expect(False, what)
