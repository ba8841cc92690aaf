"""Messages as a request brings them: JSON, NDJSON or an Arrow stream."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tierlog.service.api.append_answers import PIECE_ROWS, appended_pieces
from tierlog.service.api.json_bodies import ValueCounter, parsed, refusal, validated
from tierlog.service.api.json_messages import (
    lines_of,
    messages_of_document,
    rows_at_most,
    table_of_document,
    table_of_lines,
)
from tierlog.service.api.lanes import Lane
from tierlog.service.api.limits import Body
from tierlog.service.api.schemas.messages import MessageIn, MessagesIn
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.timers import delayed
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.arrow_stream import measure_stream, read_stream
from tierlog.tiering.format.hashing import java_hash
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.format.record import host_text, peer_host
from tierlog.tiering.message.arrow_input import ArrowMessages, check_produce_schema
from tierlog.tiering.message.batch import ANY_QUEUE, Message

T = TypeVar("T", covariant=True)

#: What a message takes while it is appended, beside its bytes: as columns, and as an object where columns are not
#: enough. What one takes of an answer of many, and a record batch of a stream.
_MESSAGE_BYTES, _RESULT_BYTES, _BATCH_BYTES = 512, 40, 4096
#: Shorter JSON is read message by message: columns do not pay for a few.
_FEW_BYTES = 8 << 10
#: Of a body whose messages are counted where it arrives, and of one of whose kind most take no more memory than so many
#: times their bytes.
_COUNTED_BYTES, _LIKELY_BYTES, _ARROW_WEIGHT = 64 << 10, 1 << 20, 6
#: Documents of more values are given to the model message by message.
_FEW_VALUES = 4096
#: Of a document, its list and its messages, in which there are maps of properties.
_LEVELS = 3
_HEAD = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_TAIL = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_BLANKS = re.compile(rb"[ \t\r\n]*")

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
    """Returns the media type of messages, or answers 415."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, NDJSON, ARROW_STREAM):
        raise HTTPException(415, f"content type {kind!r} is not one of {JSON}, {NDJSON}, {ARROW_STREAM}")
    return kind


