"""Writes ``docs/openapi.json`` and ``docs/problems.md`` out of the code: ``python -m docs.tools.openapi``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tierlog.service.api.application.app import routed_app
from tierlog.service.api.errors import STATUS
from tierlog.tiering.base import errors
from tierlog.tiering.cold.reading.bill import BudgetSpentError
from tierlog.tiering.remote.problems import problem_type

_DOCS = Path(__file__).resolve().parents[1]
_HEAD = """# Problems

<!-- Made by `python -m docs.tools.openapi` from tiering/base/errors.py and service/api/errors.py. Change it there. -->

Every failure is answered as `application/problem+json` (RFC 9457): `type`, `title`, `status`, `detail`, and where there
is more to say `hint` (what to do about it), `path` and `position` (the file or object and the byte in it, or the place
of a message in its batch), `request_id` (what the service's log calls the request). `type` and `status` are for
programs, the rest is for people and may change. A `type` that is not in these tables comes from a newer service: go by
the status.

429 and 503 have `Retry-After`, in seconds. After them, and after an answer that was lost, an append is sent again with
its `Idempotency-Key`, so that nothing is appended twice.

| type | status | the same again may succeed | what happened | what to do |
|---|---|---|---|---|
"""
_BLANK = """
## about:blank

Where the status says all there is to say about a request that reached no part of the store:

| status | what happened |
|---|---|
| 404 | nothing is at this path; a slash at its end makes another path of it |
| 405 | the path does not have this method; `Allow` names those that it has |
| 406 | `Accept` rules out every form that the answer has |
| 413 | the body is over `serve.max_request_bytes` |
| 415 | the body is in a form that the call does not take |
| 421 | another node has sent the request on for a store that is not this one's; or, without tokens, the name is not \
the loopback's |
| 422 | the body is not what the document says |
| 500 | an error of the service itself, which its log tells about |
| 503 | the service stops, or is not ready |
"""
#: Classes that only have others below them.
_NEVER = {errors.StoreError}
#: What a client does about a class, and about those below it that have no line of their own.
_ADVICE: dict[type[errors.StoreError], str] = {
    errors.StoreError: "see the service's log",
    errors.InvalidRequestError: "fix the call; `hint` says how",
    errors.MessageTooLargeError: "send less: smaller messages, or fewer at once",
    errors.InvalidHandleError: "use the handle that came with the last delivery",
    errors.NotFoundError: "ask for what there is",
    errors.MemberNotFoundError: "join again",
    errors.ObjectNotFoundError: "run `tierlog check`, then `tierlog repair`",
    errors.CorruptionError: "run `tierlog check`; derived data is made again by `tierlog repair`",
    errors.UnsupportedFormatError: "upgrade the service: a newer one wrote this",
    errors.ConflictError: "look again, then decide again",
    errors.TopicHeldError: "end the hold, if that may be",
    errors.StaleGenerationError: "send a heartbeat and take the assignment from its answer",
    errors.StoreLockedError: "stop the other process, or ask it",
    errors.StoreMismatchError: "start the service with the settings that the store was made with",
    errors.RequestUnderWayError: "send it again in a moment",
    errors.KeyReusedError: "take another Idempotency-Key",
    errors.UnavailableError: "send it again after `Retry-After`",
    errors.InFlightError: "acknowledge what was delivered, then receive again",
    errors.AccessError: "ask who runs the service for the right",
    errors.UnauthenticatedError: "send a token that is known",
    BudgetSpentError: "allow more requests (`max_requests`), or ask for a shorter range",
    errors.FencedError: "go to the service that took over; `tierlog salvage` brings what this one had not archived",
    errors.ReadOnlyError: "repair what the detail names, then restart the service",
    errors.CapacityError: "free space on the service's disk",
    errors.ClosedError: "send it again when the service is back",
}


def openapi() -> str:
    """Returns the document of a service with access control, whose version is that of the calls."""
    document = routed_app(access=True).openapi()
    document["info"]["version"] = "v1"
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def problems() -> str:
    """Returns the page of problems."""
    return _HEAD + "".join(_row(kind) for kind in STATUS if kind not in _NEVER) + _BLANK


def _row(kind: type[errors.StoreError]) -> str:
    meaning = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    advice = next(_ADVICE[each] for each in kind.__mro__ if each in _ADVICE)
    again = "yes" if kind.retryable else "no"
    return f"| `{problem_type(kind)}` | {STATUS[kind]} | {again} | {meaning} | {advice} |\n"


def main() -> int:
    """Writes both."""
    (_DOCS / "openapi.json").write_text(openapi(), encoding="utf-8")
    (_DOCS / "problems.md").write_text(problems(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
