"""Consumer groups: the calls below ``/v1/groups``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, FailFast, Field

from tierlog.service.access.caller import ANYBODY, ASK, Caller, Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheCaller, TheEngine
from tierlog.service.api.json_bodies import sent, to_some
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.parameters import (
    MAX_OFFSET,
    GroupName,
    MemberId,
    StoreIdText,
    StrictModel,
    Topic,
    Whole,
)
from tierlog.service.cluster.routing import GROUP, NEW_GROUP, ONE_STORE
from tierlog.service.engine.groups import (
    DEFAULT_SESSION_MS,
    MAX_SESSION_MS,
    MAX_TOPICS,
    MIN_SESSION_MS,
    Membership,
    QueueProgress,
)
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError, NotFoundError
from tierlog.tiering.hot.consumer_groups import GroupState, Queue
from tierlog.tiering.message.batch import MAX_QUEUES


class JoinIn(StrictModel):
    """Who wants to read what; a topic that does not exist yet has no queues until it does."""

    topics: Annotated[list[Topic], FailFast()] = Field(min_length=1, max_length=MAX_TOPICS)
    session_timeout_ms: Whole = Field(
        default=DEFAULT_SESSION_MS,
        ge=MIN_SESSION_MS,
        le=MAX_SESSION_MS,
        description="ms without a heartbeat after which the member is gone; send one three times as often",
    )


class OffsetIn(StrictModel):
    """The offset of the next message to consume, one more than that of the last one consumed."""

    topic: Topic
    store_id: StoreIdText | None = Field(
        default=None, description="whose queue it is, as in the assignment; left out: the store that keeps the group"
    )
    queue_id: Whole = Field(ge=0, le=MAX_QUEUES - 1)
    offset: Whole = Field(ge=0, le=MAX_OFFSET)


class OffsetsIn(StrictModel):
    """A commit, all of it or nothing: of a member for queues assigned to it, or, without both, of a group at rest."""

    member_id: str | None = None
    generation: Annotated[Whole, Field(ge=0, le=MAX_OFFSET)] | None = None
    offsets: Annotated[list[OffsetIn], FailFast()] = Field(min_length=1, max_length=10_000)
    reset: bool = Field(default=False, description="allow offsets below the committed ones")


class QueueRefOut(BaseModel):
    """One queue; a pull names its store too."""

    topic: str
    store_id: str
    queue_id: int


class MembershipOut(BaseModel):
    """The member may read and commit the assigned queues as long as the generation lasts."""

    group: str
    member_id: str
    generation: int
    session_timeout_ms: int
    assignment: list[QueueRefOut]


class OffsetOut(BaseModel):
    """The next message to consume."""

    topic: str
    store_id: str
    queue_id: int
    offset: int


class OffsetsOut(BaseModel):
    """Committed offsets; a queue without one is left out."""

    group: str
    generation: int
    offsets: list[OffsetOut]


class MemberOut(BaseModel):
    """A live member; ``idle_ms`` since its last heartbeat."""

    member_id: str
    topics: list[str]
    session_timeout_ms: int
    idle_ms: int
    assignment: list[QueueRefOut]


class ProgressOut(BaseModel):
    """One queue; ``lag`` counts messages still to consume.

    Null: nothing committed, no such queue any more, or its store does not answer; ``lag`` alone: the archive does not
    tell which offsets a restore left out.
    """

    topic: str
    store_id: str
    queue_id: int
    offset: int | None
    min_offset: int | None
    max_offset: int | None
    lag: int | None


class GroupOut(BaseModel):
    """A group with its live members, and every queue that has an offset or is read by a member."""

    group: str
    generation: int
    members: list[MemberOut]
    queues: list[ProgressOut]
    lag: int | None = Field(description="of all queues; null: that of one is not known")
    stores_down: list[str] = Field(description="stores with queues of the group that do not answer")


class GroupSummaryOut(BaseModel):
    """A group in numbers: its live members, and the queues with a committed offset."""

    group: str
    generation: int
    members: int
    queues: int


class MemberGoneOut(BaseModel):
    """The member is gone."""

    group: str
    member_id: str
    left: Literal[True]


class RemovedOut(BaseModel):
    """The group is gone."""

    group: str
    removed: Literal[True]


class GroupListOut(BaseModel):
    """Every group of a store, by name."""

    groups: list[GroupSummaryOut]


router = APIRouter(route_class=LaneRoute, prefix="/v1/groups", tags=["groups"])


@router.get("", operation_id="list_groups", response_model=GroupListOut)
@traits(lane=LaneChoice.READ, store=ONE_STORE)
def groups(caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Every group of one store in numbers, as far as it is about topics that the caller may read.

    In a cluster, groups that are at home in other stores are in those stores' lists: `store_id` names one.
    """
    caller.check(Scope.READ)
    return JSONResponse({"groups": [asdict(summary) for summary in engine.groups.all(partial(caller.may, Scope.READ))]})


