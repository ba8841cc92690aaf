"""An engine served over HTTP on the loopback, as `tierlog serve` does it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from fastapi import FastAPI

from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.server.connections import Connections
from tierlog.service.server.http_server import HttpServer, http_config


@contextlib.contextmanager
def served(engine: Store, settings: Settings, stopping: threading.Event | None = None, port: int = 0) -> Iterator[str]:
    """The URL of the service, which ends with the context; the engine is the caller's to start and close."""
    stopping = stopping or threading.Event()
    with served_app(create_app(engine, settings, stopping), settings, stopping, port) as url:
        yield url


@contextlib.contextmanager
def served_app(app: FastAPI, settings: Settings, stopping: threading.Event, port: int = 0) -> Iterator[str]:
    """The same with an application that has something beside."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = http_config(app, settings.serve, log_level="critical", timeout_graceful_shutdown=2)
        connections = getattr(app.state, "connections", None) or Connections(settings.serve.max_connections)
        server = HttpServer(config, connections, settings.serve)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopping.set()
            server.should_exit = True
            thread.join()
