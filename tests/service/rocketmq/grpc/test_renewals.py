"""Deliveries that are kept for clients: prolonged while they are there, given back when they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.service.delivery_world import DeliveryWorld
from tierlog.service.delivery.timers import Timers
from tierlog.service.delivery.transactions import Transactions
from tierlog.service.rocketmq.grpc.calls import DoorLanes, DoorParts, Waits
from tierlog.service.rocketmq.grpc.clients import CLIENT_MS, GrpcClients
from tierlog.service.rocketmq.grpc.renewals import KEPT_MS, MOST_MS, Renewals
from tierlog.service.rocketmq.other_stores import OtherStores


class KeptWorld(DeliveryWorld):
    """A message that is kept for a client."""

    def keep(self) -> str:
        parts = DoorParts(
            self.engine, self.settings, self.clock, deliveries=self.deliveries,
            timers=Timers(self.engine, self.clock, self.randomness), transactions=Transactions(self.engine, self.clock),
            others=OtherStores(None, self.settings.cluster, self.clock), lanes=DoorLanes(self.settings.serve),
            address=("127.0.0.1", 1), waits=Waits(1),
        )  # fmt: skip
        self.clients = GrpcClients(self.settings, self.clock)
        self.renewals = Renewals(parts, self.clients)
        self.clients.heard_of("c")
        self.send("a")
        (found,) = self.receive(invisible_ms=KEPT_MS)
        self.renewals.keep("c", found.handle, found.invisible_until_ms)
        return found.handle

    def later(self, ms: int, *, is_there: bool = True) -> None:
        """Time passes; the door looks, and the client is heard of before."""
        for _ in range(ms // 10_000):
            self.clock.advance(10_000)
            if is_there:
                self.clients.heard_of("c")
            asyncio.run(self.renewals.look())


@pytest.fixture
def world() -> Iterator[KeptWorld]:
    made = KeptWorld()
    yield made
    made.close()


def test_a_message_stays_away_from_others_for_as_long_as_its_client_is_there(world: KeptWorld) -> None:
    given = world.keep()
    world.later(10 * KEPT_MS)
    assert world.receive() == []
    world.deliveries.acknowledge(world.renewals.take(given))
    world.clock.advance(KEPT_MS)
    assert world.receive() == []


def test_messages_of_a_client_that_is_gone_are_given_to_others(world: KeptWorld) -> None:
    world.keep()
    world.later(CLIENT_MS + 10_000, is_there=False)
    (again,) = world.receive()
    assert again.attempt == 2
    assert len(world.renewals) == 0


def test_nobody_keeps_a_message_for_ever(world: KeptWorld) -> None:
    world.keep()
    world.later(MOST_MS + 20_000)
    assert len(world.renewals) == 0
    world.clock.advance(KEPT_MS)
    assert len(world.receive()) == 1


def test_a_message_that_was_done_otherwise_is_kept_no_longer(world: KeptWorld) -> None:
    given = world.keep()
    world.deliveries.acknowledge(given)
    world.later(KEPT_MS)
    assert len(world.renewals) == 0
    assert world.renewals.take(given) == given
