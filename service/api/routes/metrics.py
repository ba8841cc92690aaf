"""The metrics for Prometheus: ``GET /metrics``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tierlog.service.access.caller import Scope
from tierlog.service.api.deps import TheCaller
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.metrics import CONTENT_TYPE, Metrics
from tierlog.service.api.route_traits import traits

router = APIRouter(route_class=LaneRoute, tags=["health"])


@router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@traits(lane=LaneChoice.ALWAYS, store=None)
def metrics(request: Request, caller: TheCaller) -> Response:
    """Numbers of the store in Prometheus' text format; the lag of groups only for who may read every topic."""
    caller.check(Scope.READ)
    found: Metrics = request.app.state.metrics
    return Response(found.text(with_groups=caller.is_unlimited), media_type=CONTENT_TYPE)
