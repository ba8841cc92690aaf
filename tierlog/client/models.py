"""Values that are sent and read: messages, the coverage of a query, topics, queues and consumer groups."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import PullStatus, Tier, TimeAxis

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message to append. Its topic is an argument of the call."""

    body: bytes | str
    """At least one byte; text is sent as UTF-8."""
    keys: Sequence[str] = ()
    """A query finds the message by each of them."""
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    born_ms: int | None = None
    """ms since the epoch; None: the time when the store takes the message."""
    queue_id: int | None = None
    """None: spread round robin, or by ``sharding_key``."""
    sharding_key: str | None = None
    """Messages of one key go to one queue."""

    def line(self) -> bytes:
        """Returns the message as a line of NDJSON, without its end; raises :class:`InvalidRequestError` for what JSON
        cannot say."""
        document: Json = {}
        if isinstance(self.body, str):
            document["body"] = self.body
        else:
            try:
                document["body"] = self.body.decode()
            except UnicodeDecodeError:
                document["body_base64"] = base64.b64encode(self.body).decode()
        if isinstance(self.keys, str):  # or each letter would be a key
            raise InvalidRequestError("keys is a list of keys, not one", hint="keys=['4711']")
        if self.keys:
            document["keys"] = list(self.keys)
        if self.tag:
            document["tag"] = self.tag
        if self.properties:
            document["properties"] = dict(self.properties)
        for name in ("born_ms", "queue_id", "sharding_key"):
            value = getattr(self, name)
            if value is not None:
                document[name] = value
        try:
            return orjson.dumps(document)
        except TypeError as error:
            raise InvalidRequestError(f"this is no message: {error}") from error


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of one message."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int
    store_id: str | None = field(default=None, compare=False)
    """The store that has it."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that was read."""

    message_id: str
    store_id: str
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    born_ms: int
    store_ms: int
    tier: Tier
    physical_offset: int
    size_bytes: int
    body_compressed: bool = False
    """Whether the body is as it was stored, because it could not be inflated."""
    reconsume_times: int = 0
    """How often a RocketMQ client had it back; only of one message by its id."""
    born_host: str = ""
    """Address of its producer, ``ip:port`` or ``[ip]:port``, if the record has it."""

    @classmethod
    def of(cls, found: Json) -> StoredMessage:
        """Reads the fields of an answer; those of a newer service that are not known here are left out."""
        encoded = found.get("body_base64")
        return cls(
            message_id=found["message_id"],
            store_id=found["store_id"],
            topic=found["topic"],
            queue_id=found["queue_id"],
            queue_offset=found["queue_offset"],
            body=found["body"].encode() if encoded is None else base64.b64decode(encoded),
            keys=tuple(found["keys"]),
            tag=found["tag"],
            properties=found["properties"],
            born_ms=found["born_ms"],
            store_ms=found["store_ms"],
            tier=Tier(found["tier"]),
            physical_offset=found["physical_offset"],
            size_bytes=found["size_bytes"],
            body_compressed=found.get("body_compressed", False),
            reconsume_times=found.get("reconsume_times", 0),
            born_host=found.get("born_host", ""),
        )


@dataclass(frozen=True, slots=True)
class PulledPage:
    """The result of one pull; go on at ``next_offset``, whatever the status."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[StoredMessage, ...]

    @classmethod
    def of(cls, found: Json) -> PulledPage:
        """Reads an answer."""
        return cls(
            PullStatus(found["status"]),
            found["next_offset"],
            found["min_offset"],
            found["max_offset"],
            tuple(map(StoredMessage.of, found["messages"])),
        )


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """Every message of a tier in ``[from_ms, to_ms)`` is in this page or an earlier one."""

    from_ms: int
    to_ms: int
    manifest_version: int | None = None
    """The version of the archive's manifest that was read; None for the hot tier."""


