"""The shapes of requests. Answers are made by ``service.wire.documents``; their shapes stand here for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, WithJsonSchema, model_validator

from tierlog.index.search.filters import MOST_FILTER_BYTES, MOST_FILTERS
from tierlog.index.search.query import DEFAULT_LIMIT, MAX_LIMIT
from tierlog.service.api.schemas.parameters import (
    MAX_OFFSET,
    TIMES,
    Duration,
    Flag,
    Key,
    Number,
    Time,
    Whole,
    absent,
    whole,
)
from tierlog.service.wire.documents import decode_base64
from tierlog.tiering.base.types import END_OF_TIME_MS, Boundary, Order, PullStatus, TimeAxis
from tierlog.tiering.format.properties import OWN_FIELDS
from tierlog.tiering.message.batch import BORN_END_MS, KEY_PATTERN, MAX_QUEUES, validate_born_ms

# What stands beside the messages of a query: its coverage, and the estimate of a dry run.

_COUNT = Field(ge=0)


class HotCoverageOut(BaseModel):
    """What was searched of a hot tier: every message that it held there is in the answer or a page before."""

    from_ms: int = Field(description="ms since the epoch, on the time axis of the query")
    to_ms: int = Field(description="ms since the epoch, not included")


class ColdCoverageOut(HotCoverageOut):
    """What was searched of an archive, and in which version of its manifest."""

    manifest_version: int = Field(ge=0)


class StoreCoverageOut(BaseModel):
    """What was searched of one store; null for a tier that holds nothing to search, or of which nothing was."""

    store_id: str
    hot: HotCoverageOut | None
    cold: ColdCoverageOut | None
    error: str | None = Field(description="why this store is not covered as far as was asked")


class IndexCoverageOut(BaseModel):
    """Index files and objects that overlap the range: each considered once, and once as one of the others."""

    considered: int = _COUNT
    filtered: int = Field(ge=0, description="what is in memory proved that the key is not there")
    searched: int = _COUNT
    expired: int = Field(ge=0, description="deleted meanwhile, by retention")
    unreachable: int = Field(ge=0, description="could not be read; see failures")
    skipped: int = Field(ge=0, description="not asked: the page was certain without, or budget or time were over")


class SegmentCoverageOut(BaseModel):
    """Segments that messages were looked for in."""

    read: int = _COUNT
    expired: int = _COUNT
    erased: int = _COUNT
    unreachable: int = Field(ge=0, description="could not be read; see failures")


class MessageCountsOut(BaseModel):
    """Messages of the topic, key and range, before and after the filters."""

    read: int = Field(ge=0, description="read to apply the filters; what the hash of its tag rules out is not read")
    matched: int = Field(ge=0, description="of these, those that pass them")


class FailureOut(BaseModel):
    """One thing that could not be read."""

    object: str
    error: str


class CoverageOut(BaseModel):
    """What was searched for the page returned, and what that took."""

    complete: bool = Field(description="whether all that `stores` claim was searched in full for this page")
    cut_by: Literal["limit", "budget", "timeout", "dry_run"] | None = Field(
        description="what ended the page: `limit` messages, `max_requests`, `timeout_ms`; null: nothing is left"
    )
    examined_to_ms: int | None = Field(
        description="where budget or time ended the filtering of messages: everything before this time in the order "
        "was examined, and `next_cursor` goes on there"
    )
    stores: list[StoreCoverageOut]
    index_files: IndexCoverageOut
    segments: SegmentCoverageOut
    messages: MessageCountsOut
    round_trips: int = Field(ge=0, description="longest chain of requests that each needed the one before")
    waves: int = Field(ge=0, description="rounds of parallel requests that they fit in")
    requests: int = Field(ge=0, description="to the object store, all that were begun")
    manifest_requests: int = Field(ge=0, description="of these, those that read the manifest")
    bytes: int = Field(ge=0, description="bytes read from the object store")
    cost_usd: float = Field(ge=0, description="US dollars, by the price list of the service")
    failures: list[FailureOut]


class SpanOut(BaseModel):
    """Requests to the object store: at least, probably, at most."""

    least: int = _COUNT
    likely: int = _COUNT
    most: int = Field(ge=0, description="`max_requests` of this number is enough")


class CostOut(BaseModel):
    """US dollars: at least, probably, at most."""

    least: float = _COUNT
    likely: float = _COUNT
    most: float = _COUNT


class ObjectsAskedOut(BaseModel):
    """Index objects of the archive that are not ruled out."""

    asked: int = _COUNT
    filters_resident: int = Field(ge=0, description="those whose key filter is in memory")
    directories_resident: int = Field(ge=0, description="those whose page directory is at hand")


class SegmentsAskedOut(BaseModel):
    """Segments of the archive that will be read."""

    by_hits: int = Field(ge=0, description="holding known hits")
    by_time: int = Field(ge=0, description="searched record by record")


class EstimateOut(BaseModel):
    """What the first page may cost, beside what is in memory and on disk now."""

    requests: SpanOut
    bytes: int = Field(ge=0, description="likely bytes from the object store")
    cost_usd: CostOut
    round_trips: int = Field(ge=0, description="likely longest chain of requests")
    is_whole: bool = Field(description="false: the manifest could not be read in full, there may be more")
    index_objects: ObjectsAskedOut
    segments: SegmentsAskedOut
    notes: list[str]


MAX_WAIT_MS = 60_000
MAX_TIMEOUT_MS = 86_400_000
MAX_BUDGET = (1 << 31) - 1

_NO_SEPARATOR = "[^\x01\x02]"
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
_OFFSET = Field(ge=0)


_Tag = Annotated[str, WithJsonSchema({"type": "string", "pattern": whole(f"{_NO_SEPARATOR}*")})]
_Properties = Annotated[
    dict[str, str],
    FailFast(),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": whole(f"{_NO_SEPARATOR}+"), "not": {"enum": sorted(OWN_FIELDS)}},
            "additionalProperties": {"type": "string", "pattern": whole(f"{_NO_SEPARATOR}+")},
            "examples": [{"region": "eu"}],
        }
    ),
]


class _KnownFields(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Arguments(BaseModel):
    """Of a URL, which has ``store_id`` beside them; what is unknown is refused before
    (:mod:`service.api.lane_route`).
    """


def _one_body_one_place(schema: dict[str, Any]) -> None:
    """Checks what single fields do not say; null is as good as absent."""
    schema["oneOf"] = [
        {"required": [name], "properties": {name: {"type": "string"}}} for name in ("body", "body_base64")
    ]
    schema["not"] = {
        "required": ["queue_id", "sharding_key"],
        "properties": {"queue_id": {"type": "integer"}, "sharding_key": {"type": "string"}},
    }
    schema["examples"] = [
        {"body": "order 4711 paid", "keys": ["4711"], "tag": "paid", "properties": {"region": "eu"}},
        {"body_base64": "/wA=", "born_ms": 1_772_323_200_000, "queue_id": 0},
    ]


def _text(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in schema["anyOf"] if one["type"] == "string")
    return found


def _at_least_a_byte(schema: dict[str, Any]) -> None:
    _text(schema)["minLength"] = 1


def _base64(schema: dict[str, Any]) -> None:
    _text(schema).update(pattern=whole(_BASE64), contentEncoding="base64")


def _no_separator(schema: dict[str, Any]) -> None:
    _text(schema)["pattern"] = whole(f"{_NO_SEPARATOR}+")


#: What it may be is in the document as bounds; the store's own rule says what else it looks like.
_BornTime = Annotated[
    Whole,
    AfterValidator(validate_born_ms),
    WithJsonSchema({"type": "integer", "minimum": 0, "exclusiveMaximum": BORN_END_MS}),
]


class MessageIn(_KnownFields):
    """A message to append: ``body`` (text) or ``body_base64``, exactly one of them."""

    model_config = ConfigDict(strict=True, json_schema_extra=_one_body_one_place)

    body: str | None = Field(default=None, json_schema_extra=_at_least_a_byte, description="UTF-8 text")
    body_base64: str | None = Field(default=None, json_schema_extra=_base64, description="any bytes")
    keys: Annotated[list[Key], FailFast()] = Field(default=[], description="found by each of them")
    tag: _Tag = Field(default="", description="readers of a queue may ask for it")
    properties: _Properties = Field(default={}, description="names and values, neither empty")
    born_ms: _BornTime | None = Field(
        default=None, description="ms since the epoch; absent: now, by the service's clock"
    )
    queue_id: Annotated[Whole, Field(ge=0, le=MAX_QUEUES - 1)] | None = Field(
        default=None, description="absent: spread round robin"
    )
    sharding_key: str | None = Field(
        default=None,
        min_length=1,
        json_schema_extra=_no_separator,
        description="messages of one key go to one queue, kept as a property",
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
        """Returns the body as it is stored."""
        if self.body_base64 is not None:
            return decode_base64(self.body_base64)
        return (self.body or "").encode()


class MessagesIn(_KnownFields):
    """A batch to append; all of it or nothing."""

    model_config = ConfigDict(strict=True)

    messages: Annotated[list[MessageIn], FailFast()] = Field(min_length=1)


def _key(schema: dict[str, Any]) -> None:
    _text(schema)["pattern"] = whole(KEY_PATTERN)


#: A key that is looked up.
KEY_FIELD: Any = Field(
    default=None,
    description="messages that have this key; absent: every message",
    json_schema_extra=_key,
    examples=["4711"],
)


#: Filters beside key and time; all of them must hold.
TAG_FIELD: Any = Field(default=None, description="one tag, several as `TagA || TagB`, or `*` for every message")
CONTAINS_FIELD: Any = Field(
    default=[], max_length=MOST_FILTERS, description="text that the body contains, as bytes of UTF-8; repeatable"
)
WHERE_FIELD: Any = Field(
    default=[],
    max_length=MOST_FILTERS,
    description="`name=value`: a property has the value, or the field at the dotted path `name` of a body that is a "
    "JSON object: the text of a string, or a number, `true`, `false` or `null` as JSON writes it; repeatable",
    examples=[["region=eu"]],
)
FilterText = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MOST_FILTER_BYTES})]
FieldIs = Annotated[str, WithJsonSchema({"type": "string", "pattern": whole("[^=]+=[\\s\\S]*")})]


class QueryIn(_Arguments):
    """What a query asks for; the range is half-open."""

    key: str | None = KEY_FIELD
    from_ms: Time = Field(default=0, alias="from", description=f"first time; {TIMES}")
    to_ms: Time = Field(
        default=END_OF_TIME_MS, alias="to", description=f"end, not included, later than `from`; {TIMES}"
    )
    limit: Number = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    axis: TimeAxis = Field(
        default=TimeAxis.STORE, alias="time", description="`store`: when it was appended; `born`: what its sender says"
    )
    order: Order = Field(default=Order.NEWEST, description="which messages come first")
    cursor: str | None = Field(default=None, description="`next_cursor` of the page before, unchanged")
    max_requests: Annotated[Number, Field(ge=0, le=MAX_BUDGET)] | None = Field(
        default=None, description="ask the object store at most this often"
    )
    timeout_ms: Annotated[Number, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = Field(
        default=None, description="answer after so long with what is known then"
    )
    dry_run: Flag = Field(default=False, description="say what it may cost, and read only the manifest")
    all: Flag = Field(
        default=False,
        description="every message from the cursor on, streamed as NDJSON, Arrow or Parquet; `limit` are read "
        "at a time, and `timeout_ms` is for each of these pages",
    )
    tag: str | None = TAG_FIELD
    contains: list[FilterText] = CONTAINS_FIELD
    where: list[FieldIs] = WHERE_FIELD


class PullIn(_Arguments):
    """Where to read a queue; ``wait_ms`` waits for a message if there is none yet."""

    offset: Number = Field(
        default=0, ge=0, le=MAX_OFFSET,
        description="of the first message wanted; with `backward`, messages below it, and absent means from the end",
    )  # fmt: skip
    limit: Number = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="messages at most")
    wait_ms: Number = Field(default=0, ge=0, le=MAX_WAIT_MS, description="ms to wait for a message at the end")
    tag: str | None = Field(default=None, description="one tag, several as `TagA || TagB`, or `*` for every message")
    backward: Flag = Field(default=False, description="messages below `offset`, the last one first; never waits")


class OffsetByTimeIn(_Arguments):
    """A store time, and which end of a run of equal times is meant."""

    time_ms: Time = Field(description=f"store time; {TIMES}")
    boundary: Boundary = Field(default=Boundary.LOWER, description="which end of a run of equal times")


class TopicIn(_KnownFields):
    """A topic to make, or to give more queues."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"queues": 8}, {"cold_retention_ms": "90d"}]}
    )

    queues: Annotated[Whole, Field(ge=1, le=MAX_QUEUES)] | None = Field(
        default=None,
        description="absent: 8 for a new topic, as many as it has for an existing one",
    )
    archive: bool | None = Field(default=None, description="false: messages live as long as their hot copies only")
    cold_retention_ms: Duration | None = Field(
        default=None,
        description="ms, or a text with a unit such as `90d` (ms, s, m, h, d, w); archived messages that are older "
        "expire; null: never; absent: as it is",
    )


