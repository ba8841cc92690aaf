"""Modes that tools have set outlive a power cut, and a volume."""

from __future__ import annotations

from tests.support.world import World
from tierlog.service.rocketmq.remoting.request_modes import RequestMode, RequestModes

PULL, POP = RequestMode.PULL, RequestMode.POP


def modes(world: World, default: RequestMode = PULL) -> RequestModes:
    return RequestModes(world.engine, world.clock, default)


def test_what_was_set_is_there_after_a_power_cut_and_on_a_restored_volume() -> None:
    world = World()
    world.open()
    first = modes(world)
    for topic, mode in (("orders", POP), ("bills", POP), ("bills", PULL)):
        first.set(topic, "billing", mode)
    world.cut_power(lose_everything=True)
    world.open()
    for found in (first, modes(world)):
        assert [found.of(topic, "billing") for topic in ("orders", "bills", "other")] == [POP, PULL, PULL]
    world.archive()
    world.open("other", restore=True)
    found = modes(world, default=POP)
    assert [found.of(topic, "billing") for topic in ("orders", "bills", "other")] == [POP, PULL, POP]


def test_a_mode_of_a_later_format_is_passed_over() -> None:
    world = World()
    engine = world.open()
    modes(world).set("orders", "billing", POP)
    messages = engine.client_messages()
    for body in (b'{"format": 2}', b"x", b'{"format": 1, "topic": "orders", "group": "billing", "mode": "odd"}'):
        messages.add("rmq_sys_tierlog_modes", 0, body, b"", born_ms=0, born_host=bytes(8))
    engine.append(messages)
    assert modes(world).of("orders", "billing") is POP