@dataclass(frozen=True, slots=True)
class RequestMessages:
    """The messages of one append."""

    kind: str
    topic: str
    engine: Store
    settings: Settings
    parsing: threading.Semaphore
    """Held while a body is taken apart."""
    due_ms: int | None = None
    """When they are delivered; None: now."""
    born_host: str = ""
    """What :func:`born_host_of` says of the request."""

    async def append(
        self, body: Body, lane: Lane, durability: Durability, key: IdempotencyKey | None, form: str
    ) -> Response:
        """Appends the messages and answers where they went.

        All that takes time is done on threads of the lane. What the messages take beside the body is held first, or
        :class:`OverloadedError` raised. What cannot be a message is answered with 413 or 422.
        """
        content = await body.read()
        await body.hold(self._likely_bytes(content))
        done = await lane.run(partial(self._append, content, body.held_bytes, durability, key, form))
        if isinstance(done, int):
            await body.hold(done)
            done = await lane.run(partial(self._append, content, body.held_bytes, durability, key, form))
            assert not isinstance(done, int), "what a body takes is told by the body alone"
        if done.rest is not None:  # waits for the client, and holds only the place of each message
            del content
            body.let_go(done.held_bytes)
        return _AppendedResponse(done, lane, form)

    def _append(
        self, content: bytes, held_bytes: int, durability: Durability, key: IdempotencyKey | None, form: str
    ) -> _Appended | int:
        """Appends, on a thread; if that takes more than ``held_bytes``, only returns how many it takes."""
        needed_bytes = self._needed_bytes(content)
        if needed_bytes > held_bytes:
            return needed_bytes
        with self.parsing:
            messages = self._messages(content)
            if self.due_ms is not None:
                messages = delayed(messages, self.due_ms, self.engine, max_delay_ms=self.settings.produce.max_delay_ms)
        results = self.engine.append(messages, durability, key)
        pieces = appended_pieces(results, form)
        first = next(pieces)
        return _Appended(first, pieces if len(results) > PIECE_ROWS else None, len(results) * _RESULT_BYTES)

    def _likely_bytes(self, content: bytes) -> int:
        """Memory that is enough for most bodies, found at once: others go to a thread and back to hold more."""
        if self.kind != ARROW_STREAM:
            return bytes_of_json(content) if len(content) <= _COUNTED_BYTES else 0
        return _ARROW_WEIGHT * len(content) if len(content) <= _LIKELY_BYTES else 0

    def _needed_bytes(self, content: bytes) -> int:
        """Memory that the messages take together with the body: a few bytes can be many messages."""
        if self.kind != ARROW_STREAM:
            return bytes_of_json(content)
        size = self._taken(measure_stream, content)
        return len(content) + 2 * size.bytes + size.rows * _MESSAGE_BYTES + size.batches * _BATCH_BYTES

    def _messages(self, content: bytes) -> Sequence[Message]:
        topic, queue_of = self.topic, queue_chooser(self.engine, self.settings, self.topic)
        most = self.settings.serve.max_request_messages
        if self.kind == ARROW_STREAM:
            table = self._taken(read_stream, content)
            if not len(table):
                raise refusal("no message")
            return ArrowMessages(table, topic, queue_of, born_host=self.born_host)
        is_lines = self.kind == NDJSON
        if len(content) >= _FEW_BYTES:
            table = table_of_lines(content, queue_of) if is_lines else table_of_document(content, queue_of)
            if table is not None:
                check_count(len(table), most)
                return ArrowMessages(table, topic, queue_of, born_host=self.born_host)
        models = models_of_lines(content, most) if is_lines else models_of_document(content, most)
        found = _born_at(self.born_host, [message_of(one, topic, queue_of) for one in models])
        if not found:
            raise refusal("no message")
        return found

    def _taken(self, read: _Reading[T], content: bytes) -> T:
        limits = self.settings.serve
        try:
            return read(
                content, check_produce_schema, max_bytes=limits.max_request_bytes, max_rows=limits.max_request_messages
            )
        except MessageTooLargeError as error:
            hint = "serve.max_request_bytes and serve.max_request_messages are the limits"
            raise MessageTooLargeError(error.message, hint=hint) from error
        except InvalidRequestError as error:
            raise refusal(str(error)) from error


class _Reading(Protocol[T]):
    """A function that looks at an Arrow stream."""

    def __call__(
        self, stream: bytes, check_schema: Callable[[pa.Schema], None], *, max_bytes: int, max_rows: int
    ) -> T: ...


@dataclass(frozen=True, slots=True)
class _Appended:
    """The first piece of an answer, and the others if it has any."""

    first: bytes
    rest: Iterator[bytes] | None
    held_bytes: int
    """Memory that the others take until they are made."""


