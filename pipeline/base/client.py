"""A client of a running service for drivers and executors, and a sender of rows.

Every call here may be repeated: reads by nature, an append because its messages carry a producer id and sequence
numbers. So a connection that breaks, a restart of the service and an answer that asks for patience are waited out
within bounds. A token comes from a file that ``TIERLOG_TOKEN_FILE`` names, or from ``TIERLOG_TOKEN``, and never from an
option or a configuration value of Spark, which end in its event log, its page and the arguments of its processes; see
``ServiceAccess`` for what else the environment says.

:class:`RowSender` cuts rows into requests, numbers them, and sends them until the service has them. A partition's rows
are numbered from 0 for each topic, in their order. With the producer, which is the write and the partition and never
the attempt, the number tells the service what it has already: a task that is tried again sends all of its rows again,
and each is in the log once, wherever the attempt before it ended.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tierlog.index.format.errors  # noqa: F401 - a service may answer with its classes
from tierlog.tiering.base.backoff import Retries
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.types import Boundary, Durability, PullStatus
from tierlog.tiering.format.generation import lasting_name, record_topic
from tierlog.tiering.format.manifest import LostRange
from tierlog.tiering.remote.endpoint import ServiceAddress
from tierlog.tiering.remote.http_client import HttpClient

ARROW_STREAM = "application/vnd.apache.arrow.stream"
Json = dict[str, Any]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
#: What a request carries, about: far below what a service takes (``serve.max_request_bytes``), far above its cost.
REQUEST_BYTES, REQUEST_ROWS = 4 << 20, 20_000
_COLUMNS = ("body", "keys", "tag", "properties", "born_time", "queue_id")


@dataclass(frozen=True, slots=True)
class ServedQueueEnds:
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
    generation: int | None = None
    """The number of the topic's generation, of a topic that was made again."""


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic, or a generation of it, and all its queues."""

    name: str
    queues: tuple[ServedQueueEnds, ...]

    @property
    def lasting_name(self) -> str:
        """Its name that never comes to mean another generation; of a topic of one store."""
        return lasting_name(record_topic(self.name), self.queues[0].generation if self.queues else None)


@dataclass(frozen=True, slots=True)
class ServedPage:
    """The result of one pull; go on at ``next_offset``.

    A message is a mapping with the fields of REST's messages, but ``body`` always as bytes.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Json]


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """The place of one appended message."""

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
        self._http = HttpClient(None, timeout_s, kept=1)
        self._retries = Retries(
            clock or SystemClock(), randomness or SystemRandomness(),
            tries=tries, first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S,
        )  # fmt: skip
        self._homes: dict[str, str] = {}

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; the next call opens another. Idempotent."""
        self._http.close()

    def stats(self) -> Json:
        """Sizes and lags: ``store_id``, ``archived_to``, ``indexed_to``, ``log_begin``, ``log_end``, …

        Raises :class:`InvalidRequestError` for a process that answers for several stores and has no log of its own.
        """
        found = self._json("GET", "/v1/stats")
        if "store_id" not in found:
            raise InvalidRequestError(
                f"{self._address} answers for several stores", hint="name the service of one, or give 'cold' alone"
            )
        return found

    def topics(self) -> list[ServedTopic]:
        """Returns every topic with its queues."""
        return [_topic(one) for one in self._json("GET", "/v1/topics")["topics"]]

    def topic(self, name: str) -> ServedTopic:
        """One topic; :class:`TopicNotFoundError`."""
        return _topic(self._json("GET", f"/v1/topics/{quote(name, safe='')}"))

    def pull(self, topic: str, queue_id: int, offset: int, limit: int) -> ServedPage:
        """Messages of a queue in order from ``offset``; the service may give fewer than ``limit``."""
        asked = urlencode({"offset": offset, "limit": limit})
        found = self._json("GET", f"{_queue(topic, queue_id)}/messages?{asked}")
        for message in found["messages"]:
            encoded = message.pop("body_base64", None)
            message["body"] = message["body"].encode() if encoded is None else base64.b64decode(encoded)
        return ServedPage(
            PullStatus(found["status"]), found["next_offset"], found["min_offset"], found["max_offset"],
            found["messages"],
        )  # fmt: skip

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Returns the offset of a store time; ``lower``: the first message at or after it, the queue's end if none."""
        asked = urlencode({"time_ms": time_ms, "boundary": boundary.value})
        return int(self._json("GET", f"{_queue(topic, queue_id)}/offset?{asked}")["offset"])

    def produce(
        self, topic: str, stream: bytes, key: str, durability: Durability = Durability.FLUSHED
    ) -> list[AppendedRows]:
        """Appends the messages of an Arrow stream; ``key`` makes repeating it harmless, so it is never left out.

        All calls for a topic go to the store that took new messages of it at the first one: another store would not
        know what was sent before, and append it again.
        """
        asked = urlencode({"durability": durability.value, "store_id": self._home(topic)})
        path = f"/v1/topics/{quote(topic, safe='')}/messages?{asked}"
        found = self._json("POST", path, stream, {"Content-Type": ARROW_STREAM, "Idempotency-Key": key})
        return [AppendedRows(**one) for one in found["results"]]

    def _home(self, topic: str) -> str:
        if topic not in self._homes:
            home = self._json("GET", f"/v1/cluster/topics/{quote(topic, safe='')}")
            self._homes[topic] = str(home["store_id"])
        return self._homes[topic]

    def _json(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        answer = self._http.ask_again(self._retries, self._address, method, path, body=body, headers=headers)
        document = answer.document()
        if document is None:
            raise StoreError(f"{self._address} answered {answer.status} without JSON", hint="is it tierlog?")
        return document


def lost_in(stats: Json) -> list[LostRange] | None:
    """Returns what the store of a service lacks of its broker's log, as far as it knows; None: it has no such log."""
    if "lost" not in stats:
        return None
    return [LostRange(each["first"], each["next"], each["from_ms"], each["to_ms"]) for each in stats["lost"] or ()]


def _queue(topic: str, queue_id: int) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/queues/{queue_id}"


def _topic(found: Json) -> ServedTopic:
    """Takes what is known here: a newer service may say more."""
    return ServedTopic(
        found["topic"],
        tuple(
            ServedQueueEnds(
                queue["queue_id"],
                queue["min_offset"],
                queue["max_offset"],
                queue["gaps"],
                queue.get("store_id"),
                queue.get("generation"),
            )
            for queue in found["offsets"]
        ),
    )


class RowSender:
    """Sends the rows of one partition. For one thread."""

    def __init__(
        self, client: ServiceClient, producer: str, topic: str | None, durability: Durability = Durability.FLUSHED
    ) -> None:
        """``topic`` is that of all rows; None: the column ``topic`` says it."""
        self._client = client
        self._producer = producer
        self._topic = topic
        self._durability = durability
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes = self._waiting_rows = self._row = 0
        self._next: dict[str, int] = {}
        #: Messages that the service has.
        self.sent = 0

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Sends all rows; returns how many, once the service has them all.

        Raises :class:`InvalidRequestError` for a row that is no message, and what the service answers.
        """
        for batch in batches:
            if batch.num_rows:
                self._take(batch)
                if self._waiting_bytes >= REQUEST_BYTES or self._waiting_rows >= REQUEST_ROWS:
                    self._send_waiting()
        self._send_waiting()
        return self.sent

    def _take(self, batch: pa.RecordBatch) -> None:
        for name in {"topic", "body"} & set(batch.schema.names):
            column = batch.column(name)
            if column.null_count:
                place = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise InvalidRequestError(f"row {self._row + place} of the partition has no {name}")
        self._row += batch.num_rows
        for topic, rows in self._by_topic(pa.Table.from_batches([batch])):
            self._waiting.setdefault(topic, []).append(rows)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows

    def _by_topic(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        messages = pa.table({name: _column(name, rows.column(name)) for name in _COLUMNS if name in rows.column_names})
        if self._topic is not None:
            yield self._topic, messages
            return
        topics = rows.column("topic")
        for topic in pc.unique(topics):
            yield topic.as_py(), messages.filter(pc.equal(topics, topic))

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waiting_bytes = self._waiting_rows = 0
        for topic, tables in waiting.items():
            for piece in _pieces(pa.concat_tables(tables)):
                self._post(topic, piece)

    def _post(self, topic: str, rows: pa.Table) -> None:
        first = self._next.get(topic, 0)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        key = f"{self._producer}:{first}"
        try:
            results = self._client.produce(topic, sink.getvalue(), key, self._durability)
        except InvalidRequestError as error:
            where = "" if error.position is None else f", number {first + error.position} from this partition"
            raise type(error)(f"topic {topic}{where}: {error.message}", hint=error.hint) from error
        self._next[topic] = first + len(results)
        self.sent += len(results)


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows in their order, in pieces that fit a request; one huge row is a piece of its own."""
    if rows.num_rows > 1 and (rows.nbytes > REQUEST_BYTES or rows.num_rows > REQUEST_ROWS):
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))
    else:
        yield rows


def _column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the column as the service takes it: one key may stand by itself."""
    if name != "keys" or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return column
    whole = column.combine_chunks()
    keys = whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
    ends = np.cumsum(~keys.is_null().to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, keys.drop_null())])
