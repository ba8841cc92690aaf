"""A process that serves one store, alone or as a node of a cluster, that answers queries over many stores, or that
follows RocketMQ brokers.

It opens what it serves, answers requests, and ends within 10 s of being asked to.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tierlog.service.access.audit import AuditLog
from tierlog.service.access.caller import Caller, Scope
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.api.application.authentication import LocalOnly, RequireToken
from tierlog.service.api.application.followed_stores import FollowedStores
from tierlog.service.api.errors import problem
from tierlog.service.api.metrics import CONTENT_TYPE, Metrics
from tierlog.service.archive.local_stores import LocalStores
from tierlog.service.archive.querier import Querier
from tierlog.service.archive.readers import Served
from tierlog.service.cluster.table_view import OwnNode, TableView
from tierlog.service.cluster.view import ClusterView
from tierlog.service.config.serve import ServeSettings
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.engine.opening import door_address, door_addresses, host_and_port
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import FAILED
from tierlog.service.follow.answering.door import AnsweringDoor
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.service.follow.followers import Followers
from tierlog.service.follow.upstream import credentials_of
from tierlog.service.observing.counts import ObservedDoor
from tierlog.service.observing.logs import configure_logs
from tierlog.service.observing.tracing import tracer_of
from tierlog.service.rocketmq.doors import Doors, gateway, refuse_doors
from tierlog.service.server.connections import Connections, kept_descriptors, share_descriptors
from tierlog.service.server.http_server import HttpServer, http_config
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import DiskFailedError, InvalidRequestError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem, forget_code, share_arenas
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.telemetry import Tracer
from tierlog.tiering.hot.identity import StoreIdentity

#: Time for running requests after the stop.
_GRACE_S = 2
#: Time for the whole stop; then the process ends as it is, which a store survives like a kill.
_EXIT_S = 9.0
_BACKLOG = 2048
_SWITCH_S = 0.0005
#: With more arenas, more free memory is kept: a service with dozens of threads grew by a third in ten minutes.
_ARENAS = 2
#: The server ticks every 0.1 s.
_TICKS_OF_CERTIFICATE = 100
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check_membership(settings: Settings, root: Path, cold_url: str | None) -> None:
    """Raises :class:`InvalidRequestError` if ``cluster.address`` is set for a store that cannot be in a cluster.

    Called before anything is opened or made.
    """
    if settings.cluster.address is None:
        return
    if cold_url is None:
        identity = StoreIdentity.read(LocalFileSystem(), StorePaths(root.absolute()))
        cold_url = identity.cold_url if identity is not None else None
    if cold_url is None:
        raise InvalidRequestError(
            "cluster.address is set, but the store has no cold tier: the stores of a cluster find each other there",
            hint="name the archive with --cold URL, or leave cluster.address out",
        )
    if settings.cold.single_writer:
        raise InvalidRequestError(
            "cluster.address is set together with cold.single_writer: a cluster has many writers",
            hint="it needs a bucket with conditional writes (docs/object_stores.md)",
        )


def join_cluster(
    engine: Store, settings: Settings, clock: Clock | None = None, randomness: Randomness | None = None
) -> TableView | None:
    """Returns the view of a store that is a node, not started; None for a store that is alone."""
    address, objects = settings.cluster.address, engine.archive_objects
    if address is None or objects is None:
        return None
    own = OwnNode(
        engine.store_id, address, engine.volume_id, engine.own_epoch, engine.groups.all_committed,
        door_addresses(settings),
    )  # fmt: skip
    return TableView(
        objects, clock or SystemClock(), randomness or SystemRandomness(),
        refresh_ms=settings.cluster.refresh_ms, own=own, max_groups=settings.cluster.max_groups,
    )  # fmt: skip


def serve(
    root: Path,
    settings: Settings,
    *,
    cold_url: str | None = None,
    store_id: str | None = None,
    restore: bool = False,
    prepare: Callable[[Store], None] = lambda engine: None,
    ready: Callable[[str], None] = lambda url: print(f"tierlog: serving {url}", file=sys.stderr, flush=True),
) -> None:
    """Serves the store until SIGTERM or SIGINT, then stops accepting, flushes and closes. Main thread only.

    ``restore`` makes the store from its archive first, see :meth:`Store.open`.
    A stop before requests are taken raises KeyboardInterrupt once the store is closed. ``prepare`` runs on
    the open store before requests are taken; ``ready`` is told the URL once they are. Raises what
    :meth:`Store.open` raises, and :class:`InvalidRequestError` if the address cannot be listened on.
    """

    def run(process: _Process) -> None:
        _check_volume(Path(root))
        check_membership(process.settings, root, cold_url)
        audit = _audit_log(root, process.settings)
        engine = Store.open(
            root, cold_url=cold_url, store_id=store_id, restore=restore, settings=process.settings,
            tracer=process.tracer,
        )  # fmt: skip
        cluster = join_cluster(engine, process.settings)
        try:
            engine.start()
            if cluster is not None:
                cluster.start(first_look_s=process.settings.cluster.ask_timeout_ms / 1000)
            prepare(engine)
            with process.doors.of(
                engine, process.settings, process.control, audit=audit, cluster=cluster
            ) as deliveries:
                process.answer(engine, audit, cluster, ready, deliveries=deliveries)
        finally:
            process.stopping.begin()
            if cluster is not None:
                cluster.stop()
            engine.close()
            audit.close()

    _serve(settings, run, forwards=settings.cluster.address is not None)


def follow(
    root: Path,
    settings: Settings,
    *,
    cold_url: str | None = None,
    store_id: str | None = None,
    restore: bool = False,
    promote_now: bool = False,
    ready: Callable[[str], None] = lambda url: print(f"tierlog: following, at {url}", file=sys.stderr, flush=True),
    followers: Callable[[Settings, Tracer], Followers] | None = None,
) -> None:
    """Follows the brokers of the settings and serves their stores until SIGTERM or SIGINT. Main thread only.

    Raises what :meth:`Followers.of` and :meth:`Followers.open` raise, and :class:`InvalidRequestError` if the address
    cannot be listened on or the doors are set for several stores. ``promote_now`` has the stores take messages at once.
    ``followers`` makes others.
    """
    if len(settings.follow.brokers) > 1 and (settings.rocketmq.listen or settings.rocketmq.grpc_listen):
        raise InvalidRequestError(
            "the doors for RocketMQ's clients are of one store, and several brokers are followed",
            hint="leave rocketmq.listen and rocketmq.grpc_listen out, or follow each broker by a process of its own",
        )
    if settings.cluster.address is not None:
        raise InvalidRequestError(
            "cluster.address is set, and stores that follow are in no cluster", hint="leave cluster.address out"
        )

    def run(process: _Process) -> None:
        _check_volume(Path(root))
        settings = process.settings
        if followers is not None:
            found = followers(settings, process.tracer)
        else:
            found = Followers.of(root, settings, cold_url=cold_url, store_id=store_id, tracer=process.tracer)
        brokers, several = found.brokers(), len(found.brokers()) > 1
        audits = {broker.store_id: _audit_log(Path(root) / broker.store_id, settings) for broker in brokers}
        with contextlib.ExitStack() as opened:
            for audit in audits.values():
                opened.callback(audit.close)

            answering = _answering_door(root, process, found, opened)

            def app_of(broker: FollowedBroker) -> ASGIApp:
                store, audit, deliveries = broker.store, audits[broker.store_id], None
                assert store is not None
                if broker.state is FollowState.PROMOTED:
                    deliveries = opened.enter_context(process.doors.of(store, settings, process.control, audit=audit))
                return process.app(
                    store, audit, None, deliveries=deliveries, followed=lambda: [broker], answering=answering
                )

            metrics = Metrics(
                None, connections=process.connections, followed=found.brokers,
                doors=lambda: (*process.doors.observed(), *answering),
            )  # fmt: skip
            app = FollowedStores(app_of, closed_app(found.brokers, metrics, settings, process.control))
            found.listen(app.changed)
            found.open(restore=restore, promote_now=promote_now)
            opened.callback(found.stop)
            opened.callback(process.stopping.begin)
            if several:
                stores = LocalStores(
                    lambda: {broker.store_id: broker.store for broker in brokers}, SystemClock(),
                    timeout_s=settings.cluster.ask_timeout_ms / 1000,
                )  # fmt: skip
                # a store remembers its archive, which is named at its first start only
                urls = [cold_url, *(broker.store.cold_url for broker in brokers if broker.store is not None)]
                querier = Querier.over(
                    stores, [url for url in urls if url is not None], settings=settings, tracer=process.tracer
                )
                opened.callback(querier.close)
                querier.start()
                app.whole = process.app(querier, None, None, followed=found.brokers, answering=answering)
            found.start()
            for door in answering:
                door.start()
                opened.callback(door.stop, _GRACE_S)
            process.answer_by(app, ready)

    _serve(settings, run, forwards=False)


def serve_querier(
    settings: Settings,
    *,
    cold_url: str | None = None,
    ready: Callable[[str], None] = lambda url: print(f"tierlog: querying at {url}", file=sys.stderr, flush=True),
) -> None:
    """Answers queries over the stores of ``cluster.stores`` or of the cluster table, until SIGTERM or SIGINT.

    In the main thread only. Raises what :meth:`Querier.open` raises, and :class:`InvalidRequestError` if the
    address cannot be listened on.
    """
    refuse_doors(settings)

    def run(process: _Process) -> None:
        engine = Querier.open(
            cold_url, process.settings.cluster.sources, settings=process.settings, tracer=process.tracer
        )
        try:
            engine.start()
            process.answer(engine, None, engine.cluster, ready)
        finally:
            process.stopping.begin()
            engine.close()

    _serve(settings, run, forwards=True)


def serve_gateway(
    settings: Settings,
    url: str,
    *,
    ready: Callable[[str], None] = lambda where: print(f"tierlog: gateway at {where}", file=sys.stderr, flush=True),
) -> None:
    """Takes what RocketMQ's gRPC clients send, for the store whose service is at ``url``, until SIGTERM or SIGINT.

    Health and metrics are told over HTTP. In the main thread only. Raises :class:`InvalidRequestError` if an address
    cannot be listened on.
    """

    def run(process: _Process) -> None:
        process.doors.close()  # they have kept the port, which gRPC binds itself
        try:
            with gateway(url, process.settings, process.control) as (where, opened):
                app = gateway_app(opened, process.settings, process.control, process.connections)
                process.answer_by(app, lambda _: ready(where), has_kernels=False)
        finally:
            process.stopping.begin()

    only_grpc = settings.rocketmq.model_copy(update={"listen": None})
    _serve(settings.model_copy(update={"rocketmq": only_grpc}), run, forwards=False)


class ReachingGateway(ObservedDoor, Protocol):
    """A gateway that knows which stores it reaches."""

    def reached(self) -> dict[str, str | None]:
        """By store: why it does not answer, None if it does; raises if nothing behind the gateway answers."""
        ...


def gateway_app(
    gateway: ReachingGateway, settings: Settings, control: AccessControl, connections: Connections
) -> ASGIApp:
    """Makes what a gateway tells over HTTP: whether it is alive, which stores it reaches, and its metrics."""

    async def readyz(request: Request) -> Response:
        try:
            stores = await run_in_threadpool(gateway.reached)
        except StoreError as error:
            words = error.message if _may_read(request, control) else "the service behind the gateway does not answer"
            return problem(503, "not ready", words, hint="--stores says which service that is")
        if not _may_read(request, control):
            stores = {name: error and "it does not answer" for name, error in stores.items()}
        if stores and all(stores.values()):
            return problem(503, "not ready", f"no store answers: {', '.join(stores)}")
        found = [{"store_id": name, "error": error} for name, error in sorted(stores.items())]
        return JSONResponse({"status": "ready", "stores": found})

    metrics = Metrics(None, connections=connections, doors=lambda: (gateway,))
    return _storeless_app(metrics, readyz, settings, control)


def closed_app(
    brokers: Callable[[], Sequence[FollowedBroker]], metrics: Metrics, settings: Settings, control: AccessControl
) -> ASGIApp:
    """Makes what a process that follows tells over HTTP while the store that is meant is closed."""

    async def readyz(request: Request) -> Response:
        found = next(filter(None, (broker.problem for broker in brokers())), None)
        if found is None:
            return problem(503, "not ready", "the store is being opened again", retry_s=1)
        words = found.reason if _may_read(request, control) else found.part
        return problem(503, "not ready", words, hint=found.hint, retry_s=1)

    return _storeless_app(metrics, readyz, settings, control)


def _storeless_app(
    metrics: Metrics,
    readyz: Callable[[Request], Awaitable[Response]],
    settings: Settings,
    control: AccessControl,
) -> ASGIApp:
    """Makes what a process without an open store tells: that it is alive, whether it is ready, and its metrics.

    Health is for everybody, as at a store; metrics are for who may read, where tokens are needed.
    """

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def told(request: Request) -> Response:
        if not _may_read(request, control):
            return problem(403, "forbidden", "metrics need the right to read")
        return Response(await run_in_threadpool(metrics.text), media_type=CONTENT_TYPE)

    health = [Route("/livez", livez), Route("/readyz", readyz)]
    app: ASGIApp = Starlette(routes=[*health, Route("/metrics", told)])
    if control.is_on:
        return RequireToken(app, control, health)
    return LocalOnly(app, settings.access.origins)


def _may_read(request: Request, control: AccessControl) -> bool:
    caller: Caller | None = request.scope.get("tierlog.caller")
    return not control.is_on if caller is None else caller.may(Scope.READ)


class _Stopping(threading.Event):
    """Set at the first stop. From then on the process ends in time, whatever hangs, unless all has ended before."""

    def __init__(self) -> None:
        super().__init__()
        self._last_resort = threading.Timer(_EXIT_S, _give_up)
        self._last_resort.daemon = True

    def begin(self) -> None:
        """The stop has begun; idempotent."""
        if not self.is_set():
            self.set()
            self._last_resort.start()

    def end(self) -> None:
        """Everything has ended: who called this in a process of its own goes on."""
        self._last_resort.cancel()


@dataclass(frozen=True, slots=True)
class _Process:
    """The parts of a process that answers requests, whatever it answers from."""

    settings: Settings
    control: AccessControl
    tls: ServerTls | None
    tracer: Tracer
    listener: socket.socket
    stopping: _Stopping
    connections: Connections
    doors: Doors

    def answer(
        self,
        engine: Served,
        audit: AuditLog | None,
        cluster: ClusterView | None,
        ready: Callable[[str], None],
        *,
        deliveries: Deliveries | None = None,
    ) -> None:
        """Answers until it is asked to stop."""
        self.answer_by(self.app(engine, audit, cluster, deliveries=deliveries), ready)

    def app(
        self,
        engine: Served,
        audit: AuditLog | None,
        cluster: ClusterView | None,
        *,
        deliveries: Deliveries | None = None,
        followed: Callable[[], Sequence[FollowedBroker]] = tuple,
        answering: Sequence[AnsweringDoor] = (),
    ) -> ASGIApp:
        """Makes the application of what is served."""
        return create_app(
            engine, self.settings, self.stopping, control=self.control, audit=audit, cluster=cluster,
            connections=self.connections, deliveries=deliveries, doors=lambda: (*self.doors.observed(), *answering),
            followed=followed,
        )  # fmt: skip

    def answer_by(self, app: Callable[..., Any], ready: Callable[[str], None], *, has_kernels: bool = True) -> None:
        """Has an application answer until it is asked to stop; ``has_kernels``: whether it reads or writes messages."""
        _answer(
            app,
            settings=self.settings,
            connections=self.connections,
            tls=self.tls,
            listener=self.listener,
            stopping=self.stopping,
            ready=ready,
            has_kernels=has_kernels,
        )


def _answering_door(
    root: Path, process: _Process, followers: Followers, opened: contextlib.ExitStack
) -> list[AnsweringDoor]:
    """Makes the door that answers in the place of the brokers, not started; none where it is not set."""
    settings = process.settings
    if settings.follow.listen is None:
        return []
    host, _, port = settings.follow.listen.rpartition(":")
    listening = opened.enter_context(_listen(host.strip("[]"), int(port), hint="follow.listen says where"))
    process.control.check_listener(
        listening.getsockname()[0],
        hint="`tierlog token --rocketmq` makes an entry for access.tokens_file (docs/access.md)",
    )
    told = settings.rocketmq.model_copy(update={"advertise": settings.follow.advertise})
    address = door_address(settings.model_copy(update={"rocketmq": told}), f"{host}:{listening.getsockname()[1]}")
    credentials = credentials_of(settings.follow)
    door = AnsweringDoor(
        listening, settings, SystemClock(), brokers=followers.brokers, root=Path(root).absolute(),
        fs=LocalFileSystem(), address=host_and_port(address), control=process.control,
        credentials=lambda: credentials, tls=ServerTls.of(settings.serve),
    )  # fmt: skip
    print(f"tierlog: RocketMQ clients find the archive at {host_and_port(address)}", file=sys.stderr, flush=True)
    return [door]


def _serve(settings: Settings, run: Callable[[_Process], None], *, forwards: bool) -> None:
    share_arenas(_ARENAS)
    configure_logs(settings.log)
    stopping, threads = _Stopping(), set(threading.enumerate())
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        # the port first: of two services started by mistake, the second touches nothing
        tls = ServerTls.of(settings.serve)
        control = AccessControl(settings.access, SystemClock())
        with (
            _listen(settings.serve.host, settings.serve.port) as listener,
            contextlib.closing(Doors(settings, _listen_at_door)) as doors,
            tracer_of(settings.tracing) as tracer,
        ):
            _check_access(listener, *doors.listening, control=control)
            settings = doors.settings
            connections = _connections(settings, forwards=forwards)
            port = listener.getsockname()[1]  # message ids contain it, so the free port chosen for 0 must be known
            settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": port})})
            run(
                _Process(
                    settings=settings,
                    control=control,
                    tls=tls,
                    tracer=tracer,
                    listener=listener,
                    stopping=stopping,
                    connections=connections,
                    doors=doors,
                )
            )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not _hanging(threads):
            stopping.end()
    _end_if_threads_hang()


def _listen_at_door(host: str, port: int, setting: str) -> socket.socket:
    return _listen(host, port, hint=f"{setting} says where")


def _listen(host: str, port: int, *, hint: str | None = None) -> socket.socket:
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
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint=hint or _listen_hint(error)
        ) from error
    return listener


def _listen_hint(error: OSError) -> str:
    """Says whether the host or the port is the trouble."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "--host is an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all that it has"
    if error.errno == errno.EACCES:
        return "ports below 1024 are for the system; choose another with --port"
    return "choose another with --port"


