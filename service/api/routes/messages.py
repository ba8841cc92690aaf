"""Messages out: by key and time, and queue by queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from index.query import Query as Question
from service.api.deps import Stopping, TheEngine
from service.api.schemas import PullIn, PullOut, QueryIn, QueryOut
from service.arrow_rows import answer_stream
from service.wire import ARROW_STREAM, NDJSON, answer_json, messages_ndjson, pull_json
from tiering.clock import SystemClock
from tiering.types import PullStatus

router = APIRouter(prefix="/v1", tags=["messages"])

#: A long poll waits in steps, so that a stop and a client that went away end it.
_STEP_S = 0.5


@router.get(
    "/topics/{topic}/messages",
    response_model=QueryOut,
    responses={200: {"content": {NDJSON: {}, ARROW_STREAM: {}}}},
)
def query(request: Request, topic: str, asked: Annotated[QueryIn, Query()], engine: TheEngine) -> Response:
    """Find messages by key and by time in both tiers.

    NDJSON has the cursor and the coverage in its last line, an Arrow stream in its schema's metadata.
    """
    question = Question(
        topic,
        asked.key,
        asked.from_ms,
        asked.to_ms,
        asked.limit,
        asked.axis,
        asked.order,
        asked.cursor,
        asked.max_requests,
    )
    page = answer_json(engine.query(question))
    wanted = request.headers.get("accept", "")
    if NDJSON in wanted:
        return Response("".join(messages_ndjson(page)), media_type=NDJSON)
    if ARROW_STREAM in wanted:
        return Response(answer_stream(page), media_type=ARROW_STREAM)
    return JSONResponse(page)


@router.get("/topics/{topic}/queues/{queue_id}/messages", response_model=PullOut)
async def pull(
    request: Request,
    topic: str,
    queue_id: Annotated[int, Path(ge=0)],
    asked: Annotated[PullIn, Query()],
    engine: TheEngine,
    stopping: Stopping,
) -> JSONResponse:
    """Read a queue in order from ``offset``, whichever tier holds it; waits up to ``wait_ms`` at its end."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + asked.wait_ms / 1000
    while True:
        result = await run_in_threadpool(engine.pull, topic, queue_id, asked.offset, asked.limit, asked.tag)
        left_s = deadline_s - clock.monotonic_s()
        if result.status is not PullStatus.NO_NEW_MESSAGE or left_s <= 0 or stopping.is_set():
            return JSONResponse(pull_json(result))
        if await request.is_disconnected():
            return JSONResponse(pull_json(result))
        await run_in_threadpool(engine.wait_for_message, topic, queue_id, asked.offset, min(left_s, _STEP_S))
