"""Delayed messages called back through the remoting door."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rocketmq.remoting_world import HandClock, remoting_world
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode


def delayed(clock: HandClock, key: str) -> dict[str, object]:
    text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{clock.now_ms() + 60_000}\x02"
    return {"a": "p", "b": "orders", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": text}


def test_a_message_that_was_called_back_never_arrives_and_others_do(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock) as world, world.client() as client:
        handles = {
            key: client.done(RequestCode.SEND_MESSAGE_V2, delayed(clock, key), key.encode()).fields["recallHandle"]
            for key in ("kept", "dropped")
        }
        asked = {"producerGroup": "p", "topic": "orders", "recallHandle": handles["dropped"]}
        assert client.done(RequestCode.RECALL_MESSAGE, asked).fields["msgId"] == "dropped"
        clock.advance(61_000)
        world.wait_until(lambda: bool(world.store.pull("orders", 0, 0, 9).messages))
        assert [one.record.body for one in world.store.pull("orders", 0, 0, 9).messages] == [b"kept"]
        late = client.ask(RequestCode.RECALL_MESSAGE, asked | {"recallHandle": handles["kept"]})
        assert late.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize("changed", [{"topic": "other"}, {"recallHandle": "x"}, {"recallHandle": ""}])
def test_a_handle_that_is_none_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock) as world, world.client() as client:
        handle = client.done(RequestCode.SEND_MESSAGE_V2, delayed(clock, "k"), b"b").fields["recallHandle"]
        asked = {"producerGroup": "p", "topic": "orders", "recallHandle": handle, **changed}
        assert client.ask(RequestCode.RECALL_MESSAGE, asked).code == ResponseCode.ILLEGAL_OPERATION
