"""Entries at nameservers: renewed, taken back, never in another's place, and learned by one that has restarted."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.rocketmq.fake_broker import FakeBroker
from tierlog.service.follow.answering.registration import RENEW_S, NameserverEntry, OfferedTopic, Registration
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame

_ENTRY = NameserverEntry("tierlog-c", "c", "127.0.0.1:5", 1, {"orders": OfferedTopic(0, 1)})


@pytest.fixture
def nameserver() -> Iterator[FakeBroker]:
    with FakeBroker() as found:
        accept(found)
        yield found


def accept(server: FakeBroker) -> None:
    server.answer(RequestCode.GET_BROKER_CLUSTER_INFO, {"brokerAddrTable": {}})
    server.answer(RequestCode.REGISTER_BROKER, b"")
    server.answer(RequestCode.UNREGISTER_BROKER, b"")


def told(server: FakeBroker, code: RequestCode = RequestCode.REGISTER_BROKER) -> list[Frame]:
    return [frame for frame in server.asked if frame.code == code]


def document(frame: Frame) -> Any:
    return json.loads(frame.body)["topicConfigSerializeWrapper"]


def registration(
    *servers: str, entry: Callable[[], NameserverEntry] = lambda: _ENTRY
) -> tuple[Registration, ManualClock]:
    clock = ManualClock()
    return Registration(servers, lambda: [entry()], clock), clock


def look_after(found: Registration, clock: ManualClock, seconds: float) -> None:
    clock.advance(round(seconds * 1000))
    found.look()


def test_an_entry_says_all_that_a_nameserver_checks(nameserver: FakeBroker) -> None:
    found, _ = registration(nameserver.address)
    found.look()
    (frame,) = told(nameserver)
    assert frame.fields["brokerName"] == "tierlog-c"
    assert (frame.fields["brokerId"], frame.fields["enableActingMaster"]) == ("1", "true")
    assert int(frame.fields["bodyCrc32"]) == zlib.crc32(frame.body) & 0x7FFFFFFF
    table = document(frame)["topicConfigTable"]
    assert {name: of["perm"] for name, of in table.items()} == {"orders": 0, "tierlog-c": 0}
    found.stop()


def test_it_is_renewed_every_ten_seconds_and_at_once_when_topics_come(nameserver: FakeBroker) -> None:
    entries = [_ENTRY]
    found, clock = registration(nameserver.address, entry=lambda: entries[-1])
    found.look()
    look_after(found, clock, RENEW_S / 2)
    assert len(told(nameserver)) == 1
    look_after(found, clock, RENEW_S / 2)
    assert len(told(nameserver)) == 2
    entries.append(replace(_ENTRY, topics={**_ENTRY.topics, "more": OfferedTopic(0, 1)}))
    look_after(found, clock, 1)
    versions = [document(frame)["dataVersion"] for frame in told(nameserver)]
    assert versions[0] == versions[1] != versions[2]
    assert "more" in document(told(nameserver)[2])["topicConfigTable"]
    found.stop()


def test_a_stop_takes_it_back_from_every_nameserver(nameserver: FakeBroker) -> None:
    with FakeBroker() as other:
        accept(other)
        found, _ = registration(nameserver.address, other.address)
        found.look()
        found.stop()
        for server in (nameserver, other):
            (gone,) = told(server, RequestCode.UNREGISTER_BROKER)
            assert (gone.fields["brokerName"], gone.fields["brokerId"]) == ("tierlog-c", "1")


def test_a_nameserver_that_is_down_holds_up_no_other_and_learns_of_it_when_it_is_back(nameserver: FakeBroker) -> None:
    with FakeBroker() as dead:
        address = dead.address
    found, clock = registration(address, nameserver.address)
    found.look()
    assert len(told(nameserver)) == 1
    assert list(found.errors) == [f"tierlog-c at {address}"]
    found.look()
    nameserver.refuse(RequestCode.REGISTER_BROKER, ResponseCode.SYSTEM_ERROR)
    look_after(found, clock, RENEW_S)
    assert f"tierlog-c at {nameserver.address}" in found.errors
    accept(nameserver)
    look_after(found, clock, 1)
    assert list(found.errors) == [f"tierlog-c at {address}"]
    found.stop()


def test_tries_become_rarer_up_to_one_in_ten_seconds(nameserver: FakeBroker) -> None:
    nameserver.refuse(RequestCode.REGISTER_BROKER, ResponseCode.SYSTEM_ERROR)
    found, clock = registration(nameserver.address)
    times = []
    for second in range(60):
        before = len(told(nameserver))
        found.look()
        times += [second] * (len(told(nameserver)) - before)
        clock.advance(1000)
    assert times == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    found.stop()


def test_a_name_that_another_broker_has_is_left_to_it(nameserver: FakeBroker) -> None:
    taken = {"brokerAddrTable": {"tierlog-c": {"brokerAddrs": {"0": "10.0.0.1:1"}}}}
    nameserver.answer(RequestCode.GET_BROKER_CLUSTER_INFO, taken)
    found, clock = registration(nameserver.address)
    found.look()
    assert told(nameserver) == []
    assert "10.0.0.1:1" in found.errors[f"tierlog-c at {nameserver.address}"]
    nameserver.answer(RequestCode.GET_BROKER_CLUSTER_INFO, {"brokerAddrTable": {}})
    look_after(found, clock, RENEW_S)
    assert len(told(nameserver)) == 1
    found.stop()


def test_an_entry_of_a_process_that_was_killed_is_taken_up_again(nameserver: FakeBroker) -> None:
    own = {"brokerAddrTable": {"tierlog-c": {"brokerAddrs": {"1": _ENTRY.address}}}}
    nameserver.answer(RequestCode.GET_BROKER_CLUSTER_INFO, own)
    found, _ = registration(nameserver.address)
    found.look()
    assert len(told(nameserver)) == 1
    found.stop()