@router.get("/{group}", operation_id="get_group", response_model=GroupOut, responses=may_answer(404))
@traits(lane=LaneChoice.READ, store=GROUP)
def group(group: GroupName, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """One group: its live members, what is assigned to each, what is committed and how far it is behind.

    Only of topics that the caller may read; a group that is about none of them is answered as one that is not there.
    """
    _check_shown(caller, engine, group)
    info = engine.groups.describe(group)
    members = [
        {**asdict(member), "topics": topics, "assignment": _queues(member.assignment, caller)}
        for member in info.members
        if (topics := [topic for topic in member.topics if caller.may(Scope.READ, topic)])
    ]
    queues = [queue for queue in info.queues if caller.may(Scope.READ, queue.topic)]
    down = sorted({queue.store_id for queue in queues} & set(info.stores_down))
    return JSONResponse(
        {
            "group": info.name,
            "generation": info.generation,
            "members": members,
            "queues": [asdict(queue) for queue in queues],
            "lag": None if down or any(map(_is_unknown, queues)) else sum(queue.lag or 0 for queue in queues),
            "stores_down": down,
        }
    )


@router.delete("/{group}", operation_id="delete_group", response_model=RemovedOut, responses=may_answer(404, 409, 507))
@traits(lane=LaneChoice.READ, store=GROUP)
def remove(group: GroupName, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Forget a group and its offsets; 409 while it has a live member, 403 if it is about topics one may not read."""
    _check_shown(caller, engine, group)
    _check_all(caller, engine.groups.topics(group))
    engine.groups.remove(group)
    return JSONResponse({"group": group, "removed": True})


@router.post(
    "/{group}/members", operation_id="join_group", response_model=MembershipOut, responses=may_answer(409, 507)
)
@traits(lane=LaneChoice.READ, store=NEW_GROUP)
def join(
    group: GroupName, wanted: Annotated[JoinIn, sent(JoinIn, to_some(Scope.READ))], caller: TheCaller, engine: TheEngine
) -> JSONResponse:
    """Become a member. Every member's share of the queues changes: the others learn it by their next heartbeat.

    A group is made by its first member. Without a committed offset, begin where you want: at the queue's
    ``min_offset``, at its ``max_offset``, or at an offset by time.
    """
    for topic in wanted.topics:
        caller.check(Scope.READ, topic)
    return JSONResponse(_membership(engine.groups.join(group, wanted.topics, wanted.session_timeout_ms)))


@router.put(
    "/{group}/members/{member_id}",
    operation_id="heartbeat",
    response_model=MembershipOut,
    responses=may_answer(404, 507),
)
@traits(lane=LaneChoice.READ, store=GROUP)
def heartbeat(group: GroupName, member_id: MemberId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Stay a member, and learn the assignment of now. 404 if the session is over: join again.

    If the generation differs from the one you know, stop reading queues that are no longer yours, and begin the
    others at their committed offsets.
    """
    _check_member(caller, engine, group, member_id)
    return JSONResponse(_membership(engine.groups.heartbeat(group, member_id)))


@router.delete(
    "/{group}/members/{member_id}", operation_id="leave_group", response_model=MemberGoneOut, responses=may_answer(507)
)
@traits(lane=LaneChoice.READ, store=GROUP)
def leave(group: GroupName, member_id: MemberId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Give the queues to the other members at once instead of after the session's time. Repeatable."""
    _check_member(caller, engine, group, member_id)
    engine.groups.leave(group, member_id)
    return JSONResponse({"group": group, "member_id": member_id, "left": True})


@router.get("/{group}/offsets", operation_id="get_offsets", response_model=OffsetsOut, responses=may_answer(404))
@traits(lane=LaneChoice.READ, store=GROUP)
def committed(group: GroupName, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """The committed offsets: of each queue the next message to consume. Only of topics that the caller may read."""
    _check_shown(caller, engine, group)
    return JSONResponse(_offsets(group, engine.groups.committed(group), caller))


@router.put(
    "/{group}/offsets",
    operation_id="commit_offsets",
    response_model=OffsetsOut,
    responses=may_answer(404, 409, 507),
)
@traits(lane=LaneChoice.READ, store=NEW_GROUP)
def commit(
    group: GroupName,
    wanted: Annotated[OffsetsIn, sent(OffsetsIn, to_some(Scope.READ))],
    caller: TheCaller,
    engine: TheEngine,
) -> JSONResponse:
    """Commit offsets, durable when answered; the answer has all offsets of the group.

    409 for a generation that has passed, for a queue assigned to another member, and without a member while there
    are live ones; 404 for a member whose session is over; 400 for an offset beyond the end of its queue, or below the
    committed one without ``reset``; 503 if only a store that does not answer knows where a queue ends.
    """
    for one in wanted.offsets:
        caller.check(Scope.READ, one.topic)
    own = engine.store_id
    offsets = {
        (one.topic, own if one.store_id is None else one.store_id, one.queue_id): one.offset for one in wanted.offsets
    }
    if len(offsets) < len(wanted.offsets):
        raise InvalidRequestError("a queue is named twice")
    engine.groups.commit(group, offsets, member_id=wanted.member_id, generation=wanted.generation, reset=wanted.reset)
    return JSONResponse(_offsets(group, engine.groups.committed(group), caller))


def _check_shown(caller: Caller, engine: Store, group: str) -> None:
    """Answers as if a group were not there if the caller may read none of its topics."""
    caller.check(Scope.READ)
    topics = engine.groups.topics(group)
    if topics and not any(caller.may(Scope.READ, topic) for topic in topics):
        raise NotFoundError(f"no such group {group!r}")


def _check_member(caller: Caller, engine: Store, group: str, member_id: str) -> None:
    """Checks the right to all topics of a member; one that is not there has none."""
    caller.check(Scope.READ)
    _check_all(caller, engine.groups.topics(group, member_id))


def _check_all(caller: Caller, topics: Collection[str]) -> None:
    """Checks the right to all topics, and names none that the caller may not know."""
    if not all(caller.may(Scope.READ, topic) for topic in topics):
        raise ForbiddenError(f"{caller.name!r} has no right to read every topic of this", hint=ASK)


def _is_unknown(queue: QueueProgress) -> bool:
    """Whether nobody can say how many messages a queue still has; of one that is gone it is none."""
    return queue.lag is None and queue.max_offset is not None


def _queues(queues: list[Queue], caller: Caller = ANYBODY) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "store_id": store_id, "queue_id": queue_id}
        for topic, store_id, queue_id in queues
        if caller.may(Scope.READ, topic)
    ]


def _membership(found: Membership) -> dict[str, Any]:
    return {**asdict(found), "assignment": _queues(found.assignment)}


def _offsets(group: str, state: GroupState, caller: Caller) -> dict[str, Any]:
    offsets = [
        {"topic": topic, "store_id": store_id, "queue_id": queue_id, "offset": offset}
        for (topic, store_id, queue_id), offset in sorted(state.offsets.items())
        if caller.may(Scope.READ, topic)
    ]
    return {"group": group, "generation": state.generation, "offsets": offsets}
