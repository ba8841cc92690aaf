"""How many messages of a topic there are in each interval of time: ``GET /v1/topics/{topic}/counts``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from tierlog.index.search.counts import DEFAULT_BUCKETS, MOST_BUCKETS, CountQuery
from tierlog.service.access.caller import Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheCaller, TheReader
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.messages import MAX_BUDGET, MAX_TIMEOUT_MS, CoverageOut
from tierlog.service.api.schemas.parameters import TIMES, Number, Time, TopicName
from tierlog.service.cluster.routing import TOPIC_ARCHIVE
from tierlog.tiering.base.types import END_OF_TIME_MS, TimeAxis

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"])


class CountsIn(BaseModel):
    """Which messages are counted, and in which intervals; the range is half-open."""

    from_ms: Time | None = Field(
        default=None, alias="from", description=f"first time; absent: the topic's first; {TIMES}"
    )
    to_ms: Time | None = Field(
        default=None, alias="to", description=f"end, not included; absent: behind the topic's last time; {TIMES}"
    )
    axis: TimeAxis = Field(
        default=TimeAxis.STORE, alias="time", description="`store`: when it was appended; `born`: what its sender says"
    )
    buckets: Number = Field(default=DEFAULT_BUCKETS, ge=1, le=MOST_BUCKETS, description="intervals at most")
    interval_ms: Annotated[Number, Field(ge=1, le=END_OF_TIME_MS)] | None = Field(
        default=None, description=f"ms of an interval, in place of `buckets`; {MOST_BUCKETS} intervals at most"
    )
    max_requests: Annotated[Number, Field(ge=0, le=MAX_BUDGET)] | None = Field(
        default=None, description="ask the object store at most this often"
    )
    timeout_ms: Annotated[Number, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = Field(
        default=None, description="answer after so long with what is known then"
    )


class IntervalOut(BaseModel):
    """The messages from ``from_ms`` to the next interval."""

    from_ms: int
    messages: int = Field(ge=0, description="number of messages")


class CountsOut(BaseModel):
    """Counts of consecutive intervals; an empty range, ``from_ms`` equal to ``to_ms``, has none."""

    topic: str
    time: Literal["store", "born"]
    from_ms: int = Field(description="ms since the epoch, where the first interval begins")
    to_ms: int = Field(description="not included, where the last one ends")
    interval_ms: int = Field(ge=1)
    exact: bool = Field(description="all messages were counted, and each in its interval")
    estimated: int = Field(ge=0, description="messages that were spread evenly over the times between which they lie")
    total: int = Field(ge=0, description="number of messages in all intervals")
    counts: list[IntervalOut]
    coverage: CoverageOut


@router.get(
    "/topics/{topic}/counts", operation_id="count_messages", response_model=CountsOut, responses=may_answer(404)
)
@traits(lane=LaneChoice.READ, store=TOPIC_ARCHIVE)
def counts(topic: TopicName, asked: Annotated[CountsIn, Query()], caller: TheCaller, engine: TheReader) -> JSONResponse:
    """Count messages per interval of time in both tiers, without reading them.

    The archive's manifest says how many messages a segment holds, and between which times; directories say it of each
    frame. What lies across intervals even there is spread evenly over its times: `estimated` counts it. Erased messages
    are counted, expired ones are not.
    """
    caller.check(Scope.READ, topic)
    query = CountQuery(
        topic, asked.from_ms, asked.to_ms, asked.axis, asked.buckets,
        interval_ms=asked.interval_ms, max_requests=asked.max_requests, timeout_ms=asked.timeout_ms,
    )  # fmt: skip
    return JSONResponse(engine.counts(query).to_json())
