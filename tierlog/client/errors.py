"""The errors of the client: those that the service answered with, and a few of its own.

A class is chosen by what the caller does about it; :mod:`tiering.base.errors` is the whole tree.

::

    StoreError
    ├── InvalidRequestError (ValueError)   fix the request; nothing was changed
    │   └── MessageTooLargeError           send less at once
    ├── NotFoundError (LookupError)        it is gone, or never was
    │   ├── TopicNotFoundError
    │   ├── MessageNotFoundError
    │   └── MemberNotFoundError            join again
    ├── ConflictError                      look again and decide anew
    │   ├── StaleGenerationError           the queues of the group were shared out anew
    │   ├── RequestUnderWayError           (retryable) the same request is at work
    │   └── KeyReusedError                 take another idempotency key
    ├── UnavailableError (retryable)       it was tried for as long as was allowed; try again later
    │   ├── NoAnswerError                  nobody answered: what was asked for may have been done or not
    │   ├── DeadlineError                  the service gave up: it may have been done or not
    │   ├── OverloadedError                nothing was done
    │   └── IncompleteAnswerError          a query did not search all that it was asked for
    ├── AccessError                        not allowed
    │   ├── UnauthenticatedError           send a token that is known
    │   └── ForbiddenError                 ask for the right
    ├── CapacityError, ReadOnlyError, …    the service needs an operator
    ├── HandlerFailedError                 the consumer's own handler gave up on a message
    └── ClosedError                        make a new instance
"""

from __future__ import annotations

from tierlog.client.models import Coverage, StoredMessage
from tierlog.tiering.base.errors import (
    AccessError,
    CapacityError,
    ClosedError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InvalidRequestError,
    KeyReusedError,
    MemberNotFoundError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotFoundError,
    OverloadedError,
    ReadOnlyError,
    RequestUnderWayError,
    StaleGenerationError,
    StoreError,
    TopicNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)

__all__ = [
    "AccessError",
    "CapacityError",
    "ClosedError",
    "ConflictError",
    "DeadlineError",
    "ForbiddenError",
    "HandlerFailedError",
    "IncompleteAnswerError",
    "InvalidRequestError",
    "KeyReusedError",
    "MemberNotFoundError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "NoAnswerError",
    "NotFoundError",
    "OverloadedError",
    "ReadOnlyError",
    "RequestUnderWayError",
    "StaleGenerationError",
    "StoreError",
    "TopicNotFoundError",
    "UnauthenticatedError",
    "UnavailableError",
]


class NoAnswerError(UnavailableError):
    """Nobody answered, or the connection broke before the answer was there: the work may have been done or not."""


class IncompleteAnswerError(UnavailableError):
    """A page of a query does not cover all that was asked for; ``coverage`` says what it does."""

    def __init__(self, message: str, coverage: Coverage) -> None:
        super().__init__(message, hint="ask again, or read pages and their coverage instead of messages")
        self.coverage = coverage


class HandlerFailedError(StoreError):
    """A handler failed for ``failed_message``, and ``on_failure`` said to stop; what it raised is the cause."""

    def __init__(self, message: str, failed_message: StoredMessage) -> None:
        super().__init__(message)
        self.failed_message = failed_message
