"""Messages out: by key and time, and queue by queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from index.query import MAX_LIMIT, Answer
from index.query import Query as Question
from service.access.caller import Scope
from service.answer_forms import document, lines, whole
from service.api.answers import answer_in_pieces, whole_answer
from service.api.contract import PULL_FORMS, QUERY_FORMS, may_answer
from service.api.deps import Stopping, TheCaller, TheEngine, TheReader, TheServed, TheSettings, check_now
from service.api.downloads import download
from service.api.lane_route import LaneRoute
from service.api.limits import lane_of
from service.api.negotiation import wanted_form
from service.api.parameters import MessageId, QueueId, StoreId, TopicName, any_store
from service.api.schemas import MessageOut, OffsetByTimeIn, OffsetByTimeOut, PullIn, PullOut, QueryIn, QueryOut
from service.arrow_rows import batch_stream
from service.following import FollowedQuery
from service.wire import (
    ARROW_STREAM,
    JSON,
    NDJSON,
    PARQUET,
    Json,
    beside_answer,
    beside_pull,
    message_json,
)
from tiering.errors import InvalidRequestError, MessageNotFoundError
from tiering.message import StoredMessage
from tiering.pull_result import PullResult
from tiering.pulled_batch import PulledBatch
from tiering.types import PullStatus

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"], dependencies=[any_store])

#: A long poll waits in steps, so that a stop and a client that went away end it.
_STEP_S = 0.5
_LONG_FORMS = (NDJSON, ARROW_STREAM, PARQUET)
_FORMS = (JSON, *_LONG_FORMS)
_ENDINGS = {NDJSON: "ndjson", ARROW_STREAM: "arrows", PARQUET: "parquet"}


@router.get(
    "/topics/{topic}/messages",
    operation_id="query_messages",
    response_model=QueryOut,
    responses={200: {"content": QUERY_FORMS}, **may_answer(404, 406, 409)},
)
async def query(
    request: Request,
    topic: TopicName,
    asked: Annotated[QueryIn, Query()],
    caller: TheCaller,
    engine: TheReader,
    settings: TheSettings,
) -> Response:
    """Find messages by key and by time in both tiers.

    NDJSON has what stands beside the messages in its last line, an Arrow stream in its schema's metadata, Parquet in
    the key-value metadata of the file. With `all` the answer follows the cursor to the end, however many messages there
    are: what stands beside them is then in the custom metadata of an Arrow stream's last record batch. An answer that
    fails half-way ends with a line `{"problem": ...}` (NDJSON) or breaks off.
    """
    caller.check(Scope.READ, topic)
    lane = lane_of(request)
    question = _question(topic, asked)
    if asked.all:
        form = wanted_form(request, _LONG_FORMS)

        def ask(page_of: Question) -> Answer:
            check_now(request, Scope.READ, topic)
            return engine.query(page_of, page_bytes=settings.serve.stream_page_bytes)

        return await download(request, FollowedQuery(ask, question), form, f"{topic}.{_ENDINGS[form]}")
    form = wanted_form(request, _FORMS)

    def page() -> Response:
        answer = engine.query(question)
        return _page(request, answer.messages, {}, beside_answer(answer), form)

    return await lane.run(page, is_timed=False)


def _page(request: Request, messages: Sequence[StoredMessage], before: Json, after: Json, form: str) -> Response:
    """A page in a form, on a thread; in JSON what stands beside the messages is ``before`` or ``after`` them."""
    shown_bytes = sum(message.shown_bytes for message in messages)
    if form == JSON:
        return answer_in_pieces(request, document(before, messages, after), shown_bytes, form)
    if form == NDJSON:
        return answer_in_pieces(request, lines(messages, {**before, **after}), shown_bytes, form)
    return whole_answer(request, whole(messages, {**before, **after}, form), form)


def _question(topic: str, asked: QueryIn) -> Question:
    if asked.all and asked.dry_run:
        raise InvalidRequestError("a dry run is of one page", hint="leave all out")
    limit = MAX_LIMIT if asked.all and "limit" not in asked.model_fields_set else asked.limit
    return Question(
        topic, asked.key, asked.from_ms, asked.to_ms, limit, asked.axis, asked.order, asked.cursor,
        asked.max_requests, asked.timeout_ms, asked.dry_run,
    )  # fmt: skip


@router.get(
    "/topics/{topic}/queues/{queue_id}/messages",
    operation_id="pull_messages",
    response_model=PullOut,
    responses={200: {"content": PULL_FORMS}, **may_answer(404, 406)},
)
async def pull(
    request: Request,
    topic: TopicName,
    queue_id: QueueId,
    asked: Annotated[PullIn, Query()],
    caller: TheCaller,
    engine: TheEngine,
    stopping: Stopping,
) -> Response:
    """Read a queue in order from ``offset``, whichever tier holds it; waits up to ``wait_ms`` at its end.

    NDJSON has what stands beside the messages in its last line, an Arrow stream in its schema's metadata.
    """
    caller.check(Scope.READ, topic)
    form = wanted_form(request, (JSON, NDJSON, ARROW_STREAM))
    run = lane_of(request).run

    def read() -> PullResult | PulledBatch:
        if form == ARROW_STREAM and asked.tag is None:
            return engine.pull_batch(topic, queue_id, asked.offset, asked.limit)  # without an object for each message
        return engine.pull(topic, queue_id, asked.offset, asked.limit, asked.tag)

    def answer(result: PullResult | PulledBatch) -> Response:
        if isinstance(result, PulledBatch):
            return whole_answer(request, batch_stream(result.messages, beside_pull(result)), form)
        return _page(request, result.messages, beside_pull(result), {}, form)

    result = await run(read)
    if result.status is PullStatus.NO_NEW_MESSAGE and asked.wait_ms > 0:
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[None] = loop.create_future()
        tell = partial(loop.call_soon_threadsafe, arrival.set_result, None)
        with await run(partial(engine.watch, topic, queue_id, asked.offset, tell)):
            await _wait(arrival, asked.wait_ms / 1000, request, stopping)
        check_now(request, Scope.READ, topic)
        result = await run(read)
    return await run(partial(answer, result)) if len(result.messages) else answer(result)


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
    engine: TheServed,
    store_id: StoreId = None,
) -> JSONResponse:
    """One message by the id that the answer to its append gave, whichever tier it is in.

    404 if no message has the id or the caller may not read its topic, or if it is another store's than `store_id`; 503
    if it lies in an archive that cannot be reached. A client's own id (`UNIQ_KEY`) is a key: query the topic by it.
    """
    caller.check(Scope.READ)
    found = engine.message(message_id, store_id)
    shown = message_json(found) if isinstance(found, StoredMessage) else found
    if not caller.may(Scope.READ, shown["topic"]):
        raise MessageNotFoundError(f"no message has the id {message_id}")
    return JSONResponse(shown)


async def _wait(arrival: asyncio.Future[None], timeout_s: float, request: Request, stopping: threading.Event) -> None:
    """Wait on the event loop: the few threads of the pool are for those who have something to do."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while (left_s := end_s - loop.time()) > 0 and not stopping.is_set() and not await request.is_disconnected():
        await asyncio.wait([arrival], timeout=min(left_s, _STEP_S))
        if arrival.done():
            return
