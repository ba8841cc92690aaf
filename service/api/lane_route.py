"""Routes whose plain functions run on the threads of the request's lane."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from service.api.exact import ExactRequests
from service.api.lanes import Lane
from service.api.sent import Sent

_LANE: ContextVar[Lane] = ContextVar("tierlog_lane")


class LaneRoute(APIRoute):
    """For ``APIRouter(route_class=LaneRoute)``: what is not ``async`` is run by :meth:`Lane.run`.

    The framework would run it on threads that all kinds of requests share. It would also read a body and take it apart
    on the event loop, before anybody asks for the caller's rights: so a route has none but by :class:`Sent`.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **others: Any) -> None:
        super().__init__(path, endpoint if inspect.iscoroutinefunction(endpoint) else _on_lane(endpoint), **others)
        assert self.body_field is None, f"{path} has a body that the framework reads"
        #: What the body has to be; None for routes without one, and for those that read it themselves.
        self.sent = next((one.call for one in self.dependant.dependencies if isinstance(one.call, Sent)), None)
        if self.sent is not None:
            self.openapi_extra = {"requestBody": self.sent.described}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is as the document says."""
        if self.methods is not None and scope["method"] in self.methods:
            exact: ExactRequests = scope["app"].state.exact
            await exact.check(scope)
        _LANE.set(scope["tierlog.lane"])
        await super().handle(scope, receive, send)


def _on_lane(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def run(*arguments: Any, **named: Any) -> Any:
        return await _LANE.get().run(functools.partial(endpoint, *arguments, **named))

    return run
