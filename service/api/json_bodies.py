"""JSON from strangers, read into a model: counted before it is parsed, and refused at its first fault.

A parser makes some hundred bytes of each value, and a model an error of each that it refuses, before anybody can say
that one is enough. So a compiled loop counts the values first; and fields that no model names are few, as no object may
have many. Lists and maps of the models end at their first error (``FailFast``).

Bodies with messages are read elsewhere (``message_bodies``). For all others the caller's right is checked first; then
the body is read, and parsed on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import isclass
from typing import Any, TypeVar, get_args

import numpy as np
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.deps import TheCaller
from tierlog.service.api.limits import body_of, lane_of
from tierlog.service.config.suggestions import did_you_mean
from tierlog.service.wire.documents import JSON
from tierlog.tiering.kernels.json_codec import MOST_DEPTH, measure_value
from tierlog.tiering.kernels.primitives import address_of

M = TypeVar("M", bound=BaseModel)

#: Values, names of fields among them, that one document or message may have: a commit of 10,000 offsets has 90,000, a
#: message with the longest property text there is 33,000. Of the worst, empty lists, these take some 50 MiB.
MOST_VALUES = 1 << 17
#: Members of an object that is no map; the models have 8 fields at most.
_MOST_MEMBERS = 64
#: Errors that are told.
_MOST_ERRORS = 5

#: Raises :class:`ForbiddenError` for a caller who may not ask this at all; it is given the parts of the path.
Right = Callable[[Caller, Mapping[str, str]], None]


def validated(model: type[M], text: bytes, *place: str | int, levels: int = MOST_DEPTH) -> M:
    """Makes a model of the text; called on a thread, as it takes time.

    ``place`` is where the text stands in the body. Objects below the first ``levels`` levels are maps, which may have
    any number of members. :class:`RequestValidationError` tells a few errors at most, and nothing of the text.
    """
    ValueCounter(text).end_of(0, *place, levels=levels)
    return parsed(model, text, *place)


class ValueCounter:
    """A counter of the values in one text, which makes none of them."""

    def __init__(self, text: bytes) -> None:
        self._members, self._found = np.empty(MOST_DEPTH, np.int64), np.zeros(2, np.int64)
        self._text, self._length = np.frombuffer(text or b" ", np.uint8), len(text)
        self._addresses = address_of(self._text), address_of(self._members), address_of(self._found)

    def are_few(self, most: int) -> bool:
        """Whether there are no more than so many in the first one."""
        return self._measure(0, 0, most) >= 0

    def end_of(self, start: int, *place: str | int, levels: int) -> int:
        """Finds the end of the value that begins at ``start``, which a parser may be given then.

        :class:`RequestValidationError` for one with too many values, or too many members in an object of its first
        ``levels`` levels.
        """
        end = self._measure(start, levels, MOST_VALUES)
        if end < 0:
            raise refusal(f"more than {MOST_VALUES} values, or more than {MOST_DEPTH} levels of them", *place)
        if self._found[1] > _MOST_MEMBERS:
            raise refusal(f"an object with more than {_MOST_MEMBERS} fields", *place)
        return end

    def _measure(self, start: int, levels: int, most: int) -> int:
        text, members, found = self._addresses
        return int(
            measure_value(
                text=text,
                length=self._length,
                start=start,
                levels=levels,
                most_values=most,
                members=members,
                found=found,
            )
        )


def parsed(model: type[M], text: bytes, *place: str | int) -> M:
    """Makes the model of a text whose values were counted."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_MOST_ERRORS]
        raise RequestValidationError(
            [
                {
                    "loc": ("body", *place, *one["loc"]),
                    "msg": _unknown_field(model, one["loc"])
                    if one["type"] == "extra_forbidden"
                    else one["msg"].removeprefix("Value error, "),
                    "type": one["type"],
                }
                for one in found
            ]
        ) from None  # frees the text that the model's error keeps


def _unknown_field(model: type[BaseModel], place: Sequence[str | int]) -> str:
    """Says that there is no such field, and which one may be meant."""
    for part in place[:-1]:
        field = next((each for name, each in model.model_fields.items() if part in (each.alias, name)), None)
        model = next(_models_in(field.annotation), model) if field is not None else model
    names = [field.alias or name for name, field in model.model_fields.items()]
    hint = did_you_mean(str(place[-1]), names) or f"there are: {', '.join(names)}"
    return f"no such field; {hint}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def refusal(what: str, *place: str | int) -> RequestValidationError:
    """Returns the error that says that the body is at fault, and where."""
    found: list[dict[str, Any]] = [{"loc": ("body", *place), "msg": what, "type": "value_error"}]
    return RequestValidationError(found)


def to_topic(scope: Scope) -> Right:
    """Returns the right to the topic that the path names."""
    return lambda caller, path: caller.check(scope, path["topic"])


def to_some(scope: Scope) -> Right:
    """Returns the right to any topic: the body names those that are meant, and the route checks them."""
    return lambda caller, path: caller.check(scope)


def to_all(scope: Scope) -> Right:
    """Returns the right to the store as a whole."""
    return lambda caller, path: caller.check_everywhere(scope)


class JsonBody:
    """The body of a route, and who may send one: a dependency whose value is the model.

    Nothing of the body is read for a caller without the right. It is parsed on a thread of the request's lane, few at a
    time. A body that may be absent is None if it is absent or ``null``.
    """

    def __init__(self, model: type[BaseModel], right: Right, *, is_needed: bool = True) -> None:
        self.model, self._right, self._is_needed = model, right, is_needed

    async def __call__(self, request: Request, caller: TheCaller) -> Any:
        """Reads the body; raises :class:`RequestValidationError` for 422, :class:`ForbiddenError` for 403."""
        self._right(caller, request.path_params)
        body = await body_of(request).read()
        if not body and self._is_needed:
            raise refusal("Field required")
        # white space alone is no JSON: it is parsed, and refused
        if not self._is_needed and (not body or body.strip(b" \t\r\n") == b"null"):
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
    """Makes the annotation of a route's argument that is the body."""
    return Depends(JsonBody(model, right, is_needed=is_needed))
