"""JSON from strangers, taken by a model: counted before it is parsed, and refused at the first that is wrong with it.

A parser makes some hundred bytes of each value, and a model an error of each that it refuses, before anybody can say
that one is enough. So a compiled loop counts the values first; and fields that no model names are few, as no object may
have many. Lists and maps of the models end at their first error (``FailFast``).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from tiering.kernels.addresses import address_of
from tiering.kernels.json_shape import MOST_DEPTH, measure_value

M = TypeVar("M", bound=BaseModel)

#: Values, names of fields among them, that one document or message may have: a commit of 10,000 offsets has 90,000, a
#: message with the longest property text there is 33,000. Of the worst, empty lists, these take some 50 MiB.
MOST_VALUES = 1 << 17
#: Members of an object that is no map; the models have 8 fields at most.
_MOST_MEMBERS = 64
#: Errors that are told.
_MOST_ERRORS = 5


def validated(model: type[M], text: bytes, *place: str | int, levels: int = MOST_DEPTH) -> M:
    """What the model makes of the text; on a thread, as it takes time.

    ``place`` is where the text stands in the body. Objects below the first ``levels`` levels are maps, which may have
    any number of members. :class:`RequestValidationError` tells a few errors at most, and nothing of the text.
    """
    Values(text).end_of(0, *place, levels=levels)
    return parsed(model, text, *place)


class Values:
    """The values in one text, counted without making any."""

    def __init__(self, text: bytes) -> None:
        self._members, self._found = np.empty(MOST_DEPTH, np.int64), np.zeros(2, np.int64)
        self._text, self._length = np.frombuffer(text or b" ", np.uint8), len(text)
        self._addresses = address_of(self._text), address_of(self._members), address_of(self._found)

    def are_few(self, most: int) -> bool:
        """Whether there are no more than so many in the first one."""
        return self._measure(0, 0, most) >= 0

    def end_of(self, start: int, *place: str | int, levels: int) -> int:
        """Where the value ends that begins at ``start``, which a parser may be given then.

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
        return int(measure_value(text, self._length, start, levels, most, members, found))


def parsed(model: type[M], text: bytes, *place: str | int) -> M:
    """What the model makes of a text that was counted."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_MOST_ERRORS]
        raise RequestValidationError(
            [
                {
                    "loc": ("body", *place, *one["loc"]),
                    "msg": one["msg"].removeprefix("Value error, "),
                    "type": one["type"],
                }
                for one in found
            ]
        ) from None  # what the model keeps of the text goes with it


def refusal(what: str, *place: str | int) -> RequestValidationError:
    """What says that the body is at fault, and where."""
    found: list[dict[str, Any]] = [{"loc": ("body", *place), "msg": what, "type": "value_error"}]
    return RequestValidationError(found)
