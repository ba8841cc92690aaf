"""Messages in: ``POST /v1/topics/{topic}/messages``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.api.deps import TheEngine, TheSettings
from service.api.incoming import BODY, incoming
from service.api.schemas import AppendedListOut
from service.arrow_rows import appended_stream
from service.wire import ARROW_STREAM, appended_json
from tiering.batch import validate_topic
from tiering.types import Durability

router = APIRouter(prefix="/v1", tags=["messages"])


@router.post(
    "/topics/{topic}/messages",
    response_model=AppendedListOut,
    responses={200: {"content": {ARROW_STREAM: {}}}},
    openapi_extra={"requestBody": BODY},
)
async def produce(
    request: Request,
    topic: str,
    engine: TheEngine,
    settings: TheSettings,
    durability: Durability = Durability.FLUSHED,
    idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Append a batch in order, all of it or nothing; answered when it is as durable as asked for."""
    validate_topic(topic)
    if idempotency_key is not None:
        # taking it and not keeping it would let a client repeat a request in good faith
        raise HTTPException(501, "Idempotency-Key is not supported by this version")
    messages = await incoming(request, topic, engine, settings)
    results = await run_in_threadpool(engine.append, messages, durability)
    if ARROW_STREAM in request.headers.get("accept", ""):
        return Response(await run_in_threadpool(appended_stream, results), media_type=ARROW_STREAM)
    return JSONResponse(appended_json(results))