class HoldIn(_KnownFields):
    """Whether nothing of the topic may be erased or expire."""

    model_config = ConfigDict(strict=True)

    hold: bool


class DeleteTopicIn(_Arguments):
    """How to delete a topic: with ``all``, unless it is only tried."""

    all: Flag = Field(default=False, description="needed without `dry_run`: the topic goes with every message it has")
    dry_run: Flag = Field(default=False, description="only say where the queues would end")
    wait: Flag = Field(default=False, description="answer after everything that is archived was overwritten")


class AppendedOut(BaseModel):
    """Where one message went."""

    message_id: str
    queue_id: int = _OFFSET
    queue_offset: int = _OFFSET
    store_ms: int = Field(description="ms since the epoch")


class AppendedListOut(BaseModel):
    """In the order of the request."""

    results: list[AppendedOut]


def _body_or_base64(schema: dict[str, Any]) -> None:
    schema["oneOf"] = [{"required": ["body"]}, {"required": ["body_base64"]}]


class MessageOut(BaseModel):
    """A message in an answer; ``body`` if it is UTF-8, else ``body_base64``."""

    model_config = ConfigDict(json_schema_extra=_body_or_base64)

    message_id: str
    store_id: str
    physical_offset: int = Field(ge=0, description="bytes from the beginning of the log")
    topic: str
    queue_id: int = _OFFSET
    queue_offset: int = _OFFSET
    keys: list[str]
    tag: str
    properties: dict[str, str]
    born_ms: int = Field(description="ms since the epoch, as its sender says")
    store_ms: int = Field(description="ms since the epoch, when it was appended")
    tier: Literal["hot", "cold"]
    size_bytes: int = Field(ge=0, description="of its record in the log")
    body: str = absent("text")
    body_base64: str = absent("bytes that are not UTF-8")
    body_compressed: Literal[True] = absent("there only if a compressed body could not be inflated: it is as stored")
    reconsume_times: int = absent("how often a RocketMQ client had it back; of one message by its id, unless 0")
    born_host: str = absent(
        "address of its producer, `ip:port` or `[ip]:port`, if the record has it: of a RocketMQ client, or with "
        "`produce.born_host`"
    )


