"""Consumer groups: ``/v1/groups``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.access.caller import ANYBODY, ASK, Caller, Scope
from service.api.contract import may_answer
from service.api.deps import TheCaller, TheEngine
from service.api.group_schemas import (
    GroupListOut,
    GroupOut,
    JoinIn,
    LeftOut,
    MembershipOut,
    OffsetsIn,
    OffsetsOut,
    RemovedOut,
)
from service.api.lane_route import LaneRoute
from service.api.parameters import GroupName, MemberId, any_store
from service.api.sent import sent, to_some
from service.engine import Engine
from service.group_shapes import Membership
from tiering.errors import ForbiddenError, InvalidRequestError, NotFoundError
from tiering.group_offsets import GroupState, Queue

router = APIRouter(route_class=LaneRoute, prefix="/v1/groups", tags=["groups"], dependencies=[any_store])


@router.get("", operation_id="list_groups", response_model=GroupListOut)
def groups(caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Every group of one store in numbers, as far as it is about topics that the caller may read.

    In a cluster, groups that are at home in other stores are in those stores' lists: `store_id` names one.
    """
    caller.check(Scope.READ)
    return JSONResponse({"groups": [asdict(summary) for summary in engine.groups.all(partial(caller.may, Scope.READ))]})


@router.get("/{group}", operation_id="get_group", response_model=GroupOut, responses=may_answer(404))
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
            "lag": None if down else sum(queue.lag or 0 for queue in queues),
            "stores_down": down,
        }
    )


@router.delete("/{group}", operation_id="delete_group", response_model=RemovedOut, responses=may_answer(404, 409, 507))
def remove(group: GroupName, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Forget a group and its offsets; 409 while it has a live member, 403 if it is about topics one may not read."""
    _check_shown(caller, engine, group)
    _check_all(caller, engine.groups.topics(group))
    engine.groups.remove(group)
    return JSONResponse({"group": group, "removed": True})


@router.post(
    "/{group}/members", operation_id="join_group", response_model=MembershipOut, responses=may_answer(409, 507)
)
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
def heartbeat(group: GroupName, member_id: MemberId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Stay a member, and learn the assignment of now. 404 if the session is over: join again.

    If the generation differs from the one you know, stop reading queues that are no longer yours, and begin the
    others at their committed offsets.
    """
    _check_member(caller, engine, group, member_id)
    return JSONResponse(_membership(engine.groups.heartbeat(group, member_id)))


@router.delete(
    "/{group}/members/{member_id}", operation_id="leave_group", response_model=LeftOut, responses=may_answer(507)
)
def leave(group: GroupName, member_id: MemberId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Give the queues to the other members at once instead of after the session's time. Repeatable."""
    _check_member(caller, engine, group, member_id)
    engine.groups.leave(group, member_id)
    return JSONResponse({"group": group, "member_id": member_id, "left": True})


@router.get("/{group}/offsets", operation_id="get_offsets", response_model=OffsetsOut, responses=may_answer(404))
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


def _check_shown(caller: Caller, engine: Engine, group: str) -> None:
    """As if it were not there, a group of topics none of which the caller may read."""
    caller.check(Scope.READ)
    topics = engine.groups.topics(group)
    if topics and not any(caller.may(Scope.READ, topic) for topic in topics):
        raise NotFoundError(f"no such group {group!r}")


def _check_member(caller: Caller, engine: Engine, group: str, member_id: str) -> None:
    """Of a member that is not there, nothing is known that could be denied."""
    caller.check(Scope.READ)
    _check_all(caller, engine.groups.topics(group, member_id))


def _check_all(caller: Caller, topics: Collection[str]) -> None:
    """Without naming a topic that the caller may not know."""
    if not all(caller.may(Scope.READ, topic) for topic in topics):
        raise ForbiddenError(f"{caller.name!r} has no right to read every topic of this", hint=ASK)


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
