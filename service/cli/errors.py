"""Exit codes, and the one line on standard error that goes with them."""

from __future__ import annotations

import json
import sys

from service.cli.look import printable, safe_json
from tiering import errors
from tiering.problems import problem_title, problem_type

DONE = 0
NOTHING = 1
WRONG_USE = 2
FAILED = 3
INCOMPLETE = 4

#: The first class that fits decides; what is not here has failed.
_CODES: tuple[tuple[type[errors.StoreError], int], ...] = (
    (errors.InvalidRequestError, WRONG_USE),
    (errors.TopicNotFoundError, WRONG_USE),
    (errors.StoreLockedError, WRONG_USE),
    (errors.StoreMismatchError, WRONG_USE),
    (errors.ObjectNotFoundError, FAILED),
    (errors.NotFoundError, NOTHING),
)


def exit_code(error: errors.StoreError) -> int:
    """The exit code of a command that ended with ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def say(text: str) -> None:
    """One line on standard error, from us; of what others wrote in it a terminal obeys nothing."""
    print("tierlog: " + printable(" ".join(text.split("\n"))), file=sys.stderr, flush=True)


def say_error(error: errors.StoreError, form: str | None = None) -> None:
    """What failed, for who asked: a problem document if ``form`` is json or ndjson, else text.

    On a terminal the hint has a line of its own; in a pipe all is one line.
    """
    if form in ("json", "ndjson"):
        print(safe_json(json.dumps(problem_document(error), ensure_ascii=False)), file=sys.stderr, flush=True)
        return
    if not sys.stderr.isatty() or not error.hint:
        say(str(error))
        return
    say(str(error).removesuffix(f"; {error.hint}"))
    print("hint: " + printable(" ".join(error.hint.split("\n"))), file=sys.stderr, flush=True)


def problem_document(error: errors.StoreError) -> dict[str, object]:
    """The members of the service's problem documents, and the exit code in the place of a status."""
    found: dict[str, object] = {
        "type": problem_type(type(error)),
        "title": problem_title(type(error)),
        "detail": error.message,
        "exit_code": exit_code(error),
    }
    more = {"hint": error.hint, "path": error.path, "position": error.position}
    return found | {name: value for name, value in more.items() if value is not None}
