"""One process that serves one store: opens it, answers requests, and ends within 10 s of being asked to."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from service.accepting import Connections
from service.access.audit import AuditLog
from service.access.control import AccessControl
from service.api.app import create_app
from service.cli.errors import FAILED
from service.cluster.joining import check_membership, join_cluster
from service.cluster.view import ClusterView
from service.descriptors import kept_descriptors, share_descriptors
from service.engine import Engine
from service.http_server import HttpServer, http_config
from service.observing.logs import configure_logs
from service.observing.tracing import tracer_of
from service.querier_engine import QuerierEngine
from service.setting_groups.serve import ServeSettings
from service.settings import Settings
from service.tls import ServerTls
from tiering.clock import SystemClock
from tiering.errors import DiskFailedError, InvalidRequestError
from tiering.fs import LocalFileSystem
from tiering.paths import StorePaths
from tiering.randomness import SystemRandomness
from tiering.tracer import Tracer

#: Requests that are being answered get this long after the stop.
_GRACE_S = 2
#: The whole way out gets this long; then the process ends as it stands, which a store survives like a kill.
_EXIT_S = 9.0
_BACKLOG = 2048
_SWITCH_S = 0.0005
#: The server ticks every 0.1 s.
_TICKS_OF_CERTIFICATE = 100
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    root: Path,
    settings: Settings,
    *,
    cold_url: str | None = None,
    store_id: str | None = None,
    restore: bool = False,
    prepare: Callable[[Engine], None] = lambda engine: None,
    ready: Callable[[str], None] = lambda url: print(f"tierlog: serving {url}", file=sys.stderr, flush=True),
) -> None:
    """Serve the store until SIGTERM or SIGINT, then stop accepting, flush, and close. In the main thread only.

    ``restore`` makes the store from its archive first, see :meth:`Engine.open`.
    A stop before requests are taken raises KeyboardInterrupt once the store is closed. ``prepare`` runs on
    the open store before requests are taken; ``ready`` is told the URL once they are. Raises what
    :meth:`Engine.open` raises, and :class:`InvalidRequestError` if the address cannot be listened on.
    """

    def run(process: _Process) -> None:
        _check_volume(Path(root))
        check_membership(process.settings, root, cold_url)
        audit = _audit_log(root, process.settings)
        engine = Engine.open(
            root, cold_url=cold_url, store_id=store_id, restore=restore, settings=process.settings,
            tracer=process.tracer,
        )  # fmt: skip
        cluster = join_cluster(engine, process.settings)
        try:
            engine.start()
            if cluster is not None:
                cluster.start(first_look_s=process.settings.cluster.ask_timeout_ms / 1000)
            prepare(engine)
            process.answer(engine, audit, cluster, ready)
        finally:
            _last_resort(process.stopping)
            if cluster is not None:
                cluster.stop()
            engine.close()
            audit.close()

    _serve(settings, run, forwards=settings.cluster.address is not None)


def serve_querier(
    settings: Settings,
    *,
    cold_url: str | None = None,
    ready: Callable[[str], None] = lambda url: print(f"tierlog: querying at {url}", file=sys.stderr, flush=True),
) -> None:
    """Answer queries over the stores of ``cluster.stores`` or of the cluster table, until SIGTERM or SIGINT.

    In the main thread only. Raises what :meth:`QuerierEngine.open` raises, and :class:`InvalidRequestError` if the
    address cannot be listened on.
    """

    def run(process: _Process) -> None:
        engine = QuerierEngine.open(
            cold_url, process.settings.cluster.sources, settings=process.settings, tracer=process.tracer
        )
        try:
            engine.start()
            process.answer(engine, None, engine.cluster, ready)
        finally:
            _last_resort(process.stopping)
            engine.close()

    _serve(settings, run, forwards=True)


@dataclass(frozen=True, slots=True)
class _Process:
    """What a process that answers requests has, whatever it answers from."""

    settings: Settings
    control: AccessControl
    tls: ServerTls | None
    tracer: Tracer
    listener: socket.socket
    stopping: threading.Event
    connections: Connections

    def answer(
        self,
        engine: Engine | QuerierEngine,
        audit: AuditLog | None,
        cluster: ClusterView | None,
        ready: Callable[[str], None],
    ) -> None:
        """Answer until asked to stop."""
        app = create_app(
            engine, self.settings, self.stopping, control=self.control, audit=audit, cluster=cluster,
            connections=self.connections,
        )  # fmt: skip
        _answer(app, self.settings, self.connections, self.tls, self.listener, self.stopping, ready)


def _serve(settings: Settings, run: Callable[[_Process], None], *, forwards: bool) -> None:
    configure_logs(settings.log)
    stopping = threading.Event()
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        # the port first: of two services started by mistake, the second touches nothing
        tls = ServerTls.of(settings.serve)
        control = AccessControl(settings.access, SystemClock())
        with _listen(settings.serve.host, settings.serve.port) as listener, tracer_of(settings.tracing) as tracer:
            _check_access(listener, control)
            connections = _connections(settings, forwards=forwards)
            port = listener.getsockname()[1]  # goes into message ids, so a free port asked for as 0 must be known
            settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": port})})
            run(_Process(settings, control, tls, tracer, listener, stopping, connections))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _end_if_threads_hang()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InvalidRequestError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another with --port"
        ) from error
    return listener


def _check_access(listener: socket.socket, control: AccessControl) -> None:
    """Everybody may come in only where nobody else gets to; whoever starts that is told."""
    host = listener.getsockname()[0]
    if control.is_on:
        return
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise InvalidRequestError(
            f"without tokens the service listens on the loopback only, not on {host}",
            hint="`tierlog token` makes one for access.tokens_file (docs/access.md), or leave --host out",
        )
    print(
        "tierlog: no tokens: whoever reaches this machine's loopback may do everything (docs/access.md)",
        file=sys.stderr,
        flush=True,
    )


def _connections(settings: Settings, *, forwards: bool) -> Connections:
    """As many as there are descriptors for; whoever starts a service that is allowed too few is told."""
    most = share_descriptors(settings, forwards=forwards)
    if most < settings.serve.max_connections:
        print(
            f"tierlog: the limit of open files leaves {most} connections instead of {settings.serve.max_connections} "
            f"(serve.max_connections): {kept_descriptors(settings)} files are kept for the store",
            file=sys.stderr,
            flush=True,
        )
    return Connections(most)


def _check_volume(root: Path) -> None:
    """A mounted volume of another user is the most frequent reason why a store in a container does not open."""
    if root.is_dir() and not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise DiskFailedError(
            f"the directory belongs to user {root.stat().st_uid}, and user {os.geteuid()} may not write to it",
            path=str(root),
            hint=f"`chown -R {os.geteuid()}` it, run as its owner, or set fsGroup on Kubernetes (docs/containers.md)",
        )


def _audit_log(root: Path, settings: Settings) -> AuditLog:
    folder = StorePaths(Path(root).absolute()).audit
    return AuditLog(LocalFileSystem(), folder, SystemClock(), SystemRandomness(), settings.access.audit_max_bytes)


class _Server(HttpServer):
    """Tells long polls of the stop at once, and the world of the start; looks after the certificate."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        settings: ServeSettings,
        stopping: threading.Event,
        started: Callable[[], None],
        tls: ServerTls | None,
    ) -> None:
        super().__init__(config, connections, settings)
        self._tls = tls
        self._stopping = stopping
        self._tell = started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        _last_resort(self._stopping)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._tls is not None and counter % _TICKS_OF_CERTIFICATE == 0:
            self._tls.refresh()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


