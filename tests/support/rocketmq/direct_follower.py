"""A source and a store that follows, and the shortest loop between them, in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.rocketmq.real_brokers import CLOCK, LIMIT_S, RealBroker, until
from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.rocketmq.broker_directory import BrokerDirectory
from tierlog.tiering.rocketmq.log_source import LogSource
from tierlog.tiering.rocketmq.remote_log import RemoteLog


class DirectFollower:
    """Follows until it is closed; what went wrong is raised by whoever waits for it."""

    def __init__(self, folder: Path, source: LogSource, store_id: str) -> None:
        self.source = source
        self.root = folder / store_id
        self.followed = FollowedStore.open(
            self.root, cold_url=f"file://{folder / 'cold'}", store_id=store_id,
            segment_bytes=source.segment_bytes, begin=source.bounds().min_offset, settings=Settings.load(),
        )  # fmt: skip
        self.store = self.followed.store
        self.store.start()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        source, followed = self.source, self.followed
        try:
            source.begin(followed.end)
            while not self._stop.is_set():
                if data := source.read(0.1):
                    followed.append(source.position(), data)
                source.report(followed.flush())
                followed.publish_below = source.settled()
        except BaseException as error:
            self._failure = error

    def reach(self, end: int) -> None:
        """Wait until all below is durable here."""

        def is_there() -> bool:
            if self._failure is not None:
                raise self._failure
            return self.followed.end >= end

        until(is_there, f"{end} is followed")

    def close(self) -> None:
        """End the thread, then the source and the store."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        self.source.close()
        self.followed.close()


def by_network(folder: Path, broker: RealBroker, **options: bool) -> DirectFollower:
    """As a slave would."""
    source = RemoteLog(broker.ha_address, broker.client, segment_bytes=broker.segment_bytes, clock=CLOCK, **options)
    return DirectFollower(folder, source, "by-network")


def by_directory(folder: Path, broker: RealBroker) -> DirectFollower:
    """Beside its files."""
    return DirectFollower(folder, BrokerDirectory(broker.store, fs=LocalFileSystem(), clock=CLOCK), "by-directory")
