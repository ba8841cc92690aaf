"""Connections are counted where they are accepted: before TLS, and before anything was said on them.

There are as many as :class:`Connections` allows, which is fewer than the process has file descriptors, so that whoever
comes leaves the store what it needs (:func:`share_descriptors`). Where all places are taken, the connection that has
waited longest without a caller's request makes room: whoever only opens connections keeps nobody out.

Files that are mapped hold no descriptor (``tiering.base.fs``), so what a store needs does not grow with it: the
active segment, the lock, and for a moment each what threads open, locally and to the bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial

from tierlog.service.config.settings import Settings
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.telemetry import Tally

_LOG = logging.getLogger("tierlog")
#: Connections accepted in one turn of the event loop.
ACCEPTED_AT_ONCE = 64
#: Pause after the system had no descriptor for a connection.
_PAUSE_S = 0.1
#: Descriptors of what is opened once: standard streams, the event loop, the lock, segment, audit log and listener,
#: tracing; with as many again for what libraries open, and background threads.
_ALWAYS = 64
#: Minimum number of connections of a service.
_LEAST = 16


class ConnectionSlot:
    """The place that one connection takes until it is closed. Used on the event loop only."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        #: Ends the connection at once.
        self.drop: Callable[[], object] = lambda: None

    def is_at_work(self) -> None:
        """Keeps the place, as a request is being answered."""
        self._connections.waiting.pop(self, None)

    def has_answered(self, caller: object) -> None:
        """Offers the place while the connection waits for its next request; a known caller's is kept all the same."""
        if caller is None and self._connections.knows_callers and self in self._connections.places:
            self._connections.waiting[self] = None

    def end(self) -> None:
        """Gives the place back, as the connection is closed. Idempotent."""
        self._connections.places.discard(self)
        self._connections.waiting.pop(self, None)


class Connections:
    """The places of all connections. Used on the event loop; the numbers may be read by any thread."""

    def __init__(self, most: int) -> None:
        #: How many there may be.
        self.most = most
        #: Whether callers have tokens; otherwise a client is known after its first request.
        self.knows_callers = False
        self.places: set[ConnectionSlot] = set()
        #: Connections without a request of a known caller, the oldest first.
        self.waiting: dict[ConnectionSlot, None] = {}
        #: How many were turned away, by reason: ``full``, all others being at work; ``silent``, given up for another;
        #: ``system``, times that the system had no descriptor.
        self.refused = Tally()
        for reason in ("full", "silent", "system"):
            self.refused.add((reason,), 0)

    @property
    def open(self) -> int:
        """The number of connections."""
        return len(self.places)

    def enter(self) -> ConnectionSlot | None:
        """Returns a place for one more, or None; the longest silent connection is ended for it if need be."""
        if len(self.places) >= self.most:
            longest = next(iter(self.waiting), None)
            if longest is None:
                self.refused.add(("full",))
                return None
            longest.end()
            longest.drop()
            self.refused.add(("silent",))
        place = ConnectionSlot(self)
        self.places.add(place)
        self.waiting[place] = None
        return place


class Listener:
    """Accepts connections of one socket until it is closed; on an event loop, which calls it."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        refusal: bytes,
        *,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        shutdown_s: float,
    ) -> None:
        """``refusal`` is told to a connection too many, unless it would have to be encrypted.

        A TLS handshake takes ``handshake_s`` at most, and the end of TLS ``shutdown_s``.
        """
        self._socket = listening
        self._connections = connections
        self._protocol = protocol
        self._refusal = refusal if tls is None else b""
        self._tls = tls
        self._times = {} if tls is None else {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": shutdown_s}
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accepts no more, and ends handshakes; connections that are there go on."""
        if self._pause is None:
            self._loop.remove_reader(self._socket)
        else:
            self._pause.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until no handshake is under way."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self._rest(error)
                return
            place = self._connections.enter()
            if place is None:
                self._refuse(accepted)
            else:
                task = self._loop.create_task(self.open(accepted, place))
                place.drop = task.cancel
                self._opening.add(task)
                task.add_done_callback(partial(self._opened, accepted, place))

    def _rest(self, error: OSError) -> None:
        """Pauses before the next try: the socket stays readable as long as somebody waits, and the loop would spin."""
        self._connections.refused.add(("system",))
        _LOG.warning("no connection can be accepted for now: %s", error)
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _refuse(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError):
            accepted.setblocking(False)
            accepted.send(self._refusal)
            accepted.shutdown(socket.SHUT_WR)
            accepted.recv(1 << 16)  # reads the request: if it stayed unread, closing could lose the answer

    async def open(self, accepted: socket.socket, place: ConnectionSlot) -> None:
        """Begins to talk on a connection that was accepted; not for callers."""
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # a handshake that fails is the client's matter
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(place), accepted, ssl=self._tls, **self._times
            )
            return
        accepted.close()
        place.end()

    def _opened(self, accepted: socket.socket, place: ConnectionSlot, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _LOG.error("a connection could not be opened", exc_info=error)
        if task.cancelled() or error is not None:  # maybe before it began
            accepted.close()
            place.end()


def share_descriptors(settings: Settings, *, forwards: bool) -> int:
    """Returns how many connections there may be: ``serve.max_connections``, or what the limit leaves beside the store.

    The soft limit of the process is raised as far as that needs and the hard one allows. ``forwards``: each connection
    may need a second one, to another node. Raises :class:`InvalidRequestError` where the limit leaves hardly any.
    """
    kept, each = kept_descriptors(settings), 2 if forwards else 1
    wanted = kept + each * settings.serve.max_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return settings.serve.max_connections
    most = min(settings.serve.max_connections, (soft - kept) // each)
    if most < min(_LEAST, settings.serve.max_connections):
        raise InvalidRequestError(
            f"the process may open {soft} files, and the store alone needs {kept}",
            hint=f"raise the limit (ulimit -n, LimitNOFILE) to {wanted}, or lower serve.append_threads and "
            "serve.read_threads, or rocketmq.max_connections where a door for RocketMQ's clients is open",
        )
    return most


def kept_descriptors(settings: Settings) -> int:
    """Returns how many descriptors are the store's and its doors'."""
    serve = settings.serve
    threads = serve.append_threads + serve.read_threads + serve.stream_threads + serve.admin_threads
    files = threads + settings.query.threads  # one each, for a moment
    return _ALWAYS + ACCEPTED_AT_ONCE + files + settings.cold.connections + _of_doors(settings)


def _of_doors(settings: Settings) -> int:
    """Returns how many descriptors the doors for RocketMQ's clients may take."""
    doors = settings.rocketmq
    opened = sum(listen is not None for listen in (doors.listen, doors.grpc_listen))
    return opened * (doors.max_connections + ACCEPTED_AT_ONCE)
