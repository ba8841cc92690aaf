"""The page at ``/`` and the files it loads, all from here: it needs nothing from anywhere else."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Request, Response

from service.api.lane_route import LaneRoute
from service.web_files import WebFile, WebFiles, read_web_files
from tiering.errors import NotFoundError

router = APIRouter(route_class=LaneRoute, include_in_schema=False)

#: No script, style or request but to this service, and nothing that makes markup of text.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def _files() -> WebFiles:
    return read_web_files()


@router.get("/")
async def page(request: Request) -> Response:
    """The page; asked for again each time, and sent only if it has changed."""
    return _answer(request, _files().page, "no-cache")


@router.get("/web/{digest}/{path:path}")
async def part(request: Request, digest: str, path: str) -> Response:
    """What the page loads. A folder of another digest is another version's, which is not here."""
    files = _files()
    found = files.parts.get(path) if digest == files.digest else None
    if found is None:
        raise NotFoundError(f"there is no file {path!r} of the page here", hint="load the page again")
    return _answer(request, found, "public, max-age=31536000, immutable")


def _answer(request: Request, file: WebFile, caching: str) -> Response:
    headers = {**_HEADERS, "ETag": file.etag, "Cache-Control": caching}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
