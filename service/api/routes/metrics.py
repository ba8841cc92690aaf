"""``/metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.metrics import CONTENT_TYPE, Metrics

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Numbers of the store in Prometheus' text format."""
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type=CONTENT_TYPE)
