"""Messages delivered to a consumer group one by one: calls below ``/v1/groups/{group}``, beside those of members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, FailFast, Field

from tierlog.service.access.caller import ASK, Caller, Scope
from tierlog.service.api.answer_forms import shown_document
from tierlog.service.api.answers import answer_in_pieces, wait_for
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import Stopping, TheCaller, TheDeliveries, check_now
from tierlog.service.api.json_bodies import sent, to_some
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.limits import lane_of
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.messages import MAX_WAIT_MS, MessageOut
from tierlog.service.api.schemas.parameters import GroupName, Number, StrictModel, Topic, Whole, absent
from tierlog.service.cluster.routing import GROUP, NEW_GROUP
from tierlog.service.delivery.deliveries import (
    MAX_INVISIBLE_MS,
    MAX_REASON_CHARACTERS,
    MAX_RECEIVE,
    Deliveries,
    Delivery,
)
from tierlog.service.delivery.group_topics import is_group_topic
from tierlog.service.delivery.handles import handle_fields
from tierlog.service.wire.documents import JSON, message_json
from tierlog.tiering.base.errors import ForbiddenError, InvalidHandleError
from tierlog.tiering.message.batch import ANY_QUEUE, MAX_QUEUES

_DEFAULT_INVISIBLE_MS = 60_000
_Handle = Annotated[str, Field(max_length=600, json_schema_extra={"examples": ["billing.orders.0.17.1.1700000060000"]})]
_Handles = Annotated[list[_Handle], FailFast()]
_Ms = Annotated[Whole, Field(ge=0, le=MAX_INVISIBLE_MS)]
_Reason = Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)]
_HANDLES = Field(min_length=1, max_length=MAX_RECEIVE, description="of the last deliveries of these messages")


class ReceiveIn(StrictModel):
    """What is to be delivered, and for how long nobody else of the group gets it."""

    topic: Topic
    queue_id: Annotated[Whole, Field(ge=0, le=MAX_QUEUES - 1)] | None = Field(
        default=None, description="only of this queue; absent: of all"
    )
    limit: Whole = Field(default=32, ge=1, le=MAX_RECEIVE, description="messages at most")
    invisible_ms: Whole = Field(
        default=_DEFAULT_INVISIBLE_MS, ge=1, le=MAX_INVISIBLE_MS,
        description="ms until a message that is not acknowledged is delivered again",
    )  # fmt: skip
    tag: str | None = Field(
        default=None, description="a tag expression, the same for all consumers of a group: other messages are done"
    )
    in_order: bool = Field(
        default=False,
        description="of the messages of a message group (property `__SHARDINGKEY`) in a queue, the next only when the "
        "last is done",
    )
    start: Literal["first", "latest"] = Field(
        default="first", description="where a group begins that has consumed nothing of the topic"
    )
    max_attempts: Annotated[Whole, Field(ge=1, le=1_000)] | None = Field(
        default=None,
        description="deliveries after which a message becomes a dead letter; absent: `rocketmq.max_attempts`",
    )
    attempt_id: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="of one's choice: sent again with it, a call whose answer was lost gives the same"
    )


class ReceiveArguments(BaseModel):
    """Of the URL, so that it is known before the body is read that the call may wait."""

    wait_ms: Number = Field(default=0, ge=0, le=MAX_WAIT_MS, description="ms to wait for a message if there is none")


class DeliveryOut(MessageOut):
    """A message that is delivered to nobody else of the group for a time."""

    handle: str = Field(description="names this delivery")
    attempt: int = Field(ge=1, description="how often it was delivered, this time counted")
    invisible_until_ms: int = Field(description="ms since the epoch; then it is delivered again")


class DeliveriesOut(BaseModel):
    """What was delivered; empty if there is nothing."""

    group: str
    messages: list[DeliveryOut]


class HandlesIn(StrictModel):
    """The deliveries that are meant."""

    handles: _Handles = _HANDLES


class NackIn(StrictModel):
    """Deliveries that were not done."""

    handles: _Handles = _HANDLES
    delay_ms: _Ms | None = Field(
        default=None,
        description="ms until it is delivered again; absent: 10 s, 30 s, 1, 2, 3 … min, longer with each attempt",
    )
    reason: _Reason = Field(default="", description="why; a dead letter has the last one")


class DeadLettersIn(StrictModel):
    """Deliveries that are given up."""

    handles: _Handles = _HANDLES
    reason: _Reason = Field(default="", description="why")


class ExtendIn(StrictModel):
    """A delivery that takes longer."""

    handle: _Handle
    invisible_ms: _Ms = Field(description="ms from now on; 0 gives the message back")


class RefusedOut(BaseModel):
    """A handle that changed nothing."""

    handle: str
    detail: str


class HandledOut(BaseModel):
    """How many deliveries it was done to, and those that are over."""

    group: str
    done: int = Field(description="deliveries")
    refused: list[RefusedOut] = absent("handles of deliveries that are over, with the reason")


class ExtendedOut(BaseModel):
    """The delivery lasts on; its old handle does not."""

    group: str
    handle: str


router = APIRouter(route_class=LaneRoute, prefix="/v1/groups", tags=["deliveries"])


@router.post(
    "/{group}/receive",
    operation_id="receive_messages",
    response_model=DeliveriesOut,
    responses=may_answer(404, 409, 507),
)
@traits(lane=LaneChoice.AS_ASKED, store=NEW_GROUP)
async def receive(
    request: Request,
    *,
    group: GroupName,
    wanted: Annotated[ReceiveIn, sent(ReceiveIn, to_some(Scope.READ))],
    asked: Annotated[ReceiveArguments, Query()],
    caller: TheCaller,
    deliveries: TheDeliveries,
    stopping: Stopping,
) -> Response:
    """Have messages delivered, each with a handle; waits up to `wait_ms` if there is none.

    A message is delivered again, with `attempt` + 1, when its time is over or it was given back, and becomes a dead
    letter in topic `%DLQ%` + group after the last attempt. 429 while the group has 4,096 messages of a queue, or 32,768
    in all, delivered and not acknowledged. In a cluster these are messages of the store that keeps the group.
    """
    caller.check(Scope.READ, wanted.topic)
    run = lane_of(request).run
    read = partial(
        deliveries.receive, group, wanted.topic, ANY_QUEUE if wanted.queue_id is None else wanted.queue_id,
        limit=wanted.limit, invisible_ms=wanted.invisible_ms, tag=wanted.tag, fifo=wanted.in_order,
        attempt_id=wanted.attempt_id, max_attempts=wanted.max_attempts, from_latest=wanted.start == "latest",
    )  # fmt: skip
    found = await run(read)
    if not found and asked.wait_ms > 0:
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[None] = loop.create_future()
        notify = partial(loop.call_soon_threadsafe, arrival.set_result, None)
        with await run(partial(deliveries.watch, group, wanted.topic, notify)):
            came = await wait_for(arrival, asked.wait_ms / 1000, request, stopping)
        if came and not await request.is_disconnected():  # what nobody takes would be invisible for nothing
            check_now(request, Scope.READ, wanted.topic)
            found = await run(read)
    return await run(partial(_delivered, request, group, found))


@router.post("/{group}/ack", operation_id="acknowledge_messages", response_model=HandledOut, responses=may_answer(507))
@traits(lane=LaneChoice.READ, store=GROUP)
def acknowledge(
    group: GroupName,
    wanted: Annotated[HandlesIn, sent(HandlesIn, to_some(Scope.READ))],
    caller: TheCaller,
    deliveries: TheDeliveries,
) -> JSONResponse:
    """Take messages for done: the group does not get them again. Written within about a second, and at a clean stop.

    A handle counts until its message is delivered again or done. 400 if none of them does.
    """
    return _each(group, wanted.handles, caller, deliveries, deliveries.acknowledge)


@router.post("/{group}/nack", operation_id="give_messages_back", response_model=HandledOut, responses=may_answer(507))
@traits(lane=LaneChoice.APPEND, store=GROUP)
def nack(
    group: GroupName,
    wanted: Annotated[NackIn, sent(NackIn, to_some(Scope.READ))],
    caller: TheCaller,
    deliveries: TheDeliveries,
) -> JSONResponse:
    """Give messages back that were not done: they are delivered again after a while, or become dead letters.

    400 if none of the handles counts.
    """
    give_back = partial(deliveries.nack, delay_ms=wanted.delay_ms, reason=wanted.reason)
    return _each(group, wanted.handles, caller, deliveries, give_back)


@router.post(
    "/{group}/dead-letters", operation_id="give_messages_up", response_model=HandledOut, responses=may_answer(507)
)
@traits(lane=LaneChoice.APPEND, store=GROUP)
def dead_letters(
    group: GroupName,
    wanted: Annotated[DeadLettersIn, sent(DeadLettersIn, to_some(Scope.READ))],
    caller: TheCaller,
    deliveries: TheDeliveries,
) -> JSONResponse:
    """Give messages up: they go to the topic `%DLQ%` + group, durably, and are done.

    400 if none of the handles counts.
    """
    give_up = partial(deliveries.forward_to_dead_letters, reason=wanted.reason)
    return _each(group, wanted.handles, caller, deliveries, give_up)


@router.post("/{group}/extend", operation_id="extend_delivery", response_model=ExtendedOut, responses=may_answer(507))
@traits(lane=LaneChoice.READ, store=GROUP)
def extend(
    group: GroupName,
    wanted: Annotated[ExtendIn, sent(ExtendIn, to_some(Scope.READ))],
    caller: TheCaller,
    deliveries: TheDeliveries,
) -> JSONResponse:
    """Have a delivery last for this time from now on. The answer has its new handle; the old one is over."""
    _check_handle(group, wanted.handle, caller, deliveries)
    return JSONResponse({"group": group, "handle": deliveries.extend(wanted.handle, wanted.invisible_ms)})


def _delivered(request: Request, group: str, found: list[Delivery]) -> Response:
    shown = (
        {
            **message_json(one.message),
            "handle": one.handle,
            "attempt": one.attempt,
            "invisible_until_ms": one.invisible_until_ms,
        }
        for one in found
    )
    held_bytes = sum(one.message.shown_bytes for one in found)
    return answer_in_pieces(request, shown_document({"group": group}, shown, {}), held_bytes, JSON)


def _each(
    group: str, handles: list[str], caller: Caller, deliveries: Deliveries, act: Callable[[str], object]
) -> JSONResponse:
    """Does the same to each delivery, and says which are over; raises the error of the first if all are."""
    refused: list[InvalidHandleError] = []
    told: list[dict[str, Any]] = []
    for handle in handles:
        try:
            _check_handle(group, handle, caller, deliveries)
            act(handle)
        except InvalidHandleError as error:
            refused.append(error)
            told.append({"handle": handle, "detail": error.message})
    if len(refused) == len(handles):
        raise refused[0]
    return JSONResponse({"group": group, "done": len(handles) - len(told), **({"refused": told} if told else {})})


def _check_handle(group: str, handle: str, caller: Caller, deliveries: Deliveries) -> None:
    """Checks that a handle is of the group, and the right to its topic; of a retry, to all that the group reads."""
    fields = handle_fields(handle)
    if fields.group != group:
        raise InvalidHandleError(f"the handle is of another group than {group!r}")
    if not is_group_topic(fields.topic):
        caller.check(Scope.READ, fields.topic)
    elif not all(caller.may(Scope.READ, topic) for topic in deliveries.topics(group) if not is_group_topic(topic)):
        raise ForbiddenError(f"{caller.name!r} has no right to read every topic of this", hint=ASK)
