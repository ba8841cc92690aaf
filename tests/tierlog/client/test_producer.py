"""What a producer sends is in order, in batches of the sizes asked for, and numbered so that nothing is doubled."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client.scripted import Said, Scripted, good, problem
from tests.support.client.scripted_log import FakeLog
from tierlog.client import Batching, Client, Durability, RetryPolicy
from tierlog.client.errors import (
    AccessError,
    ClosedError,
    InvalidRequestError,
    NoAnswerError,
    StoreError,
    UnavailableError,
)
from tierlog.client.producers import Outbox
from tierlog.client.requests import Request
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness


def client_of(log: FakeLog, within_s: float = 60) -> Client:
    clock = ManualClock()
    return Client(
        "http://127.0.0.1:1", clock=clock, randomness=SeededRandomness(3), transport=Scripted(log, clock),
        retries=RetryPolicy(within_s=within_s),
    )  # fmt: skip


def test_messages_are_in_order_and_futures_say_where() -> None:
    log = FakeLog()
    with client_of(log).producer("t", batching=Batching(max_messages=7)) as producer:
        futures = [producer.submit(f"{number}") for number in range(100)]
    assert log.bodies == [f"{number}" for number in range(100)]
    assert [future.result().queue_offset for future in futures] == list(range(100))
    assert max(log.sizes) <= 7


def test_a_lost_answer_doubles_nothing() -> None:
    log = FakeLog(lost=3)
    with client_of(log).producer("t") as producer:
        for number in range(50):
            producer.submit(f"{number}")
    assert log.bodies == [f"{number}" for number in range(50)]


@given(refused=st.frozensets(st.integers(0, 40), max_size=6), count=st.integers(1, 40), most=st.integers(1, 40))
def test_a_wrong_message_is_told_alone_and_the_others_are_appended(
    refused: frozenset[int], count: int, most: int
) -> None:
    log = FakeLog(frozenset(f"{number}" for number in refused))
    producer = client_of(log).producer("t", batching=Batching(max_messages=most))
    futures = [producer.submit(f"{number}") for number in range(count)]
    wrong = [number for number in range(count) if number in refused]
    if wrong:
        with pytest.raises(InvalidRequestError):
            producer.flush()
    producer.close()
    assert [number for number, future in enumerate(futures) if future.exception() is not None] == wrong
    assert log.bodies == [f"{number}" for number in range(count) if number not in refused]


def test_a_service_that_stays_away_fails_what_was_sent_and_what_comes_later_goes_on() -> None:
    log = FakeLog(lost=1)
    producer = client_of(log, within_s=0).producer("t")
    first = producer.submit("1")
    with pytest.raises(UnavailableError):
        producer.flush()
    assert isinstance(first.exception(), NoAnswerError)
    assert producer.send("2").queue_offset == 1
    producer.flush()
    producer.close()


def test_a_closed_producer_takes_nothing() -> None:
    producer = client_of(FakeLog()).producer("t")
    producer.send("1")
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.submit("2")


def test_senders_wait_while_too_much_is_pending() -> None:
    gate, asked = threading.Event(), threading.Event()
    log = FakeLog()

    def answer(request: Request) -> Said:
        if request.method == "POST":
            asked.set()
            gate.wait(60)
        return log(request)

    clock = ManualClock()
    client = Client("http://127.0.0.1:1", clock=clock, transport=Scripted(answer, clock))
    producer = client.producer("t", batching=Batching(max_pending_bytes=1_000))
    producer.submit("x" * 400)
    assert asked.wait(60)
    blocked = threading.Thread(target=producer.submit, args=("y" * 400,))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    gate.set()
    blocked.join()
    producer.close()
    assert [body[0] for body in log.bodies] == ["x", "y"]


def test_a_batch_goes_when_it_is_full_or_has_lingered_or_is_asked_for() -> None:
    clock = ManualClock()
    outbox: Outbox[int] = Outbox(Batching(max_messages=3, max_bytes=100, linger_ms=50), clock)
    assert outbox.due_in_s() is None
    outbox.add(b"a", 0)
    assert outbox.due_in_s() == pytest.approx(0.05)
    clock.advance(30)
    outbox.add(b"b", 1)
    assert outbox.due_in_s() == pytest.approx(0.02)
    outbox.add(b"c", 2)
    assert outbox.due_in_s() == 0
    outbox.add(b"d" * 90, 3)
    outbox.add(b"e" * 20, 4)
    assert [outbox.take().futures for _ in range(3)] == [[0, 1, 2], [3], [4]]
    outbox.add(b"f", 5)
    outbox.hurry()
    assert outbox.due_in_s() == 0
    assert outbox.take().first == 5


def test_a_message_larger_than_all_bounds_goes_alone() -> None:
    outbox: Outbox[int] = Outbox(Batching(max_bytes=10, max_pending_bytes=20), ManualClock())
    assert outbox.has_room(b"x" * 100)
    outbox.add(b"x" * 100, 0)
    assert not outbox.has_room(b"y")
    batch = outbox.take()
    assert len(batch.lines) == 1
    outbox.done(batch)
    assert outbox.has_room(b"y")


def test_what_is_no_message_is_refused_where_it_is_sent() -> None:
    log = FakeLog()
    with client_of(log).producer("t") as producer, pytest.raises(InvalidRequestError):
        producer.submit("x", keys=[object()])  # type: ignore[list-item]  # what is tested
    assert log.bodies == []


def test_what_a_transport_raises_is_the_error_of_what_is_left_by_its_class() -> None:
    log = FakeLog(frozenset({"3"}))

    def answer(request: Request) -> Said:
        if request.method == "POST" and len(log.bodies) >= 2:
            return AccessError("is not who it says it is")
        return log(request)

    clock = ManualClock()
    client = Client("http://127.0.0.1:1", clock=clock, transport=Scripted(answer, clock))
    producer = client.producer("t", batching=Batching(max_messages=4, linger_ms=3_600_000))
    futures = [producer.submit(f"{number}") for number in range(4)]  # refused as a whole, then by halves
    with pytest.raises(AccessError):
        producer.close()
    assert [future.exception() is None for future in futures] == [True, True, False, False]
    assert isinstance(futures[2].exception(), AccessError)


def test_an_exit_in_a_callback_keeps_no_other_message_from_its_answer() -> None:
    def leave(future: object) -> None:
        raise SystemExit(1)

    log = FakeLog()
    with client_of(log).producer("t", batching=Batching(linger_ms=3_600_000)) as producer:
        futures = [producer.submit(f"{number}") for number in range(3)]
        futures[0].add_done_callback(leave)
        producer.flush()
    assert [future.result().queue_offset for future in futures] == [0, 1, 2]


def test_a_callback_may_submit_though_there_is_no_room() -> None:
    log = FakeLog()
    with client_of(log).producer("t", batching=Batching(max_pending_bytes=1)) as producer:
        producer.submit("1").add_done_callback(lambda _: producer.submit("2"))
        producer.flush()
        producer.flush()
    assert log.bodies == ["1", "2"]


def test_closing_takes_no_call_for_each_batch_where_nobody_answers() -> None:
    gate, asked = threading.Event(), threading.Event()

    def answer(request: Request) -> Said:
        asked.set()
        gate.wait(60)
        return NoAnswerError("refused")

    clock = ManualClock()
    transport = Scripted(answer, clock)
    client = Client("http://127.0.0.1:1", clock=clock, transport=transport, retries=RetryPolicy(within_s=60))
    producer = client.producer("t", batching=Batching(max_messages=1))
    futures = [producer.submit(f"{number}") for number in range(50)]
    assert asked.wait(60)

    def close() -> None:
        with pytest.raises(NoAnswerError):
            producer.close()

    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.05)
    gate.set()
    closing.join()
    assert all(isinstance(future.exception(), NoAnswerError) for future in futures)
    assert sum(transport.pauses) <= 120


def _short(request: Request) -> Said:
    if request.method == "GET":
        return FakeLog()(request)
    return good({"results": [{"message_id": "A", "queue_id": 0, "queue_offset": 0, "store_ms": 5}]})


def test_an_answer_of_another_length_fails_its_batch_and_no_more() -> None:
    clock = ManualClock()
    client = Client("http://127.0.0.1:1", clock=clock, transport=Scripted(_short, clock))
    producer = client.producer("t", batching=Batching(linger_ms=3_600_000))
    futures = [producer.submit(f"{number}") for number in range(2)]
    with pytest.raises(StoreError, match="2 messages were answered with 1 results"):
        producer.flush()
    assert all(isinstance(future.exception(), StoreError) for future in futures)
    alone = producer.submit("alone")
    producer.close()
    assert alone.result().queue_offset == 0


def test_a_refusal_of_the_durability_is_not_looked_for_in_messages() -> None:
    def answer(request: Request) -> Said:
        return log(request) if request.method == "GET" else problem(400, "invalid-request")

    log, clock = FakeLog(), ManualClock()
    transport = Scripted(answer, clock)
    client = Client("http://127.0.0.1:1", clock=clock, transport=transport)
    producer = client.producer("t", durability=Durability.ARCHIVED, batching=Batching(linger_ms=3_600_000))
    futures = [producer.submit(f"{number}") for number in range(1_000)]
    with pytest.raises(InvalidRequestError):
        producer.close()
    assert all(isinstance(future.exception(), InvalidRequestError) for future in futures)
    assert len([one for one in transport.requests if one.method == "POST"]) <= 12
