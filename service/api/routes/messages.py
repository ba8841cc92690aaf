"""Messages out: by key and time, and queue by queue."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from index.query import Query as Question
from service.access.caller import Scope
from service.api.contract import QUERY_FORMS, may_answer
from service.api.deps import Stopping, TheCaller, TheEngine
from service.api.negotiation import wanted_form
from service.api.parameters import MessageId, QueueId, TopicName
from service.api.schemas import MessageOut, OffsetByTimeIn, OffsetByTimeOut, PullIn, PullOut, QueryIn, QueryOut
from service.arrow_rows import answer_stream
from service.wire import ARROW_STREAM, JSON, NDJSON, answer_json, message_json, messages_ndjson, pull_json
from tiering.errors import MessageNotFoundError
from tiering.pull_result import PullResult
from tiering.types import PullStatus

router = APIRouter(prefix="/v1", tags=["messages"])

#: A long poll waits in steps, so that a stop and a client that went away end it.
_STEP_S = 0.5


@router.get(
    "/topics/{topic}/messages",
    operation_id="query_messages",
    response_model=QueryOut,
    responses={200: {"content": QUERY_FORMS}, **may_answer(404, 406, 409)},
)
def query(
    request: Request, topic: TopicName, asked: Annotated[QueryIn, Query()], caller: TheCaller, engine: TheEngine
) -> Response:
    """Find messages by key and by time in both tiers.

    NDJSON has what stands beside the messages in its last line, an Arrow stream in its schema's metadata.
    """
    caller.check(Scope.READ, topic)
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
        asked.timeout_ms,
        asked.dry_run,
    )
    page = answer_json(engine.query(question))
    match wanted_form(request, (JSON, NDJSON, ARROW_STREAM)):
        case "application/x-ndjson":
            return Response("".join(messages_ndjson(page)), media_type=NDJSON)
        case "application/vnd.apache.arrow.stream":
            return Response(answer_stream(page), media_type=ARROW_STREAM)
        case _:
            return JSONResponse(page)


@router.get(
    "/topics/{topic}/queues/{queue_id}/messages",
    operation_id="pull_messages",
    response_model=PullOut,
    responses=may_answer(404),
)
async def pull(
    request: Request,
    topic: TopicName,
    queue_id: QueueId,
    asked: Annotated[PullIn, Query()],
    caller: TheCaller,
    engine: TheEngine,
    stopping: Stopping,
) -> JSONResponse:
    """Read a queue in order from ``offset``, whichever tier holds it; waits up to ``wait_ms`` at its end."""
    caller.check(Scope.READ, topic)

    def read() -> PullResult:
        return engine.pull(topic, queue_id, asked.offset, asked.limit, asked.tag)

    result = await run_in_threadpool(read)
    if result.status is PullStatus.NO_NEW_MESSAGE and asked.wait_ms > 0:
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[None] = loop.create_future()
        tell = partial(loop.call_soon_threadsafe, arrival.set_result, None)
        with await run_in_threadpool(engine.watch, topic, queue_id, asked.offset, tell):
            await _wait(arrival, asked.wait_ms / 1000, request, stopping)
        result = await run_in_threadpool(read)
    return JSONResponse(pull_json(result))


@router.get(
    "/topics/{topic}/queues/{queue_id}/offset",
    operation_id="get_offset_by_time",
    response_model=OffsetByTimeOut,
    responses=may_answer(404),
)
def offset_by_time(
    topic: TopicName,
    queue_id: QueueId,
    asked: Annotated[OffsetByTimeIn, Query()],
    caller: TheCaller,
    engine: TheEngine,
) -> JSONResponse:
    """Where in a queue a store time lies, as if both tiers were one; the rule is RocketMQ's over the whole queue.

    `lower`: the first message stored at or after the time; `max_offset` if all are earlier, `min_offset` if all are
    later. `upper`: the last message stored at or before the time; the last one if all are earlier, 0 if all are later,
    even where the queue begins at a later offset. Messages of one time count together: `lower` is the first of them,
    `upper` the last. 503 if the answer lies in an archive that cannot be reached.
    """
    caller.check(Scope.READ, topic)
    offset = engine.offset_by_time(topic, queue_id, asked.time_ms, asked.boundary)
    least, following = engine.offsets(topic, queue_id)
    return JSONResponse({"offset": offset, "min_offset": least, "max_offset": following})


@router.get("/messages/{message_id}", operation_id="get_message", response_model=MessageOut, responses=may_answer(404))
def message(
    message_id: MessageId,
    caller: TheCaller,
    engine: TheEngine,
    store_id: Annotated[str | None, Query(description="the store that the message is in")] = None,
) -> JSONResponse:
    """One message by the id that the answer to its append gave, whichever tier it is in.

    404 if no message has the id or the caller may not read its topic, or if it is another store's than `store_id`; 503
    if it lies in an archive that cannot be reached. A client's own id (`UNIQ_KEY`) is a key: query the topic by it.
    """
    caller.check(Scope.READ)
    found = engine.message(message_id, store_id)
    if not caller.may(Scope.READ, found.record.topic):
        raise MessageNotFoundError(f"no message has the id {message_id}")
    return JSONResponse(message_json(found))


async def _wait(arrival: asyncio.Future[None], timeout_s: float, request: Request, stopping: threading.Event) -> None:
    """Wait on the event loop: the few threads of the pool are for those who have something to do."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while (left_s := end_s - loop.time()) > 0 and not stopping.is_set() and not await request.is_disconnected():
        await asyncio.wait([arrival], timeout=min(left_s, _STEP_S))
        if arrival.done():
            return
