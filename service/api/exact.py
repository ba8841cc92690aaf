"""Refuses what the document does not name: a misspelt argument would change an answer without a word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import isclass
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from tiering.errors import InvalidRequestError

#: More than any call has; what is over is a burden.
_MOST_ARGUMENTS = 64


@dataclass(frozen=True, slots=True)
class Call:
    """What a call may be given, as the document says it."""

    arguments: frozenset[str]
    forms: tuple[str, ...]
    """Media types that the body may have; none without a body."""

    @classmethod
    def of(cls, route: APIRoute) -> Call:
        """Read from the route itself: making the whole document takes too long for a first request to wait for it."""
        described = (route.openapi_extra or {}).get("requestBody", {}).get("content", ())
        return cls(frozenset(_arguments(route.dependant)), tuple(described))


def _arguments(dependant: Dependant) -> Iterator[str]:
    for given in dependant.query_params:
        model = given.field_info.annotation
        if isclass(model) and issubclass(model, BaseModel):  # each of its fields is an argument
            yield from (field.alias or name for name, field in model.model_fields.items())
        else:
            yield given.alias
    for other in dependant.dependencies:
        yield from _arguments(other)


class ExactRequests:
    """What every route of one application asks; reads a route when it is first to be judged."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}

    async def check(self, scope: Scope) -> None:
        """400 for an argument that is unknown, given twice or no UTF-8; 415 for a body in a form that is not taken."""
        query, headers = scope["query_string"], Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if not query and not has_body:
            return
        route: APIRoute = scope["route"]
        call = self._calls.get(route.unique_id)
        if call is None:
            call = self._calls[route.unique_id] = Call.of(route)
        if query:
            _check_arguments(query, call.arguments)
        if has_body and call.forms:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in call.forms:
                raise HTTPException(415, f"content type {kind!r} is not one of {', '.join(call.forms)}")


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
