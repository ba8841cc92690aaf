"""Refuses what the document does not name: a misspelt argument would change an answer without a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from tiering.errors import InvalidRequestError

#: More than any call has; what is over is a burden.
_MOST_ARGUMENTS = 64


@dataclass(frozen=True, slots=True)
class _Call:
    arguments: frozenset[str]
    forms: tuple[str, ...]
    """Media types that the body may have; none without a body."""


class ExactRequests:
    """What every route of one application asks; reads the document once, when there is first anything to be judged."""

    def __init__(self) -> None:
        self._calls: Mapping[tuple[str, str], _Call] | None = None

    async def check(self, scope: Scope) -> None:
        """400 for an argument that is unknown, given twice or no UTF-8; 415 for a body in a form that is not taken."""
        query, headers = scope["query_string"], Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if not query and not has_body:
            return
        if self._calls is None:
            self._calls = await run_in_threadpool(_calls_of, scope["app"])
        call = self._calls.get((scope["route"].path, scope["method"]), _Call(frozenset(), ()))
        if query:
            _check_arguments(query, call.arguments)
        if has_body and call.forms:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in call.forms:
                raise HTTPException(415, f"content type {kind!r} is not one of {', '.join(call.forms)}")


def _calls_of(app: FastAPI) -> dict[tuple[str, str], _Call]:
    found = {}
    for path, methods in app.openapi()["paths"].items():
        for method, described in methods.items():
            names = (one["name"] for one in described.get("parameters", ()) if one["in"] == "query")
            forms: dict[str, Any] = described.get("requestBody", {}).get("content", {})
            found[path, method.upper()] = _Call(frozenset(names), tuple(forms))
    return found


def _check_arguments(query: bytes, known: frozenset[str]) -> None:
    try:
        unquote_to_bytes(query.replace(b"+", b" ")).decode()
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_ARGUMENTS)
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the arguments are not UTF-8", hint="percent-encode the bytes of UTF-8") from error
    except ValueError as error:
        raise InvalidRequestError(f"more than {_MOST_ARGUMENTS} arguments") from error
    seen = set()
    for name, _ in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known)) or 'none'}"
            raise InvalidRequestError(f"no such argument {name[:100]!r}", hint=hint)
        if name in seen:
            raise InvalidRequestError(f"argument {name!r} is given twice")
        seen.add(name)
