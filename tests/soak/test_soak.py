"""Two minutes of the soak, and the proof that its ledger, its rule of growth and the look at a log find what they
are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.follow_soak import is_there
from tests.soak.growth import growth
from tests.soak.ledger import Ledger, Request, Topic, body_of, keys_of, now_ms
from tests.soak.soak import Soak
from tests.support.processes.nodes import Json
from tests.support.rocketmq.real_brokers import Acknowledged
from tests.support.rocketmq.running_broker import SEGMENT_BYTES, RunningBroker
from tierlog.tiering.base.clock import ManualClock

TOPIC = Topic("t", 1, 60_000)


def told(ledger: Ledger, count: int = 5, first: int = 0) -> Request:
    """Messages that a producer was told are at the offsets of their numbers."""
    request = ledger.sends("p", TOPIC, 0, first, count)
    ledger.told(request, [{"queue_id": 0, "queue_offset": number} for number in range(first, first + count)])
    return request


def message(number: int, **changes: object) -> Json:
    return {
        "topic": "t", "queue_id": 0, "queue_offset": number, "body": body_of("p", number), "keys": keys_of("p", number),
        "store_ms": now_ms(), **changes,
    }  # fmt: skip


def page(*messages: Json, next_offset: int = 5) -> Json:
    return {"messages": list(messages), "next_offset": next_offset}


def consume(ledger: Ledger, *messages: Json) -> None:
    ledger.given("t", 0, 0, page(*messages))


def look_up(ledger: Ledger, *messages: Json) -> None:
    ledger.looked("t", "p-0", 0, ledger.wanted("t", "p-0", 0), messages)


EVERY = [message(number) for number in range(5)]


@pytest.mark.parametrize("read", [consume, look_up])
def test_what_was_sent_is_right(read: Callable[..., None]) -> None:
    ledger = Ledger([TOPIC])
    told(ledger)
    read(ledger, *EVERY)
    assert ledger.wrong == []
    assert ledger.behind() == (0 if read is consume else 5)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([*EVERY[:2], *EVERY[3:]], id="one is missing"),
        pytest.param([*EVERY[:4], EVERY[3]], id="one is there twice"),
        pytest.param([*EVERY[:4], message(4, body=body_of("p", 4) + "x")], id="one was changed"),
        pytest.param([*EVERY[:4], message(4, keys=[])], id="one has lost its keys"),
        pytest.param([*EVERY[:4], message(4, queue_id=1)], id="one is in another queue"),
        pytest.param([*EVERY[:4], message(4, body=body_of("p", 3), keys=keys_of("p", 3))], id="one is another"),
        pytest.param([*EVERY, message(9)], id="one was never sent"),
    ],
)
@pytest.mark.parametrize("read", [consume, look_up])
def test_a_wrong_answer_is_found(read: Callable[..., None], given: list[Json]) -> None:
    ledger = Ledger([TOPIC])
    told(ledger)
    read(ledger, *given)
    assert ledger.wrong


def test_a_message_that_consumers_were_sent_past_before_it_was_acknowledged_is_missed_then() -> None:
    ledger = Ledger([TOPIC])
    ledger.given("t", 0, 0, page())
    assert ledger.wrong == []
    told(ledger)
    assert ledger.wrong


def test_what_has_expired_may_be_missing_and_may_be_there() -> None:
    ledger = Ledger([TOPIC])
    told(ledger).sent_ms -= TOPIC.retention_ms
    look_up(ledger)
    look_up(ledger, *EVERY)
    consume(ledger)
    assert ledger.wrong == []
    assert ledger.expired == 5


def test_what_has_expired_long_ago_may_not_come_back() -> None:
    ledger = Ledger([TOPIC])
    told(ledger).told_ms -= 2 * TOPIC.retention_ms + 300_000
    look_up(ledger, *EVERY)
    assert ledger.wrong


def test_what_nobody_was_told_of_may_be_there_or_not() -> None:
    ledger = Ledger([TOPIC])
    ledger.sends("p", TOPIC, 0, 0, 5)
    look_up(ledger)
    look_up(ledger, *EVERY[:2])
    assert ledger.wrong == []


def test_memory_that_rises_is_found_and_a_long_answer_is_not_taken_for_it() -> None:
    seconds = [float(second) for second in range(0, 900, 2)]
    steady = [200.0 + (100 if second % 50 == 0 else 0) for second in seconds]
    leaking = [mib + second / 20 for mib, second in zip(steady, seconds, strict=True)]
    warming = [mib - max(0.0, 150 - second) for mib, second in zip(steady, seconds, strict=True)]
    found = {name: growth(seconds, mib) for name, mib in (("steady", steady), ("leaking", leaking), ("warm", warming))}
    assert {name: one is not None and one.is_within for name, one in found.items()} == {
        "steady": True, "leaking": False, "warm": True,
    }  # fmt: skip
    assert growth(seconds[:100], steady[:100]) is None


def test_memory_that_rises_with_what_was_taken_in_is_found_however_fast_that_was() -> None:
    slow_first = [float(mb) for mb in (*range(0, 500, 10), *range(500, 6_000, 100))]
    leaking = [200 + mb / 100 for mb in slow_first]
    working = [200.0 if mb < 500 else 230.0 for mb in slow_first]
    found = {name: growth(slow_first, mib, 4_000) for name, mib in (("leaking", leaking), ("working", working))}
    assert {name: one is not None and one.is_within for name, one in found.items()} == {
        "leaking": False, "working": True,
    }  # fmt: skip
    assert growth(slow_first[:60], leaking[:60], 4_000) is None
    assert growth([0.0, 4_000.0], [200.0, 200.0], 4_000) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_minutes_of_everything_at_once_have_no_wrong_answer(tmp_path: Path, seed: int) -> None:
    soak = Soak(tmp_path, 120, seed)
    soak.run()
    assert soak.ledger.wrong == [], soak.said()
    assert soak.kills > 0
    assert min(soak.ledger.consumed, soak.ledger.found, soak.keeper.rounds) > 0


def test_an_acknowledged_message_is_found_only_at_its_place_in_its_queue_with_its_id(
    tmp_path: Path,
) -> None:
    broker = RunningBroker(tmp_path, ManualClock())
    for _ in range(50):
        broker.append(b"body of 7F01")
    place = sorted(offset for offset, data in broker.written.items() if len(data) > 8)[-1]
    segments = {base: broker.paths.segment(base).read_bytes() for base in range(0, broker.end, SEGMENT_BYTES)}
    told = Acknowledged("orders", "k", 0, 49, "7F01", f"{0:016X}{place:016X}")
    assert place > SEGMENT_BYTES
    assert is_there(segments, SEGMENT_BYTES, told)
    changes = ({"queue": 1}, {"offset": 48}, {"unique_id": "7F02"}, {"place": f"{0:016X}{place - 1:016X}"})
    assert not any(is_there(segments, SEGMENT_BYTES, replace(told, **change)) for change in changes)
