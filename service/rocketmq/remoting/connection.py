"""One client's connection, on the thread of the door's loop: frames come in, answers go out, both within bounds.

The socket is used as it is, without a transport: what goes out are slices of mapped files, handed to the system as they
are, and whoever lent them is told when they have gone (:class:`Outgoing`). A client speaks TLS from its first byte on
or not at all, as RocketMQ's do; the first byte tells, as no frame is so long that it begins like a handshake.

What may wait: one frame that is not whole, requests that are not answered up to ``most_in_work`` bytes, and answers of
:data:`BEHIND_BYTES` and those that were being made. A client that is behind is read no further until it has caught up,
and cut off when it takes too little for too long.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tierlog.service.server.connections import ConnectionSlot
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.record import peer_host
from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode
from tierlog.tiering.rocketmq.frames import Frame, FrameReader, encode_frame

if TYPE_CHECKING:
    import asyncio

_LOG = logging.getLogger("tierlog")
#: Bytes of answers from which on a client counts as behind, and below which it has caught up.
BEHIND_BYTES, CAUGHT_UP_BYTES = 1 << 20, 256 << 10
#: What a request counts beside its frame, until it is answered.
REQUEST_BYTES = 512
#: Pieces that are handed to the system at once; it takes no more than 1024.
_PIECES = 256
#: How long a client that is behind may hold slices of the log, which keep their snapshot pinned.
_LENT_S = 2.0
_TLS_HANDSHAKE = 0x16
_TLS_PIECE = 64 << 10

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of one connection."""

    max_frame_bytes: int
    most_in_work: int
    """Bytes of requests without an answer, from which on no more is read."""
    idle_s: float
    """Silence after which a connection is closed."""
    receive_s: float
    """Time for a frame that has begun to come, and for the first one."""
    send_s: float
    """Time in which a client that is behind has to take ``least_taken`` bytes."""
    least_taken: int


