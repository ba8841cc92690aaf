"""Messages as a request brings them: JSON, NDJSON or an Arrow stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.api.schemas import MessageIn, MessagesIn
from service.appended_forms import appended_json, appended_stream
from service.appending import IdempotencyKey
from service.engine import Engine
from service.json_rows import lines_of, messages_of_document, table_of_document, table_of_lines
from service.settings import Settings
from service.wire import ARROW_STREAM, JSON, NDJSON
from tiering.arrow_batch import ArrowMessages, check_produce_schema
from tiering.batch import ANY_QUEUE, Message
from tiering.errors import InvalidRequestError, MessageTooLargeError, TopicNotFoundError
from tiering.format.arrow_stream import read_stream
from tiering.format.hashing import java_hash
from tiering.format.properties import SHARDING_KEY
from tiering.types import Durability

#: What a message in an Arrow stream takes at least, so that rows of nothing do not fill the memory.
_LEAST_MESSAGE_BYTES = 16
#: JSON that is shorter is taken apart message by message: columns of a few are not worth their making.
_FEW_BYTES = 8 << 10

#: The request body for OpenAPI.
BODY = {
    "required": True,
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/MessagesIn"}},
        NDJSON: {
            "schema": {"type": "string", "description": "a message a line, each as one of the JSON form"},
            "example": '{"body":"order 4711 paid","keys":["4711"]}\n{"body":"order 4712 paid","keys":["4712"]}\n',
        },
        ARROW_STREAM: {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "a message a row: body (binary or string), and any of keys (list of string), tag, "
                "properties (map of string to string), born_ms (integer) or born_time (timestamp), queue_id, "
                "sharding_key. Buffers may be compressed; decoded, they count as the request's size.",
            }
        },
    },
}


def body_kind(content_type: str) -> str:
    """The media type of messages, or 415."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, NDJSON, ARROW_STREAM):
        raise HTTPException(415, f"content type {kind!r} is not one of {JSON}, {NDJSON}, {ARROW_STREAM}")
    return kind


@dataclass(frozen=True, slots=True)
class Incoming:
    """The body of one append."""

    body: bytes
    kind: str
    topic: str
    engine: Engine
    settings: Settings
    parsing: threading.Semaphore
    """Held while the body is taken apart."""

    def append(self, durability: Durability, key: IdempotencyKey | None, form: str) -> bytes:
        """Append the messages and make the answer. On a thread: it takes time.

        What cannot be a message is answered with 413 or 422.
        """
        with self.parsing:
            messages = self._messages()
        results = self.engine.append(messages, durability, key)
        return appended_stream(results) if form == ARROW_STREAM else appended_json(results)

    def _messages(self) -> Sequence[Message]:
        body, topic = self.body, self.topic
        queue_of = queue_chooser(self.engine, self.settings, topic)
        if self.kind == ARROW_STREAM:
            return _of_arrow(body, topic, queue_of, self.settings.serve.max_request_bytes)
        if len(body) >= _FEW_BYTES:
            table = table_of_lines(body, queue_of) if self.kind == NDJSON else table_of_document(body, queue_of)
            if table is not None:
                return ArrowMessages(table, topic, queue_of)
        try:
            if self.kind == NDJSON:
                return _of_lines(body, topic, queue_of)
            return [message_of(one, topic, queue_of) for one in MessagesIn.model_validate_json(body).messages]
        except ValidationError as error:
            raise RequestValidationError(_located(error)) from error


def queue_chooser(engine: Engine, settings: Settings, topic: str) -> Callable[[str], int]:
    """The queue of a sharding key; how many there are is asked once, and only if there is a key."""
    known: list[int] = []

    def queue_of(sharding_key: str) -> int:
        if not known:
            try:
                known.append(len(engine.topic(topic).queues))
            except TopicNotFoundError:
                known.append(settings.hot.default_queues)
        return abs(java_hash(sharding_key)) % known[0]

    return queue_of


def few_messages(body: bytes, topic: str) -> list[Message] | None:
    """The messages of a short JSON body, here and now; None if the body is refused, or one has a sharding key."""
    found = messages_of_document(body, topic)
    if found is not None:
        return found
    try:
        rows = MessagesIn.model_validate_json(body).messages
    except ValidationError:
        return None
    if any(one.sharding_key is not None for one in rows):  # whose queue takes asking
        return None
    return [message_of(one, topic, _no_queue) for one in rows]


def _no_queue(sharding_key: str) -> int:
    raise AssertionError(sharding_key)


def _of_arrow(body: bytes, topic: str, queue_of: Callable[[str], int], max_bytes: int) -> Sequence[Message]:
    max_rows = max_bytes // _LEAST_MESSAGE_BYTES
    try:
        table = read_stream(body, check_produce_schema, max_bytes=max_bytes, max_rows=max_rows)
        messages = ArrowMessages(table, topic, queue_of)
    except MessageTooLargeError:
        raise
    except InvalidRequestError as error:
        raise _unprocessable(str(error)) from error
    if not len(messages):
        raise _unprocessable("no message")
    return messages


def _unprocessable(what: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body",), "msg": what, "type": "value_error"}])


def _of_lines(body: bytes, topic: str, queue_of: Callable[[str], int]) -> list[Message]:
    """Line by line, so that only messages are kept and not what each was checked with."""
    found = []
    for number, line in enumerate(lines_of(body), 1):
        if line.strip():
            try:
                one = MessageIn.model_validate_json(line)
            except ValidationError as error:
                raise RequestValidationError(_located(error, f"line {number}")) from error
            found.append(message_of(one, topic, queue_of))
    if not found:
        raise RequestValidationError([{"loc": ("body",), "msg": "no message", "type": "missing"}])
    return found


def _located(error: ValidationError, *place: str) -> list[dict[str, Any]]:
    """The errors as the framework's own, which say that the body is at fault."""
    return [
        {"loc": ("body", *place, *one["loc"]), "msg": one["msg"], "type": one["type"]}
        for one in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def message_of(one: MessageIn, topic: str, queue_of: Callable[[str], int]) -> Message:
    """What the model checked, as the store takes it."""
    properties, queue_id = one.properties, ANY_QUEUE if one.queue_id is None else one.queue_id
    if one.sharding_key is not None:
        properties = {**properties, SHARDING_KEY: one.sharding_key}
        queue_id = queue_of(one.sharding_key)
    return Message(topic, one.body_bytes(), one.keys, one.tag, properties, one.born_ms, queue_id)
