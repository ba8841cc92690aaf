"""Consumer groups over two topics, without a store around them."""

from __future__ import annotations

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.service.engine.groups import ConsumerGroups, Membership, NoOtherStores, RemoteQueues
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.hot.consumer_groups import GroupOffsets, Queue
from tierlog.tiering.hot.topics import TopicRegistry

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
        self.elsewhere: RemoteQueues = NoOtherStores()
        self.restart()
        self.topics.create("orders", 5)
        self.topics.create("pays", 2)

    def restart(self) -> None:
        self.fs = FaultyFileSystem(self.disk)
        self.topics = TopicRegistry(self.fs, PATHS, 8)
        offsets = GroupOffsets(self.fs, PATHS, OWN, lambda: self.read_only_reason)
        self.groups = ConsumerGroups(
            OWN,
            offsets=offsets,
            topics=self.topics,
            offset_range=self.range_of,
            offset_since=self.offset_since,
            clock=self.clock,
            randomness=SeededRandomness(self.clock.now_ms()),
        )
        self.groups.elsewhere = self.elsewhere

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        if not 0 <= queue_id < self.topics.get(topic).queues:
            raise TopicNotFoundError("no such queue")
        return 10, END

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """As if message N had been stored at N ms."""
        least, end = self.range_of(topic, queue_id)
        return min(max(least, time_ms), end)

    def join(self, *topics: str, session_ms: int = 10_000) -> Membership:
        return self.groups.join("g", topics or ("orders",), session_ms)

    def beat(self, member: Membership) -> Membership:
        return self.groups.heartbeat("g", member.member_id)

    def commit(self, member: Membership, offsets: dict[Queue, int], *, reset: bool = False) -> None:
        self.groups.commit("g", offsets, member_id=member.member_id, generation=member.generation, reset=reset)

    def offsets(self) -> dict[Queue, int]:
        return dict(self.groups.committed("g").offsets)
