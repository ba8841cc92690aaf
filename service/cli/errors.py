"""Exit codes, and the one line on standard error that goes with them."""

from __future__ import annotations

import sys

from tiering import errors

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
    """One line on standard error, from us."""
    print("tierlog: " + " ".join(text.split("\n")), file=sys.stderr, flush=True)
