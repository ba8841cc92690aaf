"""The hot tier of one store: ``GET /v1/topics/{topic}/hot``, which tells a querier what no archive does."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tierlog.index.search.filters import parse_where
from tierlog.index.search.query import DEFAULT_LIMIT, MAX_LIMIT
from tierlog.index.search.query import Query as Question
from tierlog.index.search.results import PAGE_BYTES
from tierlog.service.access.caller import Scope
from tierlog.service.api.answer_forms import document
from tierlog.service.api.answers import answer_in_pieces, whole_answer
from tierlog.service.api.contract import ARROW_SCHEMA, may_answer
from tierlog.service.api.deps import TheCaller, TheEngine
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.negotiation import wanted_form
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.messages import (
    CONTAINS_FIELD,
    KEY_FIELD,
    MAX_TIMEOUT_MS,
    TAG_FIELD,
    WHERE_FIELD,
    CoverageOut,
    FieldIs,
    FilterText,
    MessageOut,
)
from tierlog.service.api.schemas.parameters import TIMES, Number, Time, TopicName
from tierlog.service.cluster.routing import TOPIC_STORE
from tierlog.service.wire.documents import ARROW_STREAM, JSON
from tierlog.service.wire.hot_page import hot_metadata, hot_stream
from tierlog.tiering.base.errors import FencedError
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis


class HotIn(BaseModel):
    """A query of a hot tier alone; names and meaning as in a query of both."""

    key: str | None = KEY_FIELD
    from_ms: Time = Field(default=0, alias="from", description=f"first time; {TIMES}")
    to_ms: Time = Field(
        default=END_OF_TIME_MS, alias="to", description=f"end, not included, later than `from`; {TIMES}"
    )
    limit: Number = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    axis: TimeAxis = Field(default=TimeAxis.STORE, alias="time")
    order: Order = Field(default=Order.NEWEST, description="which messages come first")
    cursor: str | None = Field(default=None, description="`next_cursor` of a query, unchanged")
    page_bytes: Number = Field(
        default=PAGE_BYTES, ge=1, le=PAGE_BYTES, description="bytes of messages; one message is always given"
    )
    timeout_ms: Annotated[Number, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = Field(
        default=None, description="answer after so long with what is known then"
    )
    tag: str | None = TAG_FIELD
    contains: list[FilterText] = CONTAINS_FIELD
    where: list[FieldIs] = WHERE_FIELD


class HotTombstoneOut(BaseModel):
    """An erasure of the topic: of keys only keyed hashes are told."""

    tombstone_id: str
    topic: str
    key_hash: str | None
    salt: str
    from_ms: int | None
    to_ms: int | None
    end: int = Field(description="records below this physical offset are meant")
    added: int = Field(description="manifest version that has it; 0: none yet")
    other_hashes: list[str]


class HotOut(BaseModel):
    """What is hot in one store, out of one snapshot; offsets are physical, in bytes."""

    store_id: str
    cold_url: str | None
    border: int = Field(ge=0, description="hot copies begin here; what is below is in the archive alone")
    end: int = Field(ge=0, description="end of what was searched")
    topic_id: int
    generations: list[tuple[int, str, int, int]] = Field(
        description="generations of the topic that were asked for, oldest first: topic id, name of the entry, and the "
        "physical range that their records lie in"
    )
    first_ms: int | None = Field(description="what is below `border` was stored then or before; null: not known")
    manifest_version: int | None = Field(description="the archive at this version covers what is below `border`")
    tombstones: list[HotTombstoneOut] = Field(description="erasures of the topic that the store knows")
    more: bool = Field(
        description="true: nothing behind the last message is known, or behind the coverage's `examined_to_ms`"
    )
    coverage: CoverageOut
    messages: list[MessageOut]


router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"])


@router.get(
    "/topics/{topic}/hot",
    operation_id="get_hot_messages",
    response_model=HotOut,
    responses={200: {"content": {ARROW_STREAM: {"schema": ARROW_SCHEMA}}}, **may_answer(404, 406, 409)},
)
@traits(lane=LaneChoice.READ, store=TOPIC_STORE)
def hot(
    request: Request, topic: TopicName, asked: Annotated[HotIn, Query()], caller: TheCaller, engine: TheEngine
) -> Response:
    """Search only the hot tier of this store, and say where its archive takes over; no object store is asked.

    Queriers ask this. As an Arrow stream the answer has one column, `record`, of records as they lie in the log, and
    all the rest as JSON under `hot` in the schema's metadata. 409 from a volume that was fenced.
    """
    caller.check(Scope.READ, topic)
    question = Question(
        topic=topic,
        key=asked.key,
        from_ms=asked.from_ms,
        to_ms=asked.to_ms,
        limit=asked.limit,
        axis=asked.axis,
        order=asked.order,
        cursor=asked.cursor,
        timeout_ms=asked.timeout_ms,
        tag=asked.tag,
        contains=tuple(asked.contains),
        where=tuple(map(parse_where, asked.where)),
    )
    if engine.is_fenced:
        raise FencedError("another volume serves this store now, and what is hot here is not what is hot there")
    form = wanted_form(request, (JSON, ARROW_STREAM))
    page = engine.hot_page(question, page_bytes=asked.page_bytes)
    if form == JSON:
        shown_bytes = sum(message.shown_bytes for message in page.messages)
        return answer_in_pieces(request, document(hot_metadata(page), page.messages, {}), shown_bytes, form)
    return whole_answer(request, hot_stream(page), form)
