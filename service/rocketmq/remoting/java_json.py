"""JSON as RocketMQ's Java library writes it, whose maps may have keys that are objects.

``{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:5}}`` is a table by message queue. Its tools read tables
in no other form, and its clients answer with them: so they are written here, and taken over as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from tierlog.tiering.base.errors import InvalidRequestError

#: A larger answer of a client is not looked into.
MOST_BYTES = 1 << 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}:,]', re.DOTALL)
_CLOSES = {b"{": b"}", b"[": b"]"}


class MessageQueue(NamedTuple):
    """A queue of a broker; its fields in the order in which Java's library sorts them."""

    broker_name: str
    queue_id: int
    topic: str

    def to_json(self) -> dict[str, Any]:
        """Returns the object that stands for it."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def encode(document: Any) -> bytes:
    """Returns a document, in which tables may be, as bytes."""
    return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)


def table(entries: Iterable[tuple[MessageQueue, Any]]) -> orjson.Fragment:
    """Returns a table by message queue, for a document that is given to :func:`encode`."""
    pairs = (encode(queue.to_json()) + b":" + encode(value) for queue, value in entries)
    return orjson.Fragment(b"{%b}" % b",".join(pairs))


def taken_over(text: bytes) -> orjson.Fragment:
    """Returns what a client wrote, for a document that is given to :func:`encode`."""
    return orjson.Fragment(text)


def member(body: bytes, name: str) -> bytes | None:
    """Returns a member of an object as it is written; None if it is not there.

    Raises :class:`InvalidRequestError` where brackets do not match, so that what is taken over cannot reach beyond its
    place, and for more than :data:`MOST_BYTES`.
    """
    if len(body) > MOST_BYTES:
        raise InvalidRequestError(f"JSON of {len(body)} bytes")
    wanted = orjson.dumps(name)
    awaited: list[bytes] = []
    begin, before = None, b""
    for found in _TOKEN.finditer(body):
        token = found[0]
        if begin is not None and len(awaited) == 1 and token in (b",", b"}"):
            return body[begin : found.start()]
        if begin is None and len(awaited) == 1 and token == b":" and before == wanted:
            begin = found.end()
        if token in _CLOSES:
            awaited.append(_CLOSES[token])
        elif token in (b"}", b"]") and (not awaited or awaited.pop() != token):
            raise InvalidRequestError("JSON whose brackets do not match")
        before = token
    if begin is not None:
        raise InvalidRequestError("JSON whose brackets do not match")
    return None
