"""Appends as nearly all requests ask for them, on the shortest way: no routing, no dependencies to solve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access import caller as access
from service.api.errors import store_error, validation_error
from service.api.gathering import Gathering
from service.api.incoming import Incoming, bytes_of_json, few_messages
from service.api.lanes import Lanes
from service.api.limits import Body
from service.engine import Engine
from service.settings import Settings
from service.wire import ARROW_STREAM, JSON, NDJSON
from tiering.batch import TOPIC_PATTERN
from tiering.errors import StoreError
from tiering.types import Durability

#: Of a body that is gathered with others.
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


@dataclass(frozen=True, slots=True)
class _Route:
    """Stands where the route would that answers the others, so that metrics and logs have its name."""

    path: str = "/v1/topics/{topic}/messages"


_ROUTE = _Route()


@dataclass(frozen=True, slots=True)
class _Answer:
    """JSON; the framework's own takes as long as the rest of a request."""

    content: bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(self.content)), (b"content-type", _JSON)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.content, "more_body": False})


class PlainAppends:
    """ASGI middleware, the innermost: answers appends that are plain, and passes on all others.

    Plain is an append by a caller who may do so, with nothing said beside but how durable it has to be, in what form
    the messages are and the answer is to be. What is refused by its head or as a small body goes the other way, so that
    there is one place for each refusal. Small bodies are gathered with others.
    """

    def __init__(self, app: ASGIApp, engine: Engine, settings: Settings, lanes: Lanes, *, needs_tokens: bool) -> None:
        self._app = app
        self._engine, self._settings, self._lanes = engine, settings, lanes
        self._needs_tokens = needs_tokens
        self._gathering = Gathering(engine.append, lanes.append)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
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
                read = partial(few_messages, content, topic, self._settings.serve.max_request_messages)
                answer = await self._gathering.append(topic, durability, content.count(b"{"), read)
                response: ASGIApp | None = None if answer is None else _Answer(answer)
            else:
                del content  # of which nobody but the body may keep anything
                incoming = Incoming(kind, topic, self._engine, self._settings, self._lanes.parsing)
                response = await incoming.append(body, self._lanes.append, durability, None, form)
        except StoreError as error:
            response = store_error(Request(scope), error)
        except RequestValidationError as error:
            response = validation_error(error)
        await (response or self._app)(scope, receive, send)

    def _plain(self, scope: Scope) -> tuple[str, Durability, str, str] | None:
        """Topic, durability, form of the messages and form of the answer."""
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
