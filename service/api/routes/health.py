"""Health: alive means that requests are answered, ready that messages are taken.

Everybody may ask for it, also without a token: every route of this module is open (:mod:`service.api.application.app`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheServed
from tierlog.service.api.errors import problem
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.stores import AliveOut, ReadyOut
from tierlog.service.follow.followed_broker import FollowedBroker

router = APIRouter(route_class=LaneRoute, tags=["health"])


@router.get("/livez", operation_id="is_alive", response_model=AliveOut)
@traits(lane=LaneChoice.ALWAYS, store=None)
async def livez() -> JSONResponse:
    """200 as long as the process answers."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz", operation_id="is_ready", response_model=ReadyOut, responses=may_answer(503))
@traits(lane=LaneChoice.ALWAYS, store=None)
async def readyz(request: Request, engine: TheServed) -> JSONResponse:
    """200 if messages can be appended, else 503 with the reason.

    An archive that cannot be reached is shown as ``cold_error``, an index that cannot be written as ``index_error``.
    Both leave the store ready: appends and most hot reads go on without them. So does ``follow_error``, the broker that
    is not followed or is too far ahead: what is here is answered from. So does ``damage``, the ranges of the log
    in which nothing can be read: who took the store away for it would take all the rest away too. A querier is ready
    once its archives have answered. Reasons name files and addresses: where tokens are needed, who sends none that may
    read learns only which part it is.
    """
    shows_reasons = _shows_reasons(request)
    if (found := engine.readiness_problem) is not None:
        return problem(503, "not ready", found.reason if shows_reasons else found.part, hint=found.hint)
    cold_error, index_error, damage = engine.cold_error, engine.index_error, engine.damage
    if not shows_reasons:
        cold_error = cold_error and "the archive does not answer"
        index_error = index_error and "the index cannot be written"
        damage = damage and "part of the log cannot be read"
    follow_error = _follow_error(request, shows_reasons=shows_reasons)
    return JSONResponse(
        {
            "status": "ready",
            "cold_error": cold_error,
            "index_error": index_error,
            "damage": damage,
            "follow_error": follow_error,
        }
    )


def _follow_error(request: Request, *, shows_reasons: bool) -> str | None:
    """Returns the first reason why a broker is not followed as it should be; None if all are, or none is."""
    brokers: Sequence[FollowedBroker] = request.app.state.followed()
    problems = [found for broker in brokers if (found := broker.problem) is not None]
    return (problems[0].reason if shows_reasons else problems[0].part) if problems else None


def _shows_reasons(request: Request) -> bool:
    caller: Caller | None = request.scope.get("tierlog.caller")
    return not request.app.state.needs_tokens if caller is None else caller.may(Scope.READ)
