"""What a call is answered with: the code of every error, in one place."""

from __future__ import annotations

from typing import Any

from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base import errors

Code: Any = enums.Code


class RefusedError(Exception):
    """The call, or one of its entries, is refused with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


#: The first class that an error is of decides.
_CODES: tuple[tuple[type[errors.StoreError], int], ...] = (
    (errors.MessageTooLargeError, Code.MESSAGE_BODY_TOO_LARGE),
    (errors.InvalidRequestError, Code.BAD_REQUEST),
    (errors.TopicNotFoundError, Code.TOPIC_NOT_FOUND),
    (errors.MessageNotFoundError, Code.MESSAGE_NOT_FOUND),
    (errors.NotFoundError, Code.NOT_FOUND),
    (errors.UnauthenticatedError, Code.UNAUTHORIZED),
    (errors.ForbiddenError, Code.FORBIDDEN),
    (errors.DeadlineError, Code.REQUEST_TIMEOUT),
    (errors.UnavailableError, Code.TOO_MANY_REQUESTS),
    (errors.ConflictError, Code.PRECONDITION_FAILED),
    (errors.DiskFullError, Code.INTERNAL_SERVER_ERROR),
    (errors.StoreError, Code.INTERNAL_SERVER_ERROR),
)
OK = messages.Status(code=Code.OK, message="OK")


def status_of(error: BaseException) -> Any:
    """Returns the status that says what went wrong; of an error that nobody expected, no words."""
    if isinstance(error, RefusedError):
        return messages.Status(code=error.code, message=str(error))
    if isinstance(error, errors.StoreError):
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        return messages.Status(code=code, message=_words(error))
    return messages.Status(code=Code.INTERNAL_ERROR, message="an error inside the service; its log has it")


def common_status(statuses: list[Any]) -> Any:
    """Returns the status of a call whose parts have these: theirs if all have the same code."""
    codes = {status.code for status in statuses}
    if len(codes) == 1:
        return statuses[0]
    return messages.Status(code=Code.MULTIPLE_RESULTS, message="each entry has its own")


def _words(error: errors.StoreError) -> str:
    """The message with its hint; not the path, which is the service's own affair."""
    return error.message if error.hint is None else f"{error.message}; {error.hint}"
