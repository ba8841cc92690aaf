"""What consumer groups tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from tiering.group_offsets import Queue


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member is told: it may read and commit ``assignment`` as long as ``generation`` lasts."""

    group: str
    member_id: str
    generation: int
    session_timeout_ms: int
    assignment: list[Queue]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One live member."""

    member_id: str
    topics: list[str]
    session_timeout_ms: int
    idle_ms: int
    assignment: list[Queue]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue of a group: ``offset`` None before the first commit; ``lag`` counts messages still to consume.

    The last three are None if the store has no such queue any more, or does not answer.
    """

    topic: str
    store_id: str
    queue_id: int
    offset: int | None
    min_offset: int | None
    max_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in numbers: its live members, and the queues with a committed offset."""

    group: str
    generation: int
    members: int
    queues: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group with its live members, and every queue that has an offset or is read by a member.

    ``stores_down`` do not answer: how far their queues go is not known.
    """

    name: str
    generation: int
    members: list[MemberInfo]
    queues: list[QueueProgress]
    stores_down: list[str]
