"""A message has the address that its producer gives, whichever way it is appended and wherever it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.record import SysFlag, host_text, parse_host, peer_host
from tierlog.tiering.message.batch import Message, MessageBatch

V4, V6 = "10.1.2.3:54321", "[fd00::7]:54321"


def _message(born_host: str, number: int = 0) -> Message:
    return Message("t", b"%d" % number, ["k", "l"], "tag", {"p": "q"}, 5, 0, born_host)


@pytest.mark.parametrize("checksum", [False, True])
def test_each_message_keeps_its_own_address_alone_and_among_others_in_both_tiers(
    tmp_path: Path, checksum: bool
) -> None:
    hosts = [V4, "", V6]
    settings = tiny_settings(hot__record_checksum=checksum)
    with Store.open(tmp_path / "store", settings=settings, cold_url=f"file://{tmp_path}/cold") as engine:
        placed = list(engine.append([_message(host, place) for place, host in enumerate(hosts)]))
        for host in hosts:
            placed += engine.append([_message(host)])
            placed += engine.append([_message(host)], Durability.ASYNC)
        pending = engine.pending_messages()
        for place, host in enumerate(hosts):
            pending.add_message(_message(host, place))
        placed += engine.append(pending)
        wanted = hosts + [host for host in hosts for _ in range(2)] + hosts
        for _ in range(2):
            records = [engine.message(one.message_id).record for one in placed]
            found = [host_text(record.born_host) if any(record.born_host) else "" for record in records]
            assert found == wanted
            assert [bool(record.sys_flag & SysFlag.BORN_HOST_V6) for record in records] == [h == V6 for h in wanted]
            assert {(record.properties["KEYS"], record.properties["TAGS"]) for record in records} == {("k l", "tag")}
            engine.archive(everything=True, drop_hot=True)
    with Store.open(tmp_path / "store", settings=settings, cold_url=f"file://{tmp_path}/cold") as engine:
        assert host_text(engine.message(placed[2].message_id).record.born_host) == V6


def test_a_message_that_is_sent_again_from_another_address_is_the_same_and_keeps_its_first(tmp_path: Path) -> None:
    key = IdempotencyKey("p")
    with Store.open(tmp_path / "store", settings=tiny_settings()) as engine:
        (first,) = engine.append([_message(V4)], key=key)
        (again,) = engine.append([_message(V6)], key=key)
        assert again == first
        assert host_text(engine.message(first.message_id).record.born_host) == V4


@pytest.mark.parametrize(
    "born_host",
    [
        "10.0.0.7",
        "10.0.0.7:",
        "10.0.0.7:65536",
        "10.0.0.7:-1",
        "fd00::7:80",
        "[10.0.0.7]:80",
        "shop-1:80",
        "[fd00::7]:٣",
    ],
)
def test_what_is_no_address_with_a_port_is_refused(born_host: str) -> None:
    messages = [_message(""), _message(born_host)]
    with pytest.raises(InvalidRequestError, match="message 1: bad born host") as caught:
        MessageBatch.of(messages, now_ms=0, max_body_bytes=10)
    assert caught.value.position == 1


@pytest.mark.parametrize("text", [V4, V6, "0.0.0.0:0", "[::]:1", "[::1]:65535"])
def test_an_address_is_read_as_it_is_written(text: str) -> None:
    assert host_text(parse_host(text)) == text


@pytest.mark.parametrize(
    ("peer", "stored"),
    [
        (("10.1.2.3", 54321), V4),
        (("fd00::7", 54321), V6),
        (("fe80::1%eth0", 1), "[fe80::1]:1"),
        (("::ffff:10.1.2.3", 54321), V4),  # a client of IPv4 at a socket of IPv6
        (("testclient", 5), "0.0.0.0:0"),
        (("", 0), "0.0.0.0:0"),
    ],
)
def test_the_other_end_of_a_connection_is_stored_as_its_address(peer: tuple[str, int], stored: str) -> None:
    assert host_text(peer_host(*peer)) == stored
