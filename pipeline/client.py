"""A running service as drivers and executors speak to it.

Every call here may be repeated: reads by nature, an append because its messages carry a producer id and sequence
numbers. So a connection that breaks, a restart of the service and an answer that asks for patience are waited out
within bounds. A token comes from a file that ``TIERLOG_TOKEN_FILE`` names, or from ``TIERLOG_TOKEN``, and never from an
option or a configuration value of Spark, which end in its event log, its page and the arguments of its processes; see
:class:`ServiceAccess` for what else the environment says.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import index.errors  # noqa: F401 - a service may answer with its classes
from tiering.backoff import Backoff
from tiering.clock import Clock, SystemClock
from tiering.errors import StoreError, UnavailableError
from tiering.problems import answered_error
from tiering.randomness import Randomness, SystemRandomness
from tiering.service_access import ServiceAccess
from tiering.service_address import ServiceAddress
from tiering.types import Boundary, Durability, PullStatus

ARROW_STREAM = "application/vnd.apache.arrow.stream"
Json = dict[str, Any]

_LATER = {429, 502, 503, 504}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
#: A service that asks for more patience than this is not waited for: the task fails, and Spark decides.
_MOST_ASKED_FOR_S = 60.0


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """A queue and its offsets, both tiers counted: ``[min_offset, max_offset)``.

    ``min_offset`` is too high until a service that was just started has asked its archive; a pull knows better.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    gaps: list[list[int]] | None
    """Ranges ``[first, next)`` that a restore left out; None while the service's archive does not answer."""
    store_id: str | None = None
    """Where a querier answers for several stores."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic and all its queues."""

    name: str
    queues: tuple[QueueEnds, ...]


@dataclass(frozen=True, slots=True)
class PulledPage:
    """What one pull found; go on at ``next_offset``.

    A message is a mapping with the fields of REST's messages, but ``body`` always as bytes.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Json]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one message went."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int


class ServiceClient:
    """Speaks the REST API at one URL over one connection. For one thread; tasks make their own from the URL.

    Raises the errors that the service answered with, :class:`UnavailableError` if nobody answered ``tries`` times in
    a row. Redirects are errors.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        timeout_s: float = 120.0,
        tries: int = 8,
    ) -> None:
        """Connects to nothing yet. Raises :class:`InvalidRequestError` for anything but an http(s) URL.

        ``timeout_s`` bounds each step of a call, not all of it. Pauses between tries grow from 0.25 to 10 s.
        """
        self._address = ServiceAddress.parse(url)
        self._clock = clock or SystemClock()
        self._randomness = randomness or SystemRandomness()
        self._timeout_s = timeout_s
        self._tries = tries
        self._connection: http.client.HTTPConnection | None = None
        self._homes: dict[str, str] = {}

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def stats(self) -> Json:
        """Sizes and lags: ``store_id``, ``archived_to``, ``indexed_to``, ``log_begin``, ``log_end``, …"""
        return self._json("GET", "/v1/stats")

    def topics(self) -> list[TopicState]:
        """Every topic with its queues."""
        return [_topic(one) for one in self._json("GET", "/v1/topics")["topics"]]

    def topic(self, name: str) -> TopicState:
        """One topic; :class:`TopicNotFoundError`."""
        return _topic(self._json("GET", f"/v1/topics/{quote(name, safe='')}"))

    def pull(self, topic: str, queue_id: int, offset: int, limit: int) -> PulledPage:
        """Messages of a queue in order from ``offset``; the service may give fewer than ``limit``."""
        asked = urlencode({"offset": offset, "limit": limit})
        found = self._json("GET", f"{_queue(topic, queue_id)}/messages?{asked}")
        for message in found["messages"]:
            encoded = message.pop("body_base64", None)
            message["body"] = message["body"].encode() if encoded is None else base64.b64decode(encoded)
        return PulledPage(
            PullStatus(found["status"]), found["next_offset"], found["min_offset"], found["max_offset"],
            found["messages"],
        )  # fmt: skip

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Where in a queue a store time lies; ``lower``: the first message at or after it, the queue's end if none."""
        asked = urlencode({"time_ms": time_ms, "boundary": boundary.value})
        return int(self._json("GET", f"{_queue(topic, queue_id)}/offset?{asked}")["offset"])

    def produce(
        self, topic: str, stream: bytes, key: str, durability: Durability = Durability.FLUSHED
    ) -> list[Appended]:
        """Append the messages of an Arrow stream; ``key`` makes repeating it harmless, so it is never left out.

        All calls for a topic go to the store that took new messages of it at the first one: another store would not
        know what was sent before, and append it again.
        """
        asked = urlencode({"durability": durability.value, "store_id": self._home(topic)})
        path = f"/v1/topics/{quote(topic, safe='')}/messages?{asked}"
        found = self._json("POST", path, stream, {"Content-Type": ARROW_STREAM, "Idempotency-Key": key})
        return [Appended(**one) for one in found["results"]]

    def _home(self, topic: str) -> str:
        if topic not in self._homes:
            home = self._json("GET", f"/v1/cluster/topics/{quote(topic, safe='')}")
            self._homes[topic] = str(home["store_id"])
        return self._homes[topic]

    def _json(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        backoff = Backoff(self._clock, self._randomness, first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        for left in range(self._tries - 1, -1, -1):
            asked_for_s: float | None = None
            try:
                status, answered, content = self._ask(method, path, body, headers or {})
                error, asked_for_s = self._refusal(status, content), _retry_after_s(answered)
                if error is None:
                    return self._document(status, content)
                is_for_later = status in _LATER or asked_for_s is not None
            except (OSError, http.client.HTTPException) as broken:
                self.close()
                error, is_for_later = self._no_answer(broken), True
                error.__cause__ = broken
            if not left or not is_for_later or (asked_for_s or 0) > _MOST_ASKED_FOR_S:
                raise error
            backoff.failed()
            self._clock.wait(threading.Event(), max(backoff.left_s, asked_for_s or 0))
        raise AssertionError("the last try returns or raises")

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        access = ServiceAccess.of()  # each time: a mounted secret may have changed
        if self._connection is None:
            tls = access.tls() if self._address.is_tls else None
            self._connection = self._address.connect(self._timeout_s, tls)
        authorised = access.headers(is_private=self._address.is_private)
        self._connection.request(
            method, self._address.prefix + path, body, {"Accept": "application/json", **authorised, **headers}
        )
        answer = self._connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def _refusal(self, status: int, content: bytes) -> StoreError | None:
        if status < 300:
            return None
        if status < 400:
            return StoreError(f"{self._address} sends elsewhere ({status})", hint="give the URL of the service itself")
        problem = _parsed(content) or {"detail": f"{self._address} answered {status} without a reason"}
        return answered_error(status, problem)

    def _document(self, status: int, content: bytes) -> Json:
        document = _parsed(content)
        if document is None:
            raise StoreError(f"{self._address} answered {status} without JSON", hint="is it tierlog?")
        return document

    def _no_answer(self, broken: Exception) -> StoreError:
        words = str(broken) or type(broken).__name__
        return UnavailableError(f"no answer from {self._address}: {words}", hint="is `tierlog serve` running?")


def _parsed(content: bytes) -> Json | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _retry_after_s(answered: Mapping[str, str]) -> float | None:
    after = answered.get("retry-after", "")
    return float(after) if after.isascii() and after.isdigit() else None


def _queue(topic: str, queue_id: int) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/queues/{queue_id}"


def _topic(found: Json) -> TopicState:
    return TopicState(found["topic"], tuple(QueueEnds(**queue) for queue in found["offsets"]))
