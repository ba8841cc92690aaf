"""Messages out: by key and time, in pages or as one download, queue by queue, and one by its id."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from tierlog.index.search.filters import parse_where
from tierlog.index.search.query import MAX_LIMIT, Answer
from tierlog.index.search.query import Query as Question
from tierlog.service.access.caller import Scope
from tierlog.service.api.answer_forms import document, form_of, lines, whole
from tierlog.service.api.answers import (
    answer_in_pieces,
    memory_of,
    send_pieces,
    until_gone,
    wait_for,
    while_wanted,
    whole_answer,
)
from tierlog.service.api.contract import PULL_FORMS, QUERY_FORMS, may_answer
from tierlog.service.api.deps import Stopping, TheCaller, TheEngine, TheReader, TheServed, TheSettings, check_now
from tierlog.service.api.errors import store_error
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.limits import lane_of
from tierlog.service.api.negotiation import wanted_form
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.messages import (
    MessageOut,
    OffsetByTimeIn,
    OffsetByTimeOut,
    PullIn,
    PullOut,
    QueryIn,
    QueryOut,
)
from tierlog.service.api.schemas.parameters import MAX_OFFSET, MessageId, QueueId, StoreId, TopicName
from tierlog.service.cluster.routing import MESSAGE, TOPIC_ARCHIVE, TOPIC_STORE
from tierlog.service.wire.arrow import batch_stream
from tierlog.service.wire.documents import (
    ARROW_STREAM,
    JSON,
    NDJSON,
    PARQUET,
    Json,
    answer_metadata,
    pull_metadata,
    whole_message_json,
)
from tierlog.service.wire.paged_query import PagedQuery
from tierlog.tiering.base.errors import InvalidRequestError, MessageNotFoundError, StoreError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.pull_batch import PulledBatch
from tierlog.tiering.read.pull_result import PullResult

_LOG = logging.getLogger("tierlog")

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"])

_LONG_FORMS = (NDJSON, ARROW_STREAM, PARQUET)
_FORMS = (JSON, *_LONG_FORMS)
_ENDINGS = {NDJSON: "ndjson", ARROW_STREAM: "arrows", PARQUET: "parquet"}


@router.get(
    "/topics/{topic}/messages",
    operation_id="query_messages",
    response_model=QueryOut,
    responses={200: {"content": QUERY_FORMS}, **may_answer(404, 406, 409)},
)
@traits(lane=LaneChoice.AS_ASKED, store=TOPIC_ARCHIVE)
async def query(
    request: Request,
    *,
    topic: TopicName,
    asked: Annotated[QueryIn, Query()],
    caller: TheCaller,
    engine: TheReader,
    settings: TheSettings,
) -> Response:
    """Find messages by key and by time in both tiers.

    NDJSON has what stands beside the messages in its last line, an Arrow stream in its schema's metadata, Parquet in
    the key-value metadata of the file. With `all` the answer follows the cursor to the end, however many messages there
    are: what stands beside them is then in the custom metadata of an Arrow stream's last record batch. Without a key it
    is read by columns, much faster than pages are, and `limit` counts only if it is given. An answer that fails
    half-way ends with a line `{"problem": ...}` (NDJSON) or breaks off.
    """
    caller.check(Scope.READ, topic)
    lane = lane_of(request)
    question = _question(topic, asked)
    if asked.all:
        form = wanted_form(request, _LONG_FORMS)

        def ask(page_of: Question, page_bytes: int) -> Answer:
            check_now(request, Scope.READ, topic)
            return engine.query(page_of, page_bytes=page_bytes)

        most_rows = asked.limit if "limit" in asked.model_fields_set else None
        paged = PagedQuery(ask, question, settings.serve.stream_page_bytes, most_rows)
        return await download(request, paged, form, f"{topic}.{_ENDINGS[form]}")
    form = wanted_form(request, _FORMS)

    def page() -> Response:
        answer = engine.query(question)
        return _page(request, answer.messages, {}, answer_metadata(answer), form)

    return await lane.run(page, is_timed=False)


def _page(request: Request, messages: Sequence[StoredMessage], before: Json, after: Json, form: str) -> Response:
    """Makes a page in a form, on a thread. In JSON, what stands beside the messages is ``before`` or ``after`` them."""
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
        topic=topic, key=asked.key, from_ms=asked.from_ms, to_ms=asked.to_ms, limit=limit, axis=asked.axis,
        order=asked.order, cursor=asked.cursor, max_requests=asked.max_requests, timeout_ms=asked.timeout_ms,
        dry_run=asked.dry_run, tag=asked.tag, contains=tuple(asked.contains),
        where=tuple(map(parse_where, asked.where)),
    )  # fmt: skip


@router.get(
    "/topics/{topic}/queues/{queue_id}/messages",
    operation_id="pull_messages",
    response_model=PullOut,
    responses={200: {"content": PULL_FORMS}, **may_answer(404, 406)},
)
@traits(lane=LaneChoice.AS_ASKED, store=TOPIC_STORE)
async def pull(
    request: Request,
    *,
    topic: TopicName,
    queue_id: QueueId,
    asked: Annotated[PullIn, Query()],
    caller: TheCaller,
    engine: TheEngine,
    stopping: Stopping,
) -> Response:
    """Read a queue in order from ``offset``, whichever tier holds it; waits up to ``wait_ms`` at its end.

    With `backward`, read the messages below ``offset``, the last one first: go on with `offset` = `next_offset`, until
    that is `min_offset` or less. A queue's beginning is told as OFFSET_TOO_SMALL.
    NDJSON has what stands beside the messages in its last line, an Arrow stream in its schema's metadata.
    """
    caller.check(Scope.READ, topic)
    form = wanted_form(request, (JSON, NDJSON, ARROW_STREAM))
    run = lane_of(request).run

    def read() -> PullResult | PulledBatch:
        if asked.backward:
            below = asked.offset if "offset" in asked.model_fields_set else MAX_OFFSET
            return engine.pull(topic, queue_id, below, asked.limit, asked.tag, backward=True)
        if form == ARROW_STREAM and asked.tag is None:
            return engine.pull_batch(topic, queue_id, asked.offset, asked.limit)  # without an object for each message
        return engine.pull(topic, queue_id, asked.offset, asked.limit, asked.tag)

    def answer(result: PullResult | PulledBatch) -> Response:
        if isinstance(result, PulledBatch):
            return whole_answer(request, batch_stream(result.messages, pull_metadata(result)), form)
        return _page(request, result.messages, pull_metadata(result), {}, form)

    result = await run(read)
    if result.status is PullStatus.NO_NEW_MESSAGE and asked.wait_ms > 0:
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[None] = loop.create_future()
        notify = partial(loop.call_soon_threadsafe, arrival.set_result, None)
        with await run(partial(engine.watch, topic, queue_id, asked.offset, notify)):
            await wait_for(arrival, asked.wait_ms / 1000, request, stopping)
        check_now(request, Scope.READ, topic)
        result = await run(read)
    return await run(partial(answer, result)) if len(result.messages) else answer(result)


@router.get(
    "/topics/{topic}/queues/{queue_id}/offset",
    operation_id="get_offset_by_time",
    response_model=OffsetByTimeOut,
    responses=may_answer(404),
)
@traits(lane=LaneChoice.READ, store=TOPIC_STORE)
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
@traits(lane=LaneChoice.READ, store=MESSAGE)
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
    shown = engine.shown_message(message_id, whole_message_json, store_id)
    if not caller.may(Scope.READ, shown["topic"]):
        raise MessageNotFoundError(f"no message has the id {message_id}")
    return JSONResponse(shown)


async def download(request: Request, query: PagedQuery, media_type: str, name: str) -> Response:
    """Makes the answer to a query that is followed to its end; raises what is wrong before the first page.

    ``name`` is the file that a browser keeps it as.
    """
    found = _Download(request, query, media_type, name)
    await found.begin()
    return found


class _Download(Response):
    """An answer of any length: a page is read on a thread of the lane when the client has taken the one before.

    One page is in memory at a time, and counts against the budget of answers; one that has begun is not refused
    half-way. A client that goes away, or is cut off for taking nothing, ends the reading.
    """

    def __init__(self, request: Request, query: PagedQuery, media_type: str, name: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["Content-Disposition"] = f'inline; filename="{name}"'
        self._request, self._lane = request, lane_of(request)
        self._query, self._pages = query, query.pages()
        self._form = form_of(media_type)
        self._next: bytes | None = None
        self._at_end = False

    async def begin(self) -> None:
        self._next = await self._lane.run(self._step)
        self._share = memory_of(self._request).take(len(self._next), waits=False)

    def _step(self) -> bytes:
        """Reads the next page on a thread, and gives its bytes, or those of the end."""
        page = next(self._pages, None)
        if page is None:
            self._at_end = True
            return self._form.end(self._query.metadata())
        return self._form.page(page)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Sends everything; an end is sent only after everything."""
        try:
            await while_wanted(self._send(send), until_gone(receive))
        finally:
            self._share.release()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data = self._next or b""
        self._next = None
        while True:
            await send_pieces(send, data)
            if self._at_end:
                break
            try:
                data = await self._lane.run(self._step)
                self._share.hold(len(data))
            except Exception as error:  # the status was sent already: the form itself reports the failure
                if not isinstance(error, StoreError):
                    _LOG.exception("a download failed")
                last = self._form.failed(self._problem(error))
                if last is None:
                    _LOG.warning("a download is broken off: %s", error)
                    return  # without an end: the server closes the connection
                await send_pieces(send, last)
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _problem(self, error: Exception) -> dict[str, object]:
        if isinstance(error, StoreError):
            answer = store_error(self._request, error)
            found: dict[str, object] = json.loads(bytes(answer.body))
            return found
        return {"type": "about:blank", "title": "internal error", "status": 500, "detail": "see the service's log"}
