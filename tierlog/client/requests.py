"""Requests and answers as values, and calls as generators of them, which do no input or output of their own.

A *flow* yields what has to be done next, a :class:`Request` or a :class:`Pause`, is sent the :class:`Answer` (None
after a pause), and returns what the call is about. What keeps an answer or a pause from coming is thrown into it, a
:class:`NoAnswerError` where nobody answers. So retries, paging and idempotency exist once;
:func:`tierlog.client.transport.run` works a flow off with threads and :func:`tierlog.client.async_transport.run` on an
event loop.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import orjson

from tierlog.client.errors import NoAnswerError
from tierlog.tiering.base.backoff import Backoff
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, OverloadedError, StoreError, UnavailableError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.remote.problems import LATER, refusal, retry_after_s

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; ``path`` begins behind the prefix of the service's URL and has its arguments."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    waits_s: float = 0.0
    """Time that the service is asked to wait before it answers."""
    within_s: float | None = None
    """Time-out of each step; None: that of the transport."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request; names of headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which nothing is to be asked."""

    seconds: float


Flow = Generator[Request | Pause, Answer | None, T]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The bounds within which a call is repeated while the service does not answer, or says that it cannot for now."""

    within_s: float = 120.0
    """Time from the first try to the last; 0: one try. A pause longer than what is left ends the call at once."""
    first_s: float = 0.1
    """The first pause; each further one is twice as long. A longer ``Retry-After`` wins."""
    most_s: float = 10.0


@dataclass(slots=True)
class Tries:
    """What is known of the failed tries of one request."""

    may_be_done: bool = False
    """Whether one of them may have been carried out: no answer said that it was not."""


#: One try, for callers that repeat by themselves.
ONCE = RetryPolicy(within_s=0.0)


class RequestAttempts:
    """Attempts of a request, repeated until there is an answer that counts. Thread safe."""

    def __init__(self, clock: Clock, randomness: Randomness, retries: RetryPolicy) -> None:
        self.clock = clock
        self.randomness = randomness
        self.retries = retries

    def backoff(self, retries: RetryPolicy | None = None) -> Backoff:
        """Returns fresh pauses, as long as those of a call."""
        chosen = retries or self.retries
        return Backoff(self.clock, self.randomness, first_s=chosen.first_s, most_s=chosen.most_s)

    def answer(self, request: Request, retries: RetryPolicy | None = None, tries: Tries | None = None) -> Flow[Answer]:
        """Returns the answer of a success; raises the service's refusal, or :class:`NoAnswerError` if nobody answered.

        Every request that goes this way may be repeated; ``tries`` records the failed tries.
        """
        chosen = retries or self.retries
        backoff = self.backoff(chosen)
        begun_s = self.clock.monotonic_s()
        while True:
            asked_for_s = 0.0
            error: StoreError
            try:
                answer = yield request
            except NoAnswerError as broken:
                error = broken
            else:
                assert answer is not None, "an answer follows a request"
                if answer.status < 300:
                    return answer
                error, asked_for_s = _error(answer), retry_after_s(answer.headers) or 0.0
                error.retry_after_s = asked_for_s
                if not (error.retryable or answer.status in LATER):
                    raise error
            if tries is not None and not isinstance(error, OverloadedError):
                tries.may_be_done = True
            backoff.failed()
            pause_s = max(backoff.left_s, asked_for_s)
            if self.clock.monotonic_s() + pause_s - begun_s > chosen.within_s:
                raise error
            yield Pause(pause_s)

    def document(self, request: Request, retries: RetryPolicy | None = None, tries: Tries | None = None) -> Flow[Json]:
        """Returns the JSON object of the answer."""
        return document_of((yield from self.answer(request, retries, tries)))


def document_of(answer: Answer) -> Json:
    """Returns the JSON object of a good answer."""
    document = _parsed(answer.body)
    if document is None:
        raise StoreError(f"an answer ({answer.status}) without JSON", hint="is it tierlog that answers there?")
    return document


def told_ms(answer: Answer) -> int | None:
    """Returns the time of the service in ms, to the second; None if the answer does not tell it."""
    try:
        told = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return None
    return int(told.timestamp()) * 1000


def _error(answer: Answer) -> StoreError:
    error = refusal(answer.status, _parsed(answer.body), "the service")
    if isinstance(error, ClosedError):  # the service's store closed, not this client; the service may come back
        return UnavailableError(f"the service is ending: {error.message}")
    return error


def _parsed(body: bytes) -> Json | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None
