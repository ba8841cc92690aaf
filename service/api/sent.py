"""Bodies that are no messages: the caller's right first, then the body, which is read and taken apart on a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Depends, Request
from pydantic import BaseModel

from service.access.caller import Caller, Scope
from service.api.deps import TheCaller
from service.api.first_error import refusal, validated
from service.api.limits import body_of, lane_of
from service.wire import JSON

#: Raises :class:`ForbiddenError` for a caller who may not ask this at all; it is given the parts of the path.
Right = Callable[[Caller, Mapping[str, str]], None]


def to_topic(scope: Scope) -> Right:
    """For the topic that the path names."""
    return lambda caller, path: caller.check(scope, path["topic"])


def to_some(scope: Scope) -> Right:
    """For any topic: those that are meant are named in the body, and are looked at by the route."""
    return lambda caller, path: caller.check(scope)


def to_all(scope: Scope) -> Right:
    """For the store as a whole."""
    return lambda caller, path: caller.check_everywhere(scope)


class Sent:
    """What a route's body has to be, and who may send one: a dependency whose value is the model.

    Nothing of the body is read for a caller without the right. It is taken apart on a thread of the request's lane, few
    at a time. One that may be absent is None then, as is one that is ``null``.
    """

    def __init__(self, model: type[BaseModel], right: Right, *, is_needed: bool = True) -> None:
        self.model, self._right, self._is_needed = model, right, is_needed

    async def __call__(self, request: Request, caller: TheCaller) -> Any:
        """The body, or 422 by :class:`RequestValidationError`, 403 by :class:`ForbiddenError`."""
        self._right(caller, request.path_params)
        body = await body_of(request).read()
        if not body and self._is_needed:
            raise refusal("Field required")
        if not self._is_needed and body.strip() in (b"", b"null"):
            return None
        parsing = request.app.state.lanes.parsing

        def parsed() -> BaseModel:
            with parsing:
                return validated(self.model, body)

        return await lane_of(request).run(parsed)

    @property
    def described(self) -> dict[str, Any]:
        """The request body for OpenAPI."""
        schema: dict[str, Any] = {"$ref": f"#/components/schemas/{self.model.__name__}"}
        if self._is_needed:
            return {"required": True, "content": {JSON: {"schema": schema}}}
        return {"content": {JSON: {"schema": {"anyOf": [schema, {"type": "null"}], "title": "Wanted"}}}}


def sent(model: type[BaseModel], right: Right, *, is_needed: bool = True) -> Any:
    """For the annotation of a route's argument."""
    return Depends(Sent(model, right, is_needed=is_needed))
