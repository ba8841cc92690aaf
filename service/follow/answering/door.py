"""The door of a follow process, and its entries at the nameservers: together, one more broker of the cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.follow.answering.live_brokers import LiveBrokers
from tierlog.service.follow.answering.node import ANSWERS, ArchiveNode, entries
from tierlog.service.follow.answering.registration import Registration
from tierlog.service.follow.answering.replay import Replay, ReplayQueues
from tierlog.service.follow.followed_broker import FollowedBroker
from tierlog.service.rocketmq.remoting.clients import Clients
from tierlog.service.rocketmq.remoting.consumer_offsets import ConsumerOffsets
from tierlog.service.rocketmq.remoting.queue_locks import QueueLocks
from tierlog.service.rocketmq.remoting.server import RemotingServer
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.rocketmq.codes import RequestCode
from tierlog.tiering.rocketmq.remoting import Credentials

#: Which queue of which store a queue of a replayed topic is; in the folder of all stores.
QUEUES_FILE = "archive-queues.json"
_CODES = frozenset(RequestCode)


class AnsweringDoor(RemotingServer[ArchiveNode]):
    """Answers for followed brokers at one address, and keeps it at their nameservers."""

    def __init__(
        self,
        listening: socket.socket,
        settings: Settings,
        clock: Clock,
        *,
        brokers: Callable[[], Sequence[FollowedBroker]],
        root: Path,
        fs: FileSystem,
        address: str,
        control: AccessControl,
        credentials: Callable[[], Credentials | None] = lambda: None,
        tls: ServerTls | None = None,
    ) -> None:
        """``listening`` is bound and listens; ``address`` is what nameservers are told.

        Raises :class:`CorruptionError` if the file of replayed queues cannot be read.
        """
        super().__init__(listening, settings, clock, ANSWERS, control=control, tls=tls)
        self.counts.door = "follow"

        def stores() -> dict[str, Store]:
            return {one.store_id: one.store for one in brokers() if one.store is not None}

        replay = Replay(ReplayQueues(root / QUEUES_FILE, fs), stores) if settings.follow.replay else None
        self.broker = ArchiveNode(
            settings=settings, clock=clock, address=address, clients=Clients(clock, self.tell_members),
            polls=self._polls, call_soon=self.call_soon, brokers=brokers,
            live=LiveBrokers(clock, settings.follow.answer_ms, credentials), replay=replay, locks=QueueLocks(clock),
        )  # fmt: skip
        self.registration = Registration(settings.follow.nameservers, partial(entries, self.broker), clock, credentials)

    def start(self) -> None:
        """Accepts connections from now on, and tells the nameservers so."""
        super().start()
        self.registration.start()

    def stop(self, timeout_s: float) -> None:
        """Takes the entries back and stops, within about ``timeout_s`` and what nameservers take; idempotent."""
        self.registration.stop()
        super().stop(timeout_s)
        self.broker.live.close()

    def committed_offsets(self) -> Iterable[ConsumerOffsets]:
        """Returns the offsets of groups that consume what is replayed."""
        return () if self.broker.replay is None else self.broker.replay.committed_offsets()

    def request_name(self, code: int) -> str:
        """Returns the name of any request that RocketMQ's protocol has here, answered or not."""
        return RequestCode(code).name.lower() if code in _CODES else "other"
