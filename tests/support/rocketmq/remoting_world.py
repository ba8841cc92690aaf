"""A store on a disk with the remoting door in front of it, on a free port of the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.rocketmq.remoting_client import RemotingClient
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.doors import Doors
from tierlog.tiering.base.clock import Clock, SystemClock


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Returns a socket that listens, as a process makes it."""
    return socket.create_server((host, port), backlog=128)


class RemotingWorld:
    """An open store, and the door before it."""

    def __init__(self, store: Store, address: str, settings: Settings) -> None:
        self.store = store
        self.address = address
        self.settings = settings

    def client(self, **more: Any) -> RemotingClient:
        """Connects."""
        return RemotingClient(self.address, **more)


@contextmanager
def remoting_world(
    root: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    clock: Clock | None = None,
    cold_url: str | None = None,
    store_id: str = "broker-a",
) -> Iterator[RemotingWorld]:
    """Opens a store and its door, with settings by their names (``hot.default_queues``); closes both."""
    made = Settings.load(overrides={"rocketmq.listen": "127.0.0.1:0", **(settings or {})})
    clock = clock or SystemClock()
    doors = Doors(made, listen)
    try:
        with Store.open(root, settings=doors.settings, store_id=store_id, cold_url=cold_url, clock=clock) as store:
            store.start()
            control = AccessControl(doors.settings.access, clock)
            with doors.of(store, doors.settings, control, clock=clock, tell=lambda line: None):
                listening = doors.settings.rocketmq.listen
                assert listening is not None
                yield RemotingWorld(store, listening, doors.settings)
    finally:
        doors.close()
