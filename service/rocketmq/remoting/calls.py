"""Requests and their answers, and the one table of what answers which code.

A handler is a plain function of a :class:`RemotingCall`, declared by :func:`handles` with the lane on which it runs. It
returns its :class:`RemotingAnswer`, or None after it has seen to it that :meth:`RemotingCall.reply` is called later,
once. Errors of the store become answers in one place, :func:`answer_of`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import orjson

from tierlog.service.access.audit import AuditEntry, shortened
from tierlog.service.access.caller import Caller
from tierlog.service.rocketmq.remoting.broker import Broker, DoorContext, ReadableBroker
from tierlog.service.rocketmq.remoting.connection import Buffer, Connection
from tierlog.service.rocketmq.remoting.long_polls import Watch
from tierlog.tiering.base.errors import (
    AccessError,
    CapacityError,
    ClosedError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    ReadOnlyError,
    StoreError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame

_LOG = logging.getLogger("tierlog")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_INT64_END = 1 << 63
#: Bytes of a remark.
_MOST_REMARK = 4_000
_Context = TypeVar("_Context", bound=DoorContext)
_Context_co = TypeVar("_Context_co", bound=DoorContext, covariant=True)


class CallLane(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    """On the thread of all connections: it waits for nothing, and takes microseconds."""
    READ = "read"
    """On a thread for reading. Work that needs the archive is begun anew on a thread of those that may wait for it."""
    APPEND = "append"
    """On a thread for writing."""


class OnLaneError(Exception):
    """Raised by a handler that has done nothing so far: it is to be called again on another lane."""

    def __init__(self, lane: CallLane) -> None:
        super().__init__(lane.value)
        self.lane = lane


@dataclass(slots=True)
class RemotingAnswer:
    """What is answered. ``release`` is called once, when the body was sent or will never be."""

    fields: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    body: Buffer | Sequence[Buffer] = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    release: Callable[[], object] | None = None

    @classmethod
    def of_json(cls, document: Any) -> RemotingAnswer:
        """Answers with a JSON body, without blanks."""
        return cls(body=orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))


def refusal(code: ResponseCode, remark: str) -> RemotingAnswer:
    """Answers with a code and why."""
    return RemotingAnswer(code=code, remark=remark)


class CallHost(Protocol):
    """What has calls handled: the door."""

    def again(self, call: DoorCall[Any]) -> None:
        """Has a call handled anew, on its lane; from any thread."""
        ...

    def again_when_caught_up(self, call: DoorCall[Any]) -> None:
        """Has a call handled anew when its client is no longer behind; from any thread."""
        ...

    def now_s(self) -> float:
        """Returns the monotonic time."""
        ...


@dataclass(slots=True, eq=False)
class DoorCall(Generic[_Context_co]):
    """One request, with what it works with."""

    host: CallHost
    broker: _Context_co
    connection: Connection
    frame: Frame
    caller: Caller
    #: Answers it, from whatever thread; for a handler that returned None.
    reply: Callable[[RemotingAnswer], object]
    #: Where it runs.
    lane: CallLane = CallLane.LOOP
    #: The time until which it waits for messages, once it has begun to.
    until_s: float | None = None

    @property
    def code(self) -> int:
        """What is asked for."""
        return self.frame.code

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return self.frame.body

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a field; :class:`InvalidRequestError` if it is missing and has no default."""
        value = self.frame.fields.get(name, default)
        if value is None:
            raise InvalidRequestError(f"the field {name} is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Returns a field that is an int64; :class:`InvalidRequestError` otherwise."""
        value = self.frame.fields.get(name)
        if value is None or value == "":
            if default is None:
                raise InvalidRequestError(f"the field {name} is missing")
            return default
        return parse_number(name, value)

    def is_true(self, name: str) -> bool:
        """Returns whether a field says true."""
        return self.frame.fields.get(name, "").lower() == "true"

    def again_when_caught_up(self) -> None:
        """Has it handled anew when the client has taken what it was sent."""
        self.host.again_when_caught_up(self)

    def waits(self, watch: Watch, wait_ms: int) -> bool:
        """Has it handled anew when ``watch`` tells of messages, or the time is over; False if that is so already.

        Raises :class:`OverloadedError` if too many wait.
        """
        now_s = self.host.now_s()
        if self.until_s is None:
            self.until_s = now_s + wait_ms / 1000
        if self.until_s <= now_s:
            return False
        self.broker.polls.hold(self.connection, watch, self.until_s - now_s, self._go_on)
        return True

    def _go_on(self, may_wait: bool) -> None:
        if not may_wait:
            self.until_s = 0.0
        self.host.again(self)

    def document(self) -> Any:
        """Returns the body, which is JSON; :class:`InvalidRequestError` otherwise."""
        return parse_document(self.frame.body)

    def recorded(self, **parameters: object) -> contextlib.AbstractContextManager[AuditEntry]:
        """Surrounds a change that an administrator may make; entered after the caller's right was checked."""
        log = self.broker.audit
        if log is None:
            return contextlib.nullcontext(AuditEntry())
        who = {"caller": self.caller.name, "peer": self.connection.peer.rpartition(":")[0], "request_id": None}
        named = {name: shortened(value) for name, value in parameters.items()}
        return log.call(who, {"method": "ROCKETMQ", "path": RequestCode(self.code).name, "parameters": named})


#: A request to a store that takes messages.
RemotingCall = DoorCall[Broker]
#: A request to any door.
AnyCall = DoorCall[DoorContext]
#: A request to a store that is only read.
ReadCall = DoorCall[ReadableBroker]


def parse_number(name: str, value: str) -> int:
    """Reads an int64 as Java does."""
    try:
        found = int(value) if len(value) <= 20 else None
    except ValueError:
        found = None
    if found is None or not -_INT64_END <= found < _INT64_END:
        raise InvalidRequestError(f"the field {name} is no number: {value[:100]!r}")
    return found


def parse_document(body: bytes) -> Any:
    """Reads JSON; :class:`InvalidRequestError` for anything but some."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is no JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Handler(Generic[_Context]):
    """What answers a code."""

    run: Callable[[DoorCall[_Context]], RemotingAnswer | None]
    lane: CallLane


#: Every code that a store's own door answers.
HANDLERS: dict[int, Handler[Broker]] = {}

_Run = TypeVar("_Run", bound=Callable[..., RemotingAnswer | None])


def handles(*codes: RequestCode, lane: CallLane) -> Callable[[_Run], _Run]:
    """Declares a function as the answer to some codes of a store's own door."""
    return declare(HANDLERS, *codes, lane=lane)


def declare(table: dict[int, Handler[_Context]], *codes: RequestCode, lane: CallLane) -> Callable[[_Run], _Run]:
    """Declares a function as the answer to some codes, in a table of whatever door."""

    def put(run: _Run) -> _Run:
        for code in codes:
            assert code not in table, code
            table[code] = Handler(run, lane)
        return run

    return put


#: The first that fits an error.
_CODES: Sequence[tuple[type[StoreError], ResponseCode]] = (
    (MessageTooLargeError, ResponseCode.MESSAGE_ILLEGAL),
    (InvalidRequestError, ResponseCode.INVALID_PARAMETER),
    (TopicNotFoundError, ResponseCode.TOPIC_NOT_EXIST),
    (NotFoundError, ResponseCode.QUERY_NOT_FOUND),
    (AccessError, ResponseCode.NO_PERMISSION),
    (UnavailableError, ResponseCode.SYSTEM_BUSY),
    (ReadOnlyError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (CapacityError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (ClosedError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


def answer_of(error: BaseException) -> RemotingAnswer:
    """Answers with the code for an error; what is no error of the store is logged, and told to nobody."""
    if isinstance(error, StoreError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), ResponseCode.SYSTEM_ERROR)
        remark = error.message + (f"; {error.hint}" if error.hint else "")
        return refusal(code, remark[:_MOST_REMARK])
    _LOG.error("a request of a RocketMQ client failed", exc_info=error)
    return refusal(ResponseCode.SYSTEM_ERROR, "an unexpected error, see the service's log")
