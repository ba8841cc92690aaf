"""The error tree as problem types (RFC 9457), so that a client gets back the class that the service raised."""

from __future__ import annotations

import re
from collections.abc import Iterator

import index.errors  # noqa: F401  its classes belong to the tree
from tiering.errors import StoreError

_PREFIX = "urn:tierlog:problem:"


def error_classes() -> Iterator[type[StoreError]]:
    """Every class of the tree, the root first."""
    waiting: list[type[StoreError]] = [StoreError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.__subclasses__())


def problem_type(kind: type[StoreError]) -> str:
    """The URI of a class: ``TopicNotFoundError`` is ``urn:tierlog:problem:topic-not-found``."""
    words = re.findall("[A-Z][a-z]*", kind.__name__.removesuffix("Error"))
    return _PREFIX + "-".join(words).lower()


def problem_title(kind: type[StoreError]) -> str:
    """What went wrong in a few words, the same for every occurrence."""
    return problem_type(kind).removeprefix(_PREFIX).replace("-", " ")


def error_class(uri: str) -> type[StoreError] | None:
    """The class of a problem type, None if it is none of ours."""
    return next((kind for kind in error_classes() if problem_type(kind) == uri), None)
