"""Consumer groups: who is a member, which queues each reads, and what the group has committed.

Members live in memory and prove that they are alive by heartbeats; after a restart they join again. Generations and
offsets are durable (``tiering.hot.consumer_groups``). Every change of membership, and of a topic's queue count, begins
a new generation before anybody is told its assignment, and a commit for another generation is refused: two members
never commit for one queue at a time.

A group reads the queues of a topic in every store of the cluster; how many there are elsewhere is what those stores
told last (:class:`RemoteQueues`; :class:`NoOtherStores` where a store is alone). They are asked before the lock is
taken, and never under it. Which member reads which queue is RocketMQ's average allocation (:func:`allocate`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from tierlog.service.access.caller import every_topic
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ConflictError,
    DiskFailedError,
    DiskFullError,
    InvalidRequestError,
    MemberNotFoundError,
    NotFoundError,
    OutOfResourcesError,
    ReadOnlyError,
    StaleGenerationError,
    UnavailableError,
)
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import count_present
from tierlog.tiering.hot.consumer_groups import GroupOffsets, GroupPosition, GroupState, Queue, named, validate_group
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.message.batch import validate_topic

MAX_MEMBERS = 1_000
MAX_TOPICS = 100
DEFAULT_SESSION_MS = 30_000
MIN_SESSION_MS = 1_000
MAX_SESSION_MS = 600_000
#: Maximum age of known queue counts of other stores when a group is shown.
_LOOK_MS = 1_000

#: Queues about which the archive may be asked for one look at the lags of all groups.
_MOST_QUESTIONS = 4


class Questions:
    """What one look at the lags of all groups may still ask of the archive: a few queues, however many are behind."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._left = _MOST_QUESTIONS
        #: Questions that were refused.
        self.refused = 0

    def may_ask(self) -> bool:
        """Takes one question; False if none is left."""
        if self._left == 0:
            self.refused += 1
            return False
        self._left -= 1
        return True


def _always() -> bool:
    return True


# Queues of other stores.


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The ends of a queue of another store. ``gaps`` are ranges ``[first, next)`` that no message will ever have.

    None while the archive, which knows them, does not answer that store.
    """

    min_offset: int
    max_offset: int
    gaps: tuple[tuple[int, int], ...] | None = ()

    def lag(self, offset: int | None) -> int | None:
        """Counts the messages still to consume from ``offset`` on; from the beginning for None. None: not known."""
        return count_present(max(self.min_offset, offset or 0), self.max_offset, self.gaps)


class RemoteQueues(Protocol):
    """The queues of other stores, as those told last. Thread safe. Only what says so waits for a network."""

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        """Asks every other store for its queues of these topics, where what is known is older than ``age_ms``.

        None: as old as the cluster's settings allow. Waits, for a bounded time, unless told otherwise; never raises.
        """
        ...

    def counts(self, topic: str) -> Mapping[str, int]:
        """Returns the queue counts last reported by each other store; a store that is down keeps its counts."""
        ...

    def last_known(self, queue: Queue) -> QueueEnds:
        """Returns the ends of a queue that were told last.

        :class:`UnavailableError` while its store does not answer, :class:`TopicNotFoundError` if it has no such queue,
        :class:`NotFoundError` for a store that is not in the cluster.
        """
        ...

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns the end of each queue. Asks, once and for a bounded time, where an offset is beyond the known end.

        Raises as :meth:`last_known`, but a store that is down is none while what it told before suffices.
        """
        ...

    def offset_since(self, queue: Queue, time_ms: int) -> int:
        """Asks the queue's store for the offset of its first message stored at or after a time, its end without one.

        Raises as :meth:`last_known`.
        """
        ...


