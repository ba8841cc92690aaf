"""Health: alive means that requests are answered, ready that messages are taken."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.api.contract import may_answer
from service.api.deps import TheServed
from service.api.errors import problem
from service.api.lane_route import LaneRoute
from service.api.store_schemas import AliveOut, ReadyOut
from service.querier_engine import QuerierEngine

router = APIRouter(route_class=LaneRoute, tags=["health"])


@router.get("/livez", operation_id="is_alive", response_model=AliveOut)
async def livez() -> JSONResponse:
    """200 as long as the process answers."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz", operation_id="is_ready", response_model=ReadyOut, responses=may_answer(503))
async def readyz(engine: TheServed) -> JSONResponse:
    """200 if messages can be appended, else 503 with the reason.

    An archive that cannot be reached is shown as ``cold_error``, an index that cannot be written as ``index_error``.
    Both leave the store ready: appends and most hot reads go on without them. A querier is ready once its archives
    have answered.
    """
    if isinstance(engine, QuerierEngine):
        if engine.unready_reason is not None:
            return problem(503, "not ready", engine.unready_reason, hint="it goes on asking; see to the archive")
        return JSONResponse({"status": "ready", "cold_error": engine.cold_error, "index_error": None})
    if engine.read_only_reason is not None:
        return problem(
            503, "not ready", f"read-only: {engine.read_only_reason}", hint="see to what the reason names, then restart"
        )
    if engine.disk_full_reason is not None:
        return problem(503, "not ready", engine.disk_full_reason, hint="free space; appends go on by themselves")
    return JSONResponse({"status": "ready", "cold_error": engine.cold_error, "index_error": engine.index_error})
