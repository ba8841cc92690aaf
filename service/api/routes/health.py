"""Health: alive means that requests are answered, ready that messages are taken."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.access.caller import Caller, Scope
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
async def readyz(request: Request, engine: TheServed) -> JSONResponse:
    """200 if messages can be appended, else 503 with the reason.

    An archive that cannot be reached is shown as ``cold_error``, an index that cannot be written as ``index_error``.
    Both leave the store ready: appends and most hot reads go on without them. A querier is ready once its archives
    have answered. Reasons name files and addresses: where tokens are needed, who sends none that may read learns only
    which part it is.
    """
    tells = _tells_reasons(request)
    if isinstance(engine, QuerierEngine):
        unready, index_error = engine.unready_reason, None
        if unready is not None:
            reason = unready if tells else "an archive or the cluster table has not answered yet"
            return problem(503, "not ready", reason, hint="it goes on asking; see to the archive")
    else:
        read_only, full, index_error = engine.read_only_reason, engine.disk_full_reason, engine.index_error
        if read_only is not None:
            reason = f"read-only: {read_only}" if tells else "the store is read-only"
            return problem(503, "not ready", reason, hint="see to what the reason names, then restart")
        if full is not None:
            reason = full if tells else "the disk is full"
            return problem(503, "not ready", reason, hint="free space; appends go on by themselves")
    cold_error = engine.cold_error
    if not tells:
        cold_error = cold_error and "the archive does not answer"
        index_error = index_error and "the index cannot be written"
    return JSONResponse({"status": "ready", "cold_error": cold_error, "index_error": index_error})


def _tells_reasons(request: Request) -> bool:
    caller: Caller | None = request.scope.get("tierlog.caller")
    return not request.app.state.needs_tokens if caller is None else caller.may(Scope.READ)
