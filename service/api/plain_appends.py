"""Appends as nearly all requests ask for them, on the shortest way: no routing, no dependencies to solve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import caller as access
from service.api.errors import store_error, validation_error
from service.api.gathering import Gathering
from service.api.incoming import Incoming, few_messages
from service.api.lanes import Lanes
from service.engine import Engine
from service.settings import Settings
from service.wire import ARROW_STREAM, JSON, NDJSON
from tiering.batch import TOPIC_PATTERN
from tiering.errors import StoreError
from tiering.types import Durability

#: Of a body that is taken apart on the event loop.
_MOST_BYTES = 4 << 10
_PATH = re.compile(f"/v1/topics/({TOPIC_PATTERN})/messages")
_QUERIES = {
    b"": Durability.FLUSHED,
    b"durability=flushed": Durability.FLUSHED,
    b"durability=async": Durability.ASYNC,
}
_KINDS = {kind.encode(): kind for kind in (JSON, NDJSON, ARROW_STREAM)}
_FORMS = {b"*/*": JSON, JSON.encode(): JSON, ARROW_STREAM.encode(): ARROW_STREAM}


@dataclass(frozen=True, slots=True)
class _Route:
    """Stands where the route would that answers the others, so that metrics and logs have its name."""

    path: str = "/v1/topics/{topic}/messages"


_ROUTE = _Route()


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
        message = await receive()
        body: bytes = message.get("body", b"")
        is_small = kind == form == JSON and len(body) <= _MOST_BYTES
        few = few_messages(body, topic) if is_small else None
        if message["type"] != "http.request" or message.get("more_body", False) or (is_small and few is None):
            await self._app(scope, _again(message, receive), send)
            return
        scope["route"] = _ROUTE
        try:
            if few is not None:
                answer = await self._gathering.append(topic, durability, few)
            else:
                incoming = Incoming(body, kind, topic, self._engine, self._settings, self._lanes.parsing)
                answer = await self._lanes.append.run(partial(incoming.append, durability, None, form))
        except StoreError as error:
            await store_error(Request(scope), error)(scope, receive, send)
            return
        except RequestValidationError as error:
            await validation_error(error)(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", form.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer, "more_body": False})

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


def _again(message: Message, receive: Receive) -> Receive:
    """What was received already, then the rest."""
    left = [message]

    async def given() -> Message:
        return left.pop() if left else await receive()

    return given
