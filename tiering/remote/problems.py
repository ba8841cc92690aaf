"""The error tree as problem types (RFC 9457), so that a client gets back the class that the service raised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError, StoreError, UnavailableError

_PREFIX = "urn:tierlog:problem:"
#: Characters of each text that another service answered with: it stands in our own answer and log.
_MOST_TEXT = 4096
_REFUSED = {400, 404, 405, 415, 422}
#: Statuses after which the same request may go well.
LATER = {429, 502, 503, 504}


def error_classes() -> Iterator[type[StoreError]]:
    """Yields every class of the tree that this process has imported, the root first."""
    waiting: list[type[StoreError]] = [StoreError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.__subclasses__())


def problem_type(kind: type[StoreError]) -> str:
    """Returns the URI of a class: ``TopicNotFoundError`` is ``urn:tierlog:problem:topic-not-found``."""
    words = re.findall("[A-Z][a-z]*", kind.__name__.removesuffix("Error"))
    return _PREFIX + "-".join(words).lower()


def problem_title(kind: type[StoreError]) -> str:
    """Returns what went wrong in a few words, the same for every occurrence."""
    return problem_type(kind).removeprefix(_PREFIX).replace("-", " ")


def error_class(uri: str) -> type[StoreError] | None:
    """Returns the class of a problem type, None if no service sends it.

    A class with a constructor of its own belongs to this side alone.
    """
    return next(
        (kind for kind in error_classes() if problem_type(kind) == uri and kind.__init__ is StoreError.__init__), None
    )


def refusal(status: int, document: Mapping[str, object] | None, who: str) -> StoreError:
    """The error that an answer of 300 or more stands for, redirects too; ``document`` is its JSON object, if it is one.

    ``who`` is what a message calls the service.
    """
    if status < 400:
        return StoreError(f"{who} sends elsewhere ({status})", hint="give the URL of the service itself")
    return answered_error(status, document or {"detail": f"{who} answered {status} without a reason"})


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an answer asks to be left alone, None if it does not; names of headers are lower case."""
    after = headers.get("retry-after", "")
    return float(after) if after.isascii() and after.isdigit() else None


def answered_error(status: int, problem: Mapping[str, object]) -> StoreError:
    """Returns the error that a service answered with; one of a class unknown here is chosen by its status."""
    kind = error_class(str(problem.get("type")))
    if kind is None and status == 413:
        kind = MessageTooLargeError
    elif kind is None:
        kind = InvalidRequestError if status in _REFUSED else UnavailableError if status in LATER else StoreError
    path, position, hint = problem.get("path"), problem.get("position"), problem.get("hint")
    return kind(
        str(problem.get("detail") or problem.get("title") or f"status {status}")[:_MOST_TEXT],
        path=path[:_MOST_TEXT] if isinstance(path, str) else None,
        position=position if isinstance(position, int) else None,
        hint=hint[:_MOST_TEXT] if isinstance(hint, str) else None,
    )
