"""A server of ``apache.rocketmq.v2``: one thread with an event loop for all calls, whatever answers them.

A call ends with a status of the protocol, whatever happens. gRPC's own errors are for what never reaches a call: too
many at once, a message that is too long, bytes that are none.

gRPC's own threads speak HTTP/2, and bound what a stranger may send: the length of a message and of metadata, the calls
at once of a connection and of all together, the time for a handshake, connections on which nothing happens.

The stop: nothing new is taken, calls that wait for messages are answered that there are none, and those in work have
as much time as there is; streams of Telemetry are broken off, as they would never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
import uvloop

from tierlog.service.config.rocketmq import RocketmqSettings
from tierlog.service.config.serve import ServeSettings
from tierlog.service.config.settings import Settings
from tierlog.service.observing.counts import DoorCounts, MessageFlow
from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.grpc.calls import GrpcCall, Waits, client_id_of
from tierlog.service.rocketmq.grpc.codes import Code, RefusedError, status_of
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE, CallKind
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError

_LOG = logging.getLogger("tierlog")
T = TypeVar("T")
#: Answers a call; what streams writes its answers itself.
Answering = Callable[[Any, GrpcCall], Awaitable[Any]]
#: By whether requests and responses stream.
_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
#: Calls that carry messages.
_FLOWS: Mapping[str, MessageFlow] = {"SendMessage": "send", "ReceiveMessage": "receive", "PullMessage": "receive"}
_CODE_NAMES = {int(code): str(code.name).lower() for code in Code}
#: How often clients that are gone are forgotten, and deliveries prolonged.
_LOOK_S = 5.0
#: A client has a stream of Telemetry, and a call for each queue that it waits for.
_CALLS_OF_CLIENT = 4
_CALLS_OF_CONNECTION = 256
_MAX_METADATA_BYTES = 16 << 10
_HANDSHAKE_MS = 20_000
_KEEP_ALIVE_MS = 60_000
#: A client has its stream of Telemetry; a connection without any call is nobody's.
_IDLE_MS = 120_000
#: Clients send pings to keep a connection through firewalls; fewer than this many ms apart is too often.
_LEAST_PING_MS = 5_000


def handlers(calls: Mapping[str, Answering], access: SignedAccess, counts: DoorCounts, clock: Clock) -> Any:
    """Returns what a server of gRPC is given: the calls by name, and those of the protocol that are not served."""
    made = _Handlers(access, counts, clock)
    found = {kind.name: made.handler(kind, calls.get(kind.name, _not_implemented)) for kind in CALLS}
    return grpc.method_handlers_generic_handler(SERVICE, found)


class _Handlers:
    """Calls with the errors that they end with."""

    def __init__(self, access: SignedAccess, counts: DoorCounts, clock: Clock) -> None:
        self._access, self._counts, self._clock = access, counts, clock

    def handler(self, kind: CallKind, answering: Answering) -> Any:
        return _HANDLERS[kind.request_streams, kind.response_streams](
            self._answer(kind, answering),
            request_deserializer=kind.request.FromString,
            response_serializer=kind.response.SerializeToString,
        )

    def _answer(self, kind: CallKind, answering: Answering) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            begun_s, written = self._clock.monotonic_s(), _Written(context)
            try:
                response = await answered(request, context, written)
            finally:
                self._count(kind, request, written, begun_s)
            return response

        async def answered(request: Any, context: Any, written: _Written) -> Any:
            try:
                response = await answering(request, self._call(context, written))
                written.note(response)
                return response
            except (RefusedError, StoreError) as error:
                response = kind.response(status=status_of(error))
            except Exception as error:
                _LOG.exception("the call %s of a RocketMQ client has failed", kind.name)
                response = kind.response(status=status_of(error))
            if kind.response_streams:
                await written.write(response)
                return None
            written.note(response)
            return response

        return answer

    def _count(self, kind: CallKind, request: Any, written: _Written, begun_s: float) -> None:
        received = 0 if kind.request_streams else request.ByteSize()
        self._counts.end(kind.name, written.code, received=received, sent=written.bytes)
        if (flow := _FLOWS.get(kind.name)) is not None:
            self._counts.took(flow, self._clock.monotonic_s() - begun_s)

    def _call(self, context: Any, written: _Written) -> GrpcCall:
        metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        caller = self._access.of_metadata(metadata)
        return GrpcCall(
            caller, client_id_of(metadata), context.peer(), written.write, context.time_remaining, metadata
        )  # fmt: skip


class _Written:
    """What a call has answered so far."""

    __slots__ = ("_context", "bytes", "code")

    def __init__(self, context: Any) -> None:
        self._context = context
        self.bytes = 0
        #: The last status by name; gone if the call broke off without any.
        self.code = "gone"

    def note(self, response: Any) -> None:
        """Takes an answer into account."""
        if response is not None:
            self.bytes += response.ByteSize()
            if response.HasField("status"):
                self.code = _CODE_NAMES.get(response.status.code, "other")

    async def write(self, response: Any) -> None:
        """Sends an answer of a stream."""
        await self._context.write(response)
        self.note(response)


async def _not_implemented(request: Any, call: GrpcCall) -> Any:
    raise RefusedError(Code.NOT_IMPLEMENTED, "this call is not served")


class AnsweredCalls(Protocol):
    """What answers the calls of a server; made, used and stopped on its loop."""

    @property
    def calls(self) -> Mapping[str, Answering]:
        """The calls that are answered, by name."""
        ...

    async def start(self) -> None:
        """Called once, before the first call."""
        ...

    async def look(self) -> None:
        """Called every few seconds."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Called once, after the last call."""
        ...


