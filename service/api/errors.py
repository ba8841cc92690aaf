"""One table from error class to HTTP status, and one body for all of them: problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tierlog.index.format.errors import CorruptIndexError, DamagedFilterError, OtherIndexFileError
from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.methods import allowed_methods
from tierlog.service.observing.request_context import current_request
from tierlog.tiering.base import errors
from tierlog.tiering.cold.reading.bill import AbandonedError, BudgetSpentError
from tierlog.tiering.remote.problems import problem_title, problem_type
from tierlog.tiering.rocketmq.log_source import NoLogYetError, OffsetGoneError, SourceLostError

_LOG = logging.getLogger("tierlog")
_RETRY_S, _SOON_S = 5, 1
_SOON = (errors.RequestUnderWayError, errors.OverloadedError, errors.InFlightError)
_BAD_ARGUMENT = problem_type(errors.InvalidRequestError)

#: Every class of the tree stands here by itself; a test walks the tree.
STATUS: dict[type[errors.StoreError], int] = {
    errors.StoreError: 500,
    errors.InvalidRequestError: 400,
    errors.MessageTooLargeError: 413,
    errors.InvalidHandleError: 400,
    errors.NotFoundError: 404,
    errors.TopicNotFoundError: 404,
    errors.MessageNotFoundError: 404,
    errors.MemberNotFoundError: 404,
    errors.ObjectNotFoundError: 500,  # an object that should exist, not the one that the client asked for
    errors.CorruptionError: 500,
    errors.ChecksumMismatchError: 500,
    errors.BadMagicError: 500,
    errors.TornRecordError: 500,
    CorruptIndexError: 500,
    DamagedFilterError: 500,
    OtherIndexFileError: 500,
    errors.UnsupportedFormatError: 500,
    errors.ConflictError: 409,
    errors.PreconditionFailedError: 409,
    errors.TopicHeldError: 409,
    errors.StaleGenerationError: 409,
    errors.StoreLockedError: 409,
    errors.StoreMismatchError: 409,
    errors.RequestUnderWayError: 409,
    errors.FollowedError: 409,
    errors.DivergedError: 409,
    errors.KeyReusedError: 422,
    errors.UnavailableError: 503,
    errors.ObjectStoreUnavailableError: 503,
    errors.ThrottledError: 503,
    errors.OutOfResourcesError: 503,
    errors.OverloadedError: 429,
    errors.InFlightError: 429,
    errors.DeadlineError: 503,
    errors.AccessError: 403,
    errors.UnauthenticatedError: 401,
    errors.ForbiddenError: 403,
    BudgetSpentError: 429,
    AbandonedError: 503,
    errors.FencedError: 409,
    errors.ReadOnlyError: 503,
    errors.DiskFailedError: 503,
    errors.CapacityError: 507,
    errors.DiskFullError: 507,
    errors.ClosedError: 503,
    SourceLostError: 503,
    NoLogYetError: 503,
    OffsetGoneError: 404,
}


def problem(
    status: int,
    title: str,
    detail: str,
    *,
    uri: str = "about:blank",
    hint: str | None = None,
    retry_s: int | None = None,
    **extra: object,
) -> JSONResponse:
    """Makes a problem body; ``hint`` and what else is known are members of their own, left out if there is none."""
    request = current_request()
    if request is not None:
        request.problem = title
        extra["request_id"] = request.request_id
    body: dict[str, object] = {"type": uri, "title": title, "status": status, "detail": detail}
    body.update({name: value for name, value in {"hint": hint, **extra}.items() if value is not None})
    if retry_s is None and status in (429, 503):
        retry_s = _RETRY_S
    headers = None if retry_s is None else {"Retry-After": str(retry_s)}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Answers every failure with a problem body. Handlers are ``async``: others would need a thread of those shared."""
    app.add_exception_handler(errors.StoreError, _store_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def store_error(request: Request, error: Any) -> JSONResponse:
    """Makes the answer to what the store raised."""
    kind = type(error)
    status = STATUS.get(kind, 500)
    caller: Caller | None = request.scope.get("tierlog.caller")
    tells = caller is None or caller.may(Scope.READ)  # paths are for those who may see files
    if status == 500:
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(
        status,
        problem_title(kind),
        error.message if tells or not isinstance(error, errors.ReadOnlyError) else "the store is read-only",
        uri=problem_type(kind),
        hint=error.hint,
        retry_s=_SOON_S if kind in _SOON else None,
        path=error.path if tells else None,
        position=error.position,
    )


async def _store_error(request: Request, error: Any) -> JSONResponse:
    return store_error(request, error)


async def _validation_error(request: Request, error: Any) -> JSONResponse:
    return validation_error(error)


def validation_error(error: Any) -> JSONResponse:
    """Answers 400 for an argument of the URL, 422 for a body that is not what it should be."""
    found = error.errors()
    detail = "; ".join(f"{'.'.join(str(part)[:100] for part in one['loc'])}: {one['msg'][:300]}" for one in found[:5])
    if any(one["loc"][:1] == ("body",) for one in found):
        return problem(422, "unprocessable body", detail, hint="/openapi.json describes the body")
    return problem(400, "bad argument", detail, uri=_BAD_ARGUMENT, hint="/openapi.json lists the arguments")


async def _http_error(request: Request, error: Any) -> JSONResponse:
    title = HTTPStatus(error.status_code).phrase.lower()
    more = dict(error.headers or {})
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.method} is not possible at {request.url.path}"
        more["Allow"] = ", ".join(allowed_methods(request.scope))
    answer = problem(error.status_code, title, detail, hint="/openapi.json lists every call")
    answer.headers.update(more)
    return answer


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """Answers 500: the server logs the traceback; the client learns only that it was not at fault."""
    return problem(500, "internal error", "an unexpected error, see the service's log")