class ConnectionOwner(Protocol):
    """What a connection belongs to; called on the loop's thread."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    #: Read into by all connections in turn.
    buffer: bytearray
    #: The context of TLS; None where it is not spoken.
    tls: ssl.SSLContext | None
    #: Whether a client has to speak TLS.
    requires_tls: bool

    def flush_soon(self, connection: Connection) -> None:
        """Calls :meth:`Connection.flush` when all that has come by now was looked at."""
        ...

    def received(self, connection: Connection, frame: Frame) -> None:
        """Takes a whole frame."""
        ...

    def closed(self, connection: Connection) -> None:
        """Forgets a connection."""
        ...

    def took(self, count: int) -> bool:
        """Counts bytes of requests of all connections, fewer if negative; whether there may be more."""
        ...


class Outgoing:
    """Bytes on their way to one client, in order, and what is to be told when they have gone."""

    __slots__ = ("_lenders", "_parts", "taken", "waiting")

    def __init__(self) -> None:
        self._parts: deque[Buffer | Callable[[], object]] = deque()
        #: How many of the parts are to be called.
        self._lenders = 0
        #: Bytes that the system has not taken.
        self.waiting = 0
        #: Bytes that it took so far.
        self.taken = 0

    def add(self, parts: Iterable[Buffer], release: Callable[[], object] | None = None) -> None:
        """Sends parts after what waits; ``release`` is called once when they are not needed any more."""
        for part in parts:
            if len(part):
                self._parts.append(part)
                self.waiting += len(part)
        if release is not None:
            self._parts.append(release)
            self._lenders += 1

    def send(self, sendmsg: Callable[[list[Buffer]], int]) -> None:
        """Hands over all that the system takes; raises what it raises."""
        if not self._lenders and 0 < len(self._parts) <= _PIECES:  # as most answers are
            count = sendmsg(list(self._parts))  # type: ignore[arg-type]  # nothing is to be called
            if count == self.waiting:
                self._parts.clear()
                self.waiting = 0
                self.taken += count
                return
            self._advance(count)
        self._let_go()
        while self._parts:
            pieces: list[Buffer] = []
            for part in self._parts:
                if callable(part) or len(pieces) == _PIECES:
                    break
                pieces.append(part)
            self._advance(sendmsg(pieces))
            self._let_go()

    def _advance(self, count: int) -> None:
        self.waiting -= count
        self.taken += count
        while count:
            part = self._parts[0]
            assert not callable(part)
            if count < len(part):
                self._parts[0] = memoryview(part)[count:]
                return
            count -= len(part)
            self._parts.popleft()

    def _let_go(self) -> None:
        while self._parts and callable(self._parts[0]):
            release = self._parts.popleft()
            assert callable(release)
            self._lenders -= 1
            release()

    def let_go(self) -> None:
        """Copies what was lent, and lets go of it."""
        parts, self._parts, self._lenders = self._parts, deque(), 0
        for part in parts:
            if not callable(part):
                self._parts.append(bytes(part))
        for part in parts:
            if callable(part):
                part()

    def drop(self) -> None:
        """Gives up what waits."""
        parts, self._parts, self.waiting, self._lenders = self._parts, deque(), 0, 0
        for part in parts:
            if callable(part):
                part()


class Connection:
    """A client. Used on the loop's thread, but for what says that it may be read elsewhere."""

    def __init__(
        self, sock: socket.socket, place: ConnectionSlot, owner: ConnectionOwner, limits: ConnectionLimits
    ) -> None:
        self._sock = sock
        self._place = place
        self._owner = owner
        self._limits = limits
        self._reader = FrameReader(limits.max_frame_bytes)
        self._out = Outgoing()
        self._tls: _TlsSide | None = None
        #: Address of the client, as a record holds it; may be read by any thread.
        self.host = _host_of(sock)
        #: For logs and tools.
        self.peer = _name_of(sock)
        #: The languages' name and version that the client said last.
        self.language, self.version = "OTHER", 0
        #: What the client calls itself, once it said so.
        self.client_id: str | None = None
        now_s = owner.clock.monotonic_s()
        self._heard_s = self._frame_s = self._mark_s = now_s
        self._mark_taken = 0
        self._in_work = 0
        #: Bytes of a frame that is not whole, as they are counted with those of others.
        self._held = 0
        self._is_known = self._is_reading = self._is_writing = self._is_flushing = False
        self._is_first_read = True
        self.is_closed = False
        self._ends_when_sent = False
        self._when_caught_up: deque[Callable[[], None]] = deque()
        self._announcing, self._announced = threading.Lock(), 0
        self._next_opaque = 0
        self._asked: dict[int, tuple[float, Callable[[Frame | None], object]]] = {}
        place.drop = self.close
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read_on()

    # out

    def send(self, parts: Iterable[Buffer], release: Callable[[], object] | None = None) -> None:
        """Sends bytes; ``release`` is called once when they were sent or the connection is gone."""
        if self.is_closed:
            if release is not None:
                release()
            return
        if self._tls is not None:
            self._out.add(self._tls.encrypt(parts))
            if release is not None:
                release()
        else:
            self._out.add(parts, release)
        self._flush_soon()

    def push(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Sends the client a request that it does not answer; a client that is behind misses it."""
        if not self.is_behind:
            self.send([encode_frame(self._request(code, fields, body, FrameFlag.ONEWAY))])

    def ask(
        self,
        code: RequestCode,
        fields: Mapping[str, str],
        answered: Callable[[Frame | None], object],
        *,
        body: bytes = b"",
        timeout_s: float = 10,
    ) -> None:
        """Sends the client a request; ``answered`` gets its answer, or None if it gives none in time or is gone."""
        if self.is_closed or self.is_behind:
            answered(None)
            return
        request = self._request(code, fields, body, FrameFlag(0))
        self._asked[request.opaque] = (self._owner.clock.monotonic_s() + timeout_s, answered)
        self.send([encode_frame(request)])

    def _request(self, code: RequestCode, fields: Mapping[str, str], body: bytes, flag: FrameFlag) -> Frame:
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return Frame(code, self._next_opaque, flag, fields, body)

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken."""
        return self._out.waiting

    def announce(self, count: int) -> None:
        """Counts bytes of answers that were made and are not sent yet; from any thread."""
        with self._announcing:
            self._announced += count

    @property
    def is_behind(self) -> bool:
        """Whether the client has not taken what was made for it; nothing large should be made for it now."""
        return self._out.waiting + self._announced > BEHIND_BYTES

    def when_caught_up(self, go_on: Callable[[], None]) -> None:
        """Calls ``go_on`` when the client is no longer behind, or gone."""
        if self.is_behind:
            self._when_caught_up.append(go_on)
        else:
            go_on()

    def _flush_soon(self) -> None:
        if not self._is_flushing and not self._is_writing:
            self._is_flushing = True
            self._owner.flush_soon(self)

    def flush(self) -> None:
        """Hands the system what waits; after ``flush_soon``, or when the socket takes more."""
        self._is_flushing = False
        if self.is_closed:
            return
        if not self._is_writing:
            self._mark()
        try:
            self._out.send(self._sock.sendmsg)
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._owner.loop.add_writer(self._sock, self.flush)
        except OSError:
            self.close()
            return
        else:
            if self._is_writing:
                self._is_writing = False
                self._owner.loop.remove_writer(self._sock)
            if self._ends_when_sent:
                self.close()
                return
        while self._when_caught_up and self._out.waiting < CAUGHT_UP_BYTES:
            self._when_caught_up.popleft()()
        self._read_on()

    def _mark(self) -> None:
        self._mark_s, self._mark_taken = self._owner.clock.monotonic_s(), self._out.taken

    # in

    def began(self, count: int) -> None:
        """Counts a request of ``count`` bytes as in work."""
        self._in_work += count
        if not self._owner.took(count) or self._in_work > self._limits.most_in_work:
            self._stop_reading()

    def ended(self, count: int) -> None:
        """Counts a request as answered."""
        self._in_work -= count
        self._owner.took(-count)
        self._read_on()

    @property
    def in_work(self) -> int:
        """Bytes of requests that are not answered yet."""
        return self._in_work

    def _read_on(self) -> None:
        if self._is_reading or self.is_closed or self._ends_when_sent:
            return
        if self._in_work <= self._limits.most_in_work and not self.is_behind and self._owner.took(0):
            self._is_reading = True
            self._frame_s = self._owner.clock.monotonic_s()  # a frame waited for us meanwhile, not for the client
            self._owner.loop.add_reader(self._sock, self._readable)

    def read_on(self) -> None:
        """Reads again if there is room now."""
        self._read_on()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._owner.loop.remove_reader(self._sock)

    def _readable(self) -> None:
        buffer = self._owner.buffer
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not count:
            self.close()
            return
        self._heard_s = self._owner.clock.monotonic_s()
        data = bytes(memoryview(buffer)[:count])
        try:
            if self._is_first_read:
                self._begin(data[0])
            if self._tls is not None:
                data = self._tls.decrypt(data)
                self._out.add(self._tls.taken())
                if self._out.waiting:
                    self._flush_soon()
            self._take(data)
        except (InvalidRequestError, ssl.SSLError) as error:
            _LOG.info("connection of %s is closed: %s", self.peer, error)
            self.close()

    def _begin(self, first: int) -> None:
        self._is_first_read = False
        if first == _TLS_HANDSHAKE and self._owner.tls is not None:
            self._tls = _TlsSide(self._owner.tls)
        elif self._owner.requires_tls:
            raise InvalidRequestError("a client without TLS")

    def _take(self, data: bytes) -> None:
        was_whole = not self._held
        for frame in self._reader.feed(data):
            if not self._is_known:
                self._is_known = True
                self._place.is_at_work()
            self.language, self.version = frame.language, frame.version
            self._frame_s = self._heard_s
            if frame.is_answer:
                _, answered = self._asked.pop(frame.opaque, (0.0, _ignore))
                answered(frame)
            else:
                self._owner.received(self, frame)
            if self.is_closed:
                return
        if was_whole:
            self._frame_s = self._heard_s
        before, self._held = self._held, self._reader.held_bytes
        if not self._owner.took(self._held - before) or self.is_behind:
            self._stop_reading()

    # time

    def look(self, now_s: float) -> None:
        """Closes the connection if its client has been silent or slow for too long; called about once a second."""
        limits = self._limits
        self._read_on()
        if self._in_work <= limits.most_in_work and not self.is_behind:  # else it waits for us
            is_half = self._reader.held_bytes or not self._is_known
            if now_s - self._frame_s > limits.receive_s and is_half:
                self.close()
                return
            if now_s - self._heard_s > limits.idle_s and not self._in_work:
                self.close()
                return
        if self._out.waiting and now_s - self._mark_s >= _LENT_S:
            self._out.let_go()
        if self._out.waiting and now_s - self._mark_s >= limits.send_s:
            if self._out.taken - self._mark_taken < limits.least_taken:
                _LOG.warning("%s took %d bytes of its answers in %g s and is cut off", self.peer,
                             self._out.taken - self._mark_taken, limits.send_s)  # fmt: skip
                self.close()
                return
            self._mark()
        for opaque in [opaque for opaque, (until_s, _) in self._asked.items() if until_s <= now_s]:
            self._asked.pop(opaque)[1](None)

    def end(self) -> None:
        """Closes once what waits was sent; reads no more."""
        self._stop_reading()
        self._ends_when_sent = True
        if not self._out.waiting and not self._is_flushing:
            self.close()

    def close(self) -> None:
        """Closes at once. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_reading()
        if self._is_writing:
            self._owner.loop.remove_writer(self._sock)
        self._sock.close()
        self._place.end()
        self._owner.took(-self._held)
        self._held, self._reader = 0, FrameReader(0)
        self._out.drop()
        asked, self._asked = self._asked, {}
        self._owner.closed(self)
        while self._when_caught_up:
            self._when_caught_up.popleft()()
        for _, answered in asked.values():
            answered(None)


class _TlsSide:
    """The server's half of TLS, over bytes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False

    def decrypt(self, data: bytes) -> bytes:
        """Returns what came in clear; :class:`ssl.SSLError` ends the connection."""
        self._incoming.write(data)
        pieces = []
        try:
            if not self._is_open:
                self._object.do_handshake()
                self._is_open = True
            while piece := self._object.read(_TLS_PIECE):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def encrypt(self, parts: Iterable[Buffer]) -> list[Buffer]:
        """Returns what has to be sent for these bytes."""
        for part in parts:
            if len(part):
                self._object.write(part)
        return self.taken()

    def taken(self) -> list[Buffer]:
        """Returns what TLS itself has to say."""
        found = self._outgoing.read()
        return [found] if found else []


def _ignore(frame: Frame | None) -> None:
    """An answer that nobody asked for, or that came too late."""


def _host_of(sock: socket.socket) -> bytes:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        host, port = "", 0
    return peer_host(host, port)


def _name_of(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "?"
    return f"{host}:{port}"
