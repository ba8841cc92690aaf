"""The dependencies of routes: the engine, the settings, the caller, the audit log, and the flag that ends long polls.

All are ``async`` although none waits: the framework runs others on threads of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel

from tierlog.service.access.audit import AuditEntry, AuditLog, shortened
from tierlog.service.access.caller import ANYBODY, Caller, Scope
from tierlog.service.api.schemas.parameters import StoreId
from tierlog.service.archive.readers import MessageReader, Served
from tierlog.service.cluster.routing import STORE_ID, StoreRule
from tierlog.service.cluster.view import ClusterView
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.engine.store import Store
from tierlog.service.observing.request_context import current_request
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, UnauthenticatedError


class Audit:
    """Records the admin call of one request, if the service keeps an audit log."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(
        self, caller: Caller, wanted: BaseModel | None = None, *, must: bool = True
    ) -> contextlib.AbstractContextManager[AuditEntry]:
        """Surrounds the act; entered after the caller's right was checked, so that who is refused cannot fill the log.

        ``must`` is as for :meth:`AuditLog.call`. A key to erase is not recorded: it may be what is to be forgotten.
        """
        request, log = self._request, self._log
        if log is None:
            return contextlib.nullcontext(AuditEntry())
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


def _rule(request: Request) -> StoreRule | None:
    """Returns the rule that the route of a request declares for its store."""
    found: StoreRule | None = request.scope["route"].traits.store
    return found


async def _check_store(request: Request, store_id: StoreId = None) -> None:
    """Refuses an unknown store: a request for the store of another node was sent on before it came here."""
    if store_id is None:
        return
    cluster: ClusterView | None = request.app.state.cluster
    own: str | None = request.app.state.engine.store_id if cluster is None else cluster.own_store
    if store_id == own:
        return
    if cluster is not None and own is None:
        rule = _rule(request)
        if rule is None or not rule.reads_archive:  # that may be without a service
            cluster.place_of(store_id)
        return
    raise NotFoundError(
        f"this service has store {own!r} alone and knows no store {store_id!r}",
        hint="stores of one cluster know each other by cluster.address (docs/cluster.md)",
    )


async def _engine(request: Request) -> MessageReader:
    """Returns the reader that answers for the store which the route declares.

    A request that names a store with a service was sent on to that: a store that is named to a querier here has none,
    and is read from its archive.
    """
    engine: Served = request.app.state.engine
    rule = _rule(request)
    if rule is not None and rule.needs_store and engine.own_store is None:
        raise InvalidRequestError(
            "a querier has no store, and only a store can answer this", hint="name the one that is meant by store_id"
        )
    if rule is None or not rule.reads_archive or rule.is_message:
        return engine
    store_id = request.query_params.get(STORE_ID)
    (await _caller(request)).check(Scope.READ)  # before anybody is told which stores there are
    return engine if store_id is None else engine.reader_of(store_id)


async def _deliveries(request: Request) -> Deliveries:
    await _engine(request)  # which refuses for a querier
    deliveries: Deliveries = request.app.state.deliveries
    return deliveries


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _stopping(request: Request) -> threading.Event:
    stopping: threading.Event = request.app.state.stopping
    return stopping


async def _caller(request: Request) -> Caller:
    """Returns the caller that the access middleware found; anybody where no tokens are needed."""
    caller: Caller | None = request.scope.get("tierlog.caller")
    if caller is None:
        if request.app.state.needs_tokens:
            raise UnauthenticatedError("this needs a token")
        return ANYBODY
    return caller


def check_now(request: Request, scope: Scope, topic: str) -> None:
    """Checks the right again in the middle of a long answer: tokens are withdrawn and expire. Thread safe.

    Raises :class:`UnauthenticatedError` or :class:`ForbiddenError`.
    """
    ask: Callable[[], Caller | None] | None = request.scope.get("tierlog.caller_now")
    if ask is None:
        return
    caller = ask()
    if caller is None:
        raise UnauthenticatedError("this token is not known here any more")
    caller.check(scope, topic)


async def _cluster(request: Request) -> ClusterView | None:
    cluster: ClusterView | None = request.app.state.cluster
    return cluster


async def _own_store(request: Request) -> str | None:
    """Returns the store of this service, also where it is alone; None for one without any."""
    engine: Served | None = getattr(request.app.state, "engine", None)
    return engine.store_id if engine is not None else None


async def _audit(request: Request) -> Audit:
    return Audit(request)


#: The argument ``store_id`` of every route that is for a store.
any_store = Depends(_check_store)

# One dependency under three types. The declaration of the route decides what it gives, and a test compares both.
#: For a call that only a store can answer.
TheEngine = Annotated[Store, Depends(_engine)]
#: For a call that this process answers, whatever store is named.
TheServed = Annotated[Served, Depends(_engine)]
#: For a call that only looks: a store, a querier of many, or one archive.
TheReader = Annotated[MessageReader, Depends(_engine)]

#: What the engine's groups were given, for a call that only a store can answer.
TheDeliveries = Annotated[Deliveries, Depends(_deliveries)]
TheSettings = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheCluster = Annotated[ClusterView | None, Depends(_cluster)]
OwnStore = Annotated[str | None, Depends(_own_store)]
TheAudit = Annotated[Audit, Depends(_audit)]