class GrpcServer:
    """Serves calls until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        access: SignedAccess,
        make: Callable[[Waits, tuple[str, int]], AnsweredCalls],
        *,
        clock: Clock,
        address: tuple[str, int] | None = None,
    ) -> None:
        """``make`` is given what ends calls that wait, and host and port that clients are told: ``address``, or where
        it listens."""
        self._settings = settings
        self._access = access
        self._make = make
        self._address = address
        self._clock = clock
        self._waits: Waits | None = None
        #: What metrics tell of it.
        self.counts = DoorCounts("grpc")
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tierlog-grpc", daemon=True)
        self._is_up = threading.Event()
        self._error: Exception | None = None
        self._stop: asyncio.Event | None = None
        self._timeout_s = 0.0
        #: The port that it listens on.
        self.port = 0

    def start(self) -> None:
        """Accepts connections from now on; :class:`InvalidRequestError` if it cannot listen there."""
        self._thread.start()
        self._is_up.wait()
        if self._error is not None:
            raise self._error

    def stop(self, timeout_s: float) -> None:
        """Stops within about ``timeout_s``; idempotent."""
        if self._thread.is_alive() and self._stop is not None:
            self._timeout_s = timeout_s
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout_s + 1)

    @property
    def waiting(self) -> int:
        """How many calls wait for messages."""
        return 0 if self._waits is None else self._waits.waiting

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """Does work on the loop for another thread; None if it was not done in time, or the loop has ended."""
        try:
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return None
        try:
            return done.result(timeout_s)
        except (TimeoutError, CancelledError):
            done.cancel()
            return None

    # the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            self._error = error
            if self._is_up.is_set():
                _LOG.exception("the gRPC door for RocketMQ clients has failed")
        finally:
            self._is_up.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._stop, waits = asyncio.Event(), Waits(self._settings.serve.max_long_polls)
        self._waits = waits
        rocketmq = self._settings.rocketmq
        server = grpc.aio.server(
            options=_options(rocketmq),
            maximum_concurrent_rpcs=rocketmq.max_connections * _CALLS_OF_CLIENT,
        )
        where = rocketmq.grpc_listen or ""
        self.port = _listen(server, where, self._settings.serve)
        answers = self._make(waits, self._address or (where.rpartition(":")[0].strip("[]"), self.port))
        server.add_generic_rpc_handlers((handlers(answers.calls, self._access, self.counts, self._clock),))
        await answers.start()
        await server.start()
        self._is_up.set()
        looking = asyncio.ensure_future(self._look(answers))
        try:
            await self._stop.wait()
        finally:
            looking.cancel()
            waits.stop()
            await server.stop(self._timeout_s)
            await answers.stop(self._timeout_s)

    async def _look(self, answers: AnsweredCalls) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await answers.look()
            except Exception:
                _LOG.exception("looking after the clients of the gRPC door has failed")


def _options(settings: RocketmqSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # of two services started by mistake, the second is told
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_receive_message_length", settings.max_frame_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", _CALLS_OF_CONNECTION),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
    ]


def _listen(server: Any, where: str, settings: ServeSettings) -> int:
    """Has the server listen, with the service's certificate if it has one, and returns the port."""
    credentials = None if settings.tls_certificate is None else _credentials(settings, Path(settings.tls_certificate))
    try:
        port = server.add_insecure_port(where) if credentials is None else server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise InvalidRequestError(
            f"cannot listen on {where}", hint="choose another address with rocketmq.grpc_listen"
        ) from error
    return int(port)


def _credentials(settings: ServeSettings, certificate: Path) -> Any:
    """The service's certificate, read again for a connection to come once its files have changed.

    Files that do not fit change nothing, and an error is logged once.
    """
    paths = [certificate, *([] if settings.tls_key is None else [Path(settings.tls_key)])]
    authorities = None if settings.tls_client_ca is None else Path(settings.tls_client_ca).read_bytes()
    known = _stamps(paths)

    def read() -> Any:
        ServerTls.of(settings)  # which says in words what is wrong with the files
        return grpc.ssl_server_certificate_configuration(
            [(paths[-1].read_bytes(), paths[0].read_bytes())], root_certificates=authorities
        )

    def changed() -> Any:
        nonlocal known
        try:
            now = _stamps(paths)
            if now == known:
                return None
            known = now
            return read()
        except (OSError, InvalidRequestError) as error:
            _LOG.error("the certificate of the gRPC door stays as it was: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(read(), changed, require_client_authentication=authorities is not None)


def _stamps(paths: list[Path]) -> list[tuple[int, int, int]]:
    return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in (path.stat() for path in paths)]