@dataclass(frozen=True, slots=True)
class StoreCoverage:
    """The coverage of one store; None for a tier of which nothing is claimed."""

    store_id: str
    hot: CoveredRange | None
    cold: CoveredRange | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage and the cost of one page."""

    complete: bool
    """Whether all that ``stores`` claim was searched in full for this page."""
    cut_by: str | None
    """The limit that ended the page: ``limit``, ``budget``, ``timeout``; None: nothing is left."""
    stores: tuple[StoreCoverage, ...]
    failures: tuple[tuple[str, str], ...]
    """Objects that could not be read, each with the reason."""
    requests: int
    """Requests to the object store."""
    bytes: int
    cost_usd: float
    document: Json
    """The whole coverage, as the service sent it."""

    @classmethod
    def of(cls, found: Json) -> Coverage:
        """Reads an answer."""
        return cls(
            found["complete"],
            found["cut_by"],
            tuple(
                StoreCoverage(one["store_id"], _range(one["hot"]), _range(one["cold"]), one["error"])
                for one in found["stores"]
            ),
            tuple((one["object"], one["error"]) for one in found["failures"]),
            found["requests"],
            found["bytes"],
            found["cost_usd"],
            found,
        )

    @property
    def goes_on(self) -> bool:
        """Whether nothing is missing but what time left for the next page, while messages were filtered."""
        return self.cut_by == "timeout" and not self.failures and self.document.get("examined_to_ms") is not None

    @property
    def why_incomplete(self) -> str:
        """The reasons in words; empty for a complete page."""
        if self.complete:
            return ""
        reasons = [f"cut by {self.cut_by}"] if self.cut_by else []
        reasons += [f"{store.store_id}: {store.error}" for store in self.stores if store.error]
        reasons += [f"{name}: {error}" for name, error in self.failures[:3]]
        return "; ".join(reasons) or "not all of the range was searched"


def _range(found: Json | None) -> CoveredRange | None:
    return None if found is None else CoveredRange(found["from_ms"], found["to_ms"], found.get("manifest_version"))


@dataclass(frozen=True, slots=True)
class AxisHint:
    """A hint that the range has messages by the other of the two times."""

    axis: TimeAxis
    detail: str

    @classmethod
    def of(cls, found: Json | None) -> AxisHint | None:
        """Reads an answer."""
        return None if found is None else cls(TimeAxis(found["time"]), found["detail"])


@dataclass(frozen=True, slots=True)
class IntervalCounts:
    """Messages of each interval: ``counts[n]`` from ``from_ms + n * interval_ms`` on; the last ends at ``to_ms``."""

    topic: str
    axis: TimeAxis
    from_ms: int
    to_ms: int
    interval_ms: int
    counts: tuple[int, ...]
    exact: bool
    estimated: int
    """Messages that were spread evenly over the times between which they lie."""
    coverage: Coverage

    @property
    def total(self) -> int:
        """The messages of all intervals."""
        return sum(self.counts)

    @classmethod
    def of(cls, found: Json) -> IntervalCounts:
        """Reads an answer."""
        return cls(
            topic=found["topic"], axis=TimeAxis(found["time"]), from_ms=found["from_ms"], to_ms=found["to_ms"],
            interval_ms=found["interval_ms"], counts=tuple(one["messages"] for one in found["counts"]),
            exact=found["exact"], estimated=found["estimated"], coverage=Coverage.of(found["coverage"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a query; ``coverage`` says whether it is everything."""

    messages: tuple[StoredMessage, ...]
    next_cursor: str | None
    """None: there is nothing behind this page."""
    coverage: Coverage
    hint: AxisHint | None = None
    """Of a first page without a message, where the range has some by the other time."""


@dataclass(frozen=True, slots=True, order=True)
class QueueRef:
    """One queue: in a cluster, several stores may have queues of one topic with the same number."""

    topic: str
    store_id: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.store_id}/{self.queue_id}"

    @classmethod
    def of(cls, found: Json) -> QueueRef:
        """Reads an answer."""
        return cls(found["topic"], found["store_id"], found["queue_id"])


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and its offsets, both tiers counted: ``[min_offset, max_offset)``."""

    queue_id: int
    min_offset: int
    max_offset: int
    gaps: tuple[tuple[int, int], ...] | None
    """Ranges ``[first, next)`` that a restore left out; None while the archive cannot tell."""
    store_id: str | None
    """The queue's store, where a querier answers for several."""
    messages: int | None
    """The messages that are there; None while the archive cannot tell, or of a service that does not say."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its queues."""

    name: str
    queues: tuple[QueueInfo, ...]
    is_archived: bool
    cold_retention_ms: int | None
    is_held: bool

    @classmethod
    def of(cls, found: Json) -> TopicInfo:
        """Reads an answer."""
        return cls(
            found["topic"], tuple(map(_queue, found["offsets"])), found["archive"], found["cold_retention_ms"],
            found["hold"],
        )  # fmt: skip


def _queue(found: Json) -> QueueInfo:
    gaps = found["gaps"]
    return QueueInfo(
        found["queue_id"], found["min_offset"], found["max_offset"],
        None if gaps is None else tuple((first, end) for first, end in gaps), found.get("store_id"),
        found.get("messages"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group and what it may read and commit, as long as the generation lasts.

    ``missing_topics`` are those it named that do not exist yet, and are read once they do; ``hint`` is what may be
    meant instead, if a topic of another name is like one of them.
    """

    member_id: str
    generation: int
    session_timeout_ms: int
    assignment: tuple[QueueRef, ...]
    missing_topics: tuple[str, ...] = ()
    hint: str | None = None

    @classmethod
    def of(cls, found: Json) -> Membership:
        """Reads an answer."""
        return cls(
            found["member_id"], found["generation"], found["session_timeout_ms"],
            tuple(map(QueueRef.of, found["assignment"])), tuple(found.get("missing_topics", ())), found.get("hint"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue; ``lag`` counts messages still to consume, None if unknown."""

    queue: QueueRef
    offset: int | None
    min_offset: int | None
    max_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: its live members, and every queue that it reads or has read."""

    name: str
    generation: int
    members: Mapping[str, tuple[QueueRef, ...]]
    """The queues that are assigned to each live member."""
    queues: tuple[QueueProgress, ...]
    lag: int | None
    stores_down: tuple[str, ...]

    @classmethod
    def of(cls, found: Json) -> GroupInfo:
        """Reads an answer."""
        return cls(
            found["group"],
            found["generation"],
            {one["member_id"]: tuple(map(QueueRef.of, one["assignment"])) for one in found["members"]},
            tuple(
                QueueProgress(QueueRef.of(one), one["offset"], one["min_offset"], one["max_offset"], one["lag"])
                for one in found["queues"]
            ),
            found["lag"],
            tuple(found["stores_down"]),
        )
