"""What requests about consumer groups carry, and the shapes of their answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from service.api.parameters import MAX_OFFSET, Store, Topic, Whole
from service.groups import DEFAULT_SESSION_MS, MAX_SESSION_MS, MAX_TOPICS, MIN_SESSION_MS
from tiering.batch import MAX_QUEUES


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JoinIn(_Strict):
    """Who wants to read what; a topic that does not exist yet has no queues until it does."""

    topics: Annotated[list[Topic], FailFast()] = Field(min_length=1, max_length=MAX_TOPICS)
    session_timeout_ms: Whole = Field(
        default=DEFAULT_SESSION_MS,
        ge=MIN_SESSION_MS,
        le=MAX_SESSION_MS,
        description="ms without a heartbeat after which the member is gone; send one three times as often",
    )


class OffsetIn(_Strict):
    """The offset of the next message to consume, one more than that of the last one consumed."""

    topic: Topic
    store_id: Store | None = Field(
        default=None, description="whose queue it is, as in the assignment; left out: the store that keeps the group"
    )
    queue_id: Whole = Field(ge=0, le=MAX_QUEUES - 1)
    offset: Whole = Field(ge=0, le=MAX_OFFSET)


class OffsetsIn(_Strict):
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

    Null: nothing committed, no such queue any more, or its store does not answer.
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
    lag: int | None = Field(description="of all queues; null: a store that has some of them does not answer")
    stores_down: list[str] = Field(description="stores with queues of the group that do not answer")


class GroupSummaryOut(BaseModel):
    """A group in numbers: its live members, and the queues with a committed offset."""

    group: str
    generation: int
    members: int
    queues: int


class LeftOut(BaseModel):
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