class HintOut(BaseModel):
    """The other of the two times by which the range has messages."""

    time: TimeAxis = Field(description="ask with this `time`")
    detail: str


class QueryOut(BaseModel):
    """A page; ``coverage`` says what was searched for it. A dry run has no messages but an ``estimate``."""

    messages: list[MessageOut]
    next_cursor: str | None = Field(description="null: there is nothing behind this page")
    coverage: CoverageOut
    estimate: EstimateOut = absent("of a dry run only")
    hint: HintOut = absent("where a range has nothing by the time asked for, but something by the other one")


class PullOut(BaseModel):
    """Messages of a queue in order; go on at ``next_offset``."""

    status: PullStatus
    next_offset: int = _OFFSET
    min_offset: int = Field(ge=0, description="of the queue's first message, both tiers counted")
    max_offset: int = Field(ge=0, description="of the message that comes next")
    messages: list[MessageOut]


class OffsetByTimeOut(BaseModel):
    """``min_offset`` and ``max_offset`` are the queue's, both tiers counted."""

    offset: int = _OFFSET
    min_offset: int = _OFFSET
    max_offset: int = _OFFSET


class QueueOut(BaseModel):
    """``max_offset`` is the next message's.

    ``gaps`` are ranges ``[first, next)`` of offsets that a restore left out; null while the archive cannot tell.
    """

    queue_id: int = _OFFSET
    min_offset: int = _OFFSET
    max_offset: int = _OFFSET
    gaps: list[tuple[int, int]] | None
    messages: int | None = Field(
        ge=0, description="that are there, both tiers counted, erased ones too; null while the archive cannot tell"
    )
    store_id: str = absent("the store that the queue is in; where a querier answers")
    generation: int = absent(
        "of a topic that was made again: the number of this generation, from 1, which never changes"
    )


class TopicOut(BaseModel):
    """A topic; ``queues`` is their number."""

    topic: str
    topic_id: int
    queues: int = Field(ge=1)
    messages: int | None = Field(ge=0, description="of all queues, erased ones too; null if that of one is not known")
    archive: bool = Field(description="false: messages live as long as their hot copies only")
    cold_retention_ms: int | None = Field(
        description="ms; null: archived messages do not expire by a rule of their own"
    )
    hold: bool = Field(description="true: nothing of it is erased or expires")
    offsets: list[QueueOut]
