"""Filters of a query beside key and time: by tag, by text in the body, by properties and fields of a JSON body.

They look at messages that were read anyway, so they save no request; what they cost is what has to be read to find a
page of matches. All of them must hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.tags import TagFilter

MOST_FILTERS = 16
"""Texts, and as many fields."""
MOST_FILTER_BYTES = 1024
"""Of one filter, as UTF-8."""
MOST_PATH_NAMES = 32
"""Names in the dotted path of a field."""
MOST_JSON_BYTES = 1 << 20
"""A longer body is not taken apart: none of its fields match."""


class _Number(str):
    """The text of a number in a body; no text of a JSON string is one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldFilter:
    """A name and the text that a property, or a field of a JSON body, of that name must have."""

    name: str
    value: str

    def matches(self, message: StoredMessage) -> bool:
        """Whether a property has the value, or else the field at the dotted path of a body that is a JSON object."""
        if message.properties.get(self.name) == self.value:
            return True
        body, _ = message.readable_body()
        if len(body) > MOST_JSON_BYTES or body.lstrip(b" \t\r\n")[:1] != b"{":
            return False
        if b"\\" not in body and self.value.encode() not in body:  # without escapes a value stands there as it is
            return False
        try:
            found = json.loads(
                body.decode(), parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
            )  # fmt: skip
        except (ValueError, RecursionError):
            return False
        return any(_text_of(value) == self.value for value in _at_path(found, self.name))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _at_path(value: object, path: str) -> Iterable[object]:
    """Yields the values at a dotted path; a member whose own name has dots counts as well."""
    if not isinstance(value, dict):
        return
    if path in value:
        yield value[path]
    dot = path.find(".")
    while dot >= 0:
        if path[:dot] in value:
            yield from _at_path(value[path[:dot]], path[dot + 1 :])
        dot = path.find(".", dot + 1)


def _text_of(value: object) -> str | None:
    """Returns what a filter compares: the text of a string or a number, ``true``, ``false`` or ``null``."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return None


@dataclass(frozen=True, slots=True)
class MessageFilters:
    """What a message must have to be an answer, beside topic, key and time."""

    tags: TagFilter | None
    texts: tuple[bytes, ...]
    fields: tuple[FieldFilter, ...]

    @classmethod
    def of(
        cls, tag: str | None, contains: tuple[str, ...], where: tuple[tuple[str, str], ...]
    ) -> MessageFilters | None:
        """Returns the filters; None where every message passes. Raises :class:`InvalidRequestError` for bad ones."""
        if max(len(contains), len(where)) > MOST_FILTERS:
            raise InvalidRequestError(f"more than {MOST_FILTERS} filters of one kind")
        texts = tuple(_checked("text that a body is to contain", text) for text in contains)
        for name, value in where:
            _checked("name of a field", name)
            _checked("value of a field", value, may_be_empty=True)
            if name.count(".") >= MOST_PATH_NAMES:
                raise InvalidRequestError(f"a field more than {MOST_PATH_NAMES} names deep: {name[:100]!r}")
            if "=" in name:
                raise InvalidRequestError(f"the name of a field cannot have '=': {name[:100]!r}")
        tags = TagFilter.parse(tag)
        if tags is None and not texts and not where:
            return None
        return cls(tags, texts, tuple(FieldFilter(name, value) for name, value in where))

    def match(self, message: StoredMessage) -> bool:
        """Whether a message passes all of them; never raises, whatever its body is."""
        if self.tags is not None and message.tag not in self.tags.tags:
            return False
        if self.texts:
            body, _ = message.readable_body()
            if not all(text in body for text in self.texts):
                return False
        return all(field.matches(message) for field in self.fields)


def _checked(what: str, text: str, *, may_be_empty: bool = False) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"a {what} has half of a surrogate pair") from error
    if not data and not may_be_empty:
        raise InvalidRequestError(f"an empty {what}")
    if len(data) > MOST_FILTER_BYTES:
        raise InvalidRequestError(f"a {what} of {len(data)} bytes", hint=f"at most {MOST_FILTER_BYTES}")
    return data


def parse_where(text: str) -> tuple[str, str]:
    """Reads ``name=value``; the first ``=`` ends the name. Raises :class:`InvalidRequestError` without one."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequestError(f"{text[:100]!r} is not name=value", hint="for example region=eu or order.id=4711")
    return name, value
