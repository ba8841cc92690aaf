"""Messages in: ``POST /v1/topics/{topic}/messages``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.api.deps import TheEngine, TheSettings
from service.api.schemas import SHARDING_KEY, AppendedListOut, MessageIn, MessagesIn
from service.engine import Engine
from service.settings import Settings
from service.wire import NDJSON, appended_json
from tiering.batch import ANY_QUEUE, Message, validate_topic
from tiering.errors import TopicNotFoundError
from tiering.format.hashing import java_hash
from tiering.types import Durability

router = APIRouter(prefix="/v1", tags=["messages"])

_JSON = "application/json"
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            _JSON: {"schema": MessagesIn.model_json_schema(ref_template="#/components/schemas/{model}")},
            NDJSON: {"schema": {"type": "string", "description": "a message a line"}},
        },
    }
}


@router.post("/topics/{topic}/messages", response_model=AppendedListOut, openapi_extra=_BODY)
async def produce(
    request: Request,
    topic: str,
    engine: TheEngine,
    settings: TheSettings,
    durability: Durability = Durability.FLUSHED,
    idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> JSONResponse:
    """Append a batch in order, all of it or nothing; answered when it is as durable as asked for."""
    validate_topic(topic)
    if idempotency_key is not None:
        # taking it and not keeping it would let a client repeat a request in good faith
        raise HTTPException(501, "Idempotency-Key is not supported by this version")
    incoming = await _incoming(request)

    def append() -> dict[str, Any]:
        queues = _Queues(engine, settings, topic)
        return appended_json(engine.append([_message(one, topic, queues) for one in incoming], durability))

    return JSONResponse(await run_in_threadpool(append))


async def _incoming(request: Request) -> list[MessageIn]:
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if kind not in (_JSON, NDJSON):
        raise HTTPException(415, f"content type {kind!r} is not one of {_JSON}, {NDJSON}")
    body = await request.body()
    try:
        if kind == _JSON:
            return MessagesIn.model_validate_json(body).messages
        return _lines(body)
    except ValidationError as error:
        raise RequestValidationError(_located(error)) from error


def _lines(body: bytes) -> list[MessageIn]:
    found = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(MessageIn.model_validate_json(line))
            except ValidationError as error:
                raise RequestValidationError(_located(error, f"line {number}")) from error
    if not found:
        raise RequestValidationError([{"loc": ("body",), "msg": "no message", "type": "missing"}])
    return found


def _located(error: ValidationError, *place: str) -> list[dict[str, Any]]:
    """The errors as the framework's own, which say that the body is at fault."""
    return [
        {"loc": ("body", *place, *one["loc"]), "msg": one["msg"], "type": one["type"]}
        for one in error.errors(include_url=False, include_input=False, include_context=False)
    ]


class _Queues:
    """How many queues the topic has, asked for once and only if a sharding key needs it."""

    def __init__(self, engine: Engine, settings: Settings, topic: str) -> None:
        self._engine = engine
        self._topic = topic
        self._default = settings.hot.default_queues
        self._count: int | None = None

    def of(self, sharding_key: str) -> int:
        if self._count is None:
            try:
                self._count = len(self._engine.topic(self._topic).queues)
            except TopicNotFoundError:
                self._count = self._default
        return abs(java_hash(sharding_key)) % self._count


def _message(one: MessageIn, topic: str, queues: _Queues) -> Message:
    properties, queue_id = one.properties, ANY_QUEUE if one.queue_id is None else one.queue_id
    if one.sharding_key is not None:
        properties = {**properties, SHARDING_KEY: one.sharding_key}
        queue_id = queues.of(one.sharding_key)
    return Message(topic, one.body_bytes(), one.keys, one.tag, properties, one.born_ms, queue_id)
