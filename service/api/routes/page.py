"""The page at ``/``, the API for people at ``/docs``, and the files that they load: all from this service.

The names of the files change with their contents, so that browsers may keep them for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response

from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.tiering.base.errors import NotFoundError

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PAGE, _DOCS = "index.html", "docs.html"
#: Where the references of the pages begin; it is replaced by the name of the folder.
_PLACEHOLDER = b"/web/-/"


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class WebFiles:
    """All files: the pages by name, and what they load, by path below ``/web/<digest>/``."""

    pages: Mapping[str, WebFile]
    digest: str
    parts: Mapping[str, WebFile]


def read_web_files() -> WebFiles:
    """Reads the files of the package. Modules name each other by relative paths, so one digest stands for all."""
    found = dict(sorted(_below(files("tierlog.service").joinpath("web"))))
    pages = {name: found.pop(name) for name in (_PAGE, _DOCS)}
    whole = hashlib.sha256()
    for path, content in found.items():
        whole.update(f"{path} {len(content)} ".encode())
        whole.update(content)
    digest = whole.hexdigest()[:16]
    parts = {path: _file(content, _TYPES[path[path.rindex(".") :]]) for path, content in found.items()}
    named = f"/web/{digest}/".encode()
    made = {name: _file(page.replace(_PLACEHOLDER, named), "text/html") for name, page in pages.items()}
    return WebFiles(made, digest, parts)


def _file(content: bytes, media_type: str) -> WebFile:
    return WebFile(content, f"{media_type}; charset=utf-8", f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _below(folder: Traversable, path: str = "") -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _below(entry, f"{path}{entry.name}/")
        elif entry.name.endswith((*_TYPES, _PAGE, _DOCS)):
            found.append((path + entry.name, entry.read_bytes()))
    return found


router = APIRouter(route_class=LaneRoute, include_in_schema=False)

#: Scripts, styles and requests of this service alone, and nothing that turns text into markup.
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
@traits(lane=LaneChoice.ALWAYS, store=None)
async def page(request: Request) -> Response:
    """The page; asked for again each time, and sent only if it has changed."""
    return _answer(request, _files().pages[_PAGE], "no-cache")


@router.get("/docs")
@traits(lane=LaneChoice.ALWAYS, store=None)
async def docs(request: Request) -> Response:
    """The API for people, made in the browser of the same document that programs read; asked for as the page is."""
    return _answer(request, _files().pages[_DOCS], "no-cache")


@router.get("/web/{digest}/{path:path}")
@traits(lane=LaneChoice.ALWAYS, store=None)
async def part(request: Request, digest: str, path: str) -> Response:
    """What a page loads. A folder of another digest is another version's, which is not here."""
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
