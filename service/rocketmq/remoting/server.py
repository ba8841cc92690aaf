"""What serves the remoting protocol: one thread with an event loop for all connections, and threads for what waits.

A request is taken apart on the loop, answered there or on a lane's thread, and its answer written on the loop; answers
of one turn go out together. Requests of a connection are answered as they are done, in any order.

Lanes are bounded: what is too much is answered SYSTEM_BUSY at once. Work for reading that finds it needs the archive is
begun anew on the lane of what waits for it, so that whoever reads what is hot waits for nobody's bucket.

The stop: no connection is accepted any more, nothing more is read, what is in work is answered as far as there is time,
and pulls that wait for messages are answered that there are none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import uvloop

from tierlog.service.access.control import AccessControl
from tierlog.service.config.serve import ServeSettings
from tierlog.service.config.settings import Settings
from tierlog.service.observing.counts import DoorCounts, DoorNumbers, MessageFlow
from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.remoting.broker import DoorContext
from tierlog.service.rocketmq.remoting.calls import (
    CallLane,
    DoorCall,
    Handler,
    OnLaneError,
    RemotingAnswer,
    answer_of,
    refusal,
)
from tierlog.service.rocketmq.remoting.connection import REQUEST_BYTES, Buffer, Connection, ConnectionLimits
from tierlog.service.rocketmq.remoting.consumer_offsets import ConsumerOffsets
from tierlog.service.rocketmq.remoting.long_polls import LongPolls
from tierlog.service.server.connections import Connections, ConnectionSlot, Listener
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.gate import ArchiveGate, through_gate
from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame, encode_head

_RESPONSE = int(FrameFlag.RESPONSE)
_LOG = logging.getLogger("tierlog")
_Context = TypeVar("_Context", bound=DoorContext)
#: Silence after which RocketMQ closes a connection.
IDLE_S = 120
_LOOK_S = 1.0
_READ_BYTES = 256 << 10
#: How long a thread stays after its last work.
_LINGER_S = 2.0
#: Least bytes of requests in work of one connection, however short its frames may be.
_LEAST_IN_WORK = 1 << 20


#: Bytes of a request that count as in work, and when it came.
_Begun = tuple[int, float]
#: Requests that carry messages.
_FLOWS: Mapping[int, MessageFlow] = {
    RequestCode.SEND_MESSAGE: "send", RequestCode.SEND_MESSAGE_V2: "send", RequestCode.SEND_BATCH_MESSAGE: "send",
    RequestCode.PULL_MESSAGE: "receive", RequestCode.LITE_PULL_MESSAGE: "receive", RequestCode.POP_MESSAGE: "receive",
}  # fmt: skip


class _NeedsArchiveError(Exception):
    """Work that must not wait for the archive came to where it would."""


class _NoArchive(ArchiveGate):
    """Lets nobody in: who comes here belongs on another lane."""

    @contextlib.contextmanager
    def passing(self):  # type: ignore[no-untyped-def]  # it never yields
        raise _NeedsArchiveError
        yield


@dataclass(slots=True, eq=False)
class _Lane:
    """Threads for one kind of work, and how much of it there may be. Used on the loop."""

    name: str
    pool: WorkerPool
    most: int
    setting: str
    gate: ArchiveGate | None = None
    #: Where work goes on that needs the archive.
    cold: _Lane | None = None
    under_way: int = 0


class RemotingServer(Generic[_Context]):
    """Serves what a table of handlers answers to clients of RocketMQ's remoting protocol.

    A door gives its requests what they work with, as :attr:`broker`, before it starts.
    """

    broker: _Context

    def __init__(
        self,
        listening: socket.socket,
        settings: Settings,
        clock: Clock,
        handlers: Mapping[int, Handler[_Context]],
        *,
        control: AccessControl,
        tls: ServerTls | None = None,
    ) -> None:
        """``listening`` is bound and listens."""
        self._listening = listening
        self._handlers = handlers
        self._settings = settings
        self._access = SignedAccess(control, clock)
        self._server_tls = tls
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.buffer = bytearray(_READ_BYTES)
        self.tls = None if tls is None else tls.context
        self.requires_tls = settings.serve.tls_client_ca is not None
        self._polls = LongPolls(self.loop, self.call_soon, settings.serve.max_long_polls)
        #: What metrics tell of it.
        self.counts = DoorCounts("remoting")
        #: Called on the loop when the door closes, before what is in work is waited for.
        self.at_stop: list[Callable[[], object]] = []
        #: The places of its connections.
        self.places = Connections(settings.rocketmq.max_connections)
        self._limits = _limits(settings)
        self._lanes = _lanes(settings.serve)
        #: What is connected; on the loop only.
        self.connections: set[Connection] = set()
        self._in_work = 0
        self._most_in_work = settings.serve.body_memory_bytes
        self._to_do: deque[Callable[[], object]] = deque()
        #: Connections that have something to send.
        self._to_flush: list[Connection] = []
        self._is_woken = False
        self._is_stopping = self._is_writing_offsets = False
        self._thread = threading.Thread(target=self._run, name="tierlog-rocketmq", daemon=True)
        self._is_up = threading.Event()

    # what a door says of itself

    def committed_offsets(self) -> Iterable[ConsumerOffsets]:
        """Returns the offsets that are written now and then, and at the stop."""
        return ()

    def why_refused(self, code: int) -> str:
        """Returns what whoever asks for something that has no handler is told."""
        return f"request type {code} not supported"

    def request_name(self, code: int) -> str:
        """Returns what metrics call a request; one of few names."""
        return _name_of(code) if code in self._handlers else "other"

    def start(self) -> None:
        """Accepts connections from now on."""
        self._thread.start()
        self._is_up.wait()

    def stop(self, timeout_s: float) -> None:
        """Stops within about ``timeout_s``; idempotent."""
        if self._thread.is_alive():
            self.call_soon(partial(self._begin_stop, timeout_s))
            self._thread.join(timeout_s + 1)
        for offsets in self.committed_offsets():
            offsets.flush()

    # the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException:  # also an exit: without a line nobody would learn why the door is shut
            _LOG.exception("the door for RocketMQ clients has failed")
        finally:
            self._is_up.set()
            self.loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        self._idle = asyncio.Event()
        self._listener = _DoorListener(self._listening, self.places, self._opened)
        self.loop.call_later(_LOOK_S, self._look)
        self._is_up.set()
        await self._stopped.wait()

    def _opened(self, accepted: socket.socket, place: ConnectionSlot) -> None:
        self.connections.add(Connection(accepted, place, self, self._limits))

    def _look(self) -> None:
        now_s = self.clock.monotonic_s()
        for connection in list(self.connections):
            connection.look(now_s)
        self.broker.clients.expire()
        if not self._is_writing_offsets and any(one.is_due for one in self.committed_offsets()):
            self._is_writing_offsets = True
            self._lanes[CallLane.APPEND].pool.give(self._write_offsets)
        if self._server_tls is not None:
            self._server_tls.refresh()
        self.loop.call_later(_LOOK_S, self._look)

    def _write_offsets(self) -> None:
        try:
            for offsets in self.committed_offsets():
                if offsets.is_due:
                    offsets.flush()
        except Exception:
            _LOG.exception("offsets of RocketMQ clients could not be written")
        finally:
            self._is_writing_offsets = False

    def _begin_stop(self, timeout_s: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._listener.close()
            self._polls.stop()
            for each in self.at_stop:
                each()
            self._stop_task = self.loop.create_task(self._finish_stop(timeout_s))

    async def _finish_stop(self, timeout_s: float) -> None:
        await self._listener.wait_closed()
        for connection in list(self.connections):
            if not connection.in_work:
                connection.end()
        if self._in_work:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s / 2):
                    await self._idle.wait()
        for connection in list(self.connections):
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s / 2):
                while self.connections:
                    await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()
        self._stopped.set()

    def call_soon(self, work: Callable[[], object]) -> None:
        """Runs ``work`` on the loop; from any thread. It must raise nothing."""
        self._to_do.append(work)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._do)

    def _do(self) -> None:
        self._is_woken = False
        to_do = self._to_do
        while to_do:
            to_do.popleft()()

    # what a connection asks of its owner

    def flush_soon(self, connection: Connection) -> None:
        """Has a connection send what it has when all that has come by now was looked at."""
        if not self._to_flush:
            self.loop.call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, []
        for connection in to_flush:
            connection.flush()

    def took(self, count: int) -> bool:
        """Counts bytes of requests of all connections; whether there may be more."""
        self._in_work += count
        if self._is_stopping and not self._in_work:
            self._idle.set()
        return self._in_work <= self._most_in_work and not self._is_stopping

    def closed(self, connection: Connection) -> None:
        """Forgets a connection."""
        self.connections.discard(connection)
        self._polls.disconnected(connection)
        self.broker.clients.disconnected(connection)

    def received(self, connection: Connection, frame: Frame) -> None:
        """Has a request answered."""
        size = len(frame.body) + REQUEST_BYTES
        connection.began(size)
        reply = partial(self._reply, connection, frame, (size, self.clock.monotonic_s()))
        handler = self._handlers.get(frame.code)
        if handler is None:
            reply(refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, self.why_refused(frame.code)))
            return
        try:
            caller = self._access.of_fields(frame.fields, frame.body, frame.version)
        except Exception as error:
            reply(answer_of(error))
            return
        call: DoorCall[_Context] = DoorCall(self, self.broker, connection, frame, caller, reply, handler.lane)
        if frame.fault is not None:
            reply(refusal(ResponseCode.SYSTEM_ERROR, frame.fault))
        elif handler.lane is CallLane.LOOP:
            self._answer_here(handler, call)
        else:
            self._give(self._lanes[handler.lane], handler, call)

    # answering

    def _answer_here(self, handler: Handler[Any], call: DoorCall[Any]) -> None:
        try:
            answer = handler.run(call)
        except OnLaneError as other:
            call.lane = other.lane
            self._give(self._lanes[other.lane], handler, call)
            return
        except Exception as error:
            answer = answer_of(error)
        if answer is not None:
            call.reply(answer)

    def again(self, call: DoorCall[Any]) -> None:
        """Has a call handled anew, on its lane; from any thread."""
        self.call_soon(partial(self._again, call))

    def again_when_caught_up(self, call: DoorCall[Any]) -> None:
        """Has a call handled anew when its client is no longer behind; from any thread."""
        self.call_soon(lambda: call.connection.when_caught_up(partial(self._again, call)))

    def now_s(self) -> float:
        """Returns the monotonic time."""
        return self.clock.monotonic_s()

    def _again(self, call: DoorCall[Any]) -> None:
        if call.connection.is_closed:
            call.reply(RemotingAnswer())  # counts it as answered
        else:
            self._give(self._lanes[call.lane], self._handlers[call.code], call)

    @property
    def in_work(self) -> int:
        """Bytes of requests that are not answered yet, and of frames that are not whole."""
        return self._in_work

    def _give(self, lane: _Lane, handler: Handler[Any], call: DoorCall[Any]) -> None:
        if lane.under_way >= lane.most:
            call.reply(
                refusal(
                    ResponseCode.SYSTEM_BUSY,
                    f"{lane.under_way} requests of this kind ({lane.name}) are under way already; "
                    f"{lane.setting} is the limit",
                )
            )
            return
        lane.under_way += 1
        try:
            lane.pool.give(partial(self._work, lane, handler, call))
        except RuntimeError:  # the system has no thread
            lane.under_way -= 1
            call.reply(refusal(ResponseCode.SYSTEM_BUSY, "no thread could be started"))

    def _work(self, lane: _Lane, handler: Handler[Any], call: DoorCall[Any]) -> None:
        try:
            with through_gate(lane.gate):
                answer = handler.run(call)
        except _NeedsArchiveError:
            assert lane.cold is not None
            self.call_soon(partial(self._move, lane, lane.cold, handler, call))
            return
        except BaseException as error:  # whatever it is: the client is answered, and the lane has room again
            answer = answer_of(error)
        self.call_soon(partial(self._left, lane))
        if answer is not None:
            call.reply(answer)

    def _move(self, lane: _Lane, cold: _Lane, handler: Handler[Any], call: DoorCall[Any]) -> None:
        lane.under_way -= 1
        self._give(cold, handler, call)

    def _left(self, lane: _Lane) -> None:
        lane.under_way -= 1

    def _reply(self, connection: Connection, frame: Frame, begun: _Begun, answer: RemotingAnswer) -> None:
        if threading.get_ident() == self._thread.ident:
            self._send(connection, frame, begun, answer)
        else:
            made = sum(map(len, _parts_of(answer)))
            connection.announce(made)  # whoever makes the next answer knows of this one
            self.call_soon(partial(self._send_announced, connection, frame, begun, answer, made))

    def _send_announced(
        self, connection: Connection, frame: Frame, begun: _Begun, answer: RemotingAnswer, made: int
    ) -> None:
        connection.announce(-made)
        self._send(connection, frame, begun, answer)

    def _send(self, connection: Connection, frame: Frame, begun: _Begun, answer: RemotingAnswer) -> None:
        size, begun_s = begun
        sent = 0
        if not frame.is_oneway and not connection.is_closed:
            head = Frame(
                int(answer.code), frame.opaque, _RESPONSE, answer.fields, remark=answer.remark, form=frame.form
            )
            if answer.body == b"":
                connection.send((encode_head(head, 0),), answer.release)
            else:
                parts = _parts_of(answer)
                sent = sum(map(len, parts))
                connection.send([encode_head(head, sent), *parts], answer.release)
        elif answer.release is not None:
            answer.release()
        connection.ended(size)
        self.counts.end(self.request_name(frame.code), _answer_name(answer.code), received=len(frame.body), sent=sent)
        if (flow := _FLOWS.get(frame.code)) is not None:
            self.counts.took(flow, self.clock.monotonic_s() - begun_s)

    def numbers(self) -> DoorNumbers:
        """What is there now."""
        clients = self.broker.clients
        groups = clients.consumer_groups()
        return DoorNumbers(
            clients=clients.connected(),
            consumers=sum(len(clients.consumers(group)) for group in groups),
            producers=sum(len(clients.producers(group)) for group in clients.producer_groups()),
            groups=len(groups),
            waiting=self._polls.waiting,
            connections=self.places.open,
            refused={reason: value for (reason,), value in self.places.refused.reading().items()},
        )

    def tell_members(self, group: str, connections: list[Connection]) -> None:
        """Tells the members of a group that others came or went; from any thread."""
        fields = {"consumerGroup": group}
        for connection in connections:
            self.call_soon(partial(connection.push, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))


@functools.cache  # of codes that are handled, and one name for all others
def _name_of(code: int) -> str:
    return RequestCode(code).name.lower()


@functools.cache
def _answer_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)


def _parts_of(answer: RemotingAnswer) -> Sequence[Buffer]:
    return [answer.body] if isinstance(answer.body, (bytes, memoryview)) else answer.body


class _DoorListener(Listener):
    """Accepts the door's connections."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        opened: Callable[[socket.socket, ConnectionSlot], object],
    ) -> None:
        super().__init__(
            listening, connections, lambda place: asyncio.Protocol(), b"", tls=None, handshake_s=0, shutdown_s=0
        )
        self._opened_door = opened

    async def open(self, accepted: socket.socket, place: ConnectionSlot) -> None:
        """Begins to read."""
        self._opened_door(accepted, place)


def _limits(settings: Settings) -> ConnectionLimits:
    serve, longest = settings.serve, settings.rocketmq.max_frame_bytes
    send_s = serve.send_timeout_ms / 1000
    return ConnectionLimits(
        max_frame_bytes=longest, most_in_work=max(longest, _LEAST_IN_WORK), idle_s=IDLE_S,
        receive_s=serve.receive_timeout_ms / 1000, send_s=send_s,
        least_taken=max(1, int(serve.min_send_rate * send_s)),
    )  # fmt: skip


def _lanes(settings: ServeSettings) -> dict[CallLane, _Lane]:
    def lane(name: str, threads: int, most: int, setting: str) -> _Lane:
        return _Lane(name, WorkerPool(threads, f"tierlog-rocketmq-{name}", linger_s=_LINGER_S), most, setting)

    read = lane("read", settings.read_threads, settings.max_reads, "serve.max_reads")
    read.gate = _NoArchive(0, "")
    read.cold = lane("archive", settings.read_threads, settings.max_reads, "serve.max_reads")
    append = lane("append", settings.append_threads, settings.max_appends, "serve.max_appends")
    return {CallLane.READ: read, CallLane.APPEND: append}
