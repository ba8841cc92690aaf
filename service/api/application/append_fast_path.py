"""The short way of plain appends, as nearly all requests ask for them: no routing, and no dependencies to solve.

Small appends that come at the same time go into the log together: one hop to a thread, one append, one flush for all.
While a group is appended, the next one gathers. So a request that is alone waits for nobody, and one of many waits for
one group at most before its own. Messages are taken out of their bodies on that thread. If a message of a group is
wrong, each request of the group is appended by itself, so that each has its own answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from tierlog.service.access import caller as access
from tierlog.service.api.append_answers import appended_rows, results_json
from tierlog.service.api.errors import store_error, validation_error
from tierlog.service.api.lanes import Lane, Lanes
from tierlog.service.api.limits import Body
from tierlog.service.api.message_bodies import RequestMessages, born_host_of, bytes_of_json, few_messages
from tierlog.service.config.settings import Settings
from tierlog.service.engine.append_results import AppendedColumns
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import TOPIC_PATTERN, Message

#: Limit of a group, so that the last of many requests does not wait for all others.
_MOST_MESSAGES = 1_000
#: Limit of a body that is gathered with others.
_MOST_BYTES = 4 << 10
_PATH = re.compile(f"/v1/topics/({TOPIC_PATTERN})/messages")
_QUERIES = {
    b"": Durability.FLUSHED,
    b"durability=flushed": Durability.FLUSHED,
    b"durability=async": Durability.ASYNC,
}
_JSON = JSON.encode()
_KINDS = {kind.encode(): kind for kind in (JSON, NDJSON, ARROW_STREAM)}
_FORMS = {b"*/*": JSON, _JSON: JSON, ARROW_STREAM.encode(): ARROW_STREAM}

#: Takes the messages out of a body; None for a body that has to go the long way.
Read = Callable[[], list[Message] | None]
#: Appends a batch.
Append = Callable[[Sequence[Message], Durability], AppendedColumns]


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that are appended together."""

    requests: list[tuple[Read, asyncio.Future[bytes | None]]] = field(default_factory=list)
    messages: int = 0
    timer: asyncio.TimerHandle | None = None


class AppendBatcher:
    """The groups of one application. Used on the event loop only."""

    def __init__(self, append: Append, lane: Lane) -> None:
        self._append = append
        self._lane = lane
        #: Waiting groups, in their order; a key exists while a task appends for it.
        self._waiting: dict[tuple[str, Durability], deque[_Group]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, durability: Durability, most: int, read: Read) -> bytes | None:
        """Appends messages of a topic; gives the answer's JSON once they are as durable as asked for.

        ``read`` gives the messages, ``most`` at most, on a thread. If it gives None, nothing is appended and the result
        is None. Raises what the append raises, and :class:`DeadlineError` if it is not done in the lane's time, counted
        from the first request of the group.
        """
        loop, key = asyncio.get_running_loop(), (topic, durability)
        answer: asyncio.Future[bytes | None] = loop.create_future()
        groups = self._waiting.get(key)
        if groups is None:
            groups = self._waiting[key] = deque()
            # in a context of its own, because it continues with other requests
            task = loop.create_task(self._run(key), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not groups or groups[-1].messages + most > _MOST_MESSAGES:
            groups.append(_Group())
            if self._lane.timeout_s is not None:  # one for all: a timer for each would cost more than the rest here
                groups[-1].timer = loop.call_later(self._lane.timeout_s, self._give_up, groups[-1])
        groups[-1].requests.append((read, answer))
        groups[-1].messages += most
        return await answer

    async def _run(self, key: tuple[str, Durability]) -> None:
        """Appends group by group until nobody waits."""
        groups = self._waiting[key]
        try:
            while groups:
                await self._answer(groups.popleft(), key[1])
        finally:
            del self._waiting[key]

    async def _answer(self, group: _Group, durability: Durability) -> None:
        reads = [read for read, _ in group.requests]
        try:
            found: Sequence[bytes | Exception | None] = await self._lane.run(
                lambda: self._read(reads, durability), is_timed=False
            )
        except Exception as error:
            found = [error] * len(reads)
        if group.timer is not None:
            group.timer.cancel()
        for (_, answer), one in zip(group.requests, found, strict=True):
            if answer.done():  # it waited too long, or its client is gone
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)

    def _give_up(self, group: _Group) -> None:
        for _, answer in group.requests:
            if not answer.done():
                answer.set_exception(self._lane.too_late())

    def _read(self, reads: list[Read], durability: Durability) -> list[bytes | Exception | None]:
        """Appends on a thread, and gives each request's answer; None for a body that has to go the long way."""
        batches = [read() for read in reads]
        there = [batch for batch in batches if batch is not None]
        answers = iter(self._answers(there, durability) if there else ())
        return [None if batch is None else next(answers) for batch in batches]

    def _answers(self, batches: list[list[Message]], durability: Durability) -> list[bytes | Exception]:
        """Appends batches together, or, if a message is wrong and so nothing was appended, each by itself."""
        messages = batches[0] if len(batches) == 1 else list(chain.from_iterable(batches))
        try:
            rows = appended_rows(self._append(messages, durability))
        except InvalidRequestError as error:
            if len(batches) == 1:
                return [error]
            return [answer for batch in batches for answer in self._answers([batch], durability)]
        ends = list(accumulate(map(len, batches), initial=0))
        return [results_json(rows[start:end]) for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Route:
    """Stands for the route of the long way, so that metrics and logs have its name."""

    path: str = "/v1/topics/{topic}/messages"


_ROUTE = _Route()


@dataclass(frozen=True, slots=True)
class _Answer:
    """A JSON answer; the framework's own takes as long as the rest of a request."""

    content: bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(self.content)), (b"content-type", _JSON)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.content, "more_body": False})


