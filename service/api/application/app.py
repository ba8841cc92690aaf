"""The REST API as an ASGI application over one open engine: its routes, what they share, and the layers around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.api import errors
from tierlog.service.api.answers import AnswerMemory, Answers
from tierlog.service.api.application.append_fast_path import AppendFastPath
from tierlog.service.api.application.authentication import LocalOnly, RequireToken, cross_origin
from tierlog.service.api.application.compression import Compression
from tierlog.service.api.application.forwarding import Forwarding
from tierlog.service.api.application.node_session import load_client
from tierlog.service.api.application.request_log import RequestObserver
from tierlog.service.api.contract import describe
from tierlog.service.api.errors import problem
from tierlog.service.api.lane_route import LaneRoute, StrictRequests
from tierlog.service.api.lanes import Lanes
from tierlog.service.api.limits import Admission, Bodies, BodyMemory
from tierlog.service.api.methods import HeadAndOptions
from tierlog.service.api.metrics import Metrics
from tierlog.service.api.route_traits import RouteTable
from tierlog.service.api.routes import (
    admin,
    cluster,
    counts,
    groups,
    health,
    hot,
    messages,
    metrics,
    page,
    produce,
    timeline,
    topics,
)
from tierlog.service.api.routes import (
    deliveries as delivery_routes,
)
from tierlog.service.archive.readers import Served
from tierlog.service.cluster.queue_counts import QueueCounts
from tierlog.service.cluster.view import ClusterView, claim_group
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.follow.followed_broker import FollowedBroker
from tierlog.service.observing.counts import HttpCounts, ObservedDoor
from tierlog.service.server.connections import Connections
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER

#: In the order in which a request is compared with their routes.
_ROUTERS = tuple(
    module.router
    for module in (
        produce,
        messages,
        hot,
        counts,
        topics,
        timeline,
        groups,
        delivery_routes,
        cluster,
        admin,
        health,
        metrics,
        page,
    )
)


def create_app(
    engine: Served,
    settings: Settings,
    stopping: threading.Event | None = None,
    *,
    control: AccessControl | None = None,
    audit: AuditLog | None = None,
    cluster: ClusterView | None = None,
    connections: Connections | None = None,
    clock: Clock | None = None,
    deliveries: Deliveries | None = None,
    doors: Callable[[], Sequence[ObservedDoor]] = tuple,
    followed: Callable[[], Sequence[FollowedBroker]] = tuple,
) -> FastAPI:
    """Makes the application; it neither starts nor closes ``engine``. Setting ``stopping`` ends long polls early.

    ``control`` knows the tokens; without any, requests are answered under names of the loopback only. ``audit`` has
    admin calls on record; none by itself. ``cluster`` knows the other stores; None for a store that is alone. ``clock``
    is what relative times of requests are relative to; that of the machine by itself. ``deliveries`` are those of the
    store, started and closed by whoever made them; the application makes some of its own if it is given none.
    ``doors`` are those for RocketMQ's clients, which metrics tell of, and ``followed`` the brokers that this process
    follows into its stores.
    """
    needs_tokens = control is not None and control.is_on
    app = routed_app(access=needs_tokens)
    counts = HttpCounts()
    _share(
        app, engine, settings, counts, connections or Connections(settings.serve.max_connections), cluster=cluster,
        deliveries=deliveries or _deliveries_of(engine, settings, clock or SystemClock()),
        doors=doors, followed=followed,
    )  # fmt: skip
    app.state.connections.knows_callers = needs_tokens
    app.state.needs_tokens = needs_tokens
    app.state.stopping = stopping or threading.Event()
    app.state.audit = audit
    if cluster is not None:
        _join(engine, settings, cluster)
    errors.install(app)
    _wrap(app, engine, settings, control if needs_tokens else None, counts, clock=clock or SystemClock())
    return app


def _share(
    app: FastAPI,
    engine: Served,
    settings: Settings,
    counts: HttpCounts,
    connections: Connections,
    *,
    cluster: ClusterView | None,
    deliveries: Deliveries | None,
    doors: Callable[[], Sequence[ObservedDoor]],
    followed: Callable[[], Sequence[FollowedBroker]],
) -> None:
    """Gives the application what its routes and layers share."""
    serve = settings.serve
    answers = AnswerMemory(serve.answer_memory_bytes, serve.wait_ms)
    app.state.engine = engine
    app.state.settings = settings
    app.state.cluster = cluster
    app.state.deliveries = deliveries
    app.state.connections = connections
    app.state.lanes = Lanes(serve)
    app.state.body_memory = BodyMemory(serve.body_memory_bytes, serve.wait_ms)
    app.state.answer_memory = answers
    app.state.metrics = Metrics(
        engine, counts, connections, lambda: answers.used_bytes, max_groups=settings.metrics.max_groups,
        cluster=cluster, deliveries=deliveries, doors=doors, followed=followed,
    )  # fmt: skip
    app.state.followed = followed


def _deliveries_of(engine: Served, settings: Settings, clock: Clock) -> Deliveries | None:
    """Returns the deliveries of a store; a querier has none."""
    store = engine.own_store
    return None if store is None else Deliveries(store, clock, SystemRandomness(), settings.rocketmq.max_attempts)


def _join(engine: Served, settings: Settings, cluster: ClusterView) -> None:
    """Prepares for a cluster: requests are sent on, and groups may have queues in other stores."""
    load_client()
    if (store := engine.own_store) is not None:
        store.groups.elsewhere = QueueCounts(cluster, settings.cluster, SystemClock())
        store.groups.claim = partial(claim_group, cluster)


def _wrap(
    app: FastAPI,
    engine: Served,
    settings: Settings,
    control: AccessControl | None,
    counts: HttpCounts,
    *,
    clock: Clock,
) -> None:
    """Adds the layers that a request passes on its way to a route, from the innermost outward.

    Without ``control`` nobody needs a token.
    """
    lanes, table = app.state.lanes, route_table(app)
    store = engine.own_store
    if store is not None and store.tracer is NO_TRACER:  # a traced append belongs to one request
        app.add_middleware(
            AppendFastPath, engine=store, settings=settings, lanes=lanes, needs_tokens=control is not None
        )
    app.add_middleware(HeadAndOptions)
    app.add_middleware(Bodies, settings=settings.serve, memory=app.state.body_memory)
    app.add_middleware(Answers, memory=app.state.answer_memory)
    app.add_middleware(Compression)
    app.add_middleware(Admission, lanes=lanes, table=table)
    app.add_middleware(Forwarding, settings=settings, table=table, topics=engine.finder)
    if control is None:
        app.add_middleware(LocalOnly, origins=settings.access.origins)
    else:
        app.add_middleware(RequireToken, control=control, open_routes=_open_routes(app))
    if settings.access.origins:
        app.add_middleware(CORSMiddleware, **cross_origin(settings.access.origins))
    app.add_middleware(ShutdownAnswers, stopping=app.state.stopping)
    app.add_middleware(
        RequestObserver, counts=counts, clock=clock, randomness=SystemRandomness(),
        access_every=settings.log.access_every, tracer=engine.tracer,
    )  # fmt: skip


def routed_app(*, access: bool) -> FastAPI:
    """Makes an application of the routes and their document, without a store to ask."""
    # no /docs: its page would load scripts from another site
    app = FastAPI(
        title="tierlog",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # our own; its logs quote what clients sent
    )
    app.state.strict = StrictRequests()
    describe(app, access=access)
    for router in _ROUTERS:
        app.router.routes.extend(router.routes)  # included as routers, each would be searched twice
    return app


def route_table(app: FastAPI) -> RouteTable:
    """Returns the lane and the store that each route of an application declares."""
    return RouteTable((one.path, one.methods or (), one.traits) for one in app.routes if isinstance(one, LaneRoute))


def _open_routes(app: FastAPI) -> list[BaseRoute]:
    """Returns the page with its files, health, and the description of the API: they tell nothing about a store's
    messages."""
    described = [route for route in app.routes if getattr(route, "path", None) == app.openapi_url]
    return [*described, *health.router.routes, *page.router.routes]


def _version() -> str:
    try:
        return version("tierlog")
    except PackageNotFoundError:
        return "0"


class ShutdownAnswers:
    """ASGI middleware: 503 for a request that is still being worked on when the server gives up on it.

    Its work may have been done or not, as after any lost answer.
    """

    def __init__(self, app: ASGIApp, stopping: threading.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if started or not self._stopping.is_set():
                raise
            answer = problem(503, "stopping", "the service stopped before it had answered")
            await answer(scope, receive, send)
