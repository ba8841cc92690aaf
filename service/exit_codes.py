"""The exit codes of every command, and the one that each error ends with."""

from __future__ import annotations

from tierlog.tiering.base import errors

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
    """Returns the exit code of a command that ended with ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
