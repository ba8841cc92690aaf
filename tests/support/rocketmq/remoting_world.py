"""A store on a disk with the remoting door in front of it, on a free port of the loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.rocketmq.remoting_client import RemotingClient
from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.doors import Doors
from tierlog.service.rocketmq.remoting.door import RemotingDoor
from tierlog.tiering.base.clock import Clock, ManualClock, SystemClock


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Returns a socket that listens, as a process makes it."""
    return socket.create_server((host, port), backlog=128)


class HandClock(ManualClock):
    """A clock that moves only when told to; who waits waits for a moment."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(0.01)


class RemotingWorld:
    """An open store, and the door before it."""

    def __init__(self, store: Store, address: str, settings: Settings, doors: Doors) -> None:
        self._doors = doors
        self.store = store
        self.address = address
        self.settings = settings

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    @property
    def door(self) -> RemotingDoor:
        """The door itself."""
        return self._doors.remoting

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """Returns what ``work`` returns on the door's thread."""
        result: Future[Any] = Future()
        self.door.call_soon(lambda: result.set_result(work()))
        return result.result(30)

    def connections(self) -> int:
        """How many connections there are."""
        return int(self.on_loop(lambda: self.door.places.open))

    def waiting_bytes(self) -> int:
        """Bytes of answers that clients have not taken."""
        return int(self.on_loop(lambda: sum(one.waiting for one in self.door.connections)))

    def in_work(self) -> int:
        """Bytes of requests without an answer, and of frames that are not whole."""
        return int(self.on_loop(lambda: self.door.in_work))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds, a minute at most."""
        until = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.01)

    def client(self, **more: Any) -> RemotingClient:
        """Connects."""
        return RemotingClient(self.address, **more)


@contextmanager
def remoting_world(
    root: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    clock: Clock | None = None,
    store_id: str = "broker-a",
    store_clock: Clock | None = None,
    audit: AuditLog | None = None,
    **opened: Any,
) -> Iterator[RemotingWorld]:
    """Opens a store and its door, with settings by their names (``hot.default_queues``); closes both.

    The door has the clock; what else is ``opened`` is for :meth:`Store.open`.
    """
    made = Settings.load(overrides={"rocketmq.listen": "127.0.0.1:0", **(settings or {})})
    clock = clock or SystemClock()
    doors = Doors(made, listen)
    try:
        with Store.open(root, settings=doors.settings, store_id=store_id, clock=store_clock, **opened) as store:
            store.start()
            control = AccessControl(doors.settings.access, clock)
            with doors.of(store, doors.settings, control, audit=audit, clock=clock, tell=lambda line: None):
                listening = doors.settings.rocketmq.listen
                assert listening is not None
                yield RemotingWorld(store, listening, doors.settings, doors)
    finally:
        doors.close()
