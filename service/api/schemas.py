"""What requests carry. Answers are made by ``service.wire``; their shapes are described here for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from index.query import DEFAULT_LIMIT, MAX_LIMIT
from service.wire import decode_base64
from tiering.batch import MAX_QUEUES
from tiering.times import parse_time
from tiering.types import END_OF_TIME_MS, Boundary, Order, TimeAxis

MAX_WAIT_MS = 60_000


def _time(value: object) -> int:
    return parse_time(str(value))


#: ms since the epoch or RFC 3339.
Time = Annotated[int, BeforeValidator(_time, json_schema_input_type=str)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MessageIn(_Strict):
    """A message to append: ``body`` (text) or ``body_base64``, exactly one of them."""

    body: str | None = None
    body_base64: str | None = None
    keys: list[str] = []
    tag: str = ""
    properties: dict[str, str] = {}
    born_ms: int | None = Field(default=None, ge=0)
    queue_id: int | None = Field(default=None, ge=0, le=MAX_QUEUES - 1, description="absent: spread round robin")
    sharding_key: str | None = Field(
        default=None, min_length=1, description="messages of one key go to one queue, kept as a property"
    )

    @model_validator(mode="after")
    def _consistent(self) -> MessageIn:
        if (self.body is None) == (self.body_base64 is None):
            raise ValueError("give either body or body_base64")
        if self.queue_id is not None and self.sharding_key is not None:
            raise ValueError("give either queue_id or sharding_key")
        self.body_bytes()
        return self

    def body_bytes(self) -> bytes:
        """The body as it is stored."""
        if self.body_base64 is not None:
            return decode_base64(self.body_base64)
        return (self.body or "").encode()


class MessagesIn(_Strict):
    """A batch to append; all of it or nothing."""

    messages: list[MessageIn] = Field(min_length=1)


class QueryIn(_Strict):
    """What a query asks for; times are ms or RFC 3339, the range is half-open."""

    key: str | None = None
    from_ms: Time = Field(default=0, alias="from")
    to_ms: Time = Field(default=END_OF_TIME_MS, alias="to")
    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    axis: TimeAxis = Field(default=TimeAxis.STORE, alias="time")
    order: Order = Order.NEWEST
    cursor: str | None = None
    max_requests: int | None = Field(default=None, ge=0, description="ask the object store at most this often")
    timeout_ms: int | None = Field(default=None, ge=1, description="answer after so long with what is known then")
    dry_run: bool = Field(default=False, description="say what it may cost, and read only the manifest")


class PullIn(_Strict):
    """Where to read a queue; ``wait_ms`` waits for a message if there is none yet."""

    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    wait_ms: int = Field(default=0, ge=0, le=MAX_WAIT_MS)
    tag: str | None = Field(default=None, description="one tag, several as `TagA || TagB`, or `*` for every message")


class OffsetByTimeIn(_Strict):
    """A store time, and which end of a run of equal times is meant."""

    time_ms: Time
    boundary: Boundary = Boundary.LOWER


class TopicIn(_Strict):
    """A topic to make, or to give more queues."""

    queues: int | None = Field(
        default=None, ge=1, le=1024, description="absent: 8 for a new topic, as many as it has for an existing one"
    )
    archive: bool | None = Field(default=None, description="false: messages live as long as their hot copies only")
    cold_retention_ms: int | None = Field(
        default=None, ge=1, description="archived messages that are older expire; null: never; absent: as it is"
    )


class HoldIn(_Strict):
    """Whether nothing of the topic may be erased or expire."""

    hold: bool


class EraseIn(_Strict):
    """What to erase: a topic, or only a key of it, or what was stored in ``[from, to)``; ``dry_run`` only counts.

    ``wait`` answers after everything that is archived was overwritten.
    """

    topic: str
    key: str | None = None
    from_ms: Time = Field(default=0, alias="from")
    to_ms: Time = Field(default=END_OF_TIME_MS, alias="to")
    dry_run: bool = False
    wait: bool = False


class ArchiveIn(_Strict):
    """What to archive: rolled segments; or all; or what is older than ``until``."""

    until: Time | None = None
    all: bool = False
    drop_hot: bool = False


class CheckIn(_Strict):
    """How thorough to be: ``deep`` reads every byte of the archive."""

    deep: bool = False


class AppendedOut(BaseModel):
    """Where one message went."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int


class AppendedListOut(BaseModel):
    """In the order of the request."""

    results: list[AppendedOut]


class MessageOut(BaseModel):
    """A message in an answer; ``body`` if it is UTF-8, else ``body_base64``.

    ``body_compressed`` is there, and true, if a compressed body could not be inflated and is given as it is stored.
    """

    message_id: str
    store_id: str
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    keys: list[str]
    tag: str
    properties: dict[str, str]
    born_ms: int
    store_ms: int
    tier: Literal["hot", "cold"]
    size_bytes: int
    body: str | None = None
    body_base64: str | None = None
    body_compressed: bool | None = None


class QueryOut(BaseModel):
    """A page; ``coverage`` says what was searched for it. A dry run has no messages but an ``estimate``."""

    messages: list[MessageOut]
    next_cursor: str | None
    coverage: dict[str, object]
    estimate: dict[str, object] | None = None


class PullOut(BaseModel):
    """Messages of a queue in order; go on at ``next_offset``."""

    status: Literal["FOUND", "NO_NEW_MESSAGE", "NO_MATCHED_MESSAGE", "OFFSET_TOO_SMALL", "OFFSET_TOO_LARGE"]
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageOut]


class OffsetByTimeOut(BaseModel):
    """``min_offset`` and ``max_offset`` are the queue's, both tiers counted."""

    offset: int
    min_offset: int
    max_offset: int


class QueueOut(BaseModel):
    """``max_offset`` is the next message's.

    ``gaps`` are ranges ``[first, next)`` of offsets that a restore left out; null while the archive cannot tell.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    gaps: list[tuple[int, int]] | None


class TopicOut(BaseModel):
    """A topic; ``queues`` is their number."""

    topic: str
    topic_id: int
    queues: int
    archive: bool
    cold_retention_ms: int | None
    hold: bool
    offsets: list[QueueOut]