class AppendFastPath:
    """ASGI middleware, the innermost: answers plain appends, and passes on all other requests.

    Plain is an append by a caller with the right, which says no more than its durability, the form of the messages and
    the form of the answer. What its head or a small body is refused for is found on the long way, so that there is one
    place for each refusal. Small bodies are gathered with others.
    """

    def __init__(self, app: ASGIApp, engine: Store, settings: Settings, lanes: Lanes, *, needs_tokens: bool) -> None:
        self._app = app
        self._engine, self._settings, self._lanes = engine, settings, lanes
        self._needs_tokens = needs_tokens
        self._gathering = AppendBatcher(engine.append, lanes.append)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        plain = self._plain(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if plain is None:
            await self._app(scope, receive, send)
            return
        topic, durability, kind, form = plain
        scope["route"] = _ROUTE
        body: Body = scope["tierlog.body"]
        try:
            content = await body.read()
            if kind == form == JSON and len(content) <= _MOST_BYTES:
                if (needed_bytes := bytes_of_json(content)) > body.held_bytes:
                    await body.hold(needed_bytes)
                most = self._settings.serve.max_request_messages
                read = partial(few_messages, content, topic, most, born_host_of(scope, self._settings))
                answer = await self._gathering.append(topic, durability, content.count(b"{"), read)
                response: ASGIApp | None = None if answer is None else _Answer(answer)
            else:
                del content  # nobody but the body may keep a reference to it
                incoming = RequestMessages(
                    kind, topic, self._engine, self._settings, self._lanes.parsing,
                    born_host=born_host_of(scope, self._settings),
                )  # fmt: skip
                response = await incoming.append(body, self._lanes.append, durability, None, form)
        except StoreError as error:
            response = store_error(Request(scope), error)
        except RequestValidationError as error:
            response = validation_error(error)
        await (response or self._app)(scope, receive, send)

    def _plain(self, scope: Scope) -> tuple[str, Durability, str, str] | None:
        """Topic, durability, form of the messages and form of the answer; None if the request is not plain."""
        path = _PATH.fullmatch(scope["path"])
        durability = _QUERIES.get(scope["query_string"])
        if path is None or durability is None:
            return None
        topic: str = path[1]
        caller: access.Caller | None = scope.get("tierlog.caller")
        if not (not self._needs_tokens if caller is None else caller.may(access.Scope.PRODUCE, topic)):
            return None
        kind: str | None = None
        form: str | None = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                if kind is not None or (kind := _KINDS.get(value)) is None:
                    return None
            elif name == b"accept":
                if form is not None or (form := _FORMS.get(value)) is None:
                    return None
            elif name == b"idempotency-key":
                return None
        return None if kind is None else (topic, durability, kind, form or JSON)
