"""What the followed brokers say themselves while somebody waits for an answer: where their logs begin, who consumes.

Each is asked at its own address, at most once in :data:`_AGE_S`, and is given :data:`_TIMEOUT_S` to answer; one that
does not answer is not asked again for :data:`_DOWN_S`. One that is only slow, as its log or an answer came within the
time that a look-up has, is not gone.

The border of a broker is the physical offset below which it has nothing any more, so that whoever asks all brokers
finds each message once. It is the broker's own word, as fresh as the answer. While its master cannot be reached,
clients ask a slave of it. Where none can be reached nobody answers, so all that it had is below its border then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ForbiddenError, UnavailableError
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.remoting import BrokerClient, Credentials, bounds_in, runtime_info

#: The border of a broker that has nothing.
EVERYTHING = 1 << 63
_AGE_S = 1.0
_DOWN_S = 3.0
_TIMEOUT_S = 1.0
#: In these states the broker sends its log.
_CONNECTED = (FollowState.FOLLOWING, FollowState.BEHIND)


@dataclass(slots=True)
class _Asked:
    """One broker's address and what it said last; the lock is held while it is asked."""

    client: BrokerClient
    lock: threading.Lock = field(default_factory=threading.Lock)
    border: int = 0
    border_until_s: float = -1.0
    down_until_s: float = -1.0


class LiveBrokers:
    """Asks the followed brokers. Thread safe; waits for a network, for a bounded time."""

    def __init__(
        self, clock: Clock, answer_ms: int, credentials: Callable[[], Credentials | None] = lambda: None
    ) -> None:
        """``answer_ms``: how long a broker may be silent that accepts connections and answers nothing."""
        self._clock = clock
        self._silent_s = answer_ms / 1000
        self._credentials = credentials
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}

    def border(self, broker: FollowedBroker) -> int:
        """Returns the physical offset below which the broker has nothing any more."""
        if broker.state is FollowState.PROMOTED:
            return EVERYTHING
        if broker.address is None:  # it is known by its files alone, if at all
            return EVERYTHING if broker.live_min_offset is None else broker.live_min_offset
        for address in (broker.address, *broker.slaves):  # whoever looks something up asks a slave without a master
            border = self._border_at(address, broker)
            if border is not None:
                return border
        return EVERYTHING

    def _border_at(self, address: str, broker: FollowedBroker) -> int | None:
        """Returns what one address says; None if nobody answers there."""
        asked = self._of(address)
        with asked.lock:
            if self._is_down(asked):
                return None
            if self._clock.monotonic_s() >= asked.border_until_s:
                try:
                    asked.border = bounds_in(runtime_info(asked.client)).min_offset
                except UnavailableError as error:
                    if not self._is_slow(asked, broker, error):
                        self._note_down(asked)
                        return None
                    # it sends its log, and is slow to answer: taken for gone, all of its messages would be found twice
                    asked.border = broker.live_min_offset or 0
                except ForbiddenError:  # it is there, and says nothing to us: what is known is as good as any
                    asked.border = broker.live_min_offset or 0
                asked.border_until_s = self._clock.monotonic_s() + _AGE_S
            return asked.border

    def consumers(self, broker: FollowedBroker, group: str) -> list[str]:
        """Returns the clients that the broker knows in a group of consumers; none if it does not say."""
        if broker.address is None:
            return []
        asked = self._of(broker.address)
        with asked.lock:
            if self._is_down(asked):
                return []
            try:
                reply = asked.client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
                found = orjson.loads(reply.body) if reply.code == ResponseCode.SUCCESS and reply.body else {}
            except UnavailableError as error:
                if not self._is_slow(asked, broker, error):
                    self._note_down(asked)
                return []
            except orjson.JSONDecodeError:
                return []
        ids = found.get("consumerIdList") if isinstance(found, dict) else None
        return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            asked, self._asked = self._asked, {}
        for one in asked.values():
            one.client.close()

    def _of(self, address: str) -> _Asked:
        with self._lock:
            found = self._asked.get(address)
            if found is None:
                client = BrokerClient(address, clock=self._clock, timeout_s=_TIMEOUT_S, credentials=self._credentials())
                found = self._asked[address] = _Asked(client)
            return found

    def _is_slow(self, asked: _Asked, broker: FollowedBroker, error: UnavailableError) -> bool:
        """Whether a broker that did not answer was heard just now: a heartbeat of its log comes every 5 s."""
        return (
            asked.client.address == broker.address
            and broker.state in _CONNECTED
            and isinstance(error.__cause__, TimeoutError)
            and self._clock.monotonic_s() - broker.heard_s <= self._silent_s
        )

    def _is_down(self, asked: _Asked) -> bool:
        return self._clock.monotonic_s() < asked.down_until_s

    def _note_down(self, asked: _Asked) -> None:
        asked.down_until_s = self._clock.monotonic_s() + _DOWN_S
        asked.border_until_s = -1.0
