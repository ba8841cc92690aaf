"""Consumer groups: ``/v1/groups``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.api.deps import TheEngine
from service.api.group_schemas import GroupListOut, GroupOut, JoinIn, MembershipOut, OffsetsIn, OffsetsOut
from service.groups import Membership
from tiering.errors import InvalidRequestError
from tiering.group_offsets import GroupState, Queue

router = APIRouter(prefix="/v1/groups", tags=["groups"])


@router.get("", response_model=GroupListOut)
def groups(engine: TheEngine) -> JSONResponse:
    """Every group in numbers."""
    return JSONResponse({"groups": [asdict(summary) for summary in engine.groups.all()]})


@router.get("/{group}", response_model=GroupOut)
def group(group: str, engine: TheEngine) -> JSONResponse:
    """One group: its live members, what is assigned to each, what is committed and how far it is behind."""
    info = engine.groups.describe(group)
    members = [{**asdict(member), "assignment": _queues(member.assignment)} for member in info.members]
    return JSONResponse(
        {
            "group": info.name,
            "generation": info.generation,
            "members": members,
            "queues": [asdict(queue) for queue in info.queues],
            "lag": sum(queue.lag or 0 for queue in info.queues),
        }
    )


@router.delete("/{group}")
def remove(group: str, engine: TheEngine) -> JSONResponse:
    """Forget a group and its offsets; 409 while it has a live member."""
    engine.groups.remove(group)
    return JSONResponse({"group": group, "removed": True})


@router.post("/{group}/members", response_model=MembershipOut)
def join(group: str, wanted: JoinIn, engine: TheEngine) -> JSONResponse:
    """Become a member. Every member's share of the queues changes: the others learn it by their next heartbeat.

    A group is made by its first member. Without a committed offset, begin where you want: at the queue's
    ``min_offset``, at its ``max_offset``, or at an offset by time.
    """
    return JSONResponse(_membership(engine.groups.join(group, wanted.topics, wanted.session_timeout_ms)))


@router.put("/{group}/members/{member_id}", response_model=MembershipOut)
def heartbeat(group: str, member_id: str, engine: TheEngine) -> JSONResponse:
    """Stay a member, and learn the assignment of now. 404 if the session is over: join again.

    If the generation differs from the one you know, stop reading queues that are no longer yours, and begin the
    others at their committed offsets.
    """
    return JSONResponse(_membership(engine.groups.heartbeat(group, member_id)))


@router.delete("/{group}/members/{member_id}")
def leave(group: str, member_id: str, engine: TheEngine) -> JSONResponse:
    """Give the queues to the other members at once instead of after the session's time. Repeatable."""
    engine.groups.leave(group, member_id)
    return JSONResponse({"group": group, "member_id": member_id, "left": True})


@router.get("/{group}/offsets", response_model=OffsetsOut)
def committed(group: str, engine: TheEngine) -> JSONResponse:
    """The committed offsets: of each queue the next message to consume."""
    return JSONResponse(_offsets(group, engine.groups.committed(group)))


@router.put("/{group}/offsets", response_model=OffsetsOut)
def commit(group: str, wanted: OffsetsIn, engine: TheEngine) -> JSONResponse:
    """Commit offsets, durable when answered; the answer has all offsets of the group.

    409 for a generation that has passed, for a queue assigned to another member, and without a member while there
    are live ones; 404 for a member whose session is over; 400 for an offset beyond the end of its queue, or below the
    committed one without ``reset``.
    """
    offsets = {(one.topic, one.queue_id): one.offset for one in wanted.offsets}
    if len(offsets) < len(wanted.offsets):
        raise InvalidRequestError("a queue is named twice")
    engine.groups.commit(group, offsets, member_id=wanted.member_id, generation=wanted.generation, reset=wanted.reset)
    return JSONResponse(_offsets(group, engine.groups.committed(group)))


def _queues(queues: list[Queue]) -> list[dict[str, Any]]:
    return [{"topic": topic, "queue_id": queue_id} for topic, queue_id in queues]


def _membership(found: Membership) -> dict[str, Any]:
    return {**asdict(found), "assignment": _queues(found.assignment)}


def _offsets(group: str, state: GroupState) -> dict[str, Any]:
    offsets = [
        {"topic": topic, "queue_id": queue_id, "offset": offset}
        for (topic, queue_id), offset in sorted(state.offsets.items())
    ]
    return {"group": group, "generation": state.generation, "offsets": offsets}
