"""Routes whose plain functions run on the threads of their lane, and that refuse what the document does not name.

A misspelt argument would otherwise change an answer without a word.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import isclass
from typing import Any, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi.dependencies.models import Dependant
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from tierlog.service.api.deps import any_store
from tierlog.service.api.json_bodies import JsonBody
from tierlog.service.api.lanes import Lane
from tierlog.service.api.route_traits import traits_of
from tierlog.service.cluster.routing import MOST_ARGUMENTS
from tierlog.tiering.base.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class RouteInputs:
    """The arguments and body forms of a call, as the document says."""

    arguments: frozenset[str]
    lists: frozenset[str]
    """Those of them that may be there several times."""
    forms: tuple[str, ...]
    """Media types that the body may have; empty for a call without a body."""

    @classmethod
    def of(cls, route: APIRoute) -> RouteInputs:
        """Reads a route itself: a first request cannot wait until the whole document is made."""
        described = (route.openapi_extra or {}).get("requestBody", {}).get("content", ())
        arguments = dict(_arguments(route.dependant))
        lists = frozenset(name for name, is_list in arguments.items() if is_list)
        return cls(frozenset(arguments), lists, tuple(described))


def _arguments(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yields each argument's name, and whether it is a list."""
    for given in dependant.query_params:
        model = given.field_info.annotation
        if isclass(model) and issubclass(model, BaseModel):  # each of its fields is an argument
            for name, field in model.model_fields.items():
                yield field.alias or name, get_origin(field.annotation) is list
        else:
            yield given.alias, False
    for other in dependant.dependencies:
        yield from _arguments(other)


class StrictRequests:
    """Checks requests against the routes of one application; a route is read when it is first asked for."""

    def __init__(self) -> None:
        self._calls: dict[str, RouteInputs] = {}

    async def check(self, scope: Scope) -> None:
        """Refuses an argument that is unknown, given twice or not UTF-8 (400), and a body in a form not taken (415)."""
        query, headers = scope["query_string"], Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if not query and not has_body:
            return
        route: APIRoute = scope["route"]
        call = self._calls.get(route.unique_id)
        if call is None:
            call = self._calls[route.unique_id] = RouteInputs.of(route)
        if query:
            _check_arguments(query, call.arguments, call.lists)
        if has_body and call.forms:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in call.forms:
                raise HTTPException(415, f"content type {kind!r} is not one of {', '.join(call.forms)}")


def _check_arguments(query: bytes, known: frozenset[str], lists: frozenset[str]) -> None:
    try:
        unquote_to_bytes(query.replace(b"+", b" ")).decode()
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_ARGUMENTS)
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the arguments are not UTF-8", hint="percent-encode the bytes of UTF-8") from error
    except ValueError as error:
        raise InvalidRequestError(f"more than {MOST_ARGUMENTS} arguments") from error
    seen = set()
    for name, _ in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known)) or 'none'}"
            raise InvalidRequestError(f"no such argument {name[:100]!r}", hint=hint)
        if name in seen and name not in lists:
            raise InvalidRequestError(f"argument {name!r} is given twice")
        seen.add(name)


_LANE: ContextVar[Lane] = ContextVar("tierlog_lane")


class LaneRoute(APIRoute):
    """The class of all routes, for ``APIRouter(route_class=LaneRoute)``; the function declares its :func:`traits`.

    A function that is not ``async`` is run by :meth:`Lane.run`: the framework would run it on threads that all kinds of
    requests share. The framework would also read and parse a body on the event loop, before anybody checks the
    caller's rights, so a body comes by :class:`JsonBody` alone.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, dependencies: Sequence[Depends] | None = None, **others: Any
    ) -> None:
        #: The lane and the store that the function declares.
        self.traits = traits_of(endpoint)
        of_a_store = [] if self.traits.store is None else [any_store]
        run = endpoint if inspect.iscoroutinefunction(endpoint) else _on_lane(endpoint)
        super().__init__(path, run, dependencies=[*of_a_store, *(dependencies or ())], **others)
        assert self.body_field is None, f"{path} has a body that the framework reads"
        #: The body of the call; None for a route without one, and for one that reads it itself.
        self.sent = next((one.call for one in self.dependant.dependencies if isinstance(one.call, JsonBody)), None)
        if self.sent is not None:
            self.openapi_extra = {"requestBody": self.sent.described}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, if it is as the document says."""
        if self.methods is not None and scope["method"] in self.methods:
            strict: StrictRequests = scope["app"].state.strict
            await strict.check(scope)
        _LANE.set(scope["tierlog.lane"])
        await super().handle(scope, receive, send)


def _on_lane(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def run(*arguments: Any, **named: Any) -> Any:
        return await _LANE.get().run(functools.partial(endpoint, *arguments, **named))

    return run
