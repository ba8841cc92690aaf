"""What an admin call says about itself in the audit log."""

from __future__ import annotations

import contextlib

from fastapi import Request
from pydantic import BaseModel

from service.access.audit import Act, AuditLog, shortened
from service.access.caller import Caller
from service.observing.requests import current_request


class Audit:
    """Puts one request's admin call on record, if the service keeps a log of them."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(
        self, caller: Caller, wanted: BaseModel | None = None, *, must: bool = True
    ) -> contextlib.AbstractContextManager[Act]:
        """Around the act, after its caller's right was checked: who is refused may not fill the log.

        ``must`` as for :meth:`AuditLog.call`. A key to erase is not recorded: it may be the very thing to be forgotten.
        """
        request, log = self._request, self._log
        if log is None:
            return contextlib.nullcontext(Act())
        notes = current_request()
        parameters = {} if wanted is None else wanted.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if "key" in parameters:
            parameters["by_key"] = parameters.pop("key") is not None
        who = {
            "caller": caller.name,
            "peer": request.client.host if request.client else None,
            "request_id": notes and notes.request_id,
        }
        what = {
            "method": request.method,
            "path": shortened(request.url.path),
            "parameters": {name: shortened(value) for name, value in parameters.items()},
        }
        return log.call(who, what, must=must)

    @property
    def _log(self) -> AuditLog | None:
        log: AuditLog | None = self._request.app.state.audit
        return log
