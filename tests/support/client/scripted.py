"""A transport of the client that answers from a script, on a clock that only waiting moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tierlog.client.requests import Answer, Request
from tierlog.tiering.base.clock import ManualClock

Json = dict[str, Any]
#: What a request is answered with, or what is raised instead.
Said = Answer | BaseException


def good(document: Json) -> Answer:
    """A success."""
    return Answer(200, {"content-type": "application/json"}, json.dumps(document).encode())


def problem(status: int, kind: str, *, retry_after_s: int | None = None, position: int | None = None) -> Answer:
    """A refusal; ``kind`` is the end of its type, ``position`` the place of the message that is at fault."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    body: Json = {"type": f"urn:tierlog:problem:{kind}", "title": kind, "status": status, "detail": f"about {kind}"}
    if position is not None:
        body["position"] = position
    return Answer(status, headers, json.dumps(body).encode())


class Scripted:
    """Answers by a function of the request; remembers requests and pauses."""

    def __init__(self, answer: Callable[[Request], Said], clock: ManualClock) -> None:
        self._answer = answer
        self._clock = clock
        self.requests: list[Request] = []
        self.pauses: list[float] = []

    def send(self, request: Request) -> Answer:
        self.requests.append(request)
        said = self._answer(request)
        if isinstance(said, BaseException):
            raise said
        return said

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._clock.advance(int(seconds * 1000))

    def close(self) -> None:
        pass


class AsyncScripted:
    """The same for event loops; nobody really waits."""

    def __init__(self, answer: Callable[[Request], Said], clock: ManualClock) -> None:
        self.inner = Scripted(answer, clock)

    async def send(self, request: Request) -> Answer:
        return self.inner.send(request)

    async def pause(self, seconds: float) -> None:
        self.inner.pause(seconds)

    async def close(self) -> None:
        self.inner.close()


def in_turn(*answers: Said) -> Callable[[Request], Said]:
    """One answer after the other."""
    left = list(answers)
    return lambda request: left.pop(0)
