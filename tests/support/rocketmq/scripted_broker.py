"""A broker in memory that is followed: what it has, whether it is reached, and what happens when a follower waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, FollowedWorld
from tests.support.world import STORE_ID
from tierlog.service.config.follow import FollowSettings
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.service.follow.followed_directory import FollowedDirectory
from tierlog.service.follow.follower import Follower
from tierlog.service.follow.upstream import BrokerLink, BrokerNow
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ClosedError, StoreError, UnavailableError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.rocketmq.broker_files import BrokerState, state_of
from tierlog.tiering.rocketmq.log_source import LogBounds, OffsetGoneError
from tierlog.tiering.rocketmq.remoting import BrokerFacts

LIMIT_S = 30.0
FACTS = BrokerFacts(
    name="Broker A", cluster="east", version="V5_4_0", role="ASYNC_MASTER", segment_bytes=SEGMENT_BYTES,
    ha_address="127.0.0.1:1", is_controller_mode=False, is_dledger=False, file_reserved_hours=72, delete_hours=(4,),
    disk_max_used_percent=75,
)  # fmt: skip
NO_STATE = state_of(topics={}, groups={}, consumer_offsets={}, delay_offsets={})


class FollowersClock(ManualClock):
    """Moves by what followers wait for; the other threads of a store wait a moment, and none of them runs wild."""

    is_calm = False
    """Whether followers do not move it either."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """A moment, whatever is asked for."""
        is_followers = threading.current_thread().name.startswith("tierlog-follow")
        if not self.is_calm and is_followers and not event.wait(0.002):
            return super().wait(event, timeout_s)
        return event.wait(0 if is_followers and not self.is_calm else min(timeout_s, 0.02))


class ScriptedBroker:
    """An :class:`Upstream`. ``steps`` happen one by one on the follower's thread, each time that nothing is to read or
    that no connection is had; then :attr:`done` is set."""

    def __init__(self, log: BrokerLog, world: FollowedWorld, *, name: str = "Broker A") -> None:
        self.name = name
        self.slaves: tuple[str, ...] = ()
        #: Where an earlier process reached it.
        self.remembered: str | None = None
        self.log = log
        self.world = world
        self.facts = FACTS
        self.state: BrokerState = NO_STATE
        self.steps: deque[Callable[[], None]] = deque()
        self.done = threading.Event()
        #: Why nothing connects.
        self.refusal: StoreError | None = None
        self.gone = False
        self.disk_used: float | None = None
        #: Set while questions beside the log are answered.
        self.answers = threading.Event()
        self.answers.set()
        #: Whether it may still take back what lies in its files.
        self.is_recovering = False
        self.piece_bytes = 700
        #: Where no record begins: a source that is begun there gives nothing, as one of files does.
        self.no_record_at: int | None = None
        #: Below which bytes stay; None: all that there are.
        self.settled: int | None = None
        #: Called with the number of each read, before it.
        self.on_read: Callable[[int], None] = lambda number: None
        self.reads = 0
        self.connections: list[_Connection] = []
        self.reports: list[int] = []

    def connect(self) -> BrokerLink:
        if self.refusal is not None:
            self.step()
            if self.refusal is not None:
                raise self.refusal
        self.connections.append(_Connection(_Source(self), "east", "127.0.0.1:1", self.facts, self))
        return cast("BrokerLink", self.connections[-1])

    def is_gone(self) -> bool:
        return self.gone

    def is_back(self) -> bool:
        return not self.gone

    def remember(self, address: str) -> None:
        self.remembered = address

    def step(self) -> None:
        if self.steps:
            self.steps.popleft()()
        else:
            self.done.set()

    def bounds(self) -> LogBounds:
        return LogBounds(self.log.begin, self.log.end)


class _Source:
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self.segment_bytes = broker.facts.segment_bytes
        self._next = self._at = 0
        self._is_closed = self._is_silent = False
        self._log = broker.log

    def bounds(self) -> LogBounds:
        return self._broker.bounds()

    def begin(self, offset: int) -> None:
        bounds = self.bounds()
        if not bounds.min_offset <= offset <= bounds.max_offset:
            raise OffsetGoneError.of(offset, bounds, path="broker")
        self._next = self._at = offset
        self._is_silent = offset == self._broker.no_record_at

    def read(self, wait_s: float) -> bytes:
        broker = self._broker
        broker.reads += 1
        broker.on_read(broker.reads)
        if self._is_closed:
            raise ClosedError("the source was closed")
        if broker.refusal is not None or broker.log is not self._log:
            raise UnavailableError("the broker closed the connection")
        if self._is_silent:
            broker.world.clock.advance(int(wait_s * 1000))
            return b""
        # a master says nothing of what it has removed
        data = b"" if self._next < broker.log.begin else broker.log.read(self._next, broker.piece_bytes)
        self._at, self._next = self._next, self._next + len(data)
        if not data and wait_s:
            if broker.done.wait(0.01):
                return data
            broker.world.clock.advance(int(wait_s * 1000))
            broker.step()
        return data

    def position(self) -> int:
        return self._at

    def report(self, durable: int) -> None:
        self._broker.reports.append(durable)

    def heard_s(self) -> float:
        return self._broker.world.clock.monotonic_s()

    def settled(self) -> int:
        return self._broker.log.end if self._broker.settled is None else self._broker.settled

    def close(self) -> None:
        self._is_closed = True


@dataclass
class _Connection:
    source: _Source
    cluster: str
    address: str
    facts: BrokerFacts
    broker: ScriptedBroker
    closed: int = 0

    def now(self) -> BrokerNow:
        assert self.broker.answers.wait(LIMIT_S)
        return BrokerNow(self.broker.bounds(), self.broker.disk_used)

    def state(self) -> BrokerState:
        assert self.broker.answers.wait(LIMIT_S)
        return self.broker.state

    def goes_on_at(self, offset: int) -> bool:
        return not self.broker.is_recovering and self.broker.log.end > offset

    def close(self) -> None:
        self.closed += 1
        self.source.close()


class FollowerWorld(FollowedWorld):
    """A store that follows a scripted broker; every opening is of a new process, the one before it was killed."""

    def __init__(self, log: BrokerLog, *, url: str | None = None, **options: Any) -> None:
        clock = FollowersClock()
        super().__init__(clock=clock)
        self.clock: FollowersClock = clock
        self.url = url or self.url
        self.broker = ScriptedBroker(log, self)
        self.follow = FollowSettings(broker=self.broker.name, namesrv="127.0.0.1:1", **options)
        #: What was told of the store: whether it was open, and the state.
        self.told: list[tuple[bool, FollowState]] = []
        self.follower: Follower

    def process(self) -> Follower:
        """A follower that is neither open nor started."""
        seams = self.components
        settings = seams.settings.model_copy(update={"follow": self.follow})
        place = FollowedDirectory(
            STORE_ID, self.root, self.url, settings, self.clock, SeededRandomness(self.opens), self.fs,
            cast("ObjectStore", self.bucket),
        )  # fmt: skip
        self.follower = Follower(self.broker, place, changed=self._tell)
        return self.follower

    def run(self, *steps: Callable[[], None], stops: bool = True) -> Follower:
        """Follow until all steps happened and nothing is left to read; then stop."""
        follower = self.process()
        self.broker.steps, self.broker.done = deque(steps), threading.Event()
        follower.open()
        follower.start()
        assert self.broker.done.wait(LIMIT_S), follower.broker
        if stops:
            follower.stop()
        return follower

    def lose(self, log: BrokerLog) -> None:
        """The broker has another log from now on; whoever is connected is not any more."""
        self.broker.log = log

    def refuse(self, error: StoreError | None) -> None:
        """Nothing connects from now on, or all does again."""
        self.broker.refusal = error

    def data(self) -> bytes:
        """The log of the store, which is opened for it."""
        self.open(0)
        return self.log_bytes()

    def _tell(self, broker: FollowedBroker) -> None:
        self.told.append((broker.store is not None, broker.state))


def facts(**changes: object) -> BrokerFacts:
    """Those of the scripted broker, changed."""
    return replace(FACTS, **changes)  # type: ignore[arg-type]


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something holds; real time, as threads do it."""
    waits = threading.Event()
    for _ in range(3_000):
        if is_so():
            return
        waits.wait(0.01)
    raise AssertionError("it never was so")
