"""A call on its way: who makes it, what it names, and the threads on which its work runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from tierlog.service.access.caller import Caller, Scope
from tierlog.service.config.serve import ServeSettings
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.grpc.codes import Code, RefusedError
from tierlog.service.rocketmq.other_stores import OtherStores
from tierlog.service.rocketmq.topics import is_system_topic
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, OverloadedError
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.gate import ArchiveGate, through_gate
from tierlog.tiering.format.record import peer_host
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.message.batch import validate_topic

T = TypeVar("T")
#: Has something told of what arrives, for as long as its context lasts.
Watch = Callable[[Callable[[], object]], contextlib.AbstractContextManager[None]]
CLIENT_ID = "x-mq-client-id"
_MAX_CLIENT_ID = 255
#: How long a thread stays after its last work.
_LINGER_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class GrpcCall:
    """One call: its caller, the client that it comes from, and the other end of the connection."""

    caller: Caller
    client_id: str
    peer: str
    #: Sends an answer of a stream.
    write: Callable[[Any], Awaitable[None]]
    #: Seconds until the client gives the call up, None if it has not said.
    time_left: Callable[[], float | None]
    #: What it sent beside the request, its signature among it.
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def peer_host(self) -> bytes:
        """The other end as a record's host field has it."""
        return _host_of(self.peer)

    def topic(self, resource: Any, scope: Scope) -> str:
        """Returns the name of a topic that the caller has a right to; :class:`RefusedError` for a bad name."""
        name = full_name(resource)
        try:
            validate_topic(name)
        except InvalidRequestError as error:
            raise RefusedError(Code.ILLEGAL_TOPIC, str(error)) from None
        self.caller.check(scope, name)
        if is_system_topic(name):
            raise RefusedError(Code.ILLEGAL_TOPIC, f"topic {name!r} is a system topic")
        return name


def group_name(resource: Any) -> str:
    """Returns the name of a consumer group; :class:`RefusedError` for a bad one."""
    try:
        return validate_group(full_name(resource))
    except InvalidRequestError as error:
        raise RefusedError(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from None


def is_fifo(settings: Settings, group: str) -> bool:
    """Whether messages of one message group come to a consumer group in order, the next when the last is done."""
    return any(fnmatchcase(group, pattern) for pattern in settings.rocketmq.fifo_groups.split())


def full_name(resource: Any) -> str:
    """Returns a name with its namespace, as remoting clients write it: ``NAMESPACE%name``."""
    space, name = resource.resource_namespace, resource.name
    return f"{space}%{name}" if space else str(name)


def client_id_of(metadata: dict[str, str]) -> str:
    """Returns the id that a client gave itself."""
    client_id = metadata.get(CLIENT_ID, "")
    if not client_id or len(client_id) > _MAX_CLIENT_ID:
        raise RefusedError(Code.CLIENT_ID_REQUIRED, f"{CLIENT_ID} has 1 to {_MAX_CLIENT_ID} characters")
    return client_id


@functools.lru_cache(maxsize=1_024)
def _host_of(peer: str) -> bytes:
    """``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711`` as a record's host field; none for anything else."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    is_known = kind in ("ipv4", "ipv6") and port.isdigit()
    return peer_host(host.strip("[]"), int(port)) if is_known else peer_host("", 0)


class WorkLane:
    """Threads for one kind of work, and how much of it there may be. Used on the loop."""

    def __init__(self, name: str, threads: int, most: int, setting: str) -> None:
        """``most`` pieces of work at once, as ``setting`` says; one thread in four never waits for the archive."""
        self._pool = WorkerPool(threads, f"tierlog-grpc-{name}", linger_s=_LINGER_S)
        self._gate = ArchiveGate(max(1, threads - threads // 4), f"{setting} is the limit")
        self._name, self._most, self._setting = name, most, setting
        self._under_way = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Runs work on a thread of the lane, in turn; :class:`OverloadedError` if there is too much already."""
        if self._under_way >= self._most:
            raise OverloadedError(
                f"{self._under_way} calls of this kind ({self._name}) are under way already",
                hint=f"try again in a moment; {self._setting} is the limit",
            )
        self._under_way += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(partial(self._gated, work)))
        finally:
            self._under_way -= 1

    def _gated(self, work: Callable[[], T]) -> T:
        with through_gate(self._gate):
            return work()


class DoorLanes:
    """The lanes of a door. Messages that come out of the archive keep no acknowledgement waiting."""

    def __init__(self, settings: ServeSettings) -> None:
        reads, appends = settings.read_threads, settings.append_threads
        self.read = WorkLane("read", reads, settings.max_reads, "serve.max_reads")
        self.deliver = WorkLane("delivery", reads, settings.max_reads, "serve.max_reads")
        self.change = WorkLane("change", appends, settings.max_appends, "serve.max_appends")


class Waits:
    """Calls that wait for something, and work that nobody waits for; both end with the door. Used on the loop."""

    def __init__(self, most: int) -> None:
        """At most so many calls wait at once."""
        self._most = most
        self.is_stopping = False
        self._events: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._events)

    async def wait(self, arrived: asyncio.Event, wait_s: float, of_client: set[asyncio.Event]) -> None:
        """Waits until something has arrived, for a time, or until the door closes.

        ``of_client`` are the events that its client's calls wait for. Raises :class:`OverloadedError` if enough calls
        wait already.
        """
        if self.is_stopping:
            return
        if len(self._events) >= self._most:
            raise OverloadedError(
                f"{len(self._events)} calls wait already",
                hint="try again in a moment; serve.max_long_polls is the limit",
            )
        self._events.add(arrived)
        of_client.add(arrived)
        try:
            async with asyncio.timeout(wait_s):
                await arrived.wait()
        except TimeoutError:
            pass
        finally:
            self._events.discard(arrived)
            of_client.discard(arrived)

    async def arrival(self, watch: Watch, wait_s: float, of_client: set[asyncio.Event]) -> None:
        """Waits for what ``watch`` tells of on another thread, as :meth:`wait` does."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(arrived.set)

        with watch(notify):
            await self.wait(arrived, wait_s, of_client)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does work in the background; what becomes of it is its own affair."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Ends what waits."""
        self.is_stopping = True
        for event in self._events:
            event.set()


@dataclass(frozen=True, slots=True)
class DoorParts:
    """What all calls of a door work with."""

    store: Store
    settings: Settings
    clock: Clock
    _: KW_ONLY
    deliveries: Deliveries
    timers: Timers
    transactions: Transactions
    others: OtherStores
    lanes: DoorLanes
    #: ``host`` and ``port`` that clients are told where nothing else was set.
    address: tuple[str, int]
    waits: Waits
