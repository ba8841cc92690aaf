"""Consumer groups over two topics, without a store around them."""

from __future__ import annotations

from service.cluster.elsewhere import Alone, QueuesElsewhere
from service.group_shapes import Membership
from service.groups import ConsumerGroups
from tests.support.crash_fs import CrashFileSystem
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.hot_stores import ROOT
from tiering.clock import ManualClock
from tiering.errors import TopicNotFoundError
from tiering.group_offsets import GroupOffsets, Queue
from tiering.hot.topics import TopicRegistry
from tiering.paths import StorePaths
from tiering.randomness import SeededRandomness

PATHS = StorePaths(ROOT)
END = 100
OWN = "store-a"


class GroupWorld:
    """Groups over two topics, of 5 and 2 queues with offsets [10, 100), whose process can be restarted."""

    def __init__(self) -> None:
        self.disk = CrashFileSystem()
        self.read_only_reason: str | None = None
        for folder in (PATHS.tmp, PATHS.tierlog):
            self.disk.make_dirs(folder)
        self.clock = ManualClock()
        self.elsewhere: QueuesElsewhere = Alone()
        self.restart()
        self.topics.create("orders", 5)
        self.topics.create("pays", 2)

    def restart(self) -> None:
        self.fs = FaultyFileSystem(self.disk)
        self.topics = TopicRegistry(self.fs, PATHS, 8)
        offsets = GroupOffsets(self.fs, PATHS, OWN, lambda: self.read_only_reason)
        self.groups = ConsumerGroups(
            OWN, offsets, self.topics, self.range_of, self.clock, SeededRandomness(self.clock.now_ms())
        )
        self.groups.elsewhere = self.elsewhere

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        if not 0 <= queue_id < self.topics.get(topic).queues:
            raise TopicNotFoundError("no such queue")
        return 10, END

    def join(self, *topics: str, session_ms: int = 10_000) -> Membership:
        return self.groups.join("g", topics or ("orders",), session_ms)

    def beat(self, member: Membership) -> Membership:
        return self.groups.heartbeat("g", member.member_id)

    def commit(self, member: Membership, offsets: dict[Queue, int], *, reset: bool = False) -> None:
        self.groups.commit("g", offsets, member_id=member.member_id, generation=member.generation, reset=reset)

    def offsets(self) -> dict[Queue, int]:
        return dict(self.groups.committed("g").offsets)
