"""The line on standard error that goes with an exit code."""

from __future__ import annotations

import json
import sys

from tierlog.service.cli.output_style import printable, safe_json
from tierlog.service.exit_codes import exit_code
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.remote.problems import problem_title, problem_type


def say(text: str) -> None:
    """Prints one line on standard error, from us; of what others wrote in it a terminal obeys nothing."""
    print("tierlog: " + printable(" ".join(text.split("\n"))), file=sys.stderr, flush=True)


def say_error(error: StoreError, form: str | None = None) -> None:
    """Prints what failed: a problem document if ``form`` is json or ndjson, else text.

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


def problem_document(error: StoreError) -> dict[str, object]:
    """Makes a document with the members of the service's problems, and the exit code in the place of a status."""
    found: dict[str, object] = {
        "type": problem_type(type(error)),
        "title": problem_title(type(error)),
        "detail": error.message,
        "exit_code": exit_code(error),
    }
    more = {"hint": error.hint, "path": error.path, "position": error.position}
    return found | {name: value for name, value in more.items() if value is not None}
