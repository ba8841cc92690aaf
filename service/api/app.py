"""The REST API as an ASGI application over one open engine."""

from __future__ import annotations

import threading
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from service.accepting import Connections
from service.access.audit import AuditLog
from service.access.control import AccessControl
from service.api import errors
from service.api.access import LocalOnly, RequireToken, cross_origin
from service.api.answers import AnswerMemory, Answers
from service.api.body_memory import BodyMemory
from service.api.compression import Compression
from service.api.contract import describe
from service.api.exact import ExactRequests
from service.api.forwarding import Forwarding
from service.api.lanes import Lanes
from service.api.limits import Admission, Bodies
from service.api.methods import HeadAndOptions
from service.api.node_session import load_client
from service.api.observing import Observe
from service.api.plain_appends import PlainAppends
from service.api.routes import admin, cluster, groups, health, hot, messages, metrics, page, produce, timeline, topics
from service.api.stops import AnswerWhenStopped
from service.cluster.queue_counts import QueueCounts
from service.cluster.view import ClusterView, claim_group
from service.engine import Engine
from service.observing.http_counts import HttpCounts
from service.observing.metrics import Metrics
from service.querier_engine import QuerierEngine
from service.settings import Settings
from tiering.clock import SystemClock
from tiering.randomness import SystemRandomness
from tiering.tracer import NO_TRACER


def create_app(
    engine: Engine | QuerierEngine,
    settings: Settings,
    stopping: threading.Event | None = None,
    *,
    control: AccessControl | None = None,
    audit: AuditLog | None = None,
    cluster: ClusterView | None = None,
    connections: Connections | None = None,
) -> FastAPI:
    """The application; it neither starts nor closes ``engine``. Setting ``stopping`` ends long polls early.

    ``control`` knows the tokens; without any, requests are answered under names of the loopback only. ``audit`` has
    admin calls on record; none by itself. ``cluster`` knows the other stores; None for a store that is alone.
    """
    needs_tokens = control is not None and control.is_on
    app = routed_app(access=needs_tokens)
    app.state.engine = engine
    app.state.settings = settings
    counts = HttpCounts()
    app.state.connections = connections = connections or Connections(settings.serve.max_connections)
    connections.knows_callers = needs_tokens
    app.state.answer_memory = answers = AnswerMemory(settings.serve.answer_memory_bytes, settings.serve.wait_ms)
    app.state.metrics = Metrics(
        engine, counts, connections, lambda: answers.used_bytes, max_groups=settings.metrics.max_groups, cluster=cluster
    )  # fmt: skip
    app.state.stopping = stopping = stopping or threading.Event()
    app.state.lanes = lanes = Lanes(settings.serve)
    app.state.body_memory = memory = BodyMemory(settings.serve.body_memory_bytes, settings.serve.wait_ms)
    app.state.needs_tokens = needs_tokens
    app.state.audit = audit
    app.state.cluster = cluster
    if cluster is not None:
        load_client()
    if cluster is not None and isinstance(engine, Engine):
        engine.groups.elsewhere = QueueCounts(cluster, settings.cluster, SystemClock())
        engine.groups.claim = partial(claim_group, cluster)
    errors.install(app)
    # what is added last is asked first
    if isinstance(engine, Engine) and engine.tracer is NO_TRACER:  # an append that is followed belongs to one request
        app.add_middleware(PlainAppends, engine=engine, settings=settings, lanes=lanes, needs_tokens=needs_tokens)
    app.add_middleware(HeadAndOptions)
    app.add_middleware(Bodies, settings=settings.serve, memory=memory)
    app.add_middleware(Answers, memory=answers)
    app.add_middleware(Compression)
    app.add_middleware(Admission, lanes=lanes)
    finder = engine if isinstance(engine, QuerierEngine) else None
    app.add_middleware(Forwarding, settings=settings, topics=finder)
    if control is not None and needs_tokens:
        app.add_middleware(RequireToken, control=control, open_routes=_open_routes(app))
    else:
        app.add_middleware(LocalOnly, origins=settings.access.origins)
    if settings.access.origins:
        app.add_middleware(CORSMiddleware, **cross_origin(settings.access.origins))
    app.add_middleware(AnswerWhenStopped, stopping=stopping)
    app.add_middleware(
        Observe, counts=counts, clock=SystemClock(), randomness=SystemRandomness(),
        access_every=settings.log.access_every, tracer=engine.tracer,
    )  # fmt: skip
    return app


def routed_app(*, access: bool) -> FastAPI:
    """The routes and their document, without a store to ask."""
    # no /docs: its page would load scripts from another site
    app = FastAPI(
        title="tierlog",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # of our own; its logs quote what clients sent
    )
    app.state.exact = ExactRequests()
    describe(app, access=access)
    for module in (produce, messages, hot, topics, timeline, groups, cluster, admin, health, metrics, page):
        app.router.routes.extend(module.router.routes)  # included as routers, each would be searched twice
    return app


def _open_routes(app: FastAPI) -> list[BaseRoute]:
    """The page with its files, health, and the description of the API: they tell nothing about a store's messages."""
    described = [route for route in app.routes if getattr(route, "path", None) == app.openapi_url]
    return [*described, *health.router.routes, *page.router.routes]


def _version() -> str:
    try:
        return version("tierlog")
    except PackageNotFoundError:
        return "0"