class _AppendedResponse(Response):
    """An answer whose pieces are made on threads of the lane, each when the one before it was taken."""

    def __init__(self, appended: _Appended, lane: Lane, form: str) -> None:
        super().__init__(appended.first, media_type=form)
        self._rest, self._lane = appended.rest, lane
        if self._rest is not None:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all of it."""
        if self._rest is None:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        piece: bytes | None = bytes(self.body)
        while piece is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await self._lane.run(partial(next, self._rest, None), is_timed=False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def bytes_of_json(content: bytes) -> int:
    """Memory that the messages of JSON or NDJSON take together with the body."""
    return 2 * len(content) + rows_at_most(content) * _MESSAGE_BYTES


def queue_chooser(engine: Store, settings: Settings, topic: str) -> Callable[[str], int]:
    """Makes the function that chooses the queue of a sharding key; it asks how many there are at the first key."""
    known: list[int] = []

    def queue_of(sharding_key: str) -> int:
        if not known:
            known.append(engine.queues_of(topic))
        return abs(java_hash(sharding_key)) % known[0]

    return queue_of


def born_host_of(scope: MutableMapping[str, Any], settings: Settings) -> str:
    """Returns the born host of the messages that a request brings: none unless the settings say so.

    It is the other end of the connection. What a header says of it is not believed, since anybody can send one.
    """
    client = scope.get("client") if settings.produce.born_host else None
    field = b"" if client is None else peer_host(*client)
    return host_text(field) if any(field) else ""


def _born_at(born_host: str, messages: list[Message]) -> list[Message]:
    return [replace(message, born_host=born_host) for message in messages] if born_host else messages


def few_messages(body: bytes, topic: str, most: int, born_host: str = "") -> list[Message] | None:
    """Reads the messages of a short JSON body; None if the body is refused, or one has a sharding key."""
    found = messages_of_document(body, topic)
    if found is None:
        try:
            rows = validated(MessagesIn, body, levels=_LEVELS).messages
        except RequestValidationError:
            return None
        if any(one.sharding_key is not None for one in rows):  # whose queue takes asking
            return None
        found = [message_of(one, topic, _no_queue) for one in rows]
    return _born_at(born_host, found) if len(found) <= most else None


def _no_queue(sharding_key: str) -> int:
    raise AssertionError(sharding_key)


def models_of_document(document: bytes, most: int) -> Iterator[MessageIn]:
    """Yields the model of each message of a document; ends at the first that is refused, which it names.

    Raises :class:`MessageTooLargeError` for more than ``most``, :class:`RequestValidationError`.
    """
    values = ValueCounter(document)
    if values.are_few(_FEW_VALUES):  # the model checks everything around the messages
        found = validated(MessagesIn, document, levels=_LEVELS).messages
        check_count(len(found), most)
        yield from found
        return
    head = _HEAD.match(document)
    if head is None:
        raise refusal('Invalid JSON: it does not begin with {"messages": [')
    at = head.end()
    for number in count():
        at = _past_blanks(document, at)
        place = ("messages", number)
        end = values.end_of(at, *place, levels=1)
        if end == at:
            raise refusal("Invalid JSON: expected a message", *place)
        check_count(number + 1, most)
        yield parsed(MessageIn, document[at:end], *place)
        at = _past_blanks(document, end) + 1
        if document[at - 1 : at] != b",":
            break
    if document[at - 1 : at] != b"]" or not _TAIL.fullmatch(document, at):
        raise refusal("Invalid JSON: it does not end with ]} behind the last message")


def models_of_lines(body: bytes, most: int) -> Iterator[MessageIn]:
    """Yields the model of each message of NDJSON; ends at the first that is refused, which it names."""
    found = 0
    for number, line in enumerate(lines_of(body), 1):
        if line.strip():
            found += 1
            check_count(found, most)
            yield validated(MessageIn, line, f"line {number}", levels=1)


def check_count(messages: int, most: int) -> None:
    """Raises :class:`MessageTooLargeError` for more messages in a request than the setting allows."""
    if messages > most:
        raise MessageTooLargeError(
            f"the request has more than {most} messages",
            hint="send smaller batches; serve.max_request_messages is the limit",
        )


def _past_blanks(document: bytes, at: int) -> int:
    found = _BLANKS.match(document, at)
    return at if found is None else found.end()


def message_of(one: MessageIn, topic: str, queue_of: Callable[[str], int]) -> Message:
    """Turns what the model checked into a message as the store takes it."""
    properties, queue_id = one.properties, ANY_QUEUE if one.queue_id is None else one.queue_id
    if one.sharding_key is not None:
        properties = {**properties, SHARDING_KEY: one.sharding_key}
        queue_id = queue_of(one.sharding_key)
    return Message(
        topic=topic,
        body=one.body_bytes(),
        keys=one.keys,
        tag=one.tag,
        properties=properties,
        born_ms=one.born_ms,
        queue_id=queue_id,
    )
