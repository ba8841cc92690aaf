"""The REST API as an ASGI application over one open engine."""

from __future__ import annotations

import threading
from importlib.metadata import PackageNotFoundError, version

from fastapi import Depends, FastAPI

from service.api import errors
from service.api.body_memory import BodyMemory
from service.api.compression import Compression
from service.api.contract import describe
from service.api.exact import ExactRequests
from service.api.lanes import Lanes
from service.api.limits import Admission, Bodies
from service.api.methods import HeadAndOptions
from service.api.observing import Observe
from service.api.routes import admin, groups, health, messages, metrics, page, produce, timeline, topics
from service.api.stops import AnswerWhenStopped
from service.engine import Engine
from service.http_counts import HttpCounts
from service.metrics import Metrics
from service.settings import Settings
from tiering.clock import SystemClock
from tiering.randomness import SystemRandomness


def create_app(engine: Engine, settings: Settings, stopping: threading.Event | None = None) -> FastAPI:
    """The application; it neither starts nor closes ``engine``. Setting ``stopping`` ends long polls early."""
    # no /docs: its page would load scripts from another site
    app = FastAPI(
        title="tierlog",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(ExactRequests())],
    )
    describe(app, access=False)
    app.state.engine = engine
    app.state.settings = settings
    counts = HttpCounts()
    app.state.metrics = Metrics(engine, counts, max_groups=settings.metrics.max_groups)
    app.state.stopping = stopping = stopping or threading.Event()
    app.state.lanes = lanes = Lanes(settings.serve)
    app.state.body_memory = memory = BodyMemory(settings.serve.body_memory_bytes, settings.serve.wait_ms)
    errors.install(app)
    # what is added last is asked first
    app.add_middleware(HeadAndOptions)
    app.add_middleware(Bodies, settings=settings.serve, memory=memory)
    app.add_middleware(Compression)
    app.add_middleware(Admission, lanes=lanes)
    app.add_middleware(AnswerWhenStopped, stopping=stopping)
    app.add_middleware(
        Observe, counts=counts, clock=SystemClock(), randomness=SystemRandomness(),
        access_every=settings.log.access_every, tracer=engine.tracer,
    )  # fmt: skip
    for module in (produce, messages, topics, timeline, groups, admin, health, metrics, page):
        app.include_router(module.router)
    return app


def _version() -> str:
    try:
        return version("tierlog")
    except PackageNotFoundError:
        return "0"