def _check_access(*listeners: socket.socket, control: AccessControl) -> None:
    """Refuses to listen beyond the loopback without tokens; otherwise warns that the loopback is open."""
    for listener in listeners:
        control.check_listener(
            listener.getsockname()[0],
            hint="`tierlog token` makes one for access.tokens_file (docs/access.md), or leave --host out",
        )
    if control.is_on:
        return
    print(
        "tierlog: no tokens: whoever reaches this machine's loopback may do everything (docs/access.md)",
        file=sys.stderr,
        flush=True,
    )


def _connections(settings: Settings, *, forwards: bool) -> Connections:
    """Returns the number of connections that the descriptors allow; logs if that is fewer than set."""
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
    """Refuses a directory of another user: the most frequent reason why a store in a container does not open."""
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
    """The HTTP server: tells long polls of a stop at once, tells of the start, and looks after the certificate."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        connections: Connections,
        settings: ServeSettings,
        stopping: _Stopping,
        started: Callable[[], None],
        tls: ServerTls | None,
    ) -> None:
        super().__init__(config, connections, settings)
        self._tls = tls
        self._stopping = stopping
        self._announce = started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.begin()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._tls is not None and counter % _TICKS_OF_CERTIFICATE == 0:
            self._tls.refresh()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


def _answer(
    app: Callable[..., Any],
    *,
    settings: Settings,
    connections: Connections,
    tls: ServerTls | None,
    listener: socket.socket,
    stopping: _Stopping,
    ready: Callable[[str], None],
    has_kernels: bool,
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

    def started() -> None:
        ready(_url(listener, is_tls=tls is not None))
        if has_kernels:
            threading.Thread(target=_warm_up, name="tierlog-warm-up", daemon=True).start()

    # the event loop is one thread among those that work: at 5 ms for each of them, it would hardly get its turn, and at
    # 0.1 ms they would change all the time; a request took a fifth more of either (docs/decisions/0025)
    sys.setswitchinterval(_SWITCH_S)
    server = _Server(
        config,
        connections=connections,
        settings=settings.serve,
        stopping=stopping,
        started=started,
        tls=tls,
    )
    # the server hands on the signal that ended it, once the handlers before its own are back: those do nothing
    for number in _SIGNALS:
        signal.signal(number, _ignore)
    server.run(sockets=[listener])


def _warm_up() -> None:
    """Loads every kernel, so that no request waits for it; what loads them has done its work then, and goes."""
    from tierlog.index.kernels.precompile import compile_all  # which imports every kernel

    compile_all()
    forget_code("libllvmlite")


def _url(listener: socket.socket, *, is_tls: bool) -> str:
    scheme = "https" if is_tls else "http"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignores a signal; SIG_IGN would be inherited by children."""


def _give_up() -> None:
    print("tierlog: closing took too long, leaving as after a kill", file=sys.stderr, flush=True)
    os._exit(FAILED)


def _hanging(others: Collection[threading.Thread]) -> list[threading.Thread]:
    """Returns the threads beside these and the main one for which Python would wait at its end."""
    mine = (thread for thread in threading.enumerate() if thread not in others)
    return [thread for thread in mine if thread is not threading.main_thread() and not thread.daemon]


def _end_if_threads_hang() -> None:
    """Leaves without waiting for threads that a dead object store holds; the store is closed by now."""
    hanging = _hanging(())
    for thread in hanging:
        thread.join(0.5)
    for handler in logging.getLogger().handlers:  # lines of the last turn of an event loop may still wait
        handler.flush()
    if any(thread.is_alive() for thread in hanging):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
