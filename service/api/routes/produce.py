"""Messages in: ``POST /v1/topics/{topic}/messages``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import WithJsonSchema

from tierlog.service.access.caller import Scope
from tierlog.service.api.contract import ARROW_SCHEMA, may_answer
from tierlog.service.api.deps import TheCaller, TheEngine, TheSettings
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.limits import body_of, lane_of
from tierlog.service.api.message_bodies import BODY, RequestMessages, body_kind, born_host_of
from tierlog.service.api.negotiation import wanted_form
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.messages import AppendedListOut
from tierlog.service.api.schemas.parameters import TIMES, Time, TopicName, UrlDuration, whole
from tierlog.service.cluster.routing import TOPIC_HOME
from tierlog.service.engine.appends import IDEMPOTENCY_KEY_PATTERN, IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import ARROW_STREAM, JSON
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import validate_topic

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["messages"])

_KEY = (
    "`producer` or `producer:number`: who sends the request, and the number of its first message among all that this "
    "producer sends to the topic, 0 if absent; the others follow on. What the store has of them already is not "
    "appended again but answered as the first time. 409 with `Retry-After` while the same numbers are being appended, "
    "422 if they belong to other messages. Producers of one token are not those of another. "
    "Remembered for `produce.window_ms`."
)


@router.post(
    "/topics/{topic}/messages",
    operation_id="append_messages",
    response_model=AppendedListOut,
    responses={200: {"content": {ARROW_STREAM: {"schema": ARROW_SCHEMA}}}, **may_answer(406, 409, 507)},
    openapi_extra={"requestBody": BODY},
)
@traits(lane=LaneChoice.APPEND, store=TOPIC_HOME)
async def produce(
    request: Request,
    *,
    topic: TopicName,
    caller: TheCaller,
    engine: TheEngine,
    settings: TheSettings,
    durability: Durability = Durability.FLUSHED,
    delay: Annotated[
        UrlDuration | None, Query(description="how long the messages wait; a number of ms, or with a unit")
    ] = None,
    deliver_at: Annotated[
        Time | None, Query(description=f"when they are delivered, instead of `delay`; {TIMES}")
    ] = None,
    idempotency_key: Annotated[
        Annotated[str, WithJsonSchema({"type": "string", "pattern": whole(IDEMPOTENCY_KEY_PATTERN)})] | None,
        Header(alias="Idempotency-Key", description=_KEY, examples=["sensor-7:4711"]),
    ] = None,
) -> Response:
    """Append a batch in order, all of it or nothing; answered when it is as durable as asked for.

    With a delay the messages wait in the timer topic, which is where the answer says that they are, and are appended to
    their own topic at their time, once.
    """
    caller.check(Scope.PRODUCE, topic)
    form = wanted_form(request, (JSON, ARROW_STREAM))  # before anything is appended
    validate_topic(topic)
    key = None if idempotency_key is None else IdempotencyKey.parse(idempotency_key, caller.window)
    kind = body_kind(request.headers.get("content-type", JSON))
    due_ms = _due_ms(engine, delay, deliver_at, has_key=key is not None)
    incoming = RequestMessages(
        kind, topic, engine, settings, request.app.state.lanes.parsing, due_ms, born_host_of(request.scope, settings)
    )
    return await incoming.append(body_of(request), lane_of(request), durability, key, form)


def _due_ms(engine: Store, delay: int | None, deliver_at: int | None, *, has_key: bool) -> int | None:
    """Returns when the messages are to be delivered; None for now."""
    if delay is None:
        return deliver_at
    if deliver_at is not None:
        raise InvalidRequestError("delay and deliver_at are given", hint="one of them says when")
    if has_key:
        raise InvalidRequestError(
            "delay is given with an Idempotency-Key", hint="sent again it would ask for another time: use deliver_at"
        )
    return engine.now_ms() + delay
