"""Consumer groups against a plain model: joins, beats, silences, commits, power cuts, growing topics, other stores
that are added, go down and come back, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.service.given_queues import GivenQueues
from tests.support.stores.hot_stores import ROOT
from tierlog.service.engine.groups import ConsumerGroups, Membership
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ConflictError,
    InvalidRequestError,
    MemberNotFoundError,
    StaleGenerationError,
    StoreError,
    UnavailableError,
)
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.hot.consumer_groups import GroupOffsets, Queue
from tierlog.tiering.hot.topics import TopicRegistry

PATHS = StorePaths(ROOT)
SESSION_MS = 10_000
END = 50
TOPICS = ("a", "b")
OWN, OTHERS = "m", ("c", "x")


def outcome(step: Callable[[], object]) -> type[Exception] | None:
    """The class of what a step raised."""
    try:
        step()
    except StoreError as error:
        return type(error)
    return None


class Groups(RuleBasedStateMachine):
    """One group over two topics. ``told`` is the last membership each live member was told, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = CrashFileSystem()
        for folder in (PATHS.tmp, PATHS.tierlog):
            self.fs.make_dirs(folder)
        self.clock = ManualClock()
        self.randomness = SeededRandomness(1)
        self.others = GivenQueues(END)
        self.open()
        for name in TOPICS:
            self.topics.create(name, 3)
        self.told: dict[str, Membership] = {}
        self.gone: list[Membership] = []
        self.seen_ms: dict[str, int] = {}
        self.committed: dict[Queue, int] = {}
        self.generation = 0

    def open(self) -> None:
        self.topics = TopicRegistry(self.fs, PATHS, 8)
        offsets = GroupOffsets(self.fs, PATHS, OWN, lambda: None)
        self.groups = ConsumerGroups(
            OWN,
            offsets=offsets,
            topics=self.topics,
            offset_range=lambda *_: (0, END),
            offset_since=lambda *_: 0,
            clock=self.clock,
            randomness=self.randomness,
        )
        self.others.forget()  # what they told is in memory only
        self.groups.elsewhere = self.others

    def live(self) -> dict[str, Membership]:
        now = self.clock.now_ms()
        for member_id in [key for key, seen in self.seen_ms.items() if now - seen >= SESSION_MS]:
            self.forget(member_id)
        return self.told

    def forget(self, member_id: str) -> None:
        self.gone.append(self.told.pop(member_id))
        del self.seen_ms[member_id]

    def tell(self, told: Membership) -> None:
        assert told.generation >= self.generation, "a generation never comes back"
        self.generation = told.generation
        self.told[told.member_id] = told
        self.seen_ms[told.member_id] = self.clock.now_ms()

    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def join(self, topics: set[str]) -> None:
        self.live()
        told = self.groups.join("g", topics, SESSION_MS)
        assert told.generation > self.generation
        self.tell(told)

    @precondition(lambda self: self.told)
    @rule(place=st.integers(0, 9))
    def beat(self, place: int) -> None:
        members = sorted(self.told)
        member_id = members[place % len(members)]
        if member_id in self.live():
            self.tell(self.groups.heartbeat("g", member_id))

    @precondition(lambda self: self.told)
    @rule(place=st.integers(0, 9))
    def leave(self, place: int) -> None:
        member_id = sorted(self.told)[place % len(self.told)]
        self.groups.leave("g", member_id)
        self.live()
        if member_id in self.told:
            self.forget(member_id)

    @rule(ms=st.sampled_from((1, 4_000, SESSION_MS)))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(topic=st.sampled_from(TOPICS))
    def grow(self, topic: str) -> None:
        found = self.topics.get(topic)
        self.topics.ensure_queues(found, min(8, found.queues + 1))

    @rule(store=st.sampled_from(OTHERS), topic=st.sampled_from(TOPICS), queues=st.integers(0, 4))
    def change_elsewhere(self, store: str, topic: str, queues: int) -> None:
        self.others.there.setdefault(store, {})[topic] = queues

    @rule(store=st.sampled_from(OTHERS))
    def go_down_or_up(self, store: str) -> None:
        self.others.down ^= {store}

    @precondition(lambda self: self.told or self.gone)
    @rule(place=st.integers(0, 30), queue=st.integers(0, 9), offset=st.integers(0, END + 1), reset=st.booleans())
    def commit(self, place: int, queue: int, offset: int, reset: bool) -> None:
        live = self.live()
        known = [*live.values(), *self.gone]
        told = known[place % len(known)]
        if not told.assignment:
            return
        key = told.assignment[queue % len(told.assignment)]
        current = self.groups.describe("g").generation
        expected: type[Exception] | None = None
        if told.member_id not in live:
            expected = MemberNotFoundError
        elif told.generation != current:
            expected = StaleGenerationError
        elif offset > END and key[1] in self.others.down:
            expected = UnavailableError
        elif offset > END or (offset < self.committed.get(key, 0) and not reset):
            expected = InvalidRequestError
        commit = partial(self.groups.commit, "g", {key: offset}, member_id=told.member_id, generation=told.generation)
        assert outcome(partial(commit, reset=reset)) is expected
        if expected is None:
            self.committed[key] = offset

    @rule(offset=st.integers(0, END))
    def commit_at_rest(self, offset: int) -> None:
        expected = ConflictError if self.live() else None
        assert outcome(partial(self.groups.commit, "g", {("a", OWN, 0): offset}, reset=True)) is expected
        if expected is None:
            self.committed["a", OWN, 0] = offset

    @rule(seed=st.integers(0, 1 << 20))
    def cut_the_power(self, seed: int) -> None:
        self.fs = self.fs.crash(seed)
        self.open()
        for member_id in list(self.told):
            self.forget(member_id)

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        stored = self.groups._offsets.all().get("g")
        assert (dict(stored.offsets) if stored else {}) == self.committed
        assert (stored.generation if stored else 0) >= self.generation

    @invariant()
    def every_queue_has_one_live_reader(self) -> None:
        if not self.live():
            return
        info = self.groups.describe("g")
        assert [member.member_id for member in info.members] == sorted(self.told)
        read = sorted(queue for member in info.members for queue in member.assignment)
        wanted = {topic for member in info.members for topic in member.topics}
        assert read == [
            (topic, store, queue)
            for topic in sorted(wanted)
            for store, queues in sorted({**self.others.counts(topic), OWN: self.topics.get(topic).queues}.items())
            for queue in range(queues)
        ]
        for member in info.members:
            told = self.told[member.member_id]
            if told.generation == info.generation:
                assert told.assignment == member.assignment, "one generation has one assignment"


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
