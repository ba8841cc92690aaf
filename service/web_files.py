"""The files of the page, under names that change with their contents, so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PAGE = "index.html"
#: Where the page's own references begin; replaced by the folder's name.
_PLACEHOLDER = b"/web/-/"


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class WebFiles:
    """All of them: the page, and what it loads, by path below ``/web/<digest>/``."""

    page: WebFile
    digest: str
    parts: Mapping[str, WebFile]


def read_web_files() -> WebFiles:
    """The files of the package. Modules name each other by relative paths, so one digest stands for all."""
    found = dict(sorted(_below(files("service").joinpath("web"))))
    page = found.pop(_PAGE)
    whole = hashlib.sha256()
    for path, content in found.items():
        whole.update(f"{path} {len(content)} ".encode())
        whole.update(content)
    digest = whole.hexdigest()[:16]
    parts = {path: _file(content, _TYPES[path[path.rindex(".") :]]) for path, content in found.items()}
    return WebFiles(_file(page.replace(_PLACEHOLDER, f"/web/{digest}/".encode()), "text/html"), digest, parts)


def _file(content: bytes, media_type: str) -> WebFile:
    return WebFile(content, f"{media_type}; charset=utf-8", f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _below(folder: Traversable, path: str = "") -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _below(entry, f"{path}{entry.name}/")
        elif entry.name.endswith((*_TYPES, _PAGE)):
            found.append((path + entry.name, entry.read_bytes()))
    return found
