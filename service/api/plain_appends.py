"""Appends as most small requests ask for them, on the shortest way: no dependencies to solve, no thread for each."""

from __future__ import annotations

import re

from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from service.access import caller as access
from service.api.gathering import Gathering
from service.api.incoming import few_messages
from service.api.lane_route import LaneRoute
from tiering.batch import TOPIC_PATTERN
from tiering.types import Durability

#: Of the body: it is taken apart on the event loop.
_MOST_BYTES = 4 << 10
_TOPIC = re.compile(TOPIC_PATTERN)
_QUERIES = {
    b"": Durability.FLUSHED,
    b"durability=flushed": Durability.FLUSHED,
    b"durability=async": Durability.ASYNC,
}
#: Headers that change the answer or how the body is read, and the values with which they do not.
_PLAIN_VALUES = {
    b"content-type": (b"application/json",),
    b"accept": (b"*/*", b"application/json"),
    b"content-encoding": (),
    b"transfer-encoding": (),
    b"idempotency-key": (),
}


class PlainAppends(LaneRoute):
    """A route for appends: what is plain is gathered with others, the rest is answered as on any other route.

    Plain is a short JSON body of a caller who may append, with nothing said beside but how durable it has to be. All
    that could be refused goes the other way, so that there is one place for each refusal.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        gathering: Gathering | None = getattr(scope["app"].state, "gathering", None)
        durability = _QUERIES.get(scope["query_string"])
        if gathering is None or durability is None or not _is_plain(scope):
            await super().handle(scope, receive, send)
            return
        message = await receive()
        topic: str = scope["path_params"]["topic"]
        try:
            messages = few_messages(message.get("body", b""), topic)
        except ValidationError:
            messages = None
        if messages is None or message.get("more_body", False):
            await super().handle(scope, _again(message, receive), send)
            return
        body = await gathering.append(topic, durability, messages)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_plain(scope: Scope) -> bool:
    topic = scope["path_params"]["topic"]
    caller: access.Caller | None = scope.get("tierlog.caller")
    may_append = not scope["app"].state.needs_tokens if caller is None else caller.may(access.Scope.PRODUCE, topic)
    if scope["method"] != "POST" or not may_append or not _TOPIC.fullmatch(topic):
        return False
    size, is_json = b"", False
    for name, value in scope["headers"]:
        plain = _PLAIN_VALUES.get(name)
        if plain is not None:
            if value not in plain:
                return False
            is_json = is_json or name == b"content-type"
        elif name == b"content-length":
            size = value
    return is_json and size.isdigit() and len(size) <= 4 and int(size) <= _MOST_BYTES


def _again(message: Message, receive: Receive) -> Receive:
    """What was received already, then the rest."""
    left = [message]

    async def given() -> Message:
        return left.pop() if left else await receive()

    return given