def _answer(
    app: Callable[..., Any],
    settings: Settings,
    connections: Connections,
    tls: ServerTls | None,
    listener: socket.socket,
    stopping: threading.Event,
    ready: Callable[[str], None],
) -> None:
    config = http_config(
        app,
        settings.serve,
        ssl_context_factory=None if tls is None else tls.shown,
        timeout_graceful_shutdown=_GRACE_S,
        log_config=None,
        log_level="warning",
        access_log=False,
    )
    # the event loop is one thread among those that work: at 5 ms for each of them, it would hardly get its turn, and at
    # 0.1 ms they would change all the time; a request took a fifth more of either (docs/decisions/0025)
    sys.setswitchinterval(_SWITCH_S)
    server = _Server(
        config, connections, settings.serve, stopping, lambda: ready(_url(listener, is_tls=tls is not None)), tls
    )
    # the server hands on the signal that ended it, once the handlers before its own are back: those do nothing
    for number in _SIGNALS:
        signal.signal(number, _ignore)
    server.run(sockets=[listener])


def _url(listener: socket.socket, *, is_tls: bool) -> str:
    scheme = "https" if is_tls else "http"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _ignore(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which children would inherit."""


def _last_resort(stopping: threading.Event) -> None:
    """From the first stop on, the clock runs: whatever hangs, the process ends in time."""
    if not stopping.is_set():
        stopping.set()
        timer = threading.Timer(_EXIT_S, _give_up)
        timer.daemon = True
        timer.start()


def _give_up() -> None:
    print("tierlog: closing took too long, leaving as after a kill", file=sys.stderr, flush=True)
    os._exit(FAILED)


def _end_if_threads_hang() -> None:
    """Leave without waiting for threads that a dead object store holds; the store is closed by now."""
    hanging = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon and thread.is_alive()
    ]
    for thread in hanging:
        thread.join(0.5)
    for handler in logging.getLogger().handlers:  # of the last turn of an event loop some lines may wait
        handler.flush()
    if any(thread.is_alive() for thread in hanging):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
