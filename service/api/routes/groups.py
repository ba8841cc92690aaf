"""Consumer groups: the calls below ``/v1/groups``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from tierlog.service.access.caller import ASK, Caller, Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheCaller, TheEngine
from tierlog.service.api.json_bodies import sent, to_some
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.parameters import (
    MAX_OFFSET,
    TIMES,
    GroupName,
    MemberId,
    StoreIdText,
    StrictModel,
    Time,
    Topic,
    Whole,
    absent,
)
from tierlog.service.cluster.routing import GROUP, NEW_GROUP, ONE_STORE
from tierlog.service.config.suggestions import did_you_mean
from tierlog.service.engine.groups import (
    DEFAULT_SESSION_MS,
    MAX_SESSION_MS,
    MAX_TOPICS,
    MIN_SESSION_MS,
    Membership,
    ResetQueues,
    ResetTo,
)
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import group_json, queue_ref_json
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError, NotFoundError
from tierlog.tiering.hot.consumer_groups import GroupState
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
    missing_topics: list[str] = absent("topics it named that do not exist: they are read once they do")
    hint: str = absent("to a join: which topic may be meant instead of a missing one")


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
    store_id: str = Field(description="its home, which keeps its offsets")
    topics: list[str]
    lag: int | None = Field(description="messages still to consume; null: that of one queue is not known")


def _one_place(schema: dict[str, Any]) -> None:
    """Checks what single fields do not say; null is as good as absent."""
    kinds = {"to": {"type": "string"}, "time": {"type": ["integer", "string"]}, "offset": {"type": "integer"}}
    schema["oneOf"] = [{"required": [name], "properties": {name: kind}} for name, kind in kinds.items()]
    schema["examples"] = [{"to": "first"}, {"time": "2h", "topic": "orders", "dry_run": True}]


class ResetIn(StrictModel):
    """Where a group goes on, exactly one of ``to``, ``time`` and ``offset``, and in which queues, all unless said."""

    model_config = ConfigDict(json_schema_extra=_one_place)

    to: Literal["first", "latest"] | None = Field(
        default=None, description="the first message there is, or behind the last one"
    )
    time: Time | None = Field(default=None, description=f"the first message stored at or after it; {TIMES}")
    offset: Annotated[Whole, Field(ge=0, le=MAX_OFFSET)] | None = Field(
        default=None, description="the next message to consume; not beyond the end of any queue that is meant"
    )
    topic: Topic | None = Field(default=None, description="only queues of this topic")
    store_id: StoreIdText | None = Field(default=None, description="only queues of this store")
    queue_id: Annotated[Whole, Field(ge=0, le=MAX_QUEUES - 1)] | None = Field(
        default=None, description="only this queue of each topic"
    )
    dry_run: bool = Field(default=False, description="only say what would change")

    @model_validator(mode="after")
    def _is_one_place(self) -> ResetIn:
        if sum(place is not None for place in (self.to, self.time, self.offset)) != 1:
            raise ValueError("give exactly one of to, time and offset")
        return self


class OffsetChangeOut(BaseModel):
    """One queue of a reset."""

    topic: str
    store_id: str
    queue_id: int
    offset: int | None = Field(description="before; null: nothing was committed")
    new_offset: int


class ResetOut(BaseModel):
    """What a reset changed, or would change."""

    group: str
    changed: bool = Field(description="false: a dry run")
    queues: list[OffsetChangeOut]


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
    may_read = partial(caller.may, Scope.READ)
    members = [
        replace(member, topics=topics, assignment=[queue for queue in member.assignment if may_read(queue[0])])
        for member in info.members
        if (topics := [topic for topic in member.topics if may_read(topic)])
    ]
    queues = [queue for queue in info.queues if may_read(queue.topic)]
    down = sorted({queue.store_id for queue in queues} & set(info.stores_down))
    return JSONResponse(group_json(replace(info, members=members, queues=queues, stores_down=down)))


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

    A group is made by its first member. A topic may come later; `missing_topics` says which do not exist yet. Without a
    committed offset, begin where you want: at the queue's ``min_offset``, at its ``max_offset``, or at an offset by
    time.
    """
    for topic in wanted.topics:
        caller.check(Scope.READ, topic)
    found = engine.groups.join(group, wanted.topics, wanted.session_timeout_ms)
    return JSONResponse(_membership(found) | _meant_instead(found.missing_topics, caller, engine))


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


@router.post("/{group}/reset", operation_id="reset_group", response_model=ResetOut, responses=may_answer(404, 409, 507))
@traits(lane=LaneChoice.READ, store=GROUP)
def reset(
    group: GroupName,
    wanted: Annotated[ResetIn, sent(ResetIn, to_some(Scope.READ))],
    caller: TheCaller,
    engine: TheEngine,
) -> JSONResponse:
    """Move a group without members to a time, an offset, or an end of its queues; all of it or nothing, durable.

    All queues of the group's topics are moved, also those without an offset. 409 while the group has a live member, 403
    if it is about topics one may not read, 400 for an offset beyond the end of a queue, 503 if a store with some of the
    queues does not answer. Repeatable: with a time that is not relative, it has the same outcome.
    """
    _check_shown(caller, engine, group)
    if wanted.topic is not None:
        caller.check(Scope.READ, wanted.topic)
    else:
        _check_all(caller, engine.groups.topics(group))
    to = ResetTo(wanted.to, wanted.time, wanted.offset)
    queues = ResetQueues(wanted.topic, wanted.store_id, wanted.queue_id)
    changes = engine.groups.reset(group, to, queues, dry_run=wanted.dry_run)
    found = {"group": group, "changed": not wanted.dry_run, "queues": [asdict(change) for change in changes]}
    return JSONResponse(found)


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


def _membership(found: Membership) -> dict[str, Any]:
    answer = {**asdict(found), "assignment": [queue_ref_json(queue) for queue in found.assignment]}
    if not found.missing_topics:
        del answer["missing_topics"]
    return answer


def _meant_instead(missing: list[str], caller: Caller, engine: Store) -> dict[str, str]:
    """Returns the hint for who mistyped a topic, of topics that the caller may read."""
    names = [one.name for one in engine.topics(partial(caller.may, Scope.READ))] if missing else []
    hints = [f"{topic!r}: {hint}" for topic in missing if (hint := did_you_mean(topic, names)) is not None]
    return {"hint": "; ".join(hints)} if hints else {}


def _offsets(group: str, state: GroupState, caller: Caller) -> dict[str, Any]:
    offsets = [
        {**queue_ref_json(queue), "offset": offset}
        for queue, offset in sorted(state.offsets.items())
        if caller.may(Scope.READ, queue[0])
    ]
    return {"group": group, "generation": state.generation, "offsets": offsets}
