"""A store on a disk with the gRPC door in front of it, on a free port of the loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.rocketmq.grpc_client import GrpcClient
from tests.support.rocketmq.remoting_world import listen
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.doors import Doors
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.message.stored_message import StoredMessage


class GrpcWorld:
    """An open store, and the door before it."""

    def __init__(self, store: Store, settings: Settings, doors: Doors) -> None:
        self.store, self.settings, self.doors = store, settings, doors
        assert settings.rocketmq.grpc_listen is not None
        self.address = settings.rocketmq.grpc_listen

    def client(self, **more: Any) -> GrpcClient:
        """Connects."""
        return GrpcClient(self.address, **more)

    def stored(self, topic: str = "orders") -> list[StoredMessage]:
        """All messages of a topic, queue by queue; none if it is not there."""
        queues = self.store.find_queues(topic) or 0
        return [one for queue_id in range(queues) for one in self.store.pull(topic, queue_id, 0, 1_000).messages]


@contextmanager
def grpc_world(
    root: Path, settings: Mapping[str, Any] | None = None, *, store_id: str = "broker-a"
) -> Iterator[GrpcWorld]:
    """Opens a store and its door, with settings by their names (``hot.default_queues``); closes both."""
    made = Settings.load(overrides={"rocketmq.grpc_listen": "127.0.0.1:0", **(settings or {})})
    doors = Doors(made, listen)
    clock = SystemClock()
    try:
        with Store.open(root, settings=doors.settings, store_id=store_id, clock=clock) as store:
            store.start()
            control = AccessControl(doors.settings.access, clock)
            with doors.of(store, doors.settings, control, clock=clock, tell=lambda line: None):
                yield GrpcWorld(store, doors.settings, doors)
    finally:
        doors.close()
