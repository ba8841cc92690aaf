"""The doors for RocketMQ's clients that are set: where they listen, and one store behind them.

They listen before the store is opened, as its records say where clients find it, and a port that is taken must be known
before anything is touched. They close before the store does.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.cluster.table_view import TableView
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.engine.opening import door_address, host_and_port
from tierlog.service.engine.store import Store
from tierlog.service.observing.counts import ObservedDoor
from tierlog.service.rocketmq.other_stores import OtherStores
from tierlog.service.rocketmq.remoting.door import RemotingDoor
from tierlog.service.rocketmq.remoting.handlers.transactions import ProducersOfDoor
from tierlog.service.rocketmq.transaction_checks import TransactionChecks
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import SystemRandomness

if TYPE_CHECKING:
    from tierlog.service.rocketmq.grpc.door import GrpcDoor
    from tierlog.service.rocketmq.grpc.gateway import Gateway

#: Time for what is in work when the doors close.
_GRACE_S = 2.0
#: The settings that open a door.
_NAMES = ("listen", "grpc_listen")


class _Door(ObservedDoor, Protocol):
    def stop(self, timeout_s: float) -> None: ...


def refuse_doors(settings: Settings) -> None:
    """Raises :class:`InvalidRequestError` if a door is set, for a process that has no store."""
    for name in _NAMES:
        if getattr(settings.rocketmq, name) is not None:
            raise InvalidRequestError(
                f"rocketmq.{name} is set, but a querier has no store that clients of RocketMQ could write to",
                hint="set it where the store is served",
            )


class Doors:
    """The doors of one process. Open them once the store is open; whatever was opened closes with :meth:`close`."""

    def __init__(self, settings: Settings, listen: Callable[[str, int, str], socket.socket]) -> None:
        """Takes the ports: ``listen`` makes a listening socket of host, port and the name of the setting."""
        self._sockets: dict[str, socket.socket] = {}
        self._opened: list[_Door] = []
        #: The settings, with the ports that were chosen for 0.
        self.settings = settings
        for name in _NAMES:
            where = getattr(settings.rocketmq, name)
            if where is not None:
                host, _, port = where.rpartition(":")
                taken = listen(host.strip("[]"), int(port), f"rocketmq.{name}")
                self._sockets[name] = taken
                chosen = f"{host}:{taken.getsockname()[1]}"
                own = self.settings.rocketmq.model_copy(update={name: chosen})
                self.settings = self.settings.model_copy(update={"rocketmq": own})

    @property
    def listening(self) -> list[socket.socket]:
        """The sockets that listen."""
        return list(self._sockets.values())

    @contextlib.contextmanager
    def of(
        self,
        store: Store,
        settings: Settings,
        control: AccessControl,
        *,
        audit: AuditLog | None = None,
        cluster: TableView | None = None,
        clock: Clock | None = None,
        tell: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> Iterator[Deliveries]:
        """Serves the store while inside; ``tell`` is told where. A door shows the service's certificate.

        ``cluster`` knows the stores that clients find beside this one; None for a store that is alone.
        Gives the store's deliveries, which all that serves it shares.
        """
        clock = clock or SystemClock()
        deliveries = Deliveries(store, clock, SystemRandomness(), settings.rocketmq.max_attempts)
        timers = Timers(store, clock, SystemRandomness())
        deliveries.start()
        transactions = Transactions(store, clock, max_delay_ms=settings.produce.max_delay_ms)
        others = OtherStores(cluster, settings.cluster, clock)
        checks = TransactionChecks(store, transactions, clock, SystemRandomness())
        try:
            timers.start()  # with the doors shut too: messages with a delay come by REST as well
            listening, where = self._sockets.get("listen"), settings.rocketmq.listen
            if listening is not None and where is not None:
                address = door_address(settings, where)
                door = RemotingDoor(
                    listening, store, settings, clock,
                    deliveries=deliveries, timers=timers, transactions=transactions, others=others,
                    address=host_and_port(address), control=control, audit=audit, tls=ServerTls.of(settings.serve),
                )  # fmt: skip
                door.start()
                checks.doors.append(ProducersOfDoor(door.broker).ask)
                self._opened.append(door)
                tell(f"tierlog: RocketMQ clients at {host_and_port(address)}")
            placeholder, where = self._sockets.pop("grpc_listen", None), settings.rocketmq.grpc_listen
            if placeholder is not None and where is not None:
                address = door_address(settings, where)
                grpc_door = _grpc_door_class()(
                    store, settings, clock,
                    deliveries=deliveries, timers=timers, transactions=transactions, others=others,
                    address=address, control=control,
                )  # fmt: skip
                placeholder.close()  # it has kept the port, which gRPC binds itself
                grpc_door.start()
                checks.doors.append(grpc_door.ask)
                self._opened.append(grpc_door)
                tell(f"tierlog: RocketMQ clients of gRPC at {host_and_port(address)}")
            if checks.doors:
                checks.start()
            yield deliveries
        finally:
            checks.close()
            self.stop()
            timers.close()
            deliveries.close()

    def observed(self) -> Sequence[ObservedDoor]:
        """Returns the doors that are open, for metrics."""
        return tuple(self._opened)

    @property
    def remoting(self) -> RemotingDoor:
        """The remoting door, which is open."""
        (door,) = [door for door in self._opened if isinstance(door, RemotingDoor)]
        return door

    def stop(self) -> None:
        """Closes the doors, answering what is in work. Idempotent."""
        for door in self._opened:
            door.stop(_GRACE_S)
        self._opened.clear()

    def close(self) -> None:
        """Gives the ports back."""
        self.stop()
        for listening in self._sockets.values():
            listening.close()


@contextlib.contextmanager
def gateway(url: str, settings: Settings, control: AccessControl) -> Iterator[tuple[str, Gateway]]:
    """Serves producers of gRPC while inside, with the store's service at ``url`` behind; where it listens, and it."""
    where = settings.rocketmq.grpc_listen
    if where is None:
        raise InvalidRequestError("a gateway takes gRPC", hint="say where, by rocketmq.grpc_listen")
    host, _, _ = where.rpartition(":")
    control.check_listener(
        host.strip("[]"), hint="`tierlog token --rocketmq` makes an entry for access.tokens_file (docs/access.md)"
    )
    opened = _gateway_class()(url, settings, SystemClock(), control=control)
    opened.start()
    try:
        yield f"{host}:{opened.port}", opened
    finally:
        opened.stop(_GRACE_S)


def _gateway_class() -> type[Gateway]:
    with _needs_grpc():
        from tierlog.service.rocketmq.grpc.gateway import Gateway
    return Gateway


def _grpc_door_class() -> type[GrpcDoor]:
    """Returns the gRPC door, whose library is loaded only where it is set."""
    with _needs_grpc():
        from tierlog.service.rocketmq.grpc.door import GrpcDoor
    return GrpcDoor


@contextlib.contextmanager
def _needs_grpc() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"rocketmq.grpc_listen needs a library: {error}", hint="pip install 'tierlog[grpc]'"
        ) from error
