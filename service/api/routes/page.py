"""The page at ``/``: one file that needs nothing from anywhere else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.lane_route import LaneRoute

router = APIRouter(route_class=LaneRoute, include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@cache
def _page() -> str:
    return files("service").joinpath("web", "index.html").read_text(encoding="utf-8")


@router.get("/")
async def page() -> HTMLResponse:
    """The page."""
    return HTMLResponse(_page(), headers=_HEADERS)
