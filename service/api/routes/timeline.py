"""The store at a glance, for a drawing: ``GET /v1/timeline``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from tierlog.service.access.caller import Scope
from tierlog.service.api.deps import TheCaller, TheEngine
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.parameters import MAX_OFFSET, TIMES, Number, Time
from tierlog.service.cluster.routing import ONE_STORE
from tierlog.service.engine.timeline import DEFAULT_BLOCKS, MAX_BLOCKS, TimelineView
from tierlog.tiering.base.types import END_OF_TIME_MS, TimeAxis, TimeRange

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["store"])


class TimelineIn(BaseModel):
    """The part of the store that is wanted: what reaches into a range of times and of the log, both half-open."""

    axis: TimeAxis = Field(
        default=TimeAxis.STORE,
        alias="time",
        description="of which `from` and `to` are; files whose born times are not known are told all the same",
    )
    from_ms: Time = Field(default=0, alias="from", description=f"first time; {TIMES}")
    to_ms: Time = Field(default=END_OF_TIME_MS, alias="to", description=f"end of them, not included; {TIMES}")
    from_offset: Number = Field(default=0, ge=0, le=MAX_OFFSET, description="first physical offset")
    to_offset: Number = Field(default=MAX_OFFSET, ge=0, le=MAX_OFFSET, description="physical offset behind the last")
    blocks: Number = Field(
        default=DEFAULT_BLOCKS, ge=1, le=MAX_BLOCKS, description="in how many blocks a row of files is told, about"
    )
    known_version: Annotated[Number, Field(ge=0, le=MAX_OFFSET)] | None = Field(
        default=None,
        description="manifest version whose `cold` you have for the same range: null if still so",
    )


class BlockOut(BaseModel):
    """A file, or `count` neighbours of one state. Physical offsets are half-open, times inclusive ms.

    Born times of a hot segment are null: they are known once it is archived. `level`: how often an index object was
    merged, 0 to 3. `level`, `bytes` and `records` are null where a view is so wide that the entries themselves were not
    read, `name` for more than one file.
    """

    kind: Literal["segment", "index", "classic index"]
    tier: Literal["hot", "cold"]
    state: str
    level: int | None
    name: str | None
    count: int
    first_offset: int
    next_offset: int
    bytes: int | None
    min_store_ms: int | None
    max_store_ms: int | None
    min_born_ms: int | None
    max_born_ms: int | None
    records: int | None


class TimelineOut(BaseModel):
    """Blocks of both tiers, and the marks of the whole store. `log_begin` is the border, where the hot tier begins.

    `from_ms` and `to_ms` are of `time`, as far as files say; `border_ms` is a store time, and null for born times.
    """

    store_id: str
    log_begin: int
    log_end: int
    archived_to: int | None
    indexed_to: int | None
    cold_min: int | None
    manifest_version: int | None
    time: TimeAxis
    from_ms: int | None
    to_ms: int | None
    border_ms: int | None
    hot: list[BlockOut]
    cold: list[BlockOut] | None
    cold_error: str | None


@router.get("/timeline", operation_id="get_timeline", response_model=TimelineOut)
@traits(lane=LaneChoice.READ, store=ONE_STORE)
def timeline(asked: Annotated[TimelineIn, Query()], caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """The same files as `GET /v1/files` as blocks along the log, few enough to draw however many there are.

    Ask again with `known_version`, and archived blocks come only after the archive has changed.
    """
    caller.check(Scope.READ)
    times = TimeRange.asked(asked.from_ms, asked.to_ms)
    view = TimelineView(times, asked.from_offset, asked.to_offset, asked.blocks, asked.known_version, asked.axis)
    return JSONResponse(engine.timeline(view).to_json())
