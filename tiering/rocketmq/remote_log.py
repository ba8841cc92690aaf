"""A running master's commit log over the network, by the protocol in which its slaves copy it.

========== ============================================== =============================================================
who sends  bytes, big-endian                              meaning
========== ============================================== =============================================================
slave      int64 offset                                   first: where to begin; 0 would be the newest segment. Then, at
                                                          least every 20 s: below it everything is durable there
master     int64 offset, int32 n, n bytes                 the next bytes of the log; never across the end of a segment
master     int64 offset, int32 0                          nothing new; every 5 s
========== ============================================== =============================================================

A frame cuts records anywhere. As 0 means something else, whoever wants the first byte of the whole log asks for the
second one, and knows the first: it is the upper byte of a record's length, 0 below 16 MiB.

An *observer* reports 0 once the master has begun to send, so that nothing that a producer waits for counts on it. A
*replica* reports what is durable here, and may be the one that a ``SYNC_MASTER`` waits for.

The protocol has neither a signature nor encryption, and says nothing about what the master has flushed. That is asked
of the broker itself (:func:`~tierlog.tiering.rocketmq.remoting.flushed_below`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, InvalidRequestError, StoreError
from tierlog.tiering.rocketmq.log_source import LogBounds, OffsetGoneError, SourceLostError
from tierlog.tiering.rocketmq.remoting import (
    BOOT_TIMESTAMP,
    BrokerClient,
    BrokerFacts,
    bounds_in,
    flushed_below,
    parse_address,
    runtime_info,
)

_HEAD = struct.Struct(">qi")
_REPORT = struct.Struct(">q")
CONNECT_TIMEOUT_S = 3.0
#: A master closes a connection that has said nothing for 20 s, and says something itself every 5 s.
REPORT_EVERY_S = 3.0
SILENCE_S = 20.0
#: How long the age of bytes has to be, where a broker does not tell what it has flushed; it flushes every 10 s.
SETTLE_S = 20.0
_BUFFER_BYTES = 1 << 20
_SOCKET_BUFFER_BYTES = 4 << 20
#: What the second byte is asked for instead of.
_FIRST_BYTE, _SECOND_BYTE = 0, 1


def check_followable(facts: BrokerFacts) -> None:
    """Raises :class:`InvalidRequestError` for a broker that copies its log to slaves by another protocol."""
    if facts.is_dledger:
        raise dledger_error(facts.name)
    if facts.is_controller_mode:
        raise InvalidRequestError(
            f"broker {facts.name} runs in controller mode, whose replication is another protocol",
            hint="follow it from its files, on its machine: --store DIR",
        )


def dledger_error(name: str) -> InvalidRequestError:
    """Returns what is said of a broker whose log has another format than that of all others."""
    return InvalidRequestError(
        f"broker {name} runs with DLedger, whose log has another format, over the network and in its files",
        hint="no source can follow it; a broker in controller mode can be, from its files: --store DIR",
    )


class RemoteLog:
    """The log of a master whose slaves connect to ``ha_address``; a :class:`LogSource`.

    ``client`` asks the broker itself, and stays its owner's to close.
    """

    def __init__(
        self,
        ha_address: str,
        client: BrokerClient,
        *,
        segment_bytes: int,
        clock: Clock,
        is_replica: bool = False,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.segment_bytes = segment_bytes
        self._address = ha_address
        self._endpoint = parse_address(ha_address)
        self._client = client
        self._clock = clock
        self._is_replica = is_replica
        self._settle_s = settle_s
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_closed = False
        #: When the broker says that it was started.
        self._started = ""
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._reset(0)

    def _reset(self, offset: int) -> None:
        #: What was received and is not given out: buffer[begin:end].
        self._begin = self._end = 0
        #: Bytes that are left of the frame whose head was read.
        self._frame_left = 0
        self._position = self._next = offset
        self._asked = offset or _SECOND_BYTE
        self._lacks_first_byte = offset == _FIRST_BYTE
        self._durable = offset
        self._is_heard = False
        self._heard_s = self._reported_s = self._clock.monotonic_s()
        self._settled = 0
        #: What the broker has told of itself, and was not looked at yet.
        self._told: Mapping[str, str] | None = None
        #: When how much had been received, for brokers that do not tell what they have flushed.
        self._marks: deque[tuple[float, int]] = deque()

    # the protocol of sources

    def bounds(self) -> LogBounds:
        """Asks the broker."""
        return self._ask()[0]

    def _ask(self) -> tuple[LogBounds, str]:
        """Returns the bounds of the broker's log, and when it was started."""
        try:
            info = runtime_info(self._client)
            return bounds_in(info), info.get(BOOT_TIMESTAMP, "")
        except StoreError as error:
            raise SourceLostError(error.message, path=self._client.address) from error

    def begin(self, offset: int) -> None:
        """Connects anew and asks for ``offset``."""
        bounds, started = self._ask()
        with self._lock:
            self._check_open()
            self._disconnect()
            self._started = started
            if not bounds.min_offset <= offset <= bounds.max_offset:
                raise OffsetGoneError.of(offset, bounds, path=self._client.address)
            self._reset(offset)
            try:
                self._connection = self._connect()
                self._connection.sendall(_REPORT.pack(self._asked))
            except OSError as error:
                self._disconnect()
                raise self._lost(f"cannot be connected to: {error.strerror or error}") from error

    def read(self, wait_s: float) -> memoryview | bytes:
        """Returns what has come of one segment, up to a megabyte; nothing too if the master only said that it lives."""
        with self._lock:
            connection = self._connected()
            self._report_if_due(connection)
            found = self._take()
            waited_s = 0.0
            while not found:
                step_s = min(wait_s - waited_s, REPORT_EVERY_S)
                if self._receive(connection, step_s):
                    self._heard_s, self._is_heard = self._clock.monotonic_s(), True
                    found = self._take()
                    if not found and self._begin == self._end and not self._frame_left:  # only that it lives
                        return b""
                    continue
                waited_s += step_s
                self._check_silence()
                self._report_if_due(connection)
                if waited_s >= wait_s:
                    return b""
            return found

    def position(self) -> int:
        return self._position

    def report(self, durable: int) -> None:
        """Tells a replica's master at once, as a producer may be waiting for it."""
        with self._lock:
            connection = self._connected()
            is_news = self._is_replica and durable > self._durable
            self._durable = max(self._durable, durable)
            if is_news and self._is_heard:
                self._report(connection)
            else:
                self._report_if_due(connection)

    def heard_s(self) -> float:
        return self._heard_s

    def told(self, info: Mapping[str, str]) -> None:
        """Takes what the broker tells of itself (:func:`~tierlog.tiering.rocketmq.remoting.runtime_info`). On any
        thread: whoever reads the log does not wait for it."""
        self._told = info

    def settled(self) -> int:
        """Returns what the broker said it has flushed when it told last (:meth:`told`).

        Of a broker that does not tell, it is what came longer ago than brokers take to flush. What a broker says that
        was started since is of another log's end: it may lack what came, and the connection be dead without a word.
        """
        info, self._told = self._told, None
        if info is None:
            return self._settled
        now_s = self._clock.monotonic_s()
        self._marks.append((now_s, self._next))
        received = self._received_long_ago(now_s)
        try:
            flushed = flushed_below(info)
        except StoreError:  # what was known before still holds
            return self._settled
        if info.get(BOOT_TIMESTAMP, "") != self._started:
            with self._lock:
                raise self._lost("was started again")
        self._settled = max(self._settled, received if flushed is None else flushed)
        return self._settled

    def close(self) -> None:
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        with self._lock:
            self._disconnect()

    # the connection

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_INET6 if ":" in self._endpoint[0] else socket.AF_INET)
        try:
            # before connecting, as the window is agreed upon then
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect(self._endpoint)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> socket.socket:
        self._check_open()
        if self._connection is None:
            raise SourceLostError("not connected", path=self._address)
        return self._connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the source was closed")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self, why: str) -> StoreError:
        """Returns the error with which this connection ends."""
        self._disconnect()
        if self._is_closed:
            return ClosedError("the source was closed")
        return SourceLostError(f"the master {why}", path=self._address)

    def _check_silence(self) -> None:
        silence_s = self._clock.monotonic_s() - self._heard_s
        if silence_s > SILENCE_S:
            raise self._lost(f"has said nothing for {silence_s:.0f} s")

    def _report_if_due(self, connection: socket.socket) -> None:
        if self._clock.monotonic_s() - self._reported_s >= REPORT_EVERY_S:
            self._report(connection)

    def _report(self, connection: socket.socket) -> None:
        """Says what is durable here.

        Until the master was heard, what was asked for is said again: it may read both at once, and takes the last.
        """
        durable = self._asked
        if self._is_heard:
            durable = self._durable if self._is_replica else 0
        try:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.sendall(_REPORT.pack(durable))
        except OSError as error:
            raise self._lost(f"takes nothing any more: {error.strerror or error}") from error
        self._reported_s = self._clock.monotonic_s()

    def _receive(self, connection: socket.socket, timeout_s: float) -> bool:
        """Whether something came; it is behind what is in the buffer already."""
        left = self._end - self._begin
        self._buffer[:left] = self._buffer[self._begin : self._end]  # a piece of a head at most
        self._begin, self._end = 0, left
        try:
            connection.settimeout(max(0.0, timeout_s))
            count = connection.recv_into(self._buffer[left:])
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise self._lost(f"is gone: {error.strerror or error}") from error
        if not count:
            raise self._lost("closed the connection")
        self._end += count
        return True

    # frames

    def _take(self) -> memoryview:
        """Returns the next bytes of one segment in the buffer, moved together over the heads between them."""
        buffer, at, end = self._buffer, self._begin, self._end
        first = last = at
        position = self._next
        while at < end:
            if self._frame_left:
                count = min(self._frame_left, end - at)
                if last == first:
                    first = last = at
                if last != at:
                    buffer[last : last + count] = buffer[at : at + count]
                last, at = last + count, at + count
                self._frame_left -= count
                self._next += count
                continue
            if end - at < _HEAD.size or (last > first and self._next % self.segment_bytes == 0):
                break
            offset, count = _HEAD.unpack_from(buffer, at)
            if count:
                self._check_head(offset, count)
            at += _HEAD.size
            self._frame_left = count
            if count and self._lacks_first_byte:
                at -= 1
                buffer[at] = 0
                self._frame_left += 1
                self._lacks_first_byte = False
        self._begin = at
        if last > first:
            self._position = position
        return buffer[first:last]

    def _check_head(self, offset: int, count: int) -> None:
        expected = self._next + self._lacks_first_byte
        if offset != expected:
            raise self._lost(f"sent offset {offset}, expected {expected}")
        if not 0 < count <= self.segment_bytes - offset % self.segment_bytes:
            raise self._lost(f"sent a frame of {count} bytes at {offset}, in segments of {self.segment_bytes}")

    def _received_long_ago(self, now_s: float) -> int:
        found = 0
        while len(self._marks) > 1 and self._marks[1][0] <= now_s - self._settle_s:
            self._marks.popleft()
        if self._marks and self._marks[0][0] <= now_s - self._settle_s:
            found = self._marks[0][1]
        return found