class NoOtherStores:
    """The queues of other stores where there are none."""

    def refresh(self, topics: Collection[str], *, age_ms: int | None = None, wait: bool = True) -> None:
        """Does nothing: nobody has to be asked."""

    def counts(self, topic: str) -> Mapping[str, int]:
        """Returns nothing: there are no queues elsewhere."""
        return {}

    def last_known(self, queue: Queue) -> QueueEnds:
        """Raises :class:`NotFoundError`."""
        raise no_such_store(queue[1])

    def ends(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """Raises :class:`NotFoundError` for any queue."""
        return {queue: self.last_known(queue).max_offset for queue in offsets}

    def offset_since(self, queue: Queue, time_ms: int) -> int:
        """Raises :class:`NotFoundError`."""
        raise no_such_store(queue[1])


def no_such_store(store_id: str) -> NotFoundError:
    """Returns the error for a store that is not in the cluster."""
    return NotFoundError(f"no such store {store_id[:100]!r}", hint="leave store_id out for the store that answers")


# Answers about groups.


@dataclass(frozen=True, slots=True)
class Membership:
    """The answer to a member: it may read and commit ``assignment`` as long as ``generation`` lasts.

    ``missing_topics`` are those it named that no store has yet: they are read once they exist.
    """

    group: str
    member_id: str
    generation: int
    session_timeout_ms: int
    assignment: list[Queue]
    missing_topics: list[str]


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

    The last three are None if the store has no such queue any more, or does not answer. ``lag`` alone is None while
    the archive does not tell which offsets a restore left out.
    """

    topic: str
    store_id: str
    queue_id: int
    offset: int | None
    min_offset: int | None
    max_offset: int | None
    lag: int | None

    @property
    def is_uncounted(self) -> bool:
        """Whether nobody can say how many messages are still to consume; of a queue that is gone there are none."""
        return self.lag is None and self.max_offset is not None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in numbers: its live members, and the queues with a committed offset.

    ``store_id`` keeps it. ``lag`` is that of all its queues, None while that of one is not known.
    """

    group: str
    generation: int
    members: int
    queues: int
    store_id: str
    topics: list[str]
    lag: int | None


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


class ResetTo(NamedTuple):
    """Where a group goes on after a reset; one of the three."""

    place: Literal["first", "latest"] | None = None
    #: The first message stored at or after a time, the end of the queue if there is none.
    time_ms: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ResetQueues:
    """The queues of a reset: those of all topics of the group, or of one, or of one store, or one queue."""

    topic: str | None = None
    store_id: str | None = None
    queue_id: int | None = None

    def match(self, queue: Queue) -> bool:
        """Whether a queue of one of the topics is meant."""
        return self.store_id in (None, queue[1]) and self.queue_id in (None, queue[2])


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does to one queue; ``offset`` is the one before, None if nothing was committed."""

    topic: str
    store_id: str
    queue_id: int
    offset: int | None
    new_offset: int


def allocate(
    queue_counts: Mapping[str, Mapping[str, int]], subscriptions: Mapping[str, Collection[str]]
) -> dict[str, list[Queue]]:
    """Returns the queues of each member, ascending, by RocketMQ's average allocation (AllocateMessageQueueAveragely).

    ``queue_counts`` has the queues of each topic in each store, ``subscriptions`` the topics of each member. Topic by
    topic the members that named it, sorted, get consecutive queues of those of all stores, sorted by store, as many as
    the others or one more, the first ones the more. A function of its arguments as sets: whoever computes it gets the
    same.
    """
    found: dict[str, list[Queue]] = {member: [] for member in subscriptions}
    for topic in sorted(queue_counts):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        stores = sorted(queue_counts[topic].items())
        queues = [(topic, store_id, queue_id) for store_id, count in stores for queue_id in range(count)]
        at = iter(queues)
        for place, member in enumerate(members):
            share, rest = divmod(len(queues), len(members))
            found[member] += islice(at, share + (place < rest))
    return found


# The groups themselves.


@dataclass(frozen=True, slots=True)
class _Member:
    topics: tuple[str, ...]
    session_ms: int
    seen_ms: int

    def is_live(self, now_ms: int) -> bool:
        return now_ms - self.seen_ms < self.session_ms


class _Members:
    """The members of one group since its generation began."""

    def __init__(self) -> None:
        self.by_id: dict[str, _Member] = {}
        self.queue_counts: dict[str, dict[str, int]] = {}
        self.assignment: dict[str, list[Queue]] = {}


class ConsumerGroups:
    """The groups of one store. Thread safe; a session ends at the first call that comes after its time."""

    def __init__(
        self,
        store_id: str,
        *,
        offsets: GroupOffsets,
        topics: TopicRegistry,
        offset_range: Callable[[str, int], tuple[int, int]],
        clock: Clock,
        randomness: Randomness,
        offset_since: Callable[[str, int, int], int],
        lag: Callable[[str, int, int, Callable[[], bool]], int | None] | None = None,
        flush: Callable[[], object] = lambda: None,
        forget: Callable[[str, Collection[tuple[str, int]]], object] = lambda name, queues: None,
    ) -> None:
        """``offset_range`` is (least, next) offset of an own queue, or :class:`TopicNotFoundError`.

        ``offset_since`` is the offset of an own queue's first message stored at or after a time in ms, or its end.
        ``lag`` counts the messages of an own queue from an offset on; None if that is not known. Its last argument says
        whether the archive may be asked. Unless given, every offset of the range has its message.
        ``flush`` makes durable what a member may have read. ``forget`` takes back what is noted of a group's deliveries
        in own queues, by topic and number.
        """
        self._store_id = store_id
        #: Queues of other stores; set before the first request by whoever knows the cluster.
        self.elsewhere: RemoteQueues = NoOtherStores()
        #: Decides for all stores that a new group is kept here, or raises; set before the first request.
        self.claim: Callable[[str], object] = lambda name: None
        self._offsets = offsets
        self._topics = topics
        self._offset_range = offset_range
        self._offset_since = offset_since
        self._lag = lag or self._plain_lag
        self._flush = flush
        self._forget = forget
        self._clock = clock
        self._randomness = randomness
        self._lock = threading.Lock()
        self._groups: dict[str, _Members] = {}

    # members

    def join(self, name: str, topics: Collection[str], session_timeout_ms: int = DEFAULT_SESSION_MS) -> Membership:
        """Makes a new member, which begins a generation. A topic that does not exist yet has no queues."""
        validate_group(name)
        wanted = tuple(sorted({validate_topic(topic) for topic in topics}))
        if not 1 <= len(wanted) <= MAX_TOPICS:
            raise InvalidRequestError(f"a member reads 1 to {MAX_TOPICS} topics, not {len(wanted)}")
        if not MIN_SESSION_MS <= session_timeout_ms <= MAX_SESSION_MS:
            raise InvalidRequestError(f"a session lasts {MIN_SESSION_MS} to {MAX_SESSION_MS} ms")
        self._claim_new(name)
        self.elsewhere.refresh(self._read_by(name) | set(wanted))
        with self._lock:
            group = self._groups.get(name) or _Members()
            members = self._live(group)
            if len(members) >= MAX_MEMBERS:
                raise ConflictError(f"group {name!r} has {MAX_MEMBERS} members already")
            member_id = self._randomness.token_hex(8)
            members[member_id] = _Member(wanted, session_timeout_ms, self._now_ms())
            self._adopt(name, group, members)
            self._groups[name] = group
            return self._membership(name, group, member_id)

    def heartbeat(self, name: str, member_id: str) -> Membership:
        """Keeps a member alive and says what it reads now; :class:`MemberNotFoundError` if its session is over."""
        self.elsewhere.refresh(self._read_by(name))
        with self._lock:
            group = self._settled(name)
            self._check_member(name, group, member_id)
            group.by_id[member_id] = replace(group.by_id[member_id], seen_ms=self._now_ms())
            return self._membership(name, group, member_id)

    def leave(self, name: str, member_id: str) -> None:
        """Ends a member, which begins a generation; one that is gone already is no error."""
        with self._lock:
            group = self._settled(name)
            self._adopt(name, group, {key: member for key, member in group.by_id.items() if key != member_id})

    # offsets

    def commit(
        self,
        name: str,
        offsets: Mapping[Queue, int],
        *,
        member_id: str | None = None,
        generation: int | None = None,
        reset: bool = False,
    ) -> None:
        """Commits, durably and all or nothing, the next offset to consume of each queue.

        A member says which one it is and its generation, and commits for queues assigned to it; without both, the
        group must have no live member. Raises :class:`MemberNotFoundError`, :class:`StaleGenerationError` or
        :class:`ConflictError` for whoever may not, :class:`InvalidRequestError` for an offset beyond the end of the
        queue, or below the committed one without ``reset``, :class:`UnavailableError` if only a store that does not
        answer knows where the queue ends.
        """
        validate_group(name)
        if (member_id is None) != (generation is None):
            raise InvalidRequestError("give both member_id and generation, or neither")
        # who commits may do so
        with self._lock:
            group = self._settled(name)
            current = self._generation(name)
            if member_id is None:
                self._check_idle(name, group, hint="commit as one of them, or when they have left")
            else:
                self._check_member(name, group, member_id)
                if generation != current:
                    raise StaleGenerationError(f"group {name!r} is at generation {current}, not {generation}")
                foreign = sorted(set(offsets) - set(group.assignment[member_id]))
                if foreign:
                    raise ConflictError(f"{self._named(foreign[0])} is not assigned to member {member_id}")
        # the offsets exist, so the commit may become durable
        self._check_ends(offsets)
        self._claim_new(name)
        self._flush()  # after a crash an offset must not lie beyond its queue, where other messages come
        if reset:  # all from there on is consumed again, what was acknowledged too
            self._forget(name, [(topic, number) for topic, store_id, number in offsets if store_id == self._store_id])
        # checked again under the lock of the write: a member that joins meanwhile makes this one stale
        self._offsets.commit(name, offsets, generation=current, reset=reset)

    def copy(
        self,
        groups: Mapping[str, Mapping[tuple[str, int], int]],
        delay_offsets: Mapping[int, int] = MappingProxyType({}),
        *,
        made_again: Callable[[str], bool] = lambda topic: False,
    ) -> dict[str, InvalidRequestError | ConflictError]:
        """Sets groups of a broker that is followed to where they are there, making those that are new.

        An offset may lie beyond its queue here, until the messages before it have come. One that the broker has no more
        is forgotten if its topic was ``made_again``: it was one of the generation before. ``delay_offsets`` are those
        of the broker, for each level of delay. It is one durable write, and none where nothing changes: *killed before
        it*, all is as it was copied before; *after it*, as it is at the broker. Returns the groups that cannot be kept
        here, and why.
        """
        return self._offsets.copy(
            {
                name: {(topic, self._store_id, queue_id): offset for (topic, queue_id), offset in offsets.items()}
                for name, offsets in groups.items()
            },
            delay_offsets,
            made_again=made_again,
        )

    @property
    def delay_offsets(self) -> Mapping[int, int]:
        """The next offset that the followed broker had to send on, of each level of delay, as copied last."""
        return self._offsets.delay_offsets

    def position(self, name: str, topic: str, queue_id: int) -> GroupPosition:
        """Returns where a group is in an own queue."""
        return self._offsets.position(name, (topic, self._store_id, queue_id))

    def advance(self, name: str, moves: Mapping[tuple[str, int], tuple[GroupPosition, int]]) -> None:
        """Commits how far deliveries of own queues have come, making the group if it is new.

        Members and generations do not matter: the deliveries of a queue are counted in one place. A queue in which the
        group is not any more where its move begins stays where it is.
        """
        self._claim_new(validate_group(name))
        self._flush()  # after a crash an offset must not lie beyond its queue, where other messages come
        self._offsets.advance(
            name, {(topic, self._store_id, queue_id): move for (topic, queue_id), move in moves.items()}
        )

    def reset(
        self, name: str, to: ResetTo, queues: ResetQueues | None = None, *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Moves a group that has no live member, durably and all or nothing; returns what changed, or would.

        All queues of the topics that it has offsets of are moved, or of the one that is named, also those without an
        offset, which would begin wherever their consumer likes. Raises :class:`ConflictError` while there are members,
        :class:`NotFoundError` for a group or topic that is not there, :class:`UnavailableError` if a store that has
        some of the queues does not answer, :class:`InvalidRequestError` for an offset that a queue does not have.
        Killed before the commit, nothing has changed; after it, all has.
        """
        queues = queues or ResetQueues()
        topics = self._reset_topics(name, queues)
        self.elsewhere.refresh(topics, age_ms=0)
        with self._lock:
            self._check_idle(name, self._settled(name), hint="stop its consumers first")
            counts = {topic: self._queues_of(topic) for topic in sorted(topics)}
        before = self._offsets.get(name).offsets
        there = {
            (topic, store_id, queue_id)
            for topic, stores in counts.items()
            for store_id, count in stores.items()
            for queue_id in range(count)
        }
        after: dict[Queue, int] = {}
        for queue in sorted(filter(queues.match, there | {queue for queue in before if queue[0] in topics})):
            try:
                after[queue] = self._reset_offset(queue, to)
            except NotFoundError:  # its topic was deleted, or its store has left the cluster
                if queue in there:
                    raise
        if not after:
            raise NotFoundError(f"group {name!r} has no such queue")
        if dry_run:
            self._check_ends(after)
        else:
            self.commit(name, after, reset=True)
        return [OffsetChange(*queue, before.get(queue), offset) for queue, offset in after.items()]

    def _reset_topics(self, name: str, queues: ResetQueues) -> set[str]:
        """Returns the topics to reset."""
        topics = {topic for topic, _, _ in self._offsets.get(validate_group(name)).offsets}
        if queues.topic is not None:
            return {queues.topic}  # also one that the group has not read yet
        if not topics:
            raise NotFoundError(f"group {name!r} has committed no offset", hint="name the topic to begin with")
        return topics

    def _reset_offset(self, queue: Queue, to: ResetTo) -> int:
        topic, store_id, queue_id = queue
        is_own = store_id == self._store_id
        if to.time_ms is not None:
            if is_own:
                return self._offset_since(topic, queue_id, to.time_ms)
            return self.elsewhere.offset_since(queue, to.time_ms)
        if is_own:
            least, end = self._offset_range(topic, queue_id)
        else:
            ends = self.elsewhere.last_known(queue)
            least, end = ends.min_offset, ends.max_offset
        if to.offset is not None:
            return to.offset
        return least if to.place == "first" else end

    def committed(self, name: str) -> GroupState:
        """Returns the durable state of a group; raises :class:`NotFoundError` for an unknown one."""
        return self._offsets.get(validate_group(name))

    def all_committed(self) -> dict[str, GroupState]:
        """Returns the durable state of every group, by name."""
        return self._offsets.all()

    def assigned(self, name: str) -> set[Queue]:
        """Returns the queues that the members of a group were given last."""
        with self._lock:
            group = self._groups.get(name) or _Members()
            return {queue for queues in group.assignment.values() for queue in queues}

    # what is there

    def all(self, shows: Callable[[str], bool] = every_topic) -> list[GroupSummary]:
        """Lists every group, by name; topics that ``shows`` denies do not count, nor groups that read no others.

        The archive is asked about a few queues a call; until all were asked about, the lag of a group is not known.
        """
        found, questions = [], Questions()
        names = sorted(self._offsets.all())
        self.elsewhere.refresh({topic for name in names for topic in self.topics(name)}, age_ms=_LOOK_MS)
        for name in names:
            with self._lock:
                group = self._looked_at(name)
                members = list(group.by_id.values())
                read = {queue for queues in group.assignment.values() for queue in queues}
                state = self._offsets.all().get(name)
            if state is None:
                continue
            seen = [member for member in members if any(map(shows, member.topics))]
            committed = {queue for queue in state.offsets if shows(queue[0])}
            if not (seen or committed) and (members or state.offsets):
                continue
            shown = committed | {queue for queue in read if shows(queue[0])}
            topics = {queue[0] for queue in shown} | {topic for each in seen for topic in each.topics if shows(topic)}
            down: set[str] = set()
            queues = [self._progress(queue, state.offsets.get(queue), down, questions) for queue in sorted(shown)]
            unknown = down or any(queue.is_uncounted for queue in queues)
            lag = None if unknown else sum(queue.lag or 0 for queue in queues)
            found.append(
                GroupSummary(
                    name, state.generation, len(seen), len(committed),
                    store_id=self._store_id, topics=sorted(topics), lag=lag,
                )
            )  # fmt: skip
        return found

    def topics(self, name: str, member_id: str | None = None) -> set[str]:
        """Returns the topics that a group has offsets of or members read, or those of one member; none for an unknown
        one."""
        validate_group(name)
        with self._lock:
            members = self._looked_at(name).by_id
            state = self._offsets.all().get(name)
        if member_id is not None:
            return set(members[member_id].topics) if member_id in members else set()
        read = {topic for member in members.values() for topic in member.topics}
        return read | {topic for topic, _, _ in (state.offsets if state else ())}

    def describe(self, name: str) -> GroupInfo:
        """Describes one group; :class:`NotFoundError` for an unknown one."""
        self._offsets.get(validate_group(name))
        self.elsewhere.refresh(self.topics(name), age_ms=_LOOK_MS)
        with self._lock:
            group = self._looked_at(name)
            now_ms = self._now_ms()
            members = [
                MemberInfo(
                    member_id, list(member.topics), member.session_ms, now_ms - member.seen_ms,
                    list(group.assignment[member_id]),
                )
                for member_id, member in sorted(group.by_id.items())
            ]  # fmt: skip
            state = self._offsets.get(name)
        read = {queue for member in members for queue in member.assignment}
        down: set[str] = set()
        queues = [self._progress(queue, state.offsets.get(queue), down) for queue in sorted(read | set(state.offsets))]
        return GroupInfo(name, state.generation, members, queues, sorted(down))

    def remove(self, name: str) -> None:
        """Forgets a group and its offsets; :class:`ConflictError` while it has a live member."""
        self._offsets.get(validate_group(name))
        with self._lock:
            self._check_idle(name, self._settled(name), hint="stop its consumers first")
            self._offsets.remove(name)
            self._groups.pop(name, None)

    def _check_idle(self, name: str, group: _Members, *, hint: str) -> None:
        if group.by_id:
            raise ConflictError(f"group {name!r} has {len(group.by_id)} live members", hint=hint)

    def _claim_new(self, name: str) -> None:
        """Claims a group that may and will be made next. Killed after it: the home of nothing yet."""
        if name not in self._offsets.all():
            self._offsets.check_room(name)
            self.claim(name)

    def _named(self, queue: Queue) -> str:
        return named(queue, self._store_id)

    def _check_ends(self, offsets: Mapping[Queue, int]) -> None:
        """Checks own queues before any other store is asked."""
        elsewhere = {queue: offset for queue, offset in offsets.items() if queue[1] != self._store_id}
        for queue, offset in offsets.items():
            if queue not in elsewhere:
                _, end = self._offset_range(queue[0], queue[2])
                self._check_end(queue, offset, end)
        ends = self.elsewhere.ends(elsewhere)
        for queue, offset in elsewhere.items():
            self._check_end(queue, offset, ends[queue])

    def _check_end(self, queue: Queue, offset: int, end: int) -> None:
        if not 0 <= offset <= end:
            raise InvalidRequestError(f"offset {offset} of {self._named(queue)} is not in [0, {end}]")

    def _progress(
        self, queue: Queue, offset: int | None, down: set[str], questions: Questions | None = None
    ) -> QueueProgress:
        """Describes one queue; ``down`` gets the queue's store if that does not answer.

        Without ``questions`` the archive may always be asked; what was refused is not known.
        """
        topic, store_id, queue_id = queue
        try:
            if store_id != self._store_id:
                ends = self.elsewhere.last_known(queue)
                return QueueProgress(*queue, offset, ends.min_offset, ends.max_offset, ends.lag(offset))
            first, end = self._offset_range(topic, queue_id)
        except UnavailableError:
            if store_id == self._store_id:
                raise
            down.add(store_id)
        except NotFoundError:
            pass
        else:
            refused = questions.refused if questions else 0
            lag = self._lag(topic, queue_id, offset or 0, questions.may_ask if questions else _always)
            is_known = questions is None or questions.refused == refused
            return QueueProgress(*queue, offset, first, end, lag if is_known else None)
        return QueueProgress(*queue, offset, None, None, None)

    def _plain_lag(self, topic: str, queue_id: int, offset: int, may_ask: Callable[[], bool]) -> int:
        first, end = self._offset_range(topic, queue_id)
        return max(0, end - max(first, offset))

    def _read_by(self, name: str) -> set[str]:
        with self._lock:
            group = self._groups.get(validate_group(name)) or _Members()
            return {topic for member in group.by_id.values() for topic in member.topics}

    # membership; all under the lock

    def _now_ms(self) -> int:
        """Returns the monotonic time in whole ms, so that a session ends at its ms and not at a rounding error."""
        return round(self._clock.monotonic_s() * 1000)

    def _live(self, group: _Members) -> dict[str, _Member]:
        now_ms = self._now_ms()
        return {member_id: member for member_id, member in group.by_id.items() if member.is_live(now_ms)}

    def _settled(self, name: str) -> _Members:
        """Returns the group's members without those whose session is over, at the generation that says so."""
        group = self._groups.get(name) or _Members()
        self._adopt(name, group, self._live(group))
        return group

    def _looked_at(self, name: str) -> _Members:
        """Returns the members without beginning a generation: where none can begin, those of the last one."""
        try:
            return self._settled(name)
        except (ReadOnlyError, DiskFullError, DiskFailedError, OutOfResourcesError):
            return self._groups.get(name) or _Members()

    def _adopt(self, name: str, group: _Members, members: dict[str, _Member]) -> None:
        counts = {topic: self._queues_of(topic) for member in members.values() for topic in member.topics}
        if members.keys() != group.by_id.keys() or counts != group.queue_counts:
            self._offsets.raise_generation(name)  # first: if it fails, nothing has changed
            group.by_id, group.queue_counts = members, counts
            group.assignment = allocate(counts, {key: member.topics for key, member in members.items()})

    def _queues_of(self, name: str) -> dict[str, int]:
        """Returns the queues of a topic in each store that has any."""
        topic = self._topics.find(name)
        own = {self._store_id: topic.queues} if topic else {}
        return {**self.elsewhere.counts(name), **own}

    def _generation(self, name: str) -> int:
        state = self._offsets.all().get(name)
        return state.generation if state else 0

    def _check_member(self, name: str, group: _Members, member_id: str) -> None:
        if member_id not in group.by_id:
            raise MemberNotFoundError(f"group {name!r} has no live member {member_id[:100]!r}", hint="join again")

    def _membership(self, name: str, group: _Members, member_id: str) -> Membership:
        member = group.by_id[member_id]
        missing = [topic for topic in member.topics if not group.queue_counts.get(topic)]
        return Membership(
            name, member_id, self._generation(name), member.session_ms, list(group.assignment[member_id]), missing
        )
