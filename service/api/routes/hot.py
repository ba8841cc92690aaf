"""What is hot in one store: ``GET /v1/topics/{topic}/hot``, by which a querier learns what no archive tells it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from index.query import Query as Question
from service.access.caller import Scope
from service.answer_forms import document
from service.api.answers import answer_in_pieces, whole_answer
from service.api.contract import ARROW_SCHEMA, may_answer
from service.api.deps import TheCaller, TheEngine
from service.api.hot_schemas import HotIn, HotOut
from service.api.lane_route import LaneRoute
from service.api.negotiation import wanted_form
from service.api.parameters import TopicName, any_store
from service.cluster.hot_wire import beside_hot, hot_stream
from service.wire import ARROW_STREAM, JSON
from tiering.errors import FencedError

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"], dependencies=[any_store])


@router.get(
    "/topics/{topic}/hot",
    operation_id="get_hot_messages",
    response_model=HotOut,
    responses={200: {"content": {ARROW_STREAM: {"schema": ARROW_SCHEMA}}}, **may_answer(404, 406, 409)},
)
def hot(
    request: Request, topic: TopicName, asked: Annotated[HotIn, Query()], caller: TheCaller, engine: TheEngine
) -> Response:
    """Search only the hot tier of this store, and say where its archive takes over; no object store is asked.

    Queriers ask this. As an Arrow stream the answer has one column, `record`, of records as they lie in the log, and
    all the rest as JSON under `hot` in the schema's metadata. 409 from a volume that was fenced.
    """
    caller.check(Scope.READ, topic)
    question = Question(
        topic, asked.key, asked.from_ms, asked.to_ms, asked.limit, asked.axis, asked.order, asked.cursor
    )
    if engine.is_fenced:
        raise FencedError("another volume serves this store now, and what is hot here is not what is hot there")
    form = wanted_form(request, (JSON, ARROW_STREAM))
    page = engine.hot_page(question, page_bytes=asked.page_bytes)
    if form == JSON:
        shown_bytes = sum(message.shown_bytes for message in page.messages)
        return answer_in_pieces(request, document(beside_hot(page), page.messages, {}), shown_bytes, form)
    return whole_answer(request, hot_stream(page), form)
